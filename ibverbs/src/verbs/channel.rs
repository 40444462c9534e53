//! Completion channels.
//!
//! A program may destroy a channel while another of its threads waits for the channel's events, or
//! cancel that thread: `rping` destroys the channel when its connection fails. With the C library
//! such a thread goes on waiting, in `read` of a closed descriptor. With this library it goes on
//! waiting too, and never touches a destroyed channel: it looks the channel up again when it wakes.
//! It may wake, because the RNIC keeps the descriptor for a moment after the program has closed it.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_verbs::{ChannelError, CompletionChannel};
use libc::{EAGAIN, EBUSY, EINTR, EINVAL, EIO, EMFILE};

use super::cq::CqObject;
use super::{cancel, errno, guarded, number, object, signals};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};

/// A completion channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: ibv_comp_channel,
    /// A number that no other channel ever has.
    number: u64,
    pub(super) channel: CompletionChannel,
    /// The queues by the tags of their events. The library never reuses a tag: the RNIC's handle of
    /// a queue, and an event of the queue, may outlive the program's destruction of the queue for a
    /// moment.
    queues: Mutex<HashMap<u64, Queue>>,
}

// SAFETY: the pointer to the context is the program's, and the library only passes it on; any
// thread may use a channel.
unsafe impl Send for ChannelObject {}
// SAFETY: as above.
unsafe impl Sync for ChannelObject {}

/// The channels of the process by their addresses.
static LIVE: Mutex<Option<HashMap<usize, Arc<ChannelObject>>>> = Mutex::new(None);

/// Runs `f` with the table of channels locked.
fn live<T>(f: impl FnOnce(&mut HashMap<usize, Arc<ChannelObject>>) -> T) -> T {
    let mut guard = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    f(guard.get_or_insert_default())
}

/// A live completion queue: the program's call removes it from the table before freeing it.
struct Queue(*mut ibv_cq);

// SAFETY: the library follows the pointer only while it holds the lock of the table, in which the
// queue is live; any thread may use a queue.
unsafe impl Send for Queue {}

impl ChannelObject {
    /// Returns the object of a program's pointer.
    ///
    /// # Safety
    /// The C contract: `channel` is live for as long as `'a`.
    pub(super) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a ChannelObject {
        // SAFETY: the structure is the first field of a `ChannelObject`.
        unsafe { &*channel.cast::<ChannelObject>() }
    }

    /// Returns a new tag for the events of a queue, or number for a channel.
    pub(super) fn tag() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u64, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a queue.
    pub(super) fn enter(&self, tag: u64, cq: *mut ibv_cq) {
        let mut queues = self.queues();
        queues.insert(tag, Queue(cq));
        self.say(queues.len());
    }

    /// Removes a queue: the program gets none of its events from here on.
    pub(super) fn leave(&self, tag: u64) {
        let mut queues = self.queues();
        queues.remove(&tag);
        self.say(queues.len());
    }

    /// Writes the number of the channel's queues into the structure.
    fn say(&self, count: usize) {
        let word = (&raw const self.base.refcnt).cast_mut();
        // SAFETY: the word is live and aligned, and only this function writes it; programs do not
        // use it.
        let word = unsafe { AtomicI32::from_ptr(word) };
        word.store(c_int::try_from(count).unwrap_or(c_int::MAX), Ordering::Relaxed);
    }

    /// Takes the next event. Returns its queue and the queue's context.
    fn next(&self) -> Result<Option<(*mut ibv_cq, *mut c_void)>, ChannelError> {
        let queues = self.queues();
        while let Some(tag) = self.channel.try_event()? {
            if let Some(&Queue(found)) = queues.get(&tag) {
                // SAFETY: the queue is live while it is in the table, whose lock this thread holds.
                let cq = unsafe { CqObject::of(found) };
                cq.event_fetched();
                return Ok(Some((found, cq.context())));
            }
        }
        Ok(None)
    }
}

/// Makes a completion channel.
///
/// # Safety
/// The C contract: `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    object(|| {
        let channel = CompletionChannel::new().map_err(|e| e.raw_os_error().unwrap_or(EMFILE))?;
        let fd = channel.fd().as_raw_fd();
        let base = ibv_comp_channel { context, fd, refcnt: 0 };
        let (number, queues) = (ChannelObject::tag(), Mutex::default());
        let channel = Arc::new(ChannelObject { base, number, channel, queues });
        let given = Arc::as_ptr(&channel).cast_mut();
        live(|all| all.insert(given.expose_provenance(), channel));
        Ok(given.cast())
    })
}

/// Destroys a completion channel that has no queue left. Returns `EINVAL` for a channel that was
/// already destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // Drop the channel after the lock is released.
        let _channel = live(|all| {
            let found = all.get(&channel.addr()).ok_or(EINVAL)?;
            if !found.queues().is_empty() {
                return Err(EBUSY);
            }
            Ok(all.remove(&channel.addr()))
        })?;
        Ok(())
    })
}

/// Returns true if the program has set the descriptor to non-blocking mode.
fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the call only asks for the flags of a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// The result of [`look`]. A cancelled thread has nothing of it to drop.
enum Look {
    Found(*mut ibv_cq, *mut c_void),
    Failed(c_int),
    /// No event: the descriptor to wait for, and the number of its channel.
    Wait(c_int, u64),
    /// The channel was destroyed while the thread waited: no event can come any more.
    Destroyed,
}

/// Looks for an event of the channel at an address. `is` is the channel's number when the thread
/// began to wait, if it has: another channel may have taken the address since.
fn look(channel: usize, is: Option<u64>) -> Look {
    let found = live(|all| all.get(&channel).cloned());
    let Some(object) = found.filter(|object| is.is_none_or(|is| is == object.number)) else {
        return if is.is_some() { Look::Destroyed } else { Look::Failed(EINVAL) };
    };
    match object.next() {
        Ok(Some((found, context))) => Look::Found(found, context),
        Ok(None) if is_nonblocking(object.base.fd) => Look::Failed(EAGAIN),
        Ok(None) => Look::Wait(object.base.fd, object.number),
        Err(ChannelError::Interrupted) => Look::Failed(EINTR),
        Err(ChannelError::Gone) => Look::Failed(EIO),
        Err(ChannelError::System(e)) => Look::Failed(e.raw_os_error().unwrap_or(EIO)),
    }
}

/// Takes the next event of a channel; waits for one unless the program has set `O_NONBLOCK`.
///
/// The program may cancel a thread while it waits: this frame then holds no value that needs
/// dropping.
///
/// # Safety
/// The C contract: `cq` and `cq_context` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (at, mut is) = (channel.addr(), None);
    loop {
        // `poll` passes over an entry whose descriptor is negative, and so only waits for a signal.
        let fd = match guarded(Look::Failed(EIO), || look(at, is)) {
            Look::Found(found, context) => {
                // SAFETY: the caller keeps the C contract.
                unsafe {
                    cq.write(found);
                    cq_context.write(context);
                }
                return 0;
            }
            Look::Failed(e) => {
                errno::set(e);
                return -1;
            }
            Look::Wait(fd, number) => {
                is = Some(number);
                fd
            }
            Look::Destroyed => -1,
        };
        let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `wait` is one live entry.
        if unsafe { cancel::poll(&raw mut wait, 1, -1) } < 0
            && !(errno::get() == EINTR && signals::all_restart())
        {
            return -1;
        }
    }
}

/// Acknowledges `count` events. A queue with unacknowledged events cannot be destroyed.
///
/// # Safety
/// The caller keeps the C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    guarded((), || {
        // SAFETY: the caller keeps the C contract.
        unsafe { CqObject::of(cq) }.acknowledge(count);
    });
}
