//! Congestion control: the window, its recovery, and the algorithms that decide how it grows and how
//! far it falls.
//!
//! The part that all algorithms share is Reno's (RFC 5681, RFC 6928): slow start, limited transmit,
//! recovery. Duplicate ACKs detect and repair loss (NewReno, RFC 6582, RFC 3042). With SACK, `rack`
//! does so, and the window follows proportional rate reduction (RFC 6937). The algorithms are in
//! modules of their own and are asked only where they differ from Reno:
//!
//! | algorithm | grows in congestion avoidance | falls at a loss to | ends slow start early |
//! |---|---|---|---|
//! | NewReno | by a segment per round trip | half of the outstanding bytes | |
//! | [`dctcp`] | as NewReno | half of them; at marks, in proportion to the marked bytes | |
//! | [`cubic`] | by a cubic function of time | 0.7 of them | by round trips ([`hystart`]) |
//!
//! The connection reports acknowledgments, timeouts and sends to this module, in bytes and stream
//! positions, and obeys two answers: how many bytes may be outstanding, and whether to send the
//! oldest unacknowledged segment again. This module knows no segments and no timers.
//!
//! A connection that has lost nothing has the few fields of [`Window`] alone. The first loss, or the
//! first long round trip in slow start, allocates the rest ([`More`]).

mod cubic;
mod dctcp;
mod hystart;
mod pacer;

use core::mem::offset_of;
use core::time::Duration;

use super::config::Congestion;
use super::rto::{LONG, Rto};
use cubic::Cubic;
use dctcp::Dctcp;
use heddle_base::{Instant, StreamPos};
use hystart::SlowStart;
use pacer::{Pace, Pacer};

/// A window this large is never the bottleneck: the largest window TCP can advertise.
const CWND_MAX: u32 = 1 << 30;
/// Duplicate ACKs that mean a loss.
const DUP_THRESHOLD: u32 = 3;
/// Segments by which one acknowledgment may open the window in slow start: L of RFC 3465.
///
/// The RFC recommends 2, for receivers that acknowledge every other segment. Receivers that handle
/// segments in bursts, as ours does, acknowledge once for up to 64 segments. With a limit of two
/// per ACK the window would need tens of round trips where doubling needs six. A limit of 64 keeps
/// the window doubling, and bounds the burst that a stretch of lost ACKs can release at once.
const ABC_LIMIT: u32 = 64;

/// The congestion window. Windows are in bytes. The first fields are those of a connection without
/// loss.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Window {
    /// Duplicate ACKs in a row. The connection does not count them while they do not prove a loss.
    dup_acks: u32,
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
    /// Bytes acknowledged since cwnd last grew in congestion avoidance (RFC 5681 3.1).
    acked: u32,
    /// Bytes sent beyond cwnd by limited transmit since the first of the duplicate ACKs.
    limited: u32,
    /// The position that the peer must acknowledge before recovery ends, and before duplicate ACKs
    /// count again.
    recover: StreamPos,
    more: Option<Box<More>>,
    algorithm: Congestion,
    recovering: bool,
    /// True if the next acknowledgment needs attention: with DCTCP each, otherwise one that echoes a
    /// mark of congestion.
    attention: bool,
    /// Bytes that were outstanding when new data were sent last. Where a burst of acknowledgments
    /// arrives before the next data go, each of them answers a part of these bytes.
    used: u32,
}

/// The part of the state that a connection needs from its first loss, or its first long round trip,
/// on.
#[derive(Clone, Debug)]
struct More {
    law: Law,
    prr: Reduction,
    /// The values before the last reduction, to be restored if the reduction was a mistake.
    saved: Option<Saved>,
    /// The watch over round trips in the first slow start.
    slow_start: Option<SlowStart>,
    pacer: Pacer,
    /// The bytes that the acknowledgment that the connection is handling reports as marked; 0 if it
    /// reports no mark of congestion.
    echo: u64,
    /// The window has shrunk because of a mark, and the connection does not know yet.
    marked: bool,
    /// Echoes of marks count again when the peer acknowledges bytes beyond this position: the
    /// window shrinks once for a window of data (RFC 3168 section 6.1.2).
    reduced: StreamPos,
}

/// The state of the algorithm.
#[derive(Clone, Copy, Debug)]
enum Law {
    NewReno,
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// The state of proportional rate reduction, for a recovery with SACK: prr_delivered, prr_out and
/// RecoverFS of RFC 6937.
#[derive(Clone, Copy, Debug, Default)]
struct Reduction {
    delivered: u64,
    out: u64,
    flight: u64,
}

#[derive(Clone, Copy, Debug)]
struct Saved {
    cwnd: u32,
    ssthresh: u32,
    law: Law,
    reduced: StreamPos,
}

/// A reason to reduce the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Loss,
    Timeout,
    /// The echo of a mark of congestion.
    Mark,
}

impl Window {
    /// Bytes, from the first on, that a segment without an acknowledgment touches.
    pub(super) const OPEN: usize = offset_of!(Window, ssthresh);

    pub(super) fn new(mss: u32, algorithm: Congestion) -> Window {
        let mss = mss.max(1);
        Window {
            cwnd: initial_window(mss),
            ssthresh: u32::MAX,
            mss,
            acked: 0,
            dup_acks: 0,
            limited: 0,
            recovering: false,
            attention: false,
            used: 0,
            algorithm,
            recover: StreamPos::START,
            more: None,
        }
    }

    /// Returns the same window at its start, for segments of `mss` bytes.
    pub(super) fn restarted(&self, mss: u32) -> Window {
        Window::new(mss, self.algorithm)
    }

    pub(super) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    pub(super) fn algorithm(&self) -> Congestion {
        self.algorithm
    }

    pub(super) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Returns true if neither a loss nor a duplicate ACK needs attention: the fast path's
    /// condition.
    pub(super) fn is_open(&self) -> bool {
        self.dup_acks == 0
    }

    /// Returns the bytes that may be outstanding when the next byte to send is new: cwnd, and one
    /// segment more for each of the first and the second duplicate ACK (RFC 3042).
    pub(super) fn allowance(&self) -> u32 {
        if self.dup_acks == 0 || self.recovering {
            self.cwnd
        } else {
            self.cwnd.saturating_add(self.dup_acks.min(2).saturating_mul(self.mss))
        }
    }

    /// Sets a smaller segment size. The window shrinks in proportion, so that as many segments are
    /// outstanding (RFC 5681 3.1).
    pub(super) fn set_mss(&mut self, mss: u32) {
        let mss = mss.max(1);
        let scaled = u64::from(self.cwnd) * u64::from(mss) / u64::from(self.mss);
        self.cwnd = clamp(scaled).clamp(mss, CWND_MAX);
        let before = self.mss;
        if let Some(Law::Cubic(c)) = self.law_mut() {
            c.set_mss(before, mss);
        }
        self.mss = mss;
    }

    /// Sets a larger segment size. The window stays (RFC 4821 section 4).
    pub(super) fn raise_mss(&mut self, mss: u32) {
        self.mss = mss;
        if let Some(Law::Cubic(c)) = self.law_mut() {
            c.end_epoch();
        }
    }

    /// Records that the handshake lost a SYN: the connection begins with one segment (RFC 5681
    /// 3.1).
    pub(super) fn syn_lost(&mut self) {
        self.cwnd = self.mss;
    }

    /// Records that `len` bytes of new data were sent; `flight` bytes are outstanding now.
    pub(super) fn on_sent(&mut self, len: u32, flight: u64) {
        self.used = clamp(flight);
        if self.recovering {
            self.on_retransmit(len);
        } else if self.dup_acks != 0 && flight > u64::from(self.cwnd) {
            self.limited = self.limited.saturating_add(len);
        }
    }

    /// Records that the peer acknowledged the oldest `acked` of `flight` outstanding bytes, up to
    /// `una`; all bytes before `max` are sent. Returns true if the segment at `una` is lost too and
    /// the connection must send it again (a partial acknowledgment).
    #[inline(always)]
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        una: StreamPos,
        max: StreamPos,
        acked: u64,
        flight: u64,
        rto: &Rto,
    ) -> bool {
        if self.recovering {
            return self.on_recovery_ack(una, acked, flight);
        }
        self.dup_acks = 0;
        self.limited = 0;
        if self.attention && self.attend(una, max, acked, flight) {
            return false;
        }
        // A window that the sender did not use says nothing about the path (RFC 7661 in spirit).
        let used = flight.max(self.used.into());
        if used.saturating_mul(2) < u64::from(self.cwnd) {
            if self.more.is_some() {
                self.pause(now);
            }
            return false;
        }
        self.widen(now, una, acked, rto);
        false
    }

    /// Takes an acknowledgment in a recovery without SACK. Returns true if it is a partial one.
    #[cold]
    fn on_recovery_ack(&mut self, una: StreamPos, acked: u64, flight: u64) -> bool {
        let left = flight.saturating_sub(acked);
        if una < self.recover {
            let acked = clamp(acked);
            self.cwnd = self.cwnd.saturating_sub(acked).max(self.mss);
            if acked >= self.mss {
                self.grow(self.mss);
            }
            return true;
        }
        self.recovering = false;
        self.dup_acks = 0;
        // RFC 6582 3.2 step 3, option 1: no burst when little is left outstanding.
        self.cwnd = self.ssthresh.min(clamp(left).max(self.mss).saturating_add(self.mss));
        self.acked = 0;
        false
    }

    /// Widens the window at an acknowledgment that answers a window that was used.
    #[inline(never)]
    fn widen(&mut self, now: Instant, una: StreamPos, acked: u64, rto: &Rto) {
        if self.cwnd < self.ssthresh {
            // After a timeout an acknowledgment may cover bytes that had arrived before, and says
            // little about the bytes that left the network since: L = 1 there (RFC 3465 section
            // 2.3).
            let limit = if una < self.recover { 1 } else { ABC_LIMIT };
            let by = clamp(acked).min(self.mss.saturating_mul(limit));
            self.grow(self.slow_start().map_or(by, |s| s.growth(by)));
        } else {
            self.avoid(now, clamp(acked), rto);
        }
    }

    /// Makes the algorithm see each acknowledgment, if it wants to, from `una` on: the connection
    /// uses ECN.
    pub(super) fn use_ecn(&mut self, una: StreamPos) {
        if self.algorithm == Congestion::Dctcp {
            self.attention = true;
            self.more().law = Law::Dctcp(Dctcp::new(una));
        }
    }

    /// Records that the next acknowledgment reports marks of congestion on `bytes`, or on all that it
    /// acknowledges if those are fewer; `una` is the position that it acknowledges.
    #[cold]
    pub(super) fn expect_echo(&mut self, una: StreamPos, bytes: u64) {
        self.attention = true;
        let more = self.more();
        more.echo = bytes;
        // But for the loss, the window would shrink now: the reduction has a second reason. DCTCP
        // shrinks by the part of the bytes that is marked, in the next window as well.
        if !matches!(more.law, Law::Dctcp(_)) && more.saved.is_some_and(|s| una > s.reduced) {
            more.saved = None;
        }
    }

    /// Ends what [`expect_echo`](Window::expect_echo) began. Returns true if the window shrank since
    /// because of marks.
    #[cold]
    pub(super) fn end_echo(&mut self) -> bool {
        self.attention = matches!(self.law_mut(), Some(Law::Dctcp(_)));
        let more = self.more();
        more.echo = 0;
        core::mem::take(&mut more.marked)
    }

    /// Takes an acknowledgment that echoes a mark, or any if the algorithm is DCTCP. Returns true if
    /// the window must not grow by it.
    #[cold]
    fn attend(&mut self, una: StreamPos, max: StreamPos, acked: u64, flight: u64) -> bool {
        let (cwnd, mss) = (self.cwnd, self.mss);
        let more = self.more();
        let (echo, marked) = (more.echo > 0, more.echo.min(acked));
        if let Law::Dctcp(d) = &mut more.law {
            if let Some(cwnd) = d.on_ack(una, max, acked, marked, cwnd)
                && una > more.reduced
            {
                more.reduced = max;
                more.marked = true;
                self.cwnd = cwnd.max(mss.saturating_mul(2)).min(self.cwnd);
                self.ssthresh = self.cwnd;
                self.acked = 0;
                return true;
            }
            return echo;
        }
        if echo && una > more.reduced {
            more.marked = true;
            self.reduce(flight.min(u64::from(cwnd)), Event::Mark, max);
            // Marks shrink the window to a segment (RFC 9438 section 4.6).
            let left = if cwnd <= mss.saturating_mul(2) { mss } else { self.ssthresh };
            self.cwnd = left.min(cwnd);
            self.acked = 0;
        }
        echo
    }

    /// Grows the window in congestion avoidance.
    fn avoid(&mut self, now: Instant, acked: u32, rto: &Rto) {
        let (cwnd, mss, mut count) = (self.cwnd, self.mss, self.acked);
        if self.algorithm == Congestion::Cubic
            && let Law::Cubic(c) = &mut self.more().law
        {
            let cwnd = c.on_ack(now, acked, &mut count, cwnd, mss, rto.srtt());
            self.acked = count;
            self.cwnd = cwnd.clamp(self.cwnd, CWND_MAX);
            return;
        }
        self.acked = self.acked.saturating_add(acked);
        if self.acked >= self.cwnd {
            self.acked -= self.cwnd;
            self.grow(self.mss);
        }
    }

    /// Records that the sender did not use the window until `now`.
    #[cold]
    fn pause(&mut self, now: Instant) {
        if let Some(Law::Cubic(c)) = self.law_mut() {
            c.pause(now);
        }
    }

    /// Takes a round trip in ns. The watch over the first slow start begins with the first long
    /// one: the smoothed round trip follows a queue that doubles only when the queue has overflowed.
    #[inline]
    pub(super) fn note_rtt(&mut self, rtt: u64) {
        if rtt >= LONG && self.ssthresh == u32::MAX && self.algorithm == Congestion::Cubic {
            self.more();
        }
    }

    /// Returns true if round trips may end the first slow start: the algorithm watches them, and one
    /// was long (see [`hystart`]).
    #[inline]
    pub(super) fn may_watch(&self) -> bool {
        self.more.is_some() && self.ssthresh == u32::MAX
    }

    /// Watches the first slow start, at an acknowledgment of `una` while `max` was sent; `rtt` is
    /// the round trip that the acknowledgment shows, if it shows any.
    #[cold]
    pub(super) fn watch(
        &mut self,
        una: StreamPos,
        max: StreamPos,
        rtt: Option<Duration>,
        rto: &Rto,
    ) {
        if self.algorithm != Congestion::Cubic {
            return;
        }
        let least = rto.min_rtt();
        let watch = self.more().slow_start.get_or_insert_with(|| SlowStart::new(least, max));
        if watch.is_over(una, max, rtt) {
            self.ssthresh = self.cwnd;
            self.acked = 0;
            let cwnd = self.cwnd;
            let more = self.more();
            more.slow_start = None;
            if let Law::Cubic(c) = &mut more.law {
                c.slow_start_over(cwnd);
            }
        }
    }

    /// Asks whether `len` bytes of new data may go `now`, at the pace of this window in round trips
    /// of `srtt`; if so, they count as sent.
    ///
    /// # Errors
    /// Returns the time at which they may go.
    #[cold]
    pub(super) fn pace(&mut self, now: Instant, len: u32, srtt: Duration) -> Result<(), Instant> {
        let initial = initial_window(self.mss);
        let (cwnd, mss) = (self.cwnd, self.mss);
        // Twice the window in a round trip, so that the window can double; 1.2 times where it has
        // come near the size at which bytes were lost. The same numbers as in Linux.
        let tenths = if cwnd < self.ssthresh / 2 { 20 } else { 12 };
        self.more().pacer.send(now, len, initial, Pace { cwnd, mss, tenths, srtt })
    }

    /// Returns how many bytes may follow those for which [`pace`](Window::pace) was asked last.
    #[cold]
    pub(super) fn pace_room(&self) -> u64 {
        self.more.as_ref().map_or(u64::MAX, |m| m.pacer.room())
    }

    /// Counts `len` such bytes as sent.
    #[cold]
    pub(super) fn pace_more(&mut self, len: u32) {
        if let Some(more) = &mut self.more {
            more.pacer.count(len);
        }
    }

    fn slow_start(&self) -> Option<&SlowStart> {
        self.more.as_ref()?.slow_start.as_ref()
    }

    fn law_mut(&mut self) -> Option<&mut Law> {
        self.more.as_mut().map(|m| &mut m.law)
    }

    #[cold]
    fn more(&mut self) -> &mut More {
        let algorithm = self.algorithm;
        self.more.get_or_insert_with(|| {
            Box::new(More {
                law: match algorithm {
                    Congestion::NewReno | Congestion::Dctcp => Law::NewReno,
                    Congestion::Cubic => Law::Cubic(Cubic::default()),
                },
                prr: Reduction::default(),
                saved: None,
                slow_start: None,
                pacer: Pacer::default(),
                echo: 0,
                marked: false,
                reduced: StreamPos::START,
            })
        })
    }

    /// Handles a duplicate ACK of `una` while `[una, max)` is outstanding. Returns true if this ACK
    /// shows that the segment at `una` is lost.
    pub(super) fn on_dup_ack(&mut self, una: StreamPos, max: StreamPos) -> bool {
        if self.recovering {
            // A segment that left the network makes room for another, but never for more segments
            // than are outstanding, whatever the peer claims (RFC 5681 3.2 step 4).
            if u64::from(self.cwnd) < u64::from(self.ssthresh).saturating_add(max - una) {
                self.grow(self.mss);
            }
            return false;
        }
        if una < self.recover {
            return false;
        }
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks < DUP_THRESHOLD {
            return false;
        }
        let flight = (max - una).saturating_sub(u64::from(self.limited));
        self.reduce(flight, Event::Loss, max);
        self.cwnd = self.ssthresh.saturating_add(self.mss.saturating_mul(3)).min(CWND_MAX);
        self.recovering = true;
        self.recover = max;
        self.limited = 0;
        true
    }

    /// Handles expiry of the retransmission timer with `[una, max)` outstanding. `first` is false
    /// if the timer already made the connection send the oldest segment again.
    pub(super) fn on_timeout(&mut self, una: StreamPos, max: StreamPos, first: bool) {
        if first {
            self.reduce(max - una, Event::Timeout, max);
        }
        self.cwnd = self.mss;
        self.acked = 0;
        self.dup_acks = 0;
        self.limited = 0;
        self.recovering = false;
        // The connection now sends everything again, so duplicate ACKs of `max` itself may be
        // echoes of these retransmissions. Only beyond `max` do duplicate ACKs mean a loss.
        self.recover = max + 1;
    }

    /// Starts a recovery: SACK shows a loss while `flight` bytes are outstanding, up to `max`. The
    /// connection spreads the reduction over the next round trip.
    pub(super) fn start_recovery(&mut self, flight: u64, max: StreamPos) {
        // Limited transmit sent the bytes beyond cwnd, and they do not count in ssthresh (RFC 5681
        // section 3.2, step 2).
        self.reduce(flight.min(u64::from(self.cwnd)), Event::Loss, max);
        self.recovering = true;
        self.more().prr = Reduction { delivered: 0, out: 0, flight: flight.max(1) };
    }

    /// Sets the window in a recovery with SACK after `delivered` bytes arrived and while `pipe`
    /// bytes are left in the network: RFC 6937 section 3, with the slow start reduction bound.
    pub(super) fn on_delivered(&mut self, delivered: u64, pipe: u64) {
        let (ssthresh, mss) = (u64::from(self.ssthresh), u64::from(self.mss));
        let prr = &mut self.more().prr;
        prr.delivered += delivered;
        let mut send = if pipe > ssthresh {
            let due = u128::from(prr.delivered) * u128::from(ssthresh);
            let due = due.div_ceil(u128::from(prr.flight.max(1)));
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(prr.out)
        } else {
            let limit = prr.delivered.saturating_sub(prr.out).max(delivered) + mss;
            (ssthresh - pipe).min(limit)
        };
        if prr.out == 0 {
            // The connection sends the first retransmission however much is outstanding.
            send = send.max(mss);
        }
        self.cwnd = clamp(pipe + send).clamp(self.mss, CWND_MAX);
    }

    /// Records that `len` bytes were sent in a recovery with SACK, for the first time or again.
    pub(super) fn on_retransmit(&mut self, len: u32) {
        if let Some(more) = &mut self.more {
            more.prr.out += u64::from(len);
        }
    }

    /// Ends a recovery with SACK.
    pub(super) fn end_recovery(&mut self) {
        self.recovering = false;
        self.cwnd = self.ssthresh.max(self.mss);
        self.acked = 0;
    }

    /// Reduces the window for a loss that was repaired before the connection noticed it, while all
    /// bytes before `max` are sent.
    pub(super) fn reduce_once(&mut self, max: StreamPos) {
        self.reduce(u64::from(self.cwnd), Event::Loss, max);
        self.cwnd = self.ssthresh.min(self.cwnd);
        self.acked = 0;
        self.more().saved = None;
    }

    /// Saves the window before a reduction that may turn out to be a mistake. With `again`, the
    /// values of an earlier reduction that may be a mistake too stay saved.
    pub(super) fn save(&mut self, again: bool) {
        let (cwnd, ssthresh) = (self.cwnd, self.ssthresh);
        let more = self.more();
        if !again || more.saved.is_none() {
            more.saved = Some(Saved { cwnd, ssthresh, law: more.law, reduced: more.reduced });
        }
    }

    /// Undoes a reduction that was a mistake (RFC 9438 section 4.9.2), unless there was another reason
    /// for it: then the window has its size.
    pub(super) fn undo(&mut self) {
        self.recovering = false;
        self.recover = StreamPos::START;
        let Some(more) = &mut self.more else { return };
        let Some(saved) = more.saved.take() else {
            self.cwnd = self.cwnd.max(self.ssthresh.min(CWND_MAX));
            return;
        };
        // A window that has grown beyond the old one meanwhile keeps its values.
        if self.cwnd < saved.cwnd {
            more.law = saved.law;
            more.reduced = saved.reduced;
            self.cwnd = saved.cwnd;
            self.ssthresh = self.ssthresh.max(saved.ssthresh);
        }
    }

    /// Restarts with the initial window: the connection sent nothing for so long that the window
    /// says nothing about the path any more (RFC 5681 4.1).
    pub(super) fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(initial_window(self.mss));
        self.acked = 0;
        if let Some(Law::Cubic(c)) = self.law_mut() {
            c.end_epoch();
        }
    }

    /// Sets ssthresh at a loss or mark while `flight` bytes count as outstanding, and all bytes
    /// before `max` are sent: by equation (4) of RFC 5681, or as the algorithm demands.
    fn reduce(&mut self, flight: u64, event: Event, max: StreamPos) {
        let cwnd = self.cwnd;
        let more = self.more();
        more.reduced = max;
        more.slow_start = None;
        let left = match &mut more.law {
            Law::NewReno | Law::Dctcp(_) => flight / 2,
            Law::Cubic(c) => c.on_loss(cwnd, flight, event == Event::Timeout),
        };
        self.ssthresh = clamp(left).max(self.mss.saturating_mul(2));
    }

    fn grow(&mut self, by: u32) {
        self.cwnd = self.cwnd.saturating_add(by).min(CWND_MAX);
    }
}

/// Returns the initial window of RFC 6928: ten segments, or about 14,600 bytes where segments are
/// large.
fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600))
}

fn clamp(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
