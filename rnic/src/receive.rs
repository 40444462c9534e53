//! From a received frame to registered memory.

use heddle_base::{Instant, Skip, StreamPos};
use heddle_iwarp::{Memory, QpEnv};
use heddle_tcp::{ConnId, FrameOutcome, FramePayload};

use crate::event::Event;
use crate::frame::RnicFrame;
use crate::link::Mode;
use crate::rnic::Rnic;

/// Octets that may wait before FPDU mode: the largest start-up frame (20 + 512), in segments of any
/// size the port can have.
const STARTUP_HOLD: usize = 16 * 1024;

/// Buffers before FPDU mode for what lies ahead of a gap: an honest start-up is one segment, or has
/// its few in order.
const STARTUP_AHEAD: usize = 4;

impl<F: RnicFrame> Rnic<F> {
    /// Takes a frame from the port. Payload it carries is placed before this returns, unless it
    /// has to wait; then the frame is kept. Otherwise it is given back, so that the caller can
    /// free many at once.
    #[inline]
    pub fn handle_frame<M: Memory>(&mut self, now: Instant, mem: &M, mut frame: F) -> Option<F> {
        let left = match self.stack.handle_frame(now, &mut frame) {
            FrameOutcome::Done => Some(frame),
            FrameOutcome::Conn { conn, acked, payload } => {
                self.handle_segment(now, mem, (conn, acked, payload), frame)
            }
        };
        self.pump_stack_events();
        left
    }

    /// What a segment brought: an acknowledgment, bytes, or room to send. The connection is looked
    /// up once where everything is as it is without loss.
    #[inline]
    fn handle_segment<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        (conn, acked, payload): (ConnId, Option<StreamPos>, Option<FramePayload>),
        frame: F,
    ) -> Option<F> {
        let Some((tcp, link)) = self.stack.get_mut(conn) else { return Some(frame) };
        if let Some(upto) = acked {
            link.queue.release(&mut self.kept, upto);
        }
        let Mode::Fpdu(qp) = &mut link.mode else {
            return match payload {
                Some(p) => self.take_apart(now, mem, conn, p, frame),
                None => Some(frame),
            };
        };
        if let Some(upto) = acked {
            qp.handle_acked(upto);
        }
        if let Some(p) = payload {
            if !p.in_order || !link.held.is_empty() {
                let left = self.take_apart(now, mem, conn, p, frame);
                self.drain_qp(conn);
                return left;
            }
            let len = p.len as usize;
            self.counters.rx_payload_bytes += u64::from(p.len);
            link.rx_next = p.pos + u64::from(p.len);
            let env = QpEnv { mem, mrs: &self.mrs, snapshots_full: false };
            let crc = frame.payload_crc(p.frame_off, len);
            let used = qp.handle_digested(&env, &Skip::new(&frame, p.frame_off, len), crc);
            self.wants_crc = qp.wants_crc();
            tcp.accept_payload(now, p.pos, p.len);
            if used < len {
                self.stack.notify_send(conn);
                self.hold_rest(conn, p, used, frame);
                self.drain_qp(conn);
                return None;
            }
            self.counters.rx_direct += 1;
        }
        if qp.has_transmit() && !link.on_ready_list {
            link.on_ready_list = true;
            self.ready.push_back(conn);
        }
        let news = qp.has_news() || link.closing;
        self.stack.notify_send(conn);
        if news {
            self.collect_qp(conn);
        }
        Some(frame)
    }

    /// Keeps what does not make a whole FPDU yet; `used` bytes did.
    fn hold_rest(&mut self, conn: ConnId, p: FramePayload, used: usize, frame: F) {
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        let rest = p.len as usize - used;
        self.rounds.wake();
        self.counters.rx_held += 1;
        let (pos, off) = (p.pos + used as u64, p.frame_off + used);
        let copied = link.held.push_ready(&mut self.pool, pos, frame, off, rest);
        self.counters.held_copied_bytes += copied as u64;
    }

    /// Bytes that came out of order, or come to others that wait, or before or after FPDU mode.
    #[inline(never)]
    fn take_apart<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        conn: ConnId,
        p: FramePayload,
        frame: F,
    ) -> Option<F> {
        let (_, link) = self.stack.get_mut(conn)?;
        let len = p.len as usize;
        let startup = matches!(link.mode, Mode::Startup);
        self.rounds.wake();
        if matches!(link.mode, Mode::Dead) {
            // Nobody will look at them; acknowledge, so that the peer's FIN can come through.
            self.counters.rx_after_close_bytes += u64::from(p.len);
            self.stack.accept_payload(now, conn, p.pos, p.len);
            return Some(frame);
        }
        if !p.in_order {
            if startup && p.pos.since(link.rx_next) > STARTUP_HOLD as u64 {
                self.counters.startup_overflow_bytes += u64::from(p.len);
                return Some(frame);
            }
            if startup && link.held.charged() >= STARTUP_AHEAD {
                self.counters.rx_refused += 1;
                return Some(frame);
            }
            return self.hold_ahead(now, mem, conn, p, frame);
        }
        // What is held already is not taken again; what lies beyond it comes again.
        let len = link.held.free_ready(p.pos, len);
        let p = FramePayload { len: u32::try_from(len).unwrap_or(p.len), ..p };
        if startup && link.held.ready_len() + len > STARTUP_HOLD {
            self.counters.startup_overflow_bytes += u64::from(p.len);
            return Some(frame);
        }
        self.counters.rx_payload_bytes += u64::from(p.len);
        link.rx_next = p.pos + u64::from(p.len);
        let mut used = 0;
        if let Mode::Fpdu(qp) = &mut link.mode
            && !link.held.has_ready()
        {
            // It closes a gap, and what lies behind that can wait.
            let env = QpEnv { mem, mrs: &self.mrs, snapshots_full: false };
            let crc = frame.payload_crc(p.frame_off, len);
            used = qp.handle_digested(&env, &Skip::new(&frame, p.frame_off, len), crc);
        }
        let left = if used < len {
            self.hold_rest(conn, p, used, frame);
            None
        } else {
            self.counters.rx_direct += 1;
            Some(frame)
        };
        if startup {
            self.tell_startup(conn);
        }
        self.stack.accept_payload(now, conn, p.pos, p.len);
        self.advance_held(mem, conn);
        left
    }

    /// Has the control plane told of start-up bytes. At most one such event of a connection waits,
    /// however small the segments are they came in; the bytes are put in when it is taken.
    fn tell_startup(&mut self, conn: ConnId) {
        if let Some((_, link)) = self.stack.get_mut(conn)
            && !core::mem::replace(&mut link.startup_event, true)
        {
            // The segment that ended the handshake may have brought them (the bare ACK was lost, or
            // came later): that there is a connection has to be told first.
            self.pump_stack_events();
            self.events.push_back(Event::StartupBytes { conn, bytes: Vec::new() });
        }
    }

    /// Feeds a connection's queue pair what has become ready among its held bytes.
    pub(crate) fn advance_held<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        loop {
            let Some((_, link)) = self.stack.get_mut(conn) else { return };
            if link.held.is_empty() {
                return;
            }
            if link.held.has_ahead() {
                let moved = link.held.close_gap(&mut self.pool, link.rx_next);
                link.rx_next += moved as u64;
                self.counters.rx_payload_bytes += moved as u64;
                if moved > 0 && matches!(link.mode, Mode::Startup) {
                    return self.tell_startup(conn);
                }
            }
            let Mode::Fpdu(qp) = &mut link.mode else { return };
            let env = QpEnv { mem, mrs: &self.mrs, snapshots_full: false };
            if link.held.has_ready() {
                let used = qp.handle_stream(&env, &link.held.ready());
                link.held.consume(&mut self.pool, used);
            }
            // What stopped the bytes may be an FPDU whose payload is in its place.
            let Some((pos, fpdu)) = link.held.pop_placed(&mut self.pool, link.rx_next) else {
                return;
            };
            link.rx_next += u64::from(fpdu.len());
            self.counters.rx_payload_bytes += u64::from(fpdu.len());
            qp.deliver(&env, pos, &fpdu);
        }
    }
}
