//! Packet buffers, owned.
//!
//! A frame is a chain of segments. Each segment is one of:
//! * *direct*: its bytes lie in the pool, behind the mbuf, and belong to it alone;
//! * *external*: its bytes lie in an [`Arena`]. Nothing is copied, and the owner of the arena, the
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

use heddle_base::{Chunks, Sum};
use heddle_dpdk_sys as sys;
use thiserror::Error;

use crate::arena::Arena;
use crate::mempool::{HEADROOM, Mempool};

/// One frame: a chain of mbufs, freed as a whole when dropped.
///
/// The size of a pointer; `Option<Mbuf>` too.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf chain has one owner; its segments and pool may be used and freed by any thread.
unsafe impl Send for Mbuf {}

/// What the port found when it checked a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// The port did not check.
    Unknown,
    /// It is right.
    Good,
    /// It is wrong.
    Bad,
    /// The field is not right but the data is known to be whole.
    NotNeeded,
}

/// What the port shall fill in when it sends a frame.
///
/// With `tcp_checksum`, the checksum field must hold the sum of the pseudo-header, not
/// complemented; with `ip_checksum`, the field must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Bytes of the Ethernet header.
    pub l2_len: u8,
    /// Bytes of the IP header.
    pub l3_len: u16,
    /// Bytes of the TCP header.
    pub l4_len: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Fill in the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Fill in the TCP checksum.
    pub tcp_checksum: bool,
}

/// Why there is no external-buffer mbuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExternalError {
    /// The pool has no mbuf left.
    #[error("no mbuf left")]
    PoolEmpty,
    /// The range is not inside the arena, or empty.
    #[error("range outside the registered memory")]
    OutOfRange,
    /// Too many mbufs point into the arena already; copy instead.
    #[error("too many references to the registered memory")]
    TooManyReferences,
}

/// Where the cache lines of an mbuf and those of the headers in its buffer are, from its address.
const LINES: [usize; 4] = {
    let data = size_of::<sys::rte_mbuf>() + HEADROOM as usize;
    [0, 64, data, data + 64]
};

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

    /// A segment whose bytes are `[off, off + len)` of `arena`; only the small mbuf comes from
    /// `pool`. The arena's memory stays mapped until the last such mbuf is freed, by whomever.
    ///
    /// # Errors
    /// See [`ExternalError`].
    #[inline]
    pub fn external(
        pool: &Mempool,
        arena: &Arena,
        off: usize,
        len: u16,
    ) -> Result<Mbuf, ExternalError> {
        let addr = match arena.ptr(off, usize::from(len)) {
            Some(p) if len > 0 => p,
            _ => return Err(ExternalError::OutOfRange),
        };
        let shinfo = arena.shinfo(pool.id()).ok_or(ExternalError::TooManyReferences)?;
        // SAFETY: `pool` is a valid packet pool; `addr` is inside the arena for `len` bytes, its
        // IOVA is its address (the EAL runs with --iova-mode=va); `shinfo` is one of the arena's,
        // whose memory lives until its count is back to zero, and the callee counts one up.
        let m = unsafe {
            sys::heddle_mbuf_external(pool.as_ptr(), addr.cast(), addr as u64, len, shinfo)
        };
        match NonNull::new(m) {
            Some(m) => Ok(Mbuf(m)),
            None => {
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

    /// What the port says of the IPv4 header checksum.
    #[inline]
    pub fn rx_ip_checksum(&self) -> RxChecksum {
        match self.head().ol_flags & sys::HEDDLE_MBUF_F_RX_IP_CKSUM_MASK {
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_GOOD => RxChecksum::Good,
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_BAD => RxChecksum::Bad,
            sys::HEDDLE_MBUF_F_RX_IP_CKSUM_NONE => RxChecksum::NotNeeded,
            _ => RxChecksum::Unknown,
        }
    }

    /// What the port says of the TCP (or UDP) checksum.
    #[inline]
    pub fn rx_l4_checksum(&self) -> RxChecksum {
        match self.head().ol_flags & sys::HEDDLE_MBUF_F_RX_L4_CKSUM_MASK {
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_GOOD => RxChecksum::Good,
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_BAD => RxChecksum::Bad,
            sys::HEDDLE_MBUF_F_RX_L4_CKSUM_NONE => RxChecksum::NotNeeded,
            _ => RxChecksum::Unknown,
        }
    }

    /// The port's RSS hash, when it gave one.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        let m = self.head();
        if m.ol_flags & sys::HEDDLE_MBUF_F_RX_RSS_HASH == 0 {
            return None;
        }
        // SAFETY: every member of the union is plain integers, valid for any bits.
        Some(unsafe { m.__bindgen_anon_2.hash.rss })
    }

    /// Says what the port shall fill in; replaces all flags a received frame came with.
    #[inline]
    pub fn set_tx_offload(&mut self, o: TxOffload) {
        let m = self.head_mut();
        let mut flags = m.ol_flags & (sys::HEDDLE_MBUF_F_EXTERNAL | sys::HEDDLE_MBUF_F_INDIRECT);
        if o.ip_checksum || o.tcp_checksum {
            flags |= if o.ipv6 { sys::HEDDLE_MBUF_F_TX_IPV6 } else { sys::HEDDLE_MBUF_F_TX_IPV4 };
        }
        if o.ip_checksum && !o.ipv6 {
            flags |= sys::HEDDLE_MBUF_F_TX_IP_CKSUM;
        }
        if o.tcp_checksum {
            flags |= sys::HEDDLE_MBUF_F_TX_TCP_CKSUM;
        }
        m.ol_flags = flags;
        // The bit fields l2_len:7, l3_len:9, l4_len:8; the rest (TSO, tunnels) is zero.
        m.__bindgen_anon_3.tx_offload = u64::from(o.l2_len & 0x7f)
            | u64::from(o.l3_len & 0x1ff) << 7
            | u64::from(o.l4_len) << 16;
    }

    /// Asks the cache for what describes the frame, and for its headers where they lie when nothing
    /// has moved them. [`prefetch`](Mbuf::prefetch) reads the former: with many frames it does not
    /// wait for each when this was called for all of them before.
    #[inline]
    pub fn prefetch_head(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let m = self.0.as_ptr().cast::<i8>();
            for line in LINES {
                _mm_prefetch::<_MM_HINT_T0>(m.wrapping_add(line));
            }
        }
    }

    /// Asks the cache for the payload's first octets and for the third segment, where the CRC is;
    /// reads what describes the second.
    #[inline]
    pub fn prefetch_tail(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `next` of a valid chain is null or a valid mbuf that self owns; a prefetch has no
        // effect on memory and takes any address; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            if let Some(second) = self.head().next.as_ref() {
                _mm_prefetch::<_MM_HINT_T0>(segment_ptr(second).cast());
                let third = second.next.cast_const().cast::<i8>();
                for line in [LINES[0], LINES[1], LINES[2]] {
                    _mm_prefetch::<_MM_HINT_T0>(third.wrapping_add(line));
                }
            }
        }
    }

    /// Asks the cache for the headers of the frame (those of TCP and of DDP end in the second
    /// line) and for what describes its second segment.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let data = segment_ptr(self.head());
            _mm_prefetch::<_MM_HINT_T0>(data.cast());
            _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(64).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.head().next.cast_const().cast());
        }
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
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let m = self.0.0.as_ptr().cast::<i8>();
            for line in LINES {
                _mm_prefetch::<_MM_HINT_ET0>(m.wrapping_add(line));
            }
        }
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
        let mut m = self.0;
        let f = m.head_mut();
        (f.data_off, f.data_len, f.pkt_len, f.ol_flags) = (HEADROOM, 0, 0, 0);
        m
    }

    /// A segment to be chained that refers to `[off, off + len)` of `arena`, as
    /// [`Mbuf::external`], for one of the references the caller has taken
    /// ([`Arena::take_references`]); `pool` is the mbuf's. On an error the mbuf is freed and the
    /// reference is still the caller's.
    ///
    /// # Errors
    /// [`ExternalError::OutOfRange`].
    #[inline]
    pub(crate) fn into_external(
        self,
        pool: &Mempool,
        arena: &Arena,
        off: usize,
        len: u16,
    ) -> Result<Mbuf, ExternalError> {
        let addr = match arena.ptr(off, usize::from(len)) {
            Some(p) if len > 0 => p,
            _ => return Err(ExternalError::OutOfRange),
        };
        let shinfo = arena.counted(pool.id());
        // SAFETY: a direct mbuf, ours alone; the rest as in `Mbuf::external`.
        unsafe {
            sys::heddle_mbuf_attach(self.0.0.as_ptr(), addr.cast(), addr as u64, len, shinfo);
        }
        Ok(self.0)
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

impl Chunks for Mbuf {
    #[inline]
    fn len(&self) -> usize {
        self.pkt_len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        let first = self.data();
        if off < first.len() { &first[off..] } else { later_chunk(self.head(), off - first.len()) }
    }

    /// Walks the chain once.
    #[inline]
    fn for_each_chunk(&self, mut off: usize, mut len: usize, mut f: impl FnMut(&[u8])) {
        let mut m = self.head();
        while len > 0 {
            let bytes = segment_bytes(m);
            if off < bytes.len() {
                let n = len.min(bytes.len() - off);
                f(&bytes[off..off + n]);
                (off, len) = (0, len - n);
            } else {
                off -= bytes.len();
            }
            // SAFETY: null or a valid mbuf of the same chain, borrowed as long as self is.
            let Some(next) = (unsafe { m.next.as_ref() }) else { break };
            m = next;
        }
    }
}

/// The bytes `off` behind the end of `m`, up to the end of the segment they are in.
fn later_chunk(mut m: &sys::rte_mbuf, mut off: usize) -> &[u8] {
    // SAFETY: null or a valid mbuf of the same chain, borrowed as long as `m` is.
    while let Some(next) = unsafe { m.next.as_ref() } {
        m = next;
        let bytes = segment_bytes(m);
        if off < bytes.len() {
            return &bytes[off..];
        }
        off -= bytes.len();
    }
    &[]
}

impl heddle_tcp::RxFrame for Mbuf {
    #[inline]
    fn checksum(&self) -> heddle_tcp::RxChecksum {
        use heddle_tcp::RxChecksum as Told;
        match (self.rx_ip_checksum(), self.rx_l4_checksum()) {
            (RxChecksum::Bad, _) | (_, RxChecksum::Bad) => Told::Bad,
            (RxChecksum::Good, RxChecksum::Good) => Told::Good,
            _ => Told::Unknown,
        }
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        // The first segment has what is asked for first: the TCP header.
        let first = self.data().get(off..)?;
        let n = first.len().min(len);
        let mut sum = crate::raw::sum(&first[..n]);
        let (mut m, mut done) = (self.head(), n);
        while done < len {
            // SAFETY: null or a valid mbuf of the same chain, borrowed as long as self is.
            m = unsafe { m.next.as_ref() }?;
            let bytes = segment_bytes(m);
            let n = bytes.len().min(len - done);
            sum = sum.add_at(done, crate::raw::sum(&bytes[..n]));
            done += n;
        }
        Some(sum)
    }
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
