//! The sender's knowledge of the outstanding bytes: when they were sent, which bytes the peer
//! reports as received, which are lost, and which were sent again. [`rack`](super::rack) has a
//! picture of the scoreboard and lists the invariants between the scoreboard and the connection.
//!
//! The scoreboard keeps nothing per segment. Original transmissions go up the sequence space as
//! time passes, so one entry per burst ([`Sent`]) records when any byte was sent, and one position
//! (`lost_below`) records which holes are lost. A burst costs one entry, and an acknowledgment
//! without SACK touches nothing here. Only retransmissions are listed range by range, in the order
//! of time.
//!
//! Every list is bounded, whatever a peer reports: ranges by [`MAX_RANGES`], the rest by
//! [`MAX_BURSTS`] and [`MAX_RETRANSMITTED`].

#[cfg(test)]
mod check;

use super::NEVER;
use super::ranges::{MAX_RANGES, Range, Ranges};
use core::mem::offset_of;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};
use std::collections::VecDeque;

/// The number of bursts remembered. The scoreboard merges bursts that follow each other within a
/// small part of a round trip. The limit is therefore reached only where the round trip has become
/// many times the least round trip; the scoreboard then merges the two oldest bursts.
const MAX_BURSTS: usize = 256;
/// The number of retransmitted ranges in flight at a time; further ranges wait.
const MAX_RETRANSMITTED: usize = MAX_RANGES;

/// A burst: bytes from `start` up to the next entry's `start` were sent between `first` and `last`.
///
/// The scoreboard judges loss by `last`: it may find a loss late, but never declares bytes lost
/// that were sent only just now. The connection measures round trips from `first`: a round trip
/// that is too short would make the timeout fall below the true value. `first` is [`NEVER`] where
/// bursts were merged and no round trip can be measured.
#[derive(Clone, Copy, Debug)]
struct Sent {
    start: StreamPos,
    first: Instant,
    last: Instant,
}

/// A range that was sent again at `at`.
#[derive(Clone, Copy, Debug)]
struct Retransmission {
    range: Range,
    at: Instant,
}

/// The lists of retransmissions. The lists take memory at the first loss and keep it until they are
/// trimmed.
#[derive(Clone, Debug, Default)]
struct Again(Option<Box<AgainLists>>);

#[derive(Clone, Debug)]
struct AgainLists {
    /// Ranges sent again and not known to have arrived, in the order of time.
    retransmitted: VecDeque<Retransmission>,
    /// Ranges sent again and lost once more.
    lost_retransmissions: VecDeque<Range>,
    /// The latest transmission known to have arrived, by the time at which it was sent at the
    /// earliest: bytes of a burst may have left before a retransmission that is older than the
    /// burst's end.
    sure: (Instant, StreamPos),
}

static NOTHING_AGAIN: AgainLists = AgainLists::new();

impl AgainLists {
    const fn new() -> AgainLists {
        AgainLists {
            retransmitted: VecDeque::new(),
            lost_retransmissions: VecDeque::new(),
            sure: (Instant::ZERO, StreamPos::START),
        }
    }
}

impl Again {
    /// Records that bytes up to `end` have arrived that were sent at `at` or later. Nothing needs
    /// this time while nothing was sent again.
    fn note_sure(&mut self, at: Instant, end: StreamPos) {
        if let Some(lists) = self.0.as_deref_mut().filter(|_| at != NEVER) {
            lists.sure = lists.sure.max((at, end));
        }
    }

    fn clear(&mut self) {
        if let Some(lists) = &mut self.0 {
            lists.retransmitted.clear();
            lists.lost_retransmissions.clear();
        }
    }
}

impl Deref for Again {
    type Target = AgainLists;

    fn deref(&self) -> &AgainLists {
        self.0.as_deref().unwrap_or(&NOTHING_AGAIN)
    }
}

impl DerefMut for Again {
    fn deref_mut(&mut self) -> &mut AgainLists {
        self.0.get_or_insert_with(|| Box::new(AgainLists::new()))
    }
}

/// The bytes that an acknowledgment reports as arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Bytes not known to have arrived before.
    pub(super) bytes: u64,
    /// When the newest of these bytes that was sent only once was sent. This instant gives a round
    /// trip without ambiguity.
    pub(super) sent_once: Option<Instant>,
    /// True if bytes sent once arrived after bytes that were sent later.
    pub(super) reordered: bool,
}

/// The value of `probed` while no byte was sent by a tail loss probe.
const NOT_PROBED: StreamPos = StreamPos(u64::MAX);

/// The sender's scoreboard (see the module documentation).
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Scoreboard {
    sent: VecDeque<Sent>,
    sacked: Ranges,
    lost_below: StreamPos,
    repaired: StreamPos,
    again: Again,
    /// RACK.xmit_ts and RACK.end_seq: the latest transmission known to have arrived. Both 0 while
    /// there is none.
    latest: (Instant, StreamPos),
    /// RACK.rtt, in nanoseconds.
    rtt: u64,
    /// RACK.fack: the highest byte known to have arrived.
    fack: StreamPos,
    /// Bytes from this position on may have been sent twice by a tail loss probe; [`NOT_PROBED`]
    /// otherwise.
    probed: StreamPos,
    /// Bytes before this position may have been sent more often than the lists record, because a
    /// timeout or a new start cleared the lists. These bytes measure no round trip (Karn).
    ambiguous_below: StreamPos,
}

impl Default for Scoreboard {
    fn default() -> Scoreboard {
        Scoreboard {
            sent: VecDeque::new(),
            sacked: Ranges::default(),
            lost_below: StreamPos::START,
            repaired: StreamPos::START,
            again: Again::default(),
            latest: (Instant::ZERO, StreamPos::START),
            rtt: 0,
            fack: StreamPos::START,
            probed: NOT_PROBED,
            ambiguous_below: StreamPos::START,
        }
    }
}

impl Scoreboard {
    /// Bytes, from the first on, that the note of a burst touches.
    pub(super) const BURST: usize = offset_of!(Scoreboard, sacked);

    /// Records that new bytes from `start` on are sent at `now`, the first at this instant; `una`
    /// is the oldest byte not acknowledged. Bytes beyond `start` count as not sent before. Bursts
    /// less than `apart` ns from each other count as one.
    pub(super) fn on_burst(&mut self, una: StreamPos, start: StreamPos, now: Instant, apart: u64) {
        while self.sent.back().is_some_and(|s| s.start >= start) {
            self.sent.pop_back();
        }
        while self.sent.get(1).is_some_and(|s| s.start <= una) {
            self.sent.pop_front();
        }
        if let Some(s) = self.sent.back_mut().filter(|s| now.nanos_since(s.first) < apart) {
            s.last = now;
            return;
        }
        if self.sent.len() >= MAX_BURSTS
            && let Some(first) = self.sent.pop_front()
            && let Some(second) = self.sent.front_mut()
        {
            second.start = first.start;
            second.first = NEVER;
        }
        self.sent.push_back(Sent { start, first: now, last: now });
    }

    /// Records that a tail probe sends bytes from `start` on a second time.
    pub(super) fn on_tail_probe(&mut self, una: StreamPos, start: StreamPos, now: Instant) {
        self.on_burst(una, start, now, 0);
        self.probed = start;
    }

    /// Forgets everything except the measurements of the path: the sender will send all outstanding
    /// bytes, up to `max`, anew.
    pub(super) fn reset(&mut self, max: StreamPos) {
        self.ambiguous_below = self.ambiguous_below.max(max);
        self.sacked.clear();
        self.again.clear();
        self.lost_below = StreamPos::START;
        self.repaired = StreamPos::START;
        self.probed = NOT_PROBED;
    }

    /// Declares all outstanding bytes lost that the peer has not reported, because the timer
    /// expired.
    pub(super) fn lose_all(&mut self, una: StreamPos, end: StreamPos) {
        self.ambiguous_below = self.ambiguous_below.max(self.repaired);
        self.again.clear();
        self.lost_below = end;
        self.repaired = una;
        self.probed = NOT_PROBED;
    }

    /// Frees memory. The caller calls this function only while no byte is outstanding.
    pub(super) fn trim(&mut self) {
        self.sent = VecDeque::new();
        self.sacked.trim();
        if self.is_plain() {
            self.again = Again::default();
        }
    }

    /// Forgets the peer's reports, which the sender does not believe any more.
    pub(super) fn forget_sacked(&mut self) {
        self.sacked.clear();
    }

    /// Declares that no byte is lost after all: the bytes that were sent again are in flight twice.
    pub(super) fn lose_nothing(&mut self, una: StreamPos, now: Instant) {
        let again = &mut *self.again;
        let back = again.lost_retransmissions.drain(..);
        again.retransmitted.extend(back.map(|range| Retransmission { range, at: now }));
        self.lost_below = una;
    }

    /// Returns true if the peer reports nothing out of order and no retransmission is left.
    pub(super) fn is_plain(&self) -> bool {
        self.sacked.is_empty()
            && self.again.retransmitted.is_empty()
            && self.again.lost_retransmissions.is_empty()
    }

    /// Returns true if the peer reported so much that reordering by a segment or two cannot explain
    /// the reports: the rule of three duplicate ACKs, in bytes (RFC 6675 section 4) or ranges.
    pub(super) fn past_dup_threshold(&self, mss: u32) -> bool {
        self.sacked.count() >= 3 || self.sacked.bytes_from(StreamPos::START) >= 3 * u64::from(mss)
    }

    /// Records that the peer acknowledges everything before `una`, and before that everything
    /// before `from`. Returns false if the peer takes back a report (RFC 2018 section 8): the
    /// acknowledgment should have moved past the reported range.
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
        self.deliver_retransmitted(now, Range::new(from, una), min_rtt);
        self.fack = self.fack.max(una);
        if self.probed < una {
            self.probed = NOT_PROBED;
        }
        self.sacked.reach(una) <= una
    }

    /// Records that the peer reports `[start, end)`, which is outstanding, as received.
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
        self.deliver_retransmitted(now, Range::new(start, end), min_rtt);
        self.sacked.insert(start, end);
        self.fack = self.fack.max(end);
    }

    /// Records that `[start, end)` has arrived: RFC 8985 section 6.2, steps 1 to 3, for what was
    /// sent once, or twice by a tail probe.
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
        let once_end = self.probed.min(end);
        if once < once_end
            && let Some(sent) = self.sent_at(once_end)
        {
            let unambiguous = once_end > self.ambiguous_below;
            if unambiguous {
                if sent.first != NEVER {
                    d.sent_once = d.sent_once.max(Some(sent.first));
                }
                d.reordered |= once.max(self.ambiguous_below) < self.fack;
            }
            if unambiguous || now - sent.last >= min_rtt {
                self.note_latest(now, sent.last, once_end);
                self.again.note_sure(sent.first, once_end);
            }
        }
        if self.probed < end
            && let Some(sent) = self.sent_at(end)
            && now - sent.last >= min_rtt
        {
            self.note_latest(now, sent.last, end);
            self.again.note_sure(sent.first, end);
        }
    }

    /// Records that the retransmitted bytes of `gone` have arrived. An acknowledgment calls this
    /// once for each range that it reports, and not for each hole in it: the lists may be long.
    ///
    /// If a byte sent twice is acknowledged sooner than any round trip took, its first transmission
    /// arrived, and the acknowledgment says nothing about the second. (The other test of RFC 8985
    /// section 6.2, the echoed timestamp, does not help: the echo belongs to the last segment in
    /// order, whatever was sent again ahead of a gap.)
    fn deliver_retransmitted(&mut self, now: Instant, gone: Range, min_rtt: Duration) {
        if gone.start >= self.repaired {
            return;
        }
        let (mut latest, mut hit) = (None, false);
        let hits = |r: &Range| r.start < gone.end && gone.start < r.end;
        for a in self.again.retransmitted.iter().filter(|a| hits(&a.range)) {
            hit = true;
            if now - a.at >= min_rtt {
                latest = latest.max(Some((a.at, a.range.end.min(gone.end))));
            }
        }
        if let Some((at, end)) = latest {
            self.note_latest(now, at, end);
            self.again.note_sure(at, end);
        }
        if hit {
            let list = &mut self.again.retransmitted;
            let mut i = 0;
            while let Some(a) = list.get_mut(i) {
                let (at, rest) = (a.at, without(a.range, gone));
                a.range = rest.0;
                if rest.1.len() > 0 {
                    list.insert(i + 1, Retransmission { range: rest.1, at });
                }
                i += 1;
            }
            list.retain(|a| a.range.len() > 0);
        }
        if self.again.lost_retransmissions.iter().any(hits) {
            let list = &mut self.again.lost_retransmissions;
            let mut i = 0;
            while let Some(r) = list.get_mut(i) {
                let rest = without(*r, gone);
                *r = rest.0;
                if rest.1.len() > 0 {
                    list.insert(i + 1, rest.1);
                }
                i += 1;
            }
            list.retain(|r| r.len() > 0);
        }
    }

    /// Returns the burst that first sent the byte before `end`.
    fn sent_at(&self, end: StreamPos) -> Option<Sent> {
        let next = self.sent.partition_point(|s| s.start < end);
        self.sent.get(next.checked_sub(1)?).copied()
    }

    fn note_latest(&mut self, now: Instant, at: Instant, end: StreamPos) {
        if self.latest < (at, end) {
            self.latest = (at, end);
            self.rtt = now.as_nanos() - at.as_nanos().min(now.as_nanos());
        }
    }

    /// Finds the lost bytes: bytes sent before the latest arrival, and `reordering` longer ago than
    /// a round trip (RFC 8985 section 6.2, step 5). `[una, end)` is outstanding. Returns when the
    /// next byte would count as lost if nothing arrives until then.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        una: StreamPos,
        end: StreamPos,
        reordering: Duration,
    ) -> Option<Instant> {
        let (latest, latest_end) = self.latest;
        let wait = Duration::from_nanos(self.rtt) + reordering;
        let mut due = None;
        let mut at = self.lost_below.max(una);
        let mut burst = self.sent.partition_point(|s| s.start <= at).saturating_sub(1);
        while let Some(s) = self.sent.get(burst).filter(|s| s.last <= latest) {
            let next = self.sent.get(burst + 1).map_or(end, |n| n.start.min(end));
            let before = if s.last == latest { next.min(latest_end) } else { next };
            if s.last + wait > now && self.sacked.first_gap(at, before).is_some() {
                due = Some(s.last + wait);
                break;
            }
            // All bytes before `before` are lost or SACKed.
            at = at.max(before);
            burst += 1;
        }
        self.lost_below = self.lost_below.max(at);
        let sure = self.again.sure;
        while let Some(&a) = self.again.retransmitted.front().filter(|a| (a.at, a.range.end) < sure)
        {
            if a.at + wait > now {
                due = Some(due.map_or(a.at + wait, |d| (a.at + wait).min(d)));
                break;
            }
            self.again.lost_retransmissions.push_back(a.range);
            self.again.retransmitted.pop_front();
        }
        due
    }

    /// Returns the next bytes to send again: first the bytes that were lost twice, then the lowest
    /// hole.
    pub(super) fn next_lost(&self, una: StreamPos) -> Option<Range> {
        if self.again.retransmitted.len() >= MAX_RETRANSMITTED {
            return None;
        }
        if let Some(r) = self.again.lost_retransmissions.front() {
            return Some(*r);
        }
        let (start, end) = self.sacked.first_gap(self.repaired.max(una), self.lost_below)?;
        Some(Range::new(start, end))
    }

    /// Returns true if any byte waits to be sent again.
    pub(super) fn has_lost(&self, una: StreamPos) -> bool {
        !self.again.lost_retransmissions.is_empty()
            || self.sacked.first_gap(self.repaired.max(una), self.lost_below).is_some()
    }

    /// Returns true if no bytes are lost but bytes of `range`, for the first time.
    pub(super) fn lost_only(&self, una: StreamPos, range: Range) -> bool {
        let mut at = self.repaired.max(una);
        while let Some((start, end)) = self.sacked.first_gap(at, self.lost_below) {
            if start < range.start || range.end < end {
                return false;
            }
            at = end;
        }
        self.again.lost_retransmissions.is_empty()
    }

    /// Records that the first part of the range that [`next_lost`](Scoreboard::next_lost) returned
    /// is sent again.
    pub(super) fn on_retransmit(&mut self, range: Range, now: Instant) {
        let again = &mut *self.again;
        match again.lost_retransmissions.front_mut() {
            Some(first) if first.start == range.start => {
                first.start = range.end;
                if first.start >= first.end {
                    self.again.lost_retransmissions.pop_front();
                }
            }
            _ => self.repaired = range.end,
        }
        match self.again.retransmitted.back_mut() {
            Some(last) if last.at == now && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.again.retransmitted.push_back(Retransmission { range, at: now }),
        }
    }

    /// Returns the bytes believed to be in the network, out of `[una, end)` outstanding (RFC 6675
    /// section 4).
    pub(super) fn pipe(&self, una: StreamPos, end: StreamPos) -> u64 {
        let from = self.lost_below.max(una);
        let again: u64 = self.again.retransmitted.iter().map(|a| a.range.len()).sum();
        (end - from).saturating_sub(self.sacked.bytes_from(from)) + again
    }
}

/// Returns the parts of `r` before and after `gone`.
fn without(r: Range, gone: Range) -> (Range, Range) {
    if gone.end <= r.start || r.end <= gone.start {
        return (r, Range::new(r.end, r.end));
    }
    let front = Range::new(r.start, gone.start.max(r.start));
    let back = Range::new(gone.end.min(r.end), r.end);
    if front.len() > 0 { (front, back) } else { (back, Range::new(r.end, r.end)) }
}
