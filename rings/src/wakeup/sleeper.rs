//! The end of the thread that sleeps.

use heddle_base::sync::atomic::{Ordering, fence};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};

use super::WorkerWakers;

/// Most wake-ups that one look notes. Any that are left end the next wait.
const EVENTS: usize = 32;

/// A thread that polls workers and may sleep. The thread calls [`arm`](WorkerSleeper::arm), looks
/// at all its workers once more, waits until [`fd`](WorkerSleeper::fd) is readable, and calls
/// [`disarm`](WorkerSleeper::disarm).
pub struct WorkerSleeper {
    wakers: Arc<WorkerWakers>,
    epoll: Arc<OwnedFd>,
    workers: Box<[usize]>,
    /// Odd while armed.
    nap: u64,
}

impl fmt::Debug for WorkerSleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSleeper").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl WorkerSleeper {
    pub(super) fn new(
        wakers: Arc<WorkerWakers>,
        epoll: Arc<OwnedFd>,
        workers: Box<[usize]>,
    ) -> WorkerSleeper {
        WorkerSleeper { wakers, epoll, workers, nap: 0 }
    }

    /// Says that the workers are about to sleep. Work that any thread stores for them from here on
    /// wakes them; the caller finds earlier work by looking once more after this call.
    pub fn arm(&mut self) {
        if self.nap & 1 == 0 {
            self.set();
        }
        // Pairs with the barrier between storing work for a worker and loading whether the worker
        // sleeps.
        fence(Ordering::SeqCst);
    }

    /// Says that the workers are awake, and forgets all wake-ups so far.
    pub fn disarm(&mut self) {
        if self.nap & 1 != 0 {
            self.set();
        }
    }

    fn set(&mut self) {
        self.nap = self.nap.wrapping_add(1);
        for &w in &self.workers {
            self.wakers.page.store(w, self.nap);
        }
    }

    /// Returns the descriptor, which is readable when one of the workers has work; after that, call
    /// [`clear`](Self::clear).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Forgets all wake-ups so far, without waiting. Returns true if there was one.
    pub fn clear(&mut self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::uninit(); EVENTS];
        epoll::wait(&self.epoll, &mut events, Some(&now)).is_ok_and(|(found, _)| !found.is_empty())
    }
}

impl Drop for WorkerSleeper {
    fn drop(&mut self) {
        // Threads with work for these workers need not try to wake them any more.
        self.disarm();
    }
}
