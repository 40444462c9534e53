//! Waking a worker that sleeps: by a doorbell, an order, or frames that another worker hands on.
//!
//! ```text
//!   application, control plane,                        thread that polls workers
//!   other worker
//!     store the work                                     store "asleep"
//!     full barrier                                       full barrier
//!     load "asleep" ── set? ── write to an eventfd ─▶    look once more; no work: wait
//! ```
//!
//! Each side stores before it loads the other side's word, with a full barrier between, so at least
//! one side sees the other's store: either the thread finds the work when it looks once more, or
//! the other side finds the thread asleep and wakes it. The eventfd remembers, so a wake-up that
//! comes between that look and the wait ends the wait at once. While the worker is awake, and a
//! worker that has work is, a wake-up costs one load of a line that no thread writes.
//!
//! **Which barrier.** Ringing a bell is an atomic operation anyway, and on x86 such an operation is
//! a full barrier. Orders are few. A worker that hands frames on pays a fence for each burst, and
//! only where threads may sleep at all. (`membarrier` would remove this fence, at the price of an
//! interrupt of every processor of the process each time that a thread goes to sleep.)
//!
//! **Trust.** An application in another process maps the words for reading and cannot write them.
//! Its eventfds are its own, so it cannot fill another application's eventfd, nor take another's
//! wake-ups; the thread only has the eventfds in an `epoll`, edge-triggered, and never reads them,
//! so no flag of theirs can make the thread wait. All that remains for a hostile application is to
//! wake a worker that has nothing to do, which costs the worker a turn each time. This is the same
//! as ringing bells all the time, and has the same bound: the cost of a thread that never sleeps.

use heddle_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::compiler_fence;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};

mod page;
mod sleeper;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

use page::Page;
pub use sleeper::WorkerSleeper;

/// Most eventfds that an application of another process gets. Threads beyond that share them, and
/// are woken together.
pub const MAX_LENT: usize = 4;

/// Wakes the workers of an RNIC that sleep.
pub struct WorkerWakers {
    page: Page,
    /// The way to wake each worker, by its number.
    ways: Box<[Way]>,
    /// Some thread may sleep.
    used: AtomicBool,
    /// Threads that may sleep.
    threads: Mutex<Vec<SleepingThread>>,
}

/// The way to wake a worker.
#[derive(Debug, Default)]
struct Way {
    /// An eventfd; absent for a worker whose thread does not sleep.
    fd: OnceLock<Arc<OwnedFd>>,
    /// The nap during which a thread of this process last wrote the eventfd: one write for each nap
    /// is enough.
    told: AtomicU64,
}

/// A thread that may sleep, and the workers that it polls.
#[derive(Debug)]
struct SleepingThread {
    /// The descriptor on which the thread waits for its eventfds, edge-triggered.
    epoll: Arc<OwnedFd>,
    workers: Box<[usize]>,
}

impl fmt::Debug for WorkerWakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerWakers").field("workers", &self.ways.len()).finish_non_exhaustive()
    }
}

/// Acts as a full barrier after an atomic read-modify-write operation.
#[inline(always)]
fn fence_after_rmw() {
    // The `lock` prefix of the operation is a full barrier already; a fence after it would cost as
    // much again.
    if cfg!(target_arch = "x86_64") && !cfg!(feature = "loom") {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

fn no(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn ways(workers: usize) -> Box<[Way]> {
    (0..workers).map(|_| Way::default()).collect()
}

impl WorkerWakers {
    /// Returns wakers for so many workers, none of which sleeps yet
    /// ([`sleeper`](WorkerWakers::sleeper)).
    ///
    /// # Errors
    /// The system's error, when it has no memory that can be sealed.
    pub fn new(workers: usize) -> io::Result<Arc<WorkerWakers>> {
        Ok(Arc::new(WorkerWakers {
            page: Page::new(workers)?,
            ways: ways(workers),
            used: AtomicBool::new(false),
            threads: Mutex::default(),
        }))
    }

    /// Returns the wakers of another process, as [`Lent`] describes them: the words, eventfds, and
    /// for each worker the number of its eventfd.
    ///
    /// # Errors
    /// `InvalidInput` if the words, eventfds and numbers do not fit together.
    pub fn attach(
        page: OwnedFd,
        fds: Vec<OwnedFd>,
        by_worker: &[Option<usize>],
    ) -> io::Result<Arc<WorkerWakers>> {
        let wakers = WorkerWakers {
            page: Page::attach(page, by_worker.len())?,
            ways: ways(by_worker.len()),
            used: AtomicBool::new(true),
            threads: Mutex::default(),
        };
        let fds: Vec<_> = fds.into_iter().map(Arc::new).collect();
        for (way, at) in wakers.ways.iter().zip(by_worker) {
            let Some(at) = *at else { continue };
            let fd = fds.get(at).ok_or_else(|| no("a descriptor is missing"))?;
            let _ = way.fd.set(fd.clone());
        }
        Ok(Arc::new(wakers))
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.ways.len()
    }

    /// Returns the sleeping end of a thread that polls `workers`, none of which a caller has named
    /// before. From here on, every thread that has work for these workers looks whether they sleep.
    ///
    /// # Errors
    /// The system has no descriptors left; there is no such worker, or its thread is known.
    pub fn sleeper(self: &Arc<Self>, workers: &[usize]) -> io::Result<WorkerSleeper> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let own = Arc::new(wake_fd(&epoll)?);
        for &w in workers {
            let way = self.ways.get(w).ok_or_else(|| no("no such worker"))?;
            way.fd.set(own.clone()).map_err(|_| no("its thread is known"))?;
        }
        self.threads().push(SleepingThread { epoll: epoll.clone(), workers: workers.into() });
        self.used.store(true, Ordering::SeqCst);
        Ok(WorkerSleeper::new(self.clone(), epoll, workers.into()))
    }

    /// Wakes a worker if it sleeps. The worker sees all earlier stores of the caller when it looks.
    #[inline]
    pub fn wake(&self, worker: usize) {
        // No worker sleeps before a first sleeper was made, and that sets `used`.
        if self.used.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            self.wake_sleeping(worker);
        }
    }

    /// Does the same as [`wake`](Self::wake), after a sequentially consistent atomic
    /// read-modify-write operation of this thread.
    #[inline]
    pub fn wake_after_rmw(&self, worker: usize) {
        fence_after_rmw();
        self.wake_sleeping(worker);
    }

    #[inline]
    fn wake_sleeping(&self, worker: usize) {
        let nap = self.page.load(worker);
        if nap & 1 != 0 {
            self.write(worker, nap);
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self, worker: usize, nap: u64) {
        let Some(way) = self.ways.get(worker) else { return };
        if way.told.load(Ordering::Relaxed) == nap {
            return;
        }
        let Some(fd) = way.fd.get() else { return };
        // Ignore the error: the write fails only when the counter is full. Our own counter never
        // is, although no thread reads it; an application that fills its own counter just wakes no
        // worker.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        // Store this after the write: a thread that finds this value also finds the sleeper woken.
        way.told.store(nap, Ordering::Relaxed);
    }

    /// Wakes all workers that sleep.
    pub fn wake_all(&self) {
        (0..self.ways.len()).for_each(|w| self.wake(w));
    }

    /// Returns the eventfds with which an application of another process wakes workers, or `None`
    /// where no thread sleeps.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn lend(&self) -> io::Result<Option<Lent>> {
        let threads = self.threads();
        if threads.is_empty() {
            return Ok(None);
        }
        let mut lent = Lent { fds: Vec::new(), by_worker: vec![None; self.ways.len()] };
        for (n, thread) in threads.iter().enumerate() {
            let at = n % MAX_LENT;
            if at == lent.fds.len() {
                lent.fds.push(LentFd { fd: new_eventfd()?, watched: Vec::new() });
            }
            let LentFd { fd, watched } = &mut lent.fds[at];
            watch(&thread.epoll, fd)?;
            watched.push(thread.epoll.clone());
            for &w in &thread.workers {
                lent.by_worker[w] = Some(at);
            }
        }
        Ok(Some(lent))
    }

    /// Returns the descriptor of the words, for another process.
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.page.fd()
    }

    fn threads(&self) -> MutexGuard<'_, Vec<SleepingThread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds `fd` to `epoll`, edge-triggered: each write is an event of its own, and no thread has to
/// read.
fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)?)
}

fn wake_fd(epoll: &OwnedFd) -> io::Result<OwnedFd> {
    let fd = new_eventfd()?;
    watch(epoll, &fd)?;
    Ok(fd)
}

/// Eventfds given to an application of another process. After this is dropped they wake no worker
/// any more, even if copies of the descriptors remain.
#[derive(Debug)]
pub struct Lent {
    fds: Vec<LentFd>,
    /// For each worker, the number of the eventfd that wakes it, if the worker may sleep.
    by_worker: Vec<Option<usize>>,
}

#[derive(Debug)]
struct LentFd {
    fd: OwnedFd,
    watched: Vec<Arc<OwnedFd>>,
}

impl Lent {
    /// Returns the eventfds.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(|l| l.fd.as_fd())
    }

    /// Returns for each worker the number of the eventfd that wakes it, if the worker may sleep.
    pub fn by_worker(&self) -> &[Option<usize>] {
        &self.by_worker
    }
}

impl Drop for LentFd {
    fn drop(&mut self) {
        for epoll in &self.watched {
            let _ = epoll::delete(epoll, &self.fd);
        }
    }
}

/// Wakes one worker: for a thread that hands orders or frames to this worker.
#[derive(Clone, Debug)]
pub struct WorkerWaker {
    all: Arc<WorkerWakers>,
    worker: usize,
}

impl WorkerWaker {
    /// Returns the waker of `worker`.
    pub fn new(all: &Arc<WorkerWakers>, worker: usize) -> WorkerWaker {
        WorkerWaker { all: all.clone(), worker }
    }

    /// See [`WorkerWakers::wake`].
    #[inline]
    pub fn wake(&self) {
        self.all.wake(self.worker);
    }
}
