//! Completions and events: what a QP tells the application and its owner.

use super::wr::PostError;
use crate::rdmap::{AtomicOp, TermCode};
use crate::{BindError, Qpn, Stag};

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
    /// A Send or Immediate Data has arrived.
    Recv,
    /// A Send of any kind was acknowledged.
    Send,
    /// A Write was acknowledged (which does not say that the peer has seen the data), and with it
    /// the Immediate Data that followed it, if any.
    Write,
    /// A Read's data is in place.
    Read,
    /// Immediate Data alone was acknowledged.
    Immediate,
    /// A fetch and add was carried out, and what it found is in place.
    FetchAdd,
    /// A fast registration is valid.
    FastRegister,
    /// A window of type 2 is bound.
    BindWindow,
    /// An STag was made invalid by a request of this side.
    LocalInvalidate,
    /// A compare and swap was carried out, and what it found is in place.
    CmpSwap,
}

impl From<AtomicOp> for CqeOp {
    fn from(op: AtomicOp) -> CqeOp {
        match op {
            AtomicOp::FetchAdd { .. } => CqeOp::FetchAdd,
            AtomicOp::CmpSwap { .. } => CqeOp::CmpSwap,
        }
    }
}

/// How it ended. After the first that is not a success the stream is over, and whatever else is not
/// complete by then completes as [`Flushed`](CqeStatus::Flushed). What was complete keeps its success,
/// also where its completion has to come behind that of an earlier request that was not. Only
/// [`PostError::Closing`] leaves the stream as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeStatus {
    /// As asked.
    Success,
    /// Flushed and nothing else: the stream ended, for a reason of which this request is not known
    /// to be the cause, before it was complete. Whether the peer saw any of it is not known.
    Flushed,
    /// The peer's message is longer than this receive buffer.
    LocalLength,
    /// A local SGE is not in a region this QP may use so.
    LocalProtection,
    /// The request itself is malformed, or not allowed on this QP or in its state; it was not
    /// carried out.
    LocalQpOperation(PostError),
    /// An STag could not be registered, bound or invalidated as this request asked.
    LocalBind(BindError),
    /// The peer refused access to its memory in this Terminate, and this request is the likely
    /// cause: a protection error of RDMAP or of a DDP tagged buffer.
    RemoteAccess(TermCode),
    /// The peer ended the stream with this Terminate for another reason, and this request is the
    /// likely cause.
    RemoteOperation(TermCode),
}

impl CqeStatus {
    /// Whether it is [`CqeStatus::Success`].
    pub const fn is_success(self) -> bool {
        matches!(self, CqeStatus::Success)
    }

    /// What a received Terminate says of the request it is about.
    pub(super) const fn of_terminate(code: TermCode) -> CqeStatus {
        match (code.layer, code.etype) {
            // RFC 5040 section 4.8: remote protection error; RFC 5041 section 7.2: tagged buffer
            // error, whose code 4 is the DDP version.
            (0, 1) => CqeStatus::RemoteAccess(code),
            (1, 1) if code.code < 4 => CqeStatus::RemoteAccess(code),
            _ => CqeStatus::RemoteOperation(code),
        }
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
    /// The local region the peer has invalidated (receive queue).
    pub invalidated: Option<Stag>,
    /// Immediate Data that came (receive queue); then nothing was written to the buffer.
    pub immediate: Option<u64>,
}

impl Cqe {
    /// The completion of a request that was never begun, as its queue pair or its RNIC has ended.
    pub const fn flushed(qpn: Qpn, queue: Queue, op: CqeOp, wr_id: u64) -> Cqe {
        Cqe {
            wr_id,
            qpn,
            queue,
            op,
            status: CqeStatus::Flushed,
            solicited: false,
            len: 0,
            invalidated: None,
            immediate: None,
        }
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Local,
    /// The peer.
    Remote,
}

/// What the peer's stream broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Cut {
    /// An FPDU.
    Fpdu,
    /// A Send or Write of several segments, between two of them.
    Message,
    /// The answers to our Reads, some of which have not come.
    Read,
    /// Its first FPDU, before which nothing that we have posted may be sent.
    Start,
}

impl core::fmt::Display for Cut {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Cut::Fpdu => "in the middle of an FPDU",
            Cut::Message => "in the middle of a message",
            Cut::Read => "before it answered an RDMA Read",
            Cut::Start => "before its first FPDU",
        })
    }
}

/// Something about the connection the owner should act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The peer's first FPDU was good (RFC 5044: now a responder may send).
    FirstFpdu,
    /// A Terminate ends the stream. Local: send what
    /// [`poll_transmit`](super::QpContext::poll_transmit) still gives, then close TCP.
    /// Remote: close TCP.
    Terminated {
        /// Who detected the error and sent the Terminate.
        by: Side,
        /// What it says; [`received_terminate`](super::QpContext::received_terminate) has the
        /// headers that a Terminate of the peer repeats.
        code: TermCode,
    },
    /// An error was found here of which the peer may not be told: MPA's in the first FPDU that a
    /// responder gets (RFC 5044 section 7.1.2), or a Terminate that breaks the rules itself. The
    /// stream is over: close TCP.
    Failed {
        /// What a Terminate would have said.
        code: TermCode,
    },
    /// After [`close`](super::QpContext::close): all sends are done, TCP may be closed.
    Drained,
    /// The peer closed its stream before its time. All is flushed; close TCP.
    Truncated(Cut),
}
