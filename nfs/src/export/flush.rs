//! Putting changes on the disk, for all who wait for the same object at once (group commit).
//!
//! ```text
//!   ticket, before the change ──▶ change ──▶ submit ──▶ round: one fsync, on a thread of the flusher
//!                                              │            │ answers all who submitted before it began
//!                                              └── later ──▶ the next round of the object
//! ```
//!
//! The rounds of one object follow one another. The system reports data that it could not write to one
//! caller of fsync only, so a round that fails counts a loss of its object, and a ticket from before that
//! loss ends in an error, too, although its own round went well.
//!
//! A thread that hangs in the disk holds nothing but the descriptor of its round. When the flusher is
//! dropped its threads end by themselves; nobody waits for them.

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

/// What is to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Data, and what is needed to read it again: fdatasync.
    Data,
    /// All attributes with it: fsync.
    All,
}

/// The disk of an export, as far as it decides how long a change takes.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Returns when what was written to `file` is on the disk.
    ///
    /// # Errors
    /// Those of `fsync(2)`: data is lost, and the next call need not report that again.
    fn sync(&self, file: BorrowedFd<'_>, extent: Extent) -> io::Result<()>;
}

/// The system's: fsync and fdatasync.
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

/// Called when a change is on the disk, or is not.
type Then = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    threads: usize,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    /// There is a round, or there will be none any more.
    news: Condvar,
    losses: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Objects with tickets, by their numbers. A number is not used again while a descriptor is open.
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

/// A change of an object that is to be on the disk. Taken before the object is changed, so that no loss
/// in between goes unnoticed.
#[derive(Debug)]
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    ino: u64,
    losses: u64,
}

/// Changes that a call has made, to be on the disk before its reply.
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
    /// With at most `threads` threads, which are started when they are needed.
    pub(super) fn new(disk: Arc<dyn Disk>, threads: usize) -> Flusher {
        let (state, news) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { disk, state, news, losses: AtomicU64::new(0) });
        Flusher { shared, threads: threads.max(1) }
    }

    /// A ticket for a change of an object. `open` opens it, unless another ticket has.
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

    /// Has `then` called when all of `due` is on the disk, or a part of it cannot be: on a thread of the
    /// flusher, which it must not keep.
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
            // Its ticket keeps it.
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

    /// The same, and waits for it.
    pub(crate) fn wait(&self, due: Due, peer: SocketAddr) -> Result<(), Status> {
        let (told, heard) = std::sync::mpsc::sync_channel(1);
        self.submit(due, peer, move |done| {
            // The receiver waits.
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
                // The caller does it, as nobody else would.
                drop(state);
                while self.shared.round(self.threads, false) {}
            }
        }
    }

    /// Times that what was written could not be put on the disk.
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
    /// Does the next round, and waits for one if `stay`; false when there is none.
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
        // A disk of somebody else's that panics has put nothing anywhere.
        let done = catch_unwind(AssertUnwindSafe(sync)).unwrap_or_else(|_| Err(Errno::IO.into()));
        done.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO).into())
    }

    /// A round has ended: tells those who waited for it, and has the next of the object begin.
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
        // This thread looks for the next round itself.
        for Waiting { ticket, call, .. } in waiting {
            let lost = ticket.losses != losses;
            drop(ticket);
            call.end(done.and(if lost { Err(Status::IO) } else { Ok(()) }));
        }
    }
}

impl Call {
    /// One of its changes is on the disk, or is not.
    fn end(&self, done: Result<(), Status>) {
        let mut state = locked(&self.state);
        let (left, all, then) = &mut *state;
        *left -= 1;
        *all = all.and(done);
        let told = (*left == 0).then(|| then.take()).flatten();
        let all = *all;
        drop(state);
        if let Some(then) = told {
            // What it does is its own matter; other calls of this round are to be told, too.
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
                // The last of a file that was removed frees its blocks: not under the lock.
                drop(gone);
            }
        }
    }
}
