//! The tail loss probe (RFC 8985 section 7), and the single timer that a connection with SACK uses.
//! The timer serves reordering while a hole is too young to be lost, the probe while nothing is
//! wrong, and retransmission otherwise.
//!
//! **Timeouts and the peer's delayed ACK.** The minimum of the retransmission timeout is a few
//! milliseconds, less than many peers hold an ACK back. This minimum does not lead to spurious
//! timeouts, because the probe comes first, and because, where so little is outstanding that the
//! peer may hold its ACK back, both timers additionally wait for [`AckDelay`].
//!
//! No peer announces this delay. A peer like ours holds an ACK back for half a millisecond, Linux
//! for 40 ms and sometimes 200. If the sender assumes the first, it sends each lone segment to a
//! quiet Linux host twice. If the sender assumes the second, a lost lone segment stalls a fabric
//! for an age. The connection therefore learns the delay:
//!
//! - A connection begins with [`ConnConfig::peer_ack_delay`](crate::ConnConfig::peer_ack_delay), by
//!   default enough for Linux: a short connection sends nothing needlessly.
//! - After the peer has acknowledged 32 lone segments in a row without a probe, the connection
//!   allows twice the slowest of these ACKs from then on. (32, because Linux acknowledges the first
//!   16 segments of a connection at once, whatever it does later.) In an exchange of small messages
//!   the learning takes as many round trips.
//! - A probe that the peer reports as needless doubles the allowed delay. The ACK may have been
//!   lost. But when three such probes come in a row, the peer does hold its ACKs back: the allowed
//!   delay then returns to the initial value, and the connection needs twice as many lone segments
//!   before it tries less again.
//!
//! Where more is outstanding than the peer may leave unacknowledged, none of these rules applies,
//! and the probe goes after two round trips.

use super::rack::Timer;
use super::ranges::Range;
use super::recovery::Arrived;
use super::{Connection, NEVER, NO_FIN, Pending};
use crate::{Segment, SendQueue, TxSegment};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The longest delayed ACK that the connection allows a peer, and the shortest, in microseconds.
const MAX_ACK_DELAY: u32 = 200_000;
const MIN_ACK_DELAY: u32 = 1_000;
/// The number of lone segments from which the connection learns the delay, at first and at most.
const LONE_SEGMENTS: u16 = 32;
const MAX_LONE_SEGMENTS: u16 = 1024;
/// The number of needless probes in a row that lost ACKs do not explain.
const NEEDLESS_IN_A_ROW: u8 = 3;

/// An outstanding tail loss probe (RFC 8985 section 7.4.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq.
    end: StreamPos,
    /// TLP.is_retrans.
    retransmission: bool,
}

/// TLP.max_ack_delay of RFC 8985: how long the peer may hold back the ACK of a lone segment, as far
/// as the connection has learned. In microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckDelay {
    allowed: u32,
    /// The allowed delay while the connection has learned nothing.
    initial: u32,
    /// The longest delay in the current run of lone segments. `run` counts these segments.
    slowest: u32,
    run: u16,
    /// The number of lone segments that make a run.
    needed: u16,
    /// Needless probes since the peer last acknowledged a lone segment without a probe.
    needless: u8,
}

impl AckDelay {
    pub(super) fn new(initial: Duration) -> AckDelay {
        let initial = micros(initial).min(MAX_ACK_DELAY);
        AckDelay {
            allowed: initial,
            initial,
            slowest: 0,
            run: 0,
            needed: LONE_SEGMENTS,
            needless: 0,
        }
    }

    pub(super) fn get(self) -> Duration {
        Duration::from_micros(self.allowed.into())
    }

    /// Records that the peer acknowledged a lone segment this long after the least round trip.
    fn acked(&mut self, delay_us: u64) {
        self.slowest = self.slowest.max(u32::try_from(delay_us).unwrap_or(u32::MAX));
        self.run += 1;
        self.needless = 0;
        if self.run >= self.needed {
            let least = MIN_ACK_DELAY.min(self.initial);
            self.allowed = self.slowest.saturating_mul(2).clamp(least, MAX_ACK_DELAY);
            (self.slowest, self.run) = (0, 0);
        }
    }

    /// Records that a probe drew out an ACK that the peer had only held back.
    fn needless_probe(&mut self) {
        self.allowed = self.allowed.saturating_mul(2).min(MAX_ACK_DELAY);
        self.needless = self.needless.saturating_add(1);
        if self.needless == NEEDLESS_IN_A_ROW {
            self.allowed = self.allowed.max(self.initial);
            self.needed = (self.needed * 2).min(MAX_LONE_SEGMENTS);
        }
        (self.slowest, self.run) = (0, 0);
    }
}

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

impl Connection {
    /// Records that the peer acknowledged, after `rtt` ns, a segment whose ACK it might have held
    /// back.
    #[inline]
    pub(super) fn note_lone_ack(&mut self, rtt: u64) {
        let delay = rtt.saturating_sub(self.rto.min_rtt_nanos());
        self.ack_delay.acked(delay / 1000);
    }

    /// Checks whether an acknowledgment ends the outstanding probe (RFC 8985 section 7.4.2).
    pub(super) fn check_tail_probe(
        &mut self,
        seg: &Segment,
        advance: i64,
        duplicate: Option<Range>,
    ) {
        let una = self.hot.snd_una;
        let Some(tail) = self.cold.rack.tail.filter(|t| una >= t.end) else { return };
        let sacks = self.reports();
        let rack = &mut self.cold.rack;
        if !tail.retransmission {
            // A probe of new data arrived. If any segment was lost, RACK knows by now.
        } else if duplicate.is_some_and(|r| r.end == tail.end) {
            // The peer had only held the ACK back.
            self.ack_delay.needless_probe();
        } else if una > tail.end {
            // The probe repaired a loss.
            if rack.phase == super::rack::Phase::Open {
                self.hot.cc.reduce_once(self.hot.snd_max);
                self.hot.ecn.window_reduced();
            }
        } else if advance > 0 || seg.len > 0 || sacks {
            // This ACK is not yet the duplicate ACK by which a peer without D-SACK reports that it
            // has both copies.
            return;
        } else {
            self.ack_delay.needless_probe();
        }
        self.cold.rack.tail = None;
    }

    /// Sets the timer while bytes are outstanding: `due` is when a hole may count as lost.
    pub(super) fn arm(&mut self, now: Instant, due: Option<Instant>, progress: bool) {
        if self.is_late(now) && self.hot.rtx_at != NEVER {
            // A peer that changes its reports and windows without end must not keep the timer from
            // expiring.
            return;
        }
        if self.hot.snd_wnd == 0 {
            // Only probes may be sent, and an answer to a probe is no reason to send the next probe
            // earlier.
            if self.hot.timer != Timer::Retransmit || self.hot.rtx_at == NEVER {
                self.arm_window_probe(now);
            }
            return;
        }
        if progress || self.cold.rack.rto_at == NEVER {
            self.cold.rack.rto_at = now + self.timeout();
        }
        let rto_at = self.cold.rack.rto_at;
        if let Some(due) = due {
            self.hot.timer = Timer::Reordering;
            self.hot.rtx_at = due.min(rto_at);
        } else if self.hot.disorder {
            self.hot.timer = Timer::Retransmit;
            self.hot.rtx_at = rto_at;
        } else if progress || self.hot.timer != Timer::Tail || self.hot.rtx_at == NEVER {
            self.hot.timer = Timer::Tail;
            self.hot.rtx_at = now + self.rto.tail();
        }
    }

    /// Sets the timer after the connection sent a segment while no timer was running.
    #[inline]
    pub(super) fn arm_after_sending(&mut self, now: Instant) {
        if self.hot.sack_ok && !self.hot.disorder {
            self.hot.timer = Timer::Tail;
            self.hot.rtx_at = now + self.rto.tail();
        } else {
            self.hot.timer = Timer::Retransmit;
            self.hot.rtx_at = now + self.timeout();
            self.cold.rack.rto_at = self.hot.rtx_at;
        }
    }

    /// Returns the retransmission timeout. Where the peer may hold back its ACK, the timeout is at
    /// least the time that the delayed ACK takes to arrive.
    fn timeout(&self) -> Duration {
        let rto = self.rto.get();
        if self.may_be_delayed() { rto.max(self.rto.tail() + self.ack_delay.get()) } else { rto }
    }

    /// Returns true if so little is outstanding that the peer need not acknowledge it at once (RFC
    /// 5681 section 4.2): one segment, or several that do not make two full segments.
    pub(super) fn may_be_delayed(&self) -> bool {
        self.is_lone(self.hot.snd_max - self.hot.snd_una)
    }

    /// Returns true if the peer need not acknowledge `flight` outstanding bytes at once, as in
    /// [`may_be_delayed`](Connection::may_be_delayed).
    #[inline]
    pub(super) fn is_lone(&self, flight: u64) -> bool {
        self.hot.sack_ok && flight < 2 * u64::from(self.hot.emss)
    }

    /// Handles expiry of the reordering timer: a hole may have become old enough to be lost.
    pub(super) fn reordering_timed_out(&mut self, now: Instant) {
        if self.hot.snd_una == self.hot.snd_max {
            return;
        }
        if self.cold.rack.rto_at <= now {
            self.data_timed_out(now);
            return;
        }
        let flight = (self.hot.snd_next - self.hot.snd_una).max(1);
        let due = self.recover(now, Arrived::default(), flight);
        self.arm(now, due, false);
    }

    /// Handles expiry of the probe timer: the peer acknowledged nothing for two round trips (RFC
    /// 8985 section 7.3).
    pub(super) fn tail_timed_out(&mut self, now: Instant) {
        let (una, max) = (self.hot.snd_una, self.hot.snd_max);
        if una == max {
            return;
        }
        if self.hot.snd_wnd == 0 {
            self.arm_window_probe(now);
            return;
        }
        // Sending a segment does not postpone the timer, and the timer was set without knowing how
        // much would be outstanding. Compute the due time again.
        let mut timeout = self.rto.tail();
        if self.may_be_delayed() {
            timeout += self.ack_delay.get();
        }
        let due = self.hot.last_tx.max(self.hot.progress_at) + timeout;
        if due > now {
            self.hot.rtx_at = due;
            return;
        }
        self.hot.pending.set(Pending::TAIL);
        self.hot.timer = Timer::Retransmit;
        self.hot.rtx_at = now + self.timeout();
        self.cold.rack.rto_at = self.hot.rtx_at;
    }

    /// Sends a tail loss probe: a new segment, even beyond the congestion window, or else the last
    /// segment again.
    #[cold]
    pub(super) fn tail_probe<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
        end: StreamPos,
    ) -> Option<TxSegment> {
        let (una, max) = (self.hot.snd_una, self.hot.snd_max);
        if una == max || self.hot.disorder {
            return None;
        }
        let next = self.hot.snd_next;
        let edge = una + u64::from(self.hot.snd_wnd);
        let new = if next < end { self.cut(q, next, end, self.hot.emss) } else { 0 };
        let retransmission = new == 0 || next + u64::from(new) > edge || next < max;
        let tx = if retransmission {
            let start = self.hot.last_start.max(una);
            // A window that shrank may not have room for the last segment.
            if start >= edge {
                return None;
            }
            let left = u32::try_from(max.min(end).min(edge) - start).unwrap_or(u32::MAX);
            let len = if left > 0 { self.cut(q, start, end, left.min(self.hot.emss)) } else { 0 };
            let fin = self.hot.snd_fin != NO_FIN
                && max.min(edge) > self.hot.snd_fin
                && start + u64::from(len) == self.hot.snd_fin;
            let tx = self.emit(now, start, len, end, fin);
            self.hot.snd_next = next;
            self.cold.board.on_tail_probe(una, start, now);
            self.hot.burst_at = now;
            tx
        } else {
            self.emit(now, next, new, end, false)
        };
        self.cold.counters.tail_probes += 1;
        self.cold.rack.tail = Some(TailProbe { end: self.hot.snd_max, retransmission });
        self.hot.disorder = true;
        Some(tx)
    }
}
