//! Programs: what a server's owner gives it to carry out.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::rpc::{AuthStat, Procedure};

use super::Caller;
use super::dispatch::Job;
use super::outbox::Outbox;
use crate::body::Body;
use crate::credential::Credential;
use crate::memory::{Buffer, Memory, NoMemory, Share};

/// A program that a server has.
///
/// It is called by the thread that steps the server, one call after the other, and must not wait: a
/// call that takes long is answered later, from anywhere, by its [`Request`].
pub trait Program: Send {
    /// Carries a call out, or sees to it. Procedure 0 does not come here: it has no arguments and no
    /// results, and the server answers it.
    fn call(&mut self, request: Request);

    /// What becomes of a call of `procedure` that comes again: it is not executed again, unless the program
    /// knows that it may be.
    fn repeat(&self, _procedure: Procedure) -> Repeat {
        Repeat::Never
    }
}

/// What becomes of a call that comes again, as a client makes it that has lost its connection, and with it
/// perhaps the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It gets the reply that it has had, or that it will have.
    Never,
    /// As long as it is being executed it waits for that reply; then it is executed again. For what leaves the
    /// same when it is done twice, as writing does. Not twice at a time: what is done late would undo what the
    /// client did after it had the reply of the other.
    Afterwards,
    /// It is executed again, and nothing is looked for. For what changes nothing.
    Always,
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
    pub(super) caller: Option<Caller>,
    pub(super) room: Room,
    pub(super) reply: Option<(Job, Outbox)>,
}

/// Of a call: room for its results.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// What its address has of the server's memory.
    pub(super) share: Option<Share>,
    /// What it has waited for.
    pub(super) waited: Option<Result<Buffer, NoMemory>>,
}

impl Request {
    /// Whom to call back, on the connection that it has come by: of a server that makes calls
    /// ([`ServerConfig::calls`](super::ServerConfig::calls)). A client calls its server by itself.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Whether its caller waits for an answer. A call of a procedure that has none by its binding
    /// ([`Reply::None`](crate::binding::Reply::None)) is over when it is dropped: until then it counts
    /// among those of its connection that are served at a time.
    pub fn has_reply(&self) -> bool {
        self.reply.as_ref().is_some_and(|(job, _)| job.has_reply)
    }

    /// Takes `len` bytes of `memory`, the server's, for results. The address of the caller has a share of it,
    /// so that there is always some for others.
    ///
    /// # Errors
    /// [`NoMemory`]: see [`wait_for_room`](Request::wait_for_room).
    pub fn take_room(&self, memory: &Memory, len: usize) -> Result<Buffer, NoMemory> {
        match &self.room.share {
            Some(share) => memory.take_for_results(share, len),
            None => memory.take(len),
        }
    }

    /// Gives the call back to the server, whose program gets it again when there are `len` bytes of room for
    /// its results, or after `patience`; then [`waited`](Request::waited) has what came of it. No thread
    /// waits meanwhile. Calls have their room in the order in which they began to wait, but for those whose
    /// address has used up its share. A call that a client's program has got cannot wait: it is answered
    /// SYSTEM_ERR.
    pub fn wait_for_room(self, len: usize, patience: Duration) {
        if let (Some(_), Some((_, outbox))) = (&self.room.share, &self.reply) {
            let outbox = outbox.clone();
            outbox.park(self, len, patience);
        }
    }

    /// What a call has got that has waited for room; `None` when it has not.
    pub fn waited(&mut self) -> Option<Result<Buffer, NoMemory>> {
        self.room.waited.take()
    }

    /// One that nobody waits for.
    #[cfg(test)]
    pub(crate) fn of_nobody(procedure: Procedure, arguments: Body) -> Request {
        let peer = (std::net::Ipv4Addr::LOCALHOST, 1).into();
        Request {
            procedure,
            credential: Credential::None,
            peer,
            arguments,
            caller: None,
            room: Room::default(),
            reply: None,
        }
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
