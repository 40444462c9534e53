//! From a received frame to registered memory.

use heddle_base::{Instant, Skip};
use heddle_iwarp::{Memory, QpEnv};
use heddle_tcp::{ConnId, FrameOutcome, FramePayload, RxFrame};

use crate::event::Event;
use crate::link::Mode;
use crate::rnic::Rnic;

/// Octets that may wait before FPDU mode: the largest start-up frame (20 + 512), in segments of any
/// size the port can have.
const STARTUP_HOLD: usize = 16 * 1024;

/// Frames one connection may keep for an FPDU that is not complete; beyond it bytes are copied.
const READY_FRAMES: usize = 64;

impl<F: RxFrame> Rnic<F> {
    /// Takes a frame from the port. Payload it carries is placed before this returns, unless it
    /// has to wait; then the frame is kept.
    pub fn handle_frame<M: Memory>(&mut self, now: Instant, mem: &M, frame: F) {
        match self.stack.handle_frame(now, &frame) {
            FrameOutcome::Done => {}
            FrameOutcome::Conn { conn, acked, payload } => {
                if let Some(upto) = acked
                    && let Some((_, link)) = self.stack.get_mut(conn)
                {
                    link.queue.release(upto);
                    if let Mode::Fpdu(qp) = &mut link.mode {
                        qp.handle_acked(upto);
                    }
                }
                if let Some(p) = payload {
                    self.take_payload(now, mem, conn, p, frame);
                }
                self.drain_qp(conn);
            }
        }
        self.pump_stack_events();
    }

    fn take_payload<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        conn: ConnId,
        p: FramePayload,
        frame: F,
    ) {
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        let len = p.len as usize;
        if matches!(link.mode, Mode::Dead) {
            // Nobody will look at them; acknowledge, so that the peer's FIN can come through.
            self.counters.rx_after_close_bytes += u64::from(p.len);
            self.stack.accept_payload(now, conn, p.pos, p.len);
            return;
        }
        if !p.in_order {
            if matches!(link.mode, Mode::Startup) && p.pos.since(link.rx_next) > STARTUP_HOLD as u64
            {
                self.counters.startup_overflow_bytes += u64::from(p.len);
                return;
            }
            if self.held_frames >= self.config.max_held_frames {
                self.counters.rx_refused += 1;
                return;
            }
            let before = link.held.frames();
            link.held.push_ahead(p.pos, frame, p.frame_off, len);
            self.held_frames += link.held.frames() - before;
            self.counters.rx_ahead += 1;
            self.stack.accept_payload(now, conn, p.pos, p.len);
            return;
        }
        if matches!(link.mode, Mode::Startup) && link.held.ready_len() + len > STARTUP_HOLD {
            self.counters.startup_overflow_bytes += u64::from(p.len);
            return;
        }
        self.counters.rx_payload_bytes += u64::from(p.len);
        link.rx_next = p.pos + u64::from(p.len);
        match &mut link.mode {
            Mode::Fpdu(qp) if link.held.is_empty() => {
                let env = QpEnv { mem, mrs: &self.mrs, want_sum: self.want_sum };
                let used = qp.handle_stream(&env, &Skip::new(&frame, p.frame_off, len));
                if used >= len {
                    self.counters.rx_direct += 1;
                } else {
                    self.counters.rx_held += 1;
                    let copy = self.held_frames >= self.config.max_held_frames;
                    let rest = len - used;
                    self.counters.held_copied_bytes += if copy { rest as u64 } else { 0 };
                    link.held.push_ready(
                        p.pos + used as u64,
                        frame,
                        p.frame_off + used,
                        rest,
                        copy,
                    );
                    self.held_frames += link.held.frames();
                }
            }
            mode => {
                let startup = matches!(mode, Mode::Startup);
                let before = link.held.frames();
                let copy =
                    before >= READY_FRAMES || self.held_frames >= self.config.max_held_frames;
                self.counters.held_copied_bytes += if copy { len as u64 } else { 0 };
                self.counters.rx_held += 1;
                link.held.push_ready(p.pos, frame, p.frame_off, len, copy);
                self.held_frames += link.held.frames() - before;
                if startup {
                    self.tell_startup(conn);
                }
            }
        }
        self.stack.accept_payload(now, conn, p.pos, p.len);
        self.advance_held(mem, conn);
    }

    /// Has the control plane told of start-up bytes. At most one such event of a connection waits,
    /// however small the segments are they came in; the bytes are put in when it is taken.
    fn tell_startup(&mut self, conn: ConnId) {
        if let Some((_, link)) = self.stack.get_mut(conn)
            && !core::mem::replace(&mut link.startup_event, true)
        {
            self.events.push_back(Event::StartupBytes { conn, bytes: Vec::new() });
        }
    }

    /// Feeds a connection's queue pair what has become ready among its held bytes.
    pub(crate) fn advance_held<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        if link.held.is_empty() {
            return;
        }
        let before = link.held.frames();
        if link.held.has_ahead() {
            let moved = link.held.close_gap(link.rx_next);
            link.rx_next += moved as u64;
            self.counters.rx_payload_bytes += moved as u64;
            if moved > 0 && matches!(link.mode, Mode::Startup) {
                self.tell_startup(conn);
            }
        }
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        if let Mode::Fpdu(qp) = &mut link.mode
            && link.held.has_ready()
        {
            let env = QpEnv { mem, mrs: &self.mrs, want_sum: self.want_sum };
            let used = qp.handle_stream(&env, &link.held.ready());
            link.held.consume(used);
        }
        let after = link.held.frames();
        self.held_frames = self.held_frames + after - before;
    }
}
