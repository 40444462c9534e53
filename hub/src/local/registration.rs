//! Registration in the RNIC's own process.

use core::time::Duration;
use std::time::Instant;

use heddle_shm::Region;
use heddle_shm::region::Hold;
use heddle_types::{Access, MrError, Stag};
use heddle_verbs::provider::{MrOwner, Reserved, WindowFor};
use heddle_verbs::{Mr, MrInfo, MrInit, RegisterError};

use super::*;
use crate::memory::{Registered, Registry, Sort, Stretch, Terms, Ticket};
use crate::window::{Held, Tie};

/// Longest wait of an allocation for memory that is about to become free. Workers must have had a
/// turn by then, also where the kernel runs other programs for a while.
const RECLAIM_WAIT: Duration = Duration::from_secs(1);

impl Local {
    /// Registers `len` bytes of the device's memory; unless cleared, they keep their old contents.
    pub(crate) fn take_mr(
        &self,
        pd: Pd,
        len: usize,
        init: &MrInit<'_>,
        clear: bool,
    ) -> Result<Mr, DeviceError> {
        let (terms, pool) = (terms(pd, init), self.pool(len)?);
        self.register(pd, || {
            let mut stretch = self.hub.registry.reserve(pool, len)?;
            if !clear {
                stretch.leave();
            }
            self.hub.registry.register(stretch, terms)
        })
    }

    /// Registers a part of a region that the application brings. `hold` keeps the pages of a sparse
    /// region of another process.
    pub(crate) fn bring_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        range: (usize, usize),
        init: &MrInit<'_>,
        mut hold: Option<Hold>,
    ) -> Result<Mr, DeviceError> {
        if region.needs_hold() != hold.is_some() {
            return Err(RegisterError::OutOfRange.into());
        }
        if region.is_sparse() && hold.is_none() {
            // The application's own thread takes the page faults, so that no worker does.
            region.populate(range.0, range.1)?;
        }
        self.register(pd, || {
            let brought = self.hub.registry.bring(region, range, terms(pd, init))?;
            Ok(brought.held(hold.take()))
        })
    }

    /// Registers the memory that `take` takes, within the limits.
    fn register(
        &self,
        pd: Pd,
        mut take: impl FnMut() -> Result<Registered, RegisterError>,
    ) -> Result<Mr, DeviceError> {
        let registered = self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Region)?;
            take().map(|r| r.counted(tickets))
        })?;
        Ok(self.hand_out(registered))
    }

    fn hand_out(&self, r: Registered) -> Mr {
        let info = MrInfo { stag: r.stag, to: r.to, off: r.off, len: r.len };
        let region = r.region.clone();
        let registry = self.hub.registry.clone();
        Mr::new(region, info, Box::new(Given { registry, registered: Some(r) }))
    }

    /// Returns the list of the STags that end with a queue pair of the application.
    fn tie_to(&self, qp: &Qp) -> Result<Tie, DeviceError> {
        let tied = lock(&self.tied).get(&qp.qpn()).cloned();
        tied.map(Tie::Qp).ok_or(DeviceError::ForeignQp(qp.qpn()))
    }

    /// Takes one more STag for the application and for the protection domain.
    fn tickets(&self, pd: Pd, sort: Sort) -> Result<[Ticket; 2], RegisterError> {
        let domain = lock(&self.pds).get(&pd).cloned();
        let domain = domain.as_ref().unwrap_or(&self.quota);
        Ok([self.quota.take(sort)?, domain.take(sort)?])
    }

    pub(super) fn fast(&self, pd: Pd, qp: Option<&Qp>, len: u64) -> Result<Held, DeviceError> {
        let registry = &self.hub.registry;
        let (stag, tickets) = self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Region)?;
            Ok((registry.mrs().allocate(pd, qp.map(Qp::qpn), len)?, tickets))
        })?;
        let tie = qp.map_or(Ok(Tie::None), |qp| self.tie_to(qp))?;
        Ok(Held::new(registry.clone(), (pd, stag), tie, tickets))
    }

    pub(super) fn window(&self, pd: Pd, of: WindowFor<'_>) -> Result<Held, DeviceError> {
        let registry = &self.hub.registry;
        let (stag, tickets) = self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Window)?;
            let stag = match of {
                WindowFor::Domain => registry.mrs().allocate_window(pd, None),
                WindowFor::Qp(qp) => registry.mrs().allocate_window(pd, Some(qp.qpn())),
                WindowFor::AnyQp => registry.mrs().allocate_window_for_any(pd),
            };
            Ok((stag?, tickets))
        })?;
        let tie = match of {
            WindowFor::Domain => Tie::None,
            WindowFor::Qp(qp) => self.tie_to(qp)?,
            WindowFor::AnyQp => Tie::AnyQp(self.any_qp_windows.clone()),
        };
        Ok(Held::new(registry.clone(), (pd, stag), tie, tickets))
    }

    pub(crate) fn set_aside(self: Arc<Self>, len: usize) -> Result<Aside, DeviceError> {
        let (registry, pool) = (&self.hub.registry, self.pool(len)?);
        let stretch = self.patiently(|| registry.reserve(pool, len))?;
        Ok(Aside { app: self, stretch })
    }

    /// Registers memory that was set aside, after clearing it unless it is marked as clear.
    pub(crate) fn register_stretch(
        &self,
        pd: Pd,
        stretch: Stretch,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        let (registry, tickets) = (&self.hub.registry, self.tickets(pd, Sort::Region)?);
        let registered = registry.register(stretch, Terms { pd, qpn: None, access, to: None })?;
        Ok(self.hand_out(registered.counted(tickets)))
    }

    pub(crate) fn pool(&self, wanted: usize) -> Result<&Arc<Pool>, DeviceError> {
        let none = RegisterError::NoMemory { wanted, free: 0, size: 0 };
        self.pool.as_ref().ok_or(none.into())
    }

    /// Tries again for a while when memory or a slot in a table is about to become free. The thread
    /// that runs an RNIC inline cannot wait for itself.
    fn patiently<T>(
        &self,
        mut take: impl FnMut() -> Result<T, RegisterError>,
    ) -> Result<T, RegisterError> {
        let hub = &self.hub;
        let end = Instant::now() + RECLAIM_WAIT;
        loop {
            // Count before the attempt, because the control plane reclaims at the same time: memory
            // that was draining before a failure and is not draining after it can be taken now.
            let before = hub.registry.draining();
            let result = take();
            let hopeless = matches!(
                result,
                Ok(_)
                    | Err(RegisterError::OutOfRange)
                    | Err(RegisterError::Mr(
                        MrError::Wrap | MrError::SharedInvalidate | MrError::FastLen
                    ))
            );
            let draining = hub.registry.draining();
            let is_back = draining < before;
            let waits = draining > 0 && self.patient && !hub.inline.load(Ordering::Relaxed);
            if hopeless || !(is_back || waits) || Instant::now() >= end {
                return result;
            }
            if !is_back {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

fn terms(pd: Pd, init: &MrInit<'_>) -> Terms {
    Terms { pd, qpn: init.qp.map(Qp::qpn), access: init.access, to: init.to }
}

/// A registration; dropping this undoes it.
#[derive(Debug)]
struct Given {
    registry: Arc<Registry>,
    registered: Option<Registered>,
}

impl MrOwner for Given {
    fn deregister(&self) -> Result<(), u32> {
        let stag = self.registered.as_ref().map_or(Stag(0), |r| r.stag);
        match self.registry.mrs().retire_unbound(stag) {
            Err(MrError::Bound(count)) => Err(count),
            _ => Ok(()),
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            self.registry.give(registered);
        }
    }
}

/// Memory of an application that was set aside.
#[derive(Debug)]
pub(crate) struct Aside {
    app: Arc<Local>,
    pub(crate) stretch: Stretch,
}

impl Reserved for Aside {
    fn clear(&mut self, most: usize) -> bool {
        self.stretch.clear(most)
    }

    fn register(self: Box<Self>, pd: Pd, access: Access) -> Result<Mr, DeviceError> {
        self.app.register_stretch(pd, self.stretch, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceConfig;
    use crate::hub::testing;

    /// A registration fails, and the last draining memory becomes free before the registration
    /// looks whether any is draining.
    fn comes_back_behind_a_failure(patient: bool) {
        let (hub, worker) = testing::hub();
        let config = DeviceConfig { patient, ..DeviceConfig::default() };
        let area = Area::new(hub.area_bytes(config.queues)).unwrap();
        let region = Region::anonymous(1 << 20).unwrap();
        let (device, local) = hub.open_on(area, Some(region), &config, None).unwrap();
        let pd = device.alloc_pd().unwrap();
        let all = device.alloc_mr(pd, 1 << 20, Access::NONE).unwrap();
        drop(all);
        assert_eq!(hub.registry.draining(), 1, "the worker may still look at it");
        let mut tries = 0;
        let pool = local.pool(1 << 20).unwrap();
        let taken = local.patiently(|| {
            tries += 1;
            let taken = hub.registry.reserve(pool, 1 << 20);
            worker.quiescent();
            assert_eq!(hub.registry.reclaim(), 0);
            taken
        });
        assert!(taken.is_ok(), "{taken:?}");
        assert_eq!(tries, 2);
    }

    #[test]
    fn test_registration_uses_memory_freed_behind_a_failure() {
        comes_back_behind_a_failure(true);
    }

    /// A session of the control thread must not wait, and need not.
    #[test]
    fn test_registration_that_may_not_wait_uses_memory_freed_behind_a_failure() {
        comes_back_behind_a_failure(false);
    }
}
