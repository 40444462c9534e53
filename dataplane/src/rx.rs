//! A received frame on its way through the RNIC.

use std::cell::Cell;

use heddle_base::{Chunks, Sum};
use heddle_tcp::RxFrame;

use crate::mbuf::Mbuf;
use crate::raw;

/// Octets of the CRC an FPDU ends with (RFC 5044 section 4.1).
const CRC_LEN: usize = 4;

/// Payload from which on it is worth to look for an FPDU.
const MIN_PAYLOAD: usize = 64;

/// An mbuf, and what was found out about its bytes in passing.
///
/// Where the port does not verify TCP's checksum, all payload is read for it, and read once more for
/// the CRC of the FPDU in it. Our senders, as RFC 5044 wants it, put one whole FPDU into a segment,
/// so both can be computed in one pass: the CRC of the payload up to its last four octets is noted,
/// and given to whoever asks for the CRC of just these bytes. Nobody does where CRCs are off or
/// FPDUs lie otherwise; the worker then stops to have it computed until somebody would again.
#[derive(Debug)]
pub(crate) struct RxMbuf {
    mbuf: Mbuf,
    /// Whether to compute it.
    guess: bool,
    /// Somebody asked for it, whether it was there or not.
    asked: Cell<bool>,
    /// Where the bytes lie, from the start of the frame; no bytes when it is no long TCP segment.
    from: Cell<u32>,
    len: Cell<u32>,
    crc: Cell<u32>,
}

impl RxMbuf {
    /// A frame as it comes from the port; with `guess` the CRC of an FPDU that fills it is computed
    /// along with the checksum.
    #[inline]
    pub(crate) fn new(mbuf: Mbuf, guess: bool) -> RxMbuf {
        RxMbuf {
            mbuf,
            guess,
            asked: Cell::new(false),
            from: Cell::new(0),
            len: Cell::new(0),
            crc: Cell::new(0),
        }
    }

    /// Whether the next frame is worth a guess, as far as this one tells.
    #[inline]
    pub(crate) fn next_guess(&self) -> bool {
        if self.len.get() > 0 { self.asked.get() } else { self.guess }
    }

    /// The frame.
    #[inline]
    pub(crate) fn into_mbuf(self) -> Mbuf {
        self.mbuf
    }

    /// Checksum of the segment at `off`, and CRC of its payload but for the last four octets.
    #[inline]
    fn digest(&self, off: usize, len: usize, header: usize) -> Option<Sum> {
        let first = self.mbuf.data().get(off..)?;
        if let Some(text) = first.get(header..len)
            && let Some((covered, tail)) = text.split_last_chunk::<CRC_LEN>()
        {
            // In one piece, as a sender that computes the CRC copies it.
            // SAFETY: a slice is valid for reads of its length.
            let (crc, sum) = unsafe { raw::digest(covered.as_ptr(), covered.len(), 0) };
            self.crc.set(crc);
            // The header has whole words of 32 bits, as has the CRC, which lies in the byte order of
            // the network as far as the sum goes.
            let tail = Sum::ZERO.add_u32(u32::from_be_bytes(*tail));
            let head = header_sum(&first[..header]);
            return Some(head.plus(sum).add_at(covered.len(), tail));
        }
        let (body, mut crc, mut done) = (len - CRC_LEN, 0, header);
        let mut sum = raw::sum(first.get(..header)?);
        self.mbuf.for_each_chunk(off + header, len - header, |piece| {
            let n = body.saturating_sub(done).min(piece.len());
            let (covered, rest) = piece.split_at(n);
            // SAFETY: a slice is valid for reads of its length.
            let (c, s) = unsafe { raw::digest(covered.as_ptr(), n, crc) };
            crc = c;
            sum = sum.add_at(done, s).add_at(done + n, raw::sum(rest));
            done += piece.len();
        });
        self.crc.set(crc);
        (done == len).then_some(sum)
    }
}

/// The sum of a TCP header, which nearly always has timestamps and no other option.
#[inline]
fn header_sum(header: &[u8]) -> Sum {
    match header.first_chunk::<32>() {
        Some(usual) if header.len() == usual.len() => Sum::of_words(usual),
        _ => raw::sum(header),
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

    #[inline]
    fn known_crc32c(&self, off: usize, len: usize) -> Option<u32> {
        if off != self.from.get() as usize || len != self.len.get() as usize || len == 0 {
            return None;
        }
        self.asked.set(true);
        self.guess.then(|| self.crc.get())
    }
}

impl RxFrame for RxMbuf {
    #[inline]
    fn checksum(&self) -> heddle_tcp::RxChecksum {
        self.mbuf.checksum()
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        // The data offset, in words of 32 bits (RFC 9293 section 3.1), which the stack has checked.
        let header = usize::from(self.mbuf.data().get(off + 12)? >> 4) * 4;
        if len < header + MIN_PAYLOAD {
            return self.mbuf.sum(off, len);
        }
        self.from.set(u32::try_from(off + header).ok()?);
        self.len.set(u32::try_from(len - header - CRC_LEN).ok()?);
        if self.guess { self.digest(off, len, header) } else { self.mbuf.sum(off, len) }
    }
}
