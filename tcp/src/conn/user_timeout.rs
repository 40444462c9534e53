//! The user timeout option (RFC 5482): each end tells the other for how long it keeps the connection
//! while the path is broken.
//!
//! The option is advice, and no segment depends on its arrival. The first SYN or SYN-ACK has it, and one ACK
//! without data after the handshake: the listener of a stack keeps nothing of a SYN's option (section
//! 3). Another ACK has it when the owner changes the timeout.

use core::time::Duration;
use heddle_base::Instant;

use super::{Connection, Pending, State};
use crate::{SegmentOutcome, TxSegment, UserTimeout};

/// Whether a connection uses the user timeout option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserTimeoutOption {
    /// The connection sends no option, and ignores the peer's.
    #[default]
    Off,
    /// The connection tells its own timeout, and keeps to it whatever the peer says.
    Advertise,
    /// The connection tells its own timeout, and takes the longer of both ends' timeouts within limits.
    Adapt,
}

impl UserTimeoutOption {
    /// The names in settings.
    pub const NAMES: [(&str, UserTimeoutOption); 3] = [
        ("off", UserTimeoutOption::Off),
        ("advertise", UserTimeoutOption::Advertise),
        ("adapt", UserTimeoutOption::Adapt),
    ];
}

impl Connection {
    /// Has the option sent to a peer that has acknowledged our SYN, if the connection uses the option.
    pub(super) fn tell_user_timeout(&mut self) {
        let synchronized = !matches!(
            self.hot.state,
            State::SynSent | State::SynReceived | State::TimeWait | State::Closed
        );
        if synchronized && self.cold.set.user_timeout_option != UserTimeoutOption::Off {
            self.hot.pending.set(Pending::USER_TIMEOUT);
        }
    }

    /// Returns the option for a segment of ours, if the connection uses the option.
    pub(super) fn own_advice(&self) -> Option<UserTimeout> {
        let set = &self.cold.set;
        advice_of(set.user_timeout_option, set.own_user_timeout())
    }

    /// Returns an ACK with the option. Such an ACK has no blocks of a SACK: an ACK that has them
    /// follows, if one is due.
    pub(super) fn user_timeout_ack(&mut self, now: Instant) -> TxSegment {
        let mut tx = if self.hot.pending.any(Pending::ECHO) {
            self.owed_echo(now)
        } else {
            self.bare_ack(now)
        };
        if self.hot.pending.take(Pending::USER_TIMEOUT) {
            tx.user_timeout = self.own_advice();
        }
        tx
    }

    /// Handles a segment by `handle`, and takes the option that came with it if the connection accepts
    /// the segment.
    pub(super) fn handle_advice(
        &mut self,
        now: Instant,
        advice: UserTimeout,
        handle: impl FnOnce(&mut Connection) -> SegmentOutcome,
    ) -> SegmentOutcome {
        // An acceptable segment moves this instant to `now`, and no other segment does.
        let before = self.hot.last_rx;
        let other = Instant::from_nanos(now.as_nanos().saturating_sub(1));
        let marked = if before == now { other } else { before };
        self.hot.last_rx = marked;
        let outcome = handle(self);
        if self.hot.last_rx == marked {
            self.hot.last_rx = before;
        } else if self.cold.set.user_timeout_option == UserTimeoutOption::Adapt {
            self.cold.set.advice = Some(advice);
        }
        outcome
    }

    /// Returns how long the peer may acknowledge nothing: the owner's setting, or the timeout of RFC
    /// 5482 section 3.1 if the connection has taken the peer's.
    pub(super) fn user_timeout(&self) -> Duration {
        self.cold.set.user_timeout(self.rto.get())
    }
}

/// Returns the option that tells `own`, if `option` says that connections send it.
pub(super) fn advice_of(option: UserTimeoutOption, own: Duration) -> Option<UserTimeout> {
    (option != UserTimeoutOption::Off).then(|| UserTimeout::of(own))
}
