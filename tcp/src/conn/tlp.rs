//! The tail loss probe (RFC 8985 section 7), and the one timer with SACK: that of reordering while
//! a hole is too young to be lost, that of the probe while nothing is wrong, that of retransmission
//! otherwise.
//!
//! **Timeouts and the peer's delayed ACK.** The minimum of the retransmission timeout is a few
//! milliseconds, less than many peers hold an ACK back. That does not lead to spurious timeouts,
//! because the probe comes first, and because, where so little is outstanding that the peer may
//! hold its ACK back, both wait for [`AckDelay`] besides.
//!
//! What that delay is, nobody announces. A peer like ours holds an ACK back for half a millisecond,
//! Linux for 40 ms and sometimes 200. If the first is assumed, each lone segment to a quiet Linux
//! host is sent twice; if the second, a lone segment that is lost stalls a fabric for an age. So it
//! is learned:
//!
//! - A connection begins with [`ConnConfig::peer_ack_delay`](crate::ConnConfig::peer_ack_delay), by
//!   default enough for Linux: a short connection sends nothing in vain.
//! - Once 32 lone segments in a row were acknowledged without a probe, twice the slowest of them is
//!   allowed for from then on. (32, since Linux acknowledges the first 16 of a connection at once,
//!   whatever it does later.) In an exchange of small messages that takes as many round trips.
//! - A probe that the peer reports as needless doubles what is allowed for. The ACK may have been
//!   lost; but when three such probes come in a row, the peer does hold its ACKs back: then it goes
//!   back to the beginning, and it takes twice as many lone segments to try less again.
//!
//! Where more is outstanding than the peer may leave unacknowledged, none of this counts, and the
//! probe goes after two round trips.

use super::rack::Timer;
use super::ranges::Range;
use super::recovery::Arrived;
use super::{Connection, NEVER, NO_FIN, Pending};
use crate::{Segment, SendQueue, TxSegment};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The longest a peer's delayed ACK is allowed for, and the least, in microseconds.
const MAX_ACK_DELAY: u32 = 200_000;
const MIN_ACK_DELAY: u32 = 1_000;
/// Lone segments from which the delay is learned, at first and at most.
const LONE_SEGMENTS: u16 = 32;
const MAX_LONE_SEGMENTS: u16 = 1024;
/// Needless probes in a row that are no lost ACKs.
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
/// as has been learned. In microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckDelay {
    allowed: u32,
    /// What is allowed for while nothing is known.
    initial: u32,
    /// The longest of this run of lone segments, and how many there were.
    slowest: u32,
    run: u16,
    /// How many make a run.
    needed: u16,
    /// Needless probes since a lone segment was last acknowledged without.
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

    /// A lone segment was acknowledged `delay` after the least round trip.
    fn acked(&mut self, delay: Duration) {
        self.slowest = self.slowest.max(micros(delay));
        self.run += 1;
        self.needless = 0;
        if self.run >= self.needed {
            let least = MIN_ACK_DELAY.min(self.initial);
            self.allowed = self.slowest.saturating_mul(2).clamp(least, MAX_ACK_DELAY);
            (self.slowest, self.run) = (0, 0);
        }
    }

    /// A probe drew out an ACK that was only held back.
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
    /// A segment the peer might have held its ACK back for was acknowledged after `rtt`.
    #[inline]
    pub(super) fn note_lone_ack(&mut self, rtt: Duration) {
        let delay = rtt.saturating_sub(self.cold.rto.min_rtt());
        self.cold.rack.ack_delay.acked(delay);
    }

    /// RFC 8985 section 7.4.2.
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
            // A probe of new data arrived; if anything was lost, RACK knows by now.
        } else if duplicate.is_some_and(|r| r.end == tail.end) {
            // The ACK was only held back.
            rack.ack_delay.needless_probe();
        } else if una > tail.end {
            // The probe repaired a loss.
            if rack.phase == super::rack::Phase::Open {
                self.hot.cc.reduce_once();
            }
        } else if advance > 0 || seg.len > 0 || sacks {
            // Not yet the duplicate ACK by which a peer without D-SACK tells that it has both.
            return;
        } else {
            rack.ack_delay.needless_probe();
        }
        self.cold.rack.tail = None;
    }

    /// Sets the timer while something is outstanding: `due` is when a hole may be lost.
    pub(super) fn arm(&mut self, now: Instant, due: Option<Instant>, progress: bool) {
        if self.is_late(now) && self.hot.rtx_at != NEVER {
            // Reports and windows that change without end do not keep the timer from expiring.
            return;
        }
        if self.hot.snd_wnd == 0 {
            // Only probes may be sent, and an answer to one is no reason to send the next earlier.
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
            self.hot.rtx_at = now + self.cold.rto.tail();
        }
    }

    /// Sets the timer when something was sent and none runs.
    #[inline]
    pub(super) fn arm_after_sending(&mut self, now: Instant) {
        if self.hot.sack_ok && !self.hot.disorder {
            self.hot.timer = Timer::Tail;
            self.hot.rtx_at = now + self.cold.rto.tail();
        } else {
            self.hot.timer = Timer::Retransmit;
            self.hot.rtx_at = now + self.timeout();
            self.cold.rack.rto_at = self.hot.rtx_at;
        }
    }

    /// The retransmission timeout; where the peer may hold back its ACK, not less than it takes to
    /// come out.
    fn timeout(&self) -> Duration {
        let rto = self.cold.rto.get();
        if self.may_be_delayed() {
            rto.max(self.cold.rto.tail() + self.cold.rack.ack_delay.get())
        } else {
            rto
        }
    }

    /// Whether so little is outstanding that the peer need not acknowledge it at once (RFC 5681
    /// section 4.2): one segment, or several that do not make two full ones.
    pub(super) fn may_be_delayed(&self) -> bool {
        self.is_lone(self.hot.snd_max - self.hot.snd_una)
    }

    /// As [`may_be_delayed`](Connection::may_be_delayed), of `flight` bytes.
    #[inline]
    pub(super) fn is_lone(&self, flight: u64) -> bool {
        self.hot.sack_ok && flight < 2 * u64::from(self.hot.emss)
    }

    /// A hole may have become old enough to be lost.
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

    /// Nothing was acknowledged for two round trips (RFC 8985 section 7.3).
    pub(super) fn tail_timed_out(&mut self, now: Instant) {
        let (una, max) = (self.hot.snd_una, self.hot.snd_max);
        if una == max {
            return;
        }
        if self.hot.snd_wnd == 0 {
            self.arm_window_probe(now);
            return;
        }
        // The timer is not put off with every segment sent, nor does it know how much would be
        // outstanding.
        let mut timeout = self.cold.rto.tail();
        if self.may_be_delayed() {
            timeout += self.cold.rack.ack_delay.get();
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

    /// A tail loss probe: a new segment, even beyond the congestion window, or else the last one
    /// again.
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
            // A window that shrank may not have room for it.
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
