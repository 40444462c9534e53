//! Requests: messages of an application to the connection manager.

use core::net::SocketAddr;

use crate::failure::{ConnectError, ListenError};
use crate::id::{CmId, ListenerId};
use crate::number::Qpn;
use crate::params::{AcceptTerms, ConnectTerms, ListenParams};
use crate::protocol::ParamsError;

/// A request to the manager from an application, or from the shell on its behalf.
#[derive(Clone, Debug)]
pub enum Request {
    /// Listen at every worker of the port that has the address;
    /// [`Event::Listening`](crate::Event::Listening) or
    /// [`Event::ListenFailed`](crate::Event::ListenFailed) follows.
    Listen {
        /// The listener's name.
        id: ListenerId,
        /// The address and port to listen at; an unspecified address means all our addresses.
        addr: SocketAddr,
        /// Dialogue and limits of the listener.
        params: ListenParams,
    },
    /// Stop listening, whether the workers have answered or not. Connections that the application
    /// knows of go on; the others are reset.
    Unlisten {
        /// The listener to end.
        id: ListenerId,
    },
    /// Connect to a peer; one of [`Event::Established`](crate::Event::Established),
    /// [`Event::Rejected`](crate::Event::Rejected) and
    /// [`Event::ConnectError`](crate::Event::ConnectError) follows.
    Connect {
        /// The connection's name, below [`CmId::PASSIVE`].
        id: CmId,
        /// The peer's end.
        remote: SocketAddr,
        /// Queue pair, dialogue and depths.
        params: ConnectTerms,
    },
    /// Accept a connection request; `Established` or `ConnectError` follows.
    Accept {
        /// Name of the connection.
        id: CmId,
        /// Queue pair, depths and private data.
        params: AcceptTerms,
    },
    /// Reject a connection request; no event follows.
    Reject {
        /// Name of the connection.
        id: CmId,
        /// Private data for the peer's application.
        private_data: Vec<u8>,
        /// RDMA Reads that we need to have outstanding, if the reason is that the peer takes fewer
        /// (RFC 6581 section 9.1). MPA revision 2 carries the number to the peer.
        needs_ord: Option<u16>,
    },
    /// End a connection: in order when it is established
    /// ([`Event::Disconnected`](crate::Event::Disconnected) follows), at once when it is not
    /// (`ConnectError` follows).
    Disconnect {
        /// Name of the connection.
        id: CmId,
    },
    /// The application has taken events: so many fewer are waiting.
    EventsTaken {
        /// Number of events taken.
        count: usize,
    },
    /// The application destroys the queue pair. Its number may be used again.
    ForgetQp {
        /// The queue pair's number.
        qpn: Qpn,
    },
    /// The application has ended: the manager ends its listeners, resets its connections, and sends
    /// it no more events. This is the application's last request.
    AppGone,
}

/// The reason why a request is refused. A refused request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestError {
    /// The name is taken, or lies in the manager's range.
    #[error("the id is in use or reserved")]
    Id,
    /// The application has no such listener.
    #[error("no such listener")]
    NoListener,
    /// The application has no such connection: the connection never existed, or its end has been
    /// reported.
    #[error("no such connection")]
    NoConnection,
    /// The connection does not wait to be accepted or rejected.
    #[error("the connection does not wait for an answer")]
    NotAsked,
    /// All workers of the port that the request needs have ended.
    #[error("no worker is left")]
    NoWorker,
    /// The RNIC cannot connect to the address: no port has the local address or a route to the
    /// peer.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The queue pair is in another connection.
    #[error("queue pair {} is in use", .0.0)]
    QpBusy(Qpn),
    /// The queue pair has been in FPDU mode, and cannot go back.
    #[error("queue pair {} has had its connection", .0.0)]
    QpSpent(Qpn),
    /// The RNIC cannot listen at the address.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The start-up dialogue cannot express the request.
    #[error("{0}")]
    Params(#[from] ParamsError),
    /// InfiniBand has its largest number of connections.
    #[error("InfiniBand has too many connections")]
    IbFull,
    /// Too many events wait for the application.
    #[error("too many events have not been taken")]
    EventsNotTaken,
}
