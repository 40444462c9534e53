//! The headers of a connection's segments, built once.
//!
//! The stack copies the fields that do not change from segment to segment, and knows their part of
//! both checksums. For each segment the stack only writes and adds lengths, sequence numbers,
//! window, flags and options.

use heddle_base::Sum;

use super::config::StackConfig;
use super::flow::FlowKey;
use super::frame::{TcpChecksum, TxBody, TxFrame};
use crate::wire::{
    EtherType, EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, Tag, Vid, ethernet, ipv4, ipv6, tcp,
};
use crate::{SackBlocks, TxSegment};
use core::net::{IpAddr, Ipv4Addr};

const IP_AT: usize = ethernet::HEADER_LEN;
/// Bytes of the destination's station address, the first of a frame.
const DST: usize = 6;
/// Bytes of the headers over IPv4 and over IPv6, and where the TCP header begins.
const TCP_AT: usize = IP_AT + ipv4::HEADER_LEN;
const LEN: usize = TCP_AT + tcp::HEADER_LEN;
const TCP6_AT: usize = IP_AT + ipv6::HEADER_LEN;
const LEN6: usize = TCP6_AT + tcp::HEADER_LEN;
/// The length of the Ethernet header in the width in which a frame holds it.
const L2_LEN: u8 = width(ethernet::HEADER_LEN);

/// The codepoint ECT(0) of ECN-capable packets (RFC 3168 section 5).
const ECT_0: u8 = 0b10;

/// Returns a header's length, which is small.
#[expect(clippy::cast_possible_truncation, reason = "checked, when it is compiled")]
const fn width(len: usize) -> u8 {
    assert!(len <= u8::MAX as usize);
    len as u8
}

/// The checksums that the port computes by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offloads {
    pub(super) tcp: bool,
    pub(super) ip: bool,
}

/// The part that the headers of all connections have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    /// Our station address.
    pub(super) mac: MacAddr,
    /// TTL, or hop limit.
    pub(super) ttl: u8,
    pub(super) dscp: u8,
    /// The tag of the VLAN.
    pub(super) tag: Tag,
}

impl Common {
    /// Returns what the headers of the connections of a VLAN have in common.
    pub(super) fn of(cfg: &StackConfig, vid: Vid) -> Common {
        let tag = cfg.net.tag(vid, cfg.dscp);
        Common { mac: MacAddr(cfg.mac), ttl: cfg.ttl, dscp: cfg.dscp, tag }
    }
}

/// Ethernet, IP and TCP headers of one connection.
#[derive(Clone, Debug)]
pub(super) struct HeaderTemplate {
    /// The headers after the destination's station address, which each frame gets anew. Over IPv4
    /// the last bytes have no meaning.
    bytes: [u8; LEN6 - DST],
    /// Sum of the IPv4 header with length and checksum 0.
    ip_sum: Sum,
    /// Sum of the pseudo-header with length 0, and of the ports.
    tcp_sum: Sum,
    /// The tag of the VLAN. It has no place in `bytes`, which are thus the same with and without.
    tag: Tag,
}

impl HeaderTemplate {
    /// Returns the headers of `flow`, whose VLAN is that of `common`. Segments over IPv6 carry the
    /// flow label `label` (RFC 6437), by which routers choose among equal paths.
    pub(super) fn new(common: Common, flow: &FlowKey, label: u32) -> HeaderTemplate {
        let (local, remote) = (flow.local(), flow.remote());
        let (src, dst) = (local.ip(), remote.ip());
        let mut t = HeaderTemplate {
            bytes: [0; LEN6 - DST],
            ip_sum: Sum::ZERO,
            tcp_sum: Sum::ZERO,
            tag: common.tag,
        };
        let mut bytes = [0; LEN6];
        let ethertype = if src.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
        let ethernet = EthernetHeader { dst: MacAddr::default(), src: common.mac, ethertype };
        ethernet.emit(piece(&mut bytes, 0));
        let pseudo = match (src, dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6Header {
                    src,
                    dst,
                    next_header: ipv6::TCP,
                    hop_limit: common.ttl,
                    traffic_class: common.dscp << 2,
                    flow_label: label,
                    payload_len: 0,
                };
                ip.emit(piece(&mut bytes, IP_AT));
                ipv6::pseudo_header(ipv6::TCP, src, dst, 0)
            }
            _ => {
                let v4 = |ip| if let IpAddr::V4(ip) = ip { ip } else { Ipv4Addr::UNSPECIFIED };
                let ip = Ipv4Header {
                    src: v4(src),
                    dst: v4(dst),
                    protocol: ipv4::PROTO_TCP,
                    ttl: common.ttl,
                    traffic_class: common.dscp << 2,
                    header_len: ipv4::HEADER_LEN,
                    total_len: 0,
                    fragment: false,
                };
                let header = piece(&mut bytes, IP_AT);
                ip.emit_unsummed(header);
                t.ip_sum = Sum::of_short(header);
                ipv4::pseudo_header(ip.src, ip.dst, 0)
            }
        };
        let at = if src.is_ipv6() { TCP6_AT } else { TCP_AT };
        tcp::emit_ports(local.port(), remote.port(), piece(&mut bytes, at));
        t.bytes.copy_from_slice(&bytes[DST..]);
        let ports = u64::from(local.port()) + u64::from(remote.port());
        t.tcp_sum = pseudo.plus(Sum::of_numbers(ports));
        t
    }

    /// Returns the addresses, ports and VLAN of the connection, our end first.
    pub(super) fn flow(&self) -> FlowKey {
        let vid = self.tag.vid();
        if self.is_ipv6() {
            let at = |n| self.be64(IP_AT + n);
            let (local, remote) = ([at(8), at(16)], [at(24), at(32)]);
            return FlowKey::V6 { local, remote, ports: self.be32(TCP6_AT), vid };
        }
        FlowKey::V4 { addrs: self.be64(IP_AT + 12), ports: self.be32(TCP_AT), vid }
    }

    /// Returns true if these are the headers of the connection `flow`.
    #[inline(always)]
    pub(super) fn is_of(&self, flow: &FlowKey) -> bool {
        match *flow {
            FlowKey::V4 { addrs, ports, vid } => {
                self.be64(IP_AT + 12) == addrs
                    && self.be32(TCP_AT) == ports
                    && self.tag.vid() == vid
                    && !self.is_ipv6()
            }
            FlowKey::V6 { .. } => self.is_ipv6() && self.flow() == *flow,
        }
    }

    /// Returns true if the headers are IPv6's: by the first byte of the EtherType.
    #[inline(always)]
    fn is_ipv6(&self) -> bool {
        const FIRST: u8 = EtherType::IPV6.0.to_be_bytes()[0];
        const { assert!(FIRST != EtherType::IPV4.0.to_be_bytes()[0]) }
        self.bytes[IP_AT - 2 - DST] == FIRST
    }

    #[inline(always)]
    fn be32(&self, at: usize) -> u32 {
        let b = &self.bytes[at - DST..][..4];
        u32::from_be_bytes([b[0], b[1], b[2], b[3]])
    }

    #[inline(always)]
    fn be64(&self, at: usize) -> u64 {
        u64::from(self.be32(at)) << 32 | u64::from(self.be32(at + 4))
    }

    /// Returns the DSCP of segments.
    pub(super) fn dscp(&self) -> u8 {
        let ip = &self.bytes[IP_AT - DST..];
        let class =
            if self.is_ipv6() { ip[0] << 4 | ip[1] >> 4 } else { ip[ipv4::TRAFFIC_CLASS_AT] };
        class >> 2
    }

    /// Changes the tag of segments from now on, to another of the same VLAN.
    pub(super) fn set_tag(&mut self, tag: Tag) {
        debug_assert_eq!(self.tag.vid(), tag.vid());
        self.tag = tag;
    }

    /// Changes the DSCP of segments from now on.
    pub(super) fn set_dscp(&mut self, dscp: u8) {
        let is_ipv6 = self.is_ipv6();
        let ip = &mut self.bytes[IP_AT - DST..];
        if is_ipv6 {
            // The traffic class lies in two bytes; ECN and the flow label keep theirs.
            ip[0] = ip[0] & 0xf0 | dscp >> 2;
            ip[1] = ip[1] & 0x3f | dscp << 6;
        } else {
            ip[ipv4::TRAFFIC_CLASS_AT] = dscp << 2;
            self.ip_sum = Sum::of(&ip[..ipv4::HEADER_LEN]);
        }
    }

    /// Returns the frame of `seg`, whose SACK option has the blocks of `sack`. `body` holds the
    /// payload, `seg.len` bytes, and is no train.
    pub(super) fn frame(
        &self,
        dst: MacAddr,
        seg: &TxSegment,
        sack: &SackBlocks,
        body: TxBody,
        off: Offloads,
    ) -> TxFrame {
        let mut frame = TxFrame::default();
        self.fill(dst, seg, sack, off, &mut frame);
        frame.body = body;
        frame
    }

    /// Does the work of [`HeaderTemplate::frame`] in place, for a frame that has its body. If the
    /// body is a train that the port cuts, `seg` is as long as the train.
    #[inline]
    pub(super) fn fill(
        &self,
        dst: MacAddr,
        seg: &TxSegment,
        sack: &SackBlocks,
        off: Offloads,
        frame: &mut TxFrame,
    ) {
        if self.is_ipv6() {
            self.fill_ipv6(dst, seg, sack, off, frame);
        } else {
            self.fill_as::<TCP_AT, LEN>(dst, seg, sack, off, frame);
        }
        if !self.tag.is_none() {
            frame.put_tag(self.tag);
        }
    }

    /// Does the work of [`HeaderTemplate::fill`] over IPv6. This is a separate function, because
    /// both kinds of headers in the caller leave too few registers to either.
    #[inline(never)]
    fn fill_ipv6(
        &self,
        dst: MacAddr,
        seg: &TxSegment,
        sack: &SackBlocks,
        off: Offloads,
        frame: &mut TxFrame,
    ) {
        self.fill_as::<TCP6_AT, LEN6>(dst, seg, sack, off, frame);
    }

    /// Does the work of [`HeaderTemplate::fill`] for headers of `N` bytes, of which TCP's begin at
    /// `AT`.
    #[inline(always)]
    fn fill_as<const AT: usize, const N: usize>(
        &self,
        dst: MacAddr,
        seg: &TxSegment,
        sack: &SackBlocks,
        off: Offloads,
        frame: &mut TxFrame,
    ) {
        let is_ipv6 = const { AT == TCP6_AT };
        let l3_len = const { width(AT - IP_AT) };
        let l4_len = tcp::HEADER_LEN + tcp::options_len(seg);
        let tcp_len = u16::try_from(l4_len + seg.len as usize).unwrap_or(u16::MAX);
        let header = &mut frame.header;
        header.clear();
        let fits = header.try_extend_from_slice(&dst.0);
        let fits = fits.and_then(|()| header.try_extend_from_slice(&self.bytes[..N - DST]));
        debug_assert!(fits.is_ok());
        tcp::emit_options(seg, sack, header);
        let (tcp_checksum, field) = if off.tcp {
            let at =
                |i| u16::from_be_bytes([self.bytes[AT - DST + i], self.bytes[AT - DST + i + 1]]);
            // To subtract a word from a one's complement sum, add its complement.
            let pseudo = self.tcp_sum.add_u16(!at(0)).add_u16(!at(2));
            // A port that cuts the frame adds the length of each segment by itself.
            let cut = matches!(frame.body, TxBody::Stream { segment, .. } if segment < seg.len);
            let pseudo = if cut { pseudo } else { pseudo.add_u16(tcp_len) };
            (TcpChecksum::Offloaded, pseudo.folded())
        } else {
            // `tcp_sum` already includes the ports.
            let options = header.get(N..).unwrap_or_default();
            let sum = self.tcp_sum.add_u16(tcp_len);
            let sum = sum.plus(tcp::sum_behind_ports(seg, options, l4_len));
            match seg.len {
                0 => (TcpChecksum::None, sum.complement()),
                _ => (TcpChecksum::NeedsPayloadSum, sum.folded()),
            }
        };
        if let Some(fixed) = header.first_chunk_mut::<N>() {
            // The second byte of either header: the low bits of IPv4's traffic class, or the low
            // half of IPv6's.
            if is_ipv6 {
                let at = IP_AT + ipv6::PAYLOAD_LEN_AT;
                fixed[at..][..2].copy_from_slice(&tcp_len.to_be_bytes());
                if seg.ect {
                    fixed[IP_AT + 1] |= ECT_0 << 4;
                }
            } else {
                let total_len = tcp_len.saturating_add(u16::from(l3_len));
                fixed[IP_AT + ipv4::TOTAL_LEN_AT..][..2].copy_from_slice(&total_len.to_be_bytes());
                let ect = if seg.ect { ECT_0 } else { 0 };
                fixed[IP_AT + ipv4::TRAFFIC_CLASS_AT] |= ect;
                if !off.ip {
                    let sum = self.ip_sum.add_u16(total_len).add_u16(u16::from(ect)).complement();
                    fixed[IP_AT + ipv4::CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
                }
            }
            if let Some(t) = fixed[AT..].first_chunk_mut() {
                tcp::emit_fixed(seg, l4_len, field, t);
            }
        }
        frame.l2_len = L2_LEN;
        frame.l3_len = l3_len;
        frame.l4_len = u8::try_from(l4_len).unwrap_or(u8::MAX);
        frame.tcp_checksum = tcp_checksum;
        frame.header_sum = field;
        frame.is_ipv6 = is_ipv6;
        frame.ip_checksum_offload = off.ip && !is_ipv6;
    }
}

/// Returns `N` bytes of the template from `at` on. All callers stay within the template.
fn piece<const N: usize>(bytes: &mut [u8; LEN6], at: usize) -> &mut [u8; N] {
    #[expect(clippy::unwrap_used, reason = "N and the offset are constants within LEN6")]
    bytes[at..].first_chunk_mut().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flags, SeqNumber, Timestamps};
    use core::net::Ipv6Addr;
    use proptest::prelude::*;
    use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket};

    const SOFT: Offloads = Offloads { tcp: false, ip: false };
    const COMMON: Common = Common { mac: MacAddr([2; 6]), ttl: 61, dscp: 0, tag: Tag(0) };

    proptest! {
        /// smoltcp finds both checksums right for all fields, payloads and DSCPs.
        #[test]
        fn test_template_checksums_are_correct(
            l: u32, r: u32, ports: (u16, u16), seq: u32, ack: u32, window: u16, syn: bool,
            ts: Option<(u32, u32)>, dscp in 0u8..64, ect: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (l, r) = (Ipv4Addr::from_bits(l), Ipv4Addr::from_bits(r));
            let flow = FlowKey::new((l.into(), ports.0), (r.into(), ports.1)).unwrap();
            let mut t = HeaderTemplate::new(COMMON, &flow, 0);
            prop_assert_eq!(t.flow(), flow);
            prop_assert!(t.is_of(&flow));
            t.set_dscp(dscp);
            prop_assert_eq!(t.dscp(), dscp);
            let seg = TxSegment {
                seq: SeqNumber(seq), ack: SeqNumber(ack), window,
                flags: if syn { Flags::SYN } else { Flags::ACK },
                mss: syn.then_some(1460), window_scale: syn.then_some(3),
                timestamps: ts.map(|(val, ecr)| Timestamps { val, ecr }),
                len: u32::try_from(payload.len()).unwrap(), ect, ..TxSegment::default()
            };
            let body = TxBody::Owned(payload.clone());
            let mut f = t.frame(MacAddr([4; 6]), &seg, &SackBlocks::default(), body, SOFT);
            prop_assert_eq!(f.header.len(), usize::from(f.l2_len + f.l3_len + f.l4_len));
            prop_assert_eq!(f.len(), f.header.len() + payload.len());
            f.finish_tcp_checksum(Sum::of(&payload));
            f.finish_tcp_checksum(Sum::of(&payload)); // once is enough
            let mut b = f.header.to_vec();
            b.extend(&payload);
            let e = EthernetFrame::new_checked(&b[..]).unwrap();
            prop_assert_eq!((e.dst_addr().0, e.src_addr().0), ([4; 6], [2; 6]));
            let ip = Ipv4Packet::new_checked(e.payload()).unwrap();
            prop_assert!(ip.verify_checksum());
            prop_assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit(), ip.dscp()), (l, r, 61, dscp));
            prop_assert_eq!(ip.ecn(), if ect { 2 } else { 0 });
            let p = TcpPacket::new_checked(ip.payload()).unwrap();
            prop_assert!(p.verify_checksum(&IpAddress::Ipv4(l), &IpAddress::Ipv4(r)));
            prop_assert_eq!(p.payload(), &payload[..]);

            // With offload the port adds up everything from the TCP header on.
            let body = TxBody::Owned(payload.clone());
            let offloads = Offloads { tcp: true, ip: true };
            let f = t.frame(MacAddr([4; 6]), &seg, &SackBlocks::default(), body, offloads);
            prop_assert_eq!(f.tcp_checksum, TcpChecksum::Offloaded);
            let mut b = f.header[TCP_AT..].to_vec();
            b.extend(&payload);
            let sum = Sum::of(&b).complement();
            prop_assert_eq!(sum % 0xffff, p.checksum() % 0xffff);
            prop_assert_eq!(&f.header[IP_AT + ipv4::CHECKSUM_AT..][..2], &[0, 0]);
            prop_assert!(f.ip_checksum_offload);
        }

        /// The same over IPv6, whose header has no checksum.
        #[test]
        fn test_template_over_ipv6_is_correct(
            l: u128, r: u128, ports: (u16, u16), seq: u32, ack: u32, window: u16, label: u32,
            ts: Option<(u32, u32)>, dscp in 0u8..64, ect: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (l, r) = (Ipv6Addr::from_bits(l), Ipv6Addr::from_bits(r));
            let flow = FlowKey::new((l.into(), ports.0), (r.into(), ports.1)).unwrap();
            let mut t = HeaderTemplate::new(COMMON, &flow, label);
            prop_assert_eq!(t.flow(), flow);
            prop_assert!(t.is_of(&flow) && (l == r || !t.is_of(&flow.reversed())));
            t.set_dscp(dscp);
            prop_assert_eq!(t.dscp(), dscp);
            let seg = TxSegment {
                seq: SeqNumber(seq), ack: SeqNumber(ack), window, flags: Flags::ACK,
                timestamps: ts.map(|(val, ecr)| Timestamps { val, ecr }),
                len: u32::try_from(payload.len()).unwrap(), ect, ..TxSegment::default()
            };
            let body = TxBody::Owned(payload.clone());
            let mut f = t.frame(MacAddr([4; 6]), &seg, &SackBlocks::default(), body.clone(), SOFT);
            prop_assert!(f.is_ipv6 && !f.ip_checksum_offload);
            prop_assert_eq!(f.header.len(), usize::from(f.l2_len + f.l3_len + f.l4_len));
            f.finish_tcp_checksum(Sum::of(&payload));
            let mut b = f.header.to_vec();
            b.extend(&payload);
            let e = EthernetFrame::new_checked(&b[..]).unwrap();
            prop_assert_eq!(u16::from(e.ethertype()), 0x86dd);
            let ip = Ipv6Packet::new_checked(e.payload()).unwrap();
            prop_assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (l, r, 61));
            let class = dscp << 2 | if ect { 2 } else { 0 };
            prop_assert_eq!((ip.traffic_class(), ip.flow_label()), (class, label & 0xf_ffff));
            let p = TcpPacket::new_checked(ip.payload()).unwrap();
            prop_assert!(p.verify_checksum(&IpAddress::Ipv6(l), &IpAddress::Ipv6(r)));
            prop_assert_eq!(p.payload(), &payload[..]);

            let offloads = Offloads { tcp: true, ip: true };
            let f = t.frame(MacAddr([4; 6]), &seg, &SackBlocks::default(), body, offloads);
            prop_assert_eq!((f.tcp_checksum, f.ip_checksum_offload), (TcpChecksum::Offloaded, false));
            let mut b = f.header[TCP6_AT..].to_vec();
            b.extend(&payload);
            prop_assert_eq!(Sum::of(&b).complement() % 0xffff, p.checksum() % 0xffff);
        }
    }
}
