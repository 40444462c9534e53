//! How the state of a QP in FPDU mode changes.

use heddle_types::ConnectedState;

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
pub(super) const fn next(state: ConnectedState, on: Transition) -> Option<ConnectedState> {
    match (state, on) {
        (ConnectedState::Rts, Transition::Close) => Some(ConnectedState::Closing),
        (ConnectedState::Rts | ConnectedState::Closing, Transition::Fault) => {
            Some(ConnectedState::Terminate)
        }
        (ConnectedState::Rts | ConnectedState::Closing, Transition::RemoteTerminate)
        | (
            ConnectedState::Rts | ConnectedState::Closing | ConnectedState::Terminate,
            Transition::Abort,
        ) => Some(ConnectedState::Error),
        (
            ConnectedState::Closing | ConnectedState::Terminate | ConnectedState::Error,
            Transition::Close,
        )
        | (ConnectedState::Terminate | ConnectedState::Error, Transition::Fault)
        | (ConnectedState::Terminate | ConnectedState::Error, Transition::RemoteTerminate)
        | (ConnectedState::Error, Transition::Abort) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state × every event; a change of this table is a change of the protocol.
    #[test]
    fn test_queue_pair_state_matches_table_for_every_state_and_event() {
        use ConnectedState::{Closing, Error, Rts, Terminate};
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
