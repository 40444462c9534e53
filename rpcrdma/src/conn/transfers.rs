//! Limits how long a peer may keep memory of this end.
//!
//! ```text
//!   parts of a message come ──▶ chunks are read ──▶ the layer above ──▶ reply is written and sent
//!   ╰───────── transfer ──────╯ ╰── transfer ──╯                       ╰──────── transfer ───────╯
//! ```
//!
//! A *transfer* holds memory until the peer does its part: sends the missing parts, answers RDMA
//! Reads, gives credits, acknowledges. No protocol below ends the connection of a peer that is
//! alive and does not do its part. Therefore each transfer has a time limit, after which the
//! connection is closed and its memory comes back. The time that the upper layer takes in between
//! is not the peer's doing, and has no limit here.
//!
//! Transfers carry no time stamp, because a reply begins where no clock is at hand. Instead the
//! connection looks at the transfers four times within the limit, and a transfer that was seen more
//! often is too old.

use heddle_base::Instant;

use super::served::{InCall, Phase};
use super::{CloseReason, Connection};

/// The number of looks at the transfers within the time that a transfer may take.
const LOOKS: u8 = 4;

/// The number of looks at a transfer so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age(u8);

impl Age {
    /// Counts one more look. Returns true if the transfer is too old.
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
    /// Starts the timer after an arrival, since from now on there may be transfers.
    pub(super) fn watch_transfers(&mut self, now: Instant) {
        // Count every call: a call that waits, or that the upper layer has, will be a transfer
        // later.
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
