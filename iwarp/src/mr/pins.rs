//! Which regions TCP may still have to send from.

use crate::MemRange;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Per slot of the STag table: how many FPDUs in the send queues of one RNIC refer to the region's
/// memory.
///
/// An STag that is gone keeps new references from coming, but not those of FPDUs that TCP has not
/// seen acknowledged: they are gathered again for each retransmission. Whoever takes a region back
/// [retires](super::MrTable::retire) it, lets the worker pass a quiescent point, and waits until
/// its [`count`](Pins::count) is 0; only then is the memory nobody's, and the slot is
/// [released](super::MrTable::release).
///
/// The one thread that runs the RNIC writes, with plain loads and stores; any thread reads.
#[derive(Debug)]
pub struct Pins(Box<[AtomicU32]>);

impl Pins {
    /// For a table of `slots` regions ([`MrTable::capacity`](super::MrTable::capacity)).
    pub fn new(slots: usize) -> Pins {
        Pins((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// FPDUs that refer to the region in slot `mr`; 0 for a slot that does not exist. When it is 0
    /// after the STag was gone and the worker quiet, all reads of the memory lie before this call.
    pub fn count(&self, mr: u32) -> u32 {
        self.0.get(mr as usize).map_or(0, |n| n.load(Acquire))
    }

    /// One more FPDU refers to `range`. By the RNIC's thread alone.
    #[inline]
    pub fn pin(&self, range: MemRange) {
        if let Some(n) = self.0.get(range.mr() as usize) {
            n.store(n.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// One less. By the RNIC's thread alone.
    #[inline]
    pub fn unpin(&self, range: MemRange) {
        if let Some(n) = self.0.get(range.mr() as usize) {
            debug_assert!(n.load(Relaxed) > 0, "unpinned more often than pinned");
            n.store(n.load(Relaxed).wrapping_sub(1), Release);
        }
    }
}
