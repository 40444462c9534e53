//! Rounds over the connections, in which quiet ones give back memory.
//!
//! A queue keeps the memory that a burst made it allocate, so that steady traffic does not call the
//! allocator. To return such memory, the RNIC looks at each connection in turn, a few at a time. If
//! the streams of a connection have not moved since the round before, [`REST`] ago or more, the
//! RNIC trims its queues to their content, and its receive window to the first size. A peer that
//! sends something every few seconds therefore causes an allocation every few seconds.
//!
//! The RNIC also looks at a connection that holds bytes of an unfinished FPDU, or bytes beyond a
//! gap, and ends the connection if it has made no progress for too long
//! ([`RnicConfig::fpdu_stall`](crate::RnicConfig::fpdu_stall)). So the limit costs the data path
//! nothing, and the RNIC enforces it to within a round or two.
//!
//! Rounds end when a whole round has found no connection at work and no held bytes, and begin again
//! with the next traffic: an idle RNIC runs no timer.

use core::time::Duration;

use heddle_base::Instant;

use crate::frame::RnicFrame;
use crate::rnic::Rnic;

/// Time from one round to the next.
const REST: Duration = Duration::from_secs(1);

/// Connections that the RNIC looks at before frames have their turn again, and the pause until the
/// next ones.
const LOOKS: usize = 32;
const PAUSE: Duration = Duration::from_millis(1);

/// Factor by which the RNIC shortens the time limit of an unfinished FPDU while another connection
/// of the same address waits for its room.
const WANTED: u32 = 8;

/// The state of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// The next place to look at, in the list of running connections.
    next: usize,
    /// Some connection was at work in this round.
    work: bool,
}

impl Rounds {
    /// Notes that the connection at the end of the list has moved to a place that this round may
    /// have passed already. Counting it as at work makes sure that another round looks at it.
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
            // Give the traffic that woke the rounds one `REST` before the first look.
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
                if tcp.has_events() {
                    // TCP gives the growth of its receive window back to the stack.
                    self.stack.notify_send(conn);
                }
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
