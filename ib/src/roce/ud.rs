//! A datagram of a queue pair for unreliable datagrams: one packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heddle_base::Sum;

use super::header::{BTH_LEN, Bth, DETH_LEN, Deth, OPCODE_UD_SEND_ONLY};
use super::icrc::{ICRC_LEN, IPV4_LEN, IPV6_LEN, UDP_LEN, icrc};
use super::{DEFAULT_P_KEY, GSI_Q_KEY, UDP_PORT, p_keys_match};
use crate::bytes::{array, be16, put};
use crate::types::{Psn, Qpn};

const PROTO_UDP: u8 = 17;
/// Time to live, or hop limit, of the packets that this crate makes.
const HOPS: u8 = 64;

/// The reasons for which this crate refuses a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The packet ends before its headers do, or before its own lengths say.
    #[error("shorter than its headers say")]
    Short,
    /// The packet is neither IPv4 nor IPv6; has options or extension headers, which RoCEv2 does not
    /// have; or is a fragment.
    #[error("an IP header that RoCEv2 does not have")]
    Ip,
    /// The packet is not UDP to [`UDP_PORT`].
    #[error("not for RoCEv2's port")]
    Port,
    /// The lengths of IP and UDP do not agree, or do not leave room for whole words of payload.
    #[error("lengths that contradict each other")]
    Length,
    /// The transport's headers have a version other than 0.
    #[error("transport header version {0}")]
    Version(u8),
    /// The packet is not an unreliable datagram in one packet.
    #[error("opcode {0:#04x}")]
    Opcode(u8),
    /// The invariant CRC is wrong.
    #[error("wrong invariant CRC")]
    Icrc,
    /// The packet is not for the queue pair of general services.
    #[error("queue pair {}", .0.get())]
    DestQp(Qpn),
    /// The packet is of another partition.
    #[error("P_Key {0:#06x}")]
    PKey(u16),
    /// The packet does not have the Q_Key of the queue pair.
    #[error("Q_Key {0:#010x}")]
    QKey(u32),
}

/// The fields of a packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdRepr {
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver; of the same IP version as `src`.
    pub dst: IpAddr,
    /// The UDP source port: any number, by which networks spread flows.
    pub src_port: u16,
    /// P_Key of the partition.
    pub p_key: u16,
    /// The queue pair that receives the packet.
    pub dest_qp: Qpn,
    /// The queue pair that sends the packet.
    pub src_qp: Qpn,
    /// Q_Key of the queue pair that receives the packet.
    pub q_key: u32,
    /// Sequence number of the packet, which receivers of datagrams ignore.
    pub psn: Psn,
    /// True if the packet is to wake an application that waits for solicited events.
    pub solicited: bool,
}

/// A packet of an unreliable datagram, its invariant CRC verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdPacket<'a> {
    /// The fields of its headers.
    pub repr: UdRepr,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

impl UdRepr {
    /// Makes headers between the general services of two ports, in the default partition.
    pub const fn gsi(src: IpAddr, dst: IpAddr, src_port: u16) -> UdRepr {
        UdRepr {
            src,
            dst,
            src_port,
            p_key: DEFAULT_P_KEY,
            dest_qp: Qpn::GSI,
            src_qp: Qpn::GSI,
            q_key: GSI_Q_KEY,
            psn: Psn::new(0),
            solicited: false,
        }
    }

    /// Returns the IP packet with `payload`, CRC included. The UDP checksum is zero, as RoCEv2 has
    /// it: the CRC covers more.
    ///
    /// Returns `None` when the addresses are of two IP versions, or the payload is longer than 64
    /// KiB less the headers.
    pub fn emit(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let padded = payload.len().next_multiple_of(4);
        let udp_len = UDP_LEN + BTH_LEN + DETH_LEN + padded + ICRC_LEN;
        let mut p = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4(src, dst, udp_len)?,
            (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6(src, dst, udp_len)?,
            _ => return None,
        };
        p.extend(self.src_port.to_be_bytes());
        p.extend(UDP_PORT.to_be_bytes());
        p.extend(u16::try_from(udp_len).ok()?.to_be_bytes());
        p.extend([0, 0]);
        let bth = Bth {
            opcode: OPCODE_UD_SEND_ONLY,
            solicited: self.solicited,
            migrated: false,
            pad: u8::try_from(padded - payload.len()).ok()?,
            version: 0,
            p_key: self.p_key,
            fecn: false,
            becn: false,
            dest_qp: self.dest_qp,
            ack_request: false,
            psn: self.psn,
        };
        p.extend(bth.emit());
        p.extend(Deth { q_key: self.q_key, src_qp: self.src_qp }.emit());
        p.extend(payload);
        p.resize(p.len() + padded - payload.len(), 0);
        let crc = icrc(&p)?;
        p.extend(crc);
        Some(p)
    }
}

/// Sets no fragment bits and no identification: a packet that must not be fragmented needs none
/// (RFC 6864 section 4.1).
fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, udp_len: usize) -> Option<Vec<u8>> {
    let total = u16::try_from(IPV4_LEN + udp_len).ok()?;
    let mut h = [0; IPV4_LEN];
    h[0] = 0x45;
    put(&mut h, 2, &total.to_be_bytes());
    h[6] = 0x40;
    h[8] = HOPS;
    h[9] = PROTO_UDP;
    put(&mut h, 12, &src.octets());
    put(&mut h, 16, &dst.octets());
    let sum = Sum::of(&h).complement();
    put(&mut h, 10, &sum.to_be_bytes());
    let mut p = Vec::with_capacity(usize::from(total));
    p.extend(h);
    Some(p)
}

fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, udp_len: usize) -> Option<Vec<u8>> {
    let len = u16::try_from(udp_len).ok()?;
    let mut h = [0; IPV6_LEN];
    h[0] = 0x60;
    put(&mut h, 4, &len.to_be_bytes());
    h[6] = PROTO_UDP;
    h[7] = HOPS;
    put(&mut h, 8, &src.octets());
    put(&mut h, 24, &dst.octets());
    let mut p = Vec::with_capacity(IPV6_LEN + udp_len);
    p.extend(h);
    Some(p)
}

impl<'a> UdPacket<'a> {
    /// Reads an IP packet, and ignores bytes after its end, which are an Ethernet frame's padding.
    /// The function leaves the IPv4 header checksum to its caller. No check of the UDP checksum is
    /// needed, because the CRC covers all bytes that the checksum does.
    ///
    /// # Errors
    /// Fails when the packet is not a UD packet of RoCEv2 in one piece with a right CRC.
    pub fn parse(packet: &'a [u8]) -> Result<UdPacket<'a>, PacketError> {
        let (src, dst, ip_len, total) = ip(packet)?;
        let packet = packet.get(..total).ok_or(PacketError::Short)?;
        let udp = packet.get(ip_len..).ok_or(PacketError::Short)?;
        let Some((udp_head, body)) = udp.split_first_chunk::<UDP_LEN>() else {
            return Err(PacketError::Short);
        };
        if be16(udp_head, 2) != UDP_PORT {
            return Err(PacketError::Port);
        }
        if usize::from(be16(udp_head, 4)) != udp.len() {
            return Err(PacketError::Length);
        }
        let Some((bth, rest)) = body.split_first_chunk::<BTH_LEN>() else {
            return Err(PacketError::Short);
        };
        let bth = Bth::parse(bth);
        if bth.version != 0 {
            return Err(PacketError::Version(bth.version));
        }
        if bth.opcode != OPCODE_UD_SEND_ONLY {
            return Err(PacketError::Opcode(bth.opcode));
        }
        let Some((deth, rest)) = rest.split_first_chunk::<DETH_LEN>() else {
            return Err(PacketError::Short);
        };
        let Some((padded, crc)) = rest.split_last_chunk::<ICRC_LEN>() else {
            return Err(PacketError::Short);
        };
        if icrc(&packet[..packet.len() - ICRC_LEN]) != Some(*crc) {
            return Err(PacketError::Icrc);
        }
        if !padded.len().is_multiple_of(4) {
            return Err(PacketError::Length);
        }
        let len = padded.len().checked_sub(usize::from(bth.pad)).ok_or(PacketError::Length)?;
        let deth = Deth::parse(deth);
        let repr = UdRepr {
            src,
            dst,
            src_port: be16(udp_head, 0),
            p_key: bth.p_key,
            dest_qp: bth.dest_qp,
            src_qp: deth.src_qp,
            q_key: deth.q_key,
            psn: bth.psn,
            solicited: bth.solicited,
        };
        Ok(UdPacket { repr, payload: &padded[..len] })
    }

    /// Reads a packet for the queue pair of general services.
    ///
    /// # Errors
    /// Fails as [`parse`](Self::parse) does, and when the packet is for another queue pair, lacks
    /// its Q_Key, or is of another partition than the default one.
    pub fn parse_gsi(packet: &'a [u8]) -> Result<UdPacket<'a>, PacketError> {
        let p = UdPacket::parse(packet)?;
        if p.repr.dest_qp != Qpn::GSI {
            return Err(PacketError::DestQp(p.repr.dest_qp));
        }
        if !p_keys_match(p.repr.p_key, DEFAULT_P_KEY) {
            return Err(PacketError::PKey(p.repr.p_key));
        }
        if p.repr.q_key != GSI_Q_KEY {
            return Err(PacketError::QKey(p.repr.q_key));
        }
        Ok(p)
    }
}

/// Returns the addresses, and the lengths of the IP header and of the whole packet, in bytes.
fn ip(p: &[u8]) -> Result<(IpAddr, IpAddr, usize, usize), PacketError> {
    match p.first().ok_or(PacketError::Short)? >> 4 {
        4 => {
            let h = p.first_chunk::<IPV4_LEN>().ok_or(PacketError::Short)?;
            // The packet has options, or is a fragment: more fragments follow, or it has an offset.
            if h[0] != 0x45 || be16(h, 6) & 0x3fff != 0 {
                return Err(PacketError::Ip);
            }
            if h[9] != PROTO_UDP {
                return Err(PacketError::Port);
            }
            let at = |at| IpAddr::from(array::<4>(h, at));
            Ok((at(12), at(16), IPV4_LEN, usize::from(be16(h, 2))))
        }
        6 => {
            let h = p.first_chunk::<IPV6_LEN>().ok_or(PacketError::Short)?;
            if h[6] != PROTO_UDP {
                return Err(PacketError::Ip);
            }
            let at = |at| IpAddr::from(array::<16>(h, at));
            Ok((at(8), at(24), IPV6_LEN, IPV6_LEN + usize::from(be16(h, 4))))
        }
        _ => Err(PacketError::Ip),
    }
}
