//! Frames being put together for sending.

use heddle_dpdk_sys as sys;

use super::Mbuf;
use super::fields::Segment;
use crate::extmem::ExternalMemory;
use crate::mempool::HEADROOM;
use crate::raw;

/// An mbuf as it comes from its pool: what it will be says which of its fields have to be written,
/// and most of them, all of its second cache line, need not be for a segment behind the first.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RawMbuf(Mbuf);

impl RawMbuf {
    /// Asks the cache for what will be written: both lines of the mbuf, and of its buffer those that
    /// headers take.
    #[inline]
    pub(crate) fn prefetch_for_write(&self) {
        super::received::prefetch_lines(self.0.0.as_ptr().cast(), true);
    }

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
        let s = self.0.head();
        s.set_data_off(HEADROOM);
        s.set_data_len(0);
        s.set_pkt_len(0);
        s.set_ol_flags(0);
        self.0
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
    last: Segment,
    /// Where the next byte of the last segment goes, and how many there is room for; none behind
    /// an external segment.
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

    /// Copies `bytes` behind what there is; false when the last segment has no room for them.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(dst) = self.reserve(bytes.len()) else { return false };
        dst.copy_from_slice(bytes);
        true
    }

    /// The next `n` bytes of the last segment, whose content is arbitrary; `None` without room.
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
        // has `room` bytes behind it in that segment's own buffer, which is initialised memory
        // (mapped zeroed by the EAL) and private (`room` is 0 otherwise).
        unsafe {
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
        let (head, new) = (self.frame.head(), segment.head());
        (self.at, self.room) = (end(new), new.tailroom());
        // The chain owns it from here on. No frame comes near 65,535 segments: the stack's longest
        // one has a few for each FPDU.
        self.last.set_next_ptr(segment.into_raw().as_ptr());
        self.last = new;
        head.set_nb_segs(head.nb_segs() + 1);
        head.set_pkt_len(head.pkt_len() + u32::from(new.data_len()));
    }

    /// A copy of a frame, external segments included, in as few mbufs as hold it; `None` when
    /// `alloc` has too few. Each byte is read once.
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
                unsafe { raw::gather(src.add(done), dst) };
                done += dst.len();
            }
        }
        let mut copy = copy.finish();
        copy.inherit_rx_flags(frame);
        Some(copy)
    }

    /// The frame.
    #[inline]
    pub(crate) fn finish(self) -> Mbuf {
        self.frame
    }
}

/// Behind the last byte of a segment.
#[inline]
fn end(m: Segment) -> *mut u8 {
    m.data_ptr().wrapping_add(usize::from(m.data_len()))
}
