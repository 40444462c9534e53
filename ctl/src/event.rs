//! What the control plane tells an application.

use core::fmt;
use core::net::SocketAddr;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use heddle_dataplane::Waker;
use heddle_iwarp::rdmap::TermCode;
use heddle_rnic::CloseReason;

/// Names a listener, for the life of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u64);

/// Names a connection, for the life of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(crate) u64);

impl fmt::Display for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What both ends agreed on in the MPA start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// MPA revision: 1 or 2.
    pub revision: u8,
    /// Whether FPDUs carry a CRC that is checked.
    pub crc: bool,
    /// RDMA Reads the peer may have outstanding towards us.
    pub ird: u16,
    /// RDMA Reads we may have outstanding towards the peer.
    pub ord: u16,
}

/// Why a connection did not come about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectFailure {
    /// The TCP connection failed.
    #[error("TCP connection failed: {0}")]
    Tcp(String),
    /// The peer's start-up frame breaks the rules, or asks for what we do not do.
    #[error("MPA start-up failed: {0}")]
    Mpa(String),
    /// The peer, or our own application, did not answer in time.
    #[error("{0} did not come in time")]
    TimedOut(&'static str),
    /// The peer ended the connection before it was established.
    #[error("the peer closed the connection during the MPA start-up")]
    PeerClosed,
    /// The application itself ended it before it was established.
    #[error("cancelled")]
    Cancelled,
    /// The worker could not carry out an order.
    #[error("the worker refused: {0}")]
    Worker(String),
}

/// Why an established connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// Either side asked for it, and both streams ended in order.
    Orderly,
    /// TCP ended it.
    Tcp(CloseReason),
    /// We sent a Terminate: the peer broke a rule.
    LocalTerminate(TermCode),
    /// The peer sent a Terminate.
    RemoteTerminate(TermCode),
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisconnectReason::Orderly => f.write_str("closed in order"),
            DisconnectReason::Tcp(r) => write!(f, "{r}"),
            DisconnectReason::LocalTerminate(c) => write!(f, "terminated by us: {c}"),
            DisconnectReason::RemoteTerminate(c) => write!(f, "terminated by the peer: {c}"),
        }
    }
}

/// Something an application has to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer wants to connect to a listener. Answer with
    /// [`Device::accept`](crate::Device::accept) or [`Device::reject`](crate::Device::reject).
    ConnectRequest {
        /// The connection.
        id: CmId,
        /// Where it came in.
        listener: ListenerId,
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// RDMA Reads the peer may receive at a time; `None` when it does not say (revision 1).
        peer_ird: Option<u16>,
        /// RDMA Reads the peer wants to have outstanding; `None` when it does not say.
        peer_ord: Option<u16>,
    },
    /// The connection is up and its queue pair runs.
    Established {
        /// The connection.
        id: CmId,
        /// The peer's private data; empty on the side that accepted.
        private_data: Vec<u8>,
        /// What was agreed on.
        agreed: Agreed,
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// The peer's application rejected the connection.
    Rejected {
        /// The connection.
        id: CmId,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The connection did not come about.
    ConnectError {
        /// The connection.
        id: CmId,
        /// Why.
        error: ConnectFailure,
    },
    /// An established connection is over. Everything posted has completed.
    Disconnected {
        /// The connection.
        id: CmId,
        /// Why.
        reason: DisconnectReason,
    },
}

impl CmEvent {
    /// The connection it is about.
    pub fn id(&self) -> CmId {
        match self {
            CmEvent::ConnectRequest { id, .. }
            | CmEvent::Established { id, .. }
            | CmEvent::Rejected { id, .. }
            | CmEvent::ConnectError { id, .. }
            | CmEvent::Disconnected { id, .. } => *id,
        }
    }
}

/// Events of the listeners and connections made with it; clones are handles of the same queue.
///
/// It does not drop events. A listener resets new connections while thousands of events wait to be
/// taken, so that peers cannot make it long; what an application asks for itself adds an outcome and
/// an end for each connection.
#[derive(Clone, Debug)]
pub struct EventQueue(Arc<Shared>);

/// Events that may wait before listeners take no more connections.
const MAX_WAITING: usize = 4096;

#[derive(Debug)]
struct Shared {
    queue: SegQueue<CmEvent>,
    waker: Option<Waker>,
}

impl EventQueue {
    /// An empty queue; `waker` is woken when an event arrives.
    pub fn new(waker: Option<Waker>) -> EventQueue {
        EventQueue(Arc::new(Shared { queue: SegQueue::new(), waker }))
    }

    /// The oldest event.
    pub fn poll(&self) -> Option<CmEvent> {
        self.0.queue.pop()
    }

    /// Whether there is nothing to poll at this moment.
    pub fn is_empty(&self) -> bool {
        self.0.queue.is_empty()
    }

    /// Whether so many events wait that no connections of peers should add to them.
    pub(crate) fn is_overfull(&self) -> bool {
        self.0.queue.len() >= MAX_WAITING
    }

    pub(crate) fn push(&self, event: CmEvent) {
        self.0.queue.push(event);
        if let Some(w) = &self.0.waker {
            w.wake();
        }
    }
}
