//! Counts of the references that TCP's unacknowledged data has to each region.

use crate::MemRange;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Per slot of the STag table: the number of FPDUs in the send queues of one RNIC that refer to the
/// region's memory.
///
/// An invalid STag prevents new references, but not those of FPDUs that the peer's TCP has not
/// acknowledged: the worker gathers their payload again for each retransmission. A caller that
/// unregisters a region [retires](crate::MrTable::retire) it, lets the worker pass a quiescent
/// point, and waits until its [`count`](Pins::count) is 0. Only then may the caller reuse the
/// memory and [release](crate::MrTable::release) the slot.
///
/// Only the thread that runs the RNIC writes, with plain loads and stores; any thread reads.
#[derive(Debug)]
pub struct Pins(Box<[AtomicU32]>);

impl Pins {
    /// Makes pins for a table of `slots` regions ([`MrTable::capacity`](crate::MrTable::capacity)).
    pub fn new(slots: usize) -> Pins {
        Pins((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns the number of FPDUs that refer to the region in slot `mr`; 0 for a slot that does
    /// not exist. If the caller calls after the STag became invalid and the worker was quiet, and
    /// the count is 0, then all reads of the memory happened before this call.
    pub fn count(&self, mr: u32) -> u32 {
        self.0.get(mr as usize).map_or(0, |n| n.load(Acquire))
    }

    /// Counts one more FPDU that refers to `range`. Only the RNIC's thread may call this.
    #[inline]
    pub fn pin(&self, range: MemRange) {
        if let Some(n) = self.0.get(range.mr() as usize) {
            n.store(n.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// Counts one FPDU fewer that refers to `range`. Only the RNIC's thread may call this.
    #[inline]
    pub fn unpin(&self, range: MemRange) {
        if let Some(n) = self.0.get(range.mr() as usize) {
            debug_assert!(n.load(Relaxed) > 0, "unpinned more often than pinned");
            // Pairs with the Acquire load in `count`: the reads of the memory come before this
            // store.
            n.store(n.load(Relaxed).wrapping_sub(1), Release);
        }
    }
}
