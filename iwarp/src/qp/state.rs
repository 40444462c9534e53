//! How the state of a QP in FPDU mode changes.

use heddle_types::QpState;

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

/// The only transition function; `None` means that the event changes nothing in this state.
pub(super) const fn next(state: QpState, on: Transition) -> Option<QpState> {
    match (state, on) {
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
                assert_eq!(next(state, event), want, "{state:?} on {event:?}");
            }
        }
    }
}
