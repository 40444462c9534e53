//! Packet buffers, owned.
//!
//! A frame is a chain of segments. Each segment is one of:
//! * *direct*: its bytes lie in the pool, behind the mbuf, and belong to it alone;
//! * *external*: its bytes lie in a region of registered memory. Nothing is copied, and the
//!   application and a peer may write them at any time.
//!
//! **Reading external bytes.** No Rust reference to external bytes ever exists: [`Mbuf::data`] and
//! [`heddle_base::Chunks`] show direct bytes only, and stop before an external segment. Code that
//! has to read external bytes reads each byte once, through pointers ([`Mbuf::copy_at`],
//! [`Mbuf::copy`], drivers). On a NIC every received segment is direct. `net_ring` hands the
//! sender's mbufs to the receiver as they are, so [`crate::RxQueue::burst`] copies such frames into
//! buffers of its own pool before any code looks at them, as a NIC would: the bytes that the stack
//! verifies are the bytes that it places.
//!
//! Submodules: `fields` reads and writes the structure itself; this module defines a frame and its
//! ownership; `build` builds frames, `received` reads them, and `offload` handles the checksums
//! that ports compute.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use heddle_dpdk_sys as sys;
use heddle_shm::Region;
use thiserror::Error;

use crate::eal;
use crate::extmem::ExternalMemory;
use crate::mempool::Mempool;

mod build;
mod fields;
mod offload;
mod received;

pub(crate) use build::{FrameBuilder, RawMbuf};
pub use offload::TxOffload;

use fields::Segment;

/// A frame: a chain of mbufs, freed as a whole when dropped.
///
/// `Mbuf` has the size of a pointer, and `Option<Mbuf>` too.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf chain has one owner; its segments and pool may be used and freed by any thread.
unsafe impl Send for Mbuf {}

/// Why there is no external-buffer mbuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExternalError {
    /// The pool has no mbuf left.
    #[error("no mbuf left")]
    PoolEmpty,
    /// The range is not inside the region, or empty.
    #[error("range outside the registered memory")]
    OutOfRange,
    /// Devices use physical addresses, which are not known for registered memory.
    #[error("devices go by physical addresses")]
    PhysicalAddresses,
    /// Too many mbufs refer to the memory region already; the caller copies instead.
    #[error("too many references to the registered memory")]
    TooManyReferences,
}

impl Mbuf {
    /// Takes ownership of a chain.
    ///
    /// # Safety
    /// `m` is the head of a valid mbuf chain that has no other owner.
    #[inline]
    pub unsafe fn from_raw(m: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(m)
    }

    /// Gives ownership away; the caller must free the chain.
    #[inline]
    pub fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    /// Returns a segment whose bytes are `[off, off + len)` of `region`, counted as memory of the
    /// region in `slot` of the STag table; only the small mbuf comes from `pool`. The region stays
    /// mapped until the last such mbuf is freed, by any thread.
    ///
    /// # Errors
    /// See [`ExternalError`].
    pub fn external(
        pool: &Mempool,
        memory: &ExternalMemory,
        slot: u32,
        region: &Arc<Region>,
        off: usize,
        len: u16,
    ) -> Result<Mbuf, ExternalError> {
        let addr = match region.ptr(off, usize::from(len)) {
            Some(p) if len > 0 => p,
            _ => return Err(ExternalError::OutOfRange),
        };
        if !eal::by_process_addresses() {
            return Err(ExternalError::PhysicalAddresses);
        }
        let taken = memory.take(slot, 1, || Some(region.clone()));
        let counted = taken.and_then(|()| memory.counted(slot));
        let shinfo = counted.ok_or(ExternalError::TooManyReferences)?;
        // SAFETY: `pool` is a valid packet pool; `addr` is inside the region for `len` bytes, its
        // IOVA is its address (just checked); `shinfo` is the counter of the reference just taken,
        // which keeps the region and itself until its count is back.
        let m = unsafe {
            let mut raw = std::ptr::null_mut();
            if sys::heddle_mbuf_raw_alloc_bulk(pool.as_ptr(), &raw mut raw, 1) == 0 {
                sys::heddle_mbuf_reset(raw);
                sys::heddle_mbuf_attach(raw, addr.cast(), addr as u64, len, shinfo);
            }
            raw
        };
        match NonNull::new(m) {
            Some(m) => Ok(Mbuf(m)),
            None => {
                memory.give(slot, 1);
                pool.count_failure();
                Err(ExternalError::PoolEmpty)
            }
        }
    }

    /// Returns a copy of the whole frame in segments of `pool`; `None` if the pool is empty.
    pub fn copy(&self, pool: &Mempool) -> Option<Mbuf> {
        // SAFETY: both are valid; the callee reads `self` and returns a new chain or null.
        let m = unsafe { sys::heddle_mbuf_copy(self.0.as_ptr(), pool.as_ptr()) };
        if m.is_null() {
            pool.count_failure();
        }
        NonNull::new(m).map(Mbuf)
    }

    /// Frees many frames with few pool operations; `frames` is empty afterwards.
    #[inline]
    pub fn free_bulk<const N: usize>(frames: &mut arrayvec::ArrayVec<Mbuf, N>) {
        let n = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        // SAFETY: `Mbuf` is a transparent pointer, so the vector is an array of `n` chain heads
        // that we own; after set_len(0) no destructor sees them again.
        unsafe {
            frames.set_len(0);
            sys::heddle_mbuf_free_bulk(frames.as_mut_ptr().cast(), n);
        }
    }

    /// Returns the first segment; only methods that borrow self mutably may call its setters.
    #[inline]
    fn head(&self) -> Segment {
        // SAFETY: a valid mbuf that self owns, and the caller borrows self.
        unsafe { Segment::new(self.0) }
    }

    fn last(&self) -> Segment {
        let mut s = self.head();
        while let Some(next) = s.next() {
            s = next;
        }
        s
    }

    /// Returns the bytes of the whole frame.
    #[inline]
    pub fn pkt_len(&self) -> usize {
        self.head().pkt_len() as usize
    }

    /// Returns the bytes of the first segment.
    #[inline]
    pub fn data_len(&self) -> usize {
        usize::from(self.head().data_len())
    }

    /// Returns the number of segments.
    #[inline]
    pub fn segments(&self) -> u16 {
        self.head().nb_segs()
    }

    /// Returns the bytes of the first segment; none if it is external (see the module's
    /// documentation).
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: self stays borrowed as long as the bytes.
        unsafe { segment_bytes(self.head()) }
    }

    /// Copies bytes of the frame from `off` on into `dst`; returns how many there were (at most
    /// `dst.len()`). Unlike a slice, this function also reads external segments, each byte once.
    pub fn copy_at(&self, mut off: usize, dst: &mut [u8]) -> usize {
        let mut done = 0;
        for (src, len, _) in self.pieces() {
            let n = len.saturating_sub(off).min(dst.len() - done);
            if n > 0 {
                // SAFETY: `src` is valid for reads of `len` bytes while self is borrowed, and
                // `dst`, a reference, overlaps neither buffers of a pool nor registered memory.
                unsafe { heddle_digest::gather(src.add(off), &mut dst[done..done + n]) };
            }
            done += n;
            off = off.saturating_sub(len);
        }
        done
    }

    /// Returns the bytes of the first segment for writing; `None` if others may see them.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        let m = self.head();
        if !m.is_private() {
            return None;
        }
        // SAFETY: data_off + data_len lie inside the buffer of a valid mbuf; the buffer is direct
        // with one reference, so self is its only user; the lifetime is that of the borrow.
        Some(unsafe { std::slice::from_raw_parts_mut(m.data_ptr(), usize::from(m.data_len())) })
    }

    /// Returns the free bytes before the data of the first segment.
    #[inline]
    pub fn headroom(&self) -> usize {
        if self.head().is_private() { usize::from(self.head().data_off()) } else { 0 }
    }

    /// Returns the free bytes after the data of the last segment.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.last().tailroom()
    }

    /// Makes the frame `n` bytes longer in its last segment and returns these bytes, whose content
    /// is arbitrary; `None` if there is no room or the segment is not ours alone.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        let (head, last) = (self.head(), self.last());
        head.set_pkt_len(head.pkt_len() + u32::from(n16));
        let end = last.data_ptr().wrapping_add(usize::from(last.data_len()));
        last.set_data_len(last.data_len() + n16);
        // SAFETY: tailroom() guarantees that `n` bytes at `end` are inside a direct buffer with one
        // reference, which is initialised memory (mapped zeroed by the EAL).
        Some(unsafe { std::slice::from_raw_parts_mut(end, n) })
    }

    /// Makes the frame `n` bytes longer in front and returns these bytes; `None` if there is no
    /// room.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        let m = self.head();
        m.set_data_off(m.data_off() - n16);
        m.set_data_len(m.data_len() + n16);
        m.set_pkt_len(m.pkt_len() + u32::from(n16));
        // SAFETY: headroom() guarantees that these bytes are inside a direct buffer with one
        // reference.
        Some(unsafe { std::slice::from_raw_parts_mut(m.data_ptr(), n) })
    }

    /// Drops `n` bytes from the front of the first segment; returns false, and does nothing, if it
    /// has fewer.
    #[inline]
    pub fn advance(&mut self, n: usize) -> bool {
        let m = self.head();
        match u16::try_from(n) {
            Ok(n) if n <= m.data_len() => {
                m.set_data_off(m.data_off() + n);
                m.set_data_len(m.data_len() - n);
                m.set_pkt_len(m.pkt_len() - u32::from(n));
                true
            }
            _ => false,
        }
    }

    /// Appends the segments of `tail` to this frame.
    ///
    /// # Errors
    /// Returns `tail` if the frame would have more than 65,535 segments.
    #[inline]
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let (m, t) = (self.head(), tail.head());
        let Some(segs) = m.nb_segs().checked_add(t.nb_segs()) else { return Err(tail) };
        let Some(len) = m.pkt_len().checked_add(t.pkt_len()) else { return Err(tail) };
        self.last().set_next_ptr(tail.into_raw().as_ptr());
        m.set_nb_segs(segs);
        m.set_pkt_len(len);
        Ok(())
    }

    /// Merges the segments of the frame into the first without allocating, by copying the others
    /// after it. Returns false, and does nothing, if the first has too little room.
    pub fn linearize(&mut self) -> bool {
        if self.segments() == 1 {
            return true;
        }
        if !self.head().is_private() {
            return false;
        }
        // SAFETY: a valid chain that we own, whose first segment is ours alone; the callee checks
        // its tailroom and frees the other segments.
        unsafe { sys::heddle_mbuf_linearize(self.0.as_ptr()) == 0 }
    }

    /// Returns true if some segment's bytes lie in memory that others may write.
    #[inline]
    pub fn has_external(&self) -> bool {
        let mut next = Some(self.head());
        while let Some(m) = next {
            if m.is_external() {
                return true;
            }
            next = m.next();
        }
        false
    }

    /// Returns address and length of every segment's bytes, without making references to them, and
    /// whether they are external. For [`heddle_digest`].
    pub fn pieces(&self) -> impl Iterator<Item = (*const u8, usize, bool)> + '_ {
        let mut next = Some(self.head());
        std::iter::from_fn(move || {
            let m = next?;
            next = m.next();
            Some((m.data_ptr().cast_const(), usize::from(m.data_len()), m.is_external()))
        })
    }

    /// Returns the defect of the chain, if it has one (DPDK's own sanity check). For tests.
    pub fn check(&self) -> Option<String> {
        // SAFETY: a valid mbuf; the result is null or a static string.
        unsafe {
            let why = sys::heddle_mbuf_check(self.0.as_ptr());
            (!why.is_null()).then(|| std::ffi::CStr::from_ptr(why).to_string_lossy().into_owned())
        }
    }
}

/// Returns the bytes of a segment; none if it is external.
///
/// # Safety
/// The segment stays borrowed for `'a`.
#[inline]
unsafe fn segment_bytes<'a>(m: Segment) -> &'a [u8] {
    let len = if m.is_external() { 0 } else { usize::from(m.data_len()) };
    // SAFETY: data_off + data_len lie inside the buffer of a valid mbuf, which stays allocated as
    // long as it is borrowed, by the caller; direct bytes are initialised, and no thread writes
    // them meanwhile. The slice has no external bytes, which others may write.
    unsafe { std::slice::from_raw_parts(m.data_ptr(), len) }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a valid chain that we own and do not use again.
        unsafe { sys::heddle_mbuf_free(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("pkt_len", &self.pkt_len())
            .field("segments", &self.segments())
            .finish_non_exhaustive()
    }
}
