//! Events: messages of the connection manager to an application.

use core::fmt;
use core::net::SocketAddr;

use crate::cqe::Cut;
use crate::failure::{CloseReason, ConnectError, ListenError, RnicError};
use crate::ib::{AriCode, RejReason};
use crate::id::{CmId, ListenerId, WorkerId};
use crate::mpa::{Depth, RtrConfig};
use crate::number::Qpn;
use crate::protocol::DialogueError;
use crate::request::RequestError;
use crate::term_code::TermCode;
use crate::terminate::TerminatePayload;

/// The protocols that a connection runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Transport {
    /// iWARP: RDMAP, DDP and MPA on TCP.
    #[default]
    Iwarp,
    /// InfiniBand's communication management over RoCEv2, without a transport below the connection.
    InfiniBand,
}

impl Transport {
    /// Returns true if the queue pair runs. Over InfiniBand the queue pair does not run: the
    /// connection is established and ends in order, and posted work requests stay in their queues.
    pub const fn carries_data(self) -> bool {
        matches!(self, Transport::Iwarp)
    }
}

/// The parameters that both ends agreed on in the start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Agreed {
    /// The protocols below the connection. Over InfiniBand only the depths have a meaning, because
    /// no data follow.
    pub transport: Transport,
    /// MPA revision: 1 or 2; 0 over InfiniBand.
    pub revision: u8,
    /// Whether FPDUs carry a CRC, which the receiver checks.
    pub crc: bool,
    /// RDMA Reads the peer may have outstanding towards us.
    pub ird: u16,
    /// RDMA Reads we may have outstanding towards the peer.
    pub ord: u16,
    /// Depths that the peer announced, which may be more or less than we need.
    pub peer: Option<PeerDepths>,
    /// The initiator's first message in the peer-to-peer model. No application sees anything of
    /// this message.
    pub rtr: RtrConfig,
    /// Whether we put markers into the data that we send: the peer asked for them.
    pub send_markers: bool,
    /// Whether the peer puts markers into the data that it sends: we asked for them.
    pub recv_markers: bool,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = format_args!("Reads {} in, {} out", self.ird, self.ord);
        if self.transport == Transport::InfiniBand {
            return write!(f, "InfiniBand, {reads}");
        }
        let crc = if self.crc { "CRC" } else { "no CRC" };
        write!(f, "MPA revision {}, {crc}, {reads}", self.revision)?;
        match (self.send_markers, self.recv_markers) {
            (false, false) => Ok(()),
            (true, false) => f.write_str(", markers out"),
            (false, true) => f.write_str(", markers in"),
            (true, true) => f.write_str(", markers both ways"),
        }
    }
}

/// Depths for RDMA Reads that a peer announces (RFC 6581 section 9.1). MPA revision 1 has no field
/// for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerDepths {
    /// RDMA Reads of ours that the peer takes at a time; [`Depth::UNNEGOTIATED`] leaves that to the
    /// applications.
    pub ird: Depth,
    /// RDMA Reads that the peer has outstanding at a time, or wants to have;
    /// [`Depth::UNNEGOTIATED`] as for `ird`.
    pub ord: Depth,
}

/// The message or step that did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Awaited {
    /// TCP's handshake.
    #[error("the TCP connection")]
    Tcp,
    /// The peer's answer, over MPA.
    #[error("the MPA Reply")]
    Reply,
    /// The peer's answer, over InfiniBand.
    #[error("the peer's answer")]
    Answer,
    /// The peer's confirmation that it has our answer; only InfiniBand has such a message.
    #[error("the RTU")]
    ReadyToUse,
    /// Our application's answer.
    #[error("the application's answer")]
    Application,
}

/// The reason why a connection was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnectFailure {
    /// The worker could not start the TCP connection.
    #[error("TCP connection failed: {0}")]
    Open(ConnectError),
    /// The TCP connection ended.
    #[error("TCP connection failed: {0}")]
    Tcp(CloseReason),
    /// The peer breaks the rules of the start-up, or asks for a feature that we do not support.
    #[error("MPA start-up failed: {0}")]
    Startup(DialogueError),
    /// InfiniBand's communication management, or the RDMA IP CM service, refuses; the peer's
    /// application does not.
    #[error("{0}")]
    InfiniBand(IbRefusal),
    /// The peer, or our own application, did not answer in time.
    #[error("{0} did not come in time")]
    TimedOut(Awaited),
    /// The peer ended the connection before it was established.
    #[error("the peer closed the connection during the MPA start-up")]
    PeerClosed,
    /// The application itself gave the connection up before it was established.
    #[error("cancelled")]
    Cancelled,
    /// The application had not answered, and another start-up needed the place: the applications of
    /// its tenant held more start-ups than the applications of any other tenant.
    #[error("other start-ups needed the place")]
    Displaced,
    /// Our address, or the route from it to the peer, was removed during the start-up (InfiniBand;
    /// over iWARP the reason is [`CloseReason::Withdrawn`]).
    #[error("the local address or the route to the peer was removed")]
    Withdrawn,
    /// The worker could not carry out an order.
    #[error("the worker refused: {0}")]
    Worker(RnicError),
    /// The worker has ended: the thread that ran the connection has stopped, by a defect or because
    /// the RNIC was stopped.
    #[error("the worker has ended")]
    WorkerLost,
    /// The control plane has ended, by a defect or because the RNIC was stopped, so no connection
    /// can be made.
    #[error("the RNIC has ended")]
    ControlLost,
    /// The manager refused the request at once. The shell reports the refusal as this event where
    /// the call itself cannot return it.
    #[error("{0}")]
    Request(RequestError),
}

/// The reason why a connection of InfiniBand was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IbRefusal {
    /// The peer's REJ has this reason.
    Reason(u16),
    /// The peer's RDMA IP CM service refuses with this code (IBTA Annex A11, table 5).
    Service(u8),
    /// Our REJ has this reason: we cannot accept the peer's answer.
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

/// The state of the queue pair after a connection was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpFate {
    /// The application had given no queue pair.
    NoQp,
    /// The queue pair is untouched and may be used for another connection.
    Free(Qpn),
    /// The queue pair has been in FPDU mode, if only for a moment, and cannot be used again.
    Spent(Qpn),
}

/// The reason why an established connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DisconnectReason {
    /// Either side asked for the end, and both streams ended in order.
    Orderly,
    /// TCP ended the connection.
    Tcp(CloseReason),
    /// The peer closed its stream too early: within an FPDU or a message, before the answer to an
    /// RDMA Read, or before its first FPDU.
    Truncated(Cut),
    /// The peer broke a rule. We sent a Terminate, unless no Terminate may answer that breach.
    LocalTerminate(TermCode),
    /// The peer sent a Terminate; [`Event::Disconnected`] has the headers that the Terminate
    /// repeats.
    RemoteTerminate(TermCode),
    /// The peer answered none of the DREQs that we sent (InfiniBand).
    Unanswered,
    /// The peer, which made the connection, did not answer our keepalives (InfiniBand; over iWARP
    /// the reason is [`CloseReason::TimedOut`]).
    PeerSilent,
    /// The peer has given up a connection that we held for established: its REJ has this reason
    /// (InfiniBand).
    InfiniBand(u16),
    /// Our address, or the route from it to the peer, was removed (InfiniBand; over iWARP the
    /// reason is [`CloseReason::Withdrawn`]).
    Withdrawn,
    /// We reset the connection: its peer was accepted and then sent no good FPDU in time.
    NoFirstFpdu,
    /// The worker has ended: the thread that ran the connection has stopped, by a defect or because
    /// the RNIC was stopped. After a defect the RNIC resets the peer, at once if the worker can
    /// still send, and otherwise at the peer's next segment. An RNIC that is stopped sends the peer
    /// nothing.
    WorkerLost,
    /// The control plane has ended by a defect, and the workers with it. The RNIC resets the peer.
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
            DisconnectReason::ControlLost => f.write_str("the RNIC has ended"),
        }
    }
}

/// The reason why there is no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ListenFailure {
    /// A worker refused; the other workers do not listen either.
    #[error("{0}")]
    Worker(ListenError),
    /// The application took the request back before all workers had answered.
    #[error("taken back")]
    Withdrawn,
    /// The listener's address is not one of ours any more.
    #[error("the address was removed")]
    AddressRemoved,
    /// No worker is left to listen.
    #[error("the worker has ended")]
    WorkerLost,
    /// The control plane has ended.
    #[error("the RNIC has ended")]
    ControlLost,
}

/// A message of the manager to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// Every worker of the port that has the address listens.
    Listening {
        /// The listener.
        id: ListenerId,
    },
    /// The listener does not exist, or has ended.
    ListenFailed {
        /// The listener that failed.
        id: ListenerId,
        /// The reason why the application has no listener.
        error: ListenFailure,
    },
    /// A peer wants to connect to a listener. Answer with
    /// [`Request::Accept`](crate::Request::Accept) or [`Request::Reject`](crate::Request::Reject).
    ConnectRequest {
        /// Name of the new connection.
        id: CmId,
        /// The listener that the request came to.
        listener: ListenerId,
        /// The worker that has the connection.
        worker: WorkerId,
        /// The protocol that the connection would run on: InfiniBand only at a listener that takes
        /// it.
        transport: Transport,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
        /// The peer's private data; over InfiniBand 56 bytes, including the zeros that fill them
        /// up.
        private_data: Vec<u8>,
        /// Depths that the peer announces for its RDMA Reads; `None` in MPA revision 1.
        peer: Option<PeerDepths>,
        /// The peer asks for the peer-to-peer model: it sends an FPDU of its own accord, so that we
        /// may send first.
        peer_to_peer: bool,
    },
    /// The connection is up: the worker has reported that its queue pair runs.
    /// [`Event::Disconnected`] follows in the end.
    Established {
        /// Name of the connection.
        id: CmId,
        /// Its queue pair.
        qpn: Qpn,
        /// The worker that has the connection.
        worker: WorkerId,
        /// The peer's private data; empty on the side that accepted.
        private_data: Vec<u8>,
        /// The parameters that both ends agreed on.
        agreed: Agreed,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// The peer's application rejected the connection.
    Rejected {
        /// Name of the connection.
        id: CmId,
        /// The connection's queue pair, which may be used for another connection.
        qpn: Qpn,
        /// The peer's private data.
        private_data: Vec<u8>,
        /// Depths that the peer announces for its RDMA Reads; its ORD may be the number that it
        /// needs. `None` in MPA revision 1.
        peer: Option<PeerDepths>,
    },
    /// The connection was not established.
    ConnectError {
        /// Name of the connection.
        id: CmId,
        /// The reason why no connection was established.
        error: ConnectFailure,
        /// The state of the connection's queue pair.
        qp: QpFate,
    },
    /// An established connection is over, and the worker has flushed its queue pair.
    Disconnected {
        /// Name of the connection.
        id: CmId,
        /// The connection's queue pair, which cannot be used again.
        qpn: Qpn,
        /// The reason of the end.
        reason: DisconnectReason,
        /// With [`DisconnectReason::RemoteTerminate`], the headers that the Terminate repeats (RFC
        /// 5040 section 4.8): length and DDP header of the segment that the peer refused, and the
        /// RDMAP header of a Read Request. From them an application can find which of its requests
        /// the peer refused. Each header is present only if the Terminate has all of it. The
        /// headers are the peer's claims: report them, and do not rely on them.
        terminate: Option<Box<TerminatePayload>>,
    },
}

impl Event {
    /// Returns the connection that the event is about; `None` for an event about a listener.
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
