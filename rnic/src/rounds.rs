//! Rounds over the connections, in which quiet ones give back memory.
//!
//! A queue keeps what a burst had it take, so that traffic that goes on asks the allocator for
//! nothing. So each connection in turn is looked at, a few at a time: one whose streams have not
//! moved since the round before, [`REST`] ago or more, is trimmed to what is in its queues. Who
//! sends something every few seconds asks the allocator every few seconds.
//!
//! A connection that holds bytes of an FPDU that is not whole, or ahead of a gap, is looked at as well:
//! one that has got nowhere for too long ends ([`RnicConfig::fpdu_stall`](crate::RnicConfig::fpdu_stall)).
//! So the limit costs the data path nothing, and is kept within a round or two.
//!
//! Rounds end when a whole one has found nobody at work and nothing held, and begin again with the next traffic: of
//! an RNIC that is idle no timer runs.

use core::time::Duration;

use heddle_base::Instant;

use crate::frame::RnicFrame;
use crate::rnic::Rnic;

/// From one round to the next.
const REST: Duration = Duration::from_secs(1);

/// Connections looked at before frames have their turn again, and how long that is.
const LOOKS: usize = 32;
const PAUSE: Duration = Duration::from_millis(1);

/// By how much the time of an FPDU that stands still is shorter while another connection of the same
/// address waits for its room.
const WANTED: u32 = 8;

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Where the rounds are.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// When to go on; [`Instant::ZERO`] when there was traffic and no round has begun.
    at: Instant,
    /// The next to be looked at, among the running.
    next: usize,
    /// Somebody was at work in this round.
    work: bool,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds { at: NEVER, next: 0, work: false }
    }
}

impl Rounds {
    /// There is traffic: memory may be taken that somebody has to ask back.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if self.at == NEVER {
            self.at = Instant::ZERO;
        }
    }

    /// Whoever was at the end of the list has moved to where this round may have been already.
    pub(crate) fn moved(&mut self) {
        self.work = true;
    }

    /// The earlier of `other` and the time to go on.
    #[inline]
    pub(crate) fn poll_timeout(&self, other: Option<Instant>) -> Option<Instant> {
        let at = other.map_or(self.at, |t| t.min(self.at));
        (at != NEVER).then_some(at)
    }

    /// Returns true if the time of the next look has come.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.at <= now
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Goes on with the round, if it is time.
    #[inline]
    pub(crate) fn go_round(&mut self, now: Instant) {
        if self.shared.rounds.is_due(now) {
            self.look_at_some(now);
        }
    }

    #[cold]
    fn look_at_some(&mut self, now: Instant) {
        if self.shared.rounds.at == Instant::ZERO {
            self.shared.rounds = Rounds { at: now + REST, next: 0, work: false };
            return;
        }
        let from = self.shared.rounds.next;
        let upto = (from + LOOKS).min(self.running.list.len());
        for at in from..upto {
            let Some(&conn) = self.running.list.get(at) else { break };
            let limit = self.shared.fpdu_stall;
            if let Some((tcp, state)) = self.stack.get_mut(conn) {
                let wanted = state.held.is_wanted(&self.shared.pool);
                let limit = if wanted { limit / WANTED } else { limit };
                let works = state.rest(tcp, &mut self.shared.pool);
                let overdue = state.held.is_overdue(state.rx_next, now, limit);
                self.shared.rounds.work |= works || !state.held.is_empty();
                if overdue {
                    self.end_unfinished(conn);
                }
            }
        }
        self.shared.rounds = if upto < self.running.list.len() {
            Rounds { at: now + PAUSE, next: upto, work: self.shared.rounds.work }
        } else if self.shared.rounds.work {
            Rounds { at: now + REST, next: 0, work: false }
        } else {
            Rounds::default()
        };
    }
}
