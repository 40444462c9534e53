//! Incoming segments: checks in the order of RFC 9293 section 3.10.7.4, with PAWS (RFC 7323) and
//! RFC 5961.

use super::sequence::{offset, shifted, signed};
use super::state::{Input, State};
use super::{ConnEvent, Connection, NEVER, NO_FIN, Pending};
use crate::{Flags, Payload, RareOptions, SackBlocks, Segment, SegmentOutcome};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The number of ACKs of full segments that the connection does not hold back after a gap in the
/// peer's stream; the same number as Linux sends.
const QUICK_ACKS: u8 = 16;

/// The number of ACKs in a row that the connection has held back in vain before it holds back no
/// more: a single one may have met a pause of the application.
const VAIN_ACKS: u8 = 2;

/// After this long without an acceptable segment TS.Recent proves nothing (RFC 7323 section 5.5).
const TS_RECENT_MAX_AGE: Duration = Duration::from_secs(24 * 24 * 3600);

impl Connection {
    /// Takes a segment whose checksum and addresses the caller has checked.
    ///
    /// Any segment may come in any state. The connection counts faults, and answers them where the
    /// RFCs say so. The worker that owns the connection calls this function once per segment
    /// received.
    #[inline]
    pub fn handle_segment(&mut self, now: Instant, seg: &Segment) -> SegmentOutcome {
        match self.predict(seg) {
            Some(advance) => self.handle_predicted(now, seg, advance),
            None => self.handle_other(now, seg),
        }
    }

    /// Takes a segment with a SACK option, as [`handle_segment`](Connection::handle_segment) takes
    /// one without.
    pub fn handle_selective(
        &mut self,
        now: Instant,
        seg: &Segment,
        sack: &SackBlocks,
    ) -> SegmentOutcome {
        **self.cold.sack_in.get_or_insert_default() = *sack;
        let outcome = self.handle_other(now, seg);
        if let Some(sack) = &mut self.cold.sack_in {
            **sack = SackBlocks::NONE;
        }
        outcome
    }

    /// Header prediction. Returns how far the ACK of `seg` advances if the connection is
    /// established, `seg` is the expected segment, and nothing is out of the ordinary on either
    /// side.
    #[inline(always)]
    pub(crate) fn predict(&self, seg: &Segment) -> Option<i64> {
        const PLAIN: u16 = Flags::ACK.0;
        const LOOKED_AT: u16 = PLAIN | Flags::SYN.0 | Flags::FIN.0 | Flags::RST.0 | Flags::ACE.0;
        let hot = &self.hot;
        let advance = offset(hot.snd_base, hot.snd_una, seg.ack);
        let ts_fine = match (hot.ts_ok, seg.timestamps) {
            (true, Some(ts)) => ts.val.wrapping_sub(hot.ts_recent).cast_signed() >= 0,
            (true, None) => false,
            (false, _) => true,
        };
        let fine = hot.state == State::Established
            && seg.flags.0 & LOOKED_AT == PLAIN | hot.ecn.expected().0
            && seg.seq == self.rcv_seq()
            && ts_fine
            && !hot.gaps
            && u64::from(seg.len) <= hot.rcv_adv - hot.rcv_nxt
            && advance >= 0
            && advance <= signed(hot.snd_max, hot.snd_una)
            && (advance > 0 || seg.len > 0)
            && hot.cc.is_open()
            && !hot.disorder
            && !seg.ecn.is_ce()
            && !hot.ecn.awaits_change(hot.echo);
        fine.then_some(advance)
    }

    /// Takes the segment of which [`predict`](Connection::predict) has returned `advance`, or that
    /// segment with more bytes after it, within [`receive_room`](Connection::receive_room). Such a
    /// segment causes no event.
    #[inline(always)]
    pub(crate) fn handle_predicted(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
    ) -> SegmentOutcome {
        if self.hot.ecn.is_accurate() {
            return self.handle_accurate(now, seg, advance);
        }
        self.take_timestamp(now, seg, 0);
        let acked = if advance > 0 {
            self.advance_una(now, seg.timestamps, shifted(self.hot.snd_una, advance))
        } else {
            None
        };
        self.update_window(now, seg, advance > 0);
        SegmentOutcome { acked, payload: self.next_payload(seg.len) }
    }

    /// Does the work of [`handle_predicted`](Connection::handle_predicted) for a connection with
    /// accurate ECN, which counts the bytes of either direction.
    #[inline(never)]
    fn handle_accurate(&mut self, now: Instant, seg: &Segment, advance: i64) -> SegmentOutcome {
        self.count_arrival(seg);
        let marks = self.reported_marks(seg, advance, true);
        self.take_timestamp(now, seg, 0);
        let acked = match marks {
            Some(bytes) => self.take_echo(now, seg, advance, bytes),
            None => {
                let una = shifted(self.hot.snd_una, advance);
                let acked = (advance > 0).then(|| self.advance_una(now, seg.timestamps, una));
                self.update_window(now, seg, advance > 0);
                acked.flatten()
            }
        };
        SegmentOutcome { acked, payload: self.next_payload(seg.len) }
    }

    /// Returns the next `len` bytes of the peer's stream.
    #[inline(always)]
    fn next_payload(&self, len: u32) -> Option<Payload> {
        (len > 0).then_some(Payload { pos: self.hot.rcv_nxt, skip: 0, len, in_order: true })
    }

    /// Takes a segment with rare options, and perhaps a SACK option, as
    /// [`handle_segment`](Connection::handle_segment) takes one without.
    #[cold]
    pub fn handle_with_options(
        &mut self,
        now: Instant,
        seg: &Segment,
        sack: Option<&SackBlocks>,
        options: &RareOptions,
    ) -> SegmentOutcome {
        let handle = |c: &mut Connection| match sack {
            Some(sack) => c.handle_selective(now, seg, sack),
            None => c.handle_segment(now, seg),
        };
        self.offer_counts(options.counts);
        let outcome = match options.user_timeout {
            Some(advice) => self.handle_advice(now, advice, handle),
            None => handle(self),
        };
        self.offer_counts(None);
        outcome
    }

    #[inline(never)]
    fn handle_other(&mut self, now: Instant, seg: &Segment) -> SegmentOutcome {
        match self.hot.state {
            State::Closed => SegmentOutcome::default(),
            State::SynSent => {
                self.handle_syn_sent(now, seg);
                SegmentOutcome::default()
            }
            State::SynReceived if self.is_own_handshake(seg) => {
                if seg.flags.has(Flags::ACK) {
                    // Simultaneous open: the connection has taken the SYN before; only the ACK
                    // counts.
                    let rest = Segment {
                        seq: seg.seq.advance(1),
                        flags: Flags(seg.flags.0 & !(Flags::SYN.0 | Flags::FIN.0)),
                        len: 0,
                        ..*seg
                    };
                    return self.handle_numbered(now, &rest, seg.flags.has(Flags::SYN));
                }
                // The peer missed our SYN-ACK, or a stranger repeats the peer's SYN. The SYN-ACK
                // timer keeps running: it alone decides when the connection gives up the attempt.
                self.cold.counters.duplicate_segments += 1;
                if !self.note_own_syn(seg) {
                    self.abort();
                } else if self.may_answer(now) {
                    self.hot.pending.set(Pending::SYN);
                }
                SegmentOutcome::default()
            }
            _ => self.handle_numbered(now, seg, false),
        }
    }

    /// Returns true if `seg` is a repeat of the SYN that this connection began with, perhaps with
    /// an ACK.
    fn is_own_handshake(&self, seg: &Segment) -> bool {
        seg.flags.has(Flags::SYN)
            && !seg.flags.has(Flags::RST)
            && seg.seq.advance(1) == self.hot.rcv_base
            && (!seg.flags.has(Flags::ACK) || seg.ack == self.hot.snd_base)
    }

    /// Handles a segment in SYN-RECEIVED and all later states. `unscaled` means that the window
    /// field is that of a SYN.
    fn handle_numbered(&mut self, now: Instant, seg: &Segment, unscaled: bool) -> SegmentOutcome {
        let nothing = SegmentOutcome::default();
        let window = signed(self.hot.rcv_adv, self.hot.rcv_nxt);
        let at = offset(self.hot.rcv_base, self.hot.rcv_nxt, seg.seq);
        if seg.flags.has(Flags::RST) {
            self.handle_reset(now, at, window);
            return nothing;
        }
        if seg.flags.has(Flags::SYN) {
            if self.note_late_syn_ack(seg) {
                self.answer_late_syn_ack(now);
            } else {
                self.handle_late_syn(now, at, window);
            }
            return nothing;
        }
        if !self.timestamp_is_fine(now, seg) {
            return nothing;
        }
        if !self.is_acceptable(now, seg, at, window) {
            return nothing;
        }
        if self.hot.state == State::FinWait2 && seg.len > 0 && !self.is_bounded() {
            // The peer still has bytes to send, if only to probe a window that we shut.
            self.hot.wait_at = now + self.cold.set.fin_wait_2();
        }
        if !seg.flags.has(Flags::ACK) {
            self.cold.counters.bad_acks += 1;
            return nothing;
        }
        let advance = offset(self.hot.snd_base, self.hot.snd_una, seg.ack);
        let opens = self.hot.state == State::SynReceived;
        if opens {
            if advance != 0 {
                self.cold.counters.bad_acks += 1;
                self.reply_reset(seg);
                return nothing;
            }
            self.establish(now, seg, unscaled);
            if unscaled {
                self.hot.pending.set(Pending::ACK);
                return nothing;
            }
        } else if advance > signed(self.hot.snd_max, self.hot.snd_una)
            || advance < -i64::from(self.hot.max_wnd)
            || advance < signed(StreamPos::START, self.hot.snd_una)
        {
            // RFC 5961 section 5.2. No peer acknowledges less than our SYN, either.
            self.cold.counters.bad_acks += 1;
            self.challenge(now);
            return nothing;
        }
        let ecn = self.hot.ecn.is_on();
        let newer = ecn && self.is_newer(seg, at, advance);
        self.take_timestamp(now, seg, at);
        let marks = if ecn { self.take_ecn(seg, advance, newer, opens) } else { None };
        let acked = match marks {
            Some(bytes) => self.take_echo(now, seg, advance, bytes),
            None => self.take_ack(now, seg, advance),
        };
        let payload =
            if self.hot.state.receives() { self.take_text(now, seg, at, window) } else { None };
        SegmentOutcome { acked, payload }
    }

    /// Returns true if the segment passes PAWS (RFC 7323 section 5.3) and carries the timestamp
    /// that was negotiated (section 3.2).
    fn timestamp_is_fine(&mut self, now: Instant, seg: &Segment) -> bool {
        if !self.hot.ts_ok {
            return true;
        }
        let Some(ts) = seg.timestamps else {
            self.cold.counters.missing_timestamps += 1;
            return false;
        };
        let old = ts.val.wrapping_sub(self.hot.ts_recent).cast_signed() < 0
            && now - self.hot.last_rx <= TS_RECENT_MAX_AGE;
        if old {
            self.cold.counters.paws_drops += 1;
            // Anyone who guesses ports and numbers can draw these ACKs, so they are limited.
            self.challenge(now);
        }
        !old
    }

    /// Returns true if the segment touches the window (RFC 9293 section 3.10.7.4, first check).
    /// Schedules the answer otherwise.
    ///
    /// The function accepts two cases that the letter of the table refuses, because their ACK is
    /// needed: a bare ACK at the right edge itself, from a peer that filled the window, and a
    /// segment at `rcv_nxt` while the window is shut. Neither case brings bytes.
    fn is_acceptable(&mut self, now: Instant, seg: &Segment, at: i64, window: i64) -> bool {
        let fin = seg.flags.has(Flags::FIN);
        let len = i64::from(seg.len) + i64::from(fin);
        let touches = if len == 0 {
            at >= 0 && at <= window
        } else {
            (at < window && at + len > 0) || at == 0
        };
        if touches {
            return true;
        }
        if len == 0 {
            self.cold.counters.out_of_window += 1;
            // A bare ACK draws a limited answer: two peers that disagree must not answer each other
            // for ever.
            self.challenge(now);
            return false;
        }
        if at < 0 {
            self.cold.counters.duplicate_segments += 1;
            // Bytes before the first are of no stream of the peer, and are not reported.
            let (start, end) = (at, at + i64::from(seg.len));
            let next = self.hot.rcv_nxt;
            self.report_duplicate(shifted(next, start), shifted(next, end));
        } else {
            self.cold.counters.out_of_window += 1;
        }
        self.hot.pending.set(Pending::ACK);
        if self.hot.state == State::TimeWait && fin {
            self.hot.wait_at = now + self.cold.set.time_wait();
        }
        false
    }

    /// Records a sign of life after an acceptable segment, and perhaps the timestamp to echo: the
    /// timestamp of the segment at the last ACK sent (RFC 7323 section 4.3).
    #[inline]
    fn take_timestamp(&mut self, now: Instant, seg: &Segment, at: i64) {
        self.hot.last_rx = now;
        if !self.hot.ts_ok {
            return;
        }
        if let Some(ts) = seg.timestamps
            && shifted(self.hot.rcv_nxt, at) <= self.hot.last_ack
        {
            self.hot.ts_recent = ts.val;
        }
    }

    /// Takes payload and FIN of an acceptable segment.
    fn take_text(&mut self, now: Instant, seg: &Segment, at: i64, window: i64) -> Option<Payload> {
        let text = seg.len > 0 || seg.flags.has(Flags::FIN);
        let end = at + i64::from(seg.len);
        // The segment is not the expected one, or exceeds the window: acknowledge our position at
        // once.
        if text && (at != 0 || end > window) {
            self.hot.pending.set(Pending::ACK);
            if at < 0 && end > 0 {
                self.report_duplicate(shifted(self.hot.rcv_nxt, at), self.hot.rcv_nxt);
            }
            if !self.hot.sack_ok && at > 0 && seg.len > 0 {
                // The sender counts these ACKs (RFC 5681 section 3.2). Send one for each segment,
                // even if the connection answers a burst of segments together.
                self.hot.dup_acks_owed = self.hot.dup_acks_owed.saturating_add(1);
            }
        }
        let payload = if seg.len > 0 { self.new_payload(at, end.min(window)) } else { None };
        if seg.flags.has(Flags::FIN) && end >= 0 && end < window {
            self.note_fin(shifted(self.hot.rcv_nxt, end));
            self.reach_fin(now);
        }
        payload
    }

    /// Returns the first part of the payload from `at` to `end` (from `rcv_nxt`) that the owner has
    /// not accepted yet.
    fn new_payload(&mut self, at: i64, end: i64) -> Option<Payload> {
        let next = self.hot.rcv_nxt;
        let start = shifted(next, at.max(0));
        let end = shifted(next, end).min(self.cold.rcv_fin);
        let Some((pos, end)) = self.cold.ranges.first_gap(start, end) else {
            self.cold.counters.duplicate_segments += 1;
            self.hot.pending.set(Pending::ACK);
            self.report_duplicate(start, end);
            return None;
        };
        let in_order = pos == next;
        if !in_order {
            self.cold.counters.ooo_segments += 1;
            if !self.cold.ranges.has_room(pos, end) {
                self.cold.counters.ooo_refused += 1;
                return None;
            }
        }
        let skip = u32::try_from(signed(pos, next) - at).ok()?;
        let len = u32::try_from(end - pos).ok()?;
        Some(Payload { pos, skip, len, in_order })
    }

    /// Records that the owner took `len` bytes of the peer's stream from `pos` on: all or the first
    /// part of the payload that [`handle_segment`](Connection::handle_segment) reported last. The
    /// connection acknowledges these bytes, at once or a little later.
    #[inline]
    pub fn accept_payload(&mut self, now: Instant, pos: StreamPos, len: u32) {
        self.accept_segments(now, pos, len, len);
    }

    /// Records the same of a run of segments, of which the longest has `segment` bytes.
    #[inline]
    pub fn accept_segments(&mut self, now: Instant, pos: StreamPos, len: u32, segment: u32) {
        if !self.hot.state.receives() {
            return;
        }
        let next = self.hot.rcv_nxt;
        let end = (pos + u64::from(len)).min(self.hot.rcv_adv);
        if self.hot.gaps || pos != next {
            self.accept_among_gaps(now, pos, end);
        } else if end > next {
            self.hot.rcv_nxt = end;
            self.schedule_ack(now, segment);
        }
    }

    #[inline(never)]
    fn accept_among_gaps(&mut self, now: Instant, pos: StreamPos, end: StreamPos) {
        let end = end.min(self.cold.rcv_fin);
        let next = self.hot.rcv_nxt;
        if pos > next {
            // The peer is about to halve its window. With the few segments of a small window, a
            // held-back ACK of an odd segment would make the peer wait for the next round trip. RFC
            // 5681 section 4.2 demands an ACK for every second segment at least, and allows one for
            // each.
            self.hot.quick_acks = QUICK_ACKS;
            self.note_len(u32::try_from(end.since(pos)).unwrap_or(u32::MAX));
            if self.cold.ranges.insert(pos, end) {
                self.report_grown(pos);
            }
        } else if end > next {
            let had_ranges = !self.cold.ranges.is_empty();
            self.hot.rcv_nxt = self.cold.ranges.reach(end);
            self.hot.dup_acks_owed = 0;
            self.report_gap_closed();
            if had_ranges {
                // The payload filled a gap, at least in part (RFC 5681 section 4.2).
                self.hot.pending.set(Pending::ACK);
            } else {
                self.schedule_ack(now, u32::try_from(end - next).unwrap_or(u32::MAX));
            }
            self.reach_fin(now);
        }
        self.hot.gaps = !self.cold.ranges.is_empty()
            || (self.cold.rcv_fin != NO_FIN && self.hot.rcv_nxt <= self.cold.rcv_fin);
    }

    /// Acknowledges more bytes, which came in segments of `len` bytes: at once when two full segments
    /// wait, otherwise after a delay (RFC 9293 section 3.8.6.3, RFC 5681 section 4.2).
    ///
    /// The delay lets data carry the ACK. Where no data comes, as for lone RDMA Writes, it only makes
    /// the peer wait: after [`VAIN_ACKS`] such delays the connection acknowledges each burst at once,
    /// until it sends data again so soon that a delayed ACK would have gone with them.
    #[inline]
    fn schedule_ack(&mut self, now: Instant, len: u32) {
        self.note_len(len);
        let hot = &mut self.hot;
        let delay = hot.delayed_ack();
        if hot.rcv_nxt - hot.last_ack >= 2 * u64::from(hot.rcv_mss) || delay.is_zero() {
            hot.pending.set(Pending::ACK);
        } else if hot.quick_acks > 0 && len >= hot.rcv_mss {
            hot.quick_acks -= 1;
            hot.pending.set(Pending::ACK);
        } else if hot.vain_acks >= VAIN_ACKS {
            hot.pending.set(Pending::ACK);
        } else if hot.ack_at == NEVER {
            hot.ack_at = now + delay;
        }
    }

    /// Records that the peer sent a segment of `len` bytes.
    #[inline]
    fn note_len(&mut self, len: u32) {
        let hot = &mut self.hot;
        hot.rcv_mss = hot.rcv_mss.max(len.min(u32::from(hot.mss)));
    }

    /// Remembers where the peer's stream ends.
    fn note_fin(&mut self, pos: StreamPos) {
        let contradicts = if self.cold.rcv_fin == NO_FIN {
            self.cold.ranges.end().is_some_and(|end| end > pos)
        } else {
            self.cold.rcv_fin != pos
        };
        if contradicts {
            self.cold.counters.bad_fins += 1;
            return;
        }
        self.cold.rcv_fin = pos;
        self.hot.gaps = true;
    }

    /// Takes the FIN when the owner has accepted all bytes before it.
    fn reach_fin(&mut self, now: Instant) {
        if self.hot.rcv_nxt != self.cold.rcv_fin {
            return;
        }
        let Some(state) = self.enter(Input::Fin) else { return };
        self.hot.rcv_nxt += 1;
        self.hot.gaps = false;
        self.hot.pending.set(Pending::ACK);
        self.hot.events.push(ConnEvent::PeerClosed);
        if state == State::TimeWait {
            self.start_time_wait(now);
        }
    }

    /// Returns how many bytes from `rcv_nxt` on the peer may send.
    #[inline]
    pub(crate) fn receive_room(&self) -> u32 {
        u32::try_from(self.hot.rcv_adv - self.hot.rcv_nxt).unwrap_or(u32::MAX)
    }

    /// Returns how far the right edge could move.
    pub(super) fn window_gain(&self) -> u64 {
        (self.hot.rcv_nxt + u64::from(self.hot.recv_window)).since(self.hot.rcv_adv)
    }

    /// Returns the least by which the right edge moves, so that the peer is not led into sending
    /// tiny segments (RFC 9293 section 3.8.6.2.2).
    pub(super) fn window_step(&self) -> u32 {
        u32::from(self.hot.mss).min(self.hot.recv_window / 2).max(1)
    }
}
