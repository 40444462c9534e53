//! Acknowledgments and retransmissions with SACK. [`rack`](super::rack) lists the invariants.

use super::rack::{Phase, Timer};
use super::ranges::Range;
use super::scoreboard::Delivered;
use super::sequence::{offset, shifted};
use super::{Connection, NEVER, NO_FIN, Pending, Timed};
use crate::{Segment, SendQueue, TxSegment};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The bytes that an acknowledgment reports as arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    /// Bytes acknowledged cumulatively, including bytes that were reported before.
    acked: u64,
    /// Bytes acknowledged or reported for the first time.
    delivered: u64,
}

impl Connection {
    /// Does the work of [`take_ack`](Connection::take_ack) with SACK, where the header prediction
    /// failed.
    pub(super) fn take_selective_ack(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
    ) -> Option<StreamPos> {
        if advance < 0 {
            return None;
        }
        if !self.hot.disorder && !self.reports() {
            return self.take_plain_ack(now, seg, advance);
        }
        let before = self.hot.snd_una;
        let una = shifted(before, advance);
        let end = self.hot.snd_next.max(una);
        // An answer to the first transmission says nothing about when the second arrived, however
        // long ago the second was.
        let spurious = advance > 0 && self.answers_before_timeout(seg);
        let min_rtt = if spurious { Duration::MAX } else { self.rto.min_rtt() };
        let mut d = Delivered::default();
        let kept = advance == 0 || self.cold.board.acked(now, before, una, min_rtt, &mut d);
        let duplicate = self.take_blocks(now, una, end, &mut d);
        if advance == 0 && seg.len == 0 && una < self.hot.snd_max {
            self.cold.counters.dup_acks += 1;
        }
        let lone = self.may_be_delayed();
        self.hot.snd_una = una;
        self.hot.snd_next = end;
        if advance > 0 {
            self.hot.pending.clear(Pending::TAIL);
            self.hot.progress_at = now;
            self.hot.timeouts = 0;
        }
        self.sample(now, seg, advance, lone, &d);
        self.cold.rack.note_order(d.reordered);
        if spurious {
            self.cold.counters.spurious_timeouts += 1;
            self.undo(now);
        } else if advance > 0 {
            self.keep_timeout();
        }
        if advance > 0 && self.cold.searches {
            self.check_probe(now);
        }
        if let Some(range) = duplicate {
            self.on_duplicate(now, range);
        }
        self.check_tail_probe(seg, advance, duplicate);
        if !kept {
            self.cold.counters.sacks_reneged += 1;
            self.cold.board.forget_sacked();
            self.cold.board.lose_all(una, end);
        }
        self.update_window(now, seg, advance > 0);
        // The ACK that ends a phase does not also make the window grow.
        let arrived = match self.leave_phase() {
            true => Arrived::default(),
            false => Arrived { acked: una - before, delivered: d.bytes },
        };
        let due = self.recover(now, arrived, (end - before).max(1));
        if una == self.hot.snd_max {
            if advance > 0 {
                self.hot.rtx_at = NEVER;
            }
        } else {
            self.arm(now, due, advance > 0 || d.bytes > 0);
        }
        if advance > 0 { self.acked_from(now, before) } else { None }
    }

    /// Takes an ACK while nothing is out of the ordinary on the sending side and the segment
    /// reports nothing. For other reasons header prediction did not take the segment, but its ACK
    /// has the effect of a predicted ACK. The scoreboard need not see it.
    fn take_plain_ack(&mut self, now: Instant, seg: &Segment, advance: i64) -> Option<StreamPos> {
        let una = shifted(self.hot.snd_una, advance);
        let acked = if advance > 0 {
            self.advance_una(now, seg.timestamps, una)
        } else {
            if seg.len == 0 && una < self.hot.snd_max {
                self.cold.counters.dup_acks += 1;
            }
            None
        };
        self.update_window(now, seg, advance > 0);
        acked
    }

    /// Returns true if the segment that the connection is handling has a SACK option with blocks.
    pub(super) fn reports(&self) -> bool {
        self.cold.sack_in.as_ref().is_some_and(|s| !s.is_empty())
    }

    /// Takes the blocks of a SACK option. Returns the range that a D-SACK reports.
    fn take_blocks(
        &mut self,
        now: Instant,
        una: StreamPos,
        end: StreamPos,
        d: &mut Delivered,
    ) -> Option<Range> {
        let base = self.hot.snd_base;
        let mut blocks = [Range::new(una, una); crate::SackBlocks::MAX];
        let sack = self.cold.sack_in.as_deref().unwrap_or(&crate::SackBlocks::NONE);
        for (place, b) in blocks.iter_mut().zip(sack.as_slice()) {
            let (from, to) = (offset(base, una, b.start), offset(base, una, b.end));
            if from < to && to - from <= i64::from(self.hot.max_wnd.max(1)) {
                *place = Range::new(shifted(una, from), shifted(una, to));
            } else {
                self.cold.counters.bad_sacks += 1;
            }
        }
        // RFC 2883 section 4: a D-SACK lies in front of the acknowledgment number, or inside the
        // second block.
        let [first, second, ..] = blocks;
        let inside = second.len() > 0 && second.start <= first.start && first.end <= second.end;
        let duplicate = Some(first).filter(|r| r.len() > 0 && (r.end <= una || inside));
        if duplicate.is_some() {
            blocks[0] = Range::new(una, una);
        }
        // Take the lowest block first: a block above must not make a block below look late.
        blocks.sort_unstable_by_key(|r| r.start);
        for r in blocks.iter().filter(|r| r.len() > 0 && r.end > una) {
            // If a block reached down to `una`, the peer would have acknowledged its bytes. A peer
            // that reports such a block all the same does not get the bytes again unless they count
            // as lost.
            if r.start > una && r.end <= end {
                let min_rtt = self.rto.min_rtt();
                self.cold.board.sacked(now, r.start, r.end, min_rtt, d);
            } else {
                self.cold.counters.bad_sacks += 1;
            }
        }
        duplicate
    }

    /// Measures round trips of segments that were sent only once. If every segment was sent again
    /// and the timeout is backed off, the echoed timestamp ends the backoff. `lone` is true if so
    /// little was outstanding that the peer might have held its ACK back.
    fn sample(&mut self, now: Instant, seg: &Segment, advance: i64, lone: bool, d: &Delivered) {
        let timed = self.hot.timed.get().filter(|&(end, _)| self.hot.snd_una >= end);
        if timed.is_some() {
            self.hot.timed = Timed::NONE;
        }
        if let Some(at) = d.sent_once.or(timed.map(|(_, at)| at)) {
            let rtt = now.nanos_since(at);
            self.rto.sample_nanos(rtt);
            if lone && advance > 0 {
                self.note_lone_ack(rtt);
            }
        } else if advance > 0
            && self.rto.is_backed_off()
            && let Some(rtt) = self.echoed_rtt(now, seg.timestamps)
        {
            self.rto.sample(rtt);
        }
    }

    /// Ends the phase and returns true if the peer has acknowledged all bytes that were outstanding
    /// when the phase began.
    fn leave_phase(&mut self) -> bool {
        let rack = &mut self.cold.rack;
        if rack.phase == Phase::Open || self.hot.snd_una < rack.until {
            return false;
        }
        if rack.phase == Phase::Recovery {
            self.hot.cc.end_recovery();
        }
        rack.end_phase();
        true
    }

    /// Looks for losses after `arrived`, and sets the congestion window; `flight` bytes were
    /// outstanding before. Returns when to look again.
    pub(super) fn recover(
        &mut self,
        now: Instant,
        arrived: Arrived,
        flight: u64,
    ) -> Option<Instant> {
        let (una, end) = (self.hot.snd_una, self.hot.snd_next);
        let window = self.reordering_window();
        let due = self.cold.board.detect(now, una, end, window);
        if self.cold.rack.phase == Phase::Open
            && self.cold.board.has_lost(una)
            && !self.excuses_loss(now)
        {
            self.cold.counters.fast_retransmits += 1;
            self.start_episode(None);
            self.hot.cc.start_recovery(flight, self.hot.snd_max);
            self.hot.ecn.window_reduced();
            self.cold.rack.phase = Phase::Recovery;
            self.cold.rack.until = self.hot.snd_max;
        }
        let pipe = self.cold.board.pipe(una, end);
        self.hot.out_of_pipe =
            i64::try_from(end - una).unwrap_or(i64::MAX) - i64::try_from(pipe).unwrap_or(i64::MAX);
        match self.cold.rack.phase {
            Phase::Recovery => self.hot.cc.on_delivered(arrived.delivered, pipe),
            // Reports alone do not open the window: RFC 3042 section 2 lets them send new segments
            // with cwnd unchanged. The bytes count once they are acknowledged.
            _ if arrived.acked > 0 => {
                let max = self.hot.snd_max;
                self.hot.cc.on_ack(now, una, max, arrived.acked, flight, &self.rto);
            }
            _ => {}
        }
        self.note_repair();
        due
    }

    /// Sets `REPAIR` if lost bytes wait and the windows allow sending them, and updates `disorder`.
    fn note_repair(&mut self) {
        let una = self.hot.snd_una;
        let next = self.cold.board.next_lost(una);
        let may = next.is_some_and(|r| {
            let outstanding = i64::try_from(self.hot.snd_next - una).unwrap_or(i64::MAX);
            let pipe = outstanding - self.hot.out_of_pipe;
            let need = r.len().min(u64::from(self.hot.emss));
            let room = i64::from(self.hot.cc.cwnd()) - pipe;
            (pipe <= 0 || room >= i64::try_from(need).unwrap_or(i64::MAX))
                && una + u64::from(self.hot.snd_wnd) > r.start
        });
        if may {
            self.hot.pending.set(Pending::REPAIR);
        } else {
            self.hot.pending.clear(Pending::REPAIR);
        }
        let rack = &self.cold.rack;
        self.hot.disorder = rack.phase != Phase::Open
            || rack.tail.is_some()
            || next.is_some()
            || !self.cold.board.is_plain()
            || self.has_probe();
    }

    /// Returns a segment that sends the first lost bytes again, up to the boundary of a record.
    #[cold]
    pub(super) fn repair<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
        end: StreamPos,
    ) -> Option<TxSegment> {
        self.hot.pending.clear(Pending::REPAIR);
        let una = self.hot.snd_una;
        let lost = self.cold.board.next_lost(una)?;
        let window = (una + u64::from(self.hot.snd_wnd)).since(lost.start);
        let max = lost.len().min(window).min(u64::from(self.hot.emss));
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        if max == 0 {
            return None;
        }
        let len = if lost.start < end { self.cut(q, lost.start, end, max) } else { 0 };
        let text_end = lost.start + u64::from(len);
        let fin = self.hot.snd_fin != NO_FIN && text_end == self.hot.snd_fin && text_end < lost.end;
        let range = Range::new(lost.start, text_end + u64::from(fin));
        if range.len() == 0 {
            return None;
        }
        let next = self.hot.snd_next;
        let tx = self.emit(now, lost.start, len, end, fin);
        self.hot.snd_next = next;
        self.cold.board.on_retransmit(range, now);
        let sent = u32::try_from(range.len()).unwrap_or(u32::MAX);
        self.hot.cc.on_retransmit(sent);
        self.hot.out_of_pipe -= i64::from(sent);
        if let Some(e) = &mut self.cold.rack.episode {
            e.note_retransmission(range);
        }
        if lost.start == una {
            // Never less than one RTO between this transmission and a timer retransmission.
            self.cold.rack.rto_at = now + self.rto.get();
            if self.hot.timer == Timer::Retransmit {
                self.hot.rtx_at = self.cold.rack.rto_at;
            }
        }
        self.note_repair();
        Some(tx)
    }

    /// Records the first segment at `now` in the scoreboard, unless the bytes at `from` are a
    /// retransmission of their own (then `from` is not `snd_next`).
    #[inline(never)]
    pub(super) fn note_burst(&mut self, now: Instant, from: StreamPos) {
        if self.hot.vain_acks > 0
            && now.nanos_since(self.hot.last_rx) < self.hot.delayed_ack_ns.into()
        {
            // These data carry the ACK of what came just before, or would have carried it.
            self.hot.vain_acks = 0;
        }
        if self.cold.searches {
            self.look_for_probe(now);
        }
        if self.hot.sack_ok && from == self.hot.snd_next {
            let apart = self.rto.burst_interval();
            self.cold.board.on_burst(self.hot.snd_una, from, now, apart);
            self.hot.burst_at = now;
        }
    }

    /// Handles expiry of the retransmission timer with data outstanding.
    pub(super) fn lose_all(&mut self, now: Instant, first: bool) {
        let (una, end) = (self.hot.snd_una, self.hot.snd_next);
        self.forget_probe(now, true);
        if first {
            let ts = self.ts_clock(now);
            self.start_episode(Some(ts));
        } else {
            // The peer may have dropped bytes that it reported (RFC 2018 section 8).
            self.cold.rack.episode = None;
            self.cold.board.forget_sacked();
        }
        self.hot.cc.on_timeout(una, self.hot.snd_max, first);
        self.hot.ecn.window_reduced();
        self.cold.board.lose_all(una, end);
        let rack = &mut self.cold.rack;
        rack.phase = Phase::Loss;
        rack.until = self.hot.snd_max;
        rack.tail = None;
        self.hot.pending.clear(Pending::TAIL);
        let pipe = self.cold.board.pipe(una, end);
        self.hot.out_of_pipe =
            i64::try_from(end - una).unwrap_or(i64::MAX) - i64::try_from(pipe).unwrap_or(i64::MAX);
        self.note_repair();
    }

    /// Makes the connection send all outstanding bytes anew from the oldest.
    pub(super) fn rewind(&mut self) {
        self.hot.snd_next = self.hot.snd_una;
        self.drop_probe();
        if !self.hot.sack_ok {
            return;
        }
        self.cold.board.reset(self.hot.snd_max);
        if self.cold.rack.phase == Phase::Recovery {
            self.hot.cc.end_recovery();
        }
        self.cold.rack.phase = Phase::Open;
        self.cold.rack.tail = None;
        self.cold.rack.episode = None;
        self.hot.pending.clear(Pending(Pending::REPAIR.0 | Pending::TAIL.0));
        self.hot.out_of_pipe = 0;
        self.hot.disorder = false;
        self.hot.timer = Timer::Retransmit;
        self.hot.burst_at = NEVER;
    }
}
