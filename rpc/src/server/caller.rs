//! Calls to a client, on the connection that it has made: the reverse direction (RFC 8167, draft section
//! 4.6).
//!
//! ```text
//!   any thread:       Caller ── call(..) ──▶ calls that wait ◀── wait, await
//!                                                 │ bell          ▲
//!   server's thread:                    feed ─────┴─▶ link ── finish, or gone
//! ```
//!
//! A server cannot make a connection: when the client's has ended, so have all calls on it, and none is made
//! again on another. Whether the client comes back, and what is then to be done, the program knows.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::property::ReverseSupport;
use heddle_rpcrdma::rpc::Procedure;

use super::config::CallsConfig;
use super::outbox::Outbox;
use crate::body::Body;
use crate::client::callee::{Callee, Draft, Usual};
use crate::client::calls::Calls;
use crate::client::{CallBuilder, CallError};
use crate::memory::{Buffer, Memory, NoMemory};
use crate::thread::here;
use crate::transport::Link;

/// What the callers of a server share.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) config: Arc<CallsConfig>,
    /// Of the server: items may lie there too.
    pub(super) memory: Memory,
    /// Tells the server's thread that there is something to send.
    pub(super) outbox: Outbox,
    /// Numbers of calls: each once, on whatever connection, so that no client takes one for another.
    pub(super) xids: Arc<AtomicU32>,
    /// The thread that is in a step of the server; 0 when none is.
    pub(super) stepping: Arc<AtomicUsize>,
}

/// A client of a server as somebody to call: one connection of it. Clones are handles of the same one, may
/// be kept by programs, and used on any thread.
///
/// Its calls are made by the thread that steps the server, and their time goes on from when they were made.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    common: Common,
    addr: SocketAddr,
    /// For calls on this connection.
    memory: Memory,
    state: Mutex<State>,
    /// Told when calls have ended.
    turn: Condvar,
}

#[derive(Debug)]
struct State {
    calls: Calls,
    /// Those that were sent and nobody waits for any more.
    cancelled: Vec<Xid>,
    version: Option<u32>,
    takes: ReverseSupport,
    gone: bool,
}

/// Two are the same when they are of the same connection.
impl PartialEq for Caller {
    fn eq(&self, other: &Caller) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Caller {}

impl Caller {
    /// A call to be made. See [`Client::call`](crate::Client::call): the same, with the binding and the
    /// credential of [`CallsConfig`].
    ///
    /// Of version 1 all of it goes within one message each way. In version 2 it is as the client has said that
    /// it takes it ([`takes`](Caller::takes)). What does not go so ends with
    /// [`CallError::Transport`](crate::CallError::Transport), and with [`CallError::Lost`] what has no
    /// reply when the connection ends.
    pub fn call(&self, procedure: Procedure) -> CallBuilder {
        CallBuilder::new(Callee::Client(self.clone()), procedure)
    }

    /// Registered memory for items of arguments and for results, besides that of the server.
    ///
    /// # Errors
    /// [`NoMemory`], until calls have ended.
    pub fn buffer(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.0.memory.take(len)
    }

    /// The memory that buffers are taken from: of this connection.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Where the client is.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// The version of RPC-over-RDMA that is spoken.
    pub fn version(&self) -> Option<u32> {
        self.lock().version
    }

    /// What the client takes in the reverse direction. In version 2 it has said so; in version 1 there is
    /// no way to, its programs know, and this is [`ReverseSupport::Simple`].
    pub fn takes(&self) -> ReverseSupport {
        let state = self.lock();
        if state.version == Some(1) { ReverseSupport::Simple } else { state.takes }
    }

    /// Whether the connection has not ended.
    pub fn is_connected(&self) -> bool {
        !self.lock().gone
    }

    /// Calls that are under way, or have not been taken.
    pub fn outstanding(&self) -> usize {
        self.lock().calls.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait for calls that have ended, under no lock.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let woken = state.calls.woken();
        drop(state);
        self.0.turn.notify_all();
        woken.into_iter().for_each(std::task::Waker::wake);
    }
}

/// For those who call.
impl Caller {
    pub(crate) fn make(&self, draft: Draft) -> Result<Xid, CallError> {
        let Shared { common, memory, .. } = &*self.0;
        if !draft.lies_in(|buffer| memory.has(buffer) || common.memory.has(buffer)) {
            return Err(CallError::ForeignBuffer);
        }
        let mut state = self.lock();
        if state.gone {
            return Err(CallError::Lost);
        }
        let CallsConfig { binding, credential, timeout, .. } = &*common.config;
        let usual = Usual { binding: &**binding, credential, timeout: *timeout };
        let next = || Xid(common.xids.fetch_add(1, Ordering::Relaxed));
        let made = draft.make(&mut state.calls, &usual, |calls| calls.reserve_of(next));
        drop(state);
        common.outbox.ring();
        made
    }

    pub(crate) fn take(&self, xid: Xid) -> Option<Result<Body, CallError>> {
        self.lock().calls.take(xid)
    }

    pub(crate) fn poll(
        &self,
        xid: Xid,
        context: &mut Context<'_>,
    ) -> Poll<Result<Body, CallError>> {
        self.lock().calls.poll(xid, context)
    }

    /// Waits, without the server's help until its time is over.
    pub(crate) fn wait(&self, xid: Xid) -> Result<Body, CallError> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = state.calls.take(xid) {
                return outcome;
            }
            if self.0.common.stepping.load(Ordering::Relaxed) == here() {
                drop(state);
                self.cancel(xid);
                return Err(CallError::OwnStep);
            }
            let now = Instant::now();
            if self.expire(&mut state, now) {
                self.tell(state);
                self.0.common.outbox.ring();
                state = self.lock();
                continue;
            }
            // It is among the deadlines as long as it has not ended.
            let left = state.calls.deadline().map(|at| at.saturating_duration_since(now));
            let slept = self.0.turn.wait_timeout(state, left.unwrap_or(Duration::ZERO));
            state = slept.map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
    }

    pub(crate) fn cancel(&self, xid: Xid) {
        let mut state = self.lock();
        if state.calls.cancel(xid) {
            state.cancelled.push(xid);
            drop(state);
            self.0.common.outbox.ring();
        }
    }

    /// Ends calls whose time is over; whether any was.
    fn expire(&self, state: &mut State, now: Instant) -> bool {
        let mut any = false;
        while let Some((xid, sent)) = state.calls.expire(now) {
            any = true;
            if sent {
                state.cancelled.push(xid);
            }
        }
        any
    }
}

/// For the server.
impl Caller {
    pub(super) fn new(common: Common, addr: SocketAddr, memory: Memory) -> Caller {
        let calls = Calls::new(common.config.calls.max(1), Xid(0));
        let (cancelled, takes) = (Vec::new(), ReverseSupport::None);
        let state = Mutex::new(State { calls, cancelled, version: None, takes, gone: false });
        Caller(Arc::new(Shared { common, addr, memory, state, turn: Condvar::new() }))
    }

    /// A version is spoken. Whether the client can be called.
    pub(super) fn established(&self, version: u32) -> bool {
        self.lock().version = Some(version);
        version == 1
    }

    /// The client has said what it takes.
    pub(super) fn told(&self, takes: ReverseSupport) {
        self.lock().takes = takes;
    }

    /// Gives the link what there is to send; whether there was anything.
    pub(super) fn feed(&self, now: Instant, link: &mut Link) -> bool {
        let mut state = self.lock();
        if state.calls.len() == 0 && state.cancelled.is_empty() {
            return false;
        }
        let mut any = self.expire(&mut state, now);
        for xid in std::mem::take(&mut state.cancelled) {
            link.cancel(xid);
            any = true;
        }
        any |= state.calls.send_by(|xid, outgoing| link.call(xid, outgoing));
        self.tell(state);
        any
    }

    /// A call has ended.
    pub(super) fn finish(&self, xid: Xid, outcome: Result<Body, CallError>) {
        let mut state = self.lock();
        state.calls.finish(xid, outcome);
        self.tell(state);
    }

    /// The connection has ended.
    pub(super) fn gone(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.calls.finish_all(&CallError::Lost);
        state.cancelled.clear();
        self.tell(state);
    }

    /// When the time of its next call is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lock().calls.deadline()
    }
}
