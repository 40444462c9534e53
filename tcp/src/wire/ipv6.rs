//! IPv6 headers (RFC 8200 section 3). The parser reads the fixed header alone and follows no chain
//! of extension headers.

use core::net::Ipv6Addr;

use heddle_base::Sum;

use super::{Malformed, be16, be32, ipv4};

mod field {
    use core::ops::Range;
    pub(super) const VERSION_CLASS_LABEL: Range<usize> = 0..4;
    pub(super) const PAYLOAD_LEN: Range<usize> = 4..6;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SRC: Range<usize> = 8..24;
    pub(super) const DST: Range<usize> = 24..40;
}

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Next header: hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// Next header: TCP.
pub const TCP: u8 = ipv4::PROTO_TCP;
/// Next header: UDP.
pub const UDP: u8 = ipv4::PROTO_UDP;
/// Next header: a routing header.
pub const ROUTING: u8 = 43;
/// Next header: a fragment header.
pub const FRAGMENT: u8 = 44;
/// Next header: ICMPv6.
pub const ICMP: u8 = 58;
/// Next header: destination options.
pub const DESTINATION_OPTIONS: u8 = 60;
/// The smallest MTU of a link that carries IPv6 (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1280;

/// Bits of a flow label.
const FLOW_LABEL: u32 = 0x000f_ffff;

/// A checked IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// The protocol of the payload, or an extension header.
    pub next_header: u8,
    /// Links that the packet may still pass.
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Flow label (20 bits; RFC 6437).
    pub flow_label: u32,
    /// Bytes behind the fixed header, extension headers included.
    pub payload_len: usize,
}

impl Ipv6Header {
    /// Reads the header that `head` starts with. `available` is the number of bytes that the frame
    /// has from there on in all its pieces, of which `head` is the first.
    ///
    /// # Errors
    /// Fails when the header is no IPv6 header, or the frame is shorter than the header says.
    pub fn parse(head: &[u8], available: usize) -> Result<Ipv6Header, Malformed> {
        let Some(h) = head.first_chunk::<HEADER_LEN>() else {
            return Err(ipv4::missing(HEADER_LEN, available));
        };
        let word = be32(h, field::VERSION_CLASS_LABEL.start);
        if word >> 28 != 6 {
            return Err(Malformed::Header);
        }
        let payload_len = usize::from(be16(h, field::PAYLOAD_LEN.start));
        if HEADER_LEN + payload_len > available {
            return Err(Malformed::Truncated);
        }
        Ok(Ipv6Header {
            src: addr(h, field::SRC.start),
            dst: addr(h, field::DST.start),
            next_header: h[field::NEXT_HEADER],
            hop_limit: h[field::HOP_LIMIT],
            traffic_class: h[0] << 4 | h[1] >> 4,
            flow_label: word & FLOW_LABEL,
            payload_len,
        })
    }

    /// Writes the header. The function takes the low 20 bits of `flow_label`.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL;
        out[field::VERSION_CLASS_LABEL].copy_from_slice(&word.to_be_bytes());
        let len = u16::try_from(self.payload_len).unwrap_or(u16::MAX);
        out[field::PAYLOAD_LEN].copy_from_slice(&len.to_be_bytes());
        out[field::NEXT_HEADER] = self.next_header;
        out[field::HOP_LIMIT] = self.hop_limit;
        out[field::SRC].copy_from_slice(&self.src.octets());
        out[field::DST].copy_from_slice(&self.dst.octets());
    }
}

/// Offset of the length, for header templates.
pub(crate) const PAYLOAD_LEN_AT: usize = field::PAYLOAD_LEN.start;

/// Returns true if `next_header` names an extension header (RFC 8200 section 4; RFC 4302, RFC 4303
/// for the headers of IPsec; RFC 7045 for the others), and no protocol above IPv6.
pub fn is_extension(next_header: u8) -> bool {
    const AUTHENTICATION: u8 = 51;
    const ENCAPSULATING: u8 = 50;
    const MOBILITY: u8 = 135;
    const HOST_IDENTITY: u8 = 139;
    const SHIM6: u8 = 140;
    matches!(
        next_header,
        HOP_BY_HOP
            | ROUTING
            | FRAGMENT
            | DESTINATION_OPTIONS
            | AUTHENTICATION
            | ENCAPSULATING
            | MOBILITY
            | HOST_IDENTITY
            | SHIM6
    )
}

/// Returns the sum of the pseudo-header for `len` bytes of `next_header` (RFC 8200 section 8.1).
pub fn pseudo_header(next_header: u8, src: Ipv6Addr, dst: Ipv6Addr, len: u32) -> Sum {
    Sum::of_words(&src.octets())
        .plus(Sum::of_words(&dst.octets()))
        .plus(Sum::of_numbers(u64::from(next_header) + u64::from(len)))
}

/// Returns the multicast group on which a host hears questions for its address (RFC 4291 section
/// 2.7.1): ff02::1:ff with the address's last three bytes.
pub fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// All hosts of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers of a link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

fn addr(h: &[u8; HEADER_LEN], at: usize) -> Ipv6Addr {
    let [a, b, c, d] = [0, 4, 8, 12].map(|n| be32(h, at + n));
    let high = u64::from(a) << 32 | u64::from(b);
    let low = u64::from(c) << 32 | u64::from(d);
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, Ipv6Packet, Ipv6Repr};

    fn header(src: u128, dst: u128, next: u8, class: u8, label: u32, payload: usize) -> Ipv6Header {
        Ipv6Header {
            src: Ipv6Addr::from_bits(src),
            dst: Ipv6Addr::from_bits(dst),
            next_header: next,
            hop_limit: 61,
            traffic_class: class,
            flow_label: label & FLOW_LABEL,
            payload_len: payload,
        }
    }

    proptest! {
        #[test]
        fn test_roundtrip_and_smoltcp_reads_it(
            src: u128, dst: u128, next: u8, class: u8, label: u32, n in 0usize..100,
        ) {
            let h = header(src, dst, next, class, label, n);
            let mut b = vec![0; HEADER_LEN + n];
            h.emit(b.first_chunk_mut().unwrap());
            prop_assert_eq!(Ipv6Header::parse(&b, b.len()), Ok(h));
            let p = Ipv6Packet::new_checked(&b[..]).unwrap();
            prop_assert_eq!((p.src_addr(), p.dst_addr()), (h.src, h.dst));
            prop_assert_eq!((p.traffic_class(), p.flow_label()), (class, label & FLOW_LABEL));
            prop_assert_eq!((u8::from(p.next_header()), p.hop_limit()), (next, 61));
        }

        #[test]
        fn test_reads_what_smoltcp_writes(src: u128, dst: u128, n in 0usize..100) {
            let repr = Ipv6Repr {
                src_addr: Ipv6Addr::from_bits(src),
                dst_addr: Ipv6Addr::from_bits(dst),
                next_header: IpProtocol::Tcp,
                payload_len: n,
                hop_limit: 61,
            };
            let mut b = vec![0; repr.buffer_len() + n];
            repr.emit(&mut Ipv6Packet::new_unchecked(&mut b[..]));
            prop_assert_eq!(Ipv6Header::parse(&b, b.len()), Ok(header(src, dst, TCP, 0, 0, n)));
        }

        #[test]
        fn test_any_bytes_do_not_panic(
            b in proptest::collection::vec(any::<u8>(), 0..80), more in 0usize..80,
        ) {
            if let Ok(h) = Ipv6Header::parse(&b, b.len() + more) {
                prop_assert!(HEADER_LEN + h.payload_len <= b.len() + more);
            }
        }

        /// The sum over the pseudo-header as RFC 8200 draws it.
        #[test]
        fn test_pseudo_header_is_the_sum_of_its_bytes(src: u128, dst: u128, next: u8, len: u32) {
            let mut b = [src.to_be_bytes(), dst.to_be_bytes()].concat();
            b.extend(len.to_be_bytes());
            b.extend([0, 0, 0, next]);
            let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
            let got = pseudo_header(next, src, dst, len).complement();
            prop_assert_eq!(got % 0xffff, Sum::of(&b).complement() % 0xffff);
        }
    }

    #[test]
    fn test_lengths_at_their_bounds() {
        let mut b = [0; HEADER_LEN + 4];
        header(1, 2, TCP, 0, 0, 4).emit(b.first_chunk_mut().unwrap());
        assert!(Ipv6Header::parse(&b, 44).is_ok());
        assert_eq!(Ipv6Header::parse(&b, 43), Err(Malformed::Truncated));
        assert_eq!(Ipv6Header::parse(&b[..39], 44), Err(Malformed::Split));
        assert_eq!(Ipv6Header::parse(&b[..39], 39), Err(Malformed::Truncated));
        b[0] = 0x40;
        assert_eq!(Ipv6Header::parse(&b, 44), Err(Malformed::Header));
    }

    #[test]
    fn test_solicited_node_group_keeps_three_bytes() {
        let ip: Ipv6Addr = "fe80::2aa:ff:fe28:9c5a".parse().unwrap();
        assert_eq!(solicited_node(ip), "ff02::1:ff28:9c5a".parse::<Ipv6Addr>().unwrap());
    }
}
