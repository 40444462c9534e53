//! Events of a device and its objects that are not completions: one queue for each device.
//!
//! Each event rings once, and a reader takes the ring with the event, so the descriptor is readable
//! exactly while there is an event. The queue checks shared receive queues when they ring: their
//! workers wake the same descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use heddle_shm::Waker;
use heddle_shm::waker::Gathering;
use heddle_types::{DisconnectReason, Event, Qpn};
use serde::{Deserialize, Serialize};

use crate::qp::Qp;
use crate::srq::{LimitEvents, Srq};

/// An event of a device or of an object of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceEvent {
    /// The connection of the queue pair did not end in order; its
    /// [`Disconnected`](heddle_types::Event::Disconnected) event gives the reason.
    QpFatal(Qpn),
    /// The connection of a queue pair with a shared receive queue is over: the queue pair takes no
    /// more receives, and the receives that it took have completed.
    LastWqeReached(Qpn),
    /// The connection of the queue pair is established.
    CommunicationEstablished(Qpn),
    /// The shared receive queue with this [number](crate::Srq::number) has fewer receives than the
    /// limit that the program armed.
    SrqLimitReached(u32),
    /// The completion queue with this [number](crate::Cq::number) has lost completions.
    CqError(u32),
    /// The link of the port with this index is up.
    PortUp(usize),
    /// The link of the port with this index is down.
    PortDown(usize),
    /// The addresses of the port with this index have changed.
    AddressesChanged(usize),
    /// The RNIC has ended. No event follows.
    DeviceFatal,
}

/// The events of one device; clones are handles of the same queue.
///
/// The queue collects events from the first call of [`Device::events`](crate::Device::events) on.
/// It keeps equal events that were not fetched only once, so a program that fetches none has a
/// bounded queue. Events about a queue pair disappear when the queue pair is destroyed.
#[derive(Clone, Debug)]
pub struct DeviceEvents(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wakeups: Arc<Gathering>,
    /// Shared receive queues ring with this waker.
    srq_waker: Waker,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<DeviceEvent>,
    srqs: Vec<Weak<LimitEvents>>,
    /// A reader that passes events on, and is woken for each event.
    reader: Option<Waker>,
    /// No event follows.
    is_over: bool,
}

/// Most events kept. A device has fewer objects, but events about destroyed objects may remain.
const MOST: usize = 1 << 16;

/// A handle that keeps the queue no longer than its device does.
#[derive(Debug)]
pub struct WeakEvents(Weak<Shared>);

impl WeakEvents {
    /// Returns the queue, if a handle of it is left.
    pub fn upgrade(&self) -> Option<DeviceEvents> {
        self.0.upgrade().map(DeviceEvents)
    }
}

impl DeviceEvents {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// The system's error, when it gives no descriptors.
    pub fn new() -> io::Result<DeviceEvents> {
        let wakeups = Arc::new(Gathering::counting()?);
        let srq_waker = Waker::of(&wakeups);
        Ok(DeviceEvents(Arc::new(Shared { wakeups, srq_waker, queue: Mutex::default() })))
    }

    /// Returns the descriptor, for `poll`, `epoll` and the like: readable while there is an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.wakeups.fd()
    }

    /// Takes the oldest event, if there is one, without waiting.
    pub fn poll(&self) -> Option<DeviceEvent> {
        let mut queue = self.queue();
        while let Ok(Some(_)) = self.0.wakeups.take_one() {
            if let Some(event) = queue.take() {
                return Some(event);
            }
        }
        None
    }

    /// Takes the next event; waits for one for `timeout`, or without bound. Returns `None` when
    /// none came in time.
    ///
    /// # Errors
    /// [`Interrupted`](io::ErrorKind::Interrupted) by a signal, and other errors of the system.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<DeviceEvent>> {
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.poll() {
                return Ok(Some(event));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.0.wakeups.wait_readable(left)?;
        }
    }

    /// Returns a handle that does not keep the queue.
    pub fn downgrade(&self) -> WeakEvents {
        WeakEvents(Arc::downgrade(&self.0))
    }

    /// Makes each event wake `reader` too.
    pub fn set_reader(&self, reader: Waker) {
        self.queue().reader = Some(reader);
    }

    /// Returns the waker with which a shared receive queue rings here.
    pub fn srq_waker(&self) -> Waker {
        self.0.srq_waker.clone()
    }

    /// Adds the limit events of a shared receive queue to this queue.
    pub fn watch_srq(&self, srq: &Srq) {
        let mut queue = self.queue();
        queue.srqs.retain(|limit| limit.strong_count() > 0);
        queue.srqs.push(srq.weak_limit());
    }

    /// Adds an event, unless an equal event waits.
    pub fn push(&self, event: DeviceEvent) {
        let mut queue = self.queue();
        if queue.is_over || queue.events.contains(&event) || queue.events.len() >= MOST {
            return;
        }
        queue.is_over = event == DeviceEvent::DeviceFatal;
        queue.events.push_back(event);
        self.0.wakeups.ring();
        if let Some(reader) = &queue.reader {
            reader.wake();
        }
    }

    /// Drops the events of a queue pair, which is being destroyed.
    pub fn forget_qp(&self, qpn: Qpn) {
        let mut queue = self.queue();
        let before = queue.events.len();
        queue.events.retain(|event| event.qpn() != Some(qpn));
        for _ in queue.events.len()..before {
            let _ = self.0.wakeups.take_one();
        }
    }

    /// Adds the events that a connection's event implies for its queue pair.
    pub fn note(&self, event: &Event, qp: Option<&Qp>) {
        match event {
            Event::Established { qpn, .. } => {
                self.push(DeviceEvent::CommunicationEstablished(*qpn));
            }
            Event::Disconnected { qpn, reason, .. } => {
                if let Some(qp) = qp {
                    let init = qp.init();
                    for cq in [&init.send_cq, &init.recv_cq] {
                        if cq.has_just_failed() {
                            self.push(DeviceEvent::CqError(cq.number()));
                        }
                    }
                    if init.srq.is_some() {
                        self.push(DeviceEvent::LastWqeReached(*qpn));
                    }
                }
                if !matches!(reason, DisconnectReason::Orderly) {
                    self.push(DeviceEvent::QpFatal(*qpn));
                }
            }
            _ => {}
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn take(&mut self) -> Option<DeviceEvent> {
        let reached = || {
            let mut limits = self.srqs.iter().filter_map(Weak::upgrade);
            limits.find(|limit| limit.take_one())
        };
        let event = |limit: Arc<LimitEvents>| DeviceEvent::SrqLimitReached(limit.number());
        self.events.pop_front().or_else(|| reached().map(event))
    }
}

impl DeviceEvent {
    /// Returns the queue pair that the event is about.
    fn qpn(&self) -> Option<Qpn> {
        match *self {
            DeviceEvent::QpFatal(qpn)
            | DeviceEvent::LastWqeReached(qpn)
            | DeviceEvent::CommunicationEstablished(qpn) => Some(qpn),
            _ => None,
        }
    }
}
