//! Packet buffers, owned.
//!
//! A frame is a chain of segments. Each segment is one of:
//! * *direct*: its bytes lie in the pool, behind the mbuf, and belong to it alone;
//! * *external*: its bytes lie in a region of registered memory. Nothing is copied, and the
//!   application and a peer may write them at any time.
//!
//! **Reading external bytes.** On a NIC every received segment is direct. Only `net_ring` hands
//! the sender's mbufs to the receiver as they are, so there a received payload may alias
//! registered memory. Our own senders put every header in a direct segment and only payload in
//! external ones, so header fields, from which decisions and bounds follow, are read from memory
//! nobody else writes. Payload bytes are only copied and digested, and each byte once
//! ([`crate::raw`]): a concurrent write can make the CRC fail, as damage on a real wire would,
//! and nothing else. [`Mbuf::has_external`] tells such frames apart, and
//! [`crate::TxQueue::set_linearize`] makes the sending side copy, as a NIC does, where that is
//! not enough.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use heddle_dpdk_sys as sys;
use heddle_verbs::Region;
use thiserror::Error;

use crate::extmem::ExternalMemory;
use crate::mempool::Mempool;

mod build;
mod offload;
mod received;

pub(crate) use build::{FrameBuilder, RawMbuf};
pub use offload::{RxChecksum, TxOffload};

/// One frame: a chain of mbufs, freed as a whole when dropped.
///
/// The size of a pointer; `Option<Mbuf>` too.
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
    /// Too many mbufs refer to the memory region already; copy instead.
    #[error("too many references to the registered memory")]
    TooManyReferences,
}

impl Mbuf {
    /// Takes ownership of a chain.
    ///
    /// # Safety
    /// `m` is the head of a valid mbuf chain that nobody else owns.
    #[inline]
    pub unsafe fn from_raw(m: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(m)
    }

    /// Gives ownership away; the caller must free the chain.
    #[inline]
    pub fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    /// A segment whose bytes are `[off, off + len)` of `region`, counted as memory of the region in
    /// `slot` of the STag table; only the small mbuf comes from `pool`. The region stays mapped until
    /// the last such mbuf is freed, by whomever.
    ///
    /// # Errors
    /// See [`ExternalError`].
    pub fn external(
        pool: &Mempool,
        memory: &ExternalMemory,
        slot: u32,
        region: &Arc<Region>,
        (off, len): (usize, u16),
    ) -> Result<Mbuf, ExternalError> {
        let addr = match region.ptr(off, usize::from(len)) {
            Some(p) if len > 0 => p,
            _ => return Err(ExternalError::OutOfRange),
        };
        let taken = memory.take(slot, 1, || Some(region.clone()));
        let counted = taken.and_then(|()| memory.counted(slot));
        let shinfo = counted.ok_or(ExternalError::TooManyReferences)?;
        // SAFETY: `pool` is a valid packet pool; `addr` is inside the region for `len` bytes, its IOVA
        // is its address (the EAL runs with --iova-mode=va); `shinfo` is the counter of the reference
        // just taken, which keeps the region and itself until its count is back.
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

    /// A copy of the whole frame in segments of `pool`; `None` when the pool is empty.
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

    #[inline]
    fn head(&self) -> &sys::rte_mbuf {
        // SAFETY: a valid mbuf, owned by self; shared counters in it are not read through this
        // reference while others could write them (a chain has one owner).
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut sys::rte_mbuf {
        // SAFETY: as for `head`, and self is borrowed mutably.
        unsafe { self.0.as_mut() }
    }

    #[inline]
    fn last_mut(&mut self) -> &mut sys::rte_mbuf {
        let mut p = self.0;
        // SAFETY: every `next` of a valid chain is null or a valid mbuf that self owns.
        unsafe {
            while let Some(next) = NonNull::new(p.as_ref().next) {
                p = next;
            }
            p.as_mut()
        }
    }

    /// Bytes of the whole frame.
    #[inline]
    pub fn pkt_len(&self) -> usize {
        self.head().pkt_len as usize
    }

    /// Bytes of the first segment.
    #[inline]
    pub fn data_len(&self) -> usize {
        usize::from(self.head().data_len)
    }

    /// Number of segments.
    #[inline]
    pub fn segments(&self) -> u16 {
        self.head().nb_segs
    }

    /// The bytes of the first segment. See the module about external segments.
    #[inline]
    pub fn data(&self) -> &[u8] {
        segment_bytes(self.head())
    }

    /// The bytes of the first segment, to change; `None` when others may see them.
    #[inline]
    pub fn data_mut(&mut self) -> Option<&mut [u8]> {
        let m = self.head_mut();
        if !is_private(m) {
            return None;
        }
        // SAFETY: data_off + data_len lie inside the buffer of a valid mbuf; the buffer is direct
        // with one reference, so self is its only user; the lifetime is that of the borrow.
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                m.buf_addr.cast::<u8>().add(usize::from(m.data_off)),
                usize::from(m.data_len),
            )
        })
    }

    /// Free bytes before the data of the first segment.
    #[inline]
    pub fn headroom(&self) -> usize {
        if is_private(self.head()) { usize::from(self.head().data_off) } else { 0 }
    }

    /// Free bytes behind the data of the last segment.
    #[inline]
    pub fn tailroom(&mut self) -> usize {
        let m = self.last_mut();
        if is_private(m) { usize::from(m.buf_len - m.data_off - m.data_len) } else { 0 }
    }

    /// Makes the frame `n` bytes longer in its last segment and returns these bytes, whose content
    /// is arbitrary; `None` when there is no room or the segment is not ours alone.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        self.head_mut().pkt_len += u32::from(n16);
        let m = self.last_mut();
        let at = usize::from(m.data_off) + usize::from(m.data_len);
        m.data_len += n16;
        // SAFETY: tailroom() says that `n` bytes at `at` are inside a direct buffer with one
        // reference, which is initialised memory (mapped zeroed by the EAL).
        Some(unsafe { std::slice::from_raw_parts_mut(m.buf_addr.cast::<u8>().add(at), n) })
    }

    /// Makes the frame `n` bytes longer in front and returns these bytes; `None` without room.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        let n16 = u16::try_from(n).ok()?;
        let m = self.head_mut();
        m.data_off -= n16;
        m.data_len += n16;
        m.pkt_len += u32::from(n16);
        // SAFETY: headroom() says that these bytes are inside a direct buffer with one reference.
        Some(unsafe {
            std::slice::from_raw_parts_mut(m.buf_addr.cast::<u8>().add(usize::from(m.data_off)), n)
        })
    }

    /// Drops `n` bytes from the front of the first segment; false (and nothing done) when it has
    /// fewer.
    #[inline]
    pub fn advance(&mut self, n: usize) -> bool {
        let m = self.head_mut();
        match u16::try_from(n) {
            Ok(n) if n <= m.data_len => {
                m.data_off += n;
                m.data_len -= n;
                m.pkt_len -= u32::from(n);
                true
            }
            _ => false,
        }
    }

    /// Puts the segments of `tail` behind this frame's.
    ///
    /// # Errors
    /// Gives `tail` back when the frame would have more than 65,535 segments.
    #[inline]
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let Some(segs) = self.head().nb_segs.checked_add(tail.head().nb_segs) else {
            return Err(tail);
        };
        let Some(len) = self.head().pkt_len.checked_add(tail.head().pkt_len) else {
            return Err(tail);
        };
        let tail = tail.into_raw().as_ptr();
        self.last_mut().next = tail;
        let m = self.head_mut();
        m.nb_segs = segs;
        m.pkt_len = len;
        Ok(())
    }

    /// Makes one segment of the frame without allocating: the others are copied behind the first.
    /// False (and nothing done) when the first has too little room.
    pub fn linearize(&mut self) -> bool {
        if self.segments() == 1 {
            return true;
        }
        if !is_private(self.head()) {
            return false;
        }
        // SAFETY: a valid chain that we own, whose first segment is ours alone; the callee checks
        // its tailroom and frees the other segments.
        unsafe { sys::heddle_mbuf_linearize(self.0.as_ptr()) == 0 }
    }

    /// Whether a segment's bytes lie in memory that others may write.
    pub fn has_external(&self) -> bool {
        self.pieces().any(|(_, _, external)| external)
    }

    /// Address and length of every segment's bytes, without making references to them, and whether
    /// they are external. For [`crate::raw`].
    pub fn pieces(&self) -> impl Iterator<Item = (*const u8, usize, bool)> + '_ {
        let mut next = self.0.as_ptr().cast_const();
        std::iter::from_fn(move || {
            // SAFETY: null or a valid mbuf of the chain, which self keeps borrowed.
            let m = unsafe { next.as_ref() }?;
            next = m.next;
            let external = m.ol_flags & sys::HEDDLE_MBUF_F_EXTERNAL != 0;
            Some((segment_ptr(m), usize::from(m.data_len), external))
        })
    }

    /// What is wrong with the chain, if anything (DPDK's own sanity check). For tests.
    pub fn check(&self) -> Option<String> {
        // SAFETY: a valid mbuf; the result is null or a static string.
        unsafe {
            let why = sys::heddle_mbuf_check(self.0.as_ptr());
            (!why.is_null()).then(|| std::ffi::CStr::from_ptr(why).to_string_lossy().into_owned())
        }
    }
}

/// Whether the buffer is in the mbuf itself and has no other user.
#[inline]
fn is_private(m: &sys::rte_mbuf) -> bool {
    m.ol_flags & (sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT) == 0 && m.refcnt == 1
}

#[inline]
fn segment_ptr(m: &sys::rte_mbuf) -> *const u8 {
    m.buf_addr.cast::<u8>().wrapping_add(usize::from(m.data_off))
}

#[inline]
fn segment_bytes(m: &sys::rte_mbuf) -> &[u8] {
    // SAFETY: data_off + data_len lie inside the buffer of a valid mbuf, which stays allocated as
    // long as the mbuf is borrowed; direct bytes are initialised and not written meanwhile.
    // External bytes may be written by others: see the module's section on them.
    unsafe { std::slice::from_raw_parts(segment_ptr(m), usize::from(m.data_len)) }
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
