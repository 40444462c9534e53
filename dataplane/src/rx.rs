//! A received frame on its way through the RNIC.

use heddle_base::{Chunks, Sum};
use heddle_iwarp::mpa::fpdu::CRC_LEN;
use heddle_rnic::RnicFrame;
use heddle_tcp::{RxChecksum, RxFrame, Tag};

use crate::mbuf::Mbuf;

/// The smallest payload in bytes for which one pass for checksum and CRC is worth its start.
const MIN_PAYLOAD: usize = 64;

/// An mbuf, and the CRC of its payload if the checksum pass computed one ([`RnicFrame`]). The struct
/// is small because a burst of them is handled at a time.
#[derive(Debug)]
pub struct RxMbuf {
    mbuf: Mbuf,
    /// Start and length of the payload that `crc` is of, in bytes. The length is [`NONE`] if there
    /// is no CRC yet, and [`UNWANTED`] if none is to be computed.
    off: u16,
    len: u16,
    /// CRC-32C of the payload without its last [`CRC_LEN`] bytes.
    crc: u32,
}

const NONE: u16 = 0;
const UNWANTED: u16 = 1;

impl RxMbuf {
    /// Wraps a frame from the port. With `digests`, the frame computes the CRC of its payload along
    /// with the checksum.
    #[inline]
    pub(crate) fn new(mbuf: Mbuf, digests: bool) -> RxMbuf {
        RxMbuf { mbuf, off: 0, len: if digests { NONE } else { UNWANTED }, crc: 0 }
    }

    /// Returns the frame.
    #[inline]
    pub(crate) fn into_mbuf(self) -> Mbuf {
        self.mbuf
    }

    /// Returns the checksum of the segment at `off`, and the CRC of its payload without the last
    /// four bytes; the payload must be longer.
    #[inline]
    fn read(&self, off: usize, header: usize, len: usize) -> Option<(Sum, u32)> {
        let first = self.mbuf.data().get(off..)?;
        if let Some(text) = first.get(header..len)
            && let Some((covered, tail)) = text.split_last_chunk::<CRC_LEN>()
        {
            // The payload is in one piece, as a sender that computes the CRC copies it.
            // SAFETY: a slice is valid for reads of its length.
            let (crc, sum) = unsafe { heddle_digest::digest(covered.as_ptr(), covered.len(), 0) };
            // The header consists of whole 32-bit words, and so does the CRC, which the sum takes
            // in network byte order.
            let tail = Sum::ZERO.add_u32(u32::from_be_bytes(*tail));
            let head = header_sum(&first[..header]);
            return Some((head.plus(sum).add_at(covered.len(), tail), crc));
        }
        let (body, mut crc, mut done) = (len - CRC_LEN, 0, header);
        let mut sum = heddle_digest::sum(first.get(..header)?);
        self.mbuf.for_each_chunk(off + header, len - header, |piece| {
            let n = body.saturating_sub(done).min(piece.len());
            let (covered, rest) = piece.split_at(n);
            // SAFETY: a slice is valid for reads of its length.
            let (c, s) = unsafe { heddle_digest::digest(covered.as_ptr(), n, crc) };
            crc = c;
            sum = sum.add_at(done, s).add_at(done + n, heddle_digest::sum(rest));
            done += piece.len();
        });
        (done == len).then_some((sum, crc))
    }
}

/// Returns the sum of a TCP header, which nearly always has timestamps and no other option.
#[inline]
fn header_sum(header: &[u8]) -> Sum {
    match header.first_chunk::<32>() {
        Some(usual) if header.len() == usual.len() => Sum::of_words(usual),
        _ => heddle_digest::sum(header),
    }
}

impl Chunks for RxMbuf {
    #[inline]
    fn len(&self) -> usize {
        self.mbuf.len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        self.mbuf.chunk_at(off)
    }

    #[inline]
    fn for_each_chunk(&self, off: usize, len: usize, f: impl FnMut(&[u8])) {
        self.mbuf.for_each_chunk(off, len, f);
    }
}

impl RxFrame for RxMbuf {
    #[inline]
    fn checksum(&self) -> RxChecksum {
        self.mbuf.checksum()
    }

    #[inline]
    fn tag(&self) -> Option<Tag> {
        self.mbuf.tag()
    }

    fn take_tag(&mut self) -> bool {
        // The CRC, whose place counts from the start of the frame, comes later.
        self.mbuf.take_tag()
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        self.mbuf.sum(off, len)
    }

    #[inline]
    fn sum_segment(&mut self, off: usize, header: usize, len: usize) -> Option<Sum> {
        if self.len == UNWANTED || len < header + MIN_PAYLOAD {
            return self.mbuf.sum(off, len);
        }
        let (sum, crc) = self.read(off, header, len)?;
        if let (Ok(off), Ok(len)) = (u16::try_from(off + header), u16::try_from(len - header)) {
            (self.off, self.len, self.crc) = (off, len, crc);
        }
        Some(sum)
    }
}

impl RnicFrame for RxMbuf {
    #[inline]
    fn payload_crc(&self, off: usize, len: usize) -> Option<u32> {
        // A payload with a CRC of its own is longer than the numbers that say that there is none.
        let all = usize::from(self.off) == off && usize::from(self.len) == len;
        (all && len >= MIN_PAYLOAD).then_some(self.crc)
    }
}
