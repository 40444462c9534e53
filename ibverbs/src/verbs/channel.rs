//! Completion channels.
//!
//! A program may destroy a channel for whose events another thread of it waits, or cancel that thread: `rping` does
//! the first when its connection fails. In the C library such a thread waits on, in `read` of a descriptor that is
//! closed. Here it does too; and since it looks for the channel anew when it wakes, it touches none that has gone.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_verbs::{ChannelError, CompletionChannel};
use libc::{EAGAIN, EBUSY, EINTR, EINVAL, EIO, EMFILE};

use super::cq::CqObject;
use super::{cancel, errno, guarded, number, object};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};

/// A completion channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: ibv_comp_channel,
    /// No other channel ever has it.
    number: u64,
    pub(super) channel: CompletionChannel,
    /// The queues by the tags of their events. A tag is never given again: the RNIC's handle of a queue, and an event
    /// of it, may live on for a moment after the program has destroyed the queue.
    queues: Mutex<HashMap<u64, Queue>>,
}

// SAFETY: the pointer to the context is the program's, and only handed on; any thread may use a channel.
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

/// A live completion queue: it is taken out before it is freed.
struct Queue(*mut ibv_cq);

// SAFETY: only followed with the lock of the table, in which it is live; any thread may use a queue.
unsafe impl Send for Queue {}

impl ChannelObject {
    /// The object that a program's pointer is about.
    ///
    /// # Safety
    /// The C contract: `channel` is live for as long as `'a`.
    pub(super) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a ChannelObject {
        // SAFETY: the first field of a `ChannelObject`.
        unsafe { &*channel.cast::<ChannelObject>() }
    }

    /// A tag for the events of a queue, or the number of a channel.
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

    /// Takes a queue out: none of its events is fetched from here on.
    pub(super) fn leave(&self, tag: u64) {
        let mut queues = self.queues();
        queues.remove(&tag);
        self.say(queues.len());
    }

    /// Says in the structure how many queues it has.
    fn say(&self, count: usize) {
        let word = (&raw const self.base.refcnt).cast_mut();
        // SAFETY: a live, aligned word that is only written here; programs have no use for it.
        let word = unsafe { AtomicI32::from_ptr(word) };
        word.store(c_int::try_from(count).unwrap_or(c_int::MAX), Ordering::Relaxed);
    }

    /// The queue of the next event.
    fn next(&self) -> Result<Option<(*mut ibv_cq, *mut c_void)>, ChannelError> {
        let queues = self.queues();
        while let Some(tag) = self.channel.try_event()? {
            if let Some(&Queue(found)) = queues.get(&tag) {
                // SAFETY: live while it is in the table, whose lock is held.
                let cq = unsafe { CqObject::of(found) };
                cq.event_fetched();
                return Ok(Some((found, cq.context())));
            }
        }
        Ok(None)
    }
}

/// A new completion channel.
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

/// Destroys a completion channel that no queue has; `EINVAL` for one that was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        // Dropped behind the lock.
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

/// Whether the program has made the descriptor one that does not wait.
fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: asks for flags of a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// What [`look`] found. A cancelled thread has nothing of it to drop.
enum Look {
    Found(*mut ibv_cq, *mut c_void),
    Failed(c_int),
    /// There is none: the descriptor to wait for, and which channel's it is.
    Wait(c_int, u64),
}

/// Looks for an event of the channel at an address. `is` says which it was when the thread began to wait, if it
/// has: another one may have got its place since.
fn look(channel: usize, is: Option<u64>) -> Look {
    let found = live(|all| all.get(&channel).cloned());
    let Some(object) = found.filter(|object| is.is_none_or(|is| is == object.number)) else {
        return Look::Failed(EINVAL);
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

/// The next event of a channel; waits for it unless the program has set `O_NONBLOCK`.
///
/// A thread may be cancelled while it waits: no value of this frame is dropped then.
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
        match guarded(Look::Failed(EIO), || look(at, is)) {
            Look::Found(found, context) => {
                // SAFETY: the C contract.
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
                let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live entry.
                if unsafe { cancel::poll(&raw mut wait, 1, -1) } < 0 {
                    return -1;
                }
            }
        }
    }
}

/// Acknowledges events, without which their queue cannot be destroyed.
///
/// # Safety
/// The C contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    guarded((), || {
        // SAFETY: the C contract.
        unsafe { CqObject::of(cq) }.acknowledge(count);
    });
}
