//! Reasons for which an RNIC cannot connect, listen or carry out an order, and for which a
//! connection ends.

use crate::wr::PostError;

/// The most addresses and ports that an RNIC listens at.
pub const MAX_LISTENERS: usize = 1024;

/// Why the stack cannot open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnectError {
    /// The remote address or port does not belong to a single other host.
    #[error("not the address of a peer")]
    InvalidRemote,
    /// The local address is of another family than the remote one.
    #[error("the two addresses are of different families")]
    Family,
    /// The peer is on no link of ours, and no route leads to it.
    #[error("no route to the peer")]
    NoRoute,
    /// The address to connect from is not one of ours.
    #[error("the local address is not ours")]
    NotOurs,
    /// The local port already has a connection to this peer. If the stack chooses the port: none of
    /// the 256 ports that it tried is free. Each new attempt tries further ports.
    #[error("no local port free")]
    PortInUse,
    /// The peer's answers to the local port would reach another worker of the port. If the stack
    /// chooses the port: the answers to every port would.
    #[error("the peer's answers would reach another worker")]
    Elsewhere,
    /// The stack has as many connections as configured.
    #[error("too many connections")]
    TooManyConnections,
    /// The stack has as many neighbors in use as configured.
    #[error("too many neighbors")]
    TooManyNeighbors,
}

/// Why a stack does not listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ListenError {
    /// The address is not one of ours.
    #[error("not an address of this stack")]
    NotOurs,
    /// No peer can connect to port 0.
    #[error("port 0 cannot be listened on")]
    PortZero,
    /// Another listener has the same address and port.
    #[error("already listening there")]
    InUse,
    /// The stack already has [`MAX_LISTENERS`] listeners.
    #[error("too many listeners")]
    Full,
}

impl ListenError {
    /// Checks whether a listener on `port` may be added to `listeners` others; `taken` is true if
    /// one of them has the same port and [excludes](crate::ListenAt::excludes) its addresses. Code
    /// that keeps listeners of its own uses the same check.
    ///
    /// # Errors
    /// Returns the reason against the listener, except for [`NotOurs`](ListenError::NotOurs).
    pub const fn check(port: u16, listeners: usize, taken: bool) -> Result<(), ListenError> {
        if port == 0 {
            return Err(ListenError::PortZero);
        }
        if listeners >= MAX_LISTENERS {
            return Err(ListenError::Full);
        }
        if taken { Err(ListenError::InUse) } else { Ok(()) }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CloseReason {
    /// Both sides finished.
    #[error("closed in order")]
    Orderly,
    /// The peer reset the connection.
    #[error("reset by the peer")]
    Reset,
    /// The peer refused the connection.
    #[error("refused by the peer")]
    Refused,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// The peer answers, but kept its receive window shut for too long.
    #[error("the peer kept its receive window shut")]
    WindowShut,
    /// We reset the connection: the peer began an FPDU, or left a gap, and did not go on for too
    /// long.
    #[error("the peer left an FPDU unfinished")]
    Unfinished,
    /// No host answered the address resolution for the peer or its gateway.
    #[error("the address of the next hop cannot be resolved")]
    Unreachable,
    /// We reset the connection.
    #[error("reset by us")]
    Aborted,
    /// We reset the connection, because the control plane removed its address, or the route to the
    /// peer.
    #[error("the local address, or the route to the peer, was removed")]
    Withdrawn,
}

/// The reason why the RNIC could not carry out an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RnicError {
    /// The connection does not exist (any more).
    #[error("no such connection")]
    NoConnection,
    /// The connection is not in the state that the order needs.
    #[error("the connection is not in the start-up phase")]
    NotStartup,
    /// The connection has no running queue pair.
    #[error("the connection has no queue pair")]
    NoQueuePair,
    /// The queue pair refused the work request.
    #[error("{0}")]
    Post(#[from] PostError),
}
