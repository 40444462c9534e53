//! Frames being put together for sending.

use std::ptr::NonNull;

use heddle_dpdk_sys as sys;

use super::{Mbuf, is_private, segment_ptr};
use crate::extmem::ExternalMemory;
use crate::mempool::HEADROOM;

/// An mbuf as it comes from its pool: what it will be says which of its fields have to be written,
/// and most of them, all of its second cache line, need not be for a segment behind the first.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RawMbuf(Mbuf);

impl RawMbuf {
    /// An empty frame.
    #[inline]
    pub(crate) fn into_first(self) -> Mbuf {
        // SAFETY: a valid single mbuf that is ours alone.
        unsafe { sys::heddle_mbuf_reset(self.0.0.as_ptr()) };
        self.0
    }

    /// An empty segment to be chained.
    #[inline]
    pub(crate) fn into_later(self) -> Mbuf {
        let mut m = self.0;
        let f = m.head_mut();
        (f.data_off, f.data_len, f.pkt_len, f.ol_flags) = (HEADROOM, 0, 0, 0);
        m
    }

    /// A segment to be chained that refers to `len` bytes at `addr`, for one of the references to
    /// `slot` that the caller has taken ([`ExternalMemory::take`]); `None`, and the mbuf is freed and
    /// the reference still the caller's, when there is no such slot.
    ///
    /// # Safety
    /// `addr` is valid for `len` bytes, inside the region that `slot` keeps.
    #[inline]
    pub(crate) unsafe fn into_external(
        self,
        memory: &ExternalMemory,
        slot: u32,
        (addr, len): (*mut u8, u16),
    ) -> Option<Mbuf> {
        let shinfo = memory.counted(slot)?;
        // SAFETY: a direct mbuf, ours alone; the range is valid by the caller, its IOVA is its address
        // (the EAL runs with --iova-mode=va); the counter keeps the region until it is freed.
        unsafe {
            sys::heddle_mbuf_attach(self.0.0.as_ptr(), addr.cast(), addr as u64, len, shinfo);
        }
        Some(self.0)
    }
}

/// A frame that is put together segment by segment.
///
/// It knows the last segment and the room in it, so that adding to it does not walk the chain.
#[derive(Debug)]
pub(crate) struct FrameBuilder {
    frame: Mbuf,
    last: NonNull<sys::rte_mbuf>,
    /// Where the next byte of the last segment goes, and how many there is room for; none behind
    /// an external segment.
    at: *mut u8,
    room: usize,
}

impl FrameBuilder {
    /// Starts with an empty mbuf of a pool.
    #[inline]
    pub(crate) fn new(first: Mbuf) -> FrameBuilder {
        let (last, at, room) = (first.0, first.end(), first.room());
        FrameBuilder { frame: first, last, at, room }
    }

    /// Copies `bytes` behind what there is; false when the last segment has no room for them.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(dst) = self.reserve(bytes.len()) else { return false };
        dst.copy_from_slice(bytes);
        true
    }

    /// The next `n` bytes of the last segment, whose content is arbitrary; `None` without room.
    #[inline]
    pub(crate) fn reserve(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.room {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        // SAFETY: `last` is a segment of the frame we own, no other reference to it exists; `at`
        // has `room` bytes behind it in that segment's own buffer, which is initialised memory
        // (mapped zeroed by the EAL) and private (`room` is 0 otherwise).
        unsafe {
            self.last.as_mut().data_len += n16;
            self.frame.0.as_mut().pkt_len += u32::from(n16);
            let dst = std::slice::from_raw_parts_mut(self.at, n);
            self.at = self.at.add(n);
            self.room -= n;
            Some(dst)
        }
    }

    /// Puts a single segment behind what there is.
    #[inline]
    pub(crate) fn chain(&mut self, segment: Mbuf) {
        debug_assert!(segment.segments() == 1);
        (self.at, self.room) = (segment.end(), segment.room());
        let len = segment.head().data_len;
        let segment = segment.into_raw();
        // SAFETY: `last` is the end of the chain we own; `segment` is a valid single mbuf that we
        // own and that the chain owns from here on. No frame comes near 65,535 segments: the
        // stack's longest one has a few for each FPDU.
        unsafe {
            self.last.as_mut().next = segment.as_ptr();
            self.last = segment;
            let head = self.frame.0.as_mut();
            head.nb_segs += 1;
            head.pkt_len += u32::from(len);
        }
    }

    /// The frame.
    #[inline]
    pub(crate) fn finish(self) -> Mbuf {
        self.frame
    }
}

impl Mbuf {
    /// Behind the last byte of the first segment.
    #[inline]
    fn end(&self) -> *mut u8 {
        segment_ptr(self.head()).cast_mut().wrapping_add(self.data_len())
    }

    /// Bytes that can be written there.
    #[inline]
    fn room(&self) -> usize {
        let m = self.head();
        if is_private(m) { usize::from(m.buf_len - m.data_off - m.data_len) } else { 0 }
    }
}
