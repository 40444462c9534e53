//! The socket: requests out, answers and events in.
//!
//! Any thread may send requests, a single thread writes at a time, and a thread of the link's own
//! reads. The reading thread waits for no other, since the server reads nothing more until this
//! thread has read what the server sent: it hands answers to the callers, puts events into queues,
//! and postpones its own messages to the server when another thread is writing or there is no room.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use heddle_shm::Waker;
use heddle_shm::threads;
use heddle_socket::descriptor::aside;
use heddle_socket::document::{Call, Fault, FaultKind, VERSION, to_line};
use heddle_socket::wire::{ForeignFd, Inbox, MAX_ANSWER, Received, receive, send};
use heddle_types::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lock;
use super::routes::Routes;
use crate::cq::{Cq, WeakCq};
use crate::device::{DeviceEvent, OnEnd};
use crate::error::DeviceError;
use crate::qp::{Qp, WeakQp};
use crate::remote::process_of;
use crate::remote::protocol::{Count, Request};

/// Longest time that a server may take to answer, and to read. A server that takes longer counts as
/// ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for which a caller yields to other threads, rather than sleep, until its answer arrives.
const SOON: Duration = Duration::from_micros(200);

/// Time that the workers of a server that has ended a session may take to end its queue pairs: for
/// a server whose process is known to live, and for any other.
const WORKERS_END: Duration = Duration::from_secs(3);
const UNSEEN_WORKERS_END: Duration = Duration::from_millis(300);

/// Time by which the end of a server's process may follow that of its socket.
const SERVER_END: Duration = Duration::from_millis(100);

/// Delay after which the server learns that events were taken.
const TELL_TAKEN: Duration = Duration::from_millis(20);

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    /// Path of the socket, for people.
    path: String,
    /// The system makes this descriptor readable when the server's process ends. `None` where the
    /// system cannot name that process.
    server: Option<OwnedFd>,
    /// The thread that holds this lock writes whole lines.
    writer: Mutex<()>,
    next: AtomicU64,
    calls: Mutex<Calls>,
    routes: Mutex<Routes>,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Waiting>,
    gone: bool,
    /// The server has opened a device: from then on its reason for ending the connection is a
    /// reason for the end of the device.
    opened: bool,
    /// The server's reason for ending the connection, if it has sent one.
    turned_away: Option<Fault>,
    /// This side's reason for ending the connection, if it has one.
    failed: Option<String>,
    /// The function to call at the end.
    on_end: Option<OnEnd>,
    /// This process has closed the device.
    closed: bool,
}

/// A function to call with an answer before later events are handled.
pub(super) type Then = Box<dyn FnOnce(&Value, &mut Routes) + Send>;

struct Waiting {
    answer: SyncSender<Result<(Value, Vec<OwnedFd>), Fault>>,
    then: Option<Then>,
}

impl Calls {
    /// Returns true if the device ends and nothing is known of the reason.
    fn is_unexplained(&self) -> bool {
        self.opened && !self.closed && self.turned_away.is_none() && self.failed.is_none()
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

/// A line of a server: an answer or an event.
#[derive(Debug, Deserialize)]
struct Said {
    #[serde(default)]
    id: u64,
    #[serde(default)]
    fds: u32,
    #[serde(default)]
    ok: Value,
    error: Option<Fault>,
    event: Option<Event>,
    device: Option<DeviceEvent>,
}

/// Returns a function that calls `f` with an answer of its type.
pub(super) fn then<A: DeserializeOwned>(f: impl FnOnce(&A, &mut Routes) + Send + 'static) -> Then {
    Box::new(move |value, routes| {
        // Ignore an answer of another type here: the caller gets an error for it.
        if let Ok(answer) = A::deserialize(value) {
            f(&answer, routes);
        }
    })
}

impl Link {
    /// Starts the thread that reads.
    pub(super) fn start(socket: UnixStream) -> io::Result<Arc<Link>> {
        socket.set_write_timeout(Some(PATIENCE))?;
        // If this fails, the end of the socket has to suffice.
        let server = process_of(&socket).unwrap_or_default().map(aside);
        let peer = socket.peer_addr()?;
        let path = peer.as_pathname().map_or_else(
            || "a socket without a name".to_owned(),
            |path| path.display().to_string(),
        );
        let link = Arc::new(Link {
            socket,
            path,
            server,
            writer: Mutex::new(()),
            next: AtomicU64::new(1),
            calls: Mutex::default(),
            routes: Mutex::default(),
        });
        let theirs = link.clone();
        let read = move || {
            theirs.read();
            theirs.end();
        };
        threads::start("heddle-device", read)?;
        Ok(link)
    }

    /// Ends the connection; the reading thread ends everything else.
    pub(super) fn shut(&self) {
        // Ignore the error: the connection may have ended already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Ends the connection, because the server does not keep to its part.
    fn give_up(&self, what: impl Into<String>) {
        lock(&self.calls).failed.get_or_insert_with(|| what.into());
        self.shut();
    }

    /// Notes that the server has opened a device.
    pub(super) fn set_opened(&self) {
        lock(&self.calls).opened = true;
    }

    /// Returns the end of the RNIC, if it has ended.
    pub(super) fn ended(&self) -> Option<DeviceError> {
        let calls = lock(&self.calls);
        calls.gone.then(|| self.error(&calls))
    }

    /// Calls `f` at the end; at once if the RNIC has ended already.
    pub(super) fn when_ended(&self, f: OnEnd) {
        let mut calls = lock(&self.calls);
        if !calls.gone {
            calls.on_end = Some(f);
            return;
        }
        let error = self.error(&calls);
        drop(calls);
        f(&error);
    }

    /// Ends the connection, because the program has no use for the device any more.
    pub(super) fn close(&self) {
        {
            let mut calls = lock(&self.calls);
            calls.closed = true;
            calls.on_end = None;
        }
        self.shut();
    }

    /// Returns the error of calls that the server will not answer.
    fn error(&self, calls: &Calls) -> DeviceError {
        let what = match (&calls.turned_away, &calls.failed) {
            (Some(fault), _) if !calls.opened => return refusal(fault.clone()),
            (Some(fault), _) => format!("has ended this application: {}", fault.text),
            (None, Some(failed)) => failed.clone(),
            (None, None) if self.server.as_ref().is_some_and(|s| !lives(s)) => {
                "has ended".to_owned()
            }
            (None, None) => "has closed the connection".to_owned(),
        };
        DeviceError::Ended { socket: self.path.clone(), what }
    }

    pub(super) fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    pub(super) fn watch_qp(&self, qp: &Qp) {
        if !self.routes().watch_qp(qp.downgrade()) {
            qp.downgrade().lose();
        }
    }

    pub(super) fn watch_cq(&self, cq: &Cq) {
        if !self.routes().watch_cq(cq.downgrade()) {
            cq.downgrade().lose();
        }
    }

    /// Sends a request and waits for the answer.
    pub(super) fn call<A: DeserializeOwned>(&self, request: &Request) -> Result<A, DeviceError> {
        self.call_with(request, &[], None).map(|(answer, _)| answer)
    }

    /// Sends a request, calls `meanwhile`, and then waits for the answer.
    pub(super) fn call_while<A: DeserializeOwned>(
        &self,
        request: &Request,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<A, DeviceError> {
        self.ask(request, &[], None, meanwhile).map(|(answer, _)| answer)
    }

    /// Does the same for a request with the number of `waker`; its sleeper then also sleeps on the
    /// descriptor that the answer brings.
    pub(super) fn call_waking<A: DeserializeOwned>(
        &self,
        request: &Request,
        waker: Option<&Waker>,
    ) -> Result<A, DeviceError> {
        let (answer, fds) = self.call_with(request, &[], None)?;
        for fd in fds {
            let waker =
                waker.ok_or_else(|| DeviceError::Socket("no waker was asked for".into()))?;
            waker.listen_to(fd).map_err(|e| DeviceError::Socket(e.to_string()))?;
        }
        Ok(answer)
    }

    /// Does the same, with descriptors in both directions; `then` runs before later events.
    pub(super) fn call_with<A: DeserializeOwned>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        then: Option<Then>,
    ) -> Result<(A, Vec<OwnedFd>), DeviceError> {
        self.ask(request, fds, then, &mut || {})
    }

    fn ask<A: DeserializeOwned>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        then: Option<Then>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(A, Vec<OwnedFd>), DeviceError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = sync_channel(1);
        {
            let mut calls = lock(&self.calls);
            if calls.gone {
                return Err(self.error(&calls));
            }
            calls.waiting.insert(id, Waiting { answer, then });
        }
        let line = to_line(&Call { v: VERSION, id, request });
        let sent = {
            let _mine = lock(&self.writer);
            self.write(&line, fds)
        };
        if let Err(e) = sent {
            self.not_sent(&e);
        }
        meanwhile();
        match wait_for(&answered) {
            Some(Ok((value, fds))) => {
                let answer = serde_json::from_value(value);
                let answer = answer.map_err(|e| DeviceError::Socket(e.to_string()))?;
                Ok((answer, fds))
            }
            Some(Err(fault)) => Err(refusal(fault)),
            None => {
                // This side cannot know whether the server has carried the request out.
                if !lock(&self.calls).gone {
                    self.give_up(format!("has not answered for {} s", PATIENCE.as_secs()));
                }
                Err(self.error(&lock(&self.calls)))
            }
        }
    }

    /// Sends a request that has no answer.
    pub(super) fn tell(&self, request: &Request) {
        let _mine = lock(&self.writer);
        // A server that has ended needs no request, and a server that does not read counts as
        // ended.
        if let Err(e) = self.write(&to_line(&Call { v: VERSION, id: 0, request }), &[]) {
            self.not_sent(&e);
        }
    }

    /// Ends the connection after a request that the server did not take.
    fn not_sent(&self, e: &io::Error) {
        if is_timeout(e) {
            self.give_up(format!("has taken no request for {} s", PATIENCE.as_secs()));
        } else {
            // The server has closed its end, and the reading thread finds out why.
            self.shut();
        }
    }

    /// Writes a line. The caller holds the writer's lock.
    fn write(&self, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = send(self.socket.as_fd(), bytes, fds)?;
            (bytes, fds) = (&bytes[sent..], &[]);
        }
        Ok(())
    }

    /// Reads until no more can come, or until the server sends nonsense.
    fn read(&self) {
        let mut inbox = Inbox::new(MAX_ANSWER);
        // Events that were handed out, and that the server does not yet know to be taken.
        let mut untold = 0u64;
        let mut until = None;
        loop {
            let wanted = if untold > 0 { Some(TELL_TAKEN) } else { None };
            if wanted != until && self.socket.set_read_timeout(wanted).is_err() {
                return;
            }
            until = wanted;
            match receive(self.socket.as_fd(), &mut inbox) {
                Ok(Received::Bytes(_)) => {}
                Ok(Received::End) => return,
                Err(e) if is_timeout(&e) => {}
                Err(_) => return,
            }
            while let Some(line) = inbox.pop() {
                let Ok(said) = serde_json::from_slice::<Said>(&line) else {
                    return self.give_up("has answered nonsense");
                };
                match (said.event.clone(), said.device) {
                    (Some(event), _) => {
                        untold += 1;
                        self.routes().tell(event);
                    }
                    (None, Some(event)) => self.routes().tell_device(event),
                    (None, None) => {
                        let Some(fds) = inbox.take_fds(said.fds as usize) else {
                            return self.give_up("has answered nonsense");
                        };
                        // This process trusts its server, so it may close the server's descriptors
                        // itself.
                        let fds = fds.into_iter().filter_map(ForeignFd::into_fd).collect();
                        self.answer(said, fds);
                    }
                }
            }
            // This may send nothing, because a caller may hold the writer's lock. The next turn
            // tries again.
            if untold > 0 {
                self.tell_taken(&mut untold);
            }
        }
    }

    fn answer(&self, said: Said, fds: Vec<OwnedFd>) {
        let waiting = {
            let mut calls = lock(&self.calls);
            // A server that has no place for this client answers before it reads a request.
            if said.id == 0 {
                calls.turned_away = said.error;
                return;
            }
            // Drop an answer to a caller that no longer waits.
            let Some(waiting) = calls.waiting.remove(&said.id) else { return };
            waiting
        };
        let result = match said.error {
            Some(fault) => Err(fault),
            None => {
                if let Some(then) = waiting.then {
                    then(&said.ok, &mut self.routes());
                }
                Ok((said.ok, fds))
            }
        };
        let _ = waiting.answer.try_send(result);
    }

    fn tell_taken(&self, untold: &mut u64) {
        // Do not wait: a thread that is writing may wait for the server, which may wait for this
        // thread.
        let _mine = match self.writer.try_lock() {
            Ok(mine) => mine,
            Err(TryLockError::Poisoned(mine)) => mine.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !is_ready(&self.socket, PollFlags::OUT) {
            return;
        }
        let count = self.routes().taken.swap();
        if count > 0 {
            *untold = untold.saturating_sub(count);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let request = Request::Taken(Count { count });
            if self.write(&to_line(&Call { v: VERSION, id: 0, request: &request }), &[]).is_err() {
                self.shut();
            }
        }
    }

    /// Ends the link: the server has ended, or counts as ended.
    fn end(&self) {
        self.shut();
        // The socket of a process closes a moment before the process has ended.
        if let Some(server) = self.server.as_ref().filter(|_| lock(&self.calls).is_unexplained()) {
            await_end(server, SERVER_END);
        }
        let (waiting, on_end) = {
            let mut calls = lock(&self.calls);
            calls.gone = true;
            (std::mem::take(&mut calls.waiting), calls.on_end.take())
        };
        // Many programs exit at their first flushed request or fatal event, so the reason comes before.
        if let Some((f, error)) = on_end.zip(self.ended()) {
            f(&error);
        }
        let qps = self.routes().qps();
        let_workers_end(self.server.as_ref(), || qps.iter().any(is_with_worker));
        let (qps, cqs) = self.routes().lose();
        qps.iter().for_each(WeakQp::lose);
        cqs.iter().for_each(WeakCq::lose);
        self.routes().end();
        // Threads that wait for an answer now find that none will come.
        drop(waiting);
    }
}

/// Returns an answer, if it comes within [`PATIENCE`]. Most answers come soon, and a thread that
/// sleeps wakes late.
fn wait_for<T>(answered: &Receiver<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        match answered.try_recv() {
            Ok(answer) => return Some(answer),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if start.elapsed() < SOON => std::thread::yield_now(),
            Err(TryRecvError::Empty) => return answered.recv_timeout(PATIENCE).ok(),
        }
    }
}

/// Returns the error of a call that the server has answered with `fault`.
fn refusal(fault: Fault) -> DeviceError {
    match fault.kind {
        FaultKind::Failed => DeviceError::Gone,
        _ => DeviceError::Refused(fault),
    }
}

/// Returns true if a worker may still be about to end a queue pair.
fn is_with_worker(qp: &WeakQp) -> bool {
    qp.upgrade().is_some_and(|qp| qp.is_with_worker())
}

/// Waits until no queue pair is running. A server that has only ended this session is about to end
/// its queue pairs, and completes the posted requests itself, so this side must not complete them
/// as well. A worker may be off its processor for long. The socket of a killed process ends before
/// the process does.
fn let_workers_end(server: Option<&OwnedFd>, has_running: impl Fn() -> bool) {
    let start = Instant::now();
    while has_running() {
        let patience = if server.is_some_and(lives) { WORKERS_END } else { UNSEEN_WORKERS_END };
        if start.elapsed() >= patience {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has ended, at most for `limit`.
fn await_end(process: &OwnedFd, limit: Duration) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // The result does not matter: the caller looks at the process again.
    let _ = poll(&mut fds, Some(&limit));
}

/// Returns true if a process has not ended.
fn lives(process: &OwnedFd) -> bool {
    !is_ready(process, PollFlags::IN)
}

/// Returns true if a descriptor is readable or writable now, or has failed.
fn is_ready(fd: &impl AsFd, wanted: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd, wanted)];
    !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests;
