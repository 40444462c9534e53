//! The regions of one RNIC, as workers reach them without a lock.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_shm::Region;

use super::readers::{Grace, Readers};

/// Names a region within its RNIC. An address of the protocol's
/// [`MemRange`](heddle_mr::MemRange) has the id in its upper 16 bits, and the offset in the
/// region in the lower 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(u16);

const OFFSET_BITS: u32 = 48;

impl RegionId {
    /// Returns the address of a byte of the region.
    pub fn addr(self, off: usize) -> u64 {
        u64::from(self.0) << OFFSET_BITS | off as u64
    }

    /// Returns region and offset of an address.
    #[inline]
    pub fn split(addr: u64) -> (RegionId, usize) {
        let off = usize::try_from(addr & ((1 << OFFSET_BITS) - 1)).unwrap_or(usize::MAX);
        (RegionId(u16::try_from(addr >> OFFSET_BITS).unwrap_or(u16::MAX)), off)
    }

    /// Returns the id's index, which is less than the capacity of the table.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The place of a region, as workers read it. An empty slot has length 0.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) base: AtomicPtr<u8>,
    pub(super) len: AtomicUsize,
    /// The devices can read the region where it lies.
    pub(super) dma: AtomicBool,
}

/// Gets to know of regions before workers use them, and makes the regions reachable for devices.
pub trait RegionHook: Send + Sync + std::fmt::Debug {
    /// Takes note of a region that workers are about to know. Returns true if devices can read the
    /// region where it lies; otherwise workers copy its bytes into frames.
    fn added(&self, region: &Arc<Region>) -> bool;

    /// Takes note that no worker and no registration refers to the region any more.
    fn removed(&self, region: &Arc<Region>);
}

/// A table of regions. Workers look addresses up without a lock; a region that is taken out stays
/// mapped until every worker has passed a quiescent point.
#[derive(Debug)]
pub struct RegionTable {
    pub(super) slots: Box<[Slot]>,
    pub(super) readers: Readers,
    owners: Mutex<Owners>,
    hook: Option<Box<dyn RegionHook>>,
}

#[derive(Debug, Default)]
struct Owners {
    regions: Vec<Option<Arc<Region>>>,
    /// Regions that were taken out and that a worker may still look at. Their ids stay in use
    /// meanwhile.
    leaving: Vec<(usize, Grace)>,
}

impl RegionTable {
    /// Returns an empty table for up to `capacity` regions (1..=65,536); it calls `hook` for each
    /// region.
    pub fn new(capacity: usize, hook: Option<Box<dyn RegionHook>>) -> RegionTable {
        let n = capacity.clamp(1, 1 << 16);
        let owners = Owners { regions: vec![None; n], leaving: Vec::new() };
        RegionTable {
            slots: (0..n).map(|_| Slot::default()).collect(),
            readers: Readers::default(),
            owners: Mutex::new(owners),
            hook,
        }
    }

    /// Makes a region known to the workers. Returns `None` when the table is full.
    pub fn insert(&self, region: &Arc<Region>) -> Option<RegionId> {
        let mut owners = self.owners();
        self.reap_in(&mut owners);
        let taken = |i: usize| owners.leaving.iter().any(|(l, _)| *l == i);
        let at = (0..owners.regions.len())
            .find(|&i| owners.regions[i].is_none() && !taken(i) && i <= usize::from(u16::MAX))?;
        owners.regions[at] = Some(region.clone());
        let slot = &self.slots[at];
        // Store the length last: a reader loads it first.
        slot.base.store(region.base().as_ptr(), Ordering::Relaxed);
        let dma = self.hook.as_ref().is_some_and(|h| h.added(region));
        slot.dma.store(dma, Ordering::Relaxed);
        slot.len.store(region.len(), Ordering::Release);
        Some(RegionId(u16::try_from(at).unwrap_or(u16::MAX)))
    }

    /// Takes a region out. The table drops the region when no worker looks at it any more.
    pub fn remove(&self, id: RegionId) {
        let mut owners = self.owners();
        let at = id.index();
        if owners.regions.get(at).is_none_or(Option::is_none) {
            return;
        }
        self.slots[at].len.store(0, Ordering::Release);
        let grace = self.readers.grace();
        owners.leaving.push((at, grace));
        self.reap_in(&mut owners);
    }

    /// Drops removed regions that no worker looks at any more. Returns how many still wait.
    pub fn reap(&self) -> usize {
        let mut owners = self.owners();
        self.reap_in(&mut owners);
        owners.leaving.len()
    }

    fn reap_in(&self, owners: &mut Owners) {
        let regions = &mut owners.regions;
        owners.leaving.retain_mut(|(at, grace)| {
            let over = grace.is_over();
            if over
                && let Some(region) = regions[*at].take()
                && let Some(hook) = &self.hook
            {
                hook.removed(&region);
            }
            !over
        });
    }

    /// Returns the region with this id.
    pub fn get(&self, id: RegionId) -> Option<Arc<Region>> {
        let owners = self.owners();
        if owners.leaving.iter().any(|(at, _)| *at == id.index()) {
            return None;
        }
        owners.regions.get(id.index())?.clone()
    }

    /// Returns the most regions that the table can have.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the readers that look at the table without a lock.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegionTable {
    fn drop(&mut self) {
        let Some(hook) = &self.hook else { return };
        let owners = self.owners.get_mut().unwrap_or_else(PoisonError::into_inner);
        for region in owners.regions.drain(..).flatten() {
            hook.removed(&region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::memory::RegionMemory;

    #[test]
    fn test_region_ids_and_addresses_round_trip() {
        let (id, off) = RegionId::split(RegionId(65_535).addr((1 << 48) - 1));
        assert_eq!((id, off), (RegionId(65_535), (1 << 48) - 1));
    }

    #[test]
    fn test_removed_region_stays_until_worker_has_moved_on() {
        let regions = Arc::new(RegionTable::new(1, None));
        let worker = RegionMemory::new(regions.clone());
        let region = Arc::new(Region::anonymous(64).unwrap());
        let id = regions.insert(&region).unwrap();
        assert!(regions.insert(&region).is_none(), "the table has one place");
        regions.remove(id);
        assert!(regions.get(id).is_none());
        // Neither the region nor its slot is free while the worker may hold an address.
        assert_eq!((Arc::strong_count(&region), regions.reap()), (2, 1));
        assert!(regions.insert(&region).is_none());
        worker.quiescent();
        assert_eq!((regions.reap(), Arc::strong_count(&region)), (0, 1));
        assert!(regions.insert(&region).is_some());
    }
}
