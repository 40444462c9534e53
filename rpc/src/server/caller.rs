//! Calls of a server to a client, on the connection that the client has made: the reverse direction
//! (RFC 8167, draft section 4.6).
//!
//! ```text
//!   any thread:       Caller ── call(..) ──▶ calls that wait ◀── wait, await
//!                                                 │ bell          ▲
//!   server's thread:                    feed ─────┴─▶ link ── finish, or gone
//! ```
//!
//! A server cannot make a connection. When the client's connection ends, all calls on it end, and
//! the server repeats none of them on another connection. The program knows whether the client
//! comes back, and what to do then.

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

/// The state that the callers of a server share.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) config: Arc<CallsConfig>,
    /// Memory of the server, which may also hold items of calls.
    pub(super) memory: Memory,
    /// Notifies the server's thread that there is something to send.
    pub(super) outbox: Outbox,
    /// The next XID. Each XID is used once on all connections, so that no client takes a call for
    /// an earlier call.
    pub(super) xids: Arc<AtomicU32>,
    /// The thread that is within a step of the server; 0 when none is.
    pub(super) stepping: Arc<AtomicUsize>,
}

/// A handle by which a server calls a client, on one connection of the client. Clones are handles
/// of the same connection; programs may keep them, and use them on any thread.
///
/// The thread that steps the server sends the calls. The timeout of a call runs from the time when
/// it was made.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    common: Common,
    addr: SocketAddr,
    /// Memory for calls on this connection.
    memory: Memory,
    state: Mutex<State>,
    /// Notified when calls have ended.
    turn: Condvar,
}

#[derive(Debug)]
struct State {
    calls: Calls,
    /// Calls that were sent and that no application waits for any more.
    cancelled: Vec<Xid>,
    version: Option<u32>,
    takes: ReverseSupport,
    gone: bool,
}

/// Two callers are equal if they are of the same connection.
impl PartialEq for Caller {
    fn eq(&self, other: &Caller) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Caller {}

impl Caller {
    /// Returns a builder for a call, as [`Client::call`](crate::Client::call) does, with the
    /// binding and the credential of [`CallsConfig`].
    ///
    /// In version 1 each call and reply travels within one message. In version 2 the client's
    /// announced support ([`takes`](Caller::takes)) limits them. A call that exceeds this ends with
    /// [`CallError::Transport`](crate::CallError::Transport). A call without a reply when the
    /// connection ends gets [`CallError::Lost`](crate::CallError::Lost).
    pub fn call(&self, procedure: Procedure) -> CallBuilder {
        CallBuilder::new(Callee::Client(self.clone()), procedure)
    }

    /// Takes registered memory for items of arguments and for results. Memory of the server serves
    /// as well.
    ///
    /// # Errors
    /// [`NoMemory`], until calls have ended.
    pub fn buffer(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.0.memory.take(len)
    }

    /// Returns the memory of this connection, from which the caller takes buffers.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Returns the address of the client.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Returns the version of RPC-over-RDMA that the connection speaks, once known.
    pub fn version(&self) -> Option<u32> {
        self.lock().version
    }

    /// Returns the reverse-direction support of the client. In version 2 the client has announced
    /// it. Version 1 has no such announcement: the programs know, and this method returns
    /// [`ReverseSupport::Simple`].
    pub fn takes(&self) -> ReverseSupport {
        let state = self.lock();
        if state.version == Some(1) { ReverseSupport::Simple } else { state.takes }
    }

    /// Returns true if the connection has not ended.
    pub fn is_connected(&self) -> bool {
        !self.lock().gone
    }

    /// Returns the number of calls that are under way, or whose outcome was not taken.
    pub fn outstanding(&self) -> usize {
        self.lock().calls.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads and tasks that wait for calls which have ended, without holding the lock.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let woken = state.calls.woken();
        drop(state);
        self.0.turn.notify_all();
        woken.into_iter().for_each(std::task::Waker::wake);
    }
}

/// The methods for the application that calls.
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

    /// Waits for the outcome of a call. The call times out even if no thread steps the server.
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
            // An unfinished call is among the deadlines, so there is a deadline.
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

    /// Ends calls whose deadline has passed. Returns true if there were any.
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

/// The methods for the server.
impl Caller {
    pub(super) fn new(common: Common, addr: SocketAddr, memory: Memory) -> Caller {
        let calls = Calls::new(common.config.calls.max(1), Xid(0));
        let (cancelled, takes) = (Vec::new(), ReverseSupport::None);
        let state = Mutex::new(State { calls, cancelled, version: None, takes, gone: false });
        Caller(Arc::new(Shared { common, addr, memory, state, turn: Condvar::new() }))
    }

    /// Records the version of the connection. Returns true if the client can now be called.
    pub(super) fn established(&self, version: u32) -> bool {
        self.lock().version = Some(version);
        version == 1
    }

    /// Records the reverse-direction support that the client announced.
    pub(super) fn told(&self, takes: ReverseSupport) {
        self.lock().takes = takes;
    }

    /// Gives the link the calls to send and to cancel. Returns true if there were any.
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

    /// Ends a call.
    pub(super) fn finish(&self, xid: Xid, outcome: Result<Body, CallError>) {
        let mut state = self.lock();
        state.calls.finish(xid, outcome);
        self.tell(state);
    }

    /// Ends all calls, because the connection has ended.
    pub(super) fn gone(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.calls.finish_all(&CallError::Lost);
        state.cancelled.clear();
        self.tell(state);
    }

    /// Returns the deadline of the next call to expire.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lock().calls.deadline()
    }
}
