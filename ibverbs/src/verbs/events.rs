//! Asynchronous events.
//!
//! The device has one queue of events for the whole process, and programs read those of each context. So a thread of
//! this library takes them and hands each to the context that has its object; events of the port go to all. The
//! thread sleeps unless there is one, and handles no signal of the program's.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use heddle_verbs::threads::without_signals;
use heddle_verbs::{Device, DeviceEvent, DeviceEvents};
use libc::EIO;

use super::cq::{self, CqObject};
use super::device::Context;
use super::qp::QpObject;
use super::srq::SrqObject;
use super::{cancel, errno, guarded};
use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE,
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_context,
};

/// Events of one context.
pub(crate) struct Events(Arc<Queue>);

/// A queue of events. Its descriptor counts them, so that reading it waits, or not, as the program has set it.
struct Queue {
    count: OwnedFd,
    events: Mutex<VecDeque<Event>>,
}

#[derive(Clone, Copy)]
struct Event(ibv_async_event);

// SAFETY: a pointer to an object that any thread may use, or a number.
unsafe impl Send for Event {}

/// An object by the number under which the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A queue pair's number.
    Qp(u32),
    /// A completion queue's.
    Cq(u32),
    /// A shared receive queue's.
    Srq(u32),
}

/// Where the events of an object go.
struct Target {
    queue: Weak<Queue>,
    element: *mut c_void,
}

// SAFETY: the pointer is only handed on.
unsafe impl Send for Target {}

/// Objects of all contexts, and the contexts.
#[derive(Default)]
struct Registry {
    objects: HashMap<Key, Target>,
    contexts: Vec<Weak<Queue>>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Runs `f` with the registry locked.
fn registry<T>(f: impl FnOnce(&mut Registry) -> T) -> T {
    let mut guard = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    f(guard.get_or_insert_with(Registry::default))
}

impl Events {
    /// The events of a new context.
    ///
    /// # Errors
    /// An errno when the system has no descriptor or no thread for it.
    pub(super) fn new(device: &Device) -> Result<Events, i32> {
        let device = device.events().map_err(|e| errno::of(&e))?;
        start(device)?;
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO));
        }
        // SAFETY: just made, and nobody else's.
        let count = unsafe { OwnedFd::from_raw_fd(fd) };
        let queue = Arc::new(Queue { count, events: Mutex::default() });
        registry(|r| {
            r.contexts.retain(|context| context.strong_count() > 0);
            r.contexts.push(Arc::downgrade(&queue));
        });
        Ok(Events(queue))
    }

    pub(super) fn fd(&self) -> c_int {
        self.0.count.as_raw_fd()
    }

    /// Enters an object, whose events come here from now on.
    pub(super) fn enter(&self, key: Key, element: *mut c_void) {
        let queue = Arc::downgrade(&self.0);
        registry(|r| r.objects.insert(key, Target { queue, element }));
    }

    /// Takes an object out that is destroyed, and forgets its events.
    pub(super) fn leave(&self, key: Key, element: *mut c_void) {
        // With the registry locked nobody is about to add one.
        registry(|r| {
            r.objects.remove(&key);
            self.0.events().retain(|Event(e)| is_of_port(e.event_type) || e.element != element);
        });
    }
}

impl Queue {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event_type: c_int, element: *mut c_void) {
        self.events().push_back(Event(ibv_async_event { element, event_type }));
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes a live array. Only a full counter makes this wait, and so many events do not fit into memory.
        unsafe { libc::write(self.count.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Starts the thread that hands events on, once. It lasts as long as the device, which is as long as the process.
fn start(events: DeviceEvents) -> Result<(), i32> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("heddle-events".into());
        started = without_signals(|| thread.spawn(move || hand_on(&events))).map(drop);
    });
    started.map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))
}

fn hand_on(events: &DeviceEvents) {
    loop {
        match events.wait(None) {
            Ok(Some(event)) => {
                registry(|r| r.dispatch(event));
                if event == DeviceEvent::DeviceFatal {
                    return;
                }
            }
            Ok(None) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

impl Registry {
    fn dispatch(&self, event: DeviceEvent) {
        match event {
            DeviceEvent::QpFatal(qpn) => self.to(Key::Qp(qpn.0), IBV_EVENT_QP_FATAL),
            DeviceEvent::LastWqeReached(qpn) => {
                self.to(Key::Qp(qpn.0), IBV_EVENT_QP_LAST_WQE_REACHED);
            }
            DeviceEvent::CommunicationEstablished(qpn) => {
                self.to(Key::Qp(qpn.0), IBV_EVENT_COMM_EST);
            }
            DeviceEvent::SrqLimitReached(number) => {
                self.to(Key::Srq(number), IBV_EVENT_SRQ_LIMIT_REACHED);
            }
            DeviceEvent::CqError(number) => self.to(Key::Cq(number), IBV_EVENT_CQ_ERR),
            DeviceEvent::PortUp(_) => self.to_all(IBV_EVENT_PORT_ACTIVE),
            DeviceEvent::PortDown(_) => self.to_all(IBV_EVENT_PORT_ERR),
            DeviceEvent::AddressesChanged(_) => self.to_all(IBV_EVENT_GID_CHANGE),
            DeviceEvent::DeviceFatal => self.to_all(IBV_EVENT_DEVICE_FATAL),
        }
    }

    /// Hands an event to the context of its object, if the program still has that.
    fn to(&self, key: Key, kind: c_int) {
        let Some(target) = self.objects.get(&key) else { return };
        if kind == IBV_EVENT_SRQ_LIMIT_REACHED {
            // SAFETY: an object is in the registry while it is live, and the registry is locked.
            unsafe { SrqObject::of(target.element.cast()) }.limit_reached();
        }
        if let Some(queue) = target.queue.upgrade() {
            queue.push(kind, target.element);
        }
    }

    /// Hands an event of the port to each context.
    fn to_all(&self, kind: c_int) {
        // The number of the port lies in the first bytes of the pointer.
        let port = std::ptr::without_provenance_mut(super::query::PORT.into());
        self.contexts.iter().filter_map(Weak::upgrade).for_each(|queue| queue.push(kind, port));
    }
}

/// Whether an event is about the device or its port, and not about an object.
fn is_of_port(kind: c_int) -> bool {
    matches!(
        kind,
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR | IBV_EVENT_GID_CHANGE
    )
}

/// The count of the object's events.
///
/// # Safety
/// The event's object is live.
unsafe fn events_of<'a>(event: &ibv_async_event) -> Option<&'a cq::Events> {
    let element = event.element;
    // SAFETY: the kind of the event is the kind of its object, which the caller says is live.
    unsafe {
        match event.event_type {
            kind if is_of_port(kind) => None,
            IBV_EVENT_CQ_ERR => Some(CqObject::of(element.cast()).events()),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                Some(SrqObject::of(element.cast()).events())
            }
            _ => Some(QpObject::of(element.cast()).events()),
        }
    }
}

/// The next event of a context; waits for it unless the program has set `O_NONBLOCK`.
///
/// A thread may be cancelled while it waits: no value of this frame is dropped then.
///
/// # Safety
/// The C contract: `context` is open until an event is there, `event` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        let mut count = [0u8; 8];
        // SAFETY: the C contract, and a live array. `errno` says why it fails.
        let got =
            unsafe { cancel::read((*context).async_fd, count.as_mut_ptr().cast(), count.len()) };
        if got != 8 {
            return -1;
        }
        // SAFETY: the C contract.
        if guarded(false, || unsafe { take(context, event) }) {
            return 0;
        }
    }
}

/// Takes the next event of a context, unless it was forgotten, which leaves it counted.
///
/// # Safety
/// The C contract: `context` is open, `event` can be written.
unsafe fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> bool {
    // SAFETY: the C contract.
    let queue = &unsafe { Context::of(context) }.events.0;
    let mut events = queue.events();
    let Some(Event(found)) = events.pop_front() else { return false };
    // SAFETY: an object takes its events out of the queue, with its lock, before it is freed.
    if let Some(counts) = unsafe { events_of(&found) } {
        counts.fetched();
    }
    // SAFETY: the C contract.
    unsafe { event.write(found) };
    true
}

/// Acknowledges an event, without which its object cannot be destroyed.
///
/// # Safety
/// The C contract: `event` was fetched, and is acknowledged once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        // SAFETY: the C contract: its object is live, since its end waits for this.
        if let Some(counts) = unsafe { events_of(&*event) } {
            counts.acknowledge(1);
        }
    });
}
