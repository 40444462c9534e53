//! States of a queue pair, and what an application may do to them.
//!
//! ```text
//!             create_qp                connect, accept         in FPDU mode
//!                 │        ┌──────┐ ─────────────────────▶ ┌────────────┐ ────────▶ ┌─────┐
//!                 └──────▶ │ Init │ ◀───────────────────── │ Connecting │           │ Rts │
//!                          └──────┘   no connection        └────────────┘           └─────┘
//!                             ▲                                    disconnect │  │ error
//!                       reset │                              ┌─────────┐ ◀────┘  └──▶ ┌───────────┐
//!                          ┌───────┐ ◀────────────────────── │ Closing │ ────────────▶│ Terminate │
//!                          │ Error │ ◀──────────────────────────────────────────────  └───────────┘
//!                          └───────┘
//! ```
//!
//! The names are those of the iWARP verbs where they have one. `Init` is what other verbs reach by two
//! steps, reset and init: requests may be posted, and are carried out once it is connected. There is no
//! SQD: iWARP has no path to migrate and no attribute of a queue pair that a drained send queue would
//! let change; to stop sending, stop posting. [`Device::fail_qp`](crate::Device::fail_qp) leads from every
//! state to `Error`, with a connection or without one.

use crate::ring::layout::{phase, state};

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Requests may be posted.
    Init,
    /// In the start-up of a connection.
    Connecting,
    /// Ready to send: its connection runs.
    Rts,
    /// The application has closed the connection; what was posted before is still sent.
    Closing,
    /// An error was found on this side; the peer is being told.
    Terminate,
    /// The connection is over. All that was posted completes, as flushed if not otherwise.
    Error,
}

impl QpState {
    /// What the words of a queue pair say; `claimed` when it is in a connection or about to be.
    pub(crate) fn of(state_word: u64, phase_word: u64, claimed: bool) -> QpState {
        match (state_word & 0xff, phase_word) {
            (state::IDLE, _) if claimed => QpState::Connecting,
            (state::IDLE, _) => QpState::Init,
            (state::RUNNING, phase::RTS) => QpState::Rts,
            (state::RUNNING, phase::CLOSING) => QpState::Closing,
            (state::RUNNING, phase::TERMINATE) => QpState::Terminate,
            _ => QpState::Error,
        }
    }

    /// Whether [`Device::reset_qp`](crate::Device::reset_qp) is allowed.
    pub(crate) const fn can_reset(self) -> bool {
        match self {
            QpState::Init | QpState::Error => true,
            QpState::Connecting | QpState::Rts | QpState::Closing | QpState::Terminate => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_words_of_every_state() {
        let worker = 7 << 8;
        for (words, want) in [
            ((state::IDLE, 0, false), QpState::Init),
            ((state::IDLE, 0, true), QpState::Connecting),
            ((state::RUNNING | worker, phase::RTS, true), QpState::Rts),
            ((state::RUNNING | worker, phase::CLOSING, true), QpState::Closing),
            ((state::RUNNING | worker, phase::TERMINATE, true), QpState::Terminate),
            ((state::RUNNING | worker, phase::ERROR, true), QpState::Error),
            ((state::ENDING, phase::RTS, true), QpState::Error),
            ((state::DEAD, phase::RTS, true), QpState::Error),
            ((0xee, phase::RTS, false), QpState::Error),
        ] {
            assert_eq!(QpState::of(words.0, words.1, words.2), want, "{words:?}");
        }
    }

    #[test]
    fn test_only_without_a_connection_it_can_be_reset() {
        use QpState::{Closing, Connecting, Error, Init, Rts, Terminate};
        let all = [Init, Connecting, Rts, Closing, Terminate, Error];
        let can: Vec<_> = all.into_iter().filter(|s| s.can_reset()).collect();
        assert_eq!(can, [Init, Error]);
    }
}
