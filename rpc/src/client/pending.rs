//! A call, from the hand of whoever makes it back into it.

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

/// A call to be made. See [`Client::call`](super::Client::call), and
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

    /// With these arguments; with none otherwise.
    pub fn arguments(mut self, arguments: Body) -> CallBuilder {
        self.draft.arguments = arguments;
        self
    }

    /// With room for the next of the results that may be placed, in their order. Such a result without
    /// room comes within the reply.
    pub fn room(mut self, buffer: Buffer) -> CallBuilder {
        self.draft.results.push(buffer);
        self
    }

    /// The longest results, in octets, without those that have room of their own. Otherwise it is what
    /// the program's binding says, or 512 when it says nothing. Version 1 cannot convey longer ones.
    pub fn results_max(mut self, octets: u32) -> CallBuilder {
        self.draft.results_max = Some(octets);
        self
    }

    /// Ends with [`CallError::TimedOut`] after so long.
    pub fn timeout(mut self, timeout: Duration) -> CallBuilder {
        self.draft.timeout = Some(timeout);
        self
    }

    /// In this name instead of the client's.
    pub fn credential(mut self, credential: Credential) -> CallBuilder {
        self.draft.credential = Some(credential);
        self
    }

    /// Waits for no reply (draft section 4.7), whatever the binding says: it ends, without results, when it
    /// was sent, and goes its way when it is dropped. That it has arrived nobody says. All of it goes within messages, nothing by RDMA Read;
    /// version 1 has no such calls, and refuses it.
    pub fn one_way(mut self) -> CallBuilder {
        self.draft.one_way = true;
        self
    }

    /// As the same transaction as a call that was lost with its connection, or whose time was over: who has
    /// executed that does not execute it again, and gives the reply that it had. It has to be of the same
    /// procedure and arguments.
    pub fn again(mut self, xid: Xid) -> CallBuilder {
        self.draft.again = Some(xid);
        self
    }

    /// Makes the call.
    ///
    /// # Errors
    /// When it cannot be made; what happens later comes out of the pending call.
    pub fn send(self) -> Result<PendingCall, CallError> {
        let CallBuilder { callee, draft } = self;
        let xid = callee.make(draft)?;
        Ok(PendingCall { callee, xid, taken: false })
    }

    /// Makes the call, and waits for what comes of it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(self) -> Result<Body, CallError> {
        self.send()?.wait()
    }
}

/// A call that was made. It is a future, whose executor something has to drive the client for; or it is
/// waited for. Dropped, it is given up: its reply goes nowhere, and its memory comes back when the
/// server can reach it no longer.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct PendingCall {
    callee: Callee,
    xid: Xid,
    taken: bool,
}

impl PendingCall {
    /// Its transaction.
    pub fn xid(&self) -> Xid {
        self.xid
    }

    /// Waits for what comes of it, and drives the client meanwhile. Of a call to a client nothing is driven:
    /// the server is stepped by its owner.
    ///
    /// # Errors
    /// [`CallError`]; of a call to a client [`CallError::OwnStep`] on the thread that is in a step of the
    /// server; [`CallError::Closed`] when what came of it was taken before.
    pub fn wait(mut self) -> Result<Body, CallError> {
        if std::mem::replace(&mut self.taken, true) {
            // Another call may have its number by now.
            return Err(CallError::Closed);
        }
        self.callee.wait(self.xid)
    }

    /// What has come of it, if anything; then nothing more comes. Does not drive the client.
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
