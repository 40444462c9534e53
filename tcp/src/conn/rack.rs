//! Loss detection by time and recovery with SACK: RACK-TLP (RFC 8985) over the scoreboard.
//!
//! Used when both sides permitted SACK; without it, duplicate ACKs and NewReno do what they can
//! (see `ack` and `congestion`).
//!
//! | phase | entered | sends | left |
//! |---|---|---|---|
//! | `Open` | | new data up to cwnd | |
//! | `Recovery` | RACK finds a loss | what is lost, then new data, by proportional rate reduction | all outstanding at its beginning is acknowledged |
//! | `Loss` | the retransmission timer expires | everything not SACKed, in slow start | likewise |
//!
//! One timer serves all (RFC 8985 section 8): that of reordering while a hole is too young to be
//! lost, that of the tail probe while nothing is wrong, that of retransmission otherwise.
//!
//! **Timeouts and the peer's delayed ACK.** The minimum of the retransmission timeout is a few
//! milliseconds, less than some peers delay an ACK. It does not lead to spurious timeouts, because
//! the tail probe comes first: where so little is outstanding that the peer may hold its ACK back,
//! the probe waits for `ack_delay` besides two round trips, and if the ACK was merely held back,
//! the probe draws it out at once, for the price of one segment and with no change to the
//! congestion window. The peer's D-SACK then tells that the probe was in vain, and `ack_delay`
//! doubles, up to what the slowest peers in use need. A timeout that is spurious all the same is
//! found by the echoed timestamp and undone (RFC 3522); so is a recovery all of whose
//! retransmissions turn out to have been needless.

use super::ranges::Range;
use super::scoreboard::Delivered;
use super::sequence::{offset, shifted};
use super::{Connection, NEVER, NO_FIN, Pending};
use crate::{Segment, SendQueue, TxSegment};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The longest a peer's delayed ACK is allowed for: twice what Linux uses at least.
const MAX_ACK_DELAY: Duration = Duration::from_millis(80);
/// Recoveries without D-SACK after which the reordering window shrinks again (RFC 8985 section 6.2,
/// step 4).
const REORDERING_PERSISTS: u8 = 16;

/// What is being done about losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Recovery,
    Loss,
}

/// What the timer at `rtx_at` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Retransmission, or a window probe.
    Retransmit,
    /// A hole may turn out lost.
    Reordering,
    /// A tail probe.
    Tail,
}

/// An outstanding tail probe (RFC 8985 section 7.4.2).
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    /// TLP.end_seq.
    end: StreamPos,
    /// TLP.is_retrans.
    again: bool,
}

/// What to restore if a reduction of the congestion window was a mistake.
#[derive(Clone, Copy, Debug)]
struct Episode {
    cwnd: u32,
    ssthresh: u32,
    /// Bytes sent again in it.
    again: u64,
    /// Of those, bytes the peer reported as duplicates.
    needless: u64,
    /// Timestamp clock at the timeout, until the first acknowledgment after it.
    timeout_ts: Option<u32>,
}

/// State of RACK-TLP apart from the scoreboard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    phase: Phase,
    /// What must be acknowledged before the phase ends.
    until: StreamPos,
    /// When the retransmission timer expires, whatever the timer is set to now.
    rto_at: Instant,
    tail: Option<TailProbe>,
    episode: Option<Episode>,
    /// How long the peer is believed to hold back an ACK at most.
    ack_delay: Duration,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult.
    reordering_mult: u8,
    /// RACK.reo_wnd_persist.
    reordering_persists: u8,
    /// The multiplier grows once per round trip: not before this is acknowledged.
    reordering_round: StreamPos,
}

impl Rack {
    pub(super) fn new(ack_delay: Duration) -> Rack {
        Rack {
            phase: Phase::Open,
            until: StreamPos::START,
            rto_at: NEVER,
            tail: None,
            episode: None,
            ack_delay,
            reordering_seen: false,
            reordering_mult: 1,
            reordering_persists: REORDERING_PERSISTS,
            reordering_round: StreamPos::START,
        }
    }
}

impl Connection {
    /// [`take_ack`](Connection::take_ack) with SACK, where the header prediction did not hold.
    pub(super) fn take_selective_ack(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
    ) -> Option<StreamPos> {
        if advance < 0 {
            return None;
        }
        let before = self.hot.snd_una;
        let una = shifted(before, advance);
        let end = self.hot.snd_next.max(una);
        let min_rtt = self.cold.rto.min_rtt();
        let mut d = Delivered::default();
        let kept = advance == 0 || self.cold.board.acked(now, before, una, min_rtt, &mut d);
        let duplicate = self.take_blocks(now, una, end, &mut d);
        if advance == 0 && seg.len == 0 && una < self.hot.snd_max {
            self.cold.counters.dup_acks += 1;
        }
        self.hot.snd_una = una;
        self.hot.snd_next = end;
        if advance > 0 {
            self.hot.pending.clear(Pending::TAIL);
            self.hot.progress_at = now;
            self.cold.timeouts = 0;
        }
        self.sample(now, seg, advance, &d);
        self.cold.rack.reordering_seen |= d.reordered;
        if advance > 0 {
            self.check_timeout(seg);
        }
        if let Some(range) = duplicate {
            self.on_duplicate(range);
        }
        self.check_tail_probe(seg, advance, duplicate);
        if !kept {
            self.cold.counters.sacks_reneged += 1;
            self.cold.board.forget_sacked();
            self.cold.board.lose_all(una, end);
        }
        self.update_window(now, seg, advance > 0);
        // The ACK that ends a phase does not make the window grow as well.
        let grown_by = if self.leave_phase() { 0 } else { d.bytes };
        let due = self.recover(now, grown_by, (end - before).max(1));
        if una == self.hot.snd_max {
            if advance > 0 {
                self.hot.rtx_at = NEVER;
            }
        } else {
            self.arm(now, due, advance > 0 || d.bytes > 0);
        }
        if advance > 0 { self.acked_from(now, before) } else { None }
    }

    /// Takes the blocks of a SACK option; the answer is what a D-SACK reports.
    fn take_blocks(
        &mut self,
        now: Instant,
        una: StreamPos,
        end: StreamPos,
        d: &mut Delivered,
    ) -> Option<Range> {
        let base = self.hot.snd_base;
        let mut blocks = [Range::new(una, una); crate::SackBlocks::MAX];
        for (place, b) in blocks.iter_mut().zip(self.cold.sack_in.as_slice()) {
            let (from, to) = (offset(base, una, b.start), offset(base, una, b.end));
            if from < to && to - from <= i64::from(self.hot.max_wnd.max(1)) {
                *place = Range::new(shifted(una, from), shifted(una, to));
            }
        }
        // RFC 2883 section 4: in front of what is acknowledged, or inside the second block.
        let [first, second, ..] = blocks;
        let inside = second.len() > 0 && second.start <= first.start && first.end <= second.end;
        let duplicate = Some(first).filter(|r| r.len() > 0 && (r.end <= una || inside));
        if duplicate.is_some() {
            blocks[0] = Range::new(una, una);
        }
        // From below: what lies above does not make what lies below look late.
        blocks.sort_unstable_by_key(|r| r.start);
        for r in blocks.iter().filter(|r| r.start >= una && r.end <= end && r.len() > 0) {
            let min_rtt = self.cold.rto.min_rtt();
            self.cold.board.sacked(now, r.start, r.end, min_rtt, d);
        }
        duplicate
    }

    /// Round trips of what was sent only once; while all there is was sent again and the timeout
    /// has been backed off, the echoed timestamp ends that.
    fn sample(&mut self, now: Instant, seg: &Segment, advance: i64, d: &Delivered) {
        if self.hot.timed.is_some_and(|(end, _)| self.hot.snd_una >= end) {
            self.hot.timed = None;
        }
        if let Some(at) = d.sent_once {
            self.cold.rto.sample(now - at);
        } else if advance > 0
            && self.cold.rto.is_backed_off()
            && let Some(rtt) = self.echoed_rtt(now, seg)
        {
            self.cold.rto.sample(rtt);
        }
    }

    /// The first acknowledgment after a timeout: does it answer what was sent before (RFC 3522)?
    fn check_timeout(&mut self, seg: &Segment) {
        let Some(e) = &mut self.cold.rack.episode else { return };
        if let (Some(at), Some(ts)) = (e.timeout_ts.take(), seg.timestamps)
            && self.hot.ts_ok
            && self.cold.rack.phase == Phase::Loss
            && ts.ecr.wrapping_sub(at).cast_signed() < 0
        {
            self.cold.counters.spurious_timeouts += 1;
            self.undo();
        }
    }

    /// A D-SACK reports `range`.
    fn on_duplicate(&mut self, range: Range) {
        self.cold.counters.spurious_retransmits += 1;
        let una = self.hot.snd_una;
        let rack = &mut self.cold.rack;
        if rack.tail.is_none() && una >= rack.reordering_round {
            rack.reordering_mult = rack.reordering_mult.saturating_add(1);
            rack.reordering_round = self.hot.snd_max;
        }
        rack.reordering_persists = REORDERING_PERSISTS;
        if let Some(e) = &mut rack.episode {
            e.needless += range.len();
            if e.again > 0 && e.needless >= e.again {
                self.undo();
            }
        }
    }

    /// The congestion window was reduced by mistake.
    fn undo(&mut self) {
        let Some(e) = self.cold.rack.episode.take() else { return };
        self.cold.counters.recoveries_undone += 1;
        self.hot.cc.undo(e.cwnd, e.ssthresh);
        if self.cold.rack.phase != Phase::Open {
            self.cold.rack.phase = Phase::Open;
            self.cold.board.lose_nothing(self.hot.snd_una);
        }
    }

    /// RFC 8985 section 7.4.2.
    fn check_tail_probe(&mut self, seg: &Segment, advance: i64, duplicate: Option<Range>) {
        let una = self.hot.snd_una;
        let Some(tail) = self.cold.rack.tail.filter(|t| una >= t.end) else { return };
        let sack = self.cold.sack_in;
        let rack = &mut self.cold.rack;
        if !tail.again {
            // A probe of new data arrived; if anything was lost, RACK knows by now.
        } else if duplicate.is_some_and(|r| r.end == tail.end) {
            // The ACK was only held back.
            rack.ack_delay = (rack.ack_delay * 2).min(MAX_ACK_DELAY);
        } else if una > tail.end {
            // The probe repaired a loss.
            if rack.phase == Phase::Open {
                self.hot.cc.reduce_once();
            }
        } else if advance > 0 || seg.len > 0 || !sack.is_empty() {
            // Not yet the duplicate ACK by which a peer without D-SACK tells that it has both.
            return;
        } else {
            rack.ack_delay = (rack.ack_delay * 2).min(MAX_ACK_DELAY);
        }
        self.cold.rack.tail = None;
    }

    /// Whether all that was outstanding when the phase began is acknowledged: then it is over.
    fn leave_phase(&mut self) -> bool {
        let una = self.hot.snd_una;
        let rack = &mut self.cold.rack;
        if rack.phase == Phase::Open || una < rack.until {
            return false;
        }
        if rack.phase == Phase::Recovery {
            self.hot.cc.end_recovery();
        }
        rack.phase = Phase::Open;
        rack.reordering_persists = rack.reordering_persists.saturating_sub(1);
        if rack.reordering_persists == 0 {
            rack.reordering_mult = 1;
        }
        true
    }

    /// Looks for losses, `delivered` bytes after the last time, and sets the congestion window;
    /// `flight` was outstanding before. The answer is when to look again.
    fn recover(&mut self, now: Instant, delivered: u64, flight: u64) -> Option<Instant> {
        let (una, end) = (self.hot.snd_una, self.hot.snd_next);
        let window = self.reordering_window();
        let due = self.cold.board.detect(now, una, end, window);
        if self.cold.rack.phase == Phase::Open && self.cold.board.has_lost(una) {
            self.cold.counters.fast_retransmits += 1;
            self.start_episode(None);
            self.hot.cc.start_recovery(flight);
            self.cold.rack.phase = Phase::Recovery;
            self.cold.rack.until = self.hot.snd_max;
        }
        let pipe = self.cold.board.pipe(una, end);
        self.hot.away =
            i64::try_from(end - una).unwrap_or(i64::MAX) - i64::try_from(pipe).unwrap_or(i64::MAX);
        match self.cold.rack.phase {
            Phase::Recovery => self.hot.cc.on_delivered(delivered, pipe),
            _ if delivered > 0 => {
                self.hot.cc.on_ack(una, delivered, flight);
            }
            _ => {}
        }
        self.note_repair();
        due
    }

    /// RFC 8985 section 6.2, step 4.
    fn reordering_window(&self) -> Duration {
        let rack = &self.cold.rack;
        let certain =
            rack.phase != Phase::Open || self.cold.board.past_dup_threshold(self.hot.emss);
        if !rack.reordering_seen && certain {
            return Duration::ZERO;
        }
        let window = self.cold.rto.min_rtt() / 4 * u32::from(rack.reordering_mult);
        self.cold.rto.srtt().map_or(window, |srtt| window.min(srtt))
    }

    fn start_episode(&mut self, timeout_ts: Option<u32>) {
        let (cwnd, ssthresh) = (self.hot.cc.cwnd(), self.hot.cc.ssthresh());
        // What a timeout in the middle of a recovery undoes is the recovery too.
        let before = self.cold.rack.episode.filter(|_| self.cold.rack.phase != Phase::Open);
        self.cold.rack.episode = Some(Episode {
            cwnd: before.map_or(cwnd, |e| e.cwnd),
            ssthresh: before.map_or(ssthresh, |e| e.ssthresh),
            again: before.map_or(0, |e| e.again),
            needless: before.map_or(0, |e| e.needless),
            timeout_ts,
        });
    }

    /// Whether something is to be sent again, and may be; whether anything is out of the ordinary.
    fn note_repair(&mut self) {
        let una = self.hot.snd_una;
        let next = self.cold.board.next_lost(una);
        let may = next.is_some_and(|r| {
            let pipe = i64::try_from(self.hot.snd_next - una).unwrap_or(i64::MAX) - self.hot.away;
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
            || self.hot.away != 0
            || next.is_some()
            || !self.cold.board.nothing_sacked();
    }

    /// Sends the first lost bytes again, up to the boundary of a record.
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
        self.cold.board.on_again(range, now);
        let sent = u32::try_from(range.len()).unwrap_or(u32::MAX);
        self.hot.cc.on_again(sent);
        self.hot.away -= i64::from(sent);
        if let Some(e) = &mut self.cold.rack.episode {
            e.again += range.len();
        }
        if lost.start == una {
            // Never less than one RTO between this transmission and one by the timer.
            self.cold.rack.rto_at = now + self.cold.rto.get();
            if self.hot.timer == Timer::Retransmit {
                self.hot.rtx_at = self.cold.rack.rto_at;
            }
        }
        self.note_repair();
        Some(tx)
    }

    /// Sets the timer while something is outstanding: `due` is when a hole may be lost.
    fn arm(&mut self, now: Instant, due: Option<Instant>, progress: bool) {
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

    /// The first segment is sent at `now`: the scoreboard remembers when, unless the bytes at `from`
    /// go again for themselves.
    #[inline(never)]
    pub(super) fn note_burst(&mut self, now: Instant, from: StreamPos) {
        if self.hot.sack_ok && from == self.hot.snd_next {
            self.cold.board.on_burst(self.hot.snd_una, from, now);
            self.hot.burst_at = now;
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
            rto.max(self.cold.rto.tail() + self.cold.rack.ack_delay)
        } else {
            rto
        }
    }

    /// Whether so little is outstanding that the peer need not acknowledge it at once (RFC 5681
    /// section 4.2).
    fn may_be_delayed(&self) -> bool {
        self.hot.sack_ok && self.hot.snd_max - self.hot.snd_una < 2 * u64::from(self.hot.emss)
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
        let due = self.recover(now, 0, flight);
        self.arm(now, due, false);
    }

    /// Nothing was acknowledged for two round trips (RFC 8985 section 7.3).
    pub(super) fn tail_timed_out(&mut self, now: Instant) {
        let (una, max) = (self.hot.snd_una, self.hot.snd_max);
        if una == max {
            return;
        }
        if self.hot.snd_wnd == 0 {
            self.data_timed_out(now);
            return;
        }
        // The timer is not put off with every segment sent, nor does it know how much would be
        // outstanding.
        let mut timeout = self.cold.rto.tail();
        if self.may_be_delayed() {
            timeout += self.cold.rack.ack_delay;
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

    /// A tail probe: a new segment, even beyond the congestion window, or else the last one again.
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
        let again = new == 0 || next + u64::from(new) > edge || next < max;
        let tx = if again {
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
            self.cold.board.on_tail_again(una, start, now);
            self.hot.burst_at = now;
            tx
        } else {
            self.emit(now, next, new, end, false)
        };
        self.cold.counters.tail_probes += 1;
        self.cold.rack.tail = Some(TailProbe { end: self.hot.snd_max, again });
        self.hot.disorder = true;
        Some(tx)
    }

    /// The retransmission timer expired with data outstanding.
    pub(super) fn lose_all(&mut self, now: Instant, first: bool) {
        let (una, end) = (self.hot.snd_una, self.hot.snd_next);
        if first {
            let ts = self.ts_clock(now);
            self.start_episode(Some(ts));
        } else {
            // The peer may have dropped what it reported (RFC 2018 section 8).
            self.cold.rack.episode = None;
            self.cold.board.forget_sacked();
        }
        self.hot.cc.on_timeout(una, self.hot.snd_max, first);
        self.cold.board.lose_all(una, end);
        let rack = &mut self.cold.rack;
        rack.phase = Phase::Loss;
        rack.until = self.hot.snd_max;
        rack.tail = None;
        self.hot.pending.clear(Pending::TAIL);
        self.hot.away = i64::try_from(end - una).unwrap_or(i64::MAX);
        self.note_repair();
    }

    /// What is outstanding will be sent anew from the beginning.
    pub(super) fn rewind(&mut self) {
        self.hot.snd_next = self.hot.snd_una;
        if !self.hot.sack_ok {
            return;
        }
        self.cold.board.reset();
        if self.cold.rack.phase == Phase::Recovery {
            self.hot.cc.end_recovery();
        }
        self.cold.rack.phase = Phase::Open;
        self.cold.rack.tail = None;
        self.cold.rack.episode = None;
        self.hot.pending.clear(Pending(Pending::REPAIR.0 | Pending::TAIL.0));
        self.hot.away = 0;
        self.hot.disorder = false;
        self.hot.timer = Timer::Retransmit;
        self.hot.burst_at = NEVER;
    }
}
