//! Events that the RNIC reports to the control plane.

use core::net::SocketAddr;

use heddle_iwarp::{QpConfig, QpEvent};
use heddle_types::{CloseReason, ConnId, TerminatePayload};

/// An event that the RNIC reports to the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A listener's TCP connection is established.
    Accepted {
        /// The new connection.
        conn: ConnId,
        /// Our address and port.
        local: SocketAddr,
        /// The peer's address and port.
        remote: SocketAddr,
    },
    /// A connection that the control plane asked for is established.
    Connected {
        /// The connection that [`Rnic::connect`](crate::Rnic::connect) returned.
        conn: ConnId,
        /// Our address and port.
        local: SocketAddr,
    },
    /// Bytes arrived before FPDU mode. The RNIC holds these bytes until
    /// [`enter_fpdu_mode`](crate::Rnic::enter_fpdu_mode) says how many of them the start-up used.
    StartupBytes {
        /// The connection that received the bytes.
        conn: ConnId,
        /// The bytes that follow those of the last such event.
        bytes: Vec<u8>,
    },
    /// A queue pair reports an event.
    Qp {
        /// The connection of the queue pair.
        conn: ConnId,
        /// The queue pair's event.
        event: QpEvent,
    },
    /// The peer sent a Terminate, with the headers that it repeats (RFC 5040 section 4.8). This
    /// event follows the [`QpEvent::Terminated`] that reports the Terminate, at most once per
    /// connection.
    PeerTerminate {
        /// The connection that received the Terminate.
        conn: ConnId,
        /// The parsed part of the Terminate; its size is fixed, whatever the peer has sent.
        terminate: Box<TerminatePayload>,
    },
    /// The peer has closed its direction of the stream and sends no more.
    PeerClosed {
        /// The connection whose peer sends no more.
        conn: ConnId,
    },
    /// The connection is over; the RNIC has flushed its queue pair.
    Closed {
        /// The connection, which the control plane may release now.
        conn: ConnId,
        /// Why the connection ended.
        reason: CloseReason,
    },
}

/// How a connection enters FPDU mode.
#[derive(Clone, Debug)]
pub struct FpduMode {
    /// Received bytes that the start-up used; FPDUs follow them.
    pub startup_len: usize,
    /// The last start-up bytes to send before the first FPDU (the MPA Reply).
    pub reply: Vec<u8>,
    /// Configuration of the queue pair to make. The RNIC fills in its stream positions.
    pub qp: QpConfig,
}
