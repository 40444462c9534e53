//! The life of a QP in FPDU mode.

/// States, named as in the iWARP verbs. A QP is made when the MPA start-up is done, so it begins
/// in [`QpState::Rts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Ready to send.
    Rts,
    /// The application has closed; what was posted before is still sent.
    Closing,
    /// A local error was found: the Terminate is sent, and nothing after it.
    Terminate,
    /// Failed, or ended by the peer's Terminate. Nothing is sent or placed any more.
    Error,
}

/// What can happen to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The application closes.
    Close,
    /// We found an error and owe the peer a Terminate.
    Fault,
    /// The peer's Terminate came.
    RemoteTerminate,
    /// TCP is gone, or the owner gives up.
    Abort,
}

impl QpState {
    /// The one transition function; `None` means that the event changes nothing here.
    pub(super) const fn next(self, on: Transition) -> Option<QpState> {
        match (self, on) {
            (QpState::Rts, Transition::Close) => Some(QpState::Closing),
            (QpState::Rts | QpState::Closing, Transition::Fault) => Some(QpState::Terminate),
            (QpState::Rts | QpState::Closing, Transition::RemoteTerminate)
            | (QpState::Rts | QpState::Closing | QpState::Terminate, Transition::Abort) => {
                Some(QpState::Error)
            }
            (QpState::Closing | QpState::Terminate | QpState::Error, Transition::Close)
            | (QpState::Terminate | QpState::Error, Transition::Fault)
            | (QpState::Terminate | QpState::Error, Transition::RemoteTerminate)
            | (QpState::Error, Transition::Abort) => None,
        }
    }

    /// Whether messages flow.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, QpState::Rts | QpState::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state × every event; a change here is a change of protocol.
    #[test]
    fn test_every_state_on_every_event() {
        use QpState::{Closing, Error, Rts, Terminate};
        let table = [
            (Rts, [Some(Closing), Some(Terminate), Some(Error), Some(Error)]),
            (Closing, [None, Some(Terminate), Some(Error), Some(Error)]),
            (Terminate, [None, None, None, Some(Error)]),
            (Error, [None, None, None, None]),
        ];
        let events =
            [Transition::Close, Transition::Fault, Transition::RemoteTerminate, Transition::Abort];
        for (state, row) in table {
            for (event, want) in events.into_iter().zip(row) {
                assert_eq!(state.next(event), want, "{state:?} on {event:?}");
            }
        }
    }
}
