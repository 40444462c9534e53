//! The path from work requests to frames.

use heddle_base::{Instant, StreamPos};
use heddle_engine::{Offload, TxSink};
use heddle_iwarp::{QpContext, QpEnv, mpa, qp::Piece};
use heddle_mr::Memory;
use heddle_tcp::{SendQueue, TcpChecksum, Train, TxBody, TxFrame};
use heddle_types::ConnId;

use crate::conn::{Mode, NO_PARTNER};
use crate::counters::RnicCounters;
use crate::frame::RnicFrame;
use crate::kept::Snapshots;
use crate::queue::{FpduQueue, Whole};
use crate::rnic::Rnic;

/// FPDUs that a connection makes before the next connection has its turn.
const TURN: u64 = 32;

impl<F: RnicFrame> Rnic<F> {
    /// Builds the next frame in `sink`, or several alike of one connection, as far as `sink` has
    /// room. Returns the number of segments on the wire: 0 if there is nothing to send, or `sink`
    /// has no room.
    pub fn poll_transmit<M: Memory, S: TxSink>(
        &mut self,
        now: Instant,
        mem: &M,
        sink: &mut S,
    ) -> u32 {
        let room = sink.room();
        if room == 0 {
            return 0;
        }
        let cuts = sink.cuts();
        let by_port = cuts > 1;
        let train = Train { segments: if by_port { cuts } else { room }, by_port };
        loop {
            let segments = self.stack.poll_transmit_into(now, train, &mut self.frame);
            if segments > 0 {
                self.emit(mem, sink);
                return segments;
            }
            if self.shared.ready.is_empty() || !self.make_next(now, mem) {
                return 0;
            }
        }
    }

    /// Returns true if [`poll_transmit`](Self::poll_transmit) may have a frame to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.stack.wants_transmit() || !self.shared.ready.is_empty()
    }

    /// Ends the frames of a turn: takes the snapshots of Read Responses that are cut and not sent.
    /// Afterwards these FPDUs refer to memory no more, as no FPDU of a Read Response does between
    /// turns: an application may unregister the memory, and write it for another purpose.
    #[inline]
    pub fn end_transmit<M: Memory>(&mut self, mem: &M) {
        if !self.shared.owing.is_empty() {
            self.take_owed(mem);
        }
    }

    #[inline(never)]
    fn take_owed<M: Memory>(&mut self, mem: &M) {
        while let Some((conn, first)) = self.shared.owing.pop() {
            if let Some((_, state)) = self.stack.get_mut(conn) {
                state.queue.take_owed(mem, first);
            }
        }
    }

    /// Makes FPDUs in the order in which connections became ready, or in turns of their shares if
    /// there are several.
    #[inline(always)]
    fn make_next<M: Memory>(&mut self, now: Instant, mem: &M) -> bool {
        if self.shared.shares.are_several() {
            self.make_fairly(now, mem)
        } else {
            self.make_fpdus(mem, u64::MAX)
        }
    }

    /// Lets the next ready queue pair cut FPDUs, of which none begins after `most` bytes; returns
    /// false if no queue pair had any to cut. This is a separate function, not inlined into the work
    /// for each frame, because one call serves many frames.
    #[inline(never)]
    pub(crate) fn make_fpdus<M: Memory>(&mut self, mem: &M, most: u64) -> bool {
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
            let mut room = tcp.send_room(end).min(most);
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
                if len >= u32::from(mulpdu) && made < TURN {
                    // A full segment: those after it may be alike.
                    let kept = &mut self.shared.kept;
                    let limits = (mulpdu, TURN - made, room);
                    let first = state.queue.next_index();
                    let (more, len) = make_alike(qp, &env, &mut state.queue, kept, limits);
                    if more > 0 && state.queue.owes_last() {
                        self.shared.owing.push((conn, first));
                    }
                    end += len;
                    room = room.saturating_sub(len);
                    bytes += len;
                    made += more;
                }
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
        let frame = &self.frame;
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
            &TxBody::Stream { conn, pos, len, segment, retransmit } => {
                return self.emit_stream(mem, conn, Text { pos, len, segment, retransmit }, sink);
            }
        }
        sink.end(offload(frame, 0));
    }

    #[inline(always)]
    fn emit_stream<M: Memory, S: TxSink>(
        &mut self,
        mem: &M,
        conn: ConnId,
        text: Text,
        sink: &mut S,
    ) {
        let Rnic { frame, stack, shared, .. } = self;
        let Some((_, state)) = stack.get_mut(conn) else { return };
        let mut segments =
            Segments { mem, frame, queue: &mut state.queue, counters: &mut shared.counters };
        if text.len == text.segment {
            let found =
                if text.retransmit { None } else { segments.queue.whole(text.pos, text.len) };
            segments.emit(text, found, sink);
        } else if sink.cuts() > 1 {
            segments.emit_train(text, sink);
        } else {
            segments.emit_apart(text, sink);
        }
    }
}

/// Makes the FPDUs of the segments that are like the one made last: `most` at most, and no more than
/// begin within `room` bytes. Returns the number of FPDUs and of their bytes. Few connections send
/// long messages at a time, so this is apart from the loop over all FPDUs.
#[inline(never)]
fn make_alike<M: Memory>(
    qp: &mut QpContext,
    env: &QpEnv<'_, M>,
    queue: &mut FpduQueue,
    kept: &mut Snapshots,
    (mulpdu, most, room): (u16, u64, u64),
) -> (u64, u64) {
    let (mut made, mut bytes) = (0, 0);
    let Some(mut next) = qp.segments_alike(env, mulpdu) else { return (0, 0) };
    let mut env = *env;
    while made < most && bytes < room {
        if next.keep_snapshots() {
            env.snapshots_full = kept.is_full(queue.snapshots());
        }
        let len =
            queue.push_fpdu(kept, |buffers, fpdu| qp.next_alike(&env, &mut next, buffers, fpdu));
        if len == 0 {
            break;
        }
        bytes += u64::from(len);
        made += 1;
    }
    (made, bytes)
}

/// The payload of a frame in its connection's stream.
#[derive(Clone, Copy)]
struct Text {
    pos: StreamPos,
    len: u32,
    /// Bytes of each segment; the last may have fewer.
    segment: u32,
    retransmit: bool,
}

/// Returns what is left for the port to do for `frame`, which it cuts into segments of `segment`
/// bytes unless that is 0.
#[inline(always)]
fn offload(frame: &TxFrame, segment: u16) -> Offload {
    Offload {
        ipv6: frame.is_ipv6,
        ip: frame.ip_checksum_offload,
        tcp: frame.tcp_checksum == TcpChecksum::Offloaded,
        l2_len: frame.l2_len,
        l3_len: frame.l3_len,
        l4_len: frame.l4_len,
        segment,
    }
}

/// Builds the segments of one connection.
struct Segments<'a, M> {
    mem: &'a M,
    frame: &'a mut TxFrame,
    queue: &'a mut FpduQueue,
    counters: &'a mut RnicCounters,
}

impl<M: Memory> Segments<'_, M> {
    /// Builds a frame of each segment of a train.
    #[inline(always)]
    fn emit_apart<S: TxSink>(&mut self, mut text: Text, sink: &mut S) {
        let end = text.pos + u64::from(text.len);
        let mut rest = self.queue.whole(text.pos, text.len);
        text.len = text.segment;
        loop {
            let found = rest.as_mut().map(|rest| self.queue.cut(rest, text.segment));
            self.emit(text, found, sink);
            text.pos += u64::from(text.segment);
            if text.pos >= end {
                return;
            }
            self.frame.next_segment();
        }
    }

    /// Builds a frame of one segment, which consists of the FPDUs in `found` if it is new and holds
    /// whole FPDUs.
    #[inline(always)]
    fn emit<S: TxSink>(&mut self, text: Text, found: Option<Whole>, sink: &mut S) {
        let Text { len, retransmit, .. } = text;
        let Segments { mem, frame, queue, counters } = self;
        counters.tx_segments += 1;
        counters.tx_retransmits += u64::from(retransmit);
        let needs_sum = frame.tcp_checksum == TcpChecksum::NeedsPayloadSum;
        let header = frame.header.len();
        sink.begin(header + len as usize);
        if let Some(found) = found
            && found.fillable
            && let Some((head, body)) =
                sink.whole(header + len as usize).and_then(|f| f.split_at_mut_checked(header))
        {
            let (sum, digested) = queue.fill(*mem, found, body, needs_sum);
            counters.tx_digested_bytes += digested;
            if needs_sum {
                frame.finish_tcp_checksum(sum);
            }
            head.copy_from_slice(&frame.header);
        } else {
            self.emit_pieces(text, found, sink);
        }
        sink.end(offload(self.frame, 0));
    }

    /// Appends headers and payload to the frame, payload by reference where that is possible.
    #[inline]
    fn emit_pieces<S: TxSink>(&mut self, text: Text, found: Option<Whole>, sink: &mut S) {
        let Text { pos, len, retransmit, .. } = text;
        let Segments { mem, frame, queue, counters } = self;
        let needs_sum = frame.tcp_checksum == TcpChecksum::NeedsPayloadSum;
        counters.tx_digested_apart += u64::from(queue.seal(*mem, pos, len));
        if let Some(fpdu) = found.and_then(|f| queue.single(f)) {
            if needs_sum {
                frame.finish_tcp_checksum(fpdu.sum(*mem));
            }
            match fpdu.payload() {
                Some(payload) => {
                    counters.tx_referenced_bytes += u64::from(payload.len());
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
            frame.finish_tcp_checksum(queue.sum(*mem, pos, len, retransmit));
        }
        sink.bytes(&frame.header);
        let mut referenced = 0;
        queue.pieces(pos, len, |p| match p {
            Piece::Bytes(b) => sink.bytes(b),
            Piece::Memory(r) => {
                referenced += u64::from(r.len());
                sink.memory(r);
            }
        });
        counters.tx_referenced_bytes += referenced;
    }

    /// Builds one frame of a train, which the port cuts into segments. Each segment lies in a
    /// buffer of its own if its payload is copied, as a segment that is a frame does.
    #[inline(never)]
    fn emit_train<S: TxSink>(&mut self, text: Text, sink: &mut S) {
        let Text { pos, len, segment, .. } = text;
        self.counters.tx_trains += 1;
        self.counters.tx_segments += u64::from(len.div_ceil(segment));
        let header = self.frame.header.len();
        sink.begin_train(header + len as usize, segment);
        let found = self.queue.whole(pos, len).filter(|f| f.fillable);
        if !found.is_some_and(|found| self.fill_train(found, segment, sink)) {
            self.emit_pieces(text, None, sink);
        }
        let segment = u16::try_from(segment).unwrap_or(u16::MAX);
        sink.end(offload(self.frame, segment));
    }

    /// Copies the FPDUs of a train into the frame. Returns false, with nothing in the frame, if the
    /// sink has no piece for the first segment, or the segment is a part of an FPDU.
    #[inline(always)]
    fn fill_train<S: TxSink>(&mut self, mut rest: Whole, segment: u32, sink: &mut S) -> bool {
        let Segments { mem, frame, queue, counters } = self;
        let header = frame.header.len();
        let found = queue.cut(&mut rest, segment);
        if found.len != segment {
            // The segment size has fallen, and an FPDU that was cut before fills two segments.
            return false;
        }
        let Some((head, body)) =
            sink.whole(header + segment as usize).and_then(|f| f.split_at_mut_checked(header))
        else {
            return false;
        };
        head.copy_from_slice(&frame.header);
        counters.tx_digested_bytes += queue.fill(*mem, found, body, false).1;
        // Without a piece, the sink drops the frame at its end.
        if rest.count() == rest.len.div_ceil(segment) {
            // As a rule, a segment is one FPDU.
            for fpdu in queue.each(rest) {
                let Some(body) = sink.piece(fpdu.len() as usize) else { break };
                counters.tx_digested_bytes += u64::from(fpdu.open_len());
                fpdu.fill(*mem, body, false);
            }
            return true;
        }
        while !rest.is_empty() {
            let found = queue.cut(&mut rest, segment);
            let Some(body) = sink.piece(found.len as usize) else { break };
            counters.tx_digested_bytes += queue.fill(*mem, found, body, false).1;
        }
        true
    }
}
