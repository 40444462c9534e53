//! A call, from its builder to its outcome.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

use super::CallError;
use super::callee::{Callee, Draft};
use crate::body::Body;
use crate::credential::Credential;
use crate::memory::Buffer;

/// A builder for a call. See [`Client::call`](super::Client::call), and
/// [`Caller::call`](crate::server::Caller::call) of servers.
#[derive(Debug)]
#[must_use = "a call is made by `send`"]
pub struct CallBuilder {
    callee: Callee,
    draft: Draft,
}

impl CallBuilder {
    pub(crate) fn new(callee: Callee, procedure: Procedure) -> CallBuilder {
        let draft = Draft {
            procedure,
            arguments: Body::new(),
            results: Vec::new(),
            results_max: None,
            timeout: None,
            credential: None,
            one_way: false,
            again: None,
        };
        CallBuilder { callee, draft }
    }

    /// Sets the arguments; without this, the call has none.
    pub fn arguments(mut self, arguments: Body) -> CallBuilder {
        self.draft.arguments = arguments;
        self
    }

    /// Adds room for the next of the results that may be placed, in their order. A result without
    /// room comes within the reply.
    pub fn room(mut self, buffer: Buffer) -> CallBuilder {
        self.draft.results.push(buffer);
        self
    }

    /// Sets the length in bytes of the longest results without those that have room of their own.
    /// The default comes from the program's binding, or is 512 when the binding states none.
    /// Version 1 cannot convey longer results.
    pub fn results_max(mut self, bytes: u32) -> CallBuilder {
        self.draft.results_max = Some(bytes);
        self
    }

    /// Sets the timeout, after which the call ends with [`CallError::TimedOut`].
    pub fn timeout(mut self, timeout: Duration) -> CallBuilder {
        self.draft.timeout = Some(timeout);
        self
    }

    /// Sets a credential in place of the client's.
    pub fn credential(mut self, credential: Credential) -> CallBuilder {
        self.draft.credential = Some(credential);
        self
    }

    /// Makes a call without a reply (draft section 4.7), whatever the binding states. The call
    /// ends, without results, when it was sent, and goes on when its handle is dropped. Its caller
    /// does not learn whether it has arrived. The whole call travels within messages, without RDMA
    /// Read. Version 1 has no such calls, and refuses them.
    pub fn one_way(mut self) -> CallBuilder {
        self.draft.one_way = true;
        self
    }

    /// Repeats the transaction of a call that was lost with its connection or timed out: a peer
    /// that has executed that call does not execute it again, and returns the earlier reply. The
    /// procedure and arguments must be the same.
    pub fn again(mut self, xid: Xid) -> CallBuilder {
        self.draft.again = Some(xid);
        self
    }

    /// Makes the call.
    ///
    /// # Errors
    /// Returns an error when the call cannot be made; the pending call returns later errors.
    pub fn send(self) -> Result<PendingCall, CallError> {
        let CallBuilder { callee, draft } = self;
        let xid = callee.make(draft)?;
        Ok(PendingCall { callee, xid, taken: false })
    }

    /// Makes the call, and waits for its outcome.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(self) -> Result<Body, CallError> {
        self.send()?.wait()
    }
}

/// A call that was made. An application either awaits the call as a future, while something drives
/// the client, or waits for it. Dropping the handle gives the call up: its reply is discarded, and
/// its memory comes back when the server can no longer reach the memory.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct PendingCall {
    callee: Callee,
    xid: Xid,
    taken: bool,
}

impl PendingCall {
    /// Returns the XID of the call.
    pub fn xid(&self) -> Xid {
        self.xid
    }

    /// Waits for the outcome, and drives the client meanwhile. A call to a client drives nothing:
    /// the server's owner steps the server.
    ///
    /// # Errors
    /// [`CallError`]. For a call to a client: [`CallError::OwnStep`] on the thread that is within a
    /// step of the server. [`CallError::Closed`] when the outcome was taken before.
    pub fn wait(mut self) -> Result<Body, CallError> {
        if std::mem::replace(&mut self.taken, true) {
            // Do not ask by XID again, since another call may have the XID by now.
            return Err(CallError::Closed);
        }
        self.callee.wait(self.xid)
    }

    /// Takes the outcome, if the call has ended; after that the call returns nothing more. This
    /// method does not drive the client.
    pub fn try_take(&mut self) -> Option<Result<Body, CallError>> {
        if self.taken {
            return None;
        }
        let outcome = self.callee.take(self.xid)?;
        self.taken = true;
        Some(outcome)
    }
}

impl Future for PendingCall {
    type Output = Result<Body, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.taken {
            return Poll::Ready(Err(CallError::Closed));
        }
        let polled = self.callee.poll(self.xid, context);
        self.taken = polled.is_ready();
        polled
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.taken {
            self.callee.cancel(self.xid);
        }
    }
}
