//! Completions.

use core::fmt;

use crate::atomic::AtomicOp;
use crate::mr::BindError;
use crate::number::{Qpn, Stag};
use crate::term_code::TermCode;
use crate::wr::PostError;

/// One of the two queues of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Sq,
    /// The receive queue.
    Rq,
}

/// The kind of request that a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeOp {
    /// A Send or Immediate Data has arrived.
    Recv,
    /// The peer has acknowledged a Send of any kind.
    Send,
    /// The peer has acknowledged a Write (which does not mean that the peer has seen the data),
    /// and the Immediate Data after it, if any.
    Write,
    /// A Read's data is in place.
    Read,
    /// The peer has acknowledged Immediate Data that no Write preceded.
    Immediate,
    /// The peer carried out a fetch and add, and the old value is in place.
    FetchAdd,
    /// A fast registration is valid.
    FastRegister,
    /// A window of type 2 is bound.
    BindWindow,
    /// A request of this side made an STag invalid.
    LocalInvalidate,
    /// The peer carried out a compare and swap, and the old value is in place.
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

/// How a request ended. The first status other than success ends the stream, and every request that
/// is incomplete by then completes as [`Flushed`](CqeStatus::Flushed). A request that was complete
/// keeps its success, even if its completion has to follow that of an earlier request that failed.
/// Only [`PostError::Closing`] leaves the stream as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeStatus {
    /// The request was carried out as posted.
    Success,
    /// The request was only flushed: the stream ended before the request was complete, and the
    /// request is not known to be the cause. The QP does not know whether the peer saw any part of
    /// the request.
    Flushed,
    /// The peer's message is longer than this receive buffer.
    LocalLength,
    /// A local SGE is not in a region that this QP may use for the request.
    LocalProtection,
    /// The request itself is malformed, or not allowed on this QP or in its state; the QP did not
    /// carry it out.
    LocalQpOperation(PostError),
    /// The QP could not register, bind or invalidate an STag as this request asked.
    LocalBind(BindError),
    /// The peer refused access to its memory in this Terminate, and this request is the likely
    /// cause: a protection error of RDMAP or of a DDP tagged buffer.
    RemoteAccess(TermCode),
    /// The peer ended the stream with this Terminate for another reason, and this request is the
    /// likely cause.
    RemoteOperation(TermCode),
    /// The peer has not acknowledged the request, however often the engine has sent it. An engine
    /// that retransmits requests by itself reports this status; over TCP, the connection ends and
    /// the request is flushed.
    RetryExceeded,
    /// The peer has had no receive for the request, however often the engine has sent it; as for
    /// [`RetryExceeded`](CqeStatus::RetryExceeded).
    RnrRetryExceeded,
}

impl fmt::Display for CqeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CqeStatus::Success => f.write_str("success"),
            CqeStatus::Flushed => f.write_str("flushed, because the connection has ended"),
            CqeStatus::LocalLength => f.write_str("the peer's message is longer than the buffer"),
            CqeStatus::LocalProtection => {
                f.write_str("the request's own memory may not be used for it")
            }
            CqeStatus::LocalQpOperation(e) => write!(f, "the request cannot be carried out: {e}"),
            CqeStatus::LocalBind(e) => write!(f, "the STag cannot be bound or invalidated: {e}"),
            CqeStatus::RemoteAccess(c) => write!(f, "the peer refuses access to its memory: {c}"),
            CqeStatus::RemoteOperation(c) => write!(f, "terminated by the peer: {c}"),
            CqeStatus::RetryExceeded => f.write_str("the peer does not acknowledge the request"),
            CqeStatus::RnrRetryExceeded => f.write_str("the peer has no receive for the request"),
        }
    }
}

impl CqeStatus {
    /// Returns true if the status is [`CqeStatus::Success`].
    pub const fn is_success(self) -> bool {
        matches!(self, CqeStatus::Success)
    }

    /// Returns the status of the request that the peer's Terminate is about.
    pub const fn of_terminate(code: TermCode) -> CqeStatus {
        match (code.layer, code.etype) {
            // RFC 5040 section 4.8: remote protection error; RFC 5041 section 7.2: tagged buffer
            // error, whose code 4 is about the DDP version and not about access.
            (0, 1) => CqeStatus::RemoteAccess(code),
            (1, 1) if code.code < 4 => CqeStatus::RemoteAccess(code),
            _ => CqeStatus::RemoteOperation(code),
        }
    }
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// The mark that the application gave the work request.
    pub wr_id: u64,
    /// Number of the QP that had the request.
    pub qpn: Qpn,
    /// The queue that had the request.
    pub queue: Queue,
    /// The kind of the request.
    pub op: CqeOp,
    /// The result of the request.
    pub status: CqeStatus,
    /// True if the peer asked for an event (receive queue).
    pub solicited: bool,
    /// Bytes transferred; 0 unless successful.
    pub len: u32,
    /// The local region that the peer has invalidated (receive queue).
    pub invalidated: Option<Stag>,
    /// Immediate Data that has come (receive queue); then the QP wrote nothing to the buffer.
    pub immediate: Option<u64>,
}

impl Cqe {
    /// Makes the completion of a request that never began, because its queue pair or its RNIC has
    /// ended.
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

/// The place at which the peer's stream ended too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Cut {
    /// In the middle of an FPDU.
    Fpdu,
    /// In a Send or Write of several segments, between two of them.
    Message,
    /// Before all answers to the Reads of this side had come.
    Read,
    /// Before the peer's first FPDU, without which this side may send none of its requests.
    Start,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::Fpdu => "in the middle of an FPDU",
            Cut::Message => "in the middle of a message",
            Cut::Read => "before it answered an RDMA Read",
            Cut::Start => "before its first FPDU",
        })
    }
}
