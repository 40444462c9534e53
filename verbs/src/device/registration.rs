//! Regions, fast registrations and windows: what an application gives peers and itself names for.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use heddle_iwarp::{Access, MrError, Pd, Stag};

use super::{Device, lock};
use crate::error::DeviceError;
use crate::memory::{
    MrUsage, Pool, Region, RegisterError, Registered, Sort, Stretch, Terms, Ticket,
};
use crate::mr::Mr;
use crate::qp::Qp;
use crate::window::{FastMr, QpWindow, Window};

/// How long an allocation waits for memory that is on its way back.
const RECLAIM_WAIT: Duration = Duration::from_millis(100);

/// How a region is registered.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrInit<'a> {
    /// Its rights.
    pub access: Access,
    /// What peers call its first octet: 0, an address, any number. Otherwise a random one for the
    /// device's memory, and its address for memory that the application brings.
    pub to: Option<u64>,
    /// The only queue pair whose stream may use it.
    pub qp: Option<&'a Qp>,
}

impl Device {
    /// Registers `len` zeroed bytes of the device's memory.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_mr(&self, pd: Pd, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.alloc_mr_with(pd, len, &MrInit { access, ..MrInit::default() })
    }

    /// As [`alloc_mr`](Device::alloc_mr), for one queue pair alone: no other stream can use the
    /// STag, and its peer may be given [`Access::REMOTE_INVALIDATE`].
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr).
    pub fn alloc_mr_for(&self, qp: &Qp, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.alloc_mr_with(qp.pd(), len, &MrInit { access, qp: Some(qp), to: None })
    }

    /// As [`alloc_mr`](Device::alloc_mr), with all that can be said of a region.
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr); [`DeviceError::ForeignPd`] also where the queue pair is
    /// in another protection domain.
    pub fn alloc_mr_with(&self, pd: Pd, len: usize, init: &MrInit<'_>) -> Result<Mr, DeviceError> {
        let terms = self.terms(pd, init)?;
        self.check_mr_size(len)?;
        let pool = self.pool(len)?;
        self.register(pd, || self.0.hub.registry.take(pool, len, terms))
    }

    fn terms(&self, pd: Pd, init: &MrInit<'_>) -> Result<Terms, DeviceError> {
        self.check_pd(pd)?;
        if let Some(qp) = init.qp.filter(|qp| qp.pd() != pd) {
            return Err(DeviceError::ForeignPd(qp.pd()));
        }
        Ok(Terms { pd, qpn: init.qp.map(Qp::qpn), access: init.access, to: init.to })
    }

    /// Registers what `take` takes, within the limits.
    fn register(
        &self,
        pd: Pd,
        mut take: impl FnMut() -> Result<Registered, RegisterError>,
    ) -> Result<Mr, DeviceError> {
        let registered = self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Region)?;
            take().map(|r| r.counted(tickets))
        })?;
        Ok(Mr::new(self.0.hub.registry.clone(), registered))
    }

    /// One more STag for the application and for the protection domain.
    fn tickets(&self, pd: Pd, sort: Sort) -> Result<[Ticket; 2], RegisterError> {
        let domain = lock(&self.0.pds).get(&pd).cloned();
        let domain = domain.as_ref().unwrap_or(&self.0.quota);
        Ok([self.0.quota.take(sort)?, domain.take(sort)?])
    }

    /// An STag for fast registrations of up to `len` octets, for all queue pairs of `pd`. The table
    /// has none valid until a send queue registers one.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_fast_mr(&self, pd: Pd, len: u64) -> Result<FastMr, DeviceError> {
        self.fast_mr(pd, None, len)
    }

    /// As [`alloc_fast_mr`](Device::alloc_fast_mr), for one queue pair alone: registrations may
    /// have [`Access::REMOTE_INVALIDATE`]. They end with its connection.
    ///
    /// # Errors
    /// As [`alloc_fast_mr`](Device::alloc_fast_mr).
    pub fn alloc_fast_mr_for(&self, qp: &Qp, len: u64) -> Result<FastMr, DeviceError> {
        self.fast_mr(qp.pd(), Some(qp), len)
    }

    fn fast_mr(&self, pd: Pd, qp: Option<&Qp>, len: u64) -> Result<FastMr, DeviceError> {
        self.check_pd(pd)?;
        let registry = &self.0.hub.registry;
        let (stag, tickets) = self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Region)?;
            Ok((registry.mrs().allocate(pd, qp.map(Qp::qpn), len)?, tickets))
        })?;
        let tied = qp.map(|qp| qp.tied().clone());
        Ok(FastMr::new(registry.clone(), (stag, len), tied, tickets))
    }

    /// A window of type 1, which shows nothing yet.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_window(&self, pd: Pd) -> Result<Window, DeviceError> {
        self.check_pd(pd)?;
        let (stag, tickets) = self.window(pd, None)?;
        Ok(Window::new(self.0.hub.registry.clone(), (pd, stag), tickets))
    }

    /// A window of type 2 for `qp`, which shows nothing yet.
    ///
    /// # Errors
    /// As [`alloc_window`](Device::alloc_window).
    pub fn alloc_window_for(&self, qp: &Qp) -> Result<QpWindow, DeviceError> {
        self.check_pd(qp.pd())?;
        let (stag, tickets) = self.window(qp.pd(), Some(qp))?;
        Ok(QpWindow::new(self.0.hub.registry.clone(), stag, qp.tied().clone(), tickets))
    }

    fn window(&self, pd: Pd, qp: Option<&Qp>) -> Result<(Stag, [Ticket; 2]), RegisterError> {
        self.patiently(|| {
            let tickets = self.tickets(pd, Sort::Window)?;
            let mrs = self.0.hub.registry.mrs();
            Ok((mrs.allocate_window(pd, qp.map(Qp::qpn))?, tickets))
        })
    }

    /// STags the application has, and may have.
    pub fn mr_usage(&self) -> MrUsage {
        self.0.quota.usage()
    }

    /// The same for one of its protection domains.
    pub fn pd_mr_usage(&self, pd: Pd) -> Option<MrUsage> {
        lock(&self.0.pds).get(&pd).map(|q| q.usage())
    }

    /// Sets `len` octets of the device's memory aside. They are cleared piece by piece and then
    /// registered, by a program that has something else to do in between.
    ///
    /// # Errors
    /// [`DeviceError::Register`].
    pub fn reserve(&self, len: usize) -> Result<Reservation, DeviceError> {
        self.check_mr_size(len)?;
        let (registry, pool) = (&self.0.hub.registry, self.pool(len)?);
        Ok(Reservation(self.patiently(|| registry.reserve(pool, len))?))
    }

    /// Registers what was set aside; what is not clear yet is cleared first.
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr); the memory is free again then.
    pub fn register_reserved(
        &self,
        pd: Pd,
        memory: Reservation,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        self.check_pd(pd)?;
        let (registry, tickets) = (&self.0.hub.registry, self.tickets(pd, Sort::Region)?);
        let registered = registry.register(memory.0, Terms { pd, qpn: None, access, to: None })?;
        Ok(Mr::new(registry.clone(), registered.counted(tickets)))
    }

    fn pool(&self, wanted: usize) -> Result<&Arc<Pool>, DeviceError> {
        let none = RegisterError::NoMemory { wanted, free: 0, size: 0 };
        self.0.pool.as_ref().ok_or(none.into())
    }

    fn check_mr_size(&self, len: usize) -> Result<(), DeviceError> {
        let (value, most) = (len as u64, self.0.limits.max_mr_size);
        if value <= most {
            return Ok(());
        }
        Err(DeviceError::Limit { what: "a region's size", value, least: 0, most })
    }

    /// Registers bytes `[off, off + len)` of memory the application brings. Peers name its first
    /// byte by the tagged offset `to`; the usual choice is its address.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn register_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        (off, len): (usize, usize),
        to: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        let init = MrInit { access, to: Some(to), qp: None };
        self.register_mr_with(pd, region, (off, len), &init)
    }

    /// As [`register_mr`](Device::register_mr), with all that can be said of a region.
    ///
    /// # Errors
    /// As [`register_mr`](Device::register_mr); [`DeviceError::ForeignPd`] also where the queue
    /// pair is in another protection domain.
    pub fn register_mr_with(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        range: (usize, usize),
        init: &MrInit<'_>,
    ) -> Result<Mr, DeviceError> {
        let terms = self.terms(pd, init)?;
        self.check_mr_size(range.1)?;
        self.register(pd, || self.0.hub.registry.bring(region, range, terms))
    }

    /// Tries again for a while when memory or a place in a table is on its way back. The thread
    /// that runs an RNIC inline cannot wait for itself.
    fn patiently<T>(
        &self,
        mut take: impl FnMut() -> Result<T, RegisterError>,
    ) -> Result<T, RegisterError> {
        let hub = &self.0.hub;
        let end = Instant::now() + RECLAIM_WAIT;
        loop {
            let result = take();
            let hopeless = matches!(
                result,
                Ok(_)
                    | Err(RegisterError::OutOfRange)
                    | Err(RegisterError::Mr(
                        MrError::Wrap | MrError::SharedInvalidate | MrError::FastLen
                    ))
            );
            let waits = hub.registry.draining() > 0 && !hub.inline.load(Ordering::Relaxed);
            if hopeless || !waits || Instant::now() >= end {
                return result;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Memory of a device that is nobody's region yet; free again when dropped.
#[derive(Debug)]
pub struct Reservation(Stretch);

impl Reservation {
    /// Clears up to `most` octets more; true when all are clear.
    pub fn clear(&mut self, most: usize) -> bool {
        self.0.clear(most)
    }
}
