//! Segments that anybody may have sent: RST, late SYNs, and the limited answers to them (RFC 5961).

use super::state::{Input, State};
use super::{ConnEvent, Connection, Pending};
use core::time::Duration;
use heddle_base::Instant;

impl Connection {
    /// A RST `at` bytes from `rcv_nxt` (RFC 5961 section 3.2): payload or options do not matter.
    pub(super) fn handle_reset(&mut self, now: Instant, at: i64, window: i64) {
        if at == 0 {
            match self.hot.state {
                // The end was announced; only the wait is cut short. RFC 1337 would have us ignore
                // the reset. We follow RFC 9293 section 3.10.7.4: only the exact number is taken
                // (RFC 5961), and initial sequence numbers and timestamps keep old segments out of
                // the next connection.
                State::TimeWait => {
                    let _ = self.enter(Input::Kill);
                    self.stop();
                }
                State::SynReceived if self.cold.active => self.finish(ConnEvent::Refused),
                _ => self.finish(ConnEvent::Reset),
            }
        } else if at > 0 && at < window {
            self.challenge(now);
        } else {
            self.cold.counters.out_of_window += 1;
        }
    }

    /// A SYN after the first one (RFC 5961 section 4.2).
    pub(super) fn handle_late_syn(&mut self, now: Instant, at: i64, window: i64) {
        if self.hot.state == State::SynReceived && !self.cold.active && at >= 0 && at < window {
            // RFC 9293 section 3.10.7.4: back to LISTEN, which is to forget this attempt.
            self.finish(ConnEvent::Reset);
            return;
        }
        self.challenge(now);
    }

    /// An ACK that asks the peer to prove itself, if the limit allows (RFC 5961 section 7).
    pub(super) fn challenge(&mut self, now: Instant) {
        if self.may_answer(now) {
            self.cold.counters.challenge_acks += 1;
            self.hot.pending.set(Pending::ACK);
        }
    }

    /// Whether the limit allows an answer to a segment that anybody may have sent; it counts as
    /// given.
    pub(super) fn may_answer(&mut self, now: Instant) -> bool {
        if now - self.cold.challenge_since >= Duration::from_secs(1) {
            self.cold.challenge_since = now;
            self.cold.challenges = 0;
        }
        if self.cold.challenges >= self.cold.set.challenge_acks {
            self.cold.counters.challenge_acks_suppressed += 1;
            return false;
        }
        self.cold.challenges += 1;
        true
    }
}
