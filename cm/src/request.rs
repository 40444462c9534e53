use core::net::SocketAddr;

use heddle_iwarp::Qpn;
use heddle_tcp::{ConnectError, ListenError};

use crate::dialogue::ParamsError;
use crate::id::{CmId, ListenerId};
use crate::params::{AcceptTerms, ConnectTerms, ListenParams};

/// What an application, or the shell for it, asks of the manager.
#[derive(Clone, Debug)]
pub enum Request {
    /// Listen at every worker of the port that has the address; [`Event::Listening`](crate::Event::Listening) or
    /// [`Event::ListenFailed`](crate::Event::ListenFailed) follows.
    Listen {
        /// The listener's name.
        id: ListenerId,
        /// Where; an unspecified address means all of ours.
        addr: SocketAddr,
        /// How.
        params: ListenParams,
    },
    /// Stop listening, whether the workers have answered or not. Connections the application has
    /// been told of go on; those it has not are reset.
    Unlisten {
        /// The listener.
        id: ListenerId,
    },
    /// Connect to a peer; one of [`Event::Established`](crate::Event::Established),
    /// [`Event::Rejected`](crate::Event::Rejected) and
    /// [`Event::ConnectError`](crate::Event::ConnectError) follows.
    Connect {
        /// The connection's name, below [`CmId::PASSIVE`].
        id: CmId,
        /// The peer.
        remote: SocketAddr,
        /// How.
        params: ConnectTerms,
    },
    /// Accept a connection request; `Established` or `ConnectError` follows.
    Accept {
        /// The connection.
        id: CmId,
        /// How.
        params: AcceptTerms,
    },
    /// Reject a connection request; no event follows.
    Reject {
        /// The connection.
        id: CmId,
        /// For the peer's application.
        private_data: Vec<u8>,
        /// RDMA Reads we need to have outstanding, where the reason is that the peer takes fewer
        /// (RFC 6581 section 9.1). Told to the peer in MPA revision 2.
        needs_ord: Option<u16>,
    },
    /// End a connection: in order when it is established
    /// ([`Event::Disconnected`](crate::Event::Disconnected) follows), at once when it is not
    /// (`ConnectError` follows).
    Disconnect {
        /// The connection.
        id: CmId,
    },
    /// The application has taken events: so many less are waiting.
    EventsTaken {
        /// How many.
        count: usize,
    },
    /// The queue pair is destroyed. Its number may be used again.
    ForgetQp {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The application is no more: its listeners end, its connections are reset, it is told
    /// nothing. This is its last request.
    AppGone,
}

/// Why a request is refused. It has changed nothing then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestError {
    /// The name is taken, or not one to be given.
    #[error("the id is in use or reserved")]
    Id,
    /// No such listener of this application.
    #[error("no such listener")]
    NoListener,
    /// No such connection of this application: it never was, or its end has been told.
    #[error("no such connection")]
    NoConnection,
    /// The connection is not one that waits to be accepted or rejected.
    #[error("the connection does not wait for an answer")]
    NotAsked,
    /// All workers of the port that it takes have ended.
    #[error("no worker is left")]
    NoWorker,
    /// Cannot connect there: no port has the address or a way to the peer.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The queue pair is in another connection.
    #[error("queue pair {} is in use", .0.0)]
    QpBusy(Qpn),
    /// The queue pair has been in FPDU mode, and there is no way back.
    #[error("queue pair {} has had its connection", .0.0)]
    QpSpent(Qpn),
    /// Cannot listen there.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The start-up dialogue cannot say that.
    #[error("{0}")]
    Params(#[from] ParamsError),
    /// Too many events wait for the application.
    #[error("too many events have not been taken")]
    EventsNotTaken,
}
