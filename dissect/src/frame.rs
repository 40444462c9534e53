//! Captured frames as TCP segments.

use core::net::{IpAddr, SocketAddr};

use heddle_tcp::wire::{
    EtherType, EthernetHeader, Ipv4Header, Malformed, TcpHeader, ethernet, ipv4,
};
use heddle_tcp::{Flags, SeqNumber};
use smoltcp::wire::{IpProtocol, Ipv6Packet};

const IPV6: EtherType = EtherType(0x86dd);
/// Tags of VLANs (IEEE 802.1Q, and the outer tag of 802.1ad), each of four bytes.
const VLANS: [EtherType; 2] = [EtherType(0x8100), EtherType(0x88a8)];

/// A TCP segment of a capture. The decoder does not check its checksum: captures are full of
/// segments whose checksum a NIC was to fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) flags: Flags,
    pub(crate) payload: &'a [u8],
}

/// Returns the TCP segment of an Ethernet frame; `None` when the frame carries another protocol.
///
/// # Errors
/// Fails when the frame is cut off, or when its headers are malformed.
pub(crate) fn segment(frame: &[u8]) -> Result<Option<Segment<'_>>, Malformed> {
    let mut kind = EthernetHeader::parse(frame)?.ethertype;
    let mut packet = frame.get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    // Remove up to two tags: providers stack no more.
    for _ in 0..2 {
        if VLANS.contains(&kind) {
            let (tag, rest) = packet.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
            kind = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
            packet = rest;
        }
    }
    match kind {
        EtherType::IPV4 => of_ipv4(packet),
        IPV6 => of_ipv6(packet),
        _ => Ok(None),
    }
}

fn of_ipv4(packet: &[u8]) -> Result<Option<Segment<'_>>, Malformed> {
    let ip = Ipv4Header::parse(packet, packet.len())?;
    // No sender fragments TCP, and the decoder could not tell later fragments from headers.
    if ip.protocol != ipv4::PROTO_TCP || ip.fragment {
        return Ok(None);
    }
    let tcp = packet.get(ip.header_len..ip.total_len).ok_or(Malformed::Truncated)?;
    of_tcp(ip.src.into(), ip.dst.into(), tcp).map(Some)
}

/// Reads an IPv6 packet. Does not skip extension headers: no TCP segment on an RDMA link has any.
fn of_ipv6(packet: &[u8]) -> Result<Option<Segment<'_>>, Malformed> {
    let ip = Ipv6Packet::new_checked(packet).map_err(|_| Malformed::Truncated)?;
    if ip.version() != 6 {
        return Err(Malformed::Header);
    }
    if ip.next_header() != IpProtocol::Tcp {
        return Ok(None);
    }
    let (from, to) = (ip.src_addr(), ip.dst_addr());
    of_tcp(from.into(), to.into(), ip.payload()).map(Some)
}

fn of_tcp(from: IpAddr, to: IpAddr, bytes: &[u8]) -> Result<Segment<'_>, Malformed> {
    let tcp = TcpHeader::parse(bytes, bytes.len())?;
    Ok(Segment {
        from: SocketAddr::new(from, tcp.src_port),
        to: SocketAddr::new(to, tcp.dst_port),
        seq: tcp.segment.seq,
        ack: tcp.segment.ack,
        flags: tcp.segment.flags,
        payload: bytes.get(tcp.header_len..).unwrap_or(&[]),
    })
}
