//! The RNIC, as all its applications share it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use heddle_base::{Random, Seed};
use heddle_engine::{OWN_SHARE, Share, ShareTerms};
use heddle_rings::wakeup::WorkerWakers;
use heddle_rings::{Area, Bells};
use heddle_shm::Region;
use heddle_shm::account::Account;
use heddle_types::{AppId, Pd, TenantId};
use heddle_verbs::provider::Parts;
use heddle_verbs::{Device, DeviceError, DeviceLimits, RegisterError, TakenEvents};

use super::local::Local;
use crate::memory::Registry;
use crate::{Board, ControlPlane, ControlRequest, DeviceConfig, NO_PD, lock};

/// An RNIC, for all applications.
#[derive(Debug)]
pub struct Hub {
    pub(super) registry: Arc<Registry>,
    pub(super) control: Box<dyn ControlPlane>,
    pub(super) board: Arc<Board>,
    pub(super) workers: usize,
    /// Wakes workers that sleep.
    pub(super) wakers: Option<Arc<WorkerWakers>>,
    /// No thread polls the workers while an application waits.
    pub(super) inline: AtomicBool,
    pub(super) random: Mutex<Random>,
    pub(super) qpns: Mutex<Numbers>,
    pub(super) next_pd: AtomicU32,
    /// The application that owns each protection domain, of existing applications.
    pub(super) owners: Mutex<HashMap<Pd, AppId>>,
    pub(super) next_app: AtomicU64,
    pub(super) next_id: AtomicU64,
    /// The share of applications of the RNIC's own process.
    own_share: Arc<Share>,
    /// The shares of tenants, by the number of their account.
    shares: Mutex<HashMap<u64, Weak<Share>>>,
}

impl Hub {
    /// Returns an RNIC with `workers` workers, which draws tagged offsets from `seed`.
    pub fn new(
        registry: Arc<Registry>,
        control: Box<dyn ControlPlane>,
        workers: usize,
        seed: &Seed,
    ) -> Arc<Hub> {
        Hub::waking(registry, control, (workers, None), seed)
    }

    /// Returns an RNIC whose workers may sleep, and which wakes them by `wakers`.
    pub fn with_wakers(
        registry: Arc<Registry>,
        control: Box<dyn ControlPlane>,
        wakers: Arc<WorkerWakers>,
        seed: &Seed,
    ) -> Arc<Hub> {
        Hub::waking(registry, control, (wakers.workers(), Some(wakers)), seed)
    }

    fn waking(
        registry: Arc<Registry>,
        control: Box<dyn ControlPlane>,
        (workers, wakers): (usize, Option<Arc<WorkerWakers>>),
        seed: &Seed,
    ) -> Arc<Hub> {
        Arc::new(Hub {
            registry,
            control,
            board: Arc::default(),
            workers,
            wakers,
            inline: AtomicBool::new(true),
            random: Mutex::new(Random::new(seed)),
            qpns: Mutex::default(),
            next_pd: AtomicU32::new(1),
            owners: Mutex::default(),
            next_app: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            own_share: Share::new(OWN_SHARE, ShareTerms::default()),
            shares: Mutex::default(),
        })
    }

    /// Notes that workers and control plane have threads of their own from here on.
    pub fn set_threaded(&self) {
        self.inline.store(false, Ordering::Relaxed);
    }

    /// Returns true if the thread that polls the RNIC is the thread that would wait for it.
    pub fn is_inline(&self) -> bool {
        self.inline.load(Ordering::Relaxed)
    }

    /// Returns a number for a protection domain of `app`. A freed number is used again only after
    /// all other numbers were: a late request that names an old domain finds nothing.
    pub(super) fn name_pd(&self, app: AppId) -> Pd {
        let mut owners = lock(&self.owners);
        loop {
            let pd = Pd(self.next_pd.fetch_add(1, Ordering::Relaxed));
            if pd != NO_PD && !owners.contains_key(&pd) {
                owners.insert(pd, app);
                return pd;
            }
        }
    }

    /// Returns the application that owns a protection domain; `None` once the domain was freed or
    /// the application has ended, and no object is in the domain any more.
    pub fn owner(&self, pd: Pd) -> Option<AppId> {
        lock(&self.owners).get(&pd).copied()
    }

    /// Returns the board on which the RNIC's control plane publishes facts for applications.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Returns the registry of the RNIC's memory.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the share of all applications of the RNIC's own process together.
    pub fn own_share(&self) -> &Arc<Share> {
        &self.own_share
    }

    /// Returns the share of all applications that an account pays for.
    pub(crate) fn share_of(&self, account: &Account) -> Arc<Share> {
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(&account.number()).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Share::new(account.number(), ShareTerms::default());
        shares.insert(account.number(), Arc::downgrade(&share));
        share
    }

    /// Opens a device for one more application.
    ///
    /// # Errors
    /// [`DeviceError`], when there is no memory or the control plane is gone.
    pub fn open(self: &Arc<Hub>, config: &DeviceConfig) -> Result<Device, DeviceError> {
        let area = Area::new(self.area_bytes(config.queues))?;
        let region = match config.memory {
            0 => None,
            len if config.shared => Some(Region::shared(len)?),
            len => Some(Region::anonymous_on(len, config.pages)?),
        };
        Ok(self.open_on(area, region, config, None)?.0)
    }

    /// Returns the wakers of the workers, or `None` where workers cannot sleep.
    pub fn wakers(&self) -> Option<&Arc<WorkerWakers>> {
        self.wakers.as_ref()
    }

    /// Returns the bytes of an area for an application that asked for so many for its queues.
    pub(crate) fn area_bytes(&self, queues: usize) -> usize {
        queues.max(Bells::bytes(self.workers) + 4096)
    }

    /// Opens a device on existing memory. Returns the device and its backend.
    pub(crate) fn open_on(
        self: &Arc<Hub>,
        area: Arc<Area>,
        region: Option<Region>,
        config: &DeviceConfig,
        account: Option<Arc<Account>>,
    ) -> Result<(Device, Arc<Local>), DeviceError> {
        let bells = Bells::new(&area, self.workers)?.waking(self.wakers.clone());
        let pool = match region {
            None => None,
            Some(region) => {
                // Tagged offsets start at a random page in the lower half of the address space.
                let to = lock(&self.random).next_u64() >> 1 & !0xfff;
                let pool = self.registry.pool(Arc::new(region), to);
                Some(pool.ok_or(RegisterError::TooManyRegions)?)
            }
        };
        let memory = pool.as_ref().map(|p| p.region().clone());
        let id = AppId(self.next_app.fetch_add(1, Ordering::Relaxed));
        let taken = TakenEvents::default();
        let tenant = account.as_ref().map_or(TenantId::App(id), |a| TenantId::Account(a.number()));
        let bells_of = bells.clone();
        let share = match &account {
            Some(account) => self.share_of(account),
            None => self.own_share.clone(),
        };
        let open = ControlRequest::Open { app: id, tenant, share, bells: bells_of, taken };
        self.control.request(open)?;
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
        let local = Arc::new(Local::new((id, self.clone()), own, limits, account, config.patient));
        let backend = local.clone();
        Ok((Device::new(Parts { id, area, bells, memory, limits, backend }), local))
    }
}

/// Numbers in use, of 1..2^24, and the last number given.
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

#[cfg(test)]
pub(crate) mod testing {
    use heddle_mr::MrTable;

    use super::*;
    use crate::memory::{RegionMemory, RegionTable};

    /// A control plane that takes every request and carries out none.
    #[derive(Debug)]
    struct Deaf;

    impl ControlPlane for Deaf {
        fn request(&self, _: ControlRequest) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    /// Returns an RNIC with room for one pool and 8 STags, and the memory as its only worker sees
    /// it.
    pub(crate) fn hub() -> (Arc<Hub>, RegionMemory) {
        let regions = Arc::new(RegionTable::new(1, None));
        let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 8));
        let registry = Arc::new(Registry::new(mrs, regions.clone()));
        (Hub::new(registry, Box::new(Deaf), 1, &Seed::from_u64(2)), RegionMemory::new(regions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_pd_numbers_wrap_around_and_skip_those_in_use() {
        let (hub, _worker) = testing::hub();
        let config = DeviceConfig { memory: 1 << 20, ..DeviceConfig::default() };
        let device = hub.open(&config).unwrap();
        let (first, second) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        assert_eq!((first, second), (Pd(1), Pd(2)));
        // The first domain is freed while a region is in it.
        let mr = device.alloc_mr(first, 64, heddle_types::Access::NONE).unwrap();
        device.dealloc_pd(first).unwrap();
        device.dealloc_pd(second).unwrap();
        hub.next_pd.store(u32::MAX, Ordering::Relaxed);
        let round = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
        assert_eq!(round, [Pd(u32::MAX), Pd(2)], "0 is nobody's, and 1 has a region in it");
        drop(mr);
    }
}
