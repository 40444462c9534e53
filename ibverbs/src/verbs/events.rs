//! Asynchronous events.
//!
//! The device has one queue of events for the whole process, and programs read the events of each
//! context separately. So a thread of this library takes the events and passes each to the context
//! that has its object; events of the port go to all contexts. The thread sleeps while there is no
//! event, and handles none of the program's signals.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use heddle_shm::threads;
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

/// The events of one context.
pub(crate) struct Events(Arc<Queue>);

/// A queue of events. Its descriptor counts the events, so a read of it waits, or fails at once if
/// the program has made it non-blocking.
struct Queue {
    count: OwnedFd,
    events: Mutex<VecDeque<Event>>,
}

#[derive(Clone, Copy)]
struct Event(ibv_async_event);

// SAFETY: the pointer leads to an object that any thread may use, or is a number.
unsafe impl Send for Event {}

/// Identifies an object by the number under which the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A queue pair, by its number.
    Qp(u32),
    /// A completion queue, by its number.
    Cq(u32),
    /// A shared receive queue, by its number.
    Srq(u32),
}

/// The destination of an object's events.
struct Target {
    queue: Weak<Queue>,
    element: *mut c_void,
}

// SAFETY: the library only passes the pointer on.
unsafe impl Send for Target {}

/// The objects of all contexts, and the contexts.
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
    /// Makes the events of a new context.
    ///
    /// # Errors
    /// Returns an errno if the system has no descriptor or no thread for it.
    pub(super) fn new(device: &Device) -> Result<Events, i32> {
        let device = device.events().map_err(|e| errno::of(&e))?;
        start(device)?;
        // SAFETY: the call only makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO));
        }
        // SAFETY: the call above just made the descriptor, and nothing else owns it.
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

    /// Enters an object, whose events come to this context from now on.
    pub(super) fn enter(&self, key: Key, element: *mut c_void) {
        let queue = Arc::downgrade(&self.0);
        registry(|r| r.objects.insert(key, Target { queue, element }));
    }

    /// Removes an object that the program destroys, and drops its events.
    pub(super) fn leave(&self, key: Key, element: *mut c_void) {
        // While the registry is locked, no thread can add another event of the object.
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
        // SAFETY: the call writes a live array. The call would wait only for a full counter, and so
        // many events do not fit into memory.
        unsafe { libc::write(self.count.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Starts the thread that distributes events, once. The thread lives as long as the device, which
/// lives as long as the process.
fn start(events: DeviceEvents) -> Result<(), i32> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| {
        started = threads::start("heddle-events", move || hand_on(&events));
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

    /// Passes an event to the context of its object, if the program still has the object.
    fn to(&self, key: Key, kind: c_int) {
        let Some(target) = self.objects.get(&key) else { return };
        if kind == IBV_EVENT_SRQ_LIMIT_REACHED {
            // SAFETY: an object is in the registry while it is live, and this thread holds the
            // registry's lock.
            unsafe { SrqObject::of(target.element.cast()) }.limit_reached();
        }
        if let Some(queue) = target.queue.upgrade() {
            queue.push(kind, target.element);
        }
    }

    /// Passes an event of the port to each context.
    fn to_all(&self, kind: c_int) {
        // The number of the port lies in the first bytes of the pointer.
        let port = std::ptr::without_provenance_mut(super::query::PORT.into());
        self.contexts.iter().filter_map(Weak::upgrade).for_each(|queue| queue.push(kind, port));
    }
}

/// Returns true if the event is about the device or its port, and not about an object.
fn is_of_port(kind: c_int) -> bool {
    matches!(
        kind,
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR | IBV_EVENT_GID_CHANGE
    )
}

/// Returns the counts of the object's events.
///
/// # Safety
/// The event's object is live.
unsafe fn events_of<'a>(event: &ibv_async_event) -> Option<&'a cq::Events> {
    let element = event.element;
    // SAFETY: the kind of the event determines the kind of its object, and the caller says that the
    // object is live.
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

/// Takes the next event of a context; waits for one unless the program has set `O_NONBLOCK`.
///
/// The program may cancel a thread while it waits: this frame then holds no value that needs
/// dropping.
///
/// # Safety
/// The C contract: `context` stays open until an event arrives, and `event` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        let mut count = [0u8; 8];
        // SAFETY: the C contract says that `context` is open, and `count` is a live array. `errno`
        // tells why the call fails.
        let got =
            unsafe { cancel::read((*context).async_fd, count.as_mut_ptr().cast(), count.len()) };
        if got != 8 {
            return -1;
        }
        // SAFETY: the caller keeps the C contract.
        if guarded(false, || unsafe { take(context, event) }) {
            return 0;
        }
    }
}

/// Takes the next event of a context. Returns false if the event was dropped with its object, which
/// leaves its count in the descriptor.
///
/// # Safety
/// The C contract: `context` is open, `event` can be written.
unsafe fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> bool {
    // SAFETY: the caller keeps the C contract.
    let queue = &unsafe { Context::of(context) }.events.0;
    let mut events = queue.events();
    let Some(Event(found)) = events.pop_front() else { return false };
    // SAFETY: an object removes its events from the queue, with the queue's lock, before it is
    // freed.
    if let Some(counts) = unsafe { events_of(&found) } {
        counts.fetched();
    }
    // SAFETY: the caller keeps the C contract.
    unsafe { event.write(found) };
    true
}

/// Acknowledges an event. An object with unacknowledged events cannot be destroyed.
///
/// # Safety
/// The C contract: the program has fetched `event`, and acknowledges it once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        // SAFETY: by the C contract the object is live, because its destruction waits for this
        // acknowledgement.
        if let Some(counts) = unsafe { events_of(&*event) } {
            counts.acknowledge(1);
        }
    });
}
