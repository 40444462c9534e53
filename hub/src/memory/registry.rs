//! Registration: STags for stretches of regions, and memory that is used again when nothing refers
//! to it any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_mr::MrTable;
use heddle_shm::region::Hold;
use heddle_shm::{Region, Stretches};
use heddle_types::{Access, MrError, Pd, Qpn, Stag};
use heddle_verbs::RegisterError;

use super::pool::{Pool, Stretch};
use super::quota::Ticket;
use super::readers::Grace;
use super::region_table::{RegionId, RegionTable};

/// Says whether a worker may still refer to the memory of a region whose STag is gone.
///
/// Each worker has one. The registry asks only after the worker has passed a quiescent point since
/// the STag went, so the worker can make no new reference; the answer may only change from yes to
/// no.
pub trait References: Send + Sync + std::fmt::Debug {
    /// Returns true if anything (an FPDU in a send queue, a frame in a ring or a driver) still
    /// refers to memory of the region in slot `mr` of the STag table.
    fn is_referred(&self, mr: u32) -> bool;
}

/// Most waiting regions for which giving back a region also reclaims at once.
const FEW: usize = 64;

/// The memory of one RNIC: its regions, and the STags that name parts of them.
#[derive(Debug)]
pub struct Registry {
    mrs: Arc<MrTable>,
    regions: Arc<RegionTable>,
    references: Mutex<Vec<Arc<dyn References>>>,
    draining: Mutex<Vec<Draining>>,
    /// Regions of applications that are in the table, by their address: the id, and the number of
    /// registrations of the region. All registrations of a region share one slot of the table.
    own: Mutex<HashMap<usize, (RegionId, usize)>>,
}

/// A registration, with everything that has to be freed with it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) stag: Stag,
    pub(crate) to: u64,
    pub(crate) len: usize,
    pub(crate) region: Arc<Region>,
    /// Offset of the first byte in the region.
    pub(crate) off: usize,
    /// Tickets of the application and of the protection domain.
    tickets: Option<[Ticket; 2]>,
    /// In a sparse region: keeps the pages until nothing refers to them.
    hold: Option<Hold>,
    backing: Backing,
}

impl Registered {
    /// Returns this registration with `hold`, which keeps its pages.
    pub(crate) fn held(mut self, hold: Option<Hold>) -> Registered {
        self.hold = hold;
        self
    }

    /// Returns this registration with the tickets of its application and its protection domain.
    pub(crate) fn counted(mut self, tickets: [Ticket; 2]) -> Registered {
        self.tickets = Some(tickets);
        self
    }
}

#[derive(Debug)]
enum Backing {
    /// A stretch of a pool.
    Stretch { pool: Arc<Pool>, at: usize, len: usize },
    /// A region of the application, which leaves the table with its last registration.
    Own(Arc<Region>),
}

#[derive(Debug)]
struct Draining {
    stag: Stag,
    grace: Grace,
    backing: Backing,
    _tickets: Option<[Ticket; 2]>,
    _hold: Option<Hold>,
}

/// The terms of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) pd: Pd,
    /// The only queue pair that may use the memory, if it is bound to one.
    pub(crate) qpn: Option<Qpn>,
    pub(crate) access: Access,
    /// Tagged offset of the first byte, unless it is the usual one.
    pub(crate) to: Option<u64>,
}

impl Registry {
    /// Returns a registry over a table of STags and a table of regions.
    pub fn new(mrs: Arc<MrTable>, regions: Arc<RegionTable>) -> Registry {
        Registry {
            mrs,
            regions,
            references: Mutex::default(),
            draining: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// Returns the table of STags.
    pub fn mrs(&self) -> &Arc<MrTable> {
        &self.mrs
    }

    /// Returns the table of regions.
    pub fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    /// Adds a worker that the registry asks before memory is used again.
    pub fn add_references(&self, references: Arc<dyn References>) {
        lock(&self.references).push(references);
    }

    /// Returns a pool over `region`, whose tagged offsets begin at `to`, or `None` when the table
    /// of regions is full.
    pub(crate) fn pool(self: &Arc<Registry>, region: Arc<Region>, to: u64) -> Option<Arc<Pool>> {
        let id = self.regions.insert(&region)?;
        let stretches = Mutex::new(Stretches::new(region.len()));
        Some(Arc::new(Pool { region, id, to, stretches, registry: self.clone() }))
    }

    /// Registers `len` zeroed bytes of `pool`.
    #[cfg(test)]
    fn take(
        &self,
        pool: &Arc<Pool>,
        len: usize,
        terms: Terms,
    ) -> Result<Registered, RegisterError> {
        let mut stretch = self.reserve(pool, len)?;
        stretch.clear(len);
        self.register(stretch, terms)
    }

    /// Sets `len` bytes of `pool` aside.
    pub(crate) fn reserve(&self, pool: &Arc<Pool>, len: usize) -> Result<Stretch, RegisterError> {
        self.reclaim();
        let mut s = lock(&pool.stretches);
        let at = s.take(len).ok_or_else(|| RegisterError::NoMemory {
            wanted: len,
            free: s.largest(),
            size: s.size(),
        })?;
        Ok(Stretch { pool: pool.clone(), at, len, cleared: 0, registered: false })
    }

    /// Registers memory that was set aside, after clearing any part that is not clear yet.
    pub(crate) fn register(
        &self,
        mut stretch: Stretch,
        terms: Terms,
    ) -> Result<Registered, RegisterError> {
        stretch.clear(stretch.len);
        let (pool, at, len) = (stretch.pool.clone(), stretch.at, stretch.len);
        let to = terms.to.unwrap_or(pool.to + at as u64);
        let stag = self.insert(terms, pool.id.addr(at), to, len)?;
        stretch.registered = true;
        let region = pool.region.clone();
        Ok(Registered {
            stag,
            to,
            len,
            region,
            off: at,
            tickets: None,
            hold: None,
            backing: Backing::Stretch { pool, at, len },
        })
    }

    /// Registers bytes `[off, off + len)` of a region that the application brings; the usual tagged
    /// offset is the address.
    pub(crate) fn bring(
        &self,
        region: &Arc<Region>,
        (off, len): (usize, usize),
        terms: Terms,
    ) -> Result<Registered, RegisterError> {
        self.reclaim();
        let ptr = region.ptr(off, len).ok_or(RegisterError::OutOfRange)?;
        let to = terms.to.unwrap_or(ptr.addr() as u64);
        let id = self.enter(region).ok_or(RegisterError::TooManyRegions)?;
        match self.insert(terms, id.addr(off), to, len) {
            Ok(stag) => {
                let (region, backing) = (region.clone(), Backing::Own(region.clone()));
                Ok(Registered { stag, to, len, region, off, tickets: None, hold: None, backing })
            }
            Err(e) => {
                self.leave(region);
                Err(e.into())
            }
        }
    }

    /// Counts one more registration of a region. Returns the region's id, or `None` when the table
    /// is full.
    fn enter(&self, region: &Arc<Region>) -> Option<RegionId> {
        let mut own = lock(&self.own);
        match own.entry(Arc::as_ptr(region).addr()) {
            Entry::Occupied(mut there) => {
                let (id, count) = there.get_mut();
                *count += 1;
                Some(*id)
            }
            Entry::Vacant(free) => {
                let id = self.regions.insert(region)?;
                free.insert((id, 1));
                Some(id)
            }
        }
    }

    /// Counts one registration less of a region; the last takes the region out of the table.
    fn leave(&self, region: &Arc<Region>) {
        let mut own = lock(&self.own);
        if let Entry::Occupied(mut there) = own.entry(Arc::as_ptr(region).addr()) {
            let (id, count) = there.get_mut();
            *count -= 1;
            if *count == 0 {
                self.regions.remove(*id);
                there.remove();
            }
        }
    }

    fn insert(&self, t: Terms, addr: u64, to: u64, len: usize) -> Result<Stag, MrError> {
        let len = len as u64;
        match t.qpn {
            None => self.mrs.register(t.pd, addr, to, len, t.access),
            Some(qpn) => self.mrs.register_for_qp(t.pd, qpn, addr, to, len, t.access),
        }
        .map(|mr| mr.stag)
    }

    /// Takes a registration back. The STag is useless from here on; its slot in the table and the
    /// memory become free when nothing refers to them any more.
    pub(crate) fn give(&self, r: Registered) {
        // Ignore the error: a Send with Invalidate may have come first.
        let _ = self.mrs.retire(r.stag);
        let grace = self.regions.readers().grace();
        let Registered { stag, backing, tickets, hold, .. } = r;
        let waiting = {
            let mut draining = lock(&self.draining);
            let waits = Draining { stag, grace, backing, _tickets: tickets, _hold: hold };
            draining.push(waits);
            draining.len()
        };
        // An application that ends gives back thousands of regions, and each would look through all
        // earlier ones. Leave that to the next registration, or to the control plane.
        if waiting <= FEW {
            self.reclaim();
        }
    }

    /// Frees the memory that nothing refers to any more. Returns how many regions still wait.
    pub fn reclaim(&self) -> usize {
        let mut draining = lock(&self.draining);
        if !draining.is_empty() {
            let references = lock(&self.references);
            draining.retain_mut(|d| {
                let mr = self.mrs.index(d.stag);
                if !d.grace.is_over() || references.iter().any(|r| r.is_referred(mr)) {
                    return true;
                }
                let known = self.mrs.release(d.stag);
                debug_assert!(known.is_ok(), "given back twice");
                match &d.backing {
                    Backing::Stretch { pool, at, len } => lock(&pool.stretches).give(*at, *len),
                    Backing::Own(region) => self.leave(region),
                }
                false
            });
        }
        self.regions.reap();
        draining.len()
    }

    /// Returns the number of regions whose STag is gone and whose memory is not free yet.
    pub fn draining(&self) -> usize {
        lock(&self.draining).len()
    }
}

pub(super) fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    use heddle_base::Seed;

    use crate::memory::RegionMemory;

    #[derive(Debug, Default)]
    struct Busy(AtomicBool);

    impl References for Busy {
        fn is_referred(&self, _mr: u32) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn registry() -> (Arc<Registry>, Arc<Pool>, RegionMemory, Arc<Busy>) {
        let regions = Arc::new(RegionTable::new(4, None));
        let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 2));
        let registry = Arc::new(Registry::new(mrs, regions.clone()));
        let pool = registry.pool(Arc::new(Region::anonymous(4096).unwrap()), 0).unwrap();
        let busy = Arc::new(Busy::default());
        registry.add_references(busy.clone());
        (registry, pool, RegionMemory::new(regions), busy)
    }

    const TERMS: Terms = Terms { pd: Pd(1), qpn: None, access: Access::REMOTE_WRITE, to: None };

    #[test]
    fn test_memory_is_reused_after_stag_worker_and_references_are_gone() {
        for last in 0..3 {
            let (r, pool, worker, busy) = registry();
            let mr = r.take(&pool, 4096, TERMS).unwrap();
            mr.region.place(mr.off, b"secret").unwrap();
            let stag = mr.stag;
            busy.0.store(true, Ordering::Relaxed);
            if last == 0 {
                // All references end before the STag does.
                busy.0.store(false, Ordering::Relaxed);
                worker.quiescent();
            }
            r.give(mr);
            assert!(r.mrs().check(Pd(1), Qpn(1), stag, 0, 1, Access::NONE).is_err());
            match last {
                1 => {
                    busy.0.store(false, Ordering::Relaxed);
                    assert_eq!(r.reclaim(), 1, "the worker may still look at it");
                }
                2 => {
                    worker.quiescent();
                    assert_eq!(r.reclaim(), 1, "something still refers to it");
                }
                _ => {}
            }
            assert!(matches!(r.take(&pool, 64, TERMS), Err(RegisterError::NoMemory { .. })));
            busy.0.store(false, Ordering::Relaxed);
            worker.quiescent();
            let again = r.take(&pool, 4096, TERMS).unwrap();
            let mut bytes = [1; 6];
            again.region.gather(again.off, &mut bytes).unwrap();
            assert_eq!((bytes, r.draining()), ([0; 6], 0));
        }
    }

    #[test]
    fn test_region_table_place_stays_taken_while_memory_is_referenced() {
        let (r, pool, worker, busy) = registry();
        let first = r.take(&pool, 64, TERMS).unwrap();
        let _second = r.take(&pool, 64, TERMS).unwrap();
        busy.0.store(true, Ordering::Relaxed);
        r.give(first);
        worker.quiescent();
        assert_eq!(r.take(&pool, 64, TERMS).err(), Some(RegisterError::Mr(MrError::Full)));
        busy.0.store(false, Ordering::Relaxed);
        assert!(r.take(&pool, 64, TERMS).is_ok());
    }

    #[test]
    fn test_registrations_of_one_region_share_a_region_table_place() {
        let (r, pool, worker, _) = registry();
        drop(pool);
        let region = Arc::new(Region::anonymous(8192).unwrap());
        let one = r.bring(&region, (0, 64), TERMS).unwrap();
        let two = r.bring(&region, (4096, 64), TERMS).unwrap();
        assert_eq!(Arc::strong_count(&region), 6, "the table once, each registration twice");
        r.give(one);
        worker.quiescent();
        r.reclaim();
        let reach = |stag, to| r.mrs().check(Pd(1), Qpn(1), stag, to, 64, Access::REMOTE_WRITE);
        assert!(reach(two.stag, two.to).is_ok());
        let mem = RegionMemory::new(r.regions().clone());
        assert!(mem.ptr(reach(two.stag, two.to).unwrap()).is_some(), "it is in the table");
        r.give(two);
        drop(mem);
        worker.quiescent();
        r.reclaim();
        worker.quiescent();
        r.reclaim();
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn test_application_region_is_dropped_with_its_registration() {
        let (r, _pool, worker, _) = registry();
        let region = Arc::new(Region::anonymous(100).unwrap());
        assert_eq!(r.bring(&region, (50, 51), TERMS).err(), Some(RegisterError::OutOfRange));
        let mr = r.bring(&region, (50, 50), Terms { to: Some(0x1000), ..TERMS }).unwrap();
        assert!(r.mrs().check(Pd(1), Qpn(1), mr.stag, 0x1000, 50, Access::REMOTE_WRITE).is_ok());
        r.give(mr);
        assert_eq!(Arc::strong_count(&region), 3);
        worker.quiescent();
        r.reclaim();
        worker.quiescent();
        r.reclaim();
        assert_eq!(Arc::strong_count(&region), 1);
    }
}
