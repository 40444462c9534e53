//! Clients: they call the programs of one server.
//!
//! ```text
//!   Client ── call(..) ── arguments, room ── send ──▶ PendingCall ── wait, or await ──▶ results
//!     │ step, run, or a thread that waits
//!     ▼
//!   session: connection, lost and made again        calls: queued, sent, finished
//! ```
//!
//! The client has no thread. A thread that waits for a call in [`PendingCall::wait`] drives the
//! client meanwhile; if several threads wait, a single one of them drives the client for all. If an
//! application awaits calls as futures, it must also drive the client: by a thread in
//! [`Client::run`], or by an event loop that calls [`Client::step`] when [`Client::fd`] is readable
//! or [`Client::timeout`] has passed.
//!
//! The client makes a connection when there is a call, and makes another when the connection is
//! lost. Until their timeouts, the client sends calls again that were sent and have no reply. A
//! repeated call has the same XID, so that the server can recognise a call that it has executed.

pub(crate) mod callee;
pub(crate) mod calls;
mod error;
mod pending;
mod serve;
mod serving;
mod session;

pub use error::{CallError, ConnectionFailure};
pub use pending::{CallBuilder, PendingCall};
pub use serve::{ServeConfig, ServeError};

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::{Binding, Table};
use heddle_rpcrdma::conn::Counters;
use heddle_rpcrdma::rpc::Procedure;
use heddle_verbs::{Device, DeviceError, Protocol, Sleeper, Waker};

use self::callee::Callee;
use self::calls::Calls;
use self::serve::Programs;
use self::session::Session;
use crate::credential::Credential;
use crate::memory::{Buffer, Memory, NoMemory};
use crate::transport::TransportConfig;

/// The configuration of a client.
pub struct ClientConfig {
    /// Versions, sizes and depths of the client's connections.
    pub transport: TransportConfig,
    /// The protocol for connection setup.
    pub protocol: Protocol,
    /// The binding that states which items of calls and results may be placed.
    pub binding: Box<dyn Binding + Send>,
    /// The credential of calls that do not set their own.
    pub credential: Credential,
    /// Length in bytes of the registered memory for all that this client sends and receives.
    pub memory: usize,
    /// Largest number of calls under way, sent or not.
    pub calls: usize,
    /// Timeout of calls that do not set their own.
    pub timeout: Duration,
    /// Timeout of an attempt to connect.
    pub connect_timeout: Duration,
    /// Limits for the server's calls to a client with programs ([`Client::serve`]).
    pub serve: ServeConfig,
}

impl Default for ClientConfig {
    /// The default places no items and has no credential. It has 8 MiB of memory and 1024 calls,
    /// and timeouts of 30 s for a call and 10 s for a connection.
    fn default() -> ClientConfig {
        ClientConfig {
            transport: TransportConfig::default(),
            protocol: Protocol::default(),
            binding: Box::new(Table(&[])),
            credential: Credential::None,
            memory: 8 << 20,
            calls: 1024,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            serve: ServeConfig::default(),
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientConfig { transport, memory, calls, timeout, .. } = self;
        write!(f, "{transport:?}, {memory} bytes, {calls} calls, {timeout:?}")
    }
}

/// Events that a client has counted since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Attempts to connect.
    pub attempts: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Replies and errors that ended calls.
    pub replies: u64,
    /// Calls whose deadline passed.
    pub timeouts: u64,
    /// Calls that the client sent again on another connection.
    pub retransmissions: u64,
}

/// A client of one server; clones are handles of the same client. The connection ends when the last
/// handle and the last call are dropped.
#[derive(Clone, Debug)]
pub struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when another thread must drive the client, or when something has arrived.
    turn: Condvar,
    sleeper: Sleeper,
    waker: Waker,
    memory: Memory,
    programs: Programs,
}

#[derive(Debug)]
struct State {
    session: Session,
    calls: Calls,
    /// Set while a thread sleeps on the descriptor, with the time at which that thread wakes at the
    /// latest.
    asleep: Option<Option<Instant>>,
    closed: bool,
}

impl Client {
    /// Creates a client of the server at this address. The client connects when there is a call.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn new(
        device: &Device,
        server: SocketAddr,
        config: ClientConfig,
    ) -> Result<Client, ClientError> {
        let sleeper = Sleeper::with_fd()?;
        let waker = sleeper.waker();
        // The XIDs of another client, for example after a restart, begin elsewhere.
        let seed = RandomState::new().hash_one(server);
        let first = Xid(u32::try_from(seed & 0xffff_ffff).unwrap_or(0));
        let calls = Calls::new(config.calls.max(1), first);
        let programs = Programs::new(config.serve.duplicates, waker.clone());
        let session = Session::new(device.clone(), server, config, waker.clone())?;
        let memory = session.memory().clone();
        let state = Mutex::new(State { session, calls, asleep: None, closed: false });
        let turn = Condvar::new();
        Ok(Client(Arc::new(Shared { state, turn, sleeper, waker, memory, programs })))
    }

    /// Returns a builder for a call to the server.
    pub fn call(&self, procedure: Procedure) -> CallBuilder {
        CallBuilder::new(Callee::Server(self.clone()), procedure)
    }

    /// Takes registered memory for items of arguments and for results. The transport cannot place
    /// data in other memory.
    ///
    /// # Errors
    /// [`NoMemory`], until calls have ended.
    pub fn buffer(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.0.memory.take(len)
    }

    /// Returns the memory from which the client takes buffers.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Returns the counters of the client.
    pub fn counters(&self) -> ClientCounters {
        self.0.lock().session.counters()
    }

    /// Returns the version of RPC-over-RDMA that the connection speaks, while there is a connection
    /// with a known version.
    pub fn version(&self) -> Option<u32> {
        self.0.lock().session.version()
    }

    /// Returns the counters of the connection, while there is one.
    pub fn transport_counters(&self) -> Option<Counters> {
        self.0.lock().session.transport_counters()
    }

    /// Returns why the last failed connection failed.
    pub fn last_failure(&self) -> Option<ConnectionFailure> {
        self.0.lock().session.last_failure()
    }

    /// Returns the number of calls that are under way, or whose outcome was not taken.
    pub fn outstanding(&self) -> usize {
        self.0.lock().calls.len()
    }

    /// Does all pending work without waiting. Returns true if there was any.
    pub fn step(&self) -> bool {
        self.0.drive(self.0.lock()).1
    }

    /// Returns how long the client needs no step if nothing arrives; `None` for ever.
    pub fn timeout(&self) -> Option<Duration> {
        let state = self.0.lock();
        let deadline = state.session.deadline(&state.calls)?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns a descriptor that becomes readable when something arrives, once [`arm`](Client::arm)
    /// was called. Only one event loop may use the descriptor, while no thread is in
    /// [`run`](Client::run) or [`PendingCall::wait`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.sleeper.fd()
    }

    /// Arms the descriptor to become readable when something arrives. Returns false if something
    /// has arrived already; the caller must then call [`step`](Client::step) first.
    pub fn arm(&self) -> bool {
        self.0.sleeper.clear();
        !self.0.lock().session.signs().arm()
    }

    /// Drives the client until it is closed.
    pub fn run(&self) {
        let mut state = self.0.lock();
        while !state.closed {
            (state, _) = self.0.drive(state);
            state = self.0.rest(state, None);
        }
    }

    /// Ends all calls with [`CallError::Closed`], and the connection.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.calls.finish_all(&CallError::Closed);
        state.session.close();
        let woken = state.calls.woken();
        drop(state);
        self.0.end_programs();
        self.0.waker.wake();
        self.0.turn.notify_all();
        woken.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does all pending work, and wakes the tasks whose calls have ended. Returns true if there was
    /// any work. On return nothing has happened since this thread last looked at the state under
    /// the lock.
    fn drive<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let (mut any, mut may_serve) = (false, true);
        loop {
            any |= state.step();
            let woken = state.calls.woken();
            let serves = may_serve && state.session.has_to_serve();
            if woken.is_empty() && !serves {
                return (state, any);
            }
            drop(state);
            woken.into_iter().for_each(std::task::Waker::wake);
            if serves {
                let served = self.serve();
                may_serve = served.is_some();
                any |= served == Some(true);
            }
            state = self.lock();
        }
    }

    /// Waits until something arrives, or until a deadline of the client or `until` has passed. Only
    /// one waiting thread sleeps on the descriptor; the other threads wait for that thread.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        if state.closed {
            return state;
        }
        if state.asleep.is_some() {
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            let woken = self.turn.wait_timeout(state, left.min(LONG));
            return woken.map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
        let deadline = state.session.deadline(&state.calls);
        let until = deadline.into_iter().chain(until).min();
        let signs = state.session.signs();
        state.asleep = Some(until);
        drop(state);
        let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
        if !left.is_zero() {
            self.sleeper.sleep(left.min(LONG), || signs.arm());
        }
        let mut state = self.lock();
        state.asleep = None;
        self.turn.notify_all();
        state
    }

    /// Wakes the sleeping thread if work of this thread must be continued earlier than that thread
    /// would wake.
    fn hurry(&self, state: &State) {
        if state.session.has_to_serve() {
            self.waker.wake();
        }
        if let Some(until) = state.asleep {
            let deadline = state.session.deadline(&state.calls);
            if deadline.is_some_and(|at| until.is_none_or(|until| at < until)) {
                self.waker.wake();
            }
        }
    }
}

/// The longest time for which a thread sleeps at a time.
const LONG: Duration = Duration::from_secs(60);

impl State {
    fn step(&mut self) -> bool {
        let now = Instant::now();
        let mut any = false;
        while self.session.step(now, &mut self.calls) {
            any = true;
            if self.session.is_done() {
                break;
            }
        }
        any
    }
}

/// The reason why no client could be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system gave no descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
}
