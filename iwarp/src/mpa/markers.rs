//! Markers (RFC 5044 sections 4.2 and 4.3). Every 512 bytes of a direction's FPDU stream, counted
//! from its first byte, there are four bytes that say how far back the FPDU around them begins.
//!
//! ```text
//! offset   0            4                     512          516
//!          | marker 0   | length, ULPDU ...   | marker 508 | ... ULPDU, pad, CRC |
//!            ^ between FPDUs: belongs to the next            ^ back to offset 4
//! ```
//!
//! * A marker between two FPDUs holds 0 and belongs to the FPDU after it.
//! * The CRC covers the markers of its FPDU, a leading one included, and so must be computed over
//!   the stream with its markers in place.
//! * FPDUs are whole words, and so are 512 and the markers: no marker ever splits a header or a
//!   CRC.
//!
//! `Grid` is the arithmetic of places. The data path inserts markers as an FPDU goes into its frame
//! ([`Fpdu`](crate::Fpdu)) and reads around them (`Marked`); [`insert`] and [`remove`] copy, and
//! are for tests and tools.

mod grid;
mod marked;

pub(crate) use grid::Grid;
pub(crate) use marked::Marked;

use super::fpdu::{self, CRC_LEN, HEADER_LEN};

/// Bytes from the start of one marker to the next.
pub const INTERVAL: usize = 512;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;

/// Returns the number of bytes to the next place of a marker: 0 when `offset` is one.
#[inline]
const fn to_marker(offset: u64) -> usize {
    Grid::at(offset).first()
}

/// Returns the place of the length field of the FPDU that begins in the stream at `offset`: after a
/// leading marker.
const fn header_at(offset: u64) -> u64 {
    if to_marker(offset) == 0 { offset + MARKER_LEN as u64 } else { offset }
}

/// Returns the number of bytes that an FPDU of `len` bytes takes with its markers when it starts
/// `offset` bytes into the FPDU stream (bytes already sent in FPDU mode, their markers included).
pub const fn marked_len(len: usize, offset: u64) -> usize {
    Grid::at(offset).marked(len)
}

/// Returns the marker that is `back` bytes after the length field of its FPDU; 0 for a marker
/// before the length field.
///
/// Saturating: an FPDU with markers is shorter than 2^16 as long as its ULPDU keeps to the MULPDU's
/// upper limit.
pub(crate) fn marker(back: usize) -> [u8; MARKER_LEN] {
    let [high, low] = u16::try_from(back).unwrap_or(0xfffc).to_be_bytes();
    [0, 0, high, low]
}

/// Returns how far back a marker points. The first half is reserved; so are the two lowest bits of
/// the second (erratum 1427).
pub(crate) const fn pointer(marker: [u8; MARKER_LEN]) -> u16 {
    u16::from_be_bytes([marker[2], marker[3]]) & !3
}

/// Appends the finished `fpdu` to `out` with its markers, as it is `offset` bytes into the FPDU
/// stream, and computes its CRC anew if `with_crc`.
///
/// `fpdu` is one whole FPDU without markers, and `offset` counts the bytes sent in FPDU mode before
/// it, markers included: both are multiples of 4. The caller and not a peer chooses both values, so
/// only debug builds check.
pub fn insert(fpdu: &[u8], offset: u64, with_crc: bool, out: &mut Vec<u8>) {
    debug_assert!(fpdu.len().is_multiple_of(4) && offset.is_multiple_of(4));
    debug_assert!(fpdu.len() >= HEADER_LEN + CRC_LEN);
    let start = out.len();
    out.reserve(marked_len(fpdu.len(), offset));
    let mut at = offset;
    let header = header_at(offset);
    let mut rest = fpdu;
    while !rest.is_empty() {
        if to_marker(at) == 0 {
            // Saturating: 0 for the leading marker.
            let back = usize::try_from(at.saturating_sub(header)).unwrap_or(usize::MAX);
            out.extend_from_slice(&marker(back));
            at += MARKER_LEN as u64;
        }
        let n = rest.len().min(to_marker(at));
        let (piece, r) = rest.split_at(n);
        out.extend_from_slice(piece);
        at += n as u64;
        rest = r;
    }
    if with_crc {
        let body = out.len().saturating_sub(CRC_LEN).max(start);
        let crc = fpdu::crc(0, &out[start..body]);
        out.truncate(body);
        out.extend_from_slice(&fpdu::crc_to_wire(crc));
    }
}

/// The error for a marker that points elsewhere than to the beginning of its FPDU (RFC 5044 section
/// 8, code 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("marker at offset {at} points {got} bytes back, its FPDU begins {want} bytes back")]
pub struct MarkerError {
    /// Offset of the marker in the FPDU stream.
    pub at: u64,
    /// The distance that the marker holds, its two lowest bits taken as zero.
    pub got: u16,
    /// The distance to the beginning of the marker's FPDU.
    pub want: u64,
}

/// An FPDU with its markers taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmarked {
    /// Length, ULPDU, pad and CRC.
    pub fpdu: Vec<u8>,
    /// CRC-32C of the bytes that the CRC field covers, markers included.
    pub crc: u32,
    /// Bytes of the stream that the FPDU took, markers included.
    pub consumed: usize,
    /// The first wrong marker. Check the CRC first: without a good CRC this result means nothing.
    pub marker: Result<(), MarkerError>,
}

/// Removes the markers from the FPDU at the start of `stream`, which is `offset` bytes into the
/// FPDU stream; `None` if the FPDU is incomplete.
pub fn remove(stream: &[u8], offset: u64) -> Option<Unmarked> {
    let mut out = Unmarked { fpdu: Vec::new(), crc: 0, consumed: 0, marker: Ok(()) };
    let (mut at, mut rest) = (offset, stream);
    let header = header_at(offset);
    // Until the length is known, the FPDU is at least this long.
    let mut len = HEADER_LEN;
    while out.fpdu.len() < len {
        if to_marker(at) == 0 {
            let (marker, r) = rest.split_first_chunk::<MARKER_LEN>()?;
            let got = pointer(*marker);
            let want = at.saturating_sub(header);
            if out.marker.is_ok() && u64::from(got) != want {
                out.marker = Err(MarkerError { at, got, want });
            }
            out.crc = fpdu::crc(out.crc, marker);
            (at, rest) = (at + MARKER_LEN as u64, r);
        }
        // Stop at the CRC field, which its own CRC does not cover, and at the next marker.
        let (have, before_crc) = (out.fpdu.len(), len.saturating_sub(CRC_LEN));
        let end = if have < before_crc { before_crc } else { len };
        let n = (end - have).min(to_marker(at));
        let piece = rest.get(..n)?;
        if have < before_crc || len == HEADER_LEN {
            out.crc = fpdu::crc(out.crc, piece);
        }
        out.fpdu.extend_from_slice(piece);
        (at, rest) = (at + n as u64, &rest[n..]);
        if len == HEADER_LEN
            && let [a, b, ..] = out.fpdu[..]
        {
            len = fpdu::fpdu_len(u16::from_be_bytes([a, b]));
        }
    }
    out.consumed = stream.len() - rest.len();
    Some(out)
}

#[cfg(test)]
mod tests;
