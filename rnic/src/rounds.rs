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

/// Where the rounds are.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// The next to be looked at, among the running.
    next: usize,
    /// Somebody was at work in this round.
    work: bool,
}

impl Rounds {
    /// Whoever was at the end of the list has moved to where this round may have been already.
    pub(crate) fn moved(&mut self) {
        self.work = true;
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Goes on with the round, if it is time.
    pub(crate) fn go_round(&mut self, now: Instant) {
        let (due, begins) = self.shared.looks.rounds_due(now);
        if !due {
            return;
        }
        if begins {
            self.shared.rounds = Rounds::default();
            self.shared.looks.set_rounds(Some(now + REST));
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
        let work = self.shared.rounds.work;
        let (next, rounds) = if upto < self.running.list.len() {
            (Some(now + PAUSE), Rounds { next: upto, work })
        } else {
            (work.then(|| now + REST), Rounds::default())
        };
        self.shared.rounds = rounds;
        self.shared.looks.set_rounds(next);
    }
}
