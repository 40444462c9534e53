//! A call, from the hand of whoever makes it back into it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

use super::calls::Outgoing;
use super::{CallError, Client, Room};
use crate::body::Body;
use crate::credential::Credential;
use crate::memory::Buffer;
use crate::message::Message;

/// A call to be made. See [`Client::call`].
#[derive(Debug)]
#[must_use = "a call is made by `send`"]
pub struct CallBuilder<'a> {
    client: &'a Client,
    procedure: Procedure,
    arguments: Body,
    results: Vec<Buffer>,
    results_max: Option<u32>,
    timeout: Option<Duration>,
    credential: Option<Credential>,
    one_way: bool,
}

impl<'a> CallBuilder<'a> {
    pub(super) fn new(client: &'a Client, procedure: Procedure) -> CallBuilder<'a> {
        CallBuilder {
            client,
            procedure,
            arguments: Body::new(),
            results: Vec::new(),
            results_max: None,
            timeout: None,
            credential: None,
            one_way: false,
        }
    }

    /// With these arguments; with none otherwise.
    pub fn arguments(mut self, arguments: Body) -> CallBuilder<'a> {
        self.arguments = arguments;
        self
    }

    /// With room for the next of the results that may be placed, in their order. Such a result without
    /// room comes within the reply.
    pub fn room(mut self, buffer: Buffer) -> CallBuilder<'a> {
        self.results.push(buffer);
        self
    }

    /// The longest results, in octets, without those that have room of their own. Otherwise it is what
    /// the program's binding says, or 512 when it says nothing. Version 1 cannot convey longer ones.
    pub fn results_max(mut self, octets: u32) -> CallBuilder<'a> {
        self.results_max = Some(octets);
        self
    }

    /// Ends with [`CallError::TimedOut`] after so long.
    pub fn timeout(mut self, timeout: Duration) -> CallBuilder<'a> {
        self.timeout = Some(timeout);
        self
    }

    /// In this name instead of the client's.
    pub fn credential(mut self, credential: Credential) -> CallBuilder<'a> {
        self.credential = Some(credential);
        self
    }

    /// Waits for no reply (draft section 4.7), whatever the binding says: it ends, without results, when it
    /// was sent. That it has arrived nobody says. All of it goes within messages, nothing by RDMA Read;
    /// version 1 has no such calls, and refuses it.
    pub fn one_way(mut self) -> CallBuilder<'a> {
        self.one_way = true;
        self
    }

    /// Makes the call.
    ///
    /// # Errors
    /// When it cannot be made; what happens later comes out of the pending call.
    pub fn send(self) -> Result<PendingCall, CallError> {
        let shared = &self.client.0;
        let items = self.arguments.items().iter().map(|i| &i.data);
        if !items.chain(&self.results).all(|buffer| shared.memory.has(buffer)) {
            return Err(CallError::ForeignBuffer);
        }
        let mut state = shared.lock();
        if state.closed {
            return Err(CallError::Closed);
        }
        let xid = state.calls.reserve()?;
        let config = state.session.config();
        let stream = self.results_max.unwrap_or_else(|| self.expected(&*config.binding));
        let credential = self.credential.as_ref().unwrap_or(&config.credential);
        let binding = &*config.binding;
        let message = Message::call(xid, self.procedure, credential, self.arguments, binding)?;
        let has_reply = !self.one_way && binding.has_reply(self.procedure);
        let room = has_reply.then_some(Room { results: self.results, stream });
        let outgoing = Outgoing { procedure: self.procedure, message, room };
        let now = Instant::now();
        let timeout = self.timeout.unwrap_or(config.timeout).min(LONGEST);
        state.calls.add(xid, outgoing, now + timeout);
        state.step();
        shared.hurry(&state);
        drop(state);
        Ok(PendingCall { client: self.client.clone(), xid, taken: false })
    }

    /// Makes the call, and waits for what comes of it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(self) -> Result<Body, CallError> {
        self.send()?.wait()
    }

    /// Octets of the longest results that go within the reply.
    fn expected(&self, binding: &dyn heddle_rpcrdma::binding::Binding) -> u32 {
        const UNKNOWN: u32 = 512;
        let size = binding.reply_size(self.procedure, self.arguments.octets());
        size.map_or(UNKNOWN, |size| {
            let item = if self.results.is_empty() { size.item.saturating_add(3) } else { 0 };
            size.stream.saturating_add(item)
        })
    }
}

/// The longest time that a call may have: for ever.
const LONGEST: Duration = Duration::from_secs(86_400 * 365);

/// A call that was made. It is a future, whose executor something has to drive the client for; or it is
/// waited for. Dropped, it is given up: its reply goes nowhere, and its memory comes back when the
/// server can reach it no longer.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct PendingCall {
    client: Client,
    xid: Xid,
    taken: bool,
}

impl PendingCall {
    /// Its transaction.
    pub fn xid(&self) -> Xid {
        self.xid
    }

    /// Waits for what comes of it, and drives the client meanwhile.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(mut self) -> Result<Body, CallError> {
        let client = self.client.clone();
        let mut state = client.0.lock();
        loop {
            (state, _) = client.0.drive(state);
            if let Some(outcome) = state.calls.take(self.xid) {
                self.taken = true;
                // Others may have theirs by the same step.
                client.0.turn.notify_all();
                return outcome;
            }
            state = client.0.rest(state, None);
        }
    }

    /// What has come of it, if anything; then nothing more comes. Does not drive the client.
    pub fn try_take(&mut self) -> Option<Result<Body, CallError>> {
        let outcome = self.client.0.lock().calls.take(self.xid)?;
        self.taken = true;
        Some(outcome)
    }
}

impl Future for PendingCall {
    type Output = Result<Body, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let client = self.client.clone();
        let mut state = client.0.lock();
        if let Some(outcome) = state.calls.take(self.xid) {
            self.taken = true;
            return Poll::Ready(outcome);
        }
        if self.taken {
            return Poll::Ready(Err(CallError::Closed));
        }
        state.calls.wake_by(self.xid, context.waker());
        Poll::Pending
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.client.0.lock();
        if state.calls.cancel(self.xid) {
            state.session.cancel(self.xid);
        }
    }
}
