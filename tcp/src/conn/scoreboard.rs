//! What is known of the bytes that are outstanding: when they were sent, which of them the peer
//! reports as received, which are lost, which were sent again.
//!
//! ```text
//!     una                 repaired          lost_below         end
//!      |......#######......|.....####........|......####.......|
//!         a             a      b                 c        c
//!
//!   # SACKed    a sent again: in `again_sent` or, lost once more, in `lost_again`
//!               b lost, to be sent again     c in the network
//! ```
//!
//! Nothing is kept per segment. Original transmissions go up the sequence space as time goes on, so
//! one entry per instant at which something was sent ([`Sent`]) tells when any byte was, and one
//! position (`lost_below`) tells which holes are lost. A burst costs one entry, and an
//! acknowledgment that brings no SACK touches nothing here. Only what is sent again is listed range
//! by range, in the order of time.
//!
//! Everything is bounded, whatever a peer reports: ranges by [`MAX_RANGES`], the rest by
//! [`MAX_BURSTS`] and [`MAX_AGAIN`].

use super::ranges::{MAX_RANGES, Range, Ranges};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};
use std::collections::VecDeque;

/// Instants of transmission remembered. When there are more, the oldest two become one with the
/// later time: that can only delay the detection of a loss.
const MAX_BURSTS: usize = 256;
/// Ranges under way again at a time; what goes beyond waits.
const MAX_AGAIN: usize = 2 * MAX_RANGES;

/// Bytes from `start` up to the next entry's were sent at `at`.
#[derive(Clone, Copy, Debug)]
struct Sent {
    start: StreamPos,
    at: Instant,
}

/// A range that was sent again at `at`.
#[derive(Clone, Copy, Debug)]
struct Again {
    range: Range,
    at: Instant,
}

/// What an acknowledgment says to have arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Bytes not known to have arrived before.
    pub(super) bytes: u64,
    /// When the newest of them that was sent only once was sent: a round trip without ambiguity.
    pub(super) sent_once: Option<Instant>,
    /// Bytes sent once arrived behind bytes sent later.
    pub(super) reordered: bool,
}

/// The sender's scoreboard.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    sent: VecDeque<Sent>,
    sacked: Ranges,
    lost_below: StreamPos,
    repaired: StreamPos,
    again_sent: VecDeque<Again>,
    lost_again: VecDeque<Range>,
    /// RACK.xmit_ts and RACK.end_seq: the latest transmission known to have arrived.
    latest: Option<(Instant, StreamPos)>,
    /// RACK.rtt.
    rtt: Duration,
    /// RACK.fack: the highest byte known to have arrived.
    fack: StreamPos,
    /// From here on bytes may have been sent twice by a tail probe.
    doubtful: Option<StreamPos>,
}

impl Scoreboard {
    /// New bytes from `start` on are sent at `now`, and were none at the same instant before;
    /// `una` is the oldest byte not acknowledged. Bytes beyond `start` count as not sent before.
    pub(super) fn on_burst(&mut self, una: StreamPos, start: StreamPos, now: Instant) {
        while self.sent.back().is_some_and(|s| s.start >= start) {
            self.sent.pop_back();
        }
        while self.sent.get(1).is_some_and(|s| s.start <= una) {
            self.sent.pop_front();
        }
        if self.sent.len() >= MAX_BURSTS
            && let Some(first) = self.sent.pop_front()
            && let Some(second) = self.sent.front_mut()
        {
            second.start = first.start;
        }
        self.sent.push_back(Sent { start, at: now });
    }

    /// A tail probe sends bytes from `start` on a second time.
    pub(super) fn on_tail_again(&mut self, una: StreamPos, start: StreamPos, now: Instant) {
        self.on_burst(una, start, now);
        self.doubtful = Some(start);
    }

    /// Forgets everything but what is bound to the path: what is outstanding is sent anew.
    pub(super) fn reset(&mut self) {
        self.sacked.clear();
        self.again_sent.clear();
        self.lost_again.clear();
        self.lost_below = StreamPos::START;
        self.repaired = StreamPos::START;
        self.doubtful = None;
    }

    /// All outstanding bytes that the peer has not reported are lost (the timer expired).
    pub(super) fn lose_all(&mut self, una: StreamPos, end: StreamPos) {
        self.again_sent.clear();
        self.lost_again.clear();
        self.lost_below = end;
        self.repaired = una;
        self.doubtful = None;
    }

    /// The peer's reports are not believed any more.
    pub(super) fn forget_sacked(&mut self) {
        self.sacked.clear();
    }

    /// Nothing is lost after all; what was sent again is under way twice.
    pub(super) fn lose_nothing(&mut self, una: StreamPos) {
        self.lost_again.clear();
        self.lost_below = una;
    }

    /// Whether the peer reports nothing out of order.
    pub(super) fn nothing_sacked(&self) -> bool {
        self.sacked.is_empty()
    }

    /// Whether so much was reported that it cannot be reordering by a segment or two: the rule of
    /// three duplicate ACKs, in bytes (RFC 6675 section 4) or ranges.
    pub(super) fn past_dup_threshold(&self, mss: u32) -> bool {
        self.sacked.count() >= 3 || self.sacked.bytes_from(StreamPos::START) >= 3 * u64::from(mss)
    }

    /// Everything before `una` is acknowledged; before, it was everything before `from`. False when
    /// the peer takes back what it reported (RFC 2018 section 8): it must have moved past it.
    pub(super) fn acked(
        &mut self,
        now: Instant,
        from: StreamPos,
        una: StreamPos,
        min_rtt: Duration,
        d: &mut Delivered,
    ) -> bool {
        let mut at = from;
        while let Some((start, end)) = self.sacked.first_gap(at, una) {
            self.deliver(now, start, end, min_rtt, d);
            at = end;
        }
        self.fack = self.fack.max(una);
        if self.doubtful.is_some_and(|p| p < una) {
            self.doubtful = None;
        }
        self.sacked.reach(una) <= una
    }

    /// The peer reports `[start, end)`, which is outstanding, as received.
    pub(super) fn sacked(
        &mut self,
        now: Instant,
        start: StreamPos,
        end: StreamPos,
        min_rtt: Duration,
        d: &mut Delivered,
    ) {
        if !self.sacked.has_room(start, end) {
            return;
        }
        let mut at = start;
        while let Some((from, to)) = self.sacked.first_gap(at, end) {
            self.deliver(now, from, to, min_rtt, d);
            at = to;
        }
        self.sacked.insert(start, end);
        self.fack = self.fack.max(end);
    }

    /// `[start, end)` has arrived: RFC 8985 section 6.2, steps 1 to 3. What was sent twice arrived
    /// by its first transmission if it is acknowledged sooner than any round trip took, and says
    /// nothing about the second. (The echoed timestamp, the RFC's other test, is that of the last
    /// segment in order, whatever was sent again ahead of a gap.)
    fn deliver(
        &mut self,
        now: Instant,
        start: StreamPos,
        end: StreamPos,
        min_rtt: Duration,
        d: &mut Delivered,
    ) {
        d.bytes += end - start;
        let once = start.max(self.repaired);
        let once_end = self.doubtful.map_or(end, |p| p.min(end));
        if once < once_end
            && let Some(at) = self.sent_at(once_end)
        {
            d.sent_once = d.sent_once.max(Some(at));
            d.reordered |= once < self.fack;
            self.note_latest(now, at, once_end);
        }
        if let Some(p) = self.doubtful
            && p < end
            && let Some(at) = self.sent_at(end)
            && now - at >= min_rtt
        {
            self.note_latest(now, at, end);
        }
        if once > start {
            self.deliver_again(now, Range::new(start, once.min(end)), min_rtt);
        }
    }

    /// Of what was sent again, `gone` has arrived.
    fn deliver_again(&mut self, now: Instant, gone: Range, min_rtt: Duration) {
        let mut latest = None;
        let hits = |r: &Range| r.start < gone.end && gone.start < r.end;
        for a in self.again_sent.iter().filter(|a| hits(&a.range)) {
            if now - a.at >= min_rtt {
                latest = latest.max(Some((a.at, a.range.end.min(gone.end))));
            }
        }
        if let Some((at, end)) = latest {
            self.note_latest(now, at, end);
        }
        let mut i = 0;
        while let Some(a) = self.again_sent.get_mut(i) {
            let (at, rest) = (a.at, without(a.range, gone));
            a.range = rest.0;
            if rest.1.len() > 0 {
                self.again_sent.insert(i + 1, Again { range: rest.1, at });
            }
            i += 1;
        }
        self.again_sent.retain(|a| a.range.len() > 0);
        let mut i = 0;
        while let Some(r) = self.lost_again.get_mut(i) {
            let rest = without(*r, gone);
            *r = rest.0;
            if rest.1.len() > 0 {
                self.lost_again.insert(i + 1, rest.1);
            }
            i += 1;
        }
        self.lost_again.retain(|r| r.len() > 0);
    }

    /// When the byte before `end` was sent first.
    fn sent_at(&self, end: StreamPos) -> Option<Instant> {
        let next = self.sent.partition_point(|s| s.start < end);
        self.sent.get(next.checked_sub(1)?).map(|s| s.at)
    }

    fn note_latest(&mut self, now: Instant, at: Instant, end: StreamPos) {
        if self.latest.is_none_or(|l| l < (at, end)) {
            self.latest = Some((at, end));
            self.rtt = now - at;
        }
    }

    /// Finds what is lost: sent before the latest arrival, and `reordering` longer ago than a round
    /// trip (RFC 8985 section 6.2, step 5). `[una, end)` is outstanding. Returns when the next byte
    /// would be lost if nothing arrives until then.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        una: StreamPos,
        end: StreamPos,
        reordering: Duration,
    ) -> Option<Instant> {
        let (latest, latest_end) = self.latest?;
        let wait = self.rtt + reordering;
        let mut due = None;
        let mut at = self.lost_below.max(una);
        let mut burst = self.sent.partition_point(|s| s.start <= at).saturating_sub(1);
        while let Some(s) = self.sent.get(burst).filter(|s| s.at <= latest) {
            let next = self.sent.get(burst + 1).map_or(end, |n| n.start.min(end));
            let before = if s.at == latest { next.min(latest_end) } else { next };
            if s.at + wait > now && self.sacked.first_gap(at, before).is_some() {
                due = Some(s.at + wait);
                break;
            }
            // All before it is lost or SACKed.
            at = at.max(before);
            burst += 1;
        }
        self.lost_below = self.lost_below.max(at);
        while let Some(a) =
            self.again_sent.front().filter(|a| (a.at, a.range.end) < (latest, latest_end))
        {
            if a.at + wait > now {
                due = Some(due.map_or(a.at + wait, |d| (a.at + wait).min(d)));
                break;
            }
            self.lost_again.push_back(a.range);
            self.again_sent.pop_front();
        }
        due
    }

    /// The next bytes to send again: those lost twice first, then the lowest hole.
    pub(super) fn next_lost(&self, una: StreamPos) -> Option<Range> {
        if self.again_sent.len() >= MAX_AGAIN {
            return None;
        }
        if let Some(r) = self.lost_again.front() {
            return Some(*r);
        }
        let (start, end) = self.sacked.first_gap(self.repaired.max(una), self.lost_below)?;
        Some(Range::new(start, end))
    }

    /// Whether something is to be sent again.
    pub(super) fn has_lost(&self, una: StreamPos) -> bool {
        !self.lost_again.is_empty()
            || self.sacked.first_gap(self.repaired.max(una), self.lost_below).is_some()
    }

    /// The first part of what [`next_lost`](Scoreboard::next_lost) gave is sent again.
    pub(super) fn on_again(&mut self, range: Range, now: Instant) {
        match self.lost_again.front_mut() {
            Some(first) if first.start == range.start => {
                first.start = range.end;
                if first.start >= first.end {
                    self.lost_again.pop_front();
                }
            }
            _ => self.repaired = range.end,
        }
        match self.again_sent.back_mut() {
            Some(last) if last.at == now && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.again_sent.push_back(Again { range, at: now }),
        }
    }

    /// Bytes believed to be in the network, of `[una, end)` outstanding (RFC 6675 section 4).
    pub(super) fn pipe(&self, una: StreamPos, end: StreamPos) -> u64 {
        let from = self.lost_below.max(una);
        let again: u64 = self.again_sent.iter().map(|a| a.range.len()).sum();
        (end - from).saturating_sub(self.sacked.bytes_from(from)) + again
    }
}

/// What is left of `r` without `gone`: in front of it and behind it.
fn without(r: Range, gone: Range) -> (Range, Range) {
    if gone.end <= r.start || r.end <= gone.start {
        return (r, Range::new(r.end, r.end));
    }
    let front = Range::new(r.start, gone.start.max(r.start));
    let back = Range::new(gone.end.min(r.end), r.end);
    if front.len() > 0 { (front, back) } else { (back, Range::new(r.end, r.end)) }
}
