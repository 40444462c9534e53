//! How long a peer may keep memory of this end.
//!
//! ```text
//!   parts of a message come ──▶ chunks are read ──▶ the layer above ──▶ reply is written and sent
//!   ╰───────── transfer ──────╯ ╰── transfer ──╯                       ╰──────── transfer ───────╯
//! ```
//!
//! A *transfer* has memory until the peer does its part: sends what is missing, answers RDMA Reads, gives
//! credits, acknowledges. None of the protocols below ends a connection for a peer that lives and does not.
//! So each transfer may take a time; then the connection is closed, and its memory comes back. What the
//! layer above does in between is not the peer's doing and has no limit here.
//!
//! Transfers are not stamped, as replies begin when no clock is at hand: they are looked at four times
//! within that time, and too old when they were seen more often.

use heddle_base::Instant;

use super::served::{InCall, Phase};
use super::{CloseReason, Connection};

/// How often transfers are looked at within the time that one may take.
const LOOKS: u8 = 4;

/// How often a transfer was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age(u8);

impl Age {
    /// One look more; whether it is too old.
    fn looked_at(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 > LOOKS
    }
}

impl InCall {
    pub(super) fn begin_transfer(&mut self, phase: Phase) {
        self.phase = phase;
        self.age = Age::default();
    }
}

impl Connection {
    /// Something has come: from now on there may be transfers.
    pub(super) fn watch_transfers(&mut self, now: Instant) {
        // Calls that wait, or are with the layer above, will be transfers.
        if self.transfers_at.is_none() && !(self.served.is_empty() && self.incoming.is_none()) {
            self.transfers_at = Some(now + self.config.transfer_timeout / u32::from(LOOKS));
        }
    }

    /// Closes the connection when a transfer takes too long.
    pub(super) fn time_transfers(&mut self, now: Instant) {
        if self.transfers_at.is_none_or(|at| at > now) || !self.is_running() {
            return;
        }
        self.transfers_at = None;
        let mut late = 0;
        for slot in 0..self.config.served_slots() {
            if let Some(row) = self.served.at_mut(slot)
                && matches!(row.phase, Phase::Reading | Phase::Replying | Phase::Sent)
            {
                late += u64::from(row.age.looked_at());
            }
        }
        if let Some(parts) = self.incoming.as_mut().filter(|parts| parts.buffer.is_some()) {
            late += u64::from(parts.age.looked_at());
        }
        if late > 0 {
            self.counters.transfer_timeouts += late;
            return self.close(CloseReason::TransferTimeout);
        }
        self.watch_transfers(now);
    }
}
