//! Timers: retransmission, window probe, delayed ACK, keepalive, bounded close, FIN-WAIT-2,
//! TIME-WAIT.

use super::rack::Timer;
use super::state::{Input, State};
use super::{ConnEvent, Connection, NEVER, Pending};
use heddle_base::Instant;

/// Timeouts in a row after which the owner is told (R1 of RFC 9293 section 3.8.3).
pub(super) const UNRESPONSIVE_AFTER: u32 = 3;

impl Connection {
    /// When [`handle_timeout`](Connection::handle_timeout) is to be called next.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = self.hot.rtx_at.min(self.hot.ack_at).min(self.cold.wait_at);
        (at != NEVER).then_some(at)
    }

    /// Returns true if [`poll_timeout`](Connection::poll_timeout) has come.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.hot.rtx_at <= now || self.hot.ack_at <= now || self.cold.wait_at <= now
    }

    /// Runs the timers that have expired; too early a call does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.hot.ack_at <= now {
            self.hot.ack_at = NEVER;
            self.hot.pending.set(Pending::ACK);
        }
        if self.hot.rtx_at <= now {
            self.hot.rtx_at = NEVER;
            match self.hot.state {
                State::SynSent | State::SynReceived => self.syn_timed_out(),
                s if s.sends() => match self.hot.timer {
                    Timer::Retransmit => self.data_timed_out(now),
                    Timer::Reordering => self.reordering_timed_out(now),
                    Timer::Tail => self.tail_timed_out(now),
                },
                _ => {}
            }
        }
        if self.cold.wait_at <= now {
            self.cold.wait_at = NEVER;
            match self.hot.state {
                State::TimeWait | State::Closed => {
                    let over = self.enter(Input::WaitOver);
                    if over.is_some() {
                        self.stop();
                    }
                }
                _ if self.is_bounded() => self.look_at_close(now),
                State::FinWait2 => self.give_up(),
                State::Established | State::CloseWait => self.keepalive_timed_out(now),
                // A keepalive of before the close.
                _ => {}
            }
        }
    }

    /// The peer is believed to be gone. It may be there and wait, so it is told.
    pub(super) fn give_up(&mut self) {
        self.finish(ConnEvent::TimedOut);
        self.hot.pending.set(Pending::RESET);
    }

    /// Starts the timer of the keepalive, or stops it where none are wanted. It is not put off with
    /// every segment received: when it expires, it is looked at whether there was any.
    pub(super) fn arm_keepalive(&mut self, now: Instant) {
        if self.is_bounded() {
            return;
        }
        let set = &self.cold.set;
        self.cold.wait_at = match set.keepalive_count {
            0 => NEVER,
            _ => now.max(self.hot.last_rx + set.keepalive_idle()),
        };
    }

    fn keepalive_timed_out(&mut self, now: Instant) {
        let set = self.cold.set;
        let idle_since = self.hot.last_rx;
        // What is outstanding, or waits for the window, has timers of its own.
        if self.hot.rtx_at != NEVER || self.hot.snd_una < self.hot.snd_max {
            self.cold.keepalives = 0;
            self.cold.wait_at = now + set.keepalive_idle();
            return;
        }
        if idle_since + set.keepalive_idle() > now {
            self.cold.keepalives = 0;
            self.cold.wait_at = idle_since + set.keepalive_idle();
            return;
        }
        if self.cold.keepalives >= set.keepalive_count {
            self.give_up();
            return;
        }
        self.cold.keepalives += 1;
        self.cold.counters.keepalives += 1;
        self.hot.pending.set(Pending::KEEPALIVE);
        self.cold.wait_at = now + set.keepalive_interval();
    }

    fn syn_timed_out(&mut self) {
        self.cold.counters.timeouts += 1;
        let set = &self.cold.set;
        let retries = if self.cold.active { set.syn_retries } else { set.syn_ack_retries };
        if self.cold.syn_retries >= retries {
            self.finish(ConnEvent::TimedOut);
            return;
        }
        self.cold.syn_retries += 1;
        self.cold.rto.back_off();
        self.hot.timed = None;
        self.hot.pending.set(Pending::SYN);
    }

    /// Returns true if the peer has acknowledged nothing for so long that the connection is over when
    /// the timer expires.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now - self.hot.progress_at >= self.cold.set.user_timeout()
    }

    /// Returns true if a SYN, or a SYN-ACK, is to be sent.
    pub(crate) fn wants_syn(&self) -> bool {
        self.hot.pending.any(Pending::SYN)
    }

    /// The SYN-ACK that is to be sent again stays away, as if it had been lost on its way.
    pub(crate) fn withhold_syn(&mut self, now: Instant) {
        if self.hot.pending.take(Pending::SYN) {
            self.hot.rtx_at = now + self.cold.rto.get();
        }
    }

    pub(super) fn data_timed_out(&mut self, now: Instant) {
        if self.is_late(now) {
            self.finish(ConnEvent::TimedOut);
            return;
        }
        let idle = self.hot.snd_una == self.hot.snd_max;
        if idle || self.hot.snd_wnd == 0 {
            if self.is_kept_shut(now) {
                return;
            }
            // No room, or too little. What was sent beyond the edge goes again when it opens.
            self.rewind();
            self.cold.probes = self.cold.probes.saturating_add(1);
            self.hot.pending.set(Pending::PROBE);
            return;
        }
        self.cold.counters.timeouts += 1;
        let first = self.cold.timeouts == 0;
        self.cold.timeouts += 1;
        if self.cold.timeouts == UNRESPONSIVE_AFTER {
            self.cold.counters.unresponsive += 1;
            self.cold.events.push(ConnEvent::Unresponsive);
        }
        self.hot.timed = None;
        self.cold.rto.back_off();
        if self.hot.sack_ok && self.hot.snd_next == self.hot.snd_max {
            self.lose_all(now, first);
            return;
        }
        self.hot.cc.on_timeout(self.hot.snd_una, self.hot.snd_max, first);
        self.hot.pending.clear(Pending::RETRANSMIT);
        self.rewind();
    }
}
