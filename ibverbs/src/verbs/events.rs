//! Asynchronous events.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use heddle_verbs::Device;
use libc::EIO;

use super::cq::CqObject;
use super::device::Context;
use super::guarded;
use super::qp::QpObject;
use super::srq::SrqObject;
use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_context,
};

/// Events of one context. Its descriptor counts them, so that reading it waits, or not, as the program has set it.
pub(crate) struct Events {
    count: OwnedFd,
    queue: Mutex<VecDeque<Event>>,
}

#[derive(Clone, Copy)]
struct Event(ibv_async_event);

// SAFETY: a pointer to an object that any thread may use, or a number.
unsafe impl Send for Event {}

impl Events {
    pub(super) fn new(_device: &Device) -> Result<Events, i32> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO));
        }
        // SAFETY: just made, and nobody else's.
        let count = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Events { count, queue: Mutex::default() })
    }

    pub(super) fn fd(&self) -> c_int {
        self.count.as_raw_fd()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the events of an object that is destroyed.
    pub(super) fn forget(&self, element: *mut c_void) {
        self.queue().retain(|Event(e)| is_of_port(e.event_type) || e.element != element);
    }
}

/// Whether an event is about the device or its port, and not about an object.
fn is_of_port(kind: c_int) -> bool {
    matches!(kind, IBV_EVENT_DEVICE_FATAL | IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR)
}

/// Which events of the object an event is one of.
///
/// # Safety
/// The event's object is live.
unsafe fn events_of<'a>(event: &ibv_async_event) -> Option<&'a super::cq::Events> {
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
/// # Safety
/// The C contract: `event` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the C contract.
        let events = &unsafe { Context::of(context) }.events;
        loop {
            let mut count = [0u8; 8];
            // SAFETY: reads into a live array. `errno` says why it fails.
            let got = unsafe { libc::read(events.fd(), count.as_mut_ptr().cast(), count.len()) };
            if got != 8 {
                return -1;
            }
            let mut queue = events.queue();
            // One that was forgotten is still counted.
            if let Some(Event(found)) = queue.pop_front() {
                // SAFETY: an object takes its events out of the queue before it is freed.
                if let Some(counts) = unsafe { events_of(&found) } {
                    counts.fetched();
                }
                // SAFETY: the C contract.
                unsafe { event.write(found) };
                return 0;
            }
        }
    })
}

/// Acknowledges an event, without which its object cannot be destroyed.
///
/// # Safety
/// The C contract: `event` was fetched, and is acknowledged once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        // SAFETY: the C contract: its object is live, since it waits for this.
        if let Some(counts) = unsafe { events_of(&*event) } {
            counts.acknowledge(1);
        }
    });
}
