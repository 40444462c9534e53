//! Registered memory that frames refer to.
//!
//! An external-buffer mbuf points into a region instead of holding the bytes itself. Any thread, a
//! driver, or the other end of a ring may free such an mbuf, long after the peer has acknowledged
//! the FPDU that it carried, and even after the RNIC no longer exists. DPDK counts such mbufs in a
//! shared-info block. This module has one block for each slot of the STag table, so that the owner
//! of a memory region can ask whether a frame still refers to the region
//! ([`ExternalMemory::references`]), and each block keeps the mapping that its frames point into.
//!
//! DPDK's counter has 16 bits, and DPDK updates it with a plain store while the count is 1, which
//! is right only if the caller is the only holder. So each block holds two references of its own,
//! which keeps every update atomic until the handles release the block.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use heddle_dpdk_sys as sys;
use heddle_hub::memory::RegionHook;
use heddle_shm::Region;

use crate::eal;
use crate::port::DmaPorts;

/// Mbufs that may refer to one memory region at a time, for each worker: less than the counter's 16
/// bits hold, with room for the references that one more `take` adds.
pub const MAX_REFERENCES: u16 = 60_000;

/// A block's own references; see the module's documentation.
const OWN: u16 = 2;

/// The mbufs of one memory region.
#[repr(align(64))]
struct Counter {
    shinfo: UnsafeCell<sys::rte_mbuf_ext_shared_info>,
    /// `region` is set.
    kept: AtomicBool,
    /// The region that the mbufs point into.
    region: Mutex<Option<Arc<Region>>>,
}

impl Counter {
    fn refs(&self) -> u16 {
        // SAFETY: the counter is a 2-aligned u16 inside self, and every other access to it is
        // atomic.
        unsafe { AtomicU16::from_ptr(&raw mut (*self.shinfo.get()).refcnt) }.load(Ordering::Acquire)
    }

    fn keep(&self, region: Option<Arc<Region>>) {
        self.kept.store(region.is_some(), Ordering::Relaxed);
        *self.region.lock().unwrap_or_else(PoisonError::into_inner) = region;
    }
}

/// The memory that mbufs point to; freed when all counters are back to zero.
struct Block {
    /// Counters that are not yet at zero.
    live: AtomicUsize,
    counters: Box<[Counter]>,
}

struct Handle(NonNull<Block>);

// SAFETY: while the block is shared, threads change only its atomics and a mutex.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Counters of the mbufs of one worker that refer to registered memory, by slot of the STag table;
/// clones share them.
#[derive(Clone)]
pub struct ExternalMemory(Arc<Handle>);

impl std::fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalMemory").field("slots", &self.block().counters.len()).finish()
    }
}

impl ExternalMemory {
    /// Returns counters for `slots` memory regions.
    pub fn new(slots: usize) -> ExternalMemory {
        let slots = slots.max(1);
        let counters = (0..slots)
            .map(|_| Counter {
                shinfo: UnsafeCell::default(),
                kept: AtomicBool::new(false),
                region: Mutex::default(),
            })
            .collect();
        let block = NonNull::from(Box::leak(Box::new(Block { live: slots.into(), counters })));
        // SAFETY: the block was just leaked, and no other thread has a pointer to it.
        for c in unsafe { &block.as_ref().counters } {
            // SAFETY: as above; the callback matches DPDK's signature, and each counter knows its
            // block by its own address and the block's.
            unsafe {
                sys::heddle_shinfo_init(
                    c.shinfo.get(),
                    Some(on_zero),
                    block.as_ptr().cast::<c_void>(),
                    OWN,
                );
            }
        }
        ExternalMemory(Arc::new(Handle(block)))
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: the counters' own references keep the block alive as long as a handle
        // lives.
        unsafe { self.0.0.as_ref() }
    }

    /// Returns the number of mbufs that refer to the memory region in `slot` now; exact once no
    /// worker makes any more.
    pub fn references(&self, slot: u32) -> usize {
        let c = self.block().counters.get(slot as usize);
        c.map_or(0, |c| usize::from(c.refs().saturating_sub(OWN)))
    }

    /// Returns true if an mbuf still refers to the memory region in `slot`, whose STag is no longer
    /// valid. If none does, this function drops the region's mapping.
    pub fn is_referred(&self, slot: u32) -> bool {
        let Some(c) = self.block().counters.get(slot as usize) else { return false };
        if c.refs() > OWN {
            return true;
        }
        if c.kept.load(Ordering::Relaxed) {
            c.keep(None);
        }
        false
    }

    /// Counts `n` references to `slot` by mbufs that the caller is about to make, in one atomic
    /// operation; the caller gives unused references back with [`give`](ExternalMemory::give). The
    /// block keeps the mapping, which `region` returns, until all references are back. Returns
    /// `None` if there are too many references, or no mapping.
    #[inline]
    pub(crate) fn take(
        &self,
        slot: u32,
        n: u16,
        region: impl FnOnce() -> Option<Arc<Region>>,
    ) -> Option<()> {
        let c = self.block().counters.get(slot as usize)?;
        if c.refs() >= MAX_REFERENCES {
            return None;
        }
        if !c.kept.load(Ordering::Relaxed) {
            c.keep(Some(region()?));
        }
        // SAFETY: a counter of the live block.
        unsafe { sys::heddle_shinfo_add(c.shinfo.get(), n) };
        Some(())
    }

    /// Gives back references that [`take`](ExternalMemory::take) took.
    #[inline]
    pub(crate) fn give(&self, slot: u32, n: u16) {
        if let Some(c) = self.block().counters.get(slot as usize) {
            // SAFETY: a counter of the live block, which is not at zero afterwards: its own
            // references stay.
            unsafe { sys::heddle_shinfo_sub(c.shinfo.get(), n) };
        }
    }

    /// Returns the counter for a reference that the caller has taken.
    #[inline]
    pub(crate) fn counted(&self, slot: u32) -> Option<*mut sys::rte_mbuf_ext_shared_info> {
        Some(self.block().counters.get(slot as usize)?.shinfo.get())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the counters still have their own references, so the block is alive.
        let n = unsafe { self.0.as_ref() }.counters.len();
        for i in 0..n {
            // SAFETY: this counter still has its own references, so the block is alive; after the
            // last counter was released, the block is not touched again (the loop ends).
            unsafe {
                let c = &raw const (&(*self.0.as_ptr()).counters)[i];
                if sys::heddle_shinfo_sub((*c).shinfo.get(), OWN) == 0 {
                    release(self.0);
                }
            }
        }
    }
}

/// DPDK calls this function when the last mbuf of a counter is freed after the handles have been
/// dropped, on the thread that frees the mbuf.
///
/// # Safety
/// `block` is the block with which the counter was set up, and still live: this call ends one of
/// the references that keep the block alive.
unsafe extern "C" fn on_zero(_addr: *mut c_void, block: *mut c_void) {
    if let Some(block) = NonNull::new(block.cast::<Block>()) {
        // SAFETY: `block` is what was given at construction, alive while one of its counters is not
        // yet released, and this counter is released once: its count is at zero for good.
        unsafe { release(block) };
    }
}

/// Counts one counter that stays at zero; the last one frees the block, and with it every mapping
/// that the block keeps.
///
/// # Safety
/// The caller calls this once per counter of a live block.
unsafe fn release(block: NonNull<Block>) {
    // SAFETY: the caller guarantees that the block is alive.
    if unsafe { block.as_ref() }.live.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    // SAFETY: all counters are at zero and no handle is left: this is the only pointer, and it came
    // from a Box.
    drop(unsafe { Box::from_raw(block.as_ptr()) });
}

/// Makes regions known to DPDK and reachable for the devices of an RNIC, and undoes both.
#[derive(Debug)]
pub struct DpdkRegions(DmaPorts);

impl DpdkRegions {
    /// Returns a hook for the devices behind `ports`.
    pub fn new(ports: DmaPorts) -> DpdkRegions {
        DpdkRegions(ports)
    }
}

impl RegionHook for DpdkRegions {
    fn added(&self, region: &Arc<Region>) -> bool {
        if !eal::by_process_addresses() {
            // With physical addresses, each page has an address of its own, and a piece of payload
            // may cross pages.
            return false;
        }
        let base = region.base().as_ptr();
        let Some(len) = region.mapped_len() else {
            // Memory that an application provides may begin and end anywhere in a page.
            return false;
        };
        if !self.0.read_regions() {
            // The frames of such a device have payload by copy. DPDK must not even know the region:
            // a front end of vhost-user that starts later would have to name a file of it.
            return false;
        }
        if region.is_sparse() {
            // DPDK would write a record for each page that the sparse region could have.
            return false;
        }
        eal::clear_log();
        // SAFETY: [base, base + len) is a mapping of whole pages, in no list of DPDK's yet; no IOVA
        // table is given (iova-mode=va).
        let rc = unsafe {
            sys::rte_extmem_register(base.cast(), len, std::ptr::null_mut(), 0, region.page_size())
        };
        if rc != 0 {
            // DPDK has room for about 120 regions. The RNIC copies payload of others.
            return false;
        }
        if self.0.map(region).is_err() {
            // SAFETY: registered just now.
            unsafe { sys::rte_extmem_unregister(base.cast(), len) };
            return false;
        }
        true
    }

    fn removed(&self, region: &Arc<Region>) {
        self.0.unmap(region);
        if let Some(len) = region.mapped_len() {
            // SAFETY: a range that is registered or not; DPDK reports which, and neither does harm.
            unsafe { sys::rte_extmem_unregister(region.base().as_ptr().cast(), len) };
        }
    }
}
