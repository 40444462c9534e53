//! The effect of an acknowledgment on the sending side.

use super::rack::Timer;
use super::sequence::shifted;
use super::state::{Input, State};
use super::{ConnEvent, Connection, NEVER, NO_FIN, Pending, Timed};
use crate::{Flags, Segment, Timestamps};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

impl Connection {
    /// Takes the ACK and window of an acceptable segment. `advance` is how far its ACK lies beyond
    /// `snd_una`, at most up to `snd_max`. Returns the position up to which our stream is newly
    /// acknowledged.
    pub(super) fn take_ack(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
    ) -> Option<StreamPos> {
        if self.hot.sack_ok {
            return self.take_selective_ack(now, seg, advance);
        }
        if advance > 0 {
            let acked = self.advance_una(now, seg.timestamps, shifted(self.hot.snd_una, advance));
            self.update_window(now, seg, true);
            return acked;
        }
        let outstanding = self.hot.snd_una < self.hot.snd_max;
        // RFC 5681 section 2, the definition of a duplicate ACK.
        if advance == 0
            && outstanding
            && seg.len == 0
            && !seg.flags.has(Flags::FIN)
            && self.scaled_window(seg) == self.hot.snd_wnd
            && self.hot.snd_wnd != 0
        {
            self.cold.counters.dup_acks += 1;
            if self.hot.cc.on_dup_ack(self.hot.snd_una, self.hot.snd_max) {
                self.cold.counters.fast_retransmits += 1;
                self.hot.ecn.window_reduced();
                self.hot.pending.set(Pending::RETRANSMIT);
            }
        } else if advance == 0 {
            self.update_window(now, seg, false);
        }
        None
    }

    /// Advances `snd_una` to `una`: the peer acknowledges everything before `una`, and more than
    /// before.
    #[inline(always)]
    pub(super) fn advance_una(
        &mut self,
        now: Instant,
        echo: Option<Timestamps>,
        una: StreamPos,
    ) -> Option<StreamPos> {
        let before = self.hot.snd_una;
        let flight = self.hot.snd_max - before;
        self.hot.snd_una = una;
        self.hot.snd_next = self.hot.snd_next.max(una);
        self.hot.progress_at = now;
        self.hot.timeouts = 0;
        self.measure(now, echo, una, flight);
        self.hot.pending.clear(Pending(Pending::RETRANSMIT.0 | Pending::TAIL.0));
        if self.hot.cc.may_watch() {
            self.watch_slow_start(now, echo);
        }
        if self.hot.cc.on_ack(now, una, self.hot.snd_max, una - before, flight, &self.rto) {
            self.hot.pending.set(Pending::RETRANSMIT);
        }
        if una == self.hot.snd_max {
            self.hot.rtx_at = NEVER;
        } else {
            self.arm_after_sending(now);
        }
        self.acked_from(now, before)
    }

    /// Looks whether round trips have become so much longer that the first slow start should end.
    #[cold]
    fn watch_slow_start(&mut self, now: Instant, echo: Option<Timestamps>) {
        let rtt = self.echoed_rtt_of_first(now, echo);
        self.hot.cc.watch(self.hot.snd_una, self.hot.snd_max, rtt, &self.rto);
    }

    /// Returns the newly acknowledged position of the stream after `snd_una` moved on from
    /// `before`.
    #[inline]
    pub(super) fn acked_from(&mut self, now: Instant, before: StreamPos) -> Option<StreamPos> {
        let una = self.hot.snd_una;
        // Only bytes of the stream count, not the FIN.
        let acked = (before < self.hot.snd_fin).then(|| una.min(self.hot.snd_fin));
        if una > self.hot.snd_fin && self.hot.snd_fin != NO_FIN {
            self.fin_acked(now);
        }
        acked.filter(|&a| a > before)
    }

    /// Takes one round-trip sample per window, in nanoseconds, from a segment that was sent once.
    /// While there is no such segment, because data is being sent again, the echoed timestamp
    /// serves (RFC 7323 section 4.1).
    fn measure(&mut self, now: Instant, echo: Option<Timestamps>, una: StreamPos, flight: u64) {
        match self.hot.timed.get() {
            Some((end, at)) => {
                if una >= end {
                    self.hot.timed = Timed::NONE;
                    let rtt = now.nanos_since(at);
                    self.rto.sample_nanos(rtt);
                    self.hot.cc.note_rtt(rtt);
                    if self.is_lone(flight) {
                        self.note_lone_ack(rtt);
                    }
                }
            }
            // With SACK the connection always has a segment that was sent only once, or else a
            // backoff to end. Neither case reaches this point.
            None if self.hot.sack_ok => {}
            None => {
                if let Some(rtt) = self.echoed_rtt(now, echo) {
                    self.rto.sample(rtt);
                }
            }
        }
    }

    /// Returns the round trip that the echoed timestamp shows, while nothing was sent twice.
    fn echoed_rtt_of_first(&self, now: Instant, echo: Option<Timestamps>) -> Option<Duration> {
        let ts = echo.filter(|_| self.hot.ts_ok)?;
        let ms = self.ts_clock(now).wrapping_sub(ts.ecr);
        Some(Duration::from_millis(u64::from(ms)))
    }

    /// Returns the round trip of the last retransmission, by the timestamp that the peer echoes.
    ///
    /// An older echo may mean a late ACK of an earlier transmission. But it may also mean that the
    /// ACK was lost and that the peer, which takes no timestamps from duplicates, answers the later
    /// transmissions with the old value. A sample from such an echo would measure our own timeouts.
    pub(super) fn echoed_rtt(&self, now: Instant, echo: Option<Timestamps>) -> Option<Duration> {
        let ts = echo.filter(|_| self.hot.ts_ok)?;
        let ms = self.ts_clock(now).wrapping_sub(ts.ecr);
        let most = self.ts_clock(now).wrapping_sub(self.cold.retransmit_ts);
        (ms <= most).then(|| Duration::from_millis(u64::from(ms)))
    }

    fn fin_acked(&mut self, now: Instant) {
        // No byte is left to probe or to send again.
        self.hot.pending.clear(Pending::DATA);
        match self.enter(Input::FinAcked) {
            Some(State::TimeWait) => self.start_time_wait(now),
            Some(State::FinWait2) if !self.is_bounded() => {
                self.hot.wait_at = now + self.cold.set.fin_wait_2();
            }
            Some(State::Closed) => self.finish(ConnEvent::Closed),
            _ => {}
        }
    }

    /// Starts TIME-WAIT: both directions are done.
    pub(super) fn start_time_wait(&mut self, now: Instant) {
        self.hot.rtx_at = NEVER;
        self.hot.wait_at = now + self.cold.set.time_wait();
        self.hot.events.push(ConnEvent::Closed);
    }

    fn scaled_window(&self, seg: &Segment) -> u32 {
        u32::from(seg.window) << self.hot.snd_shift
    }

    /// Takes the window of a segment that is not older than the segment that set the current window
    /// (RFC 9293 section 3.10.7.4). A segment that acknowledges more is never older.
    #[inline]
    pub(super) fn update_window(&mut self, now: Instant, seg: &Segment, newer: bool) {
        let hot = &mut self.hot;
        let seq = seg.seq.distance(hot.snd_wl1);
        if !(newer || seq > 0 || (seq == 0 && !seg.ack.before(hot.snd_wl2))) {
            return;
        }
        hot.snd_wl1 = seg.seq;
        hot.snd_wl2 = seg.ack;
        let old = hot.snd_wnd;
        hot.snd_wnd = u32::from(seg.window) << hot.snd_shift;
        hot.max_wnd = hot.max_wnd.max(hot.snd_wnd);
        if hot.snd_wnd == 0 {
            // An answer to a probe keeps the connection alive (RFC 9293 section 3.8.6.1), for as
            // long as `progress` allows. A segment that only shuts the window does not.
            if self.cold.probes > 0 {
                hot.progress_at = now;
            }
        } else if hot.snd_wnd > old && (old < hot.emss || hot.snd_una == hot.snd_max) {
            self.window_opened(now);
        }
    }

    /// Handles a window that was shut, or too small for any segment, and is larger now.
    ///
    /// A window that opens and shuts without end must not keep the timer from expiring. An opening
    /// too small to use therefore leaves the timer alone. Any opening does once the peer has
    /// acknowledged nothing for too long.
    #[cold]
    fn window_opened(&mut self, now: Instant) {
        let outstanding = self.hot.snd_una < self.hot.snd_max;
        if !self.window_is_open() || outstanding && self.is_late(now) {
            return;
        }
        self.cold.probes = 0;
        self.hot.pending.clear(Pending::PROBE);
        if self.hot.snd_una == self.hot.snd_max {
            self.hot.rtx_at = NEVER;
        } else {
            self.arm_after_sending(now);
        }
    }

    /// Starts the timer of the next window probe.
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        self.hot.timer = Timer::Retransmit;
        let next = now + self.rto.probe_interval(self.cold.probes);
        self.hot.rtx_at = next.min(self.shut_until().max(now));
    }
}
