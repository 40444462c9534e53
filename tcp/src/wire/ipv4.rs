//! IPv4 headers (RFC 791). The parser skips all options and acts on none.

use core::net::Ipv4Addr;

use heddle_base::Sum;

use super::{Malformed, be16, be32};

mod field {
    use core::ops::Range;
    pub(super) const VERSION_IHL: usize = 0;
    pub(super) const TRAFFIC_CLASS: usize = 1;
    pub(super) const TOTAL_LEN: Range<usize> = 2..4;
    pub(super) const IDENT: Range<usize> = 4..6;
    pub(super) const FRAGMENT: Range<usize> = 6..8;
    pub(super) const TTL: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: Range<usize> = 10..12;
    pub(super) const SRC: Range<usize> = 12..16;
    pub(super) const DST: Range<usize> = 16..20;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Protocol number of ICMP.
pub const PROTO_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A checked IPv4 header. [`Ipv4Header::checksum_valid`] verifies its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Bytes of the header, options included.
    pub header_len: usize,
    /// Bytes of the datagram, header included.
    pub total_len: usize,
    /// True if this is a fragment of a larger datagram.
    pub fragment: bool,
}

impl Ipv4Header {
    /// Reads the header that `head` starts with. `available` is the number of bytes that the frame
    /// has from there on in all its pieces, of which `head` is the first.
    ///
    /// # Errors
    /// Fails when the header is no IPv4 header, or the frame is shorter than the header says.
    #[inline(always)]
    pub fn parse(head: &[u8], available: usize) -> Result<Ipv4Header, Malformed> {
        let Some(h) = head.first_chunk::<HEADER_LEN>() else {
            return Err(missing(HEADER_LEN, available));
        };
        if h[field::VERSION_IHL] >> 4 != 4 {
            return Err(Malformed::Header);
        }
        let header_len = usize::from(h[field::VERSION_IHL] & 0xf) * 4;
        let total_len = usize::from(be16(h, field::TOTAL_LEN.start));
        if header_len < HEADER_LEN || total_len < header_len {
            return Err(Malformed::Header);
        }
        if total_len > available {
            return Err(Malformed::Truncated);
        }
        if header_len > head.len() {
            return Err(Malformed::Split);
        }
        Ok(Ipv4Header {
            src: Ipv4Addr::from_bits(be32(h, field::SRC.start)),
            dst: Ipv4Addr::from_bits(be32(h, field::DST.start)),
            protocol: h[field::PROTOCOL],
            ttl: h[field::TTL],
            traffic_class: h[field::TRAFFIC_CLASS],
            header_len,
            total_len,
            fragment: be16(h, field::FRAGMENT.start) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0,
        })
    }

    /// Returns true if the header checksum over the `header_len` bytes at the start of `head` is
    /// right.
    #[inline]
    pub fn checksum_valid(&self, head: &[u8]) -> bool {
        if self.header_len == HEADER_LEN
            && let Some(h) = head.first_chunk::<HEADER_LEN>()
        {
            return Sum::of_numbers((0..5).map(|n| u64::from(be32(h, 4 * n))).sum()).is_valid();
        }
        head.get(..self.header_len).is_some_and(|h| Sum::of(h).is_valid())
    }

    /// Writes a header without options and with its checksum.
    ///
    /// The header has Don't Fragment and the identification 0: a datagram that cannot be fragmented
    /// needs no identification (RFC 6864 section 4.1), and a counter there would reveal how much we
    /// send. The function ignores `header_len` and `fragment`.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        self.emit_unsummed(out);
        let sum = Sum::of_short(out).complement();
        out[field::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes the same header with a checksum of 0.
    pub(crate) fn emit_unsummed(&self, out: &mut [u8; HEADER_LEN]) {
        out[field::VERSION_IHL] = 0x45;
        out[field::TRAFFIC_CLASS] = self.traffic_class;
        let len = u16::try_from(self.total_len).unwrap_or(u16::MAX);
        out[field::TOTAL_LEN].copy_from_slice(&len.to_be_bytes());
        out[field::IDENT].fill(0);
        out[field::FRAGMENT].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        out[field::TTL] = self.ttl;
        out[field::PROTOCOL] = self.protocol;
        out[field::CHECKSUM].fill(0);
        out[field::SRC].copy_from_slice(&self.src.octets());
        out[field::DST].copy_from_slice(&self.dst.octets());
    }
}

/// The codepoint Congestion Experienced, in the low bits of the traffic class of IPv4 and IPv6 (RFC
/// 3168 section 5).
pub const CE: u8 = 0b11;

/// Offsets of the length, checksum and traffic class fields, for header templates.
pub(crate) const TOTAL_LEN_AT: usize = field::TOTAL_LEN.start;
pub(crate) const CHECKSUM_AT: usize = field::CHECKSUM.start;
pub(crate) const TRAFFIC_CLASS_AT: usize = field::TRAFFIC_CLASS;

/// Returns the sum of the pseudo-header of TCP over IPv4 (RFC 9293 section 3.1).
#[inline]
pub fn pseudo_header(src: Ipv4Addr, dst: Ipv4Addr, tcp_len: u16) -> Sum {
    pseudo_header_of(PROTO_TCP, src, dst, tcp_len)
}

/// Returns the sum of the pseudo-header for `len` bytes of `protocol`. RFC 768 defines it for UDP.
#[inline]
pub(super) fn pseudo_header_of(protocol: u8, src: Ipv4Addr, dst: Ipv4Addr, len: u16) -> Sum {
    let addrs = u64::from(src.to_bits()) + u64::from(dst.to_bits());
    Sum::of_numbers(addrs + u64::from(protocol) + u64::from(len))
}

/// Returns whether the frame lacks the `needed` bytes or only has them in its next piece.
pub(super) fn missing(needed: usize, available: usize) -> Malformed {
    if available < needed { Malformed::Truncated } else { Malformed::Split }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr};

    fn header(src: u32, dst: u32, protocol: u8, ttl: u8, tc: u8, payload: usize) -> Ipv4Header {
        Ipv4Header {
            src: Ipv4Addr::from_bits(src),
            dst: Ipv4Addr::from_bits(dst),
            protocol,
            ttl,
            traffic_class: tc,
            header_len: HEADER_LEN,
            total_len: HEADER_LEN + payload,
            fragment: false,
        }
    }

    proptest! {
        #[test]
        fn test_roundtrip_and_smoltcp_reads_it(src: u32, dst: u32, proto: u8, ttl: u8, tc: u8, n in 0usize..100) {
            let h = header(src, dst, proto, ttl, tc, n);
            let mut b = vec![0; h.total_len];
            h.emit(b.first_chunk_mut().unwrap());
            prop_assert_eq!(Ipv4Header::parse(&b, b.len()), Ok(h));
            prop_assert!(h.checksum_valid(&b));
            let p = Ipv4Packet::new_checked(&b[..]).unwrap();
            prop_assert!(p.verify_checksum());
            prop_assert_eq!(p.src_addr(), h.src);
            prop_assert_eq!(p.dst_addr(), h.dst);
            prop_assert_eq!(p.hop_limit(), ttl);
            prop_assert_eq!(p.dscp() << 2 | p.ecn(), tc);
            prop_assert!(p.dont_frag() && !p.more_frags() && p.frag_offset() == 0);
        }

        #[test]
        fn test_reads_what_smoltcp_writes(src: u32, dst: u32, ttl: u8, n in 0usize..100) {
            let repr = Ipv4Repr {
                src_addr: Ipv4Addr::from_bits(src),
                dst_addr: Ipv4Addr::from_bits(dst),
                next_header: IpProtocol::Tcp,
                payload_len: n,
                hop_limit: ttl,
            };
            let mut b = vec![0; repr.buffer_len() + n];
            repr.emit(&mut Ipv4Packet::new_unchecked(&mut b[..]), &Default::default());
            let h = Ipv4Header::parse(&b, b.len()).unwrap();
            prop_assert!(h.checksum_valid(&b));
            prop_assert_eq!(h, header(src, dst, PROTO_TCP, ttl, 0, n));
        }

        #[test]
        fn test_any_bytes_do_not_panic(b in proptest::collection::vec(any::<u8>(), 0..80), more in 0usize..80) {
            if let Ok(h) = Ipv4Header::parse(&b, b.len() + more) {
                let _ = h.checksum_valid(&b);
                prop_assert!(h.header_len <= b.len() && h.total_len <= b.len() + more);
            }
        }
    }

    #[test]
    fn test_golden_bytes() {
        let mut b = [0; HEADER_LEN];
        header(0xc0a8_0001, 0xc0a8_00c7, 17, 64, 0, 0x5f).emit(&mut b);
        assert_eq!(
            b,
            *b"\x45\x00\x00\x73\x00\x00\x40\x00\x40\x11\xb8\x61\xc0\xa8\x00\x01\xc0\xa8\x00\xc7"
        );
    }

    #[test]
    fn test_lengths_at_their_bounds() {
        let mut b = [0; 24];
        header(1, 2, 6, 64, 0, 4).emit(b.first_chunk_mut().unwrap());
        assert!(Ipv4Header::parse(&b, 24).is_ok());
        assert_eq!(Ipv4Header::parse(&b, 23), Err(Malformed::Truncated));
        assert_eq!(Ipv4Header::parse(&b[..19], 24), Err(Malformed::Split));
        assert_eq!(Ipv4Header::parse(&b[..19], 19), Err(Malformed::Truncated));
        b[0] = 0x44;
        assert_eq!(Ipv4Header::parse(&b, 24), Err(Malformed::Header));
        b[0] = 0x46;
        assert!(Ipv4Header::parse(&b, 24).is_ok());
        assert_eq!(Ipv4Header::parse(&b[..20], 24), Err(Malformed::Split));
        b[0] = 0x47;
        assert_eq!(Ipv4Header::parse(&b, 24), Err(Malformed::Header));
        b[0] = 0x65;
        assert_eq!(Ipv4Header::parse(&b, 24), Err(Malformed::Header));
    }

    #[test]
    fn test_fragments_are_seen() {
        let mut b = [0; 20];
        header(1, 2, 6, 64, 0, 0).emit(&mut b);
        for (hi, lo, fragment) in
            [(0x40, 0, false), (0x20, 0, true), (0, 1, true), (0x80, 0, false)]
        {
            (b[6], b[7]) = (hi, lo);
            assert_eq!(Ipv4Header::parse(&b, 20).unwrap().fragment, fragment);
        }
    }
}
