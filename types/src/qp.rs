//! The states of a queue pair.

/// States, named as in the iWARP verbs. The owner makes a QP when the MPA start-up is done, so the
/// QP begins in [`QpState::Rts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Ready to send.
    Rts,
    /// The application has closed; the QP still sends the requests posted before.
    Closing,
    /// The QP found a local error: it sends the Terminate, and nothing after it.
    Terminate,
    /// The QP failed, or the peer's Terminate ended the stream. The QP sends and places nothing any
    /// more.
    Error,
}

impl QpState {
    /// Returns true if the QP still sends and receives messages.
    pub const fn is_live(self) -> bool {
        matches!(self, QpState::Rts | QpState::Closing)
    }
}
