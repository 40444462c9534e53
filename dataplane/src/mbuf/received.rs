//! A frame as its receiver reads it.

use super::fields::Segment;
use super::{Mbuf, segment_bytes};
use heddle_base::{Chunks, Sum};
use heddle_tcp::{RxChecksum, RxFrame, Tag};

use crate::mempool::HEADROOM;
use crate::prefetch::{self, LINE};

/// Offsets of the cache lines of an mbuf, and of those of the headers in its buffer, from its
/// address.
const LINES: [usize; 4] = {
    const MBUF: usize = 128;
    let data = MBUF + HEADROOM as usize;
    [0, LINE, data, data + LINE]
};

/// Prefetches the lines of an mbuf and of its headers.
#[inline]
pub(super) fn prefetch_lines(mbuf: *const u8, for_write: bool) {
    for line in LINES {
        let at = mbuf.wrapping_add(line);
        if for_write {
            prefetch::write(at);
        } else {
            prefetch::read(at);
        }
    }
}

impl Mbuf {
    /// Prefetches the lines that describe the frame, and its headers in their place for frames
    /// whose headers nothing has moved. [`prefetch`](Mbuf::prefetch) reads the former lines: a
    /// caller with many frames does not wait for each in `prefetch` if it has called this function
    /// for all of them before.
    #[inline]
    pub fn prefetch_head(&self) {
        prefetch_lines(self.0.as_ptr().cast(), false);
    }

    /// Prefetches the headers of the frame (those of TCP and of DDP end in the second line) and the
    /// line that describes its second segment.
    #[inline]
    pub fn prefetch(&self) {
        let data = self.head().data_ptr().cast_const();
        prefetch::read(data);
        prefetch::read(data.wrapping_add(LINE));
        prefetch::read(self.head().next_ptr().cast_const().cast());
    }
}

impl Chunks for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.pkt_len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        let first = self.data();
        // SAFETY: self stays borrowed as long as the bytes.
        if off < first.len() { &first[off..] } else { unsafe { later_chunk(self.head(), off) } }
    }

    /// Walks the chain once.
    #[inline]
    fn for_each_chunk(&self, mut off: usize, mut len: usize, mut f: impl FnMut(&[u8])) {
        let mut m = self.head();
        while len > 0 {
            let here = usize::from(m.data_len());
            if off < here {
                let n = len.min(here - off);
                // SAFETY: self is borrowed as long as `f` has the bytes.
                let Some(piece) = (unsafe { segment_bytes(m) }).get(off..off + n) else { break };
                f(piece);
                (off, len) = (0, len - n);
            } else {
                off -= here;
            }
            let Some(next) = m.next() else { break };
            m = next;
        }
    }
}

/// Returns the bytes from `off` after the start of `m` up to the end of the segment that holds
/// them; none if this segment is external.
///
/// # Safety
/// The chain stays borrowed for `'a`.
unsafe fn later_chunk<'a>(mut m: Segment, mut off: usize) -> &'a [u8] {
    loop {
        let here = usize::from(m.data_len());
        if off < here {
            // SAFETY: the caller's guarantee, passed on.
            return unsafe { segment_bytes(m) }.get(off..).unwrap_or_default();
        }
        off -= here;
        let Some(next) = m.next() else { return &[] };
        m = next;
    }
}

impl RxFrame for Mbuf {
    #[inline]
    fn checksum(&self) -> RxChecksum {
        self.rx_checksum()
    }

    #[inline]
    fn tag(&self) -> Option<Tag> {
        Mbuf::tag(self)
    }

    fn take_tag(&mut self) -> bool {
        Mbuf::take_tag(self)
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        // The first segment holds the beginning of the range: the TCP header.
        let first = self.data().get(off..)?;
        let n = first.len().min(len);
        let mut sum = heddle_digest::sum(&first[..n]);
        let (mut m, mut done) = (self.head(), n);
        while done < len {
            m = m.next()?;
            let n = usize::from(m.data_len()).min(len - done);
            // SAFETY: self stays borrowed. An external segment has no bytes to show.
            let bytes = unsafe { segment_bytes(m) }.get(..n)?;
            sum = sum.add_at(done, heddle_digest::sum(bytes));
            done += n;
        }
        Some(sum)
    }
}
