//! States of a queue pair, and the operations that an application may call in them.
//!
//! ```text
//!         create_qp              connect, accept       in FPDU mode
//!             │      ┌──────┐ ───────────────────▶ ┌────────────┐ ──────▶ ┌─────┐
//!             └────▶ │ Init │ ◀─────────────────── │ Connecting │         │ Rts │
//!                    └──────┘    no connection     └────────────┘         └─────┘
//!                       ▲                                   disconnect │   │ error
//!                 reset │                          ┌─────────┐ ◀───────┘   └──▶ ┌───────────┐
//!                    ┌───────┐ ◀────────────────── │ Closing │ ───────────────▶ │ Terminate │
//!                    │ Error │ ◀─────────────────────────────────────────────── └───────────┘
//!                    └───────┘
//! ```
//!
//! State names follow the iWARP verbs where these define one. Other verbs reach `Init` by two
//! steps, reset and init: an application may post requests, and the worker carries them out once
//! the queue pair is connected. There is no SQD: iWARP has no path to migrate, and no attribute of
//! a queue pair that a drained send queue would let an application change. To stop sending, an
//! application stops posting. [`Device::fail_qp`](crate::Device::fail_qp) leads from every state to
//! `Error`, with or without a connection.

use core::fmt;

use heddle_rings::layout::{phase, state};

/// The state of a queue pair, from creation to the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// The queue pair is not connected. The application may post requests.
    Init,
    /// The queue pair is in the start-up of a connection.
    Connecting,
    /// Ready to send: the connection is established.
    Rts,
    /// The application has closed the connection; the worker still sends the requests posted
    /// before.
    Closing,
    /// This side has found an error and is sending a Terminate to the peer.
    Terminate,
    /// The connection is over. All requests posted complete, with the status flushed if they have
    /// no other.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Init => "init",
            QpState::Connecting => "connecting",
            QpState::Rts => "rts",
            QpState::Closing => "closing",
            QpState::Terminate => "terminate",
            QpState::Error => "error",
        })
    }
}

impl QpState {
    /// Returns the state that the words of a queue pair encode; `claimed` is true while the queue
    /// pair is in a connection or about to be.
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

    /// Returns true if [`Device::reset_qp`](crate::Device::reset_qp) is allowed.
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
    fn test_queue_pair_state_is_derived_from_its_words() {
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
    fn test_queue_pair_can_be_reset_only_without_a_connection() {
        use QpState::{Closing, Connecting, Error, Init, Rts, Terminate};
        let all = [Init, Connecting, Rts, Closing, Terminate, Error];
        let can: Vec<_> = all.into_iter().filter(|s| s.can_reset()).collect();
        assert_eq!(can, [Init, Error]);
    }
}
