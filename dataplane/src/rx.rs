//! A received frame on its way through the RNIC.

use core::num::NonZeroU16;

use heddle_base::{Chunks, Sum};
use heddle_iwarp::mpa::fpdu::CRC_LEN;
use heddle_rnic::RnicFrame;
use heddle_tcp::{RxChecksum, RxFrame};

use crate::mbuf::Mbuf;
use crate::raw;

/// Payload from which on one pass for checksum and CRC is worth its start.
const MIN_PAYLOAD: usize = 64;

/// An mbuf, and what was found out about its payload in passing ([`RnicFrame`]).
#[derive(Debug)]
pub(crate) struct RxMbuf {
    mbuf: Mbuf,
    digest: Option<Digest>,
    /// Whether to compute one.
    digests: bool,
}

/// What is known of the payload of a frame. As small as it is because frames are passed by value.
#[derive(Clone, Copy, Debug)]
struct Digest {
    /// Where the payload begins, and its octets.
    off: u16,
    len: NonZeroU16,
    /// CRC-32C of it but for the last [`CRC_LEN`] octets.
    crc: u32,
}

impl RxMbuf {
    /// A frame as it comes from the port. With `digests` the CRC of its payload is computed along
    /// with the checksum.
    #[inline]
    pub(crate) fn new(mbuf: Mbuf, digests: bool) -> RxMbuf {
        RxMbuf { mbuf, digest: None, digests }
    }

    /// The frame.
    #[inline]
    pub(crate) fn into_mbuf(self) -> Mbuf {
        self.mbuf
    }

    /// Checksum of the segment at `off`, and CRC of its payload but for the last four octets, of
    /// which it has more.
    #[inline]
    fn read(&self, off: usize, header: usize, len: usize) -> Option<(Sum, u32)> {
        let first = self.mbuf.data().get(off..)?;
        if let Some(text) = first.get(header..len)
            && let Some((covered, tail)) = text.split_last_chunk::<CRC_LEN>()
        {
            // In one piece, as a sender that computes the CRC copies it.
            // SAFETY: a slice is valid for reads of its length.
            let (crc, sum) = unsafe { raw::digest(covered.as_ptr(), covered.len(), 0) };
            // The header has whole words of 32 bits, as has the CRC, which lies in the byte order of
            // the network as far as the sum goes.
            let tail = Sum::ZERO.add_u32(u32::from_be_bytes(*tail));
            let head = header_sum(&first[..header]);
            return Some((head.plus(sum).add_at(covered.len(), tail), crc));
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
        (done == len).then_some((sum, crc))
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
}

impl RxFrame for RxMbuf {
    #[inline]
    fn checksum(&self) -> RxChecksum {
        self.mbuf.checksum()
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        self.mbuf.sum(off, len)
    }

    #[inline]
    fn sum_segment(&mut self, off: usize, header: usize, len: usize) -> Option<Sum> {
        if !self.digests || len < header + MIN_PAYLOAD {
            return self.mbuf.sum(off, len);
        }
        let (sum, crc) = self.read(off, header, len)?;
        let at = (u16::try_from(off + header), u16::try_from(len - header));
        if let (Ok(off), Ok(Some(len))) = (at.0, at.1.map(NonZeroU16::new)) {
            self.digest = Some(Digest { off, len, crc });
        }
        Some(sum)
    }
}

impl RnicFrame for RxMbuf {
    #[inline]
    fn payload_crc(&self, off: usize, len: usize) -> Option<u32> {
        let digest = self.digest?;
        let all = usize::from(digest.off) == off && usize::from(digest.len.get()) == len;
        all.then_some(digest.crc)
    }
}
