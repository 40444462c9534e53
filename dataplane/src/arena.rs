//! Registered memory.
//!
//! An [`Arena`] is a page-aligned, zeroed range of memory of our own mapping. Memory of DPDK's
//! heap was the other choice: with `--no-huge` that heap has the fixed size given at start and
//! cannot grow, and in neither mode can it be shared out beyond it; `mmap` and
//! `rte_extmem_register` work alike in both modes and at any size. Hugepages are used when free
//! (`MAP_HUGETLB`), else transparent ones are asked for. Pages are touched at once: the data path
//! takes no page fault.
//!
//! **Who may touch the bytes.** The owner, the application, the peer (through RDMA) and the NIC,
//! at any time. So there is never a Rust reference to them: access is by [`crate::raw`].
//!
//! **Lifetime.** External-buffer mbufs ([`crate::Mbuf::external`]) refer to the arena through
//! DPDK's shared-info counter and may be freed by any thread, by a driver, or in a ring's other
//! end, after the last [`Arena`] handle is gone. The memory is unmapped when handles *and* mbufs
//! are gone, by whoever is last.
//!
//! DPDK's counter has 16 bits and its update is a plain store while the count is 1, right only
//! when its one holder is the caller. So the arena holds two references of its own, which keeps
//! every update atomic until the arena lets go; and there are several counters, chosen by mempool,
//! so that workers do not fight for one cache line and there is room for [`MAX_REFERENCES`] mbufs
//! per mempool.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use heddle_base::Sum;
use heddle_dpdk_sys as sys;
use thiserror::Error;

use crate::eal::{self, Eal};
use crate::raw;

/// Mbufs that may point into an arena at one time, for each mempool they come from.
pub const MAX_REFERENCES: u16 = 60_000;

const STRIPES: usize = 16;
/// The arena's own references on each counter; see the module.
const OWN: u16 = 2;
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Why there is no arena, or no access to it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// No memory.
    #[error("no memory for {len} bytes of registered memory: {why}")]
    NoMemory {
        /// Bytes asked for.
        len: usize,
        /// The system's reason.
        why: String,
    },
    /// DPDK could not register it.
    #[error("{len} bytes of memory cannot be registered with DPDK: {why}")]
    Register {
        /// Bytes asked for.
        len: usize,
        /// DPDK's reason.
        why: String,
    },
    /// The range does not lie inside.
    #[error("bytes {off}..{off}+{count} are outside registered memory of {len} bytes")]
    OutOfRange {
        /// First byte.
        off: usize,
        /// Number of bytes.
        count: usize,
        /// Size of the arena.
        len: usize,
    },
}

#[repr(align(64))]
struct Stripe(UnsafeCell<sys::rte_mbuf_ext_shared_info>);

/// What mbufs point to: freed when all counters are back to zero.
struct Block {
    base: NonNull<u8>,
    /// Bytes the caller asked for.
    len: usize,
    /// Bytes mapped.
    mapped: usize,
    page: usize,
    /// Counters that are not yet at zero.
    live: AtomicUsize,
    stripes: [Stripe; STRIPES],
}

struct Handle(NonNull<Block>);

// SAFETY: the block is only read, except for its counters, which are atomic.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A range of registered memory; clones share it.
#[derive(Clone)]
pub struct Arena(Arc<Handle>);

impl Arena {
    /// Maps and registers `len` bytes (rounded up to whole pages), zeroed.
    ///
    /// # Errors
    /// When there is no memory, or DPDK has no room for one more range (about 120 of them).
    pub fn new(_eal: &Eal, len: usize) -> Result<Arena, ArenaError> {
        let no_memory = |why: String| ArenaError::NoMemory { len, why };
        if len == 0 || len > isize::MAX as usize - 2 * HUGE {
            return Err(no_memory("the size is out of range".into()));
        }
        let (base, mapped, page) = map(len).map_err(|e| no_memory(e.to_string()))?;
        eal::clear_log();
        // SAFETY: [base, base + mapped) is a mapping of our own, aligned to and a multiple of
        // `page`, in no list of DPDK's yet; no IOVA table is given (iova-mode=va).
        let rc = unsafe {
            sys::rte_extmem_register(base.as_ptr().cast(), mapped, ptr::null_mut(), 0, page)
        };
        if rc != 0 {
            let why = eal::error_text(eal::last_errno());
            // SAFETY: our mapping, which nobody knows of.
            unsafe { libc::munmap(base.as_ptr().cast(), mapped) };
            return Err(ArenaError::Register { len, why });
        }
        let block = Box::new(Block {
            base,
            len,
            mapped,
            page,
            live: AtomicUsize::new(STRIPES),
            stripes: std::array::from_fn(|_| Stripe(UnsafeCell::new(Default::default()))),
        });
        let block = NonNull::from(Box::leak(block));
        // SAFETY: the block was just leaked and nobody else knows it.
        for s in unsafe { &block.as_ref().stripes } {
            // SAFETY: as above; the callback matches DPDK's signature.
            unsafe {
                sys::heddle_shinfo_init(s.0.get(), Some(on_zero), block.as_ptr().cast(), OWN)
            };
        }
        Ok(Arena(Arc::new(Handle(block))))
    }

    /// Bytes asked for at construction.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "an arena is never empty")]
    pub fn len(&self) -> usize {
        self.block().len
    }

    /// Address of the first byte; page-aligned.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.block().base
    }

    /// Bytes mapped: `len` rounded up to whole pages.
    pub fn mapped_len(&self) -> usize {
        self.block().mapped
    }

    /// Size of its pages in bytes, as far as asked for explicitly.
    pub fn page_size(&self) -> usize {
        self.block().page
    }

    /// Address of `[off, off + len)`; `None` when it does not lie inside.
    #[inline]
    pub fn ptr(&self, off: usize, len: usize) -> Option<*mut u8> {
        let b = self.block();
        let end = off.checked_add(len)?;
        // SAFETY: off <= b.len, the size of one mapping.
        (end <= b.len).then(|| unsafe { b.base.as_ptr().add(off) })
    }

    /// Mbufs that point into the arena now. Exact only while no thread makes or frees any.
    pub fn references(&self) -> usize {
        let count = |s: &Stripe| {
            // SAFETY: the block lives as long as self.
            usize::from(unsafe { sys::heddle_shinfo_refs(s.0.get()) }.saturating_sub(OWN))
        };
        self.block().stripes.iter().map(count).sum()
    }

    /// Copies `src` to `off`.
    ///
    /// # Errors
    /// When the range does not lie inside; nothing is written then.
    pub fn place(&self, off: usize, src: &[u8]) -> Result<(), ArenaError> {
        let dst = self.checked(off, src.len())?;
        // SAFETY: `dst` is valid for `src.len()` bytes while self lives, and `src`, a reference,
        // never overlaps registered memory.
        unsafe { raw::place(dst, src) };
        Ok(())
    }

    /// Copies from `off` into `dst`.
    ///
    /// # Errors
    /// When the range does not lie inside.
    pub fn gather(&self, off: usize, dst: &mut [u8]) -> Result<(), ArenaError> {
        let src = self.checked(off, dst.len())?;
        // SAFETY: as in `place`.
        unsafe { raw::gather(src, dst) };
        Ok(())
    }

    /// CRC-32C (continued from `crc`) and Internet checksum of `[off, off + len)` in one pass.
    ///
    /// # Errors
    /// When the range does not lie inside.
    pub fn digest(&self, off: usize, len: usize, crc: u32) -> Result<(u32, Sum), ArenaError> {
        let src = self.checked(off, len)?;
        // SAFETY: `src` is valid for `len` bytes while self lives.
        Ok(unsafe { raw::digest(src, len, crc) })
    }

    /// Copies `[off, off + dst.len())` into `dst`, and gives the [`digest`](Arena::digest) of what
    /// was copied, in one pass.
    ///
    /// # Errors
    /// When the range does not lie inside; nothing is copied then.
    pub fn gather_digest(
        &self,
        off: usize,
        dst: &mut [u8],
        crc: u32,
    ) -> Result<(u32, Sum), ArenaError> {
        let src = self.checked(off, dst.len())?;
        // SAFETY: `src` is valid for `dst.len()` bytes while self lives, and no reference to the
        // arena's memory exists that `dst` could be.
        Ok(unsafe { raw::gather_digest(src, dst, crc) })
    }

    fn checked(&self, off: usize, count: usize) -> Result<*mut u8, ArenaError> {
        self.ptr(off, count).ok_or(ArenaError::OutOfRange { off, count, len: self.len() })
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: the arena's own references keep the block alive as long as a handle lives.
        unsafe { self.0.0.as_ref() }
    }

    /// Counts `n` references of mbufs of `pool` that are about to be made, in one atomic
    /// operation; what is not used is given back with [`Arena::return_references`]. `None` when
    /// there are too many.
    #[inline]
    pub(crate) fn take_references(&self, pool: usize, n: u16) -> Option<()> {
        let s = self.shinfo(pool)?;
        // SAFETY: a counter of the live block.
        unsafe { sys::heddle_shinfo_add(s, n) };
        Some(())
    }

    /// Gives back what [`Arena::take_references`] took.
    #[inline]
    pub(crate) fn return_references(&self, pool: usize, n: u16) {
        let s = self.block().stripes[pool % STRIPES].0.get();
        // SAFETY: a counter of the live block, which is not at zero afterwards: the arena's own
        // references stay.
        unsafe { sys::heddle_shinfo_sub(s, n) };
    }

    /// The counter of references, for a reference that has been taken.
    #[inline]
    pub(crate) fn counted(&self, pool: usize) -> *mut sys::rte_mbuf_ext_shared_info {
        self.block().stripes[pool % STRIPES].0.get()
    }

    /// A counter for one more mbuf; `None` when it is full.
    #[inline]
    pub(crate) fn shinfo(&self, pool: usize) -> Option<*mut sys::rte_mbuf_ext_shared_info> {
        let s = self.block().stripes[pool % STRIPES].0.get();
        // SAFETY: the counter is a 2-aligned u16 inside the live block, and every other access to
        // it is atomic too.
        let refs = unsafe { AtomicU16::from_ptr(&raw mut (*s).refcnt) }.load(Ordering::Relaxed);
        // Threads that pass here at once may go over by one each: far from 65,535.
        (refs < MAX_REFERENCES).then_some(s)
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("base", &self.base()).field("len", &self.len()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        for i in 0..STRIPES {
            // SAFETY: this counter still has our own references, so the block is alive; after the
            // last counter was released it is not touched again (the loop ends).
            unsafe {
                let s = (*self.0.as_ptr()).stripes[i].0.get();
                if sys::heddle_shinfo_sub(s, OWN) == 0 {
                    release(self.0);
                }
            }
        }
    }
}

/// DPDK calls it when the last mbuf of a counter is freed, on the thread that frees it, after the
/// arena has given up its own references.
///
/// # Safety
/// `block` is the one the counter was set up with, and still live: this call ends one of the
/// references that keep it.
unsafe extern "C" fn on_zero(_addr: *mut c_void, block: *mut c_void) {
    if let Some(block) = NonNull::new(block.cast::<Block>()) {
        // SAFETY: `block` is what was given at construction, alive while one of its counters is
        // not yet released, and this counter is released once: its count is at zero for good.
        unsafe { release(block) };
    }
}

/// One counter is at zero for good; the last one frees the memory.
///
/// # Safety
/// Called once per counter of a live block.
unsafe fn release(block: NonNull<Block>) {
    // SAFETY: alive, by the caller.
    if unsafe { block.as_ref() }.live.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    // SAFETY: all counters are at zero and no handle is left: this is the only pointer; it came
    // from a Box, and the mapping and its registration are exactly those of `new`.
    unsafe {
        let b = Box::from_raw(block.as_ptr());
        sys::rte_extmem_unregister(b.base.as_ptr().cast(), b.mapped);
        libc::munmap(b.base.as_ptr().cast(), b.mapped);
    }
}

/// Maps `len` bytes: base, bytes mapped, page size.
fn map(len: usize) -> std::io::Result<(NonNull<u8>, usize, usize)> {
    let huge = len.next_multiple_of(HUGE);
    // Small ranges would waste most of a hugepage.
    if len >= HUGE / 2
        && let Ok(p) = mmap(huge, libc::MAP_HUGETLB | libc::MAP_POPULATE)
    {
        return Ok((p, huge, HUGE));
    }
    // All pages are touched below: more than there is would end in the out-of-memory killer.
    if let Some(available) = available_memory().filter(|&a| huge as u64 > a) {
        let why = format!("{} MiB are available", available >> 20);
        return Err(std::io::Error::other(why));
    }
    if len < HUGE {
        let mapped = len.next_multiple_of(PAGE);
        return Ok((mmap(mapped, libc::MAP_POPULATE)?, mapped, PAGE));
    }
    // Aligned to a hugepage, for transparent ones: map more and cut both ends off.
    let raw = mmap(huge + HUGE, 0)?;
    let skip = raw.as_ptr().align_offset(HUGE);
    // SAFETY: all ranges lie inside the mapping just made, which nobody else knows; what is
    // unmapped is not used again; madvise is a hint.
    unsafe {
        let base = raw.as_ptr().add(skip);
        if skip > 0 {
            libc::munmap(raw.as_ptr().cast(), skip);
        }
        if skip < HUGE {
            libc::munmap(base.add(huge).cast(), HUGE - skip);
        }
        libc::madvise(base.cast(), huge, libc::MADV_HUGEPAGE);
        // Linux 5.14; older kernels fault the pages in at first use.
        libc::madvise(base.cast(), huge, libc::MADV_POPULATE_WRITE);
        Ok((NonNull::new_unchecked(base), huge, PAGE))
    }
}

/// Bytes the system can give without swapping, if it says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn mmap(len: usize, flags: i32) -> std::io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in
    // use.
    let p = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    match NonNull::new(p.cast::<u8>()) {
        Some(p) if p.as_ptr().cast() != libc::MAP_FAILED => Ok(p),
        _ => Err(std::io::Error::last_os_error()),
    }
}
