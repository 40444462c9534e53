//! Programs, which the owner of a server provides to execute calls.

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

/// A program of a server.
///
/// The thread that steps the server calls the program, one call after the other. The program must
/// not wait: it answers a long call later, from any thread, through the call's [`Request`].
pub trait Program: Send {
    /// Executes a call, or arranges for its execution. Procedure 0 does not come here: it has no
    /// arguments and no results, and the server answers it.
    fn call(&mut self, request: Request);

    /// Returns how the server treats a repeated call of `procedure`. The server does not execute
    /// such a call again unless the program allows that.
    fn repeat(&self, _procedure: Procedure) -> Repeat {
        Repeat::Never
    }
}

/// The treatment of a repeated call. A client repeats a call when it has lost its connection, and
/// perhaps the reply with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The repeated call gets the reply of the first execution, which may still be coming.
    Never,
    /// While the first execution runs, the repeated call waits for its reply; after that the call
    /// is executed again. This suits procedures with the same effect when executed twice, such as a
    /// write. The two executions must not overlap, because a late execution would undo changes that
    /// the client made after the other's reply.
    Afterwards,
    /// The call is executed again without any check. This suits procedures that change nothing.
    Always,
}

/// Every function of a request is a program.
impl<F: FnMut(Request) + Send> Program for F {
    fn call(&mut self, request: Request) {
        self(request);
    }
}

/// The error with which a program refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The program has no such procedure.
    #[error("no such procedure")]
    ProcUnavail,
    /// The bytes are not arguments of this procedure.
    #[error("the arguments cannot be read")]
    GarbageArgs,
    /// The server had an internal error, such as a lack of memory.
    #[error("the server failed")]
    SystemErr,
    /// The caller is not authorised.
    #[error("authentication failed: {}", .0.0)]
    Auth(AuthStat),
}

/// Arguments that could not be decoded are refused as garbage.
impl From<heddle_rpcrdma::xdr::Error> for Refusal {
    fn from(_: heddle_rpcrdma::xdr::Error) -> Refusal {
        Refusal::GarbageArgs
    }
}

/// A failure to build results, because of their length or lack of memory, is the server's failure.
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

/// A call to execute. A request that is dropped without an answer is answered with SYSTEM_ERR.
#[derive(Debug)]
pub struct Request {
    /// The procedure that is called.
    pub procedure: Procedure,
    /// The identity of the caller.
    pub credential: Credential,
    /// Address of the caller.
    pub peer: SocketAddr,
    /// The arguments. Their items stay in the server's memory until the last handle of them is
    /// dropped.
    pub arguments: Body,
    pub(super) caller: Option<Caller>,
    pub(super) room: Room,
    pub(super) reply: Option<(Job, Outbox)>,
}

/// The room for a call's results.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The address's share of the server's memory.
    pub(super) share: Option<Share>,
    /// The buffer for which the call has waited, or the error.
    pub(super) waited: Option<Result<Buffer, NoMemory>>,
}

impl Request {
    /// Returns the handle for calls to the client, on the connection by which the call came, if the
    /// server makes calls ([`ServerConfig::calls`](super::ServerConfig::calls)). In a program of a
    /// client this is `None`, because the client calls its server through itself.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns true if the caller waits for an answer. A call of a procedure without a reply by its
    /// binding ([`Reply::None`](crate::binding::Reply::None)) is over when the request is dropped.
    /// Until then the call counts among the calls of its connection that are served at a time.
    pub fn has_reply(&self) -> bool {
        self.reply.as_ref().is_some_and(|(job, _)| job.has_reply)
    }

    /// Takes `len` bytes of `memory`, the server's, for results. The request is charged to the
    /// share of the caller's address, so that memory is left for others.
    ///
    /// # Errors
    /// [`NoMemory`]: see [`wait_for_room`](Request::wait_for_room).
    pub fn take_room(&self, memory: &Memory, len: usize) -> Result<Buffer, NoMemory> {
        match &self.room.share {
            Some(share) => memory.take_for_results(share, len),
            None => memory.take(len),
        }
    }

    /// Returns the call to the server. The server gives the call to the program again when there
    /// are `len` bytes of room for its results, or after `patience`; [`waited`](Request::waited)
    /// then has the outcome. No thread waits meanwhile. Calls get room in the order in which they
    /// began to wait, except calls whose address has used up its share. A call to a client's
    /// program cannot wait: it is answered with SYSTEM_ERR.
    pub fn wait_for_room(self, len: usize, patience: Duration) {
        if let (Some(_), Some((_, outbox))) = (&self.room.share, &self.reply) {
            let outbox = outbox.clone();
            outbox.park(self, len, patience);
        }
    }

    /// Takes the outcome of a call that has waited for room; `None` when it has not waited.
    pub fn waited(&mut self) -> Option<Result<Buffer, NoMemory>> {
        self.room.waited.take()
    }

    /// Creates a request that no caller waits for.
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

    /// Answers the call, with results or a refusal. If the call has no reply, the outcome is
    /// discarded.
    ///
    /// Items of the results must be in memory of the server
    /// ([`Server::memory`](super::Server::memory)). The transport cannot send them from another
    /// place, and then answers the call with SYSTEM_ERR.
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

/// A program with the versions for which it is registered.
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
