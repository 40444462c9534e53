//! Programs: what a server's owner gives it to carry out.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::rpc::{AuthStat, Procedure};

use super::dispatch::Job;
use super::outbox::Outbox;
use crate::body::Body;
use crate::credential::Credential;

/// A program that a server has.
///
/// It is called by the thread that steps the server, one call after the other, and must not wait: a
/// call that takes long is answered later, from anywhere, by its [`Request`].
pub trait Program: Send {
    /// Carries a call out, or sees to it. Procedure 0 does not come here: it has no arguments and no
    /// results, and the server answers it.
    fn call(&mut self, request: Request);

    /// Whether a procedure may be executed twice. Replies of those that may are not kept for calls
    /// that come again. No procedure may, unless the program knows.
    fn is_idempotent(&self, _procedure: Procedure) -> bool {
        false
    }
}

/// Every function of a request is a program.
impl<F: FnMut(Request) + Send> Program for F {
    fn call(&mut self, request: Request) {
        self(request);
    }
}

/// What a call is refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such procedure.
    #[error("no such procedure")]
    ProcUnavail,
    /// The arguments are none of this procedure.
    #[error("the arguments cannot be read")]
    GarbageArgs,
    /// Something of the server's own: no memory, for one.
    #[error("the server failed")]
    SystemErr,
    /// The caller may not.
    #[error("authentication failed: {}", .0.0)]
    Auth(AuthStat),
}

/// Arguments that could not be read are garbage.
impl From<heddle_rpcrdma::xdr::Error> for Refusal {
    fn from(_: heddle_rpcrdma::xdr::Error) -> Refusal {
        Refusal::GarbageArgs
    }
}

/// Results that cannot be made for their length, or for want of memory, are the server's failure.
impl From<crate::body::TooLong> for Refusal {
    fn from(_: crate::body::TooLong) -> Refusal {
        Refusal::SystemErr
    }
}

impl From<crate::memory::NoMemory> for Refusal {
    fn from(_: crate::memory::NoMemory) -> Refusal {
        Refusal::SystemErr
    }
}

/// A call to carry out; dropped without an answer, it is answered SYSTEM_ERR.
#[derive(Debug)]
pub struct Request {
    /// What is called.
    pub procedure: Procedure,
    /// Who calls.
    pub credential: Credential,
    /// From where.
    pub peer: SocketAddr,
    /// With what. Items of it lie in the server's memory until the last handle of them is gone.
    pub arguments: Body,
    pub(super) reply: Option<(Job, Outbox)>,
}

impl Request {
    /// Whether its caller waits for an answer. A call of a procedure that has none by its binding
    /// ([`Reply::None`](crate::binding::Reply::None)) is over when it is dropped: until then it counts
    /// among those of its connection that are served at a time.
    pub fn has_reply(&self) -> bool {
        self.reply.as_ref().is_some_and(|(job, _)| job.has_reply)
    }

    /// One that nobody waits for.
    #[cfg(test)]
    pub(crate) fn of_nobody(procedure: Procedure, arguments: Body) -> Request {
        let peer = (std::net::Ipv4Addr::LOCALHOST, 1).into();
        Request { procedure, credential: Credential::None, peer, arguments, reply: None }
    }

    /// Answers it, with results or a refusal; where it has no reply nobody hears of either.
    ///
    /// Items of the results lie in memory of the server
    /// ([`Server::memory`](super::Server::memory)): in another place the peer's transport could not
    /// take them from, and the call is answered SYSTEM_ERR.
    pub fn reply(mut self, outcome: Result<Body, Refusal>) {
        if let Some((job, outbox)) = self.reply.take() {
            outbox.push(job, outcome);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some((job, outbox)) = self.reply.take() {
            outbox.push(job, Err(Refusal::SystemErr));
        }
    }
}

/// A program with the versions it is registered for.
pub(super) struct Registered {
    pub(super) number: u32,
    pub(super) versions: RangeInclusive<u32>,
    pub(super) binding: Box<dyn Binding + Send>,
    pub(super) program: Box<dyn Program>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} versions {:?}", self.number, self.versions)
    }
}
