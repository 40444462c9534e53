//! Fast parsing of the frame shape that makes up nearly all traffic.
//!
//! The shape: Ethernet, IPv4 without options and not a fragment, and a TCP header whose options are
//! timestamps in their usual place (RFC 7323 appendix A). Every field lies at a fixed offset, so
//! one check of the length and a few checks of whole words replace the checks of single fields.
//!
//! ```text
//!  0          14                                  34                                54          66
//!  | Ethernet | IPv4                              | TCP                             | options   |
//!   dst        45 . len . . frag . 06 . . src dst  ports seq ack 8 flags window sum  0101080a .
//! ```
//!
//! A frame of any other shape is no error here: `input` parses it field by field and reports any
//! fault. The two parsers agree on every frame that this module takes.

use heddle_base::Sum;

use super::flow::FlowKey;
use super::frame::RxFrame;
use crate::wire::{ethernet, ipv4, tcp};
use crate::{Flags, Segment, SeqNumber, Timestamps};

/// Bytes of the headers.
pub(super) const LEN: usize = TCP + TCP_LEN;

const IP: usize = ethernet::HEADER_LEN;
const TCP: usize = IP + ipv4::HEADER_LEN;
/// Bytes of the TCP header: with timestamps between two NOPs.
const TCP_LEN: usize = tcp::HEADER_LEN + 12;

/// EtherType, version and header length, and the bits of these fields in the word at their place.
const IPV4: u32 = 0x0800_4500;
const IPV4_BITS: u32 = 0xffff_ff00;
/// Fragment offset and More Fragments 0, any TTL, protocol TCP.
const WHOLE_TCP: u32 = ipv4::PROTO_TCP as u32;
const WHOLE_TCP_BITS: u32 = 0x3fff_00ff;
/// A data offset of eight words; no SYN, because the options of a SYN mean more.
const OFFSET: u16 = 0x8000;
const OFFSET_BITS: u16 = 0xf000 | Flags::SYN.0 as u16;
/// NOP, NOP, timestamps.
const OPTIONS: u32 = 0x0101_080a;

/// The headers of a frame of this shape.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a> {
    h: &'a [u8; LEN],
    /// Bytes of the segment, its header included.
    tcp_len: u16,
}

/// Returns a station address in the form in which [`Plain::of`] compares it.
pub(super) fn station(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

impl<'a> Plain<'a> {
    /// Returns the headers of a frame of `len` bytes that starts with `head`, if the frame is for
    /// `station` and has this shape.
    #[inline(always)]
    pub(super) fn of(head: &'a [u8], len: usize, station: u64) -> Option<Plain<'a>> {
        let h = head.first_chunk::<LEN>()?;
        let total = be16(h, IP + ipv4::TOTAL_LEN_AT);
        let other = (be64(h, 0) ^ station) >> 16
            | u64::from((be32(h, IP - 2) ^ IPV4) & IPV4_BITS)
            | u64::from((be32(h, IP + 6) ^ WHOLE_TCP) & WHOLE_TCP_BITS)
            | u64::from((be16(h, TCP + 12) ^ OFFSET) & OFFSET_BITS)
            | u64::from(be32(h, TCP + tcp::HEADER_LEN) ^ OPTIONS);
        let total_len = usize::from(total);
        if other != 0 || total_len < LEN - IP || IP + total_len > len {
            return None;
        }
        // `total` is at least the length of the two headers.
        Some(Plain { h, tcp_len: total.wrapping_sub(u16::from(IP_LEN)) })
    }

    /// Returns the key of the connection that the frame is for.
    #[inline(always)]
    pub(super) fn flow(&self) -> FlowKey {
        FlowKey::of_received(be64(self.h, IP + 12), be32(self.h, TCP))
    }

    /// Returns the sums of the headers for both checksums.
    #[inline(always)]
    pub(super) fn checksums(&self) -> Checksums {
        let h = self.h;
        // Add 32-bit numbers, whose 16-bit words add up to the same. An IPv4 header is five such
        // numbers; two of them are addresses.
        let addrs = u64::from(be32(h, IP + 12)) + u64::from(be32(h, IP + 16));
        let rest = u64::from(be32(h, IP)) + u64::from(be32(h, IP + 4)) + u64::from(be32(h, IP + 8));
        let bare = usize::from(self.tcp_len) == TCP_LEN;
        Checksums {
            ip: Sum::of_numbers(addrs + rest),
            pseudo: addrs + u64::from(ipv4::PROTO_TCP) + u64::from(self.tcp_len),
            tcp_len: self.tcp_len,
            bare: if bare { h[TCP..].first_chunk::<TCP_LEN>().map(Sum::of_words) } else { None },
        }
    }

    /// Returns the bytes of this segment's payload if the segment continues `before`, a segment of
    /// the connection `flow` or several that follow each other, and nothing else sets it apart. It
    /// has 1 to `most` bytes.
    #[inline(always)]
    pub(super) fn continues(&self, flow: &FlowKey, before: &Segment, most: u32) -> Option<u32> {
        let h = self.h;
        let Segment { seq, ack, flags, window, timestamps: Some(ts), .. } = *before else {
            return None;
        };
        let len = u32::from(self.tcp_len) - u32::from(TCP_HEADER);
        // A segment with PSH says no less about the stream than one without.
        let other = be32(h, TCP + 4) ^ seq.advance(before.len).0
            | be32(h, TCP + 8) ^ ack.0
            | u32::from((h[TCP + 13] ^ flags.0) & !Flags::PSH.0)
            | u32::from(be16(h, TCP + 14) ^ window)
            | be32(h, TCP + 24) ^ ts.val
            | be32(h, TCP + 28) ^ ts.ecr;
        (other == 0 && self.flow() == *flow && len > 0 && len <= most).then_some(len)
    }

    /// Returns the segment for TCP.
    #[inline(always)]
    pub(super) fn segment(&self) -> Segment {
        let h = self.h;
        Segment {
            seq: SeqNumber(be32(h, TCP + 4)),
            ack: SeqNumber(be32(h, TCP + 8)),
            flags: Flags(h[TCP + 13]),
            window: be16(h, TCP + 14),
            len: u32::from(self.tcp_len) - u32::from(TCP_HEADER),
            timestamps: Some(Timestamps { val: be32(h, TCP + 24), ecr: be32(h, TCP + 28) }),
            ..Segment::default()
        }
    }
}

/// The sums of a frame's headers.
pub(super) struct Checksums {
    ip: Sum,
    pseudo: u64,
    tcp_len: u16,
    /// The sum of a segment without payload, which lies entirely in the headers.
    bare: Option<Sum>,
}

impl Checksums {
    /// Returns true if both checksums of `frame`, the frame of these sums, are right.
    #[inline(always)]
    pub(super) fn are_right<F: RxFrame>(self, frame: &mut F) -> bool {
        if !self.ip.is_valid() {
            return false;
        }
        let text = match self.bare {
            None => frame.sum_segment(TCP, TCP_LEN, usize::from(self.tcp_len)),
            all => all,
        };
        text.is_some_and(|t| Sum::of_numbers(self.pseudo).plus(t).is_valid())
    }
}

/// Returns a header length as the narrow number with which the code computes.
#[expect(clippy::cast_possible_truncation, reason = "checked, when it is compiled")]
const fn bytes(len: usize) -> u8 {
    assert!(len <= u8::MAX as usize);
    len as u8
}
const IP_LEN: u8 = bytes(ipv4::HEADER_LEN);
const TCP_HEADER: u8 = bytes(TCP_LEN);

#[inline(always)]
fn be16(h: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

#[inline(always)]
fn be32(h: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

#[inline(always)]
fn be64(h: &[u8; LEN], at: usize) -> u64 {
    u64::from(be32(h, at)) << 32 | u64::from(be32(h, at + 4))
}

#[cfg(test)]
mod tests {
    use super::super::frame::TxBody;
    use super::super::template::{HeaderTemplate, Offloads};
    use super::*;
    use crate::wire::{EtherType, EthernetHeader, Ipv4Header, MacAddr, TcpHeader};
    use crate::{SackBlocks, TxSegment};
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn frame(seg: &TxSegment, payload: &[u8]) -> Vec<u8> {
        let (us, peer) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let t = HeaderTemplate::new(MacAddr([4; 6]), &FlowKey::v4(peer, 7, us, 9), 64, 3);
        let seg = TxSegment { len: u32::try_from(payload.len()).unwrap(), ..*seg };
        let (none, off) = (SackBlocks::default(), Offloads { tcp: false, ip: false });
        let mut f = t.frame(MacAddr(MAC), &seg, &none, TxBody::Owned(payload.to_vec()), off);
        f.finish_tcp_checksum(Sum::of(payload));
        [&f.header[..], payload].concat()
    }

    /// Returns the result of the parsers of the single headers for a frame.
    fn field_by_field(f: &[u8]) -> Option<(FlowKey, Segment, bool)> {
        let e = EthernetHeader::parse(f).ok()?;
        let ip = Ipv4Header::parse(&f[IP..], f.len() - IP).ok()?;
        let len = ip.total_len - ip.header_len;
        let t = TcpHeader::parse(&f[IP + ip.header_len..], len).ok()?;
        let shape = e.dst.0 == MAC
            && e.ethertype == EtherType::IPV4
            && (ip.header_len, ip.fragment, ip.protocol) == (20, false, ipv4::PROTO_TCP)
            && (t.header_len, t.has_sack) == (TCP_LEN, false);
        let pseudo = ipv4::pseudo_header(ip.src, ip.dst, u16::try_from(len).unwrap());
        let right =
            ip.checksum_valid(&f[IP..]) && pseudo.plus(Sum::of(&f[TCP..TCP + len])).is_valid();
        shape.then(|| (FlowKey::v4(ip.dst, t.dst_port, ip.src, t.src_port), t.segment, right))
    }

    proptest! {
        /// Every frame that this module takes has the same fields in the other parsers; and it
        /// takes the usual frame.
        #[test]
        fn test_a_plain_frame_is_what_the_parsers_make_of_it(
            numbers: (u32, u32, u16, u32, u32), payload in proptest::collection::vec(any::<u8>(), 0..150),
            changes in proptest::collection::vec((0usize..LEN, any::<u8>()), 0..3),
            padding in 0usize..8,
            cut in 0usize..80,
        ) {
            let (seq, ack, window, val, ecr) = numbers;
            let seg = TxSegment {
                seq: SeqNumber(seq), ack: SeqNumber(ack), window, flags: Flags::ACK,
                timestamps: Some(Timestamps { val, ecr }), ..TxSegment::default()
            };
            let mut f = frame(&seg, &payload);
            f.extend(vec![0; padding]);
            let as_sent = Plain::of(&f, f.len(), station(MAC)).map(|p| p.checksums().are_right(&mut &f[..]));
            prop_assert_eq!(as_sent, Some(true));
            for (at, by) in changes {
                f[at] ^= by;
            }
            f.truncate(f.len().saturating_sub(cut.saturating_sub(60)));
            if let Some(p) = Plain::of(&f, f.len(), station(MAC)) {
                let told = (p.flow(), p.segment(), p.checksums().are_right(&mut &f[..]));
                prop_assert_eq!(field_by_field(&f), Some(told));
            }
        }
    }

    /// Flipping one bit of each checked field makes a frame of another shape.
    #[test]
    fn test_frames_of_other_shapes_are_left_to_others() {
        let ts = Some(Timestamps { val: 1, ecr: 2 });
        let ack = TxSegment { flags: Flags::ACK, timestamps: ts, ..TxSegment::default() };
        let f = frame(&ack, b"text");
        let taken = |f: &[u8]| Plain::of(f, f.len(), station(MAC)).is_some();
        assert!(taken(&f));
        // Station, EtherType, version, header length, More Fragments, fragment offset, protocol,
        // data offset, SYN, option.
        let bits = [(5, 1), (13, 1), (14, 0x10), (14, 1), (20, 0x20), (21, 1), (23, 2), (46, 0x10)];
        for (at, bit) in bits.into_iter().chain([(47, 2), (57, 1)]) {
            let mut other = f.clone();
            other[at] ^= bit;
            assert!(!taken(&other), "bit {bit:#x} of byte {at}");
        }
        // Fields that the check ignores: TTL, Don't Fragment, DSCP, PSH.
        for (at, bit) in [(22, 1), (20, 0x40), (15, 4), (47, 8)] {
            let mut same = f.clone();
            same[at] ^= bit;
            assert!(taken(&same), "bit {bit:#x} of byte {at}");
        }
        assert!(!taken(&f[..f.len() - 1]), "shorter than it says");
        assert!(!taken(&f[..LEN - 1]), "headers in two pieces, or cut");
    }
}
