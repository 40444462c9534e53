//! The states of a queue pair.

/// The state of a queue pair while an engine runs it, named as in the iWARP verbs. The manager gives
/// an engine a queue pair when the start-up is done, so it begins in [`ConnectedState::Rts`]. An
/// application also sees the states before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectedState {
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

impl ConnectedState {
    /// Returns true if the QP still sends and receives messages.
    pub const fn is_live(self) -> bool {
        matches!(self, ConnectedState::Rts | ConnectedState::Closing)
    }
}
