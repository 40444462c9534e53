//! A client: mounting, walking, listing, reading and writing, over any transport.
//!
//! [`Transport`] carries calls, several at once; [`Client`] knows what they say. Reads and writes of files
//! are pipelined, data comes and goes in the order of the file, and what has to be looked at on its way
//! (a digest, a progress bar) is given each piece in that order.
//!
//! Everything a server says is checked: lengths, counts beyond what was asked for, listings that do not
//! get on, links that lead in circles. Names it lists are octets of its choice: who makes files of them
//! has to look at them.

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

/// Names a call under way at a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A call to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// What is called.
    pub procedure: Procedure,
    /// Its arguments.
    pub arguments: &'a [u8],
    /// The item of them that may be placed by RDMA; its offset is in the arguments.
    pub item: Option<Item>,
}

/// What came back.
#[derive(Debug)]
pub struct Returned {
    /// Of which call.
    pub token: Token,
    /// Its results, or why there are none.
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
    /// The server did not carry the call out.
    #[error("server: {0}")]
    Rpc(&'static str),
    /// The same by RDMA, or the call did not come about.
    #[error(transparent)]
    Call(#[from] heddle_rpc::CallError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Carries calls. Each that was sent comes back once, in any order; when [`wait`](Transport::wait) fails,
/// none of those under way does.
pub trait Transport {
    /// Sends a call; may wait until there is room for it.
    ///
    /// # Errors
    /// When it cannot be sent.
    fn submit(&mut self, call: &Outgoing<'_>) -> Result<Token, TransportError>;

    /// Waits for the next call that comes back.
    ///
    /// # Errors
    /// When none will.
    fn wait(&mut self) -> Result<Returned, TransportError>;

    /// Lets so much time pass.
    ///
    /// # Errors
    /// When the connection fails meanwhile, and that is seen.
    fn pause(&mut self, time: Duration) -> Result<(), TransportError> {
        thread::sleep(time);
        Ok(())
    }
}

/// Whether results follow behind the header of a reply.
///
/// # Errors
/// What the server says instead.
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

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A call did not come back, or without results.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The server says that it could not.
    #[error("{what}: {status}")]
    Status {
        /// What was to be done.
        what: String,
        /// Why not.
        status: Status,
    },
    /// Results that cannot be read.
    #[error("results of {what}: {error}")]
    Results {
        /// Of which procedure.
        what: &'static str,
        /// What is wrong with them.
        error: xdr::Error,
    },
    /// Results that make no sense.
    #[error("server: {0}")]
    Nonsense(&'static str),
    /// A path that cannot be walked.
    #[error("{path}: {why}")]
    Path {
        /// Which one.
        path: String,
        /// Why not.
        why: &'static str,
    },
    /// Reading or writing on this side.
    #[error(transparent)]
    Local(io::Error),
    /// The server was started again each time data was written and not committed yet.
    #[error("server was started again {0} times while data was written")]
    Restarts(u32),
}

/// How much is under way at once.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    /// Octets of a READ or WRITE. A server may want fewer.
    pub size: u32,
    /// READs or WRITEs under way.
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
    /// What came back before it was waited for.
    early: HashMap<Token, Result<Vec<u8>, TransportError>>,
    /// Calls of which nobody wants the results any more.
    abandoned: HashSet<Token>,
    read: Pipeline,
    write: Pipeline,
    patience: Patience,
}

impl<T: Transport> Client<T> {
    /// A client over `transport`.
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

    /// The transport.
    pub const fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Sends a call.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn submit<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<Token, TransportError> {
        let arguments = arguments.octets();
        self.submit_octets(procedure, &arguments, None)
    }

    fn submit_octets(
        &mut self,
        procedure: Procedure,
        arguments: &[u8],
        item: Option<Item>,
    ) -> Result<Token, TransportError> {
        self.transport.submit(&Outgoing { procedure, arguments, item })
    }

    /// The results of a call that was sent.
    ///
    /// # Errors
    /// Those of the transport.
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

    /// The results of these calls are not wanted any more.
    fn abandon(&mut self, tokens: impl Iterator<Item = Token>) {
        for token in tokens {
            if self.early.remove(&token).is_none() {
                self.abandoned.insert(token);
            }
        }
    }

    /// Calls and waits; calls again when the server asks to come later ([`Patience`]).
    ///
    /// # Errors
    /// Those of the transport.
    pub fn call<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<Vec<u8>, TransportError> {
        let (arguments, mut pauses) = (arguments.octets(), self.pauses());
        loop {
            let token = self.submit_octets(procedure, &arguments, None)?;
            let results = self.results(token)?;
            if !self.is_to_be_made_again(procedure, &results, &mut pauses)? {
                return Ok(results);
            }
        }
    }
}

/// What results say: `what` is the name of the procedure, `of` what it was about.
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

/// Whether `procedure` can be carried out twice like once.
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
