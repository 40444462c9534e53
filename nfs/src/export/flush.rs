//! Puts changes on the disk, with one flush for all callers that wait for the same object (group
//! commit).
//!
//! ```text
//!   ticket, before the change ──▶ change ──▶ submit ──▶ round: one fsync, on a flusher's thread
//!                                              │            │ answers all calls submitted before
//!                                              │            │ the round began
//!                                              └── later ──▶ the next round of the object
//! ```
//!
//! The rounds of one object follow one another. The system reports data that it could not write to
//! only one caller of fsync. So a failed round counts a loss of its object, and a ticket from
//! before that loss ends in an error, too, even if its own round succeeded.
//!
//! A thread that hangs in the disk holds nothing but the descriptor of its round. After the flusher
//! is dropped its threads end by themselves; no thread waits for them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

use crate::fair::{Busy, Fair, share};
use crate::wire::Status;

/// How much of an object has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// The data, and the attributes needed to read the data again: fdatasync.
    Data,
    /// The data and all attributes: fsync.
    All,
}

/// The disk of an export, as far as it decides how long a change takes.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Returns after the changes that were written to `file` are on the disk.
    ///
    /// # Errors
    /// The errors of `fsync(2)`: data is lost, and the next call need not report the loss again.
    fn sync(&self, file: BorrowedFd<'_>, extent: Extent) -> io::Result<()>;
}

/// The disk of the operating system: fsync and fdatasync.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn sync(&self, file: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        let done = match extent {
            Extent::Data => fdatasync(file),
            Extent::All => fsync(file),
        };
        Ok(done?)
    }
}

/// Called after a change has reached the disk, or has failed to.
type Then = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// The flusher that the module describes.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    threads: usize,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    /// Signals a new round, or the end of the flusher.
    news: Condvar,
    losses: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Objects with tickets, by inode number. The file system does not reuse a number while a
    /// descriptor is open.
    objects: HashMap<u64, Flushed>,
    /// Objects whose next round has not begun.
    rounds: Fair<u64>,
    busy: Busy,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// An object that has tickets.
#[derive(Debug)]
struct Flushed {
    fd: Arc<OwnedFd>,
    tickets: usize,
    losses: u64,
    waiting: Vec<Waiting>,
    is_running: bool,
}

/// A change that waits for the next round.
struct Waiting {
    ticket: Ticket,
    extent: Extent,
    call: Arc<Call>,
    peer: SocketAddr,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting({}, {:?})", self.ticket.ino, self.extent)
    }
}

/// A call with changes of several objects.
struct Call {
    state: Mutex<(usize, Result<(), Status>, Option<Then>)>,
}

/// A change of an object that has to reach the disk. The caller takes the ticket before it changes
/// the object, so that every loss in between is noticed.
#[derive(Debug)]
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    ino: u64,
    losses: u64,
}

/// Changes that a call has made and that must be on the disk before its reply.
#[derive(Debug, Default)]
pub(crate) struct Due(Vec<(Ticket, Extent)>);

impl Due {
    pub(crate) fn push(&mut self, ticket: Ticket, extent: Extent) {
        self.0.push((ticket, extent));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flusher {
    /// Makes a flusher with at most `threads` threads, which it starts on demand.
    pub(super) fn new(disk: Arc<dyn Disk>, threads: usize) -> Flusher {
        let (state, news) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { disk, state, news, losses: AtomicU64::new(0) });
        Flusher { shared, threads: threads.max(1) }
    }

    /// Returns a ticket for a change of an object. `open` opens the object, unless another ticket
    /// holds it open.
    pub(crate) fn ticket<E>(
        &self,
        ino: u64,
        open: impl FnOnce() -> Result<Arc<OwnedFd>, E>,
    ) -> Result<Ticket, E> {
        let known = locked(&self.shared.state).objects.get(&ino).map(|o| Arc::clone(&o.fd));
        let opened = known.map_or_else(open, Ok)?;
        let mut state = locked(&self.shared.state);
        let object = state.objects.entry(ino).or_insert_with(|| Flushed {
            fd: opened,
            tickets: 0,
            losses: 0,
            waiting: Vec::new(),
            is_running: false,
        });
        object.tickets += 1;
        let losses = object.losses;
        Ok(Ticket { shared: Arc::clone(&self.shared), ino, losses })
    }

    /// Calls `then` after all of `due` is on the disk, or after a part of it has failed. The call
    /// runs on a thread of the flusher, so `then` must not block.
    pub(crate) fn submit(
        &self,
        due: Due,
        peer: SocketAddr,
        then: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        let call = (due.0.len(), Ok(()), Some(Box::new(then) as Then));
        let call = Arc::new(Call { state: Mutex::new(call) });
        for (ticket, extent) in due.0 {
            let ino = ticket.ino;
            let mut state = locked(&self.shared.state);
            let State { objects, rounds, .. } = &mut *state;
            // The ticket keeps its object in the map, so this lookup succeeds.
            let Some(object) = objects.get_mut(&ino) else { continue };
            if object.waiting.is_empty() && !object.is_running {
                rounds.push(peer, ino);
            }
            object.waiting.push(Waiting { ticket, extent, call: Arc::clone(&call), peer });
            if state.rounds.len() <= state.idle || state.threads >= self.threads {
                drop(state);
                self.shared.news.notify_one();
            } else {
                state.threads += 1;
                drop(state);
                self.start();
            }
        }
    }

    /// Submits `due`, and waits for the outcome.
    pub(crate) fn wait(&self, due: Due, peer: SocketAddr) -> Result<(), Status> {
        let (told, heard) = std::sync::mpsc::sync_channel(1);
        self.submit(due, peer, move |done| {
            // The receiver below waits, so the send cannot fail.
            let _ = told.send(done);
        });
        heard.recv().unwrap_or(Err(Status::IO))
    }

    fn start(&self) {
        let (shared, limit) = (Arc::clone(&self.shared), self.threads);
        let run = move || while shared.round(limit, true) {};
        let name = thread::Builder::new().name("nfs-flush".into());
        if let Err(error) = name.spawn(run) {
            tracing::warn!(%error, "no thread to put changes of an NFS export on the disk");
            let mut state = locked(&self.shared.state);
            state.threads -= 1;
            if state.threads == 0 {
                // Without threads the caller does the rounds, as no other thread would.
                drop(state);
                while self.shared.round(self.threads, false) {}
            }
        }
    }

    /// Returns how many rounds could not put data on the disk.
    pub(crate) fn losses(&self) -> u64 {
        self.shared.losses.load(Relaxed)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        locked(&self.shared.state).closed = true;
        self.shared.news.notify_all();
    }
}

impl Shared {
    /// Runs the next round, and waits for one if `stay`. Returns false when there is none.
    fn round(&self, limit: usize, stay: bool) -> bool {
        let mut state = locked(&self.state);
        let (ip, ino) = loop {
            let State { rounds, busy, .. } = &mut *state;
            if let Some(next) = rounds.take(|ip| busy.of(ip) < share(limit)) {
                break next;
            }
            if !stay {
                return false;
            }
            if state.closed {
                state.threads -= 1;
                return false;
            }
            state.idle += 1;
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        };
        let Some(object) = state.objects.get_mut(&ino) else { return true };
        object.is_running = true;
        let waiting = std::mem::take(&mut object.waiting);
        let fd = Arc::clone(&object.fd);
        state.busy.begin(ip);
        drop(state);
        let extent = waiting.iter().map(|w| w.extent).max().unwrap_or(Extent::All);
        let done = self.sync(&fd, extent);
        self.end(ip, ino, waiting, done);
        true
    }

    fn sync(&self, fd: &OwnedFd, extent: Extent) -> Result<(), Status> {
        let sync = || loop {
            match self.disk.sync(fd.as_fd(), extent) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        // An embedder's disk that panics has put nothing on any disk.
        let done = catch_unwind(AssertUnwindSafe(sync)).unwrap_or_else(|_| Err(Errno::IO.into()));
        done.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO).into())
    }

    /// Ends a round: answers the calls that waited for it, and queues the object's next round.
    fn end(&self, ip: IpAddr, ino: u64, waiting: Vec<Waiting>, done: Result<(), Status>) {
        let mut state = locked(&self.state);
        state.busy.end(ip);
        let State { objects, rounds, .. } = &mut *state;
        let mut losses = 0;
        if let Some(object) = objects.get_mut(&ino) {
            object.is_running = false;
            if done.is_err() {
                object.losses += 1;
                self.losses.fetch_add(1, Relaxed);
            }
            losses = object.losses;
            if let Some(first) = object.waiting.first() {
                rounds.push(first.peer, ino);
            }
        }
        drop(state);
        // This thread looks for the next round itself, so it wakes no other thread.
        for Waiting { ticket, call, .. } in waiting {
            let lost = ticket.losses != losses;
            drop(ticket);
            call.end(done.and(if lost { Err(Status::IO) } else { Ok(()) }));
        }
    }
}

impl Call {
    /// Records that one of the call's changes has reached the disk, or has failed to.
    fn end(&self, done: Result<(), Status>) {
        let mut state = locked(&self.state);
        let (left, all, then) = &mut *state;
        *left -= 1;
        *all = all.and(done);
        let told = (*left == 0).then(|| then.take()).flatten();
        let all = *all;
        drop(state);
        if let Some(then) = told {
            // A panic of `then` must not keep other calls of this round from their answers.
            let _ = catch_unwind(AssertUnwindSafe(|| then(all)));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        if let Some(object) = state.objects.get_mut(&self.ino) {
            object.tickets -= 1;
            if object.tickets == 0 {
                let gone = state.objects.remove(&self.ino);
                drop(state);
                // The last descriptor of a removed file frees the file's blocks when it closes, so
                // it closes outside the lock.
                drop(gone);
            }
        }
    }
}
