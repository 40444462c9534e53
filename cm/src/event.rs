use core::fmt;
use core::net::SocketAddr;

use heddle_ib::cm::RejReason;
use heddle_ib::ip_cm::AriCode;
use heddle_iwarp::mpa::frame::Depth;
use heddle_iwarp::qp::RtrConfig;
use heddle_iwarp::rdmap::{TermCode, Terminate};
use heddle_iwarp::{Cut, Qpn};
use heddle_rnic::{CloseReason, RnicError};
use heddle_tcp::{ConnectError, ListenError};

use crate::dialogue::DialogueError;
use crate::id::{CmId, ListenerId, WorkerId};
use crate::request::RequestError;

/// What a connection runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Transport {
    /// iWARP: RDMAP, DDP and MPA on TCP.
    #[default]
    Iwarp,
    /// InfiniBand's communication management over RoCEv2, and nothing behind it.
    InfiniBand,
}

impl Transport {
    /// Whether the queue pair runs. Over InfiniBand it does not: the connection is established and
    /// ends in order, and what is posted stays where it is.
    pub const fn carries_data(self) -> bool {
        matches!(self, Transport::Iwarp)
    }
}

/// What both ends agreed on in the start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Agreed {
    /// What the connection runs on. Over InfiniBand only the depths mean something: no data follow.
    pub transport: Transport,
    /// MPA revision: 1 or 2; 0 over InfiniBand.
    pub revision: u8,
    /// Whether FPDUs carry a CRC that is checked.
    pub crc: bool,
    /// RDMA Reads the peer may have outstanding towards us.
    pub ird: u16,
    /// RDMA Reads we may have outstanding towards the peer.
    pub ord: u16,
    /// What the peer said of its own, which may be more or less than we need.
    pub peer: Option<PeerDepths>,
    /// What the initiator sends first in the peer-to-peer model. No application sees anything of it.
    pub rtr: RtrConfig,
    /// Whether we put markers into what we send: the peer asked for them.
    pub send_markers: bool,
    /// Whether the peer puts markers into what it sends: we asked for them.
    pub recv_markers: bool,
}

/// What a peer says of its RDMA Reads (RFC 6581 section 9.1). MPA revision 1 has no field for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerDepths {
    /// How many of ours it takes at a time; [`Depth::UNNEGOTIATED`] leaves that to the applications.
    pub ird: Depth,
    /// How many of its own it has outstanding, or wants to have; the same.
    pub ord: Depth,
}

/// What was awaited in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Awaited {
    /// TCP's handshake.
    #[error("the TCP connection")]
    Tcp,
    /// The peer's answer.
    #[error("the MPA Reply")]
    Reply,
    /// The peer's answer, over InfiniBand.
    #[error("the peer's answer")]
    Answer,
    /// The peer's word that it has our answer, which InfiniBand has.
    #[error("the RTU")]
    ReadyToUse,
    /// Our application's answer.
    #[error("the application's answer")]
    Application,
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnectFailure {
    /// The worker could not start the TCP connection.
    #[error("TCP connection failed: {0}")]
    Open(ConnectError),
    /// The TCP connection ended.
    #[error("TCP connection failed: {0}")]
    Tcp(CloseReason),
    /// The peer breaks the rules of the start-up, or asks for what we do not do.
    #[error("MPA start-up failed: {0}")]
    Startup(DialogueError),
    /// InfiniBand's communication management, or the RDMA IP CM service, refuses; not the peer's
    /// application.
    #[error("{0}")]
    InfiniBand(IbRefusal),
    /// The peer, or our own application, did not answer in time.
    #[error("{0} did not come in time")]
    TimedOut(Awaited),
    /// The peer ended the connection before it was established.
    #[error("the peer closed the connection during the MPA start-up")]
    PeerClosed,
    /// The application itself ended it before it was established.
    #[error("cancelled")]
    Cancelled,
    /// The application had not answered, and the place was needed: the applications of its tenant held
    /// more start-ups than those of any other.
    #[error("other start-ups needed the place")]
    Displaced,
    /// Our address, or the way from it to the peer, was removed meanwhile (InfiniBand; over iWARP it is
    /// [`CloseReason::Withdrawn`]).
    #[error("the local address or the route to the peer was removed")]
    Withdrawn,
    /// The worker could not carry out an order.
    #[error("the worker refused: {0}")]
    Worker(RnicError),
    /// The worker has ended: the thread that ran the connection is gone, by a defect or because the
    /// RNIC was stopped.
    #[error("the worker has ended")]
    WorkerLost,
    /// The control plane has ended, by a defect or because the RNIC was stopped: nobody connects.
    #[error("the control plane has ended")]
    ControlLost,
    /// The manager refused the request at once. The shell tells of it where the application cannot be
    /// told in the call.
    #[error("{0}")]
    Request(RequestError),
}

/// Why a connection of InfiniBand did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IbRefusal {
    /// The peer's REJ has this reason.
    Reason(u16),
    /// The peer's RDMA IP CM service refuses with this code (IBTA Annex A11, table 5).
    Service(u8),
    /// Our REJ has this reason: we cannot take what the peer has answered.
    Ours(u16),
}

impl fmt::Display for IbRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IbRefusal::Reason(n) => write!(f, "refused by the peer: {}", RejReason(n)),
            IbRefusal::Service(n) => {
                write!(f, "refused by the peer's RDMA IP CM service: {}", AriCode(n))
            }
            IbRefusal::Ours(n) => write!(f, "refused by us: {}", RejReason(n)),
        }
    }
}

/// What becomes of the queue pair of a connection that did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpFate {
    /// None had been given.
    NoQp,
    /// It has not been touched and may be used for another connection.
    Free(Qpn),
    /// It has been in FPDU mode, if only for a moment: it cannot be used again.
    Spent(Qpn),
}

/// Why an established connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DisconnectReason {
    /// Either side asked for it, and both streams ended in order.
    Orderly,
    /// TCP ended it.
    Tcp(CloseReason),
    /// The peer closed its stream in the middle of something.
    Truncated(Cut),
    /// The peer broke a rule. We sent a Terminate, unless no Terminate may answer that.
    LocalTerminate(TermCode),
    /// The peer sent a Terminate; [`Event::Disconnected`] has the headers it repeats.
    RemoteTerminate(TermCode),
    /// Our DREQ was not answered, as often as it was sent (InfiniBand).
    Unanswered,
    /// The peer, which made the connection, was asked whether it is there and did not answer (InfiniBand;
    /// over iWARP it is [`CloseReason::TimedOut`]).
    PeerSilent,
    /// The peer has given up what we held for established: its REJ has this reason (InfiniBand).
    InfiniBand(u16),
    /// Our address, or the way from it to the peer, was removed (InfiniBand; over iWARP it is
    /// [`CloseReason::Withdrawn`]).
    Withdrawn,
    /// We reset it: the peer was accepted and then sent no good FPDU in time.
    NoFirstFpdu,
    /// The worker has ended: the thread that ran the connection is gone, by a defect or because the
    /// RNIC was stopped. After a defect the peer is reset, at once if the worker can still say so, at
    /// its next segment otherwise; an RNIC that is stopped tells it nothing.
    WorkerLost,
    /// The control plane has ended by a defect, and the workers with it. The peer is reset.
    ControlLost,
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisconnectReason::Orderly => f.write_str("closed in order"),
            DisconnectReason::Tcp(r) => write!(f, "{r}"),
            DisconnectReason::Truncated(cut) => write!(f, "closed by the peer {cut}"),
            DisconnectReason::LocalTerminate(c) => write!(f, "terminated by us: {c}"),
            DisconnectReason::RemoteTerminate(c) => write!(f, "terminated by the peer: {c}"),
            DisconnectReason::Unanswered => f.write_str("closed without an answer"),
            DisconnectReason::PeerSilent => f.write_str("the peer does not answer any more"),
            DisconnectReason::InfiniBand(n) => write!(f, "given up by the peer: {}", RejReason(*n)),
            DisconnectReason::Withdrawn => {
                f.write_str("the local address or the route to the peer was removed")
            }
            DisconnectReason::NoFirstFpdu => f.write_str("no FPDU came in time"),
            DisconnectReason::WorkerLost => f.write_str("the worker has ended"),
            DisconnectReason::ControlLost => f.write_str("the control plane has ended"),
        }
    }
}

/// Why there is no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ListenFailure {
    /// A worker refused; the others do not listen either.
    #[error("{0}")]
    Worker(ListenError),
    /// The application took the request back before all workers had answered.
    #[error("taken back")]
    Withdrawn,
    /// The address is ours no more.
    #[error("the address was removed")]
    AddressRemoved,
    /// No worker is left to listen.
    #[error("the worker has ended")]
    WorkerLost,
    /// The control plane has ended.
    #[error("the control plane has ended")]
    ControlLost,
}

/// Something an application has to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// Every worker of the port that has the address listens.
    Listening {
        /// The listener.
        id: ListenerId,
    },
    /// Nobody listens, or nobody does any more.
    ListenFailed {
        /// The listener that is not.
        id: ListenerId,
        /// Why.
        error: ListenFailure,
    },
    /// A peer wants to connect to a listener. Answer with
    /// [`Request::Accept`](crate::Request::Accept) or [`Request::Reject`](crate::Request::Reject).
    ConnectRequest {
        /// The connection.
        id: CmId,
        /// Where it came in.
        listener: ListenerId,
        /// The worker that has it.
        worker: WorkerId,
        /// What it would run on: InfiniBand only at a listener that takes it.
        transport: Transport,
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
        /// The peer's private data; of InfiniBand 56 octets, the zeros that fill them up included.
        private_data: Vec<u8>,
        /// What the peer says of its RDMA Reads; `None` in MPA revision 1.
        peer: Option<PeerDepths>,
        /// The peer asks for the peer-to-peer model: it sends an FPDU of its own accord, so that we
        /// may send first.
        peer_to_peer: bool,
    },
    /// The connection is up and its queue pair runs: the worker has said so.
    /// [`Event::Disconnected`] follows in the end.
    Established {
        /// The connection.
        id: CmId,
        /// Its queue pair.
        qpn: Qpn,
        /// The worker that has it.
        worker: WorkerId,
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
        /// Its queue pair, which may be used for another connection.
        qpn: Qpn,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// What the peer says of its RDMA Reads; its ORD may be what it needs. `None` in MPA
        /// revision 1.
        peer: Option<PeerDepths>,
    },
    /// The connection did not come about.
    ConnectError {
        /// The connection.
        id: CmId,
        /// Why.
        error: ConnectFailure,
        /// What becomes of its queue pair.
        qp: QpFate,
    },
    /// An established connection is over, and the worker has flushed its queue pair.
    Disconnected {
        /// The connection.
        id: CmId,
        /// Its queue pair, which cannot be used again.
        qpn: Qpn,
        /// Why.
        reason: DisconnectReason,
        /// With [`DisconnectReason::RemoteTerminate`] what else the Terminate says (RFC 5040 section
        /// 4.8): length and DDP header of the segment that the peer refused, and the RDMAP header of
        /// a Read Request, by which an application can tell which of its requests it was. Each is
        /// there only if the Terminate has all of it. They are what the peer claims: they are for
        /// reports, not to be relied on.
        terminate: Option<Box<Terminate>>,
    },
}

impl Event {
    /// The connection it is about; `None` when it is about a listener.
    pub fn cm_id(&self) -> Option<CmId> {
        match *self {
            Event::Listening { .. } | Event::ListenFailed { .. } => None,
            Event::ConnectRequest { id, .. }
            | Event::Established { id, .. }
            | Event::Rejected { id, .. }
            | Event::ConnectError { id, .. }
            | Event::Disconnected { id, .. } => Some(id),
        }
    }
}

/// Why a peer was refused that no application has heard of, or is to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody listens (any more) where it came in.
    #[error("nobody listens there")]
    NotListening,
    /// The listener has all the start-ups it may have, and the application is to answer them.
    #[error("the listener has no place left")]
    Backlog,
    /// The worker has all the start-ups it may have.
    #[error("the worker has no place left")]
    Startups,
    /// The peer has too many start-ups at this listener.
    #[error("the peer has too many start-ups")]
    PeerStartups,
    /// The peer has too many connections to this listener.
    #[error("the peer has too many connections")]
    PeerConns,
    /// The application does not take its events.
    #[error("the application does not take its events")]
    Events,
    /// It kept us waiting for longest, and another needed the place.
    #[error("made room for another")]
    Evicted,
    /// Its request did not come in time.
    #[error("the MPA Request did not come in time")]
    TimedOut,
    /// It broke the rules of the start-up.
    #[error("MPA start-up failed: {0}")]
    Startup(DialogueError),
}

/// A refusal, for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Where it came in; absent when nobody listens there.
    pub listener: Option<ListenerId>,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
    /// Why.
    pub reason: Refusal,
    /// Notices left out since the last one.
    pub suppressed: u64,
}
