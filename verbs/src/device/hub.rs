//! The RNIC, as all its applications share it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use heddle_base::{Random, Seed};
use heddle_cm::AppId;

use super::local::Local;
use super::{ControlPlane, ControlRequest, Device, DeviceConfig, Parts, lock};
use crate::error::DeviceError;
use crate::event::Taken;
use crate::limits::DeviceLimits;
use crate::memory::{Region, RegisterError, Registry};
use crate::ring::{Area, Bells};

/// One RNIC, for all applications.
#[derive(Debug)]
pub struct Hub {
    pub(super) registry: Arc<Registry>,
    pub(super) control: Box<dyn ControlPlane>,
    pub(super) workers: usize,
    /// Nobody polls the workers while an application waits.
    pub(super) inline: AtomicBool,
    pub(super) random: Mutex<Random>,
    pub(super) qpns: Mutex<Numbers>,
    pub(super) next_pd: AtomicU32,
    pub(super) next_app: AtomicU64,
    pub(super) next_id: AtomicU64,
}

impl Hub {
    /// An RNIC with `workers` workers; `seed` is where tagged offsets are drawn from.
    pub fn new(
        registry: Arc<Registry>,
        control: Box<dyn ControlPlane>,
        workers: usize,
        seed: &Seed,
    ) -> Arc<Hub> {
        Arc::new(Hub {
            registry,
            control,
            workers,
            inline: AtomicBool::new(true),
            random: Mutex::new(Random::new(seed)),
            qpns: Mutex::default(),
            next_pd: AtomicU32::new(1),
            next_app: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// From here on workers and control plane have threads of their own.
    pub fn set_threaded(&self) {
        self.inline.store(false, Ordering::Relaxed);
    }

    /// Whether the thread that polls the RNIC is the one that would wait for it.
    pub fn is_inline(&self) -> bool {
        self.inline.load(Ordering::Relaxed)
    }

    /// The memory of the RNIC.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// A device for one more application.
    ///
    /// # Errors
    /// [`DeviceError`], when there is no memory or the control plane is gone.
    pub fn open(self: &Arc<Hub>, config: &DeviceConfig) -> Result<Device, DeviceError> {
        let area = Area::new(self.area_octets(config.queues))?;
        let region = match config.memory {
            0 => None,
            len if config.shared => Some(Region::shared(len)?),
            len => Some(Region::anonymous(len)?),
        };
        Ok(self.open_on(area, region, config)?.0)
    }

    /// Octets of an area for an application that asked for so many for its queues.
    pub(crate) fn area_octets(&self, queues: usize) -> usize {
        queues.max(Bells::octets(self.workers) + 4096)
    }

    /// A device on memory that there is already, and what is behind it.
    pub(crate) fn open_on(
        self: &Arc<Hub>,
        area: Arc<Area>,
        region: Option<Region>,
        config: &DeviceConfig,
    ) -> Result<(Device, Arc<Local>), DeviceError> {
        let bells = Bells::new(&area, self.workers)?;
        let pool = match region {
            None => None,
            Some(region) => {
                // Tagged offsets start anywhere in the lower half of the address space, at a page.
                let to = lock(&self.random).next_u64() >> 1 & !0xfff;
                let pool = self.registry.pool(Arc::new(region), to);
                Some(pool.ok_or(RegisterError::TooManyRegions)?)
            }
        };
        let memory = pool.as_ref().map(|p| p.region().clone());
        let id = AppId(self.next_app.fetch_add(1, Ordering::Relaxed));
        let taken = Taken::default();
        self.control.request(ControlRequest::Open { app: id, bells: bells.clone(), taken })?;
        let stags = u32::try_from(self.registry.mrs().capacity()).unwrap_or(u32::MAX);
        let most = DeviceLimits {
            max_mrs: stags,
            max_mrs_per_pd: stags,
            max_mws: stags,
            max_mws_per_pd: stags,
            ..DeviceLimits::MOST
        };
        let limits = config.limits.within(&most);
        let own = (area.clone(), bells.clone(), pool);
        let local = Arc::new(Local::new((id, self.clone()), own, limits, config.patient));
        let backend = local.clone();
        Ok((Device::new(Parts { id, area, bells, memory, limits, backend }), local))
    }
}

/// Numbers that are taken, of 1..2^24, and where to look for the next.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) taken: HashSet<u32>,
    pub(super) last: u32,
}

/// Queue pair numbers have 24 bits, as those of other RNICs.
const QPN_MASK: u32 = 0x00ff_ffff;

impl Numbers {
    pub(super) fn take(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) & QPN_MASK;
            if self.last != 0 && self.taken.insert(self.last) {
                return self.last;
            }
        }
    }
}
