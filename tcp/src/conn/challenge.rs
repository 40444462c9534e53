//! Segments that anyone may have sent: RSTs, late SYNs, and our limited answers to them (RFC 5961).

use super::state::{Input, State};
use super::{ConnEvent, Connection, Pending};
use core::time::Duration;
use heddle_base::Instant;

impl Connection {
    /// Handles a RST `at` bytes from `rcv_nxt` (RFC 5961 section 3.2). Its payload and options do
    /// not matter.
    pub(super) fn handle_reset(&mut self, now: Instant, at: i64, window: i64) {
        if at == 0 {
            match self.hot.state {
                // The connection has announced the end; the reset only cuts the wait short. RFC
                // 1337 would have us ignore the reset. We follow RFC 9293 section 3.10.7.4: we take
                // only the exact number (RFC 5961), and initial sequence numbers and timestamps
                // keep old segments out of the next connection.
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

    /// Handles a SYN after the first SYN (RFC 5961 section 4.2).
    pub(super) fn handle_late_syn(&mut self, now: Instant, at: i64, window: i64) {
        if self.hot.state == State::SynReceived && !self.cold.active && at >= 0 && at < window {
            // RFC 9293 section 3.10.7.4: back to LISTEN, which here means to drop this attempt.
            self.finish(ConnEvent::Reset);
            return;
        }
        self.challenge(now);
    }

    /// Sends an ACK for a SYN-ACK that came again, and reports its codepoint, if the limit allows.
    pub(super) fn answer_late_syn_ack(&mut self, now: Instant) {
        if self.may_answer(now) {
            self.cold.counters.challenge_acks += 1;
            self.hot.pending.set(Pending::ECHO);
        } else {
            self.forget_syn_ack();
        }
    }

    /// Sends an ACK that asks the peer to prove itself, if the limit allows (RFC 5961 section 7).
    pub(super) fn challenge(&mut self, now: Instant) {
        if self.may_answer(now) {
            self.cold.counters.challenge_acks += 1;
            self.hot.pending.set(Pending::ACK);
        }
    }

    /// Returns true if the limit allows an answer to a segment that anyone may have sent. The
    /// answer then counts as given.
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
