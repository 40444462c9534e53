//! The end of the thread that sleeps.

use heddle_base::sync::atomic::{Ordering, fence};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};

use super::WorkerWakers;

/// Wake-ups taken note of at a time. Any that are left end the next wait.
const EVENTS: usize = 32;

/// A thread that polls workers and may sleep. It calls [`arm`](WorkerSleeper::arm), looks at all its
/// workers once more, waits until [`fd`](WorkerSleeper::fd) is readable, and calls
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

    /// Says that the workers are about to sleep. What anybody has for them from here on wakes them; what
    /// came before is found by the look that has to follow.
    pub fn arm(&mut self) {
        if self.nap & 1 == 0 {
            self.set();
        }
        // Pairs with the barrier between storing something for a worker and looking whether it sleeps.
        fence(Ordering::SeqCst);
    }

    /// Says that they are awake, and forgets wake-ups so far.
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

    /// Readable when somebody has something for one of the workers; after that, [`clear`](Self::clear).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Forgets wake-ups so far; whether there was one. It does not wait.
    pub fn clear(&mut self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::uninit(); EVENTS];
        epoll::wait(&self.epoll, &mut events, Some(&now)).is_ok_and(|(found, _)| !found.is_empty())
    }
}

impl Drop for WorkerSleeper {
    fn drop(&mut self) {
        // Whoever has something for them need not try.
        self.disarm();
    }
}
