//! What the RNIC tells the control plane.

use core::net::SocketAddr;

use heddle_iwarp::rdmap::Terminate;
use heddle_iwarp::{QpConfig, QpEvent};
use heddle_tcp::ConnId;

/// Something the control plane has to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A listener's TCP connection is established.
    Accepted {
        /// The new connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// A connection we asked for is established.
    Connected {
        /// The connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
    },
    /// Bytes arrived before FPDU mode. They stay held until
    /// [`enter_fpdu_mode`](crate::Rnic::enter_fpdu_mode) says how many the start-up used.
    StartupBytes {
        /// The connection.
        conn: ConnId,
        /// The bytes, following those of the last such event.
        bytes: Vec<u8>,
    },
    /// A queue pair has something to say.
    Qp {
        /// Its connection.
        conn: ConnId,
        /// What.
        event: QpEvent,
    },
    /// The peer's Terminate, with the headers it repeats (RFC 5040 section 4.8): behind the
    /// [`QpEvent::Terminated`] that tells of it, once for a connection at most.
    PeerTerminate {
        /// Its connection.
        conn: ConnId,
        /// What could be read of it; of fixed size, whatever the peer has sent.
        terminate: Box<Terminate>,
    },
    /// The peer sends no more.
    PeerClosed {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is over; its queue pair has been flushed.
    Closed {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CloseReason {
    /// Both sides finished.
    #[error("closed in order")]
    Orderly,
    /// The peer reset it.
    #[error("reset by the peer")]
    Reset,
    /// The peer refused it.
    #[error("refused by the peer")]
    Refused,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// The peer answers, and kept its receive window shut for too long.
    #[error("the peer kept its receive window shut")]
    WindowShut,
    /// We reset it: the peer began an FPDU, or left a gap, and did not go on for too long.
    #[error("the peer left an FPDU unfinished")]
    Unfinished,
    /// No address resolution answer for the peer or its gateway.
    #[error("the address of the next hop cannot be resolved")]
    Unreachable,
    /// We reset it.
    #[error("reset by us")]
    Aborted,
    /// We reset it, because its address was taken from us, or the route to the peer.
    #[error("the local address, or the route to the peer, was removed")]
    Withdrawn,
}

/// How a connection enters FPDU mode.
#[derive(Clone, Debug)]
pub struct FpduMode {
    /// Received octets the start-up used; what follows them is FPDUs.
    pub startup_len: usize,
    /// Last start-up octets to send before the first FPDU (the MPA Reply).
    pub reply: Vec<u8>,
    /// The queue pair to make. Its stream positions are filled in here.
    pub qp: QpConfig,
}
