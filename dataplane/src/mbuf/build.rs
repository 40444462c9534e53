//! Construction of frames to send.

use heddle_dpdk_sys as sys;

use super::Mbuf;
use super::fields::Segment;
use crate::extmem::ExternalMemory;
use crate::mempool::HEADROOM;

/// An mbuf as it comes from its pool. The use of the mbuf decides which of its fields its user must
/// write: for a segment after the first, most fields, including the whole second cache line, need
/// no write.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RawMbuf(Mbuf);

impl RawMbuf {
    /// Prefetches the lines that the caller will write: both lines of the mbuf, and those lines of
    /// its buffer that headers take.
    #[inline]
    pub(crate) fn prefetch_for_write(&self) {
        super::received::prefetch_lines(self.0.0.as_ptr().cast(), true);
    }

    /// Returns an empty frame.
    #[inline]
    pub(crate) fn into_first(self) -> Mbuf {
        // SAFETY: a valid single mbuf that is ours alone.
        unsafe { sys::heddle_mbuf_reset(self.0.0.as_ptr()) };
        self.0
    }

    /// Returns an empty segment to be chained.
    #[inline]
    pub(crate) fn into_later(self) -> Mbuf {
        let s = self.0.head();
        s.set_data_off(HEADROOM);
        s.set_data_len(0);
        s.set_pkt_len(0);
        s.set_ol_flags(0);
        self.0
    }

    /// Returns a segment to be chained that refers to `len` bytes at `addr`, and uses up one of the
    /// references to `slot` that the caller has taken ([`ExternalMemory::take`]). If there is no
    /// such slot, this function frees the mbuf and returns `None`, and the caller keeps the
    /// reference.
    ///
    /// # Safety
    /// `addr` is valid for `len` bytes, inside the region that `slot` keeps.
    #[inline]
    pub(crate) unsafe fn into_external(
        self,
        memory: &ExternalMemory,
        slot: u32,
        addr: *mut u8,
        len: u16,
    ) -> Option<Mbuf> {
        let shinfo = memory.counted(slot)?;
        // SAFETY: a direct mbuf, ours alone; the caller guarantees that the range is valid, and the
        // IOVA of the range is its address (the EAL runs with --iova-mode=va); the counter keeps
        // the region until the mbuf is freed.
        unsafe {
            sys::heddle_mbuf_attach(self.0.0.as_ptr(), addr.cast(), addr as u64, len, shinfo);
        }
        Some(self.0)
    }
}

/// Builds a frame segment by segment.
///
/// The builder knows the last segment and the room in it, so that appending does not walk the
/// chain.
#[derive(Debug)]
pub(crate) struct FrameBuilder {
    frame: Mbuf,
    last: Segment,
    /// The place of the next byte of the last segment, and the number of bytes that it has room
    /// for: 0 after an external segment.
    at: *mut u8,
    room: usize,
}

impl FrameBuilder {
    /// Starts with an empty mbuf of a pool.
    #[inline]
    pub(crate) fn new(first: Mbuf) -> FrameBuilder {
        let (last, at, room) = (first.head(), end(first.head()), first.head().tailroom());
        FrameBuilder { frame: first, last, at, room }
    }

    /// Appends a copy of `bytes`; returns false if the last segment has no room for them.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(dst) = self.reserve(bytes.len()) else { return false };
        dst.copy_from_slice(bytes);
        true
    }

    /// Appends `n` bytes to the last segment and returns them, with arbitrary content; `None` if
    /// there is no room.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.room {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        let (last, head) = (self.last, self.frame.head());
        last.set_data_len(last.data_len() + n16);
        head.set_pkt_len(head.pkt_len() + u32::from(n16));
        // SAFETY: `last` is a segment of the frame we own, no other reference to it exists; `at`
        // has `room` bytes after it in that segment's own buffer, which is initialised memory
        // (mapped zeroed by the EAL) and private (`room` is 0 otherwise).
        unsafe {
            let dst = std::slice::from_raw_parts_mut(self.at, n);
            self.at = self.at.add(n);
            self.room -= n;
            Some(dst)
        }
    }

    /// Appends a single segment to the frame.
    #[inline]
    pub(crate) fn chain(&mut self, segment: Mbuf) {
        debug_assert!(segment.segments() == 1);
        let (head, new) = (self.frame.head(), segment.head());
        (self.at, self.room) = (end(new), new.tailroom());
        // The chain owns the segment from here on. No frame comes near 65,535 segments: the stack's
        // longest frame has a few segments for each FPDU.
        self.last.set_next_ptr(segment.into_raw().as_ptr());
        self.last = new;
        head.set_nb_segs(head.nb_segs() + 1);
        head.set_pkt_len(head.pkt_len() + u32::from(new.data_len()));
    }

    /// Copies a frame, external segments included, into as few mbufs as hold it, and reads each
    /// byte once; returns `None` if `alloc` has too few mbufs.
    pub(crate) fn copy(frame: &Mbuf, mut alloc: impl FnMut() -> Option<RawMbuf>) -> Option<Mbuf> {
        let mut copy = FrameBuilder::new(alloc()?.into_first());
        for (src, len, _) in frame.pieces() {
            let mut done = 0;
            while done < len {
                if copy.room == 0 {
                    copy.chain(alloc()?.into_later());
                }
                let dst = copy.reserve(copy.room.min(len - done))?;
                // SAFETY: `src` is valid for reads of `len` bytes while `frame` is borrowed, and
                // `dst` is a buffer of its own.
                unsafe { heddle_digest::gather(src.add(done), dst) };
                done += dst.len();
            }
        }
        let mut copy = copy.finish();
        copy.inherit_rx_flags(frame);
        Some(copy)
    }

    /// Returns the frame.
    #[inline]
    pub(crate) fn finish(self) -> Mbuf {
        self.frame
    }
}

/// Returns the address after the last byte of a segment.
#[inline]
fn end(m: Segment) -> *mut u8 {
    m.data_ptr().wrapping_add(usize::from(m.data_len()))
}
