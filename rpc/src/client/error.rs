//! What can come of a call but results.

use heddle_rpcrdma::binding;
use heddle_rpcrdma::conn;
use heddle_rpcrdma::rpc::{AuthStat, AuthSysError, Denied, ReplyBody, Status};
use heddle_rpcrdma::xdr;

use heddle_verbs::{ConnectFailure, DisconnectReason};

use crate::body::TooLong;
use crate::memory::NoMemory;
use crate::transport::SetupError;

/// Why a call has no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server has no such program.
    #[error("the server has no such program")]
    ProgUnavail,
    /// It has no such version of it.
    #[error("the server has versions {low} to {high} of the program")]
    ProgMismatch {
        /// The lowest version there is.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The program has no such procedure.
    #[error("the program has no such procedure")]
    ProcUnavail,
    /// The server cannot read the arguments.
    #[error("the server cannot read the arguments")]
    GarbageArgs,
    /// Something of the server's own.
    #[error("the server failed")]
    SystemErr,
    /// It speaks other versions of RPC.
    #[error("the server speaks versions {low} to {high} of RPC")]
    RpcMismatch {
        /// The lowest version that it speaks.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The caller may not.
    #[error("authentication failed: {}", .0.0)]
    Auth(AuthStat),
    /// The reply is none, or of another transaction.
    #[error("bad reply: {0}")]
    BadReply(xdr::Error),
    /// The results are none of the procedure.
    #[error("bad results: {0}")]
    BadResults(binding::Error),
    /// The reply has results in places that were not offered, or says that it has; or not in those that
    /// were.
    #[error("results that are not where they can be")]
    Misplaced,
    /// The transport could not convey it.
    #[error(transparent)]
    Transport(conn::CallError),
    /// No reply came in time.
    #[error("timed out{}", if *.sent { "" } else { " before it was sent" })]
    TimedOut {
        /// Whether it was sent: otherwise the server has not executed it.
        sent: bool,
    },
    /// As many calls as can be are under way.
    #[error("{max} calls are under way")]
    TooMany {
        /// How many that is.
        max: usize,
    },
    /// Registered memory is used up.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// A buffer is of another client's memory.
    #[error("a buffer of another client's memory")]
    ForeignBuffer,
    /// The credential cannot be written.
    #[error("credential: {0}")]
    Credential(#[from] AuthSysError),
    /// The arguments cannot be told.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// It is none that the transport takes: of no whole number of XDR units, for one.
    #[error(transparent)]
    Refused(conn::CallRefused),
    /// The server speaks no version of RPC-over-RDMA that this client does.
    #[error("no common version of RPC-over-RDMA")]
    NoVersion,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The connection has ended with which a server has called its client. It cannot make another; whether
    /// the client has executed the call nobody knows.
    #[error("the connection of the client has ended")]
    Lost,
    /// Who would wait is in the step of the server that is to bring the reply. The call is given up.
    #[error("a step of the server does not wait for calls")]
    OwnStep,
}

/// Why a client has no connection, or had to make another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionFailure {
    /// What it runs on could not be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A configuration that no connection can have.
    #[error(transparent)]
    Config(#[from] conn::ConfigError),
    /// It did not come about.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The server turned it away.
    #[error("rejected by the server")]
    Rejected,
    /// It ended.
    #[error("{0}")]
    Disconnected(DisconnectReason),
    /// This end has closed it.
    #[error("closed: {0}")]
    Closed(conn::CloseReason),
}

impl CallError {
    /// Of a reply that is no success; `None` of one that is.
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
