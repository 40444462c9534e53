//! Regions, fast registrations and windows: the objects by which an application names memory, for
//! peers and for itself.

use std::sync::Arc;

use heddle_shm::Region;
use heddle_types::{Access, Pd};

use super::{Device, Reserved};
use crate::error::DeviceError;
use crate::mr::MrUsage;
use crate::mr::{Bound, Mr};
use crate::qp::Qp;
use crate::window::{FastMr, QpWindow, Window, WindowFor};

/// Parameters with which an application registers a region.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrInit<'a> {
    /// Rights of the region.
    pub access: Access,
    /// Tagged offset of the region's first byte: 0, an address, any number. When absent, the
    /// device's memory gets a random offset, and memory that the application brings gets its
    /// address.
    pub to: Option<u64>,
    /// The only queue pair whose stream may use the region.
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
    /// STag, and the application may give the peer [`Access::REMOTE_INVALIDATE`].
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr).
    pub fn alloc_mr_for(&self, qp: &Qp, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.alloc_mr_with(qp.pd(), len, &MrInit { access, qp: Some(qp), to: None })
    }

    /// As [`alloc_mr`](Device::alloc_mr), with all parameters of a region.
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr); [`DeviceError::ForeignPd`] also where the queue pair is
    /// in another protection domain.
    pub fn alloc_mr_with(&self, pd: Pd, len: usize, init: &MrInit<'_>) -> Result<Mr, DeviceError> {
        self.check_terms(pd, init)?;
        self.check_mr_size(len)?;
        self.0.backend.alloc_mr(pd, len, init)
    }

    /// Checks protection domain and queue pair of a registration.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn check_terms(&self, pd: Pd, init: &MrInit<'_>) -> Result<(), DeviceError> {
        self.check_pd(pd)?;
        match init.qp.filter(|qp| qp.pd() != pd) {
            Some(qp) => Err(DeviceError::ForeignPd(qp.pd())),
            None => Ok(()),
        }
    }

    /// Returns an STag for fast registrations of up to `len` bytes, for all queue pairs of `pd`.
    /// The STag is not valid until a send queue registers memory with it.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_fast_mr(&self, pd: Pd, len: u64) -> Result<FastMr, DeviceError> {
        self.fast_mr(pd, None, len)
    }

    /// As [`alloc_fast_mr`](Device::alloc_fast_mr), for one queue pair alone: registrations may
    /// have [`Access::REMOTE_INVALIDATE`]. They end with the queue pair's connection.
    ///
    /// # Errors
    /// As [`alloc_fast_mr`](Device::alloc_fast_mr).
    pub fn alloc_fast_mr_for(&self, qp: &Qp, len: u64) -> Result<FastMr, DeviceError> {
        self.fast_mr(qp.pd(), Some(qp), len)
    }

    fn fast_mr(&self, pd: Pd, qp: Option<&Qp>, len: u64) -> Result<FastMr, DeviceError> {
        self.check_pd(pd)?;
        Ok(FastMr::new(self.0.backend.alloc_fast(pd, qp, len)?, len))
    }

    /// Returns a window of type 1, which shows no memory yet.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_window(&self, pd: Pd) -> Result<Window, DeviceError> {
        self.check_pd(pd)?;
        Ok(Window::new(self.0.backend.alloc_window(pd, WindowFor::Domain)?))
    }

    /// Returns a window of type 2 for `qp`, which shows no memory yet.
    ///
    /// # Errors
    /// As [`alloc_window`](Device::alloc_window).
    pub fn alloc_window_for(&self, qp: &Qp) -> Result<QpWindow, DeviceError> {
        self.check_pd(qp.pd())?;
        Ok(QpWindow::new(self.0.backend.alloc_window(qp.pd(), WindowFor::Qp(qp))?))
    }

    /// A window of type 2 that any queue pair of `pd` may bind, which shows nothing yet. While it is
    /// bound, the peer of the queue pair that has bound it may use it, and no other.
    ///
    /// # Errors
    /// As [`alloc_window`](Device::alloc_window).
    pub fn alloc_window_for_any(&self, pd: Pd) -> Result<QpWindow, DeviceError> {
        self.check_pd(pd)?;
        Ok(QpWindow::new(self.0.backend.alloc_window(pd, WindowFor::AnyQp)?))
    }

    /// Returns the STags that the application has and may have; none when the RNIC's process is
    /// gone.
    pub fn mr_usage(&self) -> MrUsage {
        self.0.backend.mr_usage(None).unwrap_or_default()
    }

    /// Returns the STags of one of the application's protection domains.
    pub fn pd_mr_usage(&self, pd: Pd) -> Option<MrUsage> {
        self.0.backend.mr_usage(Some(pd))
    }

    /// Sets `len` bytes of the device's memory aside. The program clears them piece by piece and
    /// then registers them, and can do other work in between.
    ///
    /// # Errors
    /// [`DeviceError::Register`].
    pub fn reserve(&self, len: usize) -> Result<Reservation, DeviceError> {
        self.check_mr_size(len)?;
        Ok(Reservation(self.0.backend.clone().reserve(len)?))
    }

    /// Registers memory that was set aside, after clearing any part that is not clear yet.
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
        memory.0.register(pd, access)
    }

    /// Checks the length of a registration.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn check_mr_size(&self, len: usize) -> Result<(), DeviceError> {
        let (value, most) = (len as u64, self.0.limits.max_mr_size);
        if value <= most {
            return Ok(());
        }
        Err(DeviceError::Limit { what: "a region's size", value, least: 0, most })
    }

    /// Registers bytes `[off, off + len)` of memory that the application brings. Peers name the
    /// first byte by the tagged offset `to`; the usual choice is the byte's address.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`]. Where the RNIC belongs to another
    /// process, the memory has to be shareable ([`Region::shared`], [`Region::from_fd`]):
    /// [`DeviceError::Region`].
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

    /// As [`register_mr`](Device::register_mr), with all parameters of a region.
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
        self.register_mr_while(pd, region, range, init, &mut || {})
    }

    /// As [`register_mr_with`](Device::register_mr_with), and calls `meanwhile` once while an RNIC
    /// in another process answers: for slow work that has to be done before the region is used. If
    /// this function does not ask the RNIC, it does not call `meanwhile`.
    ///
    /// # Errors
    /// As [`register_mr_with`](Device::register_mr_with).
    pub fn register_mr_while(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        range: (usize, usize),
        init: &MrInit<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Mr, DeviceError> {
        self.check_terms(pd, init)?;
        self.check_mr_size(range.1)?;
        self.0.backend.register_mr(pd, region, range, init, meanwhile)
    }
}

impl Device {
    /// Registers memory that the application has brought again, and unregisters the old region
    /// (`ibv_rereg_mr`): in another protection domain, with other rights, or another range of the
    /// same [`Region`]. The new region has another STag. The old STag names no memory from here on,
    /// and for a moment both are valid.
    ///
    /// # Errors
    /// [`NotReregistered`], with the region unchanged: as [`register_mr`](Device::register_mr);
    /// [`DeviceError::MrBound`] while windows or fast registrations of the region are valid,
    /// [`DeviceError::MrOfDevice`] for memory that [`alloc_mr`](Device::alloc_mr) gave.
    pub fn rereg_mr(
        &self,
        mr: Mr,
        pd: Pd,
        range: (usize, usize),
        init: &MrInit<'_>,
    ) -> Result<Mr, NotReregistered> {
        let refused = |mr, error| NotReregistered { mr: Box::new(mr), error };
        if self.memory().is_some_and(|memory| Arc::ptr_eq(memory, mr.region())) {
            return Err(refused(mr, DeviceError::MrOfDevice));
        }
        let new = match self.register_mr_with(pd, mr.region(), range, init) {
            Ok(new) => new,
            Err(e) => return Err(refused(mr, e)),
        };
        match mr.deregister() {
            Ok(()) => Ok(new),
            Err(Bound { mr, count }) => {
                Err(NotReregistered { mr, error: DeviceError::MrBound { count } })
            }
        }
    }
}

/// A region that stays registered as before.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotReregistered {
    /// The region, unchanged.
    pub mr: Box<Mr>,
    /// Why the new registration failed.
    pub error: DeviceError,
}

/// Memory of a device that belongs to no region yet; dropping this frees the memory.
#[derive(Debug)]
pub struct Reservation(Box<dyn Reserved>);

impl Reservation {
    /// Clears up to `most` more bytes. Returns true when all are clear.
    pub fn clear(&mut self, most: usize) -> bool {
        self.0.clear(most)
    }
}
