//! An RNIC as one application sees it.
//!
//! Each application of an RNIC has a [`Device`] of its own, with memory, queues and doorbells that it
//! shares with the workers and with no other application.
//!
//! For operations that a device cannot do itself, it asks the RNIC's side (`backend`): the hub in
//! the same process (`local`), or another process through a socket ([`remote`](crate::remote)).
//! Posts and completions need no such request.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use heddle_rings::{Area, Bells};
use heddle_shm::{Region, Waker};
use heddle_types::{AppId, Pd};

use crate::cq::{CompletionChannel, Cq};
use crate::error::DeviceError;
use crate::limits::{DeviceLimits, within};
use crate::port::{PortAddr, PortInfo};
use crate::qp::{Qp, QpInit};
use crate::srq::Srq;

mod addresses;
mod backend;
mod connections;
mod events;
mod pd;
mod registration;

pub use addresses::{DYNAMIC_PORTS, ReserveError};
pub use backend::{Backend, OnEnd, Reserved};
pub use connections::BoundAddr;
pub use events::{DeviceEvent, DeviceEvents, WeakEvents};

pub use pd::OwnedPd;
pub use registration::{MrInit, NotReregistered, Reservation};

/// Largest depth of a send, receive or shared receive queue.
pub const MAX_DEPTH: u32 = 1 << 16;

/// Largest depth of a completion queue. A queue of this depth takes 8 MiB of the area for each
/// worker.
pub const MAX_CQ_DEPTH: u32 = 1 << 18;

/// An RNIC as one application sees it; clones are handles of the same device. Any thread may use
/// it.
///
/// A connection goes on without handles of the device, until either side ends the connection;
/// [`close`](Device::close) ends everything that the device has.
///
/// A server that sleeps until a message has come:
///
/// ```
/// # use heddle_verbs as heddle;
/// use std::time::Duration;
///
/// use heddle::{AcceptParams, Access, Device, Ends, RecvWr};
///
/// fn serve(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
///     let listener = device.bind("10.0.0.2:7174")?;
///     let peer = listener.request(Duration::from_secs(60))?;
///     // A queue pair reaches only regions of its own protection domain.
///     let pd = device.alloc_pd()?;
///     let buffer = device.alloc_mr(pd, 4096, Access::LOCAL_WRITE)?;
///     let ends = Ends::with(device, pd, 32, |init| init.depths(16, 16))?;
///     // Post receives before the peer can send: in iWARP a Send without a receive ends the stream.
///     ends.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0, 4096)]))?;
///     let connection = peer.accept_with(AcceptParams::new(ends.qp.clone()), ends)?;
///     let message = connection.wait(Duration::from_secs(60))?;
///     println!("{} bytes from {}", message.len, connection.remote());
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Device(Arc<App>);

#[derive(Debug)]
struct App {
    id: AppId,
    area: Arc<Area>,
    bells: Bells,
    memory: Option<Arc<Region>>,
    limits: DeviceLimits,
    /// Set once the application has asked for events.
    events: OnceLock<DeviceEvents>,
    /// The thread that makes the queue of events holds this.
    first_events: Mutex<()>,
    backend: Arc<dyn Backend>,
}

/// The parts of a device, regardless of where the RNIC is.
#[derive(Debug)]
pub struct Parts {
    /// Number of the application.
    pub id: AppId,
    /// The memory that the application's queues and doorbells lie in.
    pub area: Arc<Area>,
    /// The doorbells.
    pub bells: Bells,
    /// Memory that the application registers without bringing its own.
    pub memory: Option<Arc<Region>>,
    /// Limits of the application.
    pub limits: DeviceLimits,
    /// Operations that the device cannot do itself.
    pub backend: Arc<dyn Backend>,
}

impl Device {
    /// Returns a device of these parts.
    pub fn new(parts: Parts) -> Device {
        let Parts { id, area, bells, memory, limits, backend } = parts;
        let events = OnceLock::new();
        let first_events = Mutex::default();
        Device(Arc::new(App { id, area, bells, memory, limits, events, first_events, backend }))
    }

    /// Returns the limits of the device; [`DeviceLimits`] says what each number bounds.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Returns the RNIC's ports as they are now: addresses, link, MTU, counters.
    ///
    /// # Errors
    /// [`DeviceError::Gone`], [`DeviceError::Socket`].
    pub fn ports(&self) -> Result<Vec<PortInfo>, DeviceError> {
        self.0.backend.ports()
    }

    /// Returns the addresses of all ports.
    ///
    /// # Errors
    /// As [`ports`](Device::ports).
    pub fn addresses(&self) -> Result<Vec<PortAddr>, DeviceError> {
        Ok(self.ports()?.into_iter().flat_map(|port| port.addresses).collect())
    }

    /// Returns true if the application can register files that others may shrink
    /// ([`Region::of_file`]): the RNIC belongs to this process, or to a process that serves its own
    /// user alone.
    pub fn takes_files(&self) -> bool {
        self.0.backend.takes_files()
    }

    /// Returns the queue of events about the device and its objects, which collects from the first
    /// call on; later calls return the same queue. The queue also gets the limit events of shared
    /// receive queues that are made after the first call and without a waker.
    ///
    /// # Errors
    /// [`DeviceError::Socket`] when the system gives no descriptors; [`DeviceError::Gone`].
    pub fn events(&self) -> Result<DeviceEvents, DeviceError> {
        if let Some(there) = self.0.events.get() {
            return Ok(there.clone());
        }
        let _one = lock(&self.0.first_events);
        if let Some(there) = self.0.events.get() {
            return Ok(there.clone());
        }
        let new = DeviceEvents::new().map_err(|e| DeviceError::Socket(e.to_string()))?;
        // The queue becomes the device's once it gets events: a later call tries again after an
        // error.
        self.0.backend.watch(&new)?;
        Ok(self.0.events.get_or_init(|| new).clone())
    }

    /// Returns a new protection domain: queue pairs reach only regions of their own domain. The
    /// domain stays until [`dealloc_pd`](Device::dealloc_pd) or the end of the device;
    /// [`own_pd`](Device::own_pd) returns a domain that ends with its handle.
    ///
    /// # Errors
    /// [`DeviceError::TooMany`] beyond [`DeviceLimits::max_pds`]; [`DeviceError::Gone`].
    pub fn alloc_pd(&self) -> Result<Pd, DeviceError> {
        self.0.backend.create_pd()
    }

    /// Returns a new protection domain that ends when its handle is dropped.
    ///
    /// # Errors
    /// [`DeviceError::TooMany`].
    pub fn own_pd(&self) -> Result<OwnedPd, DeviceError> {
        Ok(OwnedPd::new(self.clone(), self.alloc_pd()?))
    }

    /// Frees a protection domain. From here on no object can be made in it; existing objects stay
    /// as they are, and the domain counts against [`DeviceLimits::max_pds`] until none exists,
    /// including regions whose memory is not yet free. The domain's number is used again only after
    /// all other numbers were.
    ///
    /// # Errors
    /// [`DeviceError::ForeignPd`], also when the domain was freed before; [`DeviceError::Gone`].
    pub fn dealloc_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        self.check_pd(pd)?;
        self.0.backend.dealloc_pd(pd)
    }

    /// Returns a new completion queue; a completion that arrives while the queue is armed wakes
    /// `waker`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`];
    /// [`DeviceError::WakerWithoutFd`] for a futex, where the RNIC belongs to another process.
    pub fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        a.backend.create_cq(depth, waker)
    }

    /// Returns a new completion queue whose events come to `channel`, one for each arm, under
    /// `tag`.
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
    /// or fewer than before, while it is in use. No completion is lost or comes out of order.
    /// Workers move to the new room at their next turn; until then they use the old room.
    ///
    /// # Errors
    /// [`DeviceError::CqTooSmall`] when more completions are in the queue;
    /// [`DeviceError::CqResizing`] until workers have moved and their earlier completions are
    /// polled; [`DeviceError::Limit`], [`DeviceError::Area`], [`DeviceError::ForeignCq`],
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`]. Nothing has changed then.
    pub fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let a = &*self.0;
        within("a depth", depth, 1, a.limits.max_cqes)?;
        self.check_cq(cq)?;
        a.backend.resize_cq(cq, depth)
    }

    /// Returns a new shared receive queue of `depth` receives with up to `max_sge` pieces each, for
    /// queue pairs of this protection domain. When the queue reaches the limit that it is armed
    /// for, it wakes `waker`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::TooMany`], [`DeviceError::Area`],
    /// [`DeviceError::ForeignPd`]; [`DeviceError::WakerWithoutFd`] as for a completion queue.
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

    /// Returns a new queue pair, which is not connected yet. The application may post receives at
    /// once.
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

    /// Prepares a queue pair whose connection is over for another connection; the queue pair keeps
    /// its number and all its other properties. Its queues are empty afterwards: requests posted
    /// before it was connected are forgotten without a completion. Completions of the old
    /// connection stay in their queues; poll them first, so that they are not taken for later ones.
    /// A handle in another process has to be attached again.
    ///
    /// # Errors
    /// [`DeviceError::QpState`] while the queue pair is in a connection, which it is until
    /// [`Event::Disconnected`](heddle_types::Event::Disconnected); [`DeviceError::QpInUse`] in a race
    /// with a new connection; [`DeviceError::ForeignQp`], [`DeviceError::Overloaded`],
    /// [`DeviceError::Gone`]. Nothing has changed then.
    pub fn reset_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        qp.reset(|| self.0.backend.forget_qp(qp))
    }

    /// Ends a queue pair (`ibv_modify_qp` to the error state): all requests posted to it complete
    /// as flushed, and it refuses posts once its [state](Qp::qp_state) is
    /// [`QpState::Error`](crate::QpState::Error). The call does not wait for either.
    ///
    /// An established connection is reset, and
    /// [`Event::Disconnected`](heddle_types::Event::Disconnected) follows; a connection in start-up is
    /// given up, and [`Event::ConnectError`](heddle_types::Event::ConnectError) follows. A queue pair
    /// that never had a connection is flushed as well. [`reset_qp`](Device::reset_qp) makes the
    /// queue pair usable again. For a queue pair that has ended, the call changes nothing.
    ///
    /// # Errors
    /// [`DeviceError::ForeignQp`], [`DeviceError::Overloaded`], [`DeviceError::Gone`]. Nothing has
    /// changed then.
    pub fn fail_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        if qp.is_dead() {
            return Ok(());
        }
        let claimed = qp.is_claimed();
        qp.set_failing();
        self.0.backend.fail_qp(qp).inspect_err(|_| qp.unset_failing(claimed))
    }

    /// Returns the number of the application.
    pub fn app(&self) -> AppId {
        self.0.id
    }

    /// Returns true if the thread that polls the RNIC is the thread that would wait for it.
    pub(crate) fn is_inline(&self) -> bool {
        self.0.backend.is_inline()
    }

    /// Returns why the RNIC has ended, if it belongs to another process and has ended
    /// ([`DeviceError::Ended`]). The completions of flushed requests may come a little earlier.
    pub fn ended(&self) -> Option<DeviceError> {
        self.0.backend.ended()
    }

    /// Calls `f` once when the RNIC of another process has ended, before this process flushes its
    /// requests and tells of the end by an event; at once if it has already. Does not call `f` if the
    /// device is dropped before, or the RNIC belongs to this process. The call comes on a thread of
    /// the device, and must not wait there. A later call replaces `f`.
    pub fn when_ended(&self, f: impl FnOnce(&DeviceError) + Send + 'static) {
        self.0.backend.when_ended(Box::new(f));
    }

    /// Returns true if the RNIC is in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.0.backend.is_local()
    }

    /// Returns the shared memory that the device's queues and doorbells lie in, for another
    /// process.
    pub fn area(&self) -> &Arc<Area> {
        &self.0.area
    }

    /// Returns the device's doorbells.
    pub fn bells(&self) -> &Bells {
        &self.0.bells
    }

    /// Returns the memory that [`alloc_mr`](Device::alloc_mr) takes from.
    pub fn memory(&self) -> Option<&Arc<Region>> {
        self.0.memory.as_ref()
    }

    /// Checks that the protection domain belongs to this device.
    ///
    /// # Errors
    /// [`DeviceError::ForeignPd`].
    pub fn check_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        if self.0.backend.has_pd(pd) { Ok(()) } else { Err(DeviceError::ForeignPd(pd)) }
    }

    /// Checks that the completion queue belongs to this device. A queue of another application
    /// would show completions to an application that they do not belong to, and applications that
    /// its owner does not trust would fill it.
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

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
