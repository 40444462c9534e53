//! An RNIC as one application sees it.
//!
//! A [`Hub`] is the RNIC for all of them: STags, regions, numbers, and the way to the control
//! plane. Each application has a [`Device`] of its own, with memory, queues and doorbells that it
//! shares with the workers and with no other application.
//!
//! What a device cannot do by itself it asks of whoever has the RNIC (`backend`): the hub in the same
//! process (`local`), or another process through a socket ([`remote`](crate::remote)). Posts and
//! completions ask nobody.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use heddle_cm::{AppId, TenantId};
use heddle_iwarp::Pd;

use crate::cq::{CompletionChannel, Cq, CqLink};
use crate::error::DeviceError;
use crate::event::{EventQueue, Taken};
use crate::limits::{DeviceLimits, within};
use crate::memory::{PageSize, Region};
use crate::port::{PortAddr, PortInfo};
use crate::qp::{Qp, QpInit};
use crate::ring::{Area, Bells};
use crate::srq::Srq;
use crate::waker::Waker;

mod backend;
mod board;
mod connections;
mod events;
mod hub;
pub(crate) mod local;
mod names;
mod pd;
mod registration;

pub(crate) use backend::{Backend, Reserved};
pub use board::Board;
pub use connections::BoundAddr;
pub(crate) use events::WeakEvents;
pub use events::{DeviceEvent, DeviceEvents};
pub use hub::Hub;
pub(crate) use local::Domain;
pub use names::{DYNAMIC_PORTS, ReserveError};
pub use pd::OwnedPd;
pub use registration::{MrInit, NotReregistered, Reservation};

/// Largest depth of a send, receive or shared receive queue.
pub const MAX_DEPTH: u32 = 1 << 16;

/// Largest depth of a completion queue. One of this depth takes 8 MiB of the area for each worker.
pub const MAX_CQ_DEPTH: u32 = 1 << 18;

/// What a device asks of the control plane.
#[derive(Debug)]
pub enum ControlRequest {
    /// There is a new application: its doorbells are to be heard.
    Open {
        /// Its number.
        app: AppId,
        /// Who pays for what it takes of common stores.
        tenant: TenantId,
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
    /// A queue pair is to end, whatever it does.
    FailQp {
        /// Whose it is.
        app: AppId,
        /// Which.
        qp: Qp,
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

/// What an application gets of its own.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// Octets of memory it can register without bringing its own; none at 0.
    pub memory: usize,
    /// Octets for its queues.
    pub queues: usize,
    /// Whether another process can be given the memory (then it is not on hugepages).
    pub shared: bool,
    /// Pages of the memory, where it is for this process alone. It lies at the processor socket of the
    /// thread that opens the device.
    pub pages: PageSize,
    /// How many of each thing it can have.
    pub limits: DeviceLimits,
    /// Whether a registration waits a little for memory that is on its way back.
    pub patient: bool,
}

impl Default for DeviceConfig {
    /// 64 MiB of memory, 16 MiB of queues, for this process; the usual limits.
    fn default() -> Self {
        DeviceConfig {
            memory: 64 << 20,
            queues: 16 << 20,
            shared: false,
            pages: PageSize::Auto,
            limits: DeviceLimits::default(),
            patient: true,
        }
    }
}

/// An RNIC as one application sees it; clones are handles of the same one. Any thread may use it.
///
/// A connection goes on without handles, until either side ends it; [`close`](Device::close) ends
/// all there is.
#[derive(Clone, Debug)]
pub struct Device(Arc<App>);

#[derive(Debug)]
struct App {
    id: AppId,
    area: Arc<Area>,
    bells: Bells,
    memory: Option<Arc<Region>>,
    limits: DeviceLimits,
    /// Once the application has asked for it.
    events: OnceLock<DeviceEvents>,
    backend: Arc<dyn Backend>,
}

/// What a device is made of, whoever has the RNIC.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) id: AppId,
    pub(crate) area: Arc<Area>,
    pub(crate) bells: Bells,
    pub(crate) memory: Option<Arc<Region>>,
    pub(crate) limits: DeviceLimits,
    pub(crate) backend: Arc<dyn Backend>,
}

impl Device {
    pub(crate) fn new(parts: Parts) -> Device {
        let Parts { id, area, bells, memory, limits, backend } = parts;
        let events = OnceLock::new();
        Device(Arc::new(App { id, area, bells, memory, limits, events, backend }))
    }

    /// What can be had of it; see there for what each number bounds.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// The ports of the RNIC as they are: addresses, link, MTU, counters.
    ///
    /// # Errors
    /// [`DeviceError::Gone`], [`DeviceError::Socket`].
    pub fn ports(&self) -> Result<Vec<PortInfo>, DeviceError> {
        self.0.backend.ports()
    }

    /// The addresses of all ports.
    ///
    /// # Errors
    /// As [`ports`](Device::ports).
    pub fn addresses(&self) -> Result<Vec<PortAddr>, DeviceError> {
        Ok(self.ports()?.into_iter().flat_map(|port| port.addresses).collect())
    }

    /// Whether files that others may shrink can be registered ([`Region::of_file`]): the RNIC is of this process, or one
    /// that serves its own user alone.
    pub fn takes_files(&self) -> bool {
        self.0.backend.takes_files()
    }

    /// What happens to the device and its objects, from the first call on; later calls give the same queue.
    /// Limit events of shared receive queues come there too, of those that are made after the first call
    /// and without a waker.
    ///
    /// # Errors
    /// [`DeviceError::Socket`] when the system gives no descriptors; [`DeviceError::Gone`].
    pub fn events(&self) -> Result<DeviceEvents, DeviceError> {
        if let Some(there) = self.0.events.get() {
            return Ok(there.clone());
        }
        let new = DeviceEvents::new().map_err(|e| DeviceError::Socket(e.to_string()))?;
        let events = self.0.events.get_or_init(|| new);
        self.0.backend.watch(events)?;
        Ok(events.clone())
    }

    /// A new protection domain: queue pairs reach only regions of their own. It stays until
    /// [`dealloc_pd`](Device::dealloc_pd) or the end of the device; [`own_pd`](Device::own_pd) gives one that
    /// ends with its handle.
    ///
    /// # Errors
    /// [`DeviceError::TooMany`] beyond [`DeviceLimits::max_pds`]; [`DeviceError::Gone`].
    pub fn alloc_pd(&self) -> Result<Pd, DeviceError> {
        self.0.backend.create_pd()
    }

    /// A new protection domain that is given back when its handle is dropped.
    ///
    /// # Errors
    /// [`DeviceError::TooMany`].
    pub fn own_pd(&self) -> Result<OwnedPd, DeviceError> {
        Ok(OwnedPd::new(self.clone(), self.alloc_pd()?))
    }

    /// Gives a protection domain back. Nothing can be made in it from here on; what is in it stays as
    /// it is, and the domain counts against [`DeviceLimits::max_pds`] until all of that is gone,
    /// regions whose memory is on its way back included. Its number is not given to another until all
    /// other numbers were.
    ///
    /// # Errors
    /// [`DeviceError::ForeignPd`], also when it was given back before; [`DeviceError::Gone`].
    pub fn dealloc_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        self.check_pd(pd)?;
        self.0.backend.dealloc_pd(pd)
    }

    /// A completion queue; `waker` is woken when it is armed and a completion arrives.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`];
    /// [`DeviceError::WakerWithoutFd`] for a futex, where the RNIC is another process's.
    pub fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        a.backend.create_cq(depth, waker)
    }

    /// A completion queue whose events come to `channel`, one for each arm, under `tag`.
    ///
    /// # Errors
    /// As [`create_cq`](Device::create_cq).
    pub fn create_cq_on(
        &self,
        depth: u32,
        channel: &CompletionChannel,
        tag: u64,
    ) -> Result<Cq, DeviceError> {
        let place = channel.begin();
        let cq = self.create_cq(depth, Some(place.waker()))?;
        cq.join(place, tag);
        Ok(cq)
    }

    /// Gives a completion queue room for `depth` completions (rounded up to a power of two), more
    /// or fewer than it has, while it is in use. No completion is lost or comes out of order.
    /// Workers go over to the new room at their next turn; until then the old one is what they
    /// have.
    ///
    /// # Errors
    /// [`DeviceError::CqTooSmall`] when more are in it, [`DeviceError::CqResizing`] until workers
    /// have gone over and what they wrote before is polled; [`DeviceError::Limit`],
    /// [`DeviceError::Area`], [`DeviceError::ForeignCq`], [`DeviceError::Overloaded`],
    /// [`DeviceError::Gone`]. Nothing has changed then.
    pub fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        self.check_cq(cq)?;
        a.backend.resize_cq(cq, depth)
    }

    /// A shared receive queue of `depth` receives with up to `max_sge` pieces each, for queue pairs
    /// of this protection domain; `waker` is woken when the limit it is armed for is reached.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`],
    /// [`DeviceError::ForeignPd`]; [`DeviceError::WakerWithoutFd`] as of a completion queue.
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
        let events = a.events.get().filter(|_| waker.is_none());
        let waker = waker.or_else(|| events.map(DeviceEvents::srq_waker));
        let srq = a.backend.create_srq(pd, (depth, max_sge), waker)?;
        if let Some(events) = events {
            events.watch_srq(&srq);
        }
        Ok(srq)
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
        if init.srq.as_ref().is_some_and(|srq| !srq.is_for(&app.area, pd)) {
            return Err(DeviceError::ForeignSrq);
        }
        app.backend.clone().create_qp(pd, init)
    }

    /// Makes a queue pair whose connection is over fit for another one, with the number and all
    /// else it has. Its queues are empty afterwards: what was posted before it was connected is
    /// forgotten without a completion. Completions of its connection stay in their queues; poll
    /// them first, so that they are not taken for later ones. A handle in another process is to be
    /// attached anew.
    ///
    /// # Errors
    /// [`DeviceError::QpState`] while it is in a connection, which it is until
    /// [`Event::Disconnected`](heddle_cm::Event::Disconnected); [`DeviceError::QpInUse`] in a race
    /// with one; [`DeviceError::ForeignQp`], [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    /// Nothing has changed then.
    pub fn reset_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        qp.reset(|| self.0.backend.forget_qp(qp))
    }

    /// Ends a queue pair (`ibv_modify_qp` to the error state): all that is posted to it completes as flushed,
    /// and posts are refused once its [state](Qp::qp_state) is [`QpState::Error`](crate::QpState::Error). It
    /// does not wait for either.
    ///
    /// A connection that it has is reset, and [`Event::Disconnected`](heddle_cm::Event::Disconnected) follows;
    /// one that is on its way is given up, and [`Event::ConnectError`](heddle_cm::Event::ConnectError) follows.
    /// A queue pair that never had one is flushed as well. [`reset_qp`](Device::reset_qp) makes it usable
    /// again. On one that has ended it changes nothing.
    ///
    /// # Errors
    /// [`DeviceError::ForeignQp`], [`DeviceError::Overloaded`], [`DeviceError::Gone`]. Nothing has changed
    /// then.
    pub fn fail_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        if qp.is_dead() {
            return Ok(());
        }
        let claimed = qp.is_claimed();
        qp.set_failing();
        self.0.backend.fail_qp(qp).inspect_err(|_| qp.unset_failing(claimed))
    }

    /// The application's number.
    pub fn app(&self) -> AppId {
        self.0.id
    }

    /// The RNIC it is a device of, where that runs in this process. An RNIC of another process
    /// ([`Device::open`]) has its hub there, so a device of it returns `None`.
    pub fn hub(&self) -> Option<&Arc<Hub>> {
        self.0.backend.hub()
    }

    /// Whether the thread that polls the RNIC is the one that would wait for it.
    pub(crate) fn is_inline(&self) -> bool {
        self.hub().is_some_and(|hub| hub.is_inline())
    }

    /// Whether the RNIC is in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.hub().is_some()
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
        self.0.memory.as_ref()
    }

    pub(crate) fn check_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        if self.0.backend.has_pd(pd) { Ok(()) } else { Err(DeviceError::ForeignPd(pd)) }
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
}

/// A protection domain that is nobody's: numbers start at 1.
const NO_PD: Pd = Pd(0);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
