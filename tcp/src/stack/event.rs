//! What a stack tells its owner, and what it refuses.

use core::net::SocketAddr;

use crate::ConnEvent;

/// Something happened to a connection; taken with
/// [`Stack::poll_event`](crate::Stack::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// A peer's connection is established and now belongs to the owner.
    Accepted {
        /// Our end, whose port is the one listened on.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// The connection says so.
    Conn(ConnEvent),
    /// The next hop does not answer: the connection that was being opened is over.
    Unreachable,
    /// The network says that it does not get through to the peer. The connection goes on
    /// (RFC 5461, RFC 9293 section 3.9.2.2).
    SoftError(IcmpError),
}

/// An ICMP error about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpError {
    /// Destination unreachable, with the code on the wire (RFC 792).
    Unreachable(u8),
    /// The TTL ran out on the way.
    TimeExceeded,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The remote address or port is not one a single other host has.
    #[error("not the address of a peer")]
    InvalidRemote,
    /// The address family is not served.
    #[error("address family not supported")]
    Family,
    /// On no link of ours, and there is no gateway.
    #[error("no route to the peer")]
    NoRoute,
    /// The local port has a connection to this peer already, or all ports do.
    #[error("no local port free")]
    PortInUse,
    /// There are as many connections as configured.
    #[error("too many connections")]
    TooManyConnections,
    /// There are as many neighbors in use as configured.
    #[error("too many neighbors")]
    TooManyNeighbors,
}
