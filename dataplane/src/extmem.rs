//! Registered memory that frames refer to.
//!
//! An external-buffer mbuf points into a region instead of having the bytes itself. It may be freed by
//! any thread, by a driver, or at a ring's other end, long after the FPDU it carried is acknowledged
//! and even after the RNIC is gone. DPDK counts such mbufs in a shared-info block; here there is one
//! for each slot of the STag table, so that a memory region can be asked whether a frame still refers
//! to it ([`ExternalMemory::references`]), and each keeps the mapping its frames point into.
//!
//! DPDK's counter has 16 bits, and its update is a plain store while the count is 1, right only when
//! its one holder is the caller. So each block counts two references of its own, which keeps every
//! update atomic until the block is let go.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use heddle_dpdk_sys as sys;
use heddle_verbs::Region;
use heddle_verbs::memory::RegionHook;

use crate::eal;
use crate::port::DmaPorts;

/// Mbufs that may refer to one memory region at a time, for each worker.
pub const MAX_REFERENCES: u16 = 60_000;

/// A block's own references; see the module.
const OWN: u16 = 2;

/// The mbufs of one memory region.
#[repr(align(64))]
struct Counter {
    shinfo: UnsafeCell<sys::rte_mbuf_ext_shared_info>,
    /// `region` is there.
    kept: AtomicBool,
    /// What the mbufs point into.
    region: Mutex<Option<Arc<Region>>>,
}

impl Counter {
    fn refs(&self) -> u16 {
        // SAFETY: the counter is a 2-aligned u16 inside self, and every other access to it is atomic.
        unsafe { AtomicU16::from_ptr(&raw mut (*self.shinfo.get()).refcnt) }.load(Ordering::Acquire)
    }

    fn keep(&self, region: Option<Arc<Region>>) {
        self.kept.store(region.is_some(), Ordering::Relaxed);
        *self.region.lock().unwrap_or_else(PoisonError::into_inner) = region;
    }
}

/// What mbufs point to: freed when all counters are back to zero.
struct Block {
    /// Counters that are not yet at zero.
    live: AtomicUsize,
    counters: Box<[Counter]>,
}

struct Handle(NonNull<Block>);

// SAFETY: of the block, only atomics and a mutex are changed while it is shared.
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
    /// Counters for `slots` memory regions.
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
        // SAFETY: the block was just leaked and nobody else knows it.
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
        // SAFETY: the blocks' own references keep it alive as long as a handle lives.
        unsafe { self.0.0.as_ref() }
    }

    /// Mbufs that refer to the memory region in `slot` now; exact once no worker makes any more.
    pub fn references(&self, slot: u32) -> usize {
        let c = self.block().counters.get(slot as usize);
        c.map_or(0, |c| usize::from(c.refs().saturating_sub(OWN)))
    }

    /// Whether an mbuf still refers to the memory region in `slot`, whose STag is gone. If not, its
    /// mapping is let go.
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

    /// Counts `n` references of mbufs to `slot` that are about to be made, in one atomic operation;
    /// what is not used is given back with [`give`](ExternalMemory::give). The mapping is kept until
    /// they are gone; `region` says which. `None` when there are too many, or no mapping.
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

    /// Gives back what [`take`](ExternalMemory::take) took.
    #[inline]
    pub(crate) fn give(&self, slot: u32, n: u16) {
        if let Some(c) = self.block().counters.get(slot as usize) {
            // SAFETY: a counter of the live block, which is not at zero afterwards: its own
            // references stay.
            unsafe { sys::heddle_shinfo_sub(c.shinfo.get(), n) };
        }
    }

    /// The counter for a reference that has been taken.
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
            // SAFETY: this counter still has its own references, so the block is alive; after the last
            // counter was released it is not touched again (the loop ends).
            unsafe {
                let c = &raw const (&(*self.0.as_ptr()).counters)[i];
                if sys::heddle_shinfo_sub((*c).shinfo.get(), OWN) == 0 {
                    release(self.0);
                }
            }
        }
    }
}

/// DPDK calls it when the last mbuf of a counter is freed, on the thread that frees it, after the
/// handles are gone.
///
/// # Safety
/// `block` is the one the counter was set up with, and still live: this call ends one of the
/// references that keep it.
unsafe extern "C" fn on_zero(_addr: *mut c_void, block: *mut c_void) {
    if let Some(block) = NonNull::new(block.cast::<Block>()) {
        // SAFETY: `block` is what was given at construction, alive while one of its counters is not
        // yet released, and this counter is released once: its count is at zero for good.
        unsafe { release(block) };
    }
}

/// One counter is at zero for good; the last one frees the block, and with it every mapping it keeps.
///
/// # Safety
/// Called once per counter of a live block.
unsafe fn release(block: NonNull<Block>) {
    // SAFETY: alive, by the caller.
    if unsafe { block.as_ref() }.live.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    // SAFETY: all counters are at zero and no handle is left: this is the only pointer, and it came
    // from a Box.
    drop(unsafe { Box::from_raw(block.as_ptr()) });
}

/// Makes regions known to DPDK and reachable for the devices of an RNIC, and takes that back.
#[derive(Debug)]
pub struct DpdkRegions(DmaPorts);

impl DpdkRegions {
    /// For the devices behind `ports`.
    pub fn new(ports: DmaPorts) -> DpdkRegions {
        DpdkRegions(ports)
    }
}

impl RegionHook for DpdkRegions {
    fn added(&self, region: &Arc<Region>) -> bool {
        if !eal::by_process_addresses() {
            // Each page has an address of its own there, and a piece of payload may cross pages.
            return false;
        }
        let base = region.base().as_ptr();
        let Some(len) = region.mapped_len() else {
            // Memory that an application brings may begin and end anywhere in a page.
            return false;
        };
        if region.is_sparse() {
            // DPDK would write a record for each page that there could be.
            return false;
        }
        eal::clear_log();
        // SAFETY: [base, base + len) is a mapping of whole pages, in no list of DPDK's yet; no IOVA
        // table is given (iova-mode=va).
        let rc = unsafe {
            sys::rte_extmem_register(base.cast(), len, std::ptr::null_mut(), 0, region.page_size())
        };
        if rc != 0 {
            // DPDK has room for about 120 of them. Copies do without.
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
            // SAFETY: a range that is registered or not; DPDK says which, and it makes no difference.
            unsafe { sys::rte_extmem_unregister(region.base().as_ptr().cast(), len) };
        }
    }
}
