//! Sending: which segment goes next.

use super::state::State;
use super::{Connection, NEVER, NO_FIN, Pending, Timed};
use crate::stack::Train;
use crate::{ByteCounts, Flags, SendQueue, Timestamps, TxSegment};
use heddle_base::{Instant, StreamPos};

/// The most bytes of payload in a train: an IPv4 packet has at most 65,535 bytes, headers included.
const TRAIN_MAX: u32 = 65_535 - 20 - 60;

impl Connection {
    /// Returns the next segment to send, in this order: RST, SYN, bytes sent before, new bytes,
    /// FIN, ACK. Returns `None` when the connection has nothing (more) to send. A returned segment
    /// counts as sent.
    ///
    /// `q` holds at least the bytes from [`snd_una`](Connection::snd_una) on.
    /// [`SendQueue::segment_len`] cuts the segments. The connection cuts a record only where the
    /// peer's window never had room for it, to probe a window, and to repeat a segment that was cut
    /// before.
    #[inline]
    pub fn poll_transmit<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
    ) -> Option<TxSegment> {
        // As a rule, only data waits.
        if self.hot.pending != Pending::default() {
            if self.hot.pending.any(Pending::CONTROL) {
                return Some(self.control(now));
            }
            if self.hot.sack_due && self.hot.pending.any(Pending::ACK) {
                return Some(self.selective_ack(now));
            }
            if self.hot.pending.any(Pending::MTU)
                && let Some(next) = self.probe_first(now, q)
            {
                return next;
            }
        }
        if self.hot.state.sends()
            && let Some(tx) = self.data(now, q)
        {
            return Some(tx);
        }
        if self.hot.pending.any(Pending::ACK) {
            return Some(self.bare_ack(now));
        }
        None
    }

    /// Returns an ACK without data.
    #[inline(always)]
    pub(super) fn bare_ack(&mut self, now: Instant) -> TxSegment {
        let mut tx = self.segment(now, self.ack_pos(), Flags::ACK);
        if self.hot.ecn.is_accurate() {
            tx.counts = self.new_counts();
        }
        if self.hot.dup_acks_owed > 0 {
            self.pay_dup_ack();
        }
        tx
    }

    /// Counts an ACK among those that the sender counts, and has the next one sent.
    #[cold]
    fn pay_dup_ack(&mut self) {
        self.hot.dup_acks_owed -= 1;
        if self.hot.dup_acks_owed > 0 {
            self.hot.pending.set(Pending::ACK);
        }
    }

    /// Returns true if [`poll_transmit`](Connection::poll_transmit) may have a segment to send, for
    /// a queue that ends at `end`.
    #[inline]
    pub fn wants_transmit(&self, end: StreamPos) -> bool {
        let hot = &self.hot;
        if hot.pending != Pending::default() {
            return true;
        }
        let end = end.min(hot.snd_fin);
        let more = hot.snd_next < end || (hot.state.closing() && hot.snd_next <= hot.snd_fin);
        // Blocked with nothing outstanding: `poll_transmit` must start the probe timer.
        hot.state.sends()
            && more
            && hot.pace_at == NEVER
            && (self.right_edge() > hot.snd_next || hot.rtx_at == NEVER)
    }

    /// Returns `snd_una` plus the bytes that the peer and the network allow to be outstanding.
    #[inline]
    pub(super) fn right_edge(&self) -> StreamPos {
        let hot = &self.hot;
        let congestion =
            if hot.snd_next == hot.snd_max { hot.cc.allowance() } else { hot.cc.cwnd() };
        if hot.disorder {
            let congestion = u64::from(congestion).saturating_add_signed(hot.out_of_pipe);
            return hot.snd_una + congestion.min(u64::from(hot.snd_wnd));
        }
        hot.snd_una + u64::from(congestion.min(hot.snd_wnd))
    }

    /// Returns a segment of data or FIN, if there is any and the windows allow it.
    #[inline]
    fn data<Q: SendQueue + ?Sized>(&mut self, now: Instant, q: &Q) -> Option<TxSegment> {
        let end = q.end().min(self.hot.snd_fin);
        if self.hot.pending.any(Pending::DATA)
            && let Some(tx) = self.repeat_or_probe(now, q, end)
        {
            return Some(tx);
        }
        let from = self.hot.snd_next;
        let fin_due = self.hot.state.closing() && from <= self.hot.snd_fin;
        if from >= end && !fin_due {
            return None;
        }
        if self.hot.snd_una == self.hot.snd_max && now > self.hot.last_tx + self.rto.get() {
            self.restart_after_idle(now);
        }
        let room = self.right_edge() - from;
        let mut len = 0;
        if from < end {
            len = self.cut(q, from, end, self.hot.emss);
            if u64::from(len) > room {
                len = self.cut_small(now, q, from, end, room)?;
            }
            if self.is_paced() && !self.keep_pace(now, len) {
                return None;
            }
        } else if room == 0 {
            self.await_window(now);
            return None;
        }
        let fin = fin_due && from + u64::from(len) == end && u64::from(len) < room;
        let mut tx = self.emit(now, from, len, end, fin);
        if self.hot.ecn.is_on() {
            self.hot.ecn.mark(&mut tx);
            if self.hot.ecn.is_accurate() && len + ByteCounts::MOST <= self.hot.emss {
                tx.counts = self.counts_with_data(&tx);
            }
        }
        Some(tx)
    }

    /// Restarts congestion control if the connection sent nothing for longer than the idle limit.
    #[cold]
    fn restart_after_idle(&mut self, now: Instant) {
        if now - self.hot.last_tx > self.cold.set.idle_restart() {
            self.hot.cc.on_idle();
        }
    }

    /// Returns true if `first` may begin a train although it has bits of ECN: with accurate ECN these
    /// count marks, and each segment of a train has the same count. A port that cuts trains may treat
    /// CWR as RFC 3168 means it, and clear it in all segments but the first.
    #[inline]
    pub(crate) fn counts_in_train(&self, first: &TxSegment, train: Train) -> bool {
        let others = Flags(first.flags.0 & !Flags::ACE.0);
        self.hot.ecn.is_accurate()
            && others == Flags::ACK
            && !(train.by_port && first.flags.has(Flags::CWR))
    }

    /// Lets more segments follow `first`, the segment returned just before, which has new data and
    /// no flag but ACK. Nothing but the place in the stream differs between the segments: each has
    /// as much new data, does not reach the end of the queue (which sets PSH), has nothing else to
    /// report to the peer, and nothing is lost. If the port cuts the train, its last segment may be
    /// shorter and may reach the end of the queue; `first` then becomes the whole train.
    ///
    /// The result is the same as that of as many calls of
    /// [`poll_transmit`](Connection::poll_transmit). Returns the number of segments, `first`
    /// included, and the number of bytes of all of them.
    #[inline]
    pub(crate) fn extend<Q: SendQueue + ?Sized>(
        &mut self,
        q: &Q,
        first: &mut TxSegment,
        train: Train,
    ) -> (u32, u32) {
        let hot = &self.hot;
        let (from, len) = (hot.snd_next, first.len);
        let plain = hot.pending == Pending::default()
            && hot.state == State::Established
            && first.sack == 0
            && first.counts.is_none()
            && !first.retransmit
            && !hot.disorder
            && from == hot.snd_max;
        let mut room = self.right_edge().since(from).min(q.end().since(from));
        if self.is_paced() {
            room = room.min(self.hot.cc.pace_room());
        }
        if !plain || room < u64::from(len) {
            return (1, len);
        }
        // Without a port that sets PSH in the last segment alone, the end of the queue is out of
        // bounds.
        let bound = if train.by_port { room } else { room.min(q.end().since(from) - 1) };
        let bound = u32::try_from(bound).unwrap_or(u32::MAX).min(TRAIN_MAX - len.min(TRAIN_MAX));
        let most = (train.segments - 1).min(bound / len);
        if most == 0 {
            return (1, len);
        }
        let alike = q.segments_alike(from, len, hot.emss, most);
        let (mut more, mut bytes) = (alike, alike * len);
        if train.by_port && more + 1 < train.segments && bytes < bound {
            let at = from + u64::from(bytes);
            let last = if at < q.end() { q.segment_len(at, hot.emss) } else { 0 };
            if last > 0 && last < len && last <= bound - bytes {
                (more, bytes) = (more + 1, bytes + last);
            }
        }
        if more == 0 {
            return (1, len);
        }
        if self.is_paced() {
            self.hot.cc.pace_more(bytes);
        }
        let to = from + u64::from(bytes);
        if train.by_port {
            first.len = len + bytes;
            if to == q.end() {
                first.flags = first.flags.with(Flags::PSH);
            }
        }
        let hot = &mut self.hot;
        hot.last_start = from + u64::from((more - 1) * len);
        hot.snd_next = to;
        hot.snd_max = to;
        hot.cc.on_sent(bytes, to - hot.snd_una);
        (more + 1, len + bytes)
    }

    /// Returns `q.segment_len` for bytes that are in the queue, limited to what its contract
    /// allows: 1 to `max`.
    #[inline]
    pub(super) fn cut<Q: SendQueue + ?Sized>(
        &self,
        q: &Q,
        from: StreamPos,
        end: StreamPos,
        max: u32,
    ) -> u32 {
        let left = u32::try_from(end - from).unwrap_or(u32::MAX);
        q.segment_len(from, max).min(max).min(left).max(1)
    }

    /// Handles a next segment that does not fit into `room`: silly window avoidance (RFC 9293
    /// section 3.8.6.2.1). The connection sends a smaller segment only when it is at least half of
    /// the largest window that the peer ever offered, or repeats the oldest bytes into a window
    /// that shrank (section 3.8.6). Otherwise an ACK, or in the end the probe timer, will make
    /// room.
    #[cold]
    fn cut_small<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
        from: StreamPos,
        end: StreamPos,
        room: u64,
    ) -> Option<u32> {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let limited_by_peer = self.hot.snd_wnd <= self.hot.cc.cwnd();
        let oldest_again = from == self.hot.snd_una && from < self.hot.snd_max;
        if room > 0 && limited_by_peer && (oldest_again || room >= self.hot.max_wnd / 2) {
            return Some(self.cut(q, from, end, room));
        }
        self.await_window(now);
        None
    }

    /// Handles a window that lets nothing through: starts the probe timer if no timer runs for
    /// outstanding bytes.
    fn await_window(&mut self, now: Instant) {
        if self.hot.rtx_at == NEVER {
            if self.hot.snd_una == self.hot.snd_max {
                self.hot.progress_at = now;
            }
            self.arm_window_probe(now);
        }
    }

    /// Returns a retransmission of bytes that the scoreboard counts as lost, a tail probe, the
    /// segment at `snd_una` that duplicate ACKs or a partial ACK showed lost, or a window probe.
    #[cold]
    fn repeat_or_probe<Q: SendQueue + ?Sized>(
        &mut self,
        now: Instant,
        q: &Q,
        end: StreamPos,
    ) -> Option<TxSegment> {
        if self.hot.pending.any(Pending::REPAIR)
            && let Some(tx) = self.repair(now, q, end)
        {
            return Some(tx);
        }
        if self.hot.pending.take(Pending::TAIL)
            && let Some(tx) = self.tail_probe(now, q, end)
        {
            return Some(tx);
        }
        let una = self.hot.snd_una;
        let left = self.hot.state.closing() || una < end;
        if self.hot.pending.take(Pending::PROBE) && left {
            return Some(self.probe(now, q, end));
        }
        if !self.hot.pending.take(Pending::RETRANSMIT) || self.hot.snd_wnd == 0 || !left {
            return None;
        }
        let next = self.hot.snd_next;
        // Never less than one RTO between this transmission and a timer retransmission (RFC 6298
        // 5).
        self.hot.rtx_at = NEVER;
        let len =
            if una < end { self.cut(q, una, end, self.hot.emss.min(self.hot.snd_wnd)) } else { 0 };
        let fin = self.hot.snd_fin != NO_FIN
            && una + u64::from(len) == self.hot.snd_fin
            && len < self.hot.snd_wnd;
        let tx = self.emit(now, una, len, end, fin);
        self.hot.snd_next = self.hot.snd_next.max(next);
        Some(tx)
    }

    /// Returns a window probe (RFC 9293 section 3.8.6.1): the byte or FIN just beyond a shut
    /// window. If the window has a little room but too little for a segment, the probe carries the
    /// bytes that fit (the override of section 3.8.6.2.1). The connection may send these bytes
    /// again as part of a whole record when the window opens.
    #[cold]
    fn probe<Q: SendQueue + ?Sized>(&mut self, now: Instant, q: &Q, end: StreamPos) -> TxSegment {
        self.cold.counters.probes += 1;
        self.note_probe(now, end);
        let una = self.hot.snd_una;
        let wnd = self.hot.snd_wnd;
        let len = if una < end { self.cut(q, una, end, self.hot.emss.min(wnd.max(1))) } else { 0 };
        self.arm_window_probe(now);
        let tx = self.emit(now, una, len, end, len == 0);
        if wnd == 0 {
            self.rewind();
        }
        tx
    }

    /// Returns a segment of bytes `[from, from + len)` and, if `fin`, the FIN after them.
    // Inlined, as `segment` is, so that the caller builds the segment in place.
    #[inline(always)]
    pub(super) fn emit(
        &mut self,
        now: Instant,
        from: StreamPos,
        len: u32,
        end: StreamPos,
        fin: bool,
    ) -> TxSegment {
        let text_end = from + u64::from(len);
        let mut flags = Flags::ACK;
        if text_end == end && len > 0 {
            flags = flags.with(Flags::PSH);
        }
        if fin {
            flags = flags.with(Flags::FIN);
            self.hot.snd_fin = text_end;
        }
        let next = text_end + u64::from(fin);
        let mut tx = self.segment(now, from, flags);
        tx.len = len;
        if from < self.hot.snd_max {
            tx.retransmit = true;
            self.note_retransmit(now);
        }
        if now != self.hot.burst_at {
            self.note_burst(now, from);
        }
        let hot = &mut self.hot;
        if !tx.retransmit {
            hot.last_start = from;
            if hot.snd_una == hot.snd_max {
                hot.progress_at = now;
            }
            if hot.timed.at == NEVER {
                hot.timed = Timed { end: next, at: now };
            }
            hot.cc.on_sent(len, next - hot.snd_una);
        }
        hot.snd_next = next;
        hot.snd_max = hot.snd_max.max(next);
        hot.last_tx = now;
        if hot.rtx_at == NEVER {
            self.arm_after_sending(now);
        }
        tx
    }

    /// Records that bytes are sent once more. By Karn's rule the bytes in flight cannot be timed
    /// any more, and an echo older than this transmission is ambiguous.
    #[cold]
    pub(super) fn note_retransmit(&mut self, now: Instant) {
        self.hot.timed = Timed::NONE;
        self.cold.retransmit_ts = self.ts_clock(now);
        self.cold.counters.retransmits += 1;
        if self.has_probe() {
            self.forget_probe(now, false);
        }
    }

    /// Returns the position of a segment without payload: after all bytes sent, or, when the peer's
    /// window ends before that, the highest number that the peer accepts. The peer would drop a
    /// segment beyond its window, which was shut or has shrunk after we sent, and our ACK with the
    /// segment (RFC 9293 section 3.10.7.4, first check).
    #[inline]
    pub(super) fn ack_pos(&self) -> StreamPos {
        self.hot.snd_max.min(self.hot.snd_una + u64::from(self.hot.snd_wnd))
    }

    /// Returns a segment without payload at `pos`. The segment carries the ACK and the window.
    #[inline(always)]
    pub(super) fn segment(&mut self, now: Instant, pos: StreamPos, flags: Flags) -> TxSegment {
        let window = self.advertise(now);
        let hot = &mut self.hot;
        if !hot.sack_due {
            hot.pending.clear(Pending::ACK);
        }
        hot.ack_at = NEVER;
        hot.last_ack = hot.rcv_nxt;
        TxSegment {
            seq: self.snd_seq(pos),
            ack: self.rcv_seq(),
            flags: flags.with(self.hot.echo.flags()),
            window,
            timestamps: self
                .hot
                .ts_ok
                .then(|| Timestamps { val: self.ts_clock(now), ecr: self.hot.ts_recent }),
            pos,
            ..TxSegment::default()
        }
    }

    /// Returns the window field. Moves the right edge as far as it will go, but never back, and not
    /// in tiny steps. Rounds up to the scale where the owner reduced the window, so that the edge
    /// stays.
    #[inline]
    fn advertise(&mut self, now: Instant) -> u16 {
        if self.window_gain() >= u64::from(self.window_step()) {
            self.hot.rcv_adv = self.hot.rcv_nxt + u64::from(self.hot.recv_window);
            if self.hot.rcv_nxt >= self.hot.look_at {
                self.look_at_window(now);
            }
        }
        let shift = self.hot.rcv_shift;
        let window = self.hot.rcv_adv - self.hot.rcv_nxt;
        let field = (window + (1 << shift) - 1) >> shift;
        let field = u16::try_from(field).unwrap_or(u16::MAX);
        self.hot.rcv_adv = self.hot.rcv_adv.max(self.hot.rcv_nxt + (u64::from(field) << shift));
        field
    }
}
