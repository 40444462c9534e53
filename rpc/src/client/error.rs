//! Outcomes of a call other than results.

use heddle_rpcrdma::binding;
use heddle_rpcrdma::conn;
use heddle_rpcrdma::rpc::{AuthStat, AuthSysError, Denied, ReplyBody, Status};
use heddle_rpcrdma::xdr;

use heddle_verbs::{ConnectFailure, DisconnectReason};

use crate::body::TooLong;
use crate::memory::NoMemory;
use crate::transport::SetupError;

/// The reason why a call has no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server has no such program.
    #[error("the server has no such program")]
    ProgUnavail,
    /// The server does not have this version of the program.
    #[error("the server has versions {low} to {high} of the program")]
    ProgMismatch {
        /// Lowest version of the program that the server has.
        low: u32,
        /// Highest version of the program that the server has.
        high: u32,
    },
    /// The program has no such procedure.
    #[error("the program has no such procedure")]
    ProcUnavail,
    /// The server could not decode the arguments.
    #[error("the server cannot read the arguments")]
    GarbageArgs,
    /// The server had an internal error.
    #[error("the server failed")]
    SystemErr,
    /// The server speaks other versions of RPC.
    #[error("the server speaks versions {low} to {high} of RPC")]
    RpcMismatch {
        /// Lowest version that the server speaks.
        low: u32,
        /// Highest version that the server speaks.
        high: u32,
    },
    /// The caller is not authorised.
    #[error("authentication failed: {}", .0.0)]
    Auth(AuthStat),
    /// The reply is malformed, or belongs to another transaction.
    #[error("bad reply: {0}")]
    BadReply(xdr::Error),
    /// The results are not results of the procedure.
    #[error("bad results: {0}")]
    BadResults(binding::Error),
    /// The reply puts results, or claims to put them, in places that the call did not offer; or it
    /// does not use the places that the call offered.
    #[error("results that are not where they can be")]
    Misplaced,
    /// The transport could not convey the call.
    #[error(transparent)]
    Transport(conn::CallError),
    /// No reply came before the deadline.
    #[error("timed out{}", if *.sent { "" } else { " before it was sent" })]
    TimedOut {
        /// True if the call was sent; if false, the server has not executed the call.
        sent: bool,
    },
    /// The client already has the largest number of calls under way.
    #[error("{max} calls are under way")]
    TooMany {
        /// Largest number of calls under way.
        max: usize,
    },
    /// The registered memory is used up.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// A buffer belongs to another client's memory.
    #[error("a buffer of another client's memory")]
    ForeignBuffer,
    /// The credential cannot be encoded.
    #[error("credential: {0}")]
    Credential(#[from] AuthSysError),
    /// The arguments are too long for RPC-over-RDMA.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The transport does not take the call, for example because its length is no whole number of
    /// XDR units.
    #[error(transparent)]
    Refused(conn::CallRefused),
    /// The server and this client have no version of RPC-over-RDMA in common.
    #[error("no common version of RPC-over-RDMA")]
    NoVersion,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The connection on which a server called its client has ended. The server cannot make another
    /// connection, and does not know whether the client has executed the call.
    #[error("the connection of the client has ended")]
    Lost,
    /// The waiting thread is within the server's step that would bring the reply. The call is given
    /// up.
    #[error("a step of the server does not wait for calls")]
    OwnStep,
}

/// The reason why a client has no connection, or had to make another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionFailure {
    /// The queue pair or another part of the connection could not be created.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// No connection can have this configuration.
    #[error(transparent)]
    Config(#[from] conn::ConfigError),
    /// The connection was not established.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The server rejected the connection.
    #[error("rejected by the server")]
    Rejected,
    /// The connection ended.
    #[error("{0}")]
    Disconnected(DisconnectReason),
    /// This end closed the connection.
    #[error("closed: {0}")]
    Closed(conn::CloseReason),
}

impl CallError {
    /// Returns the error for a reply that reports no success; `None` for a success.
    pub(crate) fn of(reply: &ReplyBody<'_>) -> Option<CallError> {
        Some(match *reply {
            ReplyBody::Accepted { status, .. } => match status {
                Status::Success => return None,
                Status::ProgUnavail => CallError::ProgUnavail,
                Status::ProgMismatch { low, high } => CallError::ProgMismatch { low, high },
                Status::ProcUnavail => CallError::ProcUnavail,
                Status::GarbageArgs => CallError::GarbageArgs,
                Status::SystemErr => CallError::SystemErr,
            },
            ReplyBody::Denied(Denied::RpcMismatch { low, high }) => {
                CallError::RpcMismatch { low, high }
            }
            ReplyBody::Denied(Denied::AuthError(stat)) => CallError::Auth(stat),
        })
    }
}
