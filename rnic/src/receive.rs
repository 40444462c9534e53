//! The path from a received frame to registered memory.

use core::net::IpAddr;

use heddle_base::{Instant, Skip, StreamPos};
use heddle_engine::Untaken;
use heddle_iwarp::{QpContext, QpEnv};
use heddle_mr::{Memory, MrTable};
use heddle_tcp::{FrameOutcome, FramePayload};
use heddle_types::ConnId;

use crate::conn::{ConnState, Mode};
use crate::event::Event;
use crate::frame::RnicFrame;
use crate::held::COPY_BUF;
use crate::rnic::Rnic;
use crate::shared::Shared;

/// Bytes that may wait before FPDU mode: the largest start-up frame (20 + 512), in segments of any
/// size that the port can have.
const STARTUP_HOLD: usize = 16 * 1024;
// A connection counts in 16 bits the bytes that the RNIC has given to the control plane, in order
// and from beyond a gap.
const _: () = assert!(2 * STARTUP_HOLD <= u16::MAX as usize);

/// Buffers for bytes beyond a gap before FPDU mode: an honest start-up is one segment, or its few
/// segments come in order.
const STARTUP_AHEAD: usize = 4;

/// The environment for received bytes: registered memory, and the receives that the owner has not
/// yet taken from applications.
#[derive(Debug)]
pub(crate) struct Sink<'a, M> {
    pub(crate) mem: &'a M,
    pub(crate) posted: Option<&'a Untaken<'a, QpContext>>,
}

impl<M> Clone for Sink<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Sink<'_, M> {}

impl<'a, M> Sink<'a, M> {
    /// Returns the environment for the queue pair of `conn`.
    #[inline]
    pub(crate) fn env(self, conn: ConnId, mrs: &'a MrTable) -> QpEnv<'a, M> {
        if let Some(posted) = self.posted {
            posted.set_of(conn.index());
        }
        QpEnv { mem: self.mem, mrs, snapshots_full: false, posted: self.posted }
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Takes one frame, as [`handle_frames`](Rnic::handle_frames) takes several, for an owner that
    /// has taken all posted receives. Returns the frame unless the RNIC keeps it.
    pub fn handle_frame<M: Memory>(&mut self, now: Instant, mem: &M, frame: F) -> Option<F> {
        let mut frames = [Some(frame)];
        self.take_frames(now, Sink { mem, posted: None }, &mut frames);
        let [frame] = frames;
        frame
    }

    /// Takes frames from the port. The RNIC places the payload of the frames before this function
    /// returns, unless it has to wait; then the RNIC takes the frame out of `frames` and keeps it.
    /// The others stay there, so that the caller can free many at once.
    ///
    /// A message that finds its queue pair without a receive asks `posted` for the receives that
    /// the owner has not taken, by the [index](ConnId::index) of the connection. So a peer may use
    /// a receive as soon as the application has posted it, however many receives the owner takes
    /// per turn.
    #[inline]
    pub fn handle_frames<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        posted: &Untaken<'_, QpContext>,
        frames: &mut [Option<F>],
    ) {
        self.take_frames(now, Sink { mem, posted: Some(posted) }, frames);
    }

    #[inline(always)]
    fn take_frames<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        mut frames: &mut [Option<F>],
    ) {
        while !frames.is_empty() {
            let run = self.stack.handle_frames(now, frames);
            let Some((taken, later)) = frames.split_at_mut_checked(run.frames as usize) else {
                return;
            };
            frames = later;
            if let FrameOutcome::Conn { conn, acked, payload } = run.outcome {
                self.handle_segments(now, sink, (conn, acked, payload), run.last, taken);
            }
            self.pump_stack_events();
        }
    }

    /// Handles the content of a segment, or of a run of them: an acknowledgment, bytes, or room to
    /// send. `payload` is that of the first; the last has `last` bytes. This function looks up the
    /// connection only once in the usual case without loss.
    #[inline]
    fn handle_segments<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        (conn, acked, payload): (ConnId, Option<StreamPos>, Option<FramePayload>),
        last: u32,
        frames: &mut [Option<F>],
    ) {
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        if let Some(upto) = acked {
            state.queue.release(&mut self.shared.kept, upto);
        }
        let Mode::Fpdu(qp) = &mut state.mode else {
            if let Some(p) = payload {
                self.take_apart(now, sink, conn, p, last, frames);
            }
            return;
        };
        if let Some(upto) = acked {
            qp.handle_acked(upto);
        }
        if let Some(mut p) = payload {
            if !p.in_order || !state.held.is_empty() {
                self.take_apart(now, sink, conn, p, last, frames);
                return self.drain_qp(conn);
            }
            let env = sink.env(conn, &self.shared.mrs);
            let (start, longest) = (p.pos, p.len);
            let n = frames.len();
            // The last frame of a long message often holds a short message too. So the frame before
            // it says as well whether later frames are likely to be of one FPDU.
            let mut wants_crc = false;
            for (at, slot) in frames.iter_mut().enumerate() {
                if at + 1 == n {
                    p.len = last;
                    wants_crc = qp.wants_crc();
                }
                let Some(frame) = slot else { continue };
                let len = p.len as usize;
                let crc = frame.payload_crc(p.frame_off, len);
                let used = qp.handle_digested(&env, &Skip::new(&*frame, p.frame_off, len), crc);
                if used < len {
                    tcp.accept_segments(now, start, bytes(p.pos.since(start)), longest);
                    self.wants_crc = qp.wants_crc();
                    return self.hold_run(
                        now,
                        sink,
                        (conn, start),
                        (p, last),
                        used,
                        &mut frames[at..],
                    );
                }
                p.pos += u64::from(p.len);
            }
            let len = bytes(p.pos.since(start));
            self.shared.counters.rx_payload_bytes += u64::from(len);
            self.shared.counters.rx_direct += n as u64;
            state.rx_next = p.pos;
            self.wants_crc = wants_crc || qp.wants_crc();
            tcp.accept_segments(now, start, len, longest);
        }
        // The same work as in `drain`, inlined because every segment needs it.
        if qp.has_transmit() {
            state.make_ready(conn, &mut self.shared);
        }
        let close = state.has_news() && state.collect(conn, tcp, &mut self.shared);
        self.stack.notify_send(conn);
        if close {
            self.stack.close(conn);
        }
    }

    /// Continues with a run whose first frame here, with payload `p`, does not end with an FPDU:
    /// `used` bytes of it did make whole FPDUs, as did the stream from `start` to it. The frames
    /// after it wait behind its end.
    #[inline(never)]
    fn hold_run<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        (conn, start): (ConnId, StreamPos),
        (p, last): (FramePayload, u32),
        used: usize,
        frames: &mut [Option<F>],
    ) {
        let Some((frame, later)) = frames.split_first_mut() else { return };
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        let end = p.pos + u64::from(p.len);
        self.shared.counters.rx_payload_bytes += end.since(start);
        state.rx_next = end;
        if let Some(frame) = frame.take() {
            self.hold_end(now, conn, p, used, frame);
        }
        if !later.is_empty() {
            self.take_apart(now, sink, conn, FramePayload { pos: end, ..p }, last, later);
            self.drain_qp(conn);
        }
    }

    /// Handles the payloads of a run, or of a single frame, one by one, each as
    /// [`take_one_apart`](Self::take_one_apart) does.
    #[inline(never)]
    fn take_apart<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        conn: ConnId,
        mut p: FramePayload,
        last: u32,
        frames: &mut [Option<F>],
    ) {
        let n = frames.len();
        for (at, slot) in frames.iter_mut().enumerate() {
            if at + 1 == n {
                p.len = last;
            }
            if let Some(frame) = slot.take() {
                *slot = self.take_one_apart(now, sink, conn, p, frame);
            }
            p.pos += u64::from(p.len);
        }
    }

    /// Keeps the end of a segment in order that does not make a whole FPDU; `used` bytes before it
    /// did.
    #[inline(never)]
    fn hold_end(&mut self, now: Instant, conn: ConnId, p: FramePayload, used: usize, frame: F) {
        let Some(peer) = self.stack.remote_addr(conn) else { return };
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        state.note_rnr(conn, &mut self.shared);
        state.hold_rest(p, used, frame, &mut self.shared);
        let len = state.settle(peer.ip(), p.len, &mut self.shared);
        tcp.accept_payload(now, p.pos, state.acceptable(tcp, p.pos, len));
        let close = state.drain(conn, tcp, &mut self.shared);
        self.stack.notify_send(conn);
        if close {
            self.stack.close(conn);
        }
    }

    /// Takes bytes that came out of order, or that follow bytes that wait, or that came before or
    /// after FPDU mode.
    fn take_one_apart<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        conn: ConnId,
        p: FramePayload,
        frame: F,
    ) -> Option<F> {
        let (tcp, state) = self.stack.get_mut(conn)?;
        let len = p.len as usize;
        let startup = matches!(state.mode, Mode::Startup);
        self.shared.looks.wake_rounds();
        if matches!(state.mode, Mode::Dead(_)) {
            // No queue pair reads these bytes; acknowledge them, so that the peer's FIN can come
            // through.
            self.shared.counters.rx_after_close_bytes += u64::from(p.len);
            self.stack.accept_payload(now, conn, p.pos, p.len);
            return Some(frame);
        }
        if !p.in_order {
            let upto = p.pos.since(state.rx_next) + u64::from(p.len);
            if startup && upto > STARTUP_HOLD as u64 {
                self.shared.counters.startup_overflow_bytes += u64::from(p.len);
                return Some(frame);
            }
            if startup && state.held.charged() >= STARTUP_AHEAD {
                self.shared.counters.rx_refused += 1;
                return Some(frame);
            }
            let (left, accepted) = state.hold_ahead(sink.mem, p, frame, &mut self.shared);
            if let Some((pos, len)) = accepted {
                self.stack.accept_payload(now, conn, pos, len);
            }
            return left;
        }
        if state.is_stopped() {
            self.shared.counters.rnr_refused += 1;
            return Some(frame);
        }
        // Take only the bytes before those that are held already; the peer retransmits the bytes
        // beyond.
        let len = state.held.free_ready(p.pos, len);
        let p = FramePayload { len: u32::try_from(len).unwrap_or(p.len), ..p };
        if startup && state.held.ready_len() + len > STARTUP_HOLD {
            self.shared.counters.startup_overflow_bytes += u64::from(p.len);
            return Some(frame);
        }
        self.shared.counters.rx_payload_bytes += u64::from(p.len);
        state.rx_next = p.pos + u64::from(p.len);
        let mut used = 0;
        let fed = !state.held.has_ready();
        if let Mode::Fpdu(qp) = &mut state.mode
            && fed
        {
            // These bytes close a gap, and bytes after the gap may wait.
            let env = sink.env(conn, &self.shared.mrs);
            let crc = frame.payload_crc(p.frame_off, len);
            used = qp.handle_digested(&env, &Skip::new(&frame, p.frame_off, len), crc);
            state.note_rnr(conn, &mut self.shared);
        }
        let left = if used < len {
            state.hold_rest(p, used, frame, &mut self.shared);
            None
        } else {
            self.shared.counters.rx_direct += 1;
            Some(frame)
        };
        if startup {
            self.tell_startup(conn);
            self.stack.accept_payload(now, conn, p.pos, p.len);
            self.advance_held(sink, conn);
            return left;
        }
        if !fed {
            state.feed(conn, sink, &mut self.shared);
        }
        if state.held.has_ready() || state.held.has_share() {
            self.account(now, sink, conn, p);
            return left;
        }
        // No bytes are left over, and the budget was not charged.
        let ahead = state.held.has_ahead();
        let mut len = p.len;
        if ahead {
            // The mode is FPDU, so there are no start-up bytes to report.
            let _startup = state.advance(conn, sink, &mut self.shared);
            len = state.acceptable(tcp, p.pos, len);
        }
        tcp.accept_payload(now, p.pos, len);
        if ahead && state.held.has_ready() {
            self.charge_advanced(conn);
        }
        self.stack.notify_send(conn);
        left
    }

    /// Accounts for the bytes that are left over of a segment in order, then lets TCP accept the
    /// bytes that were taken, and feeds the queue pair the bytes that follow.
    #[inline(never)]
    fn account<M: Memory>(
        &mut self,
        now: Instant,
        sink: Sink<'_, M>,
        conn: ConnId,
        p: FramePayload,
    ) {
        let Some(peer) = self.stack.remote_addr(conn) else { return };
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        let taken = state.settle(peer.ip(), p.len, &mut self.shared);
        let ahead = state.held.has_ahead();
        if taken == p.len && ahead {
            self.advance_held(sink, conn);
        }
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let accepted = state.acceptable(tcp, p.pos, taken);
        self.stack.accept_payload(now, conn, p.pos, accepted);
        if taken == p.len && ahead {
            self.charge_advanced(conn);
        }
    }

    /// Charges the FPDU at the front, after the gap before it has closed.
    #[inline(never)]
    pub(crate) fn charge_advanced(&mut self, conn: ConnId) {
        let Some(peer) = self.stack.remote_addr(conn) else { return };
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        if !state.charge_fpdu(peer.ip(), &mut self.shared) {
            // Bytes that came beyond a gap stay in the pool's budget. The room of the previous FPDU
            // is free again, except for a buffer, which may hold the end of the segment.
            state.held.release_share(&mut self.shared.pool);
        }
    }

    /// Queues an event about start-up bytes. At most one such event of a connection waits, however
    /// small the segments of the start-up are; `poll_event` fills in the bytes.
    fn tell_startup(&mut self, conn: ConnId) {
        if let Some((_, state)) = self.stack.get_mut(conn)
            && !core::mem::replace(&mut state.startup_event, true)
        {
            // The segment that ended the handshake may have brought these bytes (the bare ACK was
            // lost, or came later): the event of the connection itself has to come first.
            self.pump_stack_events();
            self.shared.events.push_back(Event::StartupBytes { conn, bytes: Vec::new() });
        }
    }

    /// Feeds a connection's queue pair the held bytes that have become ready.
    pub(crate) fn advance_held<M: Memory>(&mut self, sink: Sink<'_, M>, conn: ConnId) {
        if let Some((_, state)) = self.stack.get_mut(conn)
            && state.advance(conn, sink, &mut self.shared)
        {
            self.tell_startup(conn);
        }
    }
}

/// Returns a number of bytes of a run, which is no longer than a window.
fn bytes(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl<F: RnicFrame> ConnState<F> {
    /// Keeps the rest of a segment, which does not make a whole FPDU yet; `used` bytes before it
    /// did.
    fn hold_rest(&mut self, p: FramePayload, used: usize, frame: F, shared: &mut Shared<F>) {
        let rest = p.len as usize - used;
        shared.looks.wake_rounds();
        shared.counters.rx_held += 1;
        let (pos, off) = (p.pos + used as u64, p.frame_off + used);
        let copied = self.held.push_ready(&mut shared.pool, pos, frame, off, rest);
        shared.counters.held_copied_bytes += copied as u64;
    }

    /// Charges the FPDU at the front of the held bytes to the budget. If the budget has no room,
    /// this function drops the bytes of the FPDU that the last segment in order has brought, of
    /// `len` bytes. Returns the number of bytes of the segment that were kept or used.
    fn settle(&mut self, peer: IpAddr, len: u32, shared: &mut Shared<F>) -> u32 {
        if self.charge_fpdu(peer, shared) {
            return len;
        }
        let refused = self.held.ready_len().min(len as usize);
        self.held.truncate_ready(&mut shared.pool, refused);
        self.rx_next = StreamPos(self.rx_next.0.saturating_sub(refused as u64));
        shared.counters.rx_payload_bytes -= refused as u64;
        shared.counters.rx_unfinished_refused += 1;
        // The peer sends as well as it can: the time of the FPDU must not run out because of the
        // refused bytes.
        self.held.forgive();
        if !self.held.has_ready() {
            self.held.reserve(&mut shared.pool, peer, 0);
        }
        len - u32::try_from(refused).unwrap_or(len)
    }

    /// Charges the FPDU at the front of the held bytes to the budget, with its full length, or
    /// gives back the room of the FPDU before it. Returns false if there is no room.
    pub(crate) fn charge_fpdu(&mut self, peer: IpAddr, shared: &mut Shared<F>) -> bool {
        let Mode::Fpdu(qp) = &self.mode else { return true };
        let bytes = match self.held.has_ready() {
            true => qp.fpdu_extent(&self.held.ready()).unwrap_or(0).max(COPY_BUF),
            false => 0,
        };
        self.held.reserve(&mut shared.pool, peer, bytes)
    }
}
