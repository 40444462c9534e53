//! The states of a QP in FPDU mode.

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

/// The events that can change the state of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The application closes.
    Close,
    /// This end found an error and owes the peer a Terminate.
    Fault,
    /// The peer's Terminate came.
    RemoteTerminate,
    /// TCP has ended, or the owner gives up.
    Abort,
}

impl QpState {
    /// The only transition function; `None` means that the event changes nothing in this state.
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

    /// Returns true if the QP still sends and receives messages.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, QpState::Rts | QpState::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state × every event; a change of this table is a change of the protocol.
    #[test]
    fn test_queue_pair_state_matches_table_for_every_state_and_event() {
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
