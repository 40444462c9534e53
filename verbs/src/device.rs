//! An RNIC as one application sees it.
//!
//! A [`Hub`] is the RNIC for all of them: STags, regions, numbers, and the way to the control plane.
//! Each application has a [`Device`] of its own, with memory, queues and doorbells that it shares with
//! the workers and with no other application.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use heddle_base::{Random, Seed};
use heddle_cm::{AppId, CmId, ListenerId};
use heddle_iwarp::{Access, MrError, Pd, Qpn, Stag};

use crate::cq::{Cq, CqLink};
use crate::error::DeviceError;
use crate::event::{EventQueue, Taken};
use crate::limits::count::{Count, Place};
use crate::limits::{DeviceLimits, within};
use crate::memory::{
    MrUsage, Pool, Quota, Region, RegisterError, Registered, Registry, Sort, Stretch, Terms, Ticket,
};
use crate::mr::Mr;
use crate::params::{AcceptParams, ConnectParams, ListenParams};
use crate::qp::{Owner, Qp, QpInit};
use crate::ring::{Area, BELLS, Bells};
use crate::srq::Srq;
use crate::waker::Waker;
use crate::window::{FastMr, QpWindow, Window};

/// Largest depth of a send, receive or completion queue.
pub const MAX_DEPTH: u32 = 1 << 16;

/// How long an allocation waits for memory that is on its way back.
const RECLAIM_WAIT: Duration = Duration::from_millis(100);

/// What a device asks of the control plane.
#[derive(Debug)]
pub enum ControlRequest {
    /// There is a new application: its doorbells are to be heard.
    Open {
        /// Its number.
        app: AppId,
        /// Its doorbells.
        bells: Bells,
        /// Where it counts the events it has taken.
        taken: Taken,
    },
    /// A completion queue has other room: workers are to write there.
    ResizeCq {
        /// Whose it is.
        app: AppId,
        /// What they write to.
        link: CqLink,
    },
    /// A request to the connection manager.
    Cm {
        /// Who asks.
        app: AppId,
        /// For what.
        request: heddle_cm::Request,
        /// The queue pair it is about, in Connect and Accept.
        qp: Option<Qp>,
        /// Where its events go, in Listen and Connect.
        events: Option<EventQueue>,
    },
}

/// The way to the control plane.
pub trait ControlPlane: Send + Sync + std::fmt::Debug {
    /// Hands a request over. It does not wait for an answer.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError>;
}

/// One RNIC, for all applications.
#[derive(Debug)]
pub struct Hub {
    registry: Arc<Registry>,
    control: Box<dyn ControlPlane>,
    workers: usize,
    /// Nobody polls the workers while an application waits.
    inline: AtomicBool,
    random: Mutex<Random>,
    qpns: Mutex<Numbers>,
    next_pd: AtomicU32,
    next_app: AtomicU64,
    next_id: AtomicU64,
}

/// What an application gets of its own.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Octets of memory it can register without bringing its own; none at 0.
    pub memory: usize,
    /// Octets for its queues.
    pub queues: usize,
    /// Whether another process can be given the memory (then it is not on hugepages).
    pub shared: bool,
    /// How many of each thing it can have.
    pub limits: DeviceLimits,
}

impl Default for DeviceConfig {
    /// 64 MiB of memory, 16 MiB of queues, for this process; the usual limits.
    fn default() -> Self {
        DeviceConfig {
            memory: 64 << 20,
            queues: 16 << 20,
            shared: false,
            limits: DeviceLimits::default(),
        }
    }
}

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
        let area = Area::new(config.queues.max(Bells::octets(self.workers) + 4096))?;
        let bells = Bells::new(&area, self.workers)?;
        let pool = match config.memory {
            0 => None,
            len => {
                let region =
                    if config.shared { Region::shared(len) } else { Region::anonymous(len) };
                // Tagged offsets start anywhere in the lower half of the address space, at a page.
                let to = lock(&self.random).next_u64() >> 1 & !0xfff;
                let pool = self.registry.pool(Arc::new(region?), to);
                Some(pool.ok_or(RegisterError::TooManyRegions)?)
            }
        };
        let app = AppId(self.next_app.fetch_add(1, Ordering::Relaxed));
        let taken = Taken::default();
        self.control.request(ControlRequest::Open { app, bells: bells.clone(), taken })?;
        let stags = u32::try_from(self.registry.mrs().capacity()).unwrap_or(u32::MAX);
        let most = DeviceLimits {
            max_mrs: stags,
            max_mrs_per_pd: stags,
            max_mws: stags,
            max_mws_per_pd: stags,
            ..DeviceLimits::MOST
        };
        let limits = config.limits.within(&most);
        Ok(Device(Arc::new(App {
            id: app,
            hub: self.clone(),
            area,
            bells,
            pool,
            slots: Mutex::default(),
            pds: Mutex::default(),
            quota: Quota::new(limits.mrs()),
            limits,
            qps: Count::default(),
            cqs: Count::default(),
            srqs: Count::default(),
            next_cq: AtomicU32::new(0),
        })))
    }
}

/// Numbers that are taken, of 1..2^24, and where to look for the next.
#[derive(Debug, Default)]
struct Numbers {
    taken: HashSet<u32>,
    last: u32,
}

/// Queue pair numbers have 24 bits, as those of other RNICs.
const QPN_MASK: u32 = 0x00ff_ffff;

impl Numbers {
    fn take(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) & QPN_MASK;
            if self.last != 0 && self.taken.insert(self.last) {
                return self.last;
            }
        }
    }
}

/// An RNIC as one application sees it; clones are handles of the same one. Any thread may use it.
///
/// A connection goes on without handles, until either side ends it; [`close`](Device::close) ends all
/// there is.
#[derive(Clone, Debug)]
pub struct Device(Arc<App>);

#[derive(Debug)]
struct App {
    id: AppId,
    hub: Arc<Hub>,
    area: Arc<Area>,
    bells: Bells,
    pool: Option<Arc<Pool>>,
    /// Doorbells in use, a bit each.
    slots: Mutex<Vec<u64>>,
    /// With the STags each has.
    pds: Mutex<HashMap<Pd, Arc<Quota>>>,
    quota: Arc<Quota>,
    limits: DeviceLimits,
    qps: Count,
    cqs: Count,
    srqs: Count,
    next_cq: AtomicU32,
}

impl Drop for App {
    fn drop(&mut self) {
        let request = heddle_cm::Request::AppGone;
        // Without a control plane there is nothing left to end.
        let _ = self.hub.control.request(ControlRequest::Cm {
            app: self.id,
            request,
            qp: None,
            events: None,
        });
    }
}

impl Device {
    /// What can be had of it; see there for what each number bounds.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// A new protection domain: queue pairs reach only regions of their own.
    ///
    /// Beyond [`DeviceLimits::max_pds`] it is one that nothing can be made in
    /// ([`DeviceError::ForeignPd`]); [`create_pd`](Device::create_pd) says so at once.
    pub fn alloc_pd(&self) -> Pd {
        self.create_pd().unwrap_or(NO_PD)
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// [`DeviceError::TooMany`].
    pub fn create_pd(&self) -> Result<Pd, DeviceError> {
        let a = &*self.0;
        let most = a.limits.max_pds;
        let mut pds = lock(&a.pds);
        if pds.len() >= usize::try_from(most).unwrap_or(usize::MAX) {
            return Err(DeviceError::TooMany { what: "protection domains", most });
        }
        // Applications come and go for longer than numbers last, perhaps; none is given twice.
        let next = |n: u32| n.checked_add(1);
        let relaxed = Ordering::Relaxed;
        let pd = a.hub.next_pd.fetch_update(relaxed, relaxed, next);
        let pd =
            pd.map(Pd).map_err(|_| DeviceError::TooMany { what: "protection domains", most })?;
        pds.insert(pd, Quota::new(a.limits.mrs_per_pd()));
        Ok(pd)
    }

    /// A completion queue; `waker` is woken when it is armed and a completion arrives.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`].
    pub fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        let place = a.cqs.take("completion queues", a.limits.max_cqs)?;
        let number = a.next_cq.fetch_add(1, Ordering::Relaxed);
        Ok(Cq::new(&a.area, number, depth, a.hub.workers, waker, place)?)
    }

    /// Gives a completion queue room for `depth` completions (rounded up to a power of two), more or
    /// fewer than it has, while it is in use. No completion is lost or comes out of order. Workers go
    /// over to the new room at their next turn; until then the old one is what they have.
    ///
    /// # Errors
    /// [`DeviceError::CqTooSmall`] when more are in it, [`DeviceError::CqResizing`] until workers have
    /// gone over and what they wrote before is polled; [`DeviceError::Limit`],
    /// [`DeviceError::Area`], [`DeviceError::ForeignCq`], [`DeviceError::Overloaded`],
    /// [`DeviceError::Gone`]. Nothing has changed then.
    pub fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        self.check_cq(cq)?;
        cq.resize(depth, |link| a.hub.control.request(ControlRequest::ResizeCq { app: a.id, link }))
    }

    /// A shared receive queue of `depth` receives with up to `max_sge` pieces each, for queue pairs of
    /// this protection domain; `waker` is woken when the limit it is armed for is reached.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`],
    /// [`DeviceError::ForeignPd`].
    pub fn create_srq(
        &self,
        pd: Pd,
        depth: u32,
        max_sge: u16,
        waker: Option<Waker>,
    ) -> Result<Srq, DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_srq_wrs)?;
        within("a number of SGEs", max_sge.into(), 1, a.limits.max_sges.into())?;
        self.check_pd(pd)?;
        let place = a.srqs.take("shared receive queues", a.limits.max_srqs)?;
        Ok(Srq::new(&a.area, pd, (depth, max_sge), waker, place)?)
    }

    /// A queue pair that is not connected yet. Receives may be posted at once.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn create_qp(&self, pd: Pd, init: QpInit) -> Result<Qp, DeviceError> {
        let app = &self.0;
        let most = &app.limits;
        within("a depth", init.sq_depth, 1, most.max_qp_wrs)?;
        within("a depth", init.rq_depth, 1, most.max_qp_wrs)?;
        within("a number of SGEs", init.max_send_sge.into(), 1, most.max_sges.into())?;
        within("a number of SGEs", init.max_recv_sge.into(), 1, most.max_sges.into())?;
        within("inline data", init.max_inline.into(), 0, most.max_inline.into())?;
        self.check_pd(pd)?;
        self.check_cq(&init.send_cq)?;
        self.check_cq(&init.recv_cq)?;
        let user = match &init.srq {
            Some(srq) if srq.is_for(&app.area, pd) => Some(srq.join()?),
            Some(_) => return Err(DeviceError::ForeignSrq),
            None => None,
        };
        let place = app.qps.take("queue pairs", most.max_qps)?;
        let full = DeviceError::TooMany { what: "queue pairs", most: most.max_qps };
        let bell = take_slot(&mut lock(&app.slots)).ok_or(full)?;
        let qpn = Qpn(lock(&app.hub.qpns).take());
        let owner = app.clone();
        let owner = Owner(Some(Box::new(move || {
            drop(user);
            owner.forget(qpn, bell, place);
        })));
        Ok(Qp::new(&app.area, app.id, (qpn, pd), (app.bells.clone(), bell), init, owner)?)
    }

    /// Makes a queue pair whose connection is over fit for another one, with the number and all else
    /// it has. Its queues are empty afterwards: what was posted before it was connected is forgotten
    /// without a completion. Completions of its connection stay in their queues; poll them first, so
    /// that they are not taken for later ones. A handle in another process is to be attached anew.
    ///
    /// # Errors
    /// [`DeviceError::QpState`] while it is in a connection, which it is until
    /// [`Event::Disconnected`](heddle_cm::Event::Disconnected); [`DeviceError::QpInUse`] in a race with
    /// one; [`DeviceError::ForeignQp`], [`DeviceError::Overloaded`], [`DeviceError::Gone`]. Nothing has
    /// changed then.
    pub fn reset_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        let request = heddle_cm::Request::ForgetQp { qpn: qp.qpn() };
        qp.reset(|| self.request(request, None, None))
    }

    /// Registers `len` zeroed bytes of the device's memory.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_mr(&self, pd: Pd, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.alloc_mr_with(pd, len, &MrInit { access, ..MrInit::default() })
    }

    /// As [`alloc_mr`](Device::alloc_mr), for one queue pair alone: no other stream can use the STag,
    /// and its peer may be given [`Access::REMOTE_INVALIDATE`].
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr).
    pub fn alloc_mr_for(&self, qp: &Qp, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.alloc_mr_with(qp.pd(), len, &MrInit { access, qp: Some(qp), to: None })
    }

    /// As [`alloc_mr`](Device::alloc_mr), with all that can be said of a region.
    ///
    /// # Errors
    /// As [`alloc_mr`](Device::alloc_mr); [`DeviceError::ForeignPd`] also where the queue pair is in
    /// another protection domain.
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

    /// An STag for fast registrations of up to `len` octets, for all queue pairs of `pd`. The table has
    /// none valid until a send queue registers one.
    ///
    /// # Errors
    /// [`DeviceError::Register`], [`DeviceError::ForeignPd`].
    pub fn alloc_fast_mr(&self, pd: Pd, len: u64) -> Result<FastMr, DeviceError> {
        self.fast_mr(pd, None, len)
    }

    /// As [`alloc_fast_mr`](Device::alloc_fast_mr), for one queue pair alone: registrations may have
    /// [`Access::REMOTE_INVALIDATE`]. They end with its connection.
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

    /// Registers bytes `[off, off + len)` of memory the application brings. Peers name its first byte
    /// by the tagged offset `to`; the usual choice is its address.
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
    /// As [`register_mr`](Device::register_mr); [`DeviceError::ForeignPd`] also where the queue pair is
    /// in another protection domain.
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

    /// Tries again for a while when memory or a place in a table is on its way back. The thread that
    /// runs an RNIC inline cannot wait for itself.
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

    /// Listens for connections; [`Event::Listening`](heddle_cm::Event::Listening) or
    /// [`Event::ListenFailed`](heddle_cm::Event::ListenFailed) comes through `events`, and then the
    /// requests.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn listen(
        &self,
        addr: SocketAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        let id = ListenerId(self.next_id());
        let request = heddle_cm::Request::Listen { id, addr, params };
        self.request(request, None, Some(events.clone()))?;
        Ok(id)
    }

    /// Stops listening; connections go on.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn unlisten(&self, id: ListenerId) -> Result<(), DeviceError> {
        self.request(heddle_cm::Request::Unlisten { id }, None, None)
    }

    /// Connects to a peer; the outcome comes through `events`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::ForeignQp`], [`DeviceError::QpInUse`] and [`DeviceError::QpDead`] at once;
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn connect(
        &self,
        remote: SocketAddr,
        params: ConnectParams,
        events: &EventQueue,
    ) -> Result<CmId, DeviceError> {
        let id = CmId(self.next_id());
        let (qp, params) = params.split();
        self.check_depths(params.ird, params.ord)?;
        self.claim(&qp)?;
        // One worker takes all connections that are made from here, until there are several queues.
        let worker = heddle_cm::WorkerId(0);
        let request = heddle_cm::Request::Connect { id, worker, remote, params };
        self.request(request, Some(qp.clone()), Some(events.clone()))
            .inspect_err(|_| qp.unclaim())?;
        Ok(id)
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// As [`connect`](Device::connect).
    pub fn accept(&self, id: CmId, params: AcceptParams) -> Result<(), DeviceError> {
        self.answer(id, params, None)
    }

    /// As [`accept`](Device::accept); further events of the connection come through `events` and not
    /// through those of the listener.
    ///
    /// # Errors
    /// As [`connect`](Device::connect).
    pub fn accept_on(
        &self,
        id: CmId,
        params: AcceptParams,
        events: &EventQueue,
    ) -> Result<(), DeviceError> {
        self.answer(id, params, Some(events.clone()))
    }

    fn answer(
        &self,
        id: CmId,
        params: AcceptParams,
        events: Option<EventQueue>,
    ) -> Result<(), DeviceError> {
        let (qp, params) = params.split();
        self.check_depths(params.ird, params.ord)?;
        self.claim(&qp)?;
        let request = heddle_cm::Request::Accept { id, params };
        self.request(request, Some(qp.clone()), events).inspect_err(|_| qp.unclaim())
    }

    /// Rejects a connection request, with at most 508 octets for the peer's application.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn reject(&self, id: CmId, private_data: Vec<u8>) -> Result<(), DeviceError> {
        self.reject_with(id, private_data, None)
    }

    /// As [`reject`](Device::reject), and names the RDMA Reads that we need to have outstanding: the
    /// peer takes fewer (RFC 6581 section 9.1). In MPA revision 1 it is a plain rejection.
    ///
    /// # Errors
    /// As [`reject`](Device::reject).
    pub fn reject_needing_ord(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        ord: u16,
    ) -> Result<(), DeviceError> {
        self.reject_with(id, private_data, Some(ord))
    }

    fn reject_with(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        needs_ord: Option<u16>,
    ) -> Result<(), DeviceError> {
        self.request(heddle_cm::Request::Reject { id, private_data, needs_ord }, None, None)
    }

    /// Ends a connection in order; [`Event::Disconnected`](heddle_cm::Event::Disconnected) follows.
    /// One that is not established yet is given up at once, and
    /// [`Event::ConnectError`](heddle_cm::Event::ConnectError) follows.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        self.request(heddle_cm::Request::Disconnect { id }, None, None)
    }

    /// Ends everything the application has, whoever still holds handles: listeners end, connections
    /// are reset. For an application that is gone and cannot do so itself. Its memory comes back
    /// with the handles of its regions.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn close(&self) -> Result<(), DeviceError> {
        self.request(heddle_cm::Request::AppGone, None, None)
    }

    /// The application's number.
    pub fn app(&self) -> AppId {
        self.0.id
    }

    /// The RNIC it is a device of.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    /// The shared memory its queues and doorbells lie in, for another process.
    pub fn area(&self) -> &Arc<Area> {
        &self.0.area
    }

    /// Its doorbells.
    pub fn bells(&self) -> &Bells {
        &self.0.bells
    }

    /// The memory that [`alloc_mr`](Device::alloc_mr) takes from.
    pub fn memory(&self) -> Option<&Arc<Region>> {
        self.0.pool.as_ref().map(|p| p.region())
    }

    fn next_id(&self) -> u64 {
        self.0.hub.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn check_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        if lock(&self.0.pds).contains_key(&pd) { Ok(()) } else { Err(DeviceError::ForeignPd(pd)) }
    }

    /// What is kept of a peer's Reads, and of our own, is bounded by the device whatever is agreed.
    fn check_depths(&self, ird: u16, ord: u16) -> Result<(), DeviceError> {
        let most = &self.0.limits;
        within("an IRD", ird.into(), 0, most.max_ird.into())?;
        within("an ORD", ord.into(), 0, most.max_ord.into())
    }

    /// A completion queue of another application would show what is not its own, and be filled by
    /// those it does not trust.
    fn check_cq(&self, cq: &Cq) -> Result<(), DeviceError> {
        if cq.is_in(&self.0.area) { Ok(()) } else { Err(DeviceError::ForeignCq) }
    }

    fn check_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        if qp.app() == self.0.id && qp.is_in(&self.0.area) {
            Ok(())
        } else {
            Err(DeviceError::ForeignQp(qp.qpn()))
        }
    }

    /// The queue pair for a connection that is to be, which nothing else has from here on.
    fn claim(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        if qp.is_dead() {
            return Err(DeviceError::QpDead);
        }
        if qp.claim() { Ok(()) } else { Err(DeviceError::QpInUse) }
    }

    fn request(
        &self,
        request: heddle_cm::Request,
        qp: Option<Qp>,
        events: Option<EventQueue>,
    ) -> Result<(), DeviceError> {
        self.0.hub.control.request(ControlRequest::Cm { app: self.0.id, request, qp, events })
    }
}

impl App {
    /// The last handle of a queue pair is gone.
    fn forget(&self, qpn: Qpn, bell: u32, place: Place) {
        let request = heddle_cm::Request::ForgetQp { qpn };
        let _ = self.hub.control.request(ControlRequest::Cm {
            app: self.id,
            request,
            qp: None,
            events: None,
        });
        if let Some(word) = lock(&self.slots).get_mut(bell as usize / 64) {
            *word &= !(1 << (bell % 64));
        }
        lock(&self.hub.qpns).taken.remove(&qpn.0);
        drop(place);
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

/// A protection domain that is nobody's: numbers start at 1.
const NO_PD: Pd = Pd(0);

/// A free doorbell, now taken.
fn take_slot(slots: &mut Vec<u64>) -> Option<u32> {
    let at = slots.iter().position(|w| *w != u64::MAX).unwrap_or(slots.len());
    if at >= BELLS / 64 {
        return None;
    }
    if at == slots.len() {
        slots.push(0);
    }
    let bit = slots[at].trailing_ones();
    slots[at] |= 1 << bit;
    Some(u32::try_from(at).ok()? * 64 + bit)
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
