//! A client: mounting, walking, listing, reading and writing, over any transport.
//!
//! [`Transport`] carries calls, several at once; [`Client`] knows what they say. The client
//! pipelines reads and writes of files and moves data in the order of the file. An observer of the
//! data (a digest, a progress bar) receives each piece in that order.
//!
//! The client checks everything that a server says: lengths, counts beyond what the client asked
//! for, listings that do not advance, links that lead in circles. The server chooses the bytes of
//! the names that it lists: a caller that makes files of these names has to check them first.

mod copy;
mod jukebox;
mod mount;
pub mod rdma;
mod walk;

pub use jukebox::Patience;
pub use mount::export_of;
pub use rdma::RdmaTransport;
pub use walk::{Found, shown};

use std::collections::{HashMap, HashSet};
use std::io;
use std::thread;
use std::time::Duration;

use heddle_rpcrdma::reduce::Item;
use heddle_rpcrdma::rpc::{Denied, Procedure, Reply, ReplyBody, Status as RpcStatus};
use heddle_rpcrdma::xdr;

use crate::wire::{IO_MAX, Status, Xdr, procedure};

/// Names a call that is in flight at a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A call to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The procedure to call.
    pub procedure: Procedure,
    /// The encoded arguments of the call.
    pub arguments: &'a [u8],
    /// The item of the arguments that RDMA may place; its offset counts from the start of the
    /// arguments.
    pub item: Option<Item>,
}

/// A call that came back.
#[derive(Debug)]
pub struct Returned {
    /// The token that `submit` returned for this call.
    pub token: Token,
    /// The results of the call, or why there are none.
    pub results: Result<Vec<u8>, TransportError>,
}

/// Why a call has no results.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server has no such program.
    #[error("server: no such program")]
    ProgUnavail,
    /// The server did not carry out the call.
    #[error("server: {0}")]
    Rpc(&'static str),
    /// The RPC client reports that the server did not carry out the call, or the call could not be
    /// made.
    #[error(transparent)]
    Call(#[from] heddle_rpc::CallError),
    /// Any other failure, in words.
    #[error("{0}")]
    Other(String),
}

/// Carries calls. Each call that was sent comes back once, in any order; when
/// [`wait`](Transport::wait) fails, no call that is in flight comes back.
pub trait Transport {
    /// Sends a call; may wait until the transport has room for the call.
    ///
    /// # Errors
    /// When the transport cannot send the call.
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError>;

    /// Waits for the next call that comes back.
    ///
    /// # Errors
    /// When no call will come back.
    fn wait(&mut self) -> Result<Returned, TransportError>;

    /// Waits for `time`.
    ///
    /// # Errors
    /// When the connection fails meanwhile and the transport notices.
    fn pause(&mut self, time: Duration) -> Result<(), TransportError> {
        thread::sleep(time);
        Ok(())
    }
}

/// Checks that results follow after the header of a reply.
///
/// # Errors
/// The status or rejection that the server sent instead.
pub fn accepted(reply: &Reply<'_>) -> Result<(), TransportError> {
    Err(TransportError::Rpc(match reply.body {
        ReplyBody::Accepted { status, .. } => match status {
            RpcStatus::Success => return Ok(()),
            RpcStatus::ProgUnavail => return Err(TransportError::ProgUnavail),
            RpcStatus::ProgMismatch { .. } => "no such version of the program",
            RpcStatus::ProcUnavail => "no such procedure",
            RpcStatus::GarbageArgs => "arguments cannot be read",
            RpcStatus::SystemErr => "an error of its own",
        },
        ReplyBody::Denied(Denied::RpcMismatch { .. }) => "no such version of RPC",
        ReplyBody::Denied(Denied::AuthError(_)) => "credential refused",
    }))
}

/// Why the client could not do something.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A call did not come back, or came back without results.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The server reports that it could not carry out the operation.
    #[error("{what}: {status}")]
    Status {
        /// The operation or the object that the client asked for.
        what: String,
        /// The reason that the server gave.
        status: Status,
    },
    /// The client cannot parse the results.
    #[error("results of {what}: {error}")]
    Results {
        /// The name of the procedure.
        what: &'static str,
        /// The fault in the results.
        error: xdr::Error,
    },
    /// The client can parse the results, but they make no sense.
    #[error("server: {0}")]
    Nonsense(&'static str),
    /// A path that the client cannot walk.
    #[error("{path}: {why}")]
    Path {
        /// The path, in a printable form.
        path: String,
        /// The reason why the client cannot walk the path.
        why: &'static str,
    },
    /// Reading the local source or writing to the local sink failed.
    #[error(transparent)]
    Local(io::Error),
    /// The server restarted in each pass, after data was written and before it was committed.
    #[error("server was started again {0} times while data was written")]
    Restarts(u32),
}

/// How much is in flight at once.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    /// Bytes of a READ or WRITE. A server may set a lower limit.
    pub size: u32,
    /// READs or WRITEs in flight.
    pub depth: usize,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline { size: IO_MAX, depth: 8 }
    }
}

/// A client of one server.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    /// Calls that came back before the client waited for them.
    early: HashMap<Token, Result<Vec<u8>, TransportError>>,
    /// Calls whose results the client does not want any more.
    abandoned: HashSet<Token>,
    read: Pipeline,
    write: Pipeline,
    patience: Patience,
}

impl<T: Transport> Client<T> {
    /// Makes a client over `transport`.
    pub fn new(transport: T, pipeline: Pipeline) -> Client<T> {
        let size = pipeline.size.clamp(1, IO_MAX);
        let pipeline = Pipeline { size, depth: pipeline.depth.max(1) };
        Client {
            transport,
            early: HashMap::new(),
            abandoned: HashSet::new(),
            read: pipeline,
            write: pipeline,
            patience: Patience::default(),
        }
    }

    /// Returns the transport.
    pub const fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Sends a call.
    ///
    /// # Errors
    /// The errors of the transport.
    pub fn submit<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<Token, TransportError> {
        let arguments = arguments.bytes();
        self.submit_bytes(procedure, &arguments, None)
    }

    fn submit_bytes(
        &mut self,
        procedure: Procedure,
        arguments: &[u8],
        item: Option<Item>,
    ) -> Result<Token, TransportError> {
        self.transport.submit(&Outgoing { procedure, arguments, item })
    }

    /// Waits for the results of a call that was sent, and returns them.
    ///
    /// # Errors
    /// The errors of the transport.
    pub fn results(&mut self, token: Token) -> Result<Vec<u8>, TransportError> {
        loop {
            if let Some(results) = self.early.remove(&token) {
                return results;
            }
            let returned = self.transport.wait()?;
            if returned.token == token {
                return returned.results;
            }
            if !self.abandoned.remove(&returned.token) {
                self.early.insert(returned.token, returned.results);
            }
        }
    }

    /// Marks these calls as abandoned: the client drops their results.
    fn abandon(&mut self, tokens: impl Iterator<Item = Token>) {
        for token in tokens {
            if self.early.remove(&token).is_none() {
                self.abandoned.insert(token);
            }
        }
    }

    /// Calls and waits for the results; calls again when the server asks the client to come later
    /// ([`Patience`]).
    ///
    /// # Errors
    /// The errors of the transport.
    pub fn call<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<Vec<u8>, TransportError> {
        let (arguments, mut pauses) = (arguments.bytes(), self.pauses());
        loop {
            let token = self.submit_bytes(procedure, &arguments, None)?;
            let results = self.results(token)?;
            if !self.is_to_be_made_again(procedure, &results, &mut pauses)? {
                return Ok(results);
            }
        }
    }
}

/// Parses results: `what` is the name of the procedure, `of` the object of the call, for errors.
fn parse<'a, R: Xdr<'a>, F: Xdr<'a>>(
    results: &'a [u8],
    what: &'static str,
    of: &dyn std::fmt::Display,
) -> Result<R, ClientError> {
    match Result::<R, (Status, F)>::whole(results) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err((status, _))) => {
            Err(ClientError::Status { what: format!("{what} {of}").trim_end().to_owned(), status })
        }
        Err(error) => Err(ClientError::Results { what, error }),
    }
}

/// Returns true if a server may carry out `procedure` twice with the same effect as once.
pub fn is_idempotent(p: Procedure) -> bool {
    !matches!(
        p,
        procedure::SETATTR
            | procedure::CREATE
            | procedure::MKDIR
            | procedure::SYMLINK
            | procedure::MKNOD
            | procedure::REMOVE
            | procedure::RMDIR
            | procedure::RENAME
            | procedure::LINK
    )
}
