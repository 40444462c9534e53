//! Clients: calls to the programs of one server.
//!
//! ```text
//!   Client ── call(..) ── arguments, room ── send ──▶ PendingCall ── wait, or await ──▶ results
//!     │ step, run, or whoever waits
//!     ▼
//!   session: connection, lost and made again        calls: queued, sent, finished
//! ```
//!
//! There is no thread in here. Whoever waits for a call by [`PendingCall::wait`] drives the client
//! meanwhile, one of them for all. Where calls are awaited as futures, something drives it: a thread in
//! [`Client::run`], or an event loop that calls [`Client::step`] when [`Client::fd`] is readable or
//! [`Client::timeout`] has passed.
//!
//! A connection is made when there is a call, and made again when it is lost. Calls that were sent and
//! have no reply are sent again, with the same XID, so that the server can tell that it has executed
//! them; until their time is over.

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

/// Where the reply of a call may go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// For results that may be placed, in their order.
    pub(crate) results: Vec<Buffer>,
    /// Octets of the longest results without those.
    pub(crate) stream: u32,
}

/// What a client is made with.
pub struct ClientConfig {
    /// Versions, sizes and depths.
    pub transport: TransportConfig,
    /// The start-up of connections.
    pub protocol: Protocol,
    /// Which items of calls and results may be placed.
    pub binding: Box<dyn Binding + Send>,
    /// Who calls.
    pub credential: Credential,
    /// Octets of registered memory, for all that is sent and received by this client.
    pub memory: usize,
    /// Calls that may be under way, sent or not.
    pub calls: usize,
    /// How long a call may take, unless it says otherwise.
    pub timeout: Duration,
    /// How long an attempt to connect may take.
    pub connect_timeout: Duration,
    /// What calls of the server's may use, of a client with programs ([`Client::serve`]).
    pub serve: ServeConfig,
}

impl Default for ClientConfig {
    /// Nothing is placed, nobody in particular calls; 8 MiB of memory, 1024 calls, 30 s for a call and
    /// 10 s for a connection.
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
        write!(f, "{transport:?}, {memory} octets, {calls} calls, {timeout:?}")
    }
}

/// What a client counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Attempts to connect.
    pub attempts: u64,
    /// Connections that came about.
    pub connections: u64,
    /// Replies and errors that ended calls.
    pub replies: u64,
    /// Calls whose time was over.
    pub timeouts: u64,
    /// Calls that were made again on another connection.
    pub retransmissions: u64,
}

/// A client of one server; clones are handles of the same one. When the last of them and the last call
/// are gone its connection ends.
#[derive(Clone, Debug)]
pub struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when there is another to drive, or something has come.
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
    /// A thread sleeps on the descriptor, until then at most.
    asleep: Option<Option<Instant>>,
    closed: bool,
}

impl Client {
    /// A client of the server at this address. It connects when there is a call.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(
        device: &Device,
        server: SocketAddr,
        config: ClientConfig,
    ) -> Result<Client, ClientError> {
        let sleeper = Sleeper::with_fd()?;
        let waker = sleeper.waker();
        // Another client, after a restart for one, begins elsewhere.
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

    /// A call to be made.
    pub fn call(&self, procedure: Procedure) -> CallBuilder {
        CallBuilder::new(Callee::Server(self.clone()), procedure)
    }

    /// Registered memory for items of arguments and for results: what lies elsewhere cannot be placed.
    ///
    /// # Errors
    /// [`NoMemory`], until calls have ended.
    pub fn buffer(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.0.memory.take(len)
    }

    /// The memory that buffers are taken from.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// What was counted.
    pub fn counters(&self) -> ClientCounters {
        self.0.lock().session.counters()
    }

    /// The version of RPC-over-RDMA that is spoken, while there is a connection that has one.
    pub fn version(&self) -> Option<u32> {
        self.0.lock().session.version()
    }

    /// What the connection has counted, while there is one.
    pub fn transport_counters(&self) -> Option<Counters> {
        self.0.lock().session.transport_counters()
    }

    /// Why the last connection that failed has failed.
    pub fn last_failure(&self) -> Option<ConnectionFailure> {
        self.0.lock().session.last_failure()
    }

    /// Calls that are under way, or have not been taken.
    pub fn outstanding(&self) -> usize {
        self.0.lock().calls.len()
    }

    /// Does what there is to do, without waiting; whether there was anything.
    pub fn step(&self) -> bool {
        self.0.drive(self.0.lock()).1
    }

    /// How long it may be left alone when nothing comes; `None` for ever.
    pub fn timeout(&self) -> Option<Duration> {
        let state = self.0.lock();
        let deadline = state.session.deadline(&state.calls)?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Readable when something has come, once [`arm`](Client::arm) was called. For an event loop, of
    /// which there is one, and no thread in [`run`](Client::run) or [`PendingCall::wait`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.sleeper.fd()
    }

    /// Has the descriptor become readable when something comes; false when something has come already,
    /// and [`step`](Client::step) is to be called first.
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

    /// Does what there is to do, and wakes those whose calls have ended; whether there was anything.
    /// When it returns nothing has happened since the state was last looked at under its lock.
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

    /// Waits until something has come, or a deadline of the client or this one has passed; of all
    /// threads that wait here one sleeps on the descriptor, and the others on it.
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

    /// What a thread that is not the one asleep has done may have to be done earlier than that one
    /// wakes.
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

/// Nobody sleeps longer at a time.
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

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
}
