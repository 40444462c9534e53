//! TCP headers and options (RFC 9293 section 3.1, RFC 7323, RFC 2018, RFC 5482, RFC 9768).

use arrayvec::ArrayVec;
use heddle_base::Sum;

use super::ipv4::missing;
use super::{Malformed, be16, be32};
use crate::{
    ByteCounts, Codepoint, Flags, RareOptions, SackBlock, SackBlocks, Segment, SeqNumber,
    Timestamps, TxSegment, UserTimeout,
};

mod field {
    use core::ops::Range;
    pub(super) const SRC_PORT: Range<usize> = 0..2;
    pub(super) const DST_PORT: Range<usize> = 2..4;
    pub(super) const SEQ: Range<usize> = 4..8;
    pub(super) const ACK: Range<usize> = 8..12;
    pub(super) const DATA_OFFSET: usize = 12;
    /// The data offset, three reserved bits and the control bits.
    pub(super) const FLAGS: Range<usize> = 12..14;
    pub(super) const WINDOW: Range<usize> = 14..16;
    pub(super) const CHECKSUM: Range<usize> = 16..18;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// The most bytes that options can take.
pub const MAX_OPTIONS_LEN: usize = 40;

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const USER_TIMEOUT: u8 = 28;
    pub(super) const ACCECN_0: u8 = 172;
    pub(super) const ACCECN_1: u8 = 174;
}

/// NOP, NOP, kind and length of a timestamps option: the start of nearly every segment's options
/// (RFC 7323 appendix A).
const ALIGNED_TIMESTAMPS: u32 = 0x0101_080a;
/// SACK-permitted, kind and length of a timestamps option.
const SACK_PERMITTED_TIMESTAMPS: u32 = 0x0402_080a;

/// Bytes of a user timeout option.
const USER_TIMEOUT_LEN: u8 = 4;

/// A checked TCP header. The caller, which has the payload, verifies the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the header, options included.
    pub header_len: usize,
    /// The other fields of the header, and the payload's length.
    pub segment: Segment,
    /// True if there is a SACK option: [`sack_blocks`] reads it.
    pub has_sack: bool,
    /// True if there is an option that [`rare_options`] reads.
    pub has_rare: bool,
}

impl TcpHeader {
    /// Reads the header that `head` starts with. `tcp_len` is the length of the whole segment, of
    /// which `head` is the first piece.
    ///
    /// The parser skips unknown options, and known options with a wrong length. MSS, window scale
    /// and SACK-permitted count on a SYN only, SACK on other segments only, AccECN and the user
    /// timeout on any but the first SYN.
    ///
    /// # Errors
    /// Fails when the data offset or an option length is impossible, or the segment is too short.
    // Inlined so that the fields stay in registers: a header written to memory field by field and
    // read back as a whole stalls the load.
    #[inline(always)]
    pub fn parse(head: &[u8], tcp_len: usize) -> Result<TcpHeader, Malformed> {
        let Some(h) = head.first_chunk::<HEADER_LEN>() else {
            return Err(missing(HEADER_LEN, tcp_len));
        };
        let header_len = usize::from(h[field::DATA_OFFSET] >> 4) * 4;
        if header_len < HEADER_LEN || header_len > tcp_len {
            return Err(Malformed::Header);
        }
        let options = head.get(HEADER_LEN..header_len).ok_or(Malformed::Split)?;
        let flags = Flags(be16(h, field::FLAGS.start) & Flags::ALL);
        let len = u32::try_from(tcp_len - header_len).map_err(|_| Malformed::Header)?;
        let options = match options {
            [] => Options::default(),
            [1, 1, 8, 10, rest @ ..] if rest.len() == 8 && !flags.has(Flags::SYN) => {
                let timestamps = Some(Timestamps { val: be32(rest, 0), ecr: be32(rest, 4) });
                Options { timestamps, ..Options::default() }
            }
            _ if let Some(usual) = usual_of_syn(options).filter(|_| flags.has(Flags::SYN)) => usual,
            _ => parse_options(options, flags)?,
        };
        Ok(TcpHeader {
            src_port: be16(h, field::SRC_PORT.start),
            dst_port: be16(h, field::DST_PORT.start),
            header_len,
            segment: Segment {
                seq: SeqNumber(be32(h, field::SEQ.start)),
                ack: SeqNumber(be32(h, field::ACK.start)),
                flags,
                window: be16(h, field::WINDOW.start),
                len,
                ecn: Codepoint::NOT_ECT,
                mss: options.mss,
                window_scale: options.window_scale,
                sack_permitted: options.sack_permitted,
                timestamps: options.timestamps,
            },
            has_sack: options.has_sack,
            has_rare: options.has_rare,
        })
    }
}

/// The options that the parser knows.
#[derive(Clone, Copy, Default)]
struct Options {
    mss: Option<u16>,
    window_scale: Option<u8>,
    sack_permitted: bool,
    timestamps: Option<Timestamps>,
    has_sack: bool,
    has_rare: bool,
}

/// Reads the options of a SYN in the order of Linux, or in ours: a flood has nearly always one of
/// these. Returns `None` for others.
#[inline]
fn usual_of_syn(options: &[u8]) -> Option<Options> {
    const MSS: u32 = 0x0204_0000;
    const SCALE: u32 = 0x0103_0300;
    let o = options.first_chunk::<20>().filter(|_| options.len() == 20)?;
    let word = |at| be32(o, at);
    let (first, a, b, c, d) = (word(0), word(4), word(8), word(12), word(16));
    let (scale, ts, val, ecr) =
        if a == SACK_PERMITTED_TIMESTAMPS { (d, a, b, c) } else { (a, b, c, d) };
    let other = (first ^ MSS) >> 16 | (scale ^ SCALE) >> 8 | (ts ^ SACK_PERMITTED_TIMESTAMPS);
    let [.., high, low] = first.to_be_bytes();
    let [.., shift] = scale.to_be_bytes();
    (other == 0).then_some(Options {
        mss: Some(u16::from_be_bytes([high, low])),
        window_scale: Some(shift),
        sack_permitted: true,
        timestamps: Some(Timestamps { val, ecr }),
        ..Options::default()
    })
}

#[inline(never)]
fn parse_options(mut options: &[u8], flags: Flags) -> Result<Options, Malformed> {
    let mut found = Options::default();
    let syn = flags.has(Flags::SYN);
    loop {
        let len = match options {
            [] | [kind::END, ..] => return Ok(found),
            [kind::NOP, ..] => 1,
            [_, len, ..] if *len >= 2 => usize::from(*len),
            _ => return Err(Malformed::Options),
        };
        let (option, rest) = options.split_at_checked(len).ok_or(Malformed::Options)?;
        match *option {
            [kind::MSS, _, a, b] if syn => found.mss = Some(u16::from_be_bytes([a, b])),
            [kind::WINDOW_SCALE, _, shift] if syn => found.window_scale = Some(shift),
            [kind::SACK_PERMITTED, _] if syn => found.sack_permitted = true,
            [kind::SACK, ..] if !syn => found.has_sack = true,
            [kind::TIMESTAMPS, _, ref v @ ..] if v.len() == 8 => {
                found.timestamps = Some(Timestamps { val: be32(v, 0), ecr: be32(v, 4) });
            }
            [kind::ACCECN_0 | kind::ACCECN_1 | kind::USER_TIMEOUT, ..] => {
                found.has_rare = !syn || flags.has(Flags::ACK);
            }
            _ => {}
        }
        options = rest;
    }
}

/// Returns the first AccECN option and the first user timeout option of the segment whose header `head`
/// starts with. The caller has parsed this header with [`TcpHeader::parse`].
#[cold]
pub fn rare_options(head: &[u8]) -> RareOptions {
    let mut found = RareOptions::default();
    let len = head.get(field::DATA_OFFSET).map_or(0, |b| usize::from(b >> 4) * 4);
    let mut options = head.get(HEADER_LEN..len).unwrap_or(&[]);
    loop {
        let len = match options {
            [] | [kind::END, ..] => return found,
            [kind::NOP, ..] => 1,
            [_, len, ..] => usize::from(*len).max(2),
            _ => return found,
        };
        let Some((option, rest)) = options.split_at_checked(len) else { return found };
        match *option {
            [kind @ (kind::ACCECN_0 | kind::ACCECN_1), _, ref bytes @ ..] => {
                found.counts.get_or_insert_with(|| byte_counts(kind == kind::ACCECN_1, bytes));
            }
            [kind::USER_TIMEOUT, _, a, b] => {
                let told = UserTimeout::from_bits(u16::from_be_bytes([a, b]));
                found.user_timeout = found.user_timeout.or(told);
            }
            _ => {}
        }
        options = rest;
    }
}

/// Returns the counts in the fields of an AccECN option. Bytes that make no whole field are padding
/// (RFC 9768 section 3.2.3).
fn byte_counts(reversed: bool, bytes: &[u8]) -> ByteCounts {
    let mut counts = ByteCounts { reversed, ..ByteCounts::default() };
    let fields = bytes.chunks_exact(ByteCounts::FIELD);
    for (field, bytes) in counts.fields.iter_mut().zip(fields) {
        if let [a, b, c] = *bytes {
            *field = u32::from_be_bytes([0, a, b, c]);
            counts.len += 1;
        }
    }
    counts
}

/// Returns the SACK option of the segment whose header `head` starts with. The caller has parsed
/// this header with [`TcpHeader::parse`].
#[cold]
pub fn sack_blocks(head: &[u8]) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    let len = head.get(field::DATA_OFFSET).map_or(0, |b| usize::from(b >> 4) * 4);
    let mut options = head.get(HEADER_LEN..len).unwrap_or(&[]);
    loop {
        let len = match options {
            [] | [kind::END, ..] => return blocks,
            [kind::NOP, ..] => 1,
            [_, len, ..] => usize::from(*len).max(2),
            _ => return blocks,
        };
        let Some((option, rest)) = options.split_at_checked(len) else { return blocks };
        if let [kind::SACK, _, ref v @ ..] = *option
            && v.len().is_multiple_of(8)
        {
            for block in v.chunks_exact(8) {
                let (start, end) = (SeqNumber(be32(block, 0)), SeqNumber(be32(block, 4)));
                blocks.push(SackBlock { start, end });
            }
        }
        options = rest;
    }
}

/// Writes the options of `seg`, a multiple of four bytes. `sack` holds the blocks that `seg.sack`
/// counts.
#[inline]
pub fn emit_options<const N: usize>(seg: &TxSegment, sack: &SackBlocks, out: &mut ArrayVec<u8, N>) {
    if seg.flags.has(Flags::SYN) {
        emit_syn_options(seg, out);
    } else if let Some(ts) = seg.timestamps {
        put(&timestamps(ts, ALIGNED_TIMESTAMPS), out);
    }
    if seg.sack > 0 {
        emit_sack(seg.sack, sack, out);
    }
    if let Some(counts) = &seg.counts {
        emit_counts(counts, out);
    }
    if let Some(told) = seg.user_timeout {
        emit_user_timeout(told, out);
    }
}

/// Writes the options of a SYN. SACK-permitted has exactly the length of the padding before
/// timestamps.
#[cold]
fn emit_syn_options<const N: usize>(seg: &TxSegment, out: &mut ArrayVec<u8, N>) {
    if let Some(mss) = seg.mss {
        let [a, b] = mss.to_be_bytes();
        put(&[kind::MSS, 4, a, b], out);
    }
    if let Some(shift) = seg.window_scale {
        put(&[kind::NOP, kind::WINDOW_SCALE, 3, shift], out);
    }
    match seg.timestamps {
        Some(ts) if seg.sack_permitted => put(&timestamps(ts, SACK_PERMITTED_TIMESTAMPS), out),
        Some(ts) => put(&timestamps(ts, ALIGNED_TIMESTAMPS), out),
        None if seg.sack_permitted => put(&[kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2], out),
        None => {}
    }
}

#[cold]
fn emit_sack<const N: usize>(count: u8, sack: &SackBlocks, out: &mut ArrayVec<u8, N>) {
    let blocks = sack.as_slice().get(..usize::from(count)).unwrap_or(&[]);
    put(&[kind::NOP, kind::NOP, kind::SACK, 2 + 8 * count], out);
    for block in blocks {
        put(&block.start.0.to_be_bytes(), out);
        put(&block.end.0.to_be_bytes(), out);
    }
}

/// Returns the bytes of an AccECN option with its padding.
fn counts_len(counts: &ByteCounts) -> usize {
    (ByteCounts::HEAD + ByteCounts::FIELD * usize::from(counts.len)).next_multiple_of(4)
}

#[cold]
fn emit_counts<const N: usize>(counts: &ByteCounts, out: &mut ArrayVec<u8, N>) {
    let len = ByteCounts::HEAD + ByteCounts::FIELD * usize::from(counts.len);
    let mut option: ArrayVec<u8, 12> = ArrayVec::new();
    let kind = if counts.reversed { kind::ACCECN_1 } else { kind::ACCECN_0 };
    // The padding goes first. An option has at most 11 bytes.
    option.extend((len..counts_len(counts)).map(|_| kind::NOP));
    option.extend([kind, u8::try_from(len).unwrap_or(0)]);
    for field in counts.fields.iter().take(usize::from(counts.len)) {
        let [_, a, b, c] = field.to_be_bytes();
        option.extend([a, b, c]);
    }
    put(&option, out);
}

#[cold]
fn emit_user_timeout<const N: usize>(told: UserTimeout, out: &mut ArrayVec<u8, N>) {
    let [a, b] = told.bits().to_be_bytes();
    put(&[kind::USER_TIMEOUT, USER_TIMEOUT_LEN, a, b], out);
}

fn timestamps(ts: Timestamps, head: u32) -> [u8; 12] {
    let mut o = [0; 12];
    o[..4].copy_from_slice(&head.to_be_bytes());
    o[4..8].copy_from_slice(&ts.val.to_be_bytes());
    o[8..].copy_from_slice(&ts.ecr.to_be_bytes());
    o
}

fn put<const N: usize>(bytes: &[u8], out: &mut ArrayVec<u8, N>) {
    // A header buffer has room for the longest header; a shorter buffer would lose whole options.
    let fits = out.try_extend_from_slice(bytes);
    debug_assert!(fits.is_ok());
}

/// Returns the number of bytes that [`emit_options`] writes for `seg`.
#[inline]
pub fn options_len(seg: &TxSegment) -> usize {
    let mut more = if seg.sack > 0 { 4 + 8 * usize::from(seg.sack) } else { 0 };
    if let Some(counts) = &seg.counts {
        more += counts_len(counts);
    }
    more += usize::from(USER_TIMEOUT_LEN) * usize::from(seg.user_timeout.is_some());
    let timestamps = 12 * usize::from(seg.timestamps.is_some());
    if !seg.flags.has(Flags::SYN) {
        return timestamps + more;
    }
    4 * usize::from(seg.mss.is_some())
        + 4 * usize::from(seg.window_scale.is_some())
        + 4 * usize::from(seg.sack_permitted && seg.timestamps.is_none())
        + timestamps
        + more
}

/// Writes the variable fields of the fixed header to `out`, and leaves the ports.
#[inline]
pub(crate) fn emit_fixed(
    seg: &TxSegment,
    header_len: usize,
    checksum: u16,
    out: &mut [u8; HEADER_LEN],
) {
    out[field::SEQ].copy_from_slice(&seg.seq.0.to_be_bytes());
    out[field::ACK].copy_from_slice(&seg.ack.0.to_be_bytes());
    out[field::FLAGS].copy_from_slice(&offset_and_flags(header_len, seg.flags).to_be_bytes());
    out[field::WINDOW].copy_from_slice(&seg.window.to_be_bytes());
    out[field::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the sequence number in a header.
#[inline]
pub(crate) fn seq(header: &[u8; HEADER_LEN]) -> SeqNumber {
    let [a, b, c, d] = header[field::SEQ] else { return SeqNumber(0) };
    SeqNumber(u32::from_be_bytes([a, b, c, d]))
}

/// Writes the sequence number and the checksum.
#[inline]
pub(crate) fn emit_seq(seq: SeqNumber, checksum: u16, out: &mut [u8; HEADER_LEN]) {
    out[field::SEQ].copy_from_slice(&seq.0.to_be_bytes());
    out[field::CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

#[inline]
fn offset_and_flags(header_len: usize, flags: Flags) -> u16 {
    u16::from(u8::try_from(header_len / 4).unwrap_or(15)) << 12 | flags.0
}

/// Returns the sum of the header from the sequence number on, as [`emit_fixed`] writes the header with a
/// checksum of 0, and [`emit_options`] has written `options`. Where the options are timestamps alone, the
/// function computes the sum from the numbers, without reading the bytes.
#[inline(always)]
pub(crate) fn sum_behind_ports(seg: &TxSegment, options: &[u8], header_len: usize) -> Sum {
    let mut total = u64::from(seg.seq.0) + u64::from(seg.ack.0) + u64::from(seg.window);
    total += u64::from(offset_and_flags(header_len, seg.flags));
    let stamps = seg.timestamps.is_some();
    if header_len == HEADER_LEN + if stamps { TIMESTAMPS_LEN } else { 0 }
        && !seg.flags.has(Flags::SYN)
    {
        if let Some(ts) = seg.timestamps {
            total += u64::from(ALIGNED_TIMESTAMPS) + u64::from(ts.val) + u64::from(ts.ecr);
        }
        return Sum::of_numbers(total);
    }
    Sum::of_numbers(total).plus(Sum::of_short(options))
}

/// Bytes of a timestamps option with the two bytes of padding before it.
const TIMESTAMPS_LEN: usize = 12;

/// Writes the ports to `out`.
pub(crate) fn emit_ports(src: u16, dst: u16, out: &mut [u8; HEADER_LEN]) {
    out[field::SRC_PORT].copy_from_slice(&src.to_be_bytes());
    out[field::DST_PORT].copy_from_slice(&dst.to_be_bytes());
}

/// Offset of the checksum field.
pub(crate) const CHECKSUM_AT: usize = field::CHECKSUM.start;

#[cfg(test)]
mod tests;
