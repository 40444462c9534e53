//! The RDMA IP CM service (IBTA Annex A11): a socket's addresses, ports and protocol in the messages
//! of connection management.
//!
//! The protocol and the port that is listened on are in the Service ID ([`Service`]). The addresses
//! and the port that asks are in front of a REQ's private data ([`Header`]), which leaves an
//! application [`CONSUMER_LEN`] octets of it. What is wrong with them is told by a REJ with reason 28
//! and a code in its additional information ([`Ari`]).
//!
//! Linux's `rdma_cm` speaks it: its private data header is this one with both versions in its octet
//! `cma_version` and the IP version in the upper half of `ip_version`, and its port spaces are this
//! range of Service IDs: `RDMA_PS_TCP` is protocol 6.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use crate::bytes::{array, be16, be32, put};
use crate::cm::{Rej, Req};
use crate::types::ServiceId;

/// Octets of private data that are left to the consumer in a REQ.
pub const CONSUMER_LEN: usize = Req::PRIVATE_LEN - Header::LEN;

/// The major version that is spoken.
pub const MAJOR: u8 = 0;
/// The highest minor version that is spoken; lower ones are too.
pub const MINOR: u8 = 0;

/// Protocol number of TCP, which stands for reliable connections.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP, which stands for datagrams.
pub const PROTO_UDP: u8 = 17;

/// What a Service ID of the service's range says (section A11.5): the range's five octets, a protocol
/// number, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The IP protocol whose port it is.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// The five octets that all Service IDs of the range begin with.
const PREFIX: u64 = 1;

impl Service {
    /// That of a TCP port.
    pub const fn tcp(port: u16) -> Service {
        Service { protocol: PROTO_TCP, port }
    }

    /// The Service ID.
    pub const fn id(self) -> ServiceId {
        ServiceId(PREFIX << 24 | (self.protocol as u64) << 16 | self.port as u64)
    }

    /// What `id` says; `None` when it is not of the range.
    pub const fn of(id: ServiceId) -> Option<Service> {
        if id.0 >> 24 != PREFIX {
            return None;
        }
        let [_, _, _, _, _, protocol, high, low] = id.0.to_be_bytes();
        Some(Service { protocol, port: u16::from_be_bytes([high, low]) })
    }
}

/// Which versions of IP addresses are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpVersions {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl IpVersions {
    /// IPv4 alone.
    pub const V4: IpVersions = IpVersions { v4: true, v6: false };
    /// Both.
    pub const BOTH: IpVersions = IpVersions { v4: true, v6: true };
}

/// What a REQ's private data begin with (section A11.4).
///
/// ```text
///    0  major 4, minor 4 │ IP version 4, reserved 4 │ source port 16
///    4  source address 128
///   20  destination address 128
///   36  consumer's private data, 56 octets
/// ```
///
/// An IPv4 address is in the last four octets of its field, behind zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The address of the one who asks.
    pub src: IpAddr,
    /// Its port.
    pub src_port: u16,
    /// The address that it asks; of the version that `src` has.
    pub dst: IpAddr,
}

impl Header {
    /// Octets of a header.
    pub const LEN: usize = 36;

    /// Reads the header that `private_data` begin with. The versions are looked at first, the major
    /// one before the minor one; then the version of IP, then the source and the destination.
    ///
    /// # Errors
    /// What is wrong with it, for the REJ.
    pub fn parse(
        private_data: &[u8; Req::PRIVATE_LEN],
        taken: IpVersions,
    ) -> Result<Header, Fault> {
        let b = private_data;
        let (major, minor, ip) = (b[0] >> 4, b[0] & 0xf, b[1] >> 4);
        if major != MAJOR {
            return Err(Fault::Major);
        }
        // Lower ones are spoken. That there are none below 0 is no reason to write another comparison.
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

    /// A REQ's private data with this header and the consumer's.
    ///
    /// `None` when the addresses are of two versions, or the consumer's data are longer than
    /// [`CONSUMER_LEN`].
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

/// The consumer's part of a REQ's private data.
pub fn consumer(private_data: &[u8; Req::PRIVATE_LEN]) -> [u8; CONSUMER_LEN] {
    array(private_data, Header::LEN)
}

fn v4(octets: [u8; 16]) -> Option<IpAddr> {
    (octets[..12] == [0; 12]).then(|| IpAddr::V4(be32(&octets, 12).into()))
}

/// One of IPv4 in an IPv6 form is not of the version that the header names.
fn v6(octets: [u8; 16]) -> Option<IpAddr> {
    let addr = Ipv6Addr::from(octets);
    addr.to_ipv4_mapped().is_none().then_some(IpAddr::V6(addr))
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another major version.
    #[error("major version not supported")]
    Major,
    /// A higher minor version.
    #[error("minor version not supported")]
    Minor,
    /// Addresses of another version, or of none.
    #[error("IP version not supported")]
    IpVersion {
        /// The versions that are taken.
        taken: IpVersions,
    },
    /// The source is not an address of that version.
    #[error("source address not of the IP version")]
    Source,
    /// The destination is not an address of that version.
    #[error("destination address not of the IP version")]
    Destination,
    /// The destination is not ours.
    #[error("destination address not ours")]
    UnknownAddress {
        /// The address of ours that the REQ came to.
        ours: IpAddr,
    },
    /// Something else, which is not told.
    #[error("refused by the RDMA IP CM service")]
    Unspecified,
}

impl Fault {
    /// The code for it.
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

    /// The additional information of a REJ, with what would be taken in its place: a version, or an
    /// address as it stands in its field. For an address that is malformed there is nothing to suggest.
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

/// What a REJ of the service says (section A11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AriCode(pub u8);

impl AriCode {
    /// Not told.
    pub const UNSPECIFIED: AriCode = AriCode(0);
    /// Major version.
    pub const MAJOR: AriCode = AriCode(1);
    /// Minor version.
    pub const MINOR: AriCode = AriCode(2);
    /// IP version.
    pub const IP_VERSION: AriCode = AriCode(3);
    /// Form of the source address.
    pub const SOURCE: AriCode = AriCode(4);
    /// Form of the destination address.
    pub const DESTINATION: AriCode = AriCode(5);
    /// The destination address is not the server's.
    pub const UNKNOWN_ADDRESS: AriCode = AriCode(6);
}

impl fmt::Display for AriCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            AriCode::UNSPECIFIED => "unspecified",
            AriCode::MAJOR => "major version",
            AriCode::MINOR => "minor version",
            AriCode::IP_VERSION => "IP version",
            AriCode::SOURCE => "source IP address",
            AriCode::DESTINATION => "destination IP address",
            AriCode::UNKNOWN_ADDRESS => "unknown IP address",
            AriCode(n) => return write!(f, "code {n}"),
        })
    }
}

/// The layer that refuses.
const LAYER_SERVICE: u8 = 0;
const LAYER_ULP: u8 = 1;

/// The additional information of a REJ with reason 28.
///
/// ```text
///   0  layer 8 │ code 8 │ octets of the suggested value 8 │ reserved 8
///   4  suggested value, 68 octets
/// ```
///
/// That is layer 0. What is behind the octet of the layer the others say for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ari<'a> {
    /// There is none, which is what Linux's `rdma_reject` sends: the consumer refuses.
    Absent,
    /// The service refuses.
    Service {
        /// Why.
        code: AriCode,
        /// What it would take, if it says so and all of it is there.
        suggested: Option<&'a [u8]>,
    },
    /// The consumer refuses.
    Ulp(&'a [u8]),
    /// A layer that the annex does not know.
    Other(&'a [u8]),
}

impl<'a> Ari<'a> {
    /// Reads the octets that count of a REJ's additional information ([`Rej::ari`]).
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

/// The additional information with which a consumer refuses, and its octets that count: the layer and
/// no more. What the consumer says is in the REJ's private data, where Linux looks for it.
pub const fn ulp_ari() -> ([u8; Rej::ARI_LEN], u8) {
    let mut ari = [0; Rej::ARI_LEN];
    ari[0] = LAYER_ULP;
    (ari, 1)
}

fn service_ari(code: AriCode, suggested: &[u8]) -> ([u8; Rej::ARI_LEN], u8) {
    let mut ari = [0; Rej::ARI_LEN];
    // 16 octets at most.
    let len = u8::try_from(suggested.len()).unwrap_or(0);
    ari[..4].copy_from_slice(&[LAYER_SERVICE, code.0, len, 0]);
    put(&mut ari, 4, suggested);
    (ari, 4 + len)
}

#[cfg(test)]
mod tests;
