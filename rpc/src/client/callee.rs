//! The end to which calls are made: the server of a client, or a client of a server. Callers use
//! both in the same way.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::rpc::Procedure;

use super::calls::{Calls, Outgoing};
use super::{CallError, Client, ClientConfig, Shared, State};
use crate::body::Body;
use crate::credential::Credential;
use crate::memory::Buffer;
use crate::message::Message;
use crate::server::Caller;

/// A call that has not been made.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(super) procedure: Procedure,
    pub(super) arguments: Body,
    pub(super) results: Vec<Buffer>,
    pub(super) results_max: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) credential: Option<Credential>,
    pub(super) one_way: bool,
    /// The XID of an earlier call that this call repeats.
    pub(super) again: Option<Xid>,
}

/// Defaults for a call that does not set its own values.
pub(crate) struct Usual<'a> {
    pub(crate) binding: &'a dyn Binding,
    pub(crate) credential: &'a Credential,
    pub(crate) timeout: Duration,
}

/// The longest timeout of a call, which stands for no limit.
const LONGEST: Duration = Duration::from_secs(86_400 * 365);

impl Draft {
    /// Returns true if `own` accepts all buffers of the call.
    pub(crate) fn lies_in(&self, own: impl Fn(&Buffer) -> bool) -> bool {
        self.arguments.items().iter().map(|i| &i.data).chain(&self.results).all(own)
    }

    /// Appends the call to the queue of `calls`. Its XID comes from `next`, unless the call repeats
    /// an earlier XID.
    ///
    /// # Errors
    /// Returns an error when the call cannot be made.
    pub(crate) fn make(
        self,
        calls: &mut Calls,
        usual: &Usual<'_>,
        next: impl FnOnce(&mut Calls) -> Result<Xid, CallError>,
    ) -> Result<Xid, CallError> {
        let xid = match self.again {
            Some(xid) => calls.reserve_again(xid)?,
            None => next(calls)?,
        };
        let Usual { binding, credential, timeout } = *usual;
        let stream = self.results_max.unwrap_or_else(|| self.expected(binding));
        let credential = self.credential.as_ref().unwrap_or(credential);
        let parts = (self.arguments, self.results);
        let message = Message::call(xid, self.procedure, credential, parts, binding)?;
        let has_reply = !self.one_way && binding.has_reply(self.procedure);
        let results = has_reply.then_some(stream);
        let outgoing = Outgoing { procedure: self.procedure, message, results };
        let timeout = self.timeout.unwrap_or(timeout).min(LONGEST);
        calls.add(xid, outgoing, Instant::now() + timeout);
        Ok(xid)
    }

    /// Returns the length in bytes of the longest results that travel within the reply.
    fn expected(&self, binding: &dyn Binding) -> u32 {
        const UNKNOWN: u32 = 512;
        let size = binding.reply_size(self.procedure, self.arguments.bytes());
        size.map_or(UNKNOWN, |size| {
            let item = if self.results.is_empty() { size.item.saturating_add(3) } else { 0 };
            size.stream.saturating_add(item)
        })
    }
}

/// See [the module](self).
#[derive(Clone, Debug)]
pub(crate) enum Callee {
    /// The server of this client.
    Server(Client),
    /// The client at the other end of one of a server's connections.
    Client(Caller),
}

impl Callee {
    pub(super) fn make(&self, draft: Draft) -> Result<Xid, CallError> {
        match self {
            Callee::Server(client) => client.0.make(draft),
            Callee::Client(caller) => caller.make(draft),
        }
    }

    pub(super) fn wait(&self, xid: Xid) -> Result<Body, CallError> {
        match self {
            Callee::Server(client) => client.0.wait(xid),
            Callee::Client(caller) => caller.wait(xid),
        }
    }

    /// Returns the outcome of a call, once.
    pub(super) fn take(&self, xid: Xid) -> Option<Result<Body, CallError>> {
        match self {
            Callee::Server(client) => client.0.lock().calls.take(xid),
            Callee::Client(caller) => caller.take(xid),
        }
    }

    /// Returns the outcome of a call, once; before that, registers the waker of `context` for the
    /// end of the call.
    pub(super) fn poll(
        &self,
        xid: Xid,
        context: &mut Context<'_>,
    ) -> Poll<Result<Body, CallError>> {
        match self {
            Callee::Server(client) => client.0.lock().calls.poll(xid, context),
            Callee::Client(caller) => caller.poll(xid, context),
        }
    }

    /// Gives up a call for which no application waits any more.
    pub(super) fn cancel(&self, xid: Xid) {
        match self {
            Callee::Server(client) => {
                let mut state = client.0.lock();
                if state.calls.cancel(xid) {
                    state.session.cancel(xid);
                }
            }
            Callee::Client(caller) => caller.cancel(xid),
        }
    }
}

impl Shared {
    fn make(&self, draft: Draft) -> Result<Xid, CallError> {
        let mut state = self.lock();
        let served = state.session.served_memory();
        let own = |b: &Buffer| self.memory.has(b) || served.is_some_and(|served| served.has(b));
        if !draft.lies_in(own) {
            return Err(CallError::ForeignBuffer);
        }
        if state.closed {
            return Err(CallError::Closed);
        }
        let State { session, calls, .. } = &mut *state;
        let ClientConfig { binding, credential, timeout, .. } = session.config();
        let usual = Usual { binding: &**binding, credential, timeout: *timeout };
        let xid = draft.make(calls, &usual, Calls::reserve)?;
        state.step();
        self.hurry(&state);
        Ok(xid)
    }

    /// Waits for the outcome of a call, and drives the client meanwhile.
    fn wait(&self, xid: Xid) -> Result<Body, CallError> {
        let mut state = self.lock();
        loop {
            (state, _) = self.drive(state);
            if let Some(outcome) = state.calls.take(xid) {
                // The same step may have ended calls of other threads.
                self.turn.notify_all();
                return outcome;
            }
            state = self.rest(state, None);
        }
    }
}
