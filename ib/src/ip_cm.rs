//! The RDMA IP CM service (IBTA Annex A11): a socket's addresses, ports and protocol in the
//! messages of connection management.
//!
//! The Service ID contains the protocol and the port that the server listens on ([`Service`]). The
//! addresses and the asking port precede a REQ's private data ([`Header`]), which leaves
//! [`CONSUMER_LEN`] bytes of it to an application. A REJ with reason 28 reports a fault in them by
//! a code in its additional information ([`Ari`]).
//!
//! Linux's `rdma_cm` uses this service. The header of its private data is this one, with both
//! versions in the byte `cma_version` and the IP version in the upper half of `ip_version`. The
//! port spaces of `rdma_cm` are this range of Service IDs: `RDMA_PS_TCP` is protocol 6.

use core::net::{IpAddr, Ipv6Addr};

use heddle_types::ib::AriCode;

use crate::bytes::{array, be16, be32, put};
use crate::cm::{Rej, Req};
use crate::types::ServiceId;

/// Bytes of a REQ's private data that are left to the consumer.
pub const CONSUMER_LEN: usize = Req::PRIVATE_LEN - Header::LEN;

/// The only major version that this module accepts.
pub const MAJOR: u8 = 0;
/// The highest minor version that this module accepts; it also accepts lower ones.
pub const MINOR: u8 = 0;

/// Protocol number of TCP, which stands for reliable connections.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP, which stands for datagrams.
pub const PROTO_UDP: u8 = 17;

/// The meaning of a Service ID of the service's range (section A11.5): the range's five bytes, a
/// protocol number, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Number of the IP protocol to which the port belongs.
    pub protocol: u8,
    /// The port that the server listens on.
    pub port: u16,
}

/// The five bytes with which all Service IDs of the range begin.
const PREFIX: u64 = 1;

impl Service {
    /// Returns the service of a TCP port.
    pub const fn tcp(port: u16) -> Service {
        Service { protocol: PROTO_TCP, port }
    }

    /// Returns the Service ID.
    pub const fn id(self) -> ServiceId {
        ServiceId(PREFIX << 24 | (self.protocol as u64) << 16 | self.port as u64)
    }

    /// Returns the meaning of `id`; `None` when `id` is not of the range.
    pub const fn of(id: ServiceId) -> Option<Service> {
        if id.0 >> 24 != PREFIX {
            return None;
        }
        let [_, _, _, _, _, protocol, high, low] = id.0.to_be_bytes();
        Some(Service { protocol, port: u16::from_be_bytes([high, low]) })
    }
}

/// The versions of IP addresses that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpVersions {
    /// True to accept IPv4.
    pub v4: bool,
    /// True to accept IPv6.
    pub v6: bool,
}

impl IpVersions {
    /// Only IPv4.
    pub const V4: IpVersions = IpVersions { v4: true, v6: false };
    /// IPv4 and IPv6.
    pub const BOTH: IpVersions = IpVersions { v4: true, v6: true };
}

/// The fields with which a REQ's private data begin (section A11.4).
///
/// ```text
///    0  major 4, minor 4 │ IP version 4, reserved 4 │ source port 16
///    4  source address 128
///   20  destination address 128
///   36  consumer's private data, 56 bytes
/// ```
///
/// An IPv4 address is in the last four bytes of its field, after zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Address of the side that asks.
    pub src: IpAddr,
    /// Port of the side that asks.
    pub src_port: u16,
    /// Address that the side asks; of the same IP version as `src`.
    pub dst: IpAddr,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 36;

    /// Reads the header with which `private_data` begin. Checks the major version, then the minor
    /// one, then the version of IP, then the source and the destination.
    ///
    /// # Errors
    /// Fails with the first fault found, for the REJ.
    pub fn parse(
        private_data: &[u8; Req::PRIVATE_LEN],
        taken: IpVersions,
    ) -> Result<Header, Fault> {
        let b = private_data;
        let (major, minor, ip) = (b[0] >> 4, b[0] & 0xf, b[1] >> 4);
        if major != MAJOR {
            return Err(Fault::Major);
        }
        // Accept lower versions. Use `>` although there are none below 0 today.
        if minor > MINOR {
            return Err(Fault::Minor);
        }
        let address: fn([u8; 16]) -> Option<IpAddr> = match ip {
            4 if taken.v4 => v4,
            6 if taken.v6 => v6,
            _ => return Err(Fault::IpVersion { taken }),
        };
        let src = address(array(b, 4)).ok_or(Fault::Source)?;
        let dst = address(array(b, 20)).ok_or(Fault::Destination)?;
        Ok(Header { src, src_port: be16(b, 2), dst })
    }

    /// Returns a REQ's private data with this header and the consumer's data.
    ///
    /// Returns `None` when the addresses are of two IP versions, or the consumer's data are longer
    /// than [`CONSUMER_LEN`].
    pub fn emit(&self, consumer: &[u8]) -> Option<[u8; Req::PRIVATE_LEN]> {
        let (version, src, dst) = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                (4, src.to_ipv6_compatible(), dst.to_ipv6_compatible())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => (6, src, dst),
            _ => return None,
        };
        if consumer.len() > CONSUMER_LEN {
            return None;
        }
        let mut b = [0; Req::PRIVATE_LEN];
        b[0] = MAJOR << 4 | MINOR;
        b[1] = version << 4;
        put(&mut b, 2, &self.src_port.to_be_bytes());
        put(&mut b, 4, &src.octets());
        put(&mut b, 20, &dst.octets());
        put(&mut b, Header::LEN, consumer);
        Some(b)
    }
}

/// Returns the consumer's part of a REQ's private data.
pub fn consumer(private_data: &[u8; Req::PRIVATE_LEN]) -> [u8; CONSUMER_LEN] {
    array(private_data, Header::LEN)
}

fn v4(bytes: [u8; 16]) -> Option<IpAddr> {
    (bytes[..12] == [0; 12]).then(|| IpAddr::V4(be32(&bytes, 12).into()))
}

/// An IPv4 address in an IPv6 form is not of the version that the header names.
fn v6(bytes: [u8; 16]) -> Option<IpAddr> {
    let addr = Ipv6Addr::from(bytes);
    addr.to_ipv4_mapped().is_none().then_some(IpAddr::V6(addr))
}

/// The faults of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A major version other than [`MAJOR`].
    #[error("major version not supported")]
    Major,
    /// A minor version higher than [`MINOR`].
    #[error("minor version not supported")]
    Minor,
    /// The IP version is not accepted, or is no IP version.
    #[error("IP version not supported")]
    IpVersion {
        /// The versions that the server accepts.
        taken: IpVersions,
    },
    /// The source is not an address of that version.
    #[error("source address not of the IP version")]
    Source,
    /// The destination is not an address of that version.
    #[error("destination address not of the IP version")]
    Destination,
    /// The destination is not an address of this host.
    #[error("destination address not ours")]
    UnknownAddress {
        /// The address of this host that the REQ came to.
        ours: IpAddr,
    },
    /// Another fault, which the REJ does not name.
    #[error("refused by the RDMA IP CM service")]
    Unspecified,
}

impl Fault {
    /// Returns the code for the fault.
    pub const fn code(self) -> AriCode {
        match self {
            Fault::Unspecified => AriCode::UNSPECIFIED,
            Fault::Major => AriCode::MAJOR,
            Fault::Minor => AriCode::MINOR,
            Fault::IpVersion { .. } => AriCode::IP_VERSION,
            Fault::Source => AriCode::SOURCE,
            Fault::Destination => AriCode::DESTINATION,
            Fault::UnknownAddress { .. } => AriCode::UNKNOWN_ADDRESS,
        }
    }

    /// Returns the additional information of a REJ, with a value that the server would accept
    /// instead: a version, or an address as in its field. For a malformed address there is no
    /// suggestion.
    pub fn ari(self) -> ([u8; Rej::ARI_LEN], u8) {
        match self {
            Fault::Major => service_ari(self.code(), &[MAJOR]),
            Fault::Minor => service_ari(self.code(), &[MINOR]),
            Fault::IpVersion { taken } => service_ari(self.code(), &[if taken.v4 { 4 } else { 6 }]),
            Fault::UnknownAddress { ours: IpAddr::V4(ours) } => {
                service_ari(self.code(), &ours.octets())
            }
            Fault::UnknownAddress { ours: IpAddr::V6(ours) } => {
                service_ari(self.code(), &ours.octets())
            }
            Fault::Source | Fault::Destination | Fault::Unspecified => {
                service_ari(self.code(), &[])
            }
        }
    }
}

/// Codes of the layers that can refuse.
const LAYER_SERVICE: u8 = 0;
const LAYER_ULP: u8 = 1;

/// The additional information of a REJ with reason 28.
///
/// ```text
///   0  layer 8 │ code 8 │ bytes of the suggested value 8 │ reserved 8
///   4  suggested value, 68 bytes
/// ```
///
/// The format above is that of layer 0. The other layers define the bytes after the layer
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ari<'a> {
    /// The REJ has none, as Linux's `rdma_reject` sends it: the consumer refuses.
    Absent,
    /// The service refuses the connection.
    Service {
        /// The reason for the refusal.
        code: AriCode,
        /// A value that the service would accept, if it names one and all bytes of it are there.
        suggested: Option<&'a [u8]>,
    },
    /// The consumer refuses the connection.
    Ulp(&'a [u8]),
    /// A layer that the annex does not define refuses.
    Other(&'a [u8]),
}

impl<'a> Ari<'a> {
    /// Reads the valid bytes of a REJ's additional information ([`Rej::ari`]).
    pub fn parse(ari: &'a [u8]) -> Ari<'a> {
        match ari {
            [] => Ari::Absent,
            [LAYER_SERVICE, rest @ ..] => {
                let code = AriCode(rest.first().copied().unwrap_or(0));
                let len = rest.get(1).copied().unwrap_or(0);
                let value = rest.get(3..3 + usize::from(len)).filter(|v| !v.is_empty());
                Ari::Service { code, suggested: value }
            }
            [LAYER_ULP, rest @ ..] => Ari::Ulp(rest),
            other => Ari::Other(other),
        }
    }
}

/// Returns the additional information with which a consumer refuses, and its number of valid bytes:
/// only the layer. The consumer's data are in the REJ's private data, where Linux looks for them.
pub const fn ulp_ari() -> ([u8; Rej::ARI_LEN], u8) {
    let mut ari = [0; Rej::ARI_LEN];
    ari[0] = LAYER_ULP;
    (ari, 1)
}

fn service_ari(code: AriCode, suggested: &[u8]) -> ([u8; Rej::ARI_LEN], u8) {
    let mut ari = [0; Rej::ARI_LEN];
    // A suggested value has at most 16 bytes, so its length fits.
    let len = u8::try_from(suggested.len()).unwrap_or(0);
    ari[..4].copy_from_slice(&[LAYER_SERVICE, code.0, len, 0]);
    put(&mut ari, 4, suggested);
    (ari, 4 + len)
}

#[cfg(test)]
mod tests;
