//! Completions and events: what a QP tells the application and its owner.

use crate::rdmap::TermCode;
use crate::{Qpn, Stag};

/// Which queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Send queue.
    Sq,
    /// Receive queue.
    Rq,
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeOp {
    /// A Send of any kind was acknowledged.
    Send,
    /// A Write was acknowledged (which does not say that the peer has seen the data).
    Write,
    /// A Read's data is in place.
    Read,
    /// A Send has arrived.
    Recv,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeStatus {
    /// As asked.
    Success,
    /// A local SGE is not in a region this QP may use so.
    LocalProtection,
    /// The peer's message is longer than the receive buffer.
    LocalLength,
    /// The QP failed or was closed first. Whether the peer saw any of it is not known.
    Flushed,
    /// The peer ended the connection with this Terminate, and this request is the likely cause.
    RemoteTerminated(TermCode),
}

impl CqeStatus {
    /// Whether it is [`CqeStatus::Success`].
    pub const fn is_success(self) -> bool {
        matches!(self, CqeStatus::Success)
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// From the work request.
    pub wr_id: u64,
    /// The QP.
    pub qpn: Qpn,
    /// The queue it came from.
    pub queue: Queue,
    /// What it was.
    pub op: CqeOp,
    /// How it ended.
    pub status: CqeStatus,
    /// Whether the peer asked for an event (receive queue).
    pub solicited: bool,
    /// Bytes transferred; 0 unless successful.
    pub len: u32,
    /// Entries of its queue it gives back: itself and the silent successes before it.
    pub retired: u32,
    /// The local region the peer has invalidated (receive queue).
    pub invalidated: Option<Stag>,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Local,
    /// The peer.
    Remote,
}

/// Something about the connection the owner should act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The peer's first FPDU was good (RFC 5044: now a responder may send).
    FirstFpdu,
    /// A Terminate ends the stream. Local: send what
    /// [`poll_transmit`](super::Qp::poll_transmit) still gives, then close TCP.
    /// Remote: close TCP.
    Terminated {
        /// Who detected the error and sent the Terminate.
        by: Side,
        /// What it says.
        code: TermCode,
    },
    /// After [`close`](super::Qp::close): all sends are done, TCP may be closed.
    Drained,
}
