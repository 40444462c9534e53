//! The path from work requests to frames.

use heddle_base::{Instant, StreamPos};
use heddle_iwarp::{QpEnv, mpa, qp::Piece};
use heddle_mr::Memory;
use heddle_tcp::{SendQueue, TcpChecksum, TxBody};
use heddle_types::ConnId;

use crate::conn::{Mode, NO_PARTNER};
use crate::frame::RnicFrame;
use crate::rnic::Rnic;
use heddle_engine::{Offload, TxSink};

/// FPDUs that a connection makes before the next connection has its turn.
const TURN: u64 = 32;

impl<F: RnicFrame> Rnic<F> {
    /// Builds the next frame in `sink`; returns false if there is no frame, or `sink` has no room
    /// for it.
    pub fn poll_transmit<M: Memory, S: TxSink>(
        &mut self,
        now: Instant,
        mem: &M,
        sink: &mut S,
    ) -> bool {
        if !sink.has_room() {
            return false;
        }
        loop {
            if self.stack.poll_transmit_into(now, &mut self.frame) {
                self.emit(mem, sink);
                return true;
            }
            if self.shared.ready.is_empty() || !self.make_fpdus(mem) {
                return false;
            }
        }
    }

    /// Lets the next ready queue pair cut FPDUs; returns false if no queue pair had any to cut.
    /// This is a separate function, not inlined into the work for each frame, because one call
    /// serves many frames.
    #[inline(never)]
    fn make_fpdus<M: Memory>(&mut self, mem: &M) -> bool {
        while let Some(conn) = self.shared.ready.pop_front() {
            let Some((tcp, state)) = self.stack.get_mut(conn) else { continue };
            state.on_ready_list = false;
            if state.partner != NO_PARTNER {
                // The two ends have been joined since: `make_ready` puts the connection on the
                // other list.
                state.make_ready(conn, &mut self.shared);
                continue;
            }
            let Mode::Fpdu(qp) = &mut state.mode else { continue };
            let mulpdu = mpa::fpdu::mulpdu(tcp.emss(), qp.sends_markers());
            let (mut made, mut bytes, mut locals) = (0, 0, false);
            // The queue pair cuts FPDUs when TCP can send them, not before: the size of a segment
            // may still change, and a short queue stays in the cache. A single FPDU may always
            // wait, so that TCP knows that there is something to probe a closed window for.
            let (mut end, sent) = (state.queue.end(), tcp.snd_max());
            let mut room = tcp.send_room(end);
            let mut env = QpEnv { mem, mrs: &self.shared.mrs, snapshots_full: false, posted: None };
            while made < TURN && (room > 0 || end <= sent) {
                env.snapshots_full = self.shared.kept.is_full(state.queue.snapshots());
                let len = state.queue.push_fpdu(&mut self.shared.kept, |buffers, fpdu| {
                    qp.poll_transmit_into(&env, mulpdu, buffers, fpdu)
                });
                if len == 0 {
                    locals = qp.has_local();
                    break;
                }
                end += u64::from(len);
                room = room.saturating_sub(u64::from(len));
                bytes += u64::from(len);
                made += 1;
            }
            self.shared.counters.tx_fpdus += made;
            self.shared.counters.tx_fpdu_bytes += bytes;
            if made == TURN || locals {
                state.make_ready(conn, &mut self.shared);
            }
            if made > 0 {
                self.shared.looks.wake_rounds();
                let close = state.drain(conn, tcp, &mut self.shared);
                self.stack.notify_send(conn);
                if close {
                    self.stack.close(conn);
                }
                return true;
            }
            // The queue pair could not cut any: it goes on when an acknowledgment makes room or a
            // message comes, and each of these puts the connection on the list again.
            if state.collect(conn, tcp, &mut self.shared) {
                self.stack.close(conn);
            }
            if locals {
                // There are more requests that send nothing than the queue pair may carry out at a
                // time: it carries out the rest in the worker's next turn.
                return false;
            }
        }
        false
    }

    #[inline(always)]
    fn emit<M: Memory, S: TxSink>(&mut self, mem: &M, sink: &mut S) {
        let frame = &mut self.frame;
        let offload = Offload {
            ip: frame.ip_checksum_offload,
            tcp: frame.tcp_checksum == TcpChecksum::Offloaded,
            l2_len: frame.l2_len,
            l3_len: frame.l3_len,
            l4_len: frame.l4_len,
        };
        match &frame.body {
            TxBody::None => {
                sink.begin(frame.header.len());
                sink.bytes(&frame.header);
            }
            TxBody::Owned(bytes) => {
                sink.begin(frame.header.len() + bytes.len());
                sink.bytes(&frame.header);
                sink.bytes(bytes);
            }
            TxBody::Stream { conn, pos, len, retransmit } => {
                let (conn, pos, len, again) = (*conn, *pos, *len, *retransmit);
                self.shared.counters.tx_segments += 1;
                self.shared.counters.tx_retransmits += u64::from(again);
                self.emit_stream(mem, (conn, pos, len), again, sink);
            }
        }
        sink.end(offload);
    }

    #[inline(always)]
    fn emit_stream<M: Memory, S: TxSink>(
        &mut self,
        mem: &M,
        (conn, pos, len): (ConnId, StreamPos, u32),
        retransmit: bool,
        sink: &mut S,
    ) {
        let frame = &mut self.frame;
        let Some((_, state)) = self.stack.get_mut(conn) else { return };
        let needs_sum = frame.tcp_checksum == TcpChecksum::NeedsPayloadSum;
        let header = frame.header.len();
        sink.begin(header + len as usize);
        if !retransmit
            && let Some(found) = state.queue.whole(pos, len)
            && found.fillable
            && let Some((head, body)) =
                sink.whole(header + len as usize).and_then(|f| f.split_at_mut_checked(header))
        {
            let (sum, digested) = state.queue.fill(mem, found, body, needs_sum);
            self.shared.counters.tx_digested_bytes += digested;
            if needs_sum {
                frame.finish_tcp_checksum(sum);
            }
            head.copy_from_slice(&frame.header);
            return;
        }
        self.shared.counters.tx_digested_apart += u64::from(state.queue.seal(mem, pos, len));
        if !retransmit
            && let Some(fpdu) = state.queue.whole(pos, len).and_then(|f| state.queue.single(f))
        {
            if needs_sum {
                frame.finish_tcp_checksum(fpdu.sum(mem));
            }
            match fpdu.payload() {
                Some(payload) => {
                    self.shared.counters.tx_referenced_bytes += u64::from(payload.len());
                    sink.message(&frame.header, fpdu.head(), payload, fpdu.tail());
                }
                None => {
                    sink.bytes(&frame.header);
                    sink.bytes(fpdu.head());
                }
            }
            return;
        }
        if needs_sum {
            frame.finish_tcp_checksum(state.queue.sum(mem, pos, len, retransmit));
        }
        sink.bytes(&frame.header);
        let mut referenced = 0;
        state.queue.pieces(pos, len, |p| match p {
            Piece::Bytes(b) => sink.bytes(b),
            Piece::Memory(r) => {
                referenced += u64::from(r.len());
                sink.memory(r);
            }
        });
        self.shared.counters.tx_referenced_bytes += referenced;
    }
}
