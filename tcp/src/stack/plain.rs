//! Fast parsing of the frame shapes that make up nearly all traffic.
//!
//! The shapes: Ethernet, IPv4 without options and not a fragment or IPv6 without extension headers,
//! and a TCP header whose options are timestamps in their usual place (RFC 7323 appendix A). Every
//! field lies at a fixed offset, so one check of the length and a few checks of whole words replace
//! the checks of single fields.
//!
//! ```text
//!  0          14                                  34                                54          66
//!  | Ethernet | IPv4                              | TCP                             | options   |
//!   dst        45 . len . . frag . 06 . . src dst  ports seq ack 8 flags window sum  0101080a .
//!
//!  0          14                                  54                                74          86
//!  | Ethernet | IPv6                              | TCP                             | options   |
//!   dst        6 . . label len 06 . src dst
//! ```
//!
//! A frame of any other shape is no error here: `input` parses it field by field and reports any
//! fault. The two parsers agree on every frame that this module takes.

use heddle_base::Sum;

use super::flow::FlowKey;
use super::frame::RxFrame;
use crate::wire::{EtherType, ethernet, ipv4, ipv6, tcp};
use crate::{Codepoint, Flags, Segment, SeqNumber, Timestamps};

const IP: usize = ethernet::HEADER_LEN;
/// Where TCP begins over IPv4 and over IPv6, and the bytes of all headers.
pub(super) const TCP4: usize = IP + ipv4::HEADER_LEN;
const LEN4: usize = TCP4 + TCP_LEN;
pub(super) const TCP6: usize = IP + ipv6::HEADER_LEN;
const LEN6: usize = TCP6 + TCP_LEN;
/// Bytes of the TCP header: with timestamps between two NOPs.
const TCP_LEN: usize = tcp::HEADER_LEN + 12;

/// EtherType, version and header length, and the bits of these fields in the word at their place.
const IPV4: u32 = 0x0800_4500;
const IPV4_BITS: u32 = 0xffff_ff00;
/// Fragment offset and More Fragments 0, any TTL, protocol TCP.
const WHOLE_TCP: u32 = ipv4::PROTO_TCP as u32;
const WHOLE_TCP_BITS: u32 = 0x3fff_00ff;
/// EtherType and version of IPv6.
const IPV6: u32 = 0x86dd_6000;
const IPV6_BITS: u32 = 0xffff_f000;
/// A data offset of eight words; no SYN, because the options of a SYN mean more.
const OFFSET: u16 = 0x8000;
const OFFSET_BITS: u16 = 0xf000 | Flags::SYN.0;
/// NOP, NOP, timestamps.
const OPTIONS: u32 = 0x0101_080a;

/// The headers of a frame of one of these shapes: `N` bytes, of which TCP's begin at `TCP`.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a, const TCP: usize, const N: usize> {
    h: &'a [u8; N],
    /// Bytes of the segment, its header included.
    tcp_len: u16,
}

/// The shape over IPv4, and that over IPv6.
pub(super) type Plain4<'a> = Plain<'a, TCP4, LEN4>;
pub(super) type Plain6<'a> = Plain<'a, TCP6, LEN6>;

/// The part of a shape that depends on the version of IP.
pub(super) trait Shape<'a>: Sized {
    /// Returns the headers of a frame of `len` bytes that starts with `head`, if the frame is for
    /// `station` and has this shape.
    fn of(head: &'a [u8], len: usize, station: u64) -> Option<Self>;

    /// Returns the key of the connection that the frame is for.
    fn flow(&self) -> FlowKey;

    /// Returns the sums of the headers for all checksums.
    fn checksums(&self) -> Checksums;
}

/// Returns a station address in the form in which [`Shape::of`] compares it.
pub(super) fn station(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

impl<'a> Shape<'a> for Plain4<'a> {
    #[inline(always)]
    fn of(head: &'a [u8], len: usize, station: u64) -> Option<Self> {
        let h = head.first_chunk::<LEN4>()?;
        let total = be16(h, IP + ipv4::TOTAL_LEN_AT);
        let other = (be64(h, 0) ^ station) >> 16
            | u64::from((be32(h, IP - 2) ^ IPV4) & IPV4_BITS)
            | u64::from((be32(h, IP + 6) ^ WHOLE_TCP) & WHOLE_TCP_BITS)
            | u64::from(other_tcp::<TCP4, LEN4>(h));
        let total_len = usize::from(total);
        if other != 0 || total_len < LEN4 - IP || IP + total_len > len {
            return None;
        }
        // `total` is at least the length of the two headers.
        Some(Plain { h, tcp_len: total.wrapping_sub(u16::from(IP_LEN)) })
    }

    #[inline(always)]
    fn flow(&self) -> FlowKey {
        FlowKey::of_received(be64(self.h, IP + 12), be32(self.h, TCP4))
    }

    #[inline(always)]
    fn checksums(&self) -> Checksums {
        let h = self.h;
        // Add 32-bit numbers, whose 16-bit words add up to the same. An IPv4 header is five such
        // numbers; two of them are addresses.
        let addrs = u64::from(be32(h, IP + 12)) + u64::from(be32(h, IP + 16));
        let rest = u64::from(be32(h, IP)) + u64::from(be32(h, IP + 4)) + u64::from(be32(h, IP + 8));
        self.sums(Sum::of_numbers(addrs + rest), addrs)
    }
}

impl<'a> Shape<'a> for Plain6<'a> {
    #[inline(always)]
    fn of(head: &'a [u8], len: usize, station: u64) -> Option<Self> {
        let h = head.first_chunk::<LEN6>()?;
        let tcp_len = be16(h, IP + ipv6::PAYLOAD_LEN_AT);
        let other = (be64(h, 0) ^ station) >> 16
            | u64::from((be32(h, IP - 2) ^ IPV6) & IPV6_BITS)
            | u64::from(h[IP + 6] ^ ipv6::TCP)
            | u64::from(other_tcp::<TCP6, LEN6>(h));
        if other != 0 || usize::from(tcp_len) < TCP_LEN || TCP6 + usize::from(tcp_len) > len {
            return None;
        }
        Some(Plain { h, tcp_len })
    }

    #[inline(always)]
    fn flow(&self) -> FlowKey {
        let at = |n: usize| be64(self.h, IP + n);
        FlowKey::of_received6([at(8), at(16)], [at(24), at(32)], be32(self.h, TCP6))
    }

    #[inline(always)]
    fn checksums(&self) -> Checksums {
        let addrs = (8..40).step_by(4).map(|n| u64::from(be32(self.h, IP + n))).sum();
        // The header has no checksum that could be wrong.
        self.sums(Sum::from_folded(u16::MAX), addrs)
    }
}

/// Returns true if a frame that starts with `head` is for `station` and has a SYN without an ACK, in a
/// packet without IPv4 options or IPv6 extension headers.
#[inline]
pub(super) fn is_syn(head: &[u8], station: u64) -> bool {
    let Some(ethernet) = head.first_chunk::<IP>() else { return false };
    match EtherType(be16(ethernet, IP - 2)) {
        EtherType::IPV4 => is_syn_at::<TCP4, { TCP4 + tcp::HEADER_LEN }>(head, station, |h| {
            (be32(h, IP - 2) ^ IPV4) & IPV4_BITS | (be32(h, IP + 6) ^ WHOLE_TCP) & WHOLE_TCP_BITS
        }),
        EtherType::IPV6 => is_syn_at::<TCP6, { TCP6 + tcp::HEADER_LEN }>(head, station, |h| {
            (be32(h, IP - 2) ^ IPV6) & IPV6_BITS | u32::from(h[IP + 6] ^ ipv6::TCP)
        }),
        _ => false,
    }
}

/// Does the same for one version of IP, whose header `other` finds usual by returning 0.
#[inline(always)]
fn is_syn_at<const TCP: usize, const N: usize>(
    head: &[u8],
    station: u64,
    other: impl Fn(&[u8; N]) -> u32,
) -> bool {
    const BITS: u16 = Flags::SYN.0 | Flags::ACK.0;
    let Some(h) = head.first_chunk::<N>() else { return false };
    let flags = (be16(h, TCP + 12) ^ Flags::SYN.0) & BITS;
    (be64(h, 0) ^ station) >> 16 | u64::from(other(h)) | u64::from(flags) == 0
}

/// Returns bits that are 0 only where TCP's header has the shape.
#[inline(always)]
fn other_tcp<const TCP: usize, const N: usize>(h: &[u8; N]) -> u32 {
    u32::from((be16(h, TCP + 12) ^ OFFSET) & OFFSET_BITS) | be32(h, TCP + tcp::HEADER_LEN) ^ OPTIONS
}

impl<const TCP: usize, const N: usize> Plain<'_, TCP, N> {
    /// Bytes of the headers.
    pub(super) const LEN: usize = N;

    /// Returns the sums of the headers: that of IP's, and that of the addresses as a plain number.
    #[inline(always)]
    fn sums(&self, ip: Sum, addrs: u64) -> Checksums {
        let bare = usize::from(self.tcp_len) == TCP_LEN;
        Checksums {
            ip,
            pseudo: addrs + u64::from(ipv4::PROTO_TCP) + u64::from(self.tcp_len),
            tcp_at: TCP,
            tcp_len: self.tcp_len,
            bare: if bare {
                self.h[TCP..].first_chunk::<TCP_LEN>().map(Sum::of_words)
            } else {
                None
            },
        }
    }

    /// Returns the segment for TCP.
    #[inline(always)]
    pub(super) fn segment(&self) -> Segment {
        let h = self.h;
        Segment {
            seq: SeqNumber(be32(h, TCP + 4)),
            ack: SeqNumber(be32(h, TCP + 8)),
            flags: Flags(be16(h, TCP + 12) & Flags::ALL),
            window: be16(h, TCP + 14),
            len: u32::from(self.tcp_len) - u32::from(TCP_HEADER),
            timestamps: Some(Timestamps { val: be32(h, TCP + 24), ecr: be32(h, TCP + 28) }),
            ecn: self.ecn(),
            ..Segment::default()
        }
    }

    /// Returns the codepoint of the packet: the low bits of the traffic class, whose place depends
    /// on the version of IP.
    #[inline(always)]
    fn ecn(&self) -> Codepoint {
        const { assert!(TCP == TCP4 || TCP == TCP6) }
        let shift = const { if TCP == TCP4 { 0 } else { 4 } };
        Codepoint::of(self.h[IP + 1] >> shift)
    }
}

impl<'a, const TCP: usize, const N: usize> Plain<'a, TCP, N>
where
    Self: Shape<'a>,
{
    /// Returns the bytes of this segment's payload if the segment continues `before`, a segment of
    /// the same connection or several that follow each other, and nothing else sets it apart. It has
    /// 1 to `most` bytes.
    #[inline(always)]
    pub(super) fn continues(&self, before: &Segment, most: u32) -> Option<u32> {
        let h = self.h;
        let Segment { seq, ack, flags, window, timestamps: Some(ts), ecn, .. } = *before else {
            return None;
        };
        let len = u32::from(self.tcp_len) - u32::from(TCP_HEADER);
        // A segment with PSH says no less about the stream than one without.
        let other = be32(h, TCP + 4) ^ seq.advance(before.len).0
            | be32(h, TCP + 8) ^ ack.0
            | u32::from((be16(h, TCP + 12) ^ flags.0) & (Flags::ALL & !Flags::PSH.0))
            | u32::from(be16(h, TCP + 14) ^ window)
            | u32::from(self.ecn().bits() ^ ecn.bits())
            | be32(h, TCP + 24) ^ ts.val
            | be32(h, TCP + 28) ^ ts.ecr;
        (other == 0 && len > 0 && len <= most).then_some(len)
    }
}

/// The sums of a frame's headers.
pub(super) struct Checksums {
    ip: Sum,
    pseudo: u64,
    tcp_at: usize,
    tcp_len: u16,
    /// The sum of a segment without payload, which lies entirely in the headers.
    bare: Option<Sum>,
}

impl Checksums {
    /// Returns true if all checksums of `frame`, the frame of these sums, are right.
    #[inline(always)]
    pub(super) fn are_right<F: RxFrame>(self, frame: &mut F) -> bool {
        if !self.ip.is_valid() {
            return false;
        }
        let text = match self.bare {
            None => frame.sum_segment(self.tcp_at, TCP_LEN, usize::from(self.tcp_len)),
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
fn be16<const N: usize>(h: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

#[inline(always)]
fn be32<const N: usize>(h: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

#[inline(always)]
fn be64<const N: usize>(h: &[u8; N], at: usize) -> u64 {
    u64::from(be32(h, at)) << 32 | u64::from(be32(h, at + 4))
}

#[cfg(test)]
mod tests;
