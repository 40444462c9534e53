//! Events: what a QP reports to its owner.

use heddle_types::{Cut, TermCode};

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This end.
    Local,
    /// The peer's end.
    Remote,
}

/// An event of the connection on which the owner should act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The peer's first FPDU was good (RFC 5044: from now on a responder may send).
    FirstFpdu,
    /// A Terminate ends the stream. Local: the owner sends the FPDUs that
    /// [`poll_transmit`](super::QpContext::poll_transmit) still returns, then closes TCP. Remote:
    /// the owner closes TCP.
    Terminated {
        /// The end that detected the error and sent the Terminate.
        by: Side,
        /// The code in the Terminate. [`received_terminate`](super::QpContext::received_terminate)
        /// has the headers that a Terminate of the peer repeats.
        code: TermCode,
    },
    /// This end found an error that it may not report to the peer: an error of MPA in the first
    /// FPDU that a responder receives (RFC 5044 section 7.1.2), or a Terminate that itself breaks
    /// the rules. The stream is over: the owner closes TCP.
    Failed {
        /// The code that a Terminate would have had.
        code: TermCode,
    },
    /// After [`close`](super::QpContext::close): all sends are done, and the owner may close TCP.
    Drained,
    /// The peer closed its stream too early. The QP has flushed its queues; the owner closes TCP.
    Truncated(Cut),
}
