//! Timers: pace, retransmission, window probe, delayed ACK, keepalive, bounded close, FIN-WAIT-2,
//! TIME-WAIT.

use super::rack::Timer;
use super::state::{Input, State};
use super::{ConnEvent, Connection, NEVER, Pending, Timed};
use heddle_base::Instant;

/// The number of timeouts in a row after which the connection reports the peer to the owner as
/// unresponsive (R1 of RFC 9293 section 3.8.3).
pub(super) const UNRESPONSIVE_AFTER: u32 = 3;

impl Connection {
    /// Returns when the owner must next call [`handle_timeout`](Connection::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let hot = &self.hot;
        let at = hot.rtx_at.min(hot.ack_at).min(hot.wait_at).min(hot.pace_at);
        (at != NEVER).then_some(at)
    }

    /// Returns true if the instant of [`poll_timeout`](Connection::poll_timeout) has come.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let hot = &self.hot;
        hot.rtx_at <= now || hot.ack_at <= now || hot.wait_at <= now || hot.pace_at <= now
    }

    /// Runs the timers that have expired. A call that comes too early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.hot.pace_at <= now {
            self.hot.pace_at = NEVER;
        }
        if self.hot.ack_at <= now {
            self.hot.ack_at = NEVER;
            self.hot.pending.set(Pending::ACK);
            self.hot.vain_acks = self.hot.vain_acks.saturating_add(1);
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
        if self.hot.wait_at <= now {
            self.hot.wait_at = NEVER;
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
                // A keepalive timer that was set before the close.
                _ => {}
            }
        }
    }

    /// Ends the connection: the peer seems dead. The connection sends a reset, because the peer may
    /// be alive and waiting.
    pub(super) fn give_up(&mut self) {
        self.finish(ConnEvent::TimedOut);
        self.hot.pending.set(Pending::RESET);
    }

    /// Starts the keepalive timer, or stops it where the owner wants no keepalives. A received
    /// segment does not postpone the timer: when the timer expires, the connection checks whether
    /// any segment came.
    pub(super) fn arm_keepalive(&mut self, now: Instant) {
        if self.is_bounded() {
            return;
        }
        let set = &self.cold.set;
        self.hot.wait_at = match set.keepalive_count {
            0 => NEVER,
            _ => now.max(self.hot.last_rx + set.keepalive_idle()),
        };
    }

    fn keepalive_timed_out(&mut self, now: Instant) {
        let set = self.cold.set;
        let idle_since = self.hot.last_rx;
        // Bytes that are outstanding, or wait for the window, have timers of their own.
        if self.hot.rtx_at != NEVER || self.hot.snd_una < self.hot.snd_max {
            self.cold.keepalives = 0;
            self.hot.wait_at = now + set.keepalive_idle();
            return;
        }
        if idle_since + set.keepalive_idle() > now {
            self.cold.keepalives = 0;
            self.hot.wait_at = idle_since + set.keepalive_idle();
            return;
        }
        if self.cold.keepalives >= set.keepalive_count {
            self.give_up();
            return;
        }
        self.cold.keepalives += 1;
        self.cold.counters.keepalives += 1;
        self.hot.pending.set(Pending::KEEPALIVE);
        self.hot.wait_at = now + set.keepalive_interval();
    }

    fn syn_timed_out(&mut self) {
        self.cold.counters.timeouts += 1;
        let set = &self.cold.set;
        if self.cold.syn_retries >= set.syn_retries {
            self.finish(ConnEvent::TimedOut);
            return;
        }
        self.cold.syn_retries += 1;
        self.rto.back_off();
        self.hot.timed = Timed::NONE;
        self.hot.pending.set(Pending::SYN);
    }

    /// Returns true if the peer has acknowledged nothing for so long that the connection is over
    /// when the timer expires.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now - self.hot.progress_at >= self.user_timeout()
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
            // The window has no room, or too little. Bytes sent beyond the edge go again when the
            // window opens.
            self.rewind();
            self.cold.probes = self.cold.probes.saturating_add(1);
            self.hot.pending.set(Pending::PROBE);
            return;
        }
        self.cold.counters.timeouts += 1;
        let first = self.hot.timeouts == 0;
        self.hot.timeouts += 1;
        if self.hot.timeouts == UNRESPONSIVE_AFTER {
            self.cold.counters.unresponsive += 1;
            self.hot.events.push(ConnEvent::Unresponsive);
        }
        self.hot.timed = Timed::NONE;
        self.rto.back_off();
        self.suspect_black_hole(now);
        if self.hot.sack_ok && self.hot.snd_next == self.hot.snd_max {
            self.lose_all(now, first);
            return;
        }
        self.hot.cc.on_timeout(self.hot.snd_una, self.hot.snd_max, first);
        self.hot.ecn.window_reduced();
        self.hot.pending.clear(Pending::RETRANSMIT);
        self.rewind();
    }
}
