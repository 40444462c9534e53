//! From work requests and inbound Reads to FPDUs.
//!
//! The QP sends messages one after another: requests in the order of posting, Read Responses in the
//! order of the peer's requests. When both kinds wait they take turns, message by message: DDP
//! messages are sent in the order they were submitted (RFC 5041 section 5.3), and deployed peers do
//! not accept two tagged messages whose segments interleave.
//!
//! A segment never spans two SGEs, nor two runs of a page list, unless its payload is small enough
//! to be copied ([`INLINE_PAYLOAD`]): each FPDU refers to one piece of memory. Receivers place
//! segments of any length, so this only costs more headers where SGEs are short.

use super::buffers::Buffers;
use super::config::INLINE_PAYLOAD;
use super::fpdu::Fpdu;
use super::queues::{Progress, SgList, Wqe, WqeOp};
use super::reads::{Inbound, InboundRead, Outbound};
use super::terminate::{Culprit, untagged};
use super::{HOT, QpContext, QpEnv};
use crate::Msn;
use crate::ddp::{self, Qn, TAGGED_LEN, UNTAGGED_LEN};
use crate::fault::Fault;
use crate::mpa::fpdu::{MAX_MULPDU, MIN_MULPDU};
use crate::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicResponse, Control, CopiedHeader,
    Opcode, READ_REQUEST_LEN, ReadRequest,
};
use heddle_base::Fetch;
use heddle_mr::{CheckedRest, MemRange, Memory};
use heddle_types::{Access, AtomicOp, ConnectedState, CqeStatus, PostError, Queue, Sge, Stag};

/// The message of which the QP is making segments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sending {
    /// The next request of the send queue; `off` bytes of it are in FPDUs.
    Request { off: u32 },
    /// The oldest Read or atomic operation of the peer.
    Response,
}

impl QpContext {
    /// Returns the next FPDU to send, its ULPDU at most `mulpdu` bytes (clamped to
    /// [`MIN_MULPDU`]..=[`MAX_MULPDU`]), or `None` when there is nothing to send now. The FPDU
    /// follows the previous one in the stream without a gap.
    pub fn poll_transmit<M: Memory>(&mut self, env: &QpEnv<'_, M>, mulpdu: u16) -> Option<Fpdu> {
        let (mut buffers, mut fpdu) = (Buffers::default(), Fpdu::default());
        let made = self.poll_transmit_into(env, mulpdu, &mut buffers, &mut fpdu);
        fpdu.seal(env.mem);
        made.then_some(fpdu)
    }

    /// Makes the next FPDU as [`poll_transmit`](QpContext::poll_transmit) does, in the place where
    /// the owner keeps it. Returns false, with meaningless contents in `out`, when there is no
    /// FPDU. An FPDU that has to own its bytes takes memory of `buffers`. The FPDU may be
    /// [open](Fpdu::is_open): its sender seals it.
    #[inline]
    pub fn poll_transmit_into<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        mulpdu: u16,
        buffers: &mut Buffers,
        out: &mut Fpdu,
    ) -> bool {
        if !self.state.is_live() || self.hold || self.drained {
            return match self.state {
                ConnectedState::Terminate => self.transmit_terminate(env, out),
                _ => self.transmit_rtr(env, out),
            };
        }
        let sending = match self.sending {
            Some(s) => s,
            None => {
                if self.short_message(env, out) {
                    return true;
                }
                match self.start_message(env) {
                    Some(s) => s,
                    // A request that sends nothing may have failed.
                    None => return !self.state.is_live() && self.transmit_terminate(env, out),
                }
            }
        };
        if matches!(sending, Sending::Response) && env.snapshots_full {
            self.counters.rare().tx_snapshot_stalls += 1;
            return false;
        }
        let mulpdu = u32::from(mulpdu.clamp(MIN_MULPDU, MAX_MULPDU));
        let made = match sending {
            Sending::Request { off } => self.request_segment(env, off, mulpdu, (buffers, out)),
            Sending::Response => self.response_segment(env, mulpdu, (buffers, out)),
        };
        match made {
            Ok(()) => true,
            Err(culprit) => self.transmit_failure(env, culprit, out),
        }
    }

    /// Ends the stream because of a message that the QP could not send.
    #[cold]
    fn transmit_failure<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        culprit: Culprit,
        out: &mut Fpdu,
    ) -> bool {
        self.fail(culprit);
        self.transmit_terminate(env, out)
    }

    /// Fetches the state of the queue pair that a turn touches.
    #[inline]
    pub fn fetch_state(&self, fetch: impl Fetch) {
        fetch.bytes(core::ptr::from_ref(self).cast::<u8>().wrapping_add(HOT.start), HOT.len());
    }

    /// Fetches the memory to which the queue pair points and that a turn touches.
    #[inline]
    pub fn fetch(&self, fetch: impl Fetch) {
        self.sq.fetch(fetch);
    }

    /// Returns true if [`poll_transmit`](QpContext::poll_transmit) would return an FPDU, if
    /// snapshots have room, or carry out a request that [sends nothing](heddle_types::SendOp::is_local).
    #[inline]
    pub fn has_transmit(&self) -> bool {
        if self.state == ConnectedState::Terminate {
            return self.end.as_ref().is_some_and(|e| e.terminate.is_some());
        }
        if self.hold {
            return self.has_rtr();
        }
        self.state.is_live()
            && !self.drained
            && (self.sending.is_some() || !self.reads.inbound.is_empty() || self.may_start())
    }

    /// Returns true if the next send request may start: there is one, and no fence or Read limit
    /// holds it.
    #[inline]
    pub(super) fn may_start(&self) -> bool {
        if !self.sq.has_next() {
            return false;
        }
        let wqe = self.sq.wqes.at(self.sq.next);
        let fenced = wqe.fence && !self.reads.outbound.is_empty();
        let held = fenced || wqe.op.is_answered() && !self.reads.can_send();
        // A refused request waits only for its turn.
        !held || wqe.refused.is_some()
    }

    /// Returns true if the next FPDU, unless it is of a Read Response, begins a message that takes
    /// a receive of the peer: a Send, or Immediate Data.
    pub(super) fn wants_receive(&self) -> bool {
        if !self.state.is_live() || self.hold || self.drained || !self.sq.has_next() {
            return false;
        }
        let wqe = self.sq.wqes.at(self.sq.next);
        let off = match self.sending {
            Some(Sending::Response) => return false,
            Some(Sending::Request { off }) => off,
            None if self.may_start() => 0,
            None => return false,
        };
        wqe.refused.is_none()
            && match wqe.op {
                WqeOp::Send { .. } => off == 0,
                WqeOp::Immediate { .. } => off == wqe.len,
                // The Write waits too: once it has begun, no Read Response can go before its end.
                WqeOp::WriteImmediate { .. } => off == 0 || off == wqe.len,
                _ => false,
            }
    }

    #[inline]
    pub(super) fn start_message<M>(&mut self, env: &QpEnv<'_, M>) -> Option<Sending> {
        let request = self.may_start();
        if !request && self.sq.has_next() {
            self.counters.rare().tx_read_stalls += 1;
        }
        let mut response = !self.reads.inbound.is_empty();
        if response && env.snapshots_full {
            self.counters.rare().tx_snapshot_stalls += 1;
            response = false;
        }
        let sending = match (request, response) {
            (true, true) if self.responses_next => Sending::Response,
            (true, _) => Sending::Request { off: 0 },
            (false, true) => Sending::Response,
            (false, false) => return None,
        };
        self.responses_next = matches!(sending, Sending::Request { .. });
        if let Sending::Request { .. } = sending {
            let wqe = self.sq.wqes.at_mut(self.sq.next);
            let msn = match wqe.op {
                WqeOp::Write { .. } => return self.begin(sending),
                op if op.is_answered() => &mut self.read_msn,
                op if op.is_local() => return self.carry_out_locals(env),
                // Also the MSN of Immediate Data after a Write: no other message comes between the
                // two.
                _ => &mut self.send_msn,
            };
            wqe.msn = *msn;
            *msn = msn.next();
        }
        self.begin(sending)
    }

    fn begin(&mut self, sending: Sending) -> Option<Sending> {
        self.sending = Some(sending);
        self.sending
    }

    #[inline]
    fn request_segment<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        off: u32,
        mulpdu: u32,
        (buffers, out): (&mut Buffers, &mut Fpdu),
    ) -> Result<(), Culprit> {
        let wqe = self.sq.wqes.at(self.sq.next);
        if let Some(why) = wqe.refused {
            return Err(self.local_culprit(CqeStatus::LocalQpOperation(why)));
        }
        let (mut len, piece);
        match wqe.op {
            WqeOp::Read { stag, to } => return self.read_request(env, stag, to, out),
            WqeOp::FetchAdd { stag, to } | WqeOp::CmpSwap { stag, to } => {
                return self.atomic_request(env, stag, to, (buffers, out));
            }
            WqeOp::Immediate { solicited } | WqeOp::WriteImmediate { solicited, .. }
                if off == wqe.len =>
            {
                self.immediate(env, solicited, out);
                return Ok(());
            }
            // Immediate Data has no payload besides its own 8 bytes.
            WqeOp::Immediate { .. } => return Err(Fault::Local.into()),
            WqeOp::Write { stag, to } | WqeOp::WriteImmediate { stag, to, .. } => {
                (len, piece) = self.sq.next_piece(wqe, off, mulpdu - TAGGED_BYTES);
                // Posting has checked that the sum does not wrap.
                let to = to.saturating_add(u64::from(off));
                put_tagged(out, off + len == wqe.len, Opcode::WRITE, stag, to, len);
            }
            // The QP carries these requests out before it starts a message.
            WqeOp::FastRegister { .. }
            | WqeOp::BindWindow { .. }
            | WqeOp::LocalInvalidate { .. } => {
                return Err(Fault::Local.into());
            }
            WqeOp::Send { solicited, invalidate } => {
                (len, piece) = self.sq.next_piece(wqe, off, mulpdu - UNTAGGED_BYTES);
                let last = off + len == wqe.len;
                put_send(out, last, (solicited, invalidate), wqe.msn, (off, len));
            }
        }
        match piece {
            Some(sge) if sge.len > INLINE_PAYLOAD => {
                let range = self.local(env, sge, Access::NONE)?;
                if range.len() < sge.len {
                    len = range.len();
                    shorten(wqe, off, len, out);
                }
                out.put_reference(range);
            }
            Some(sge) if sge.len == len => self.gather(env, sge, out)?,
            _ if wqe.inline => out.put_inline(self.sq.inline(wqe, off, len), buffers),
            _ => self.gather_pieces(env, self.sq.sges(wqe), (off, len), out)?,
        }
        let end = off + len;
        let more = matches!(wqe.op, WqeOp::WriteImmediate { .. });
        let last = end == wqe.len;
        self.counters.tx_bytes += u64::from(len);
        if out.payload().is_none() && len > 0 {
            self.counters.tx_inlined += 1;
            self.counters.tx_inlined_bytes += u64::from(len);
        }
        self.finish(env, last, out);
        if last && !more {
            self.request_sent();
            self.pass_refused();
        } else {
            self.sending = Some(Sending::Request { off: end });
        }
        Ok(())
    }

    /// Copies few bytes that lie in several pieces.
    #[inline(never)]
    fn gather_pieces<M: Memory>(
        &self,
        env: &QpEnv<'_, M>,
        sges: SgList<'_>,
        (off, len): (u32, u32),
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        sges.try_for_each(off, len, |s| self.gather(env, s, out))
    }

    /// Copies the bytes of one piece, which is several ranges in a page list.
    #[inline(always)]
    fn gather<M: Memory>(
        &self,
        env: &QpEnv<'_, M>,
        mut s: Sge,
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        loop {
            let range = self.local(env, s, Access::NONE)?;
            env.mem.gather(range, out.room(range.len() as usize));
            if range.len() == s.len {
                return Ok(());
            }
            // The QP has checked the whole piece, so the sum does not wrap.
            s = Sge { to: s.to.wrapping_add(range.len().into()), len: s.len - range.len(), ..s };
        }
    }

    /// Checks local memory of the request that is being sent.
    #[inline(always)]
    fn local<M>(&self, env: &QpEnv<'_, M>, s: Sge, need: Access) -> Result<MemRange, Culprit> {
        env.mrs
            .check(self.pd, self.qpn, s.stag, s.to, s.len, need)
            .map_err(|_| self.local_culprit(CqeStatus::LocalProtection))
    }

    /// Returns the fault for the request whose turn it is and which cannot be carried out.
    #[cold]
    pub(super) fn local_culprit(&self, status: CqeStatus) -> Culprit {
        Culprit { request: Some((Queue::Sq, self.sq.next, status)), ..Fault::Local.into() }
    }

    /// Skips requests posted after the close: the QP does not send them, and they are complete as
    /// soon as all before them are.
    #[inline]
    pub(super) fn pass_refused(&mut self) {
        if self.state != ConnectedState::Closing {
            return;
        }
        while !matches!(self.sending, Some(Sending::Request { .. }))
            && self.sq.has_next()
            && self.sq.wqes.at(self.sq.next).refused == Some(PostError::Closing)
        {
            self.sq.wqes.at_mut(self.sq.next).progress = Progress::Done;
            self.sq.next = self.sq.next.wrapping_add(1);
        }
    }

    fn read_request<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        src: Stag,
        src_to: u64,
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        let wqe = self.sq.wqes.at(self.sq.next);
        let (size, msn) = (wqe.len, wqe.msn);
        let sink = self.sq.sges(wqe).first().copied().unwrap_or_default();
        if size > 0 {
            self.local(env, sink, Access::LOCAL_WRITE)?;
        }
        if self.peer_closed {
            // The peer has closed, so its answer cannot come.
            return Err(self.local_culprit(CqeStatus::Flushed));
        }
        let start = untagged_start(true, Opcode::READ_REQUEST, Stag::default());
        out.put_untagged(READ_REQUEST_BYTES, start, qn_msn(Qn::READ_REQUEST, msn), 0);
        let request =
            ReadRequest { sink_stag: sink.stag, sink_to: sink.to, size, src_stag: src, src_to };
        out.room(READ_REQUEST_LEN).copy_from_slice(&request.emit());
        self.reads.outbound.push_back(Outbound {
            index: Some(self.sq.next),
            atomic: false,
            stag: sink.stag,
            to: sink.to,
            left: size,
        });
        self.finish_bare(env, out);
        self.request_sent();
        self.pass_refused();
        Ok(())
    }

    /// Makes the FPDU of the Immediate Data of the next request, after its Write if it has one.
    fn immediate<M: Memory>(&mut self, env: &QpEnv<'_, M>, solicited: bool, out: &mut Fpdu) {
        let wqe = self.sq.wqes.at(self.sq.next);
        let opcode = if solicited { Opcode::IMMEDIATE_SE } else { Opcode::IMMEDIATE };
        let start = untagged_start(true, opcode, Stag::default());
        out.put_untagged(IMMEDIATE_BYTES, start, qn_msn(Qn::SEND, wqe.msn), 0);
        out.room(8).copy_from_slice(&self.sq.immediate(wqe).to_be_bytes());
        self.finish_bare(env, out);
        self.request_sent();
        self.pass_refused();
    }

    fn atomic_request<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        stag: Stag,
        to: u64,
        (buffers, out): (&mut Buffers, &mut Fpdu),
    ) -> Result<(), Culprit> {
        let wqe = self.sq.wqes.at(self.sq.next);
        let (msn, op) = (wqe.msn, self.sq.atomic(wqe).unwrap_or(AtomicOp::swap(0)));
        let sink = self.sq.sges(wqe).first().copied().unwrap_or_default();
        self.local(env, sink, Access::LOCAL_WRITE)?;
        if self.peer_closed {
            // The peer has closed, so its answer cannot come.
            return Err(self.local_culprit(CqeStatus::Flushed));
        }
        let start = untagged_start(true, Opcode::ATOMIC_REQUEST, Stag::default());
        out.put_untagged(ATOMIC_REQUEST_BYTES, start, qn_msn(Qn::READ_REQUEST, msn), 0);
        // The number within the queue is unique among all outstanding operations.
        let request = AtomicRequest { id: msn.0, stag, to, op };
        out.put_inline([&request.emit(), &[]], buffers);
        self.reads.outbound.push_back(Outbound {
            index: Some(self.sq.next),
            atomic: true,
            stag: sink.stag,
            to: sink.to,
            left: sink.len,
        });
        self.finish_bare(env, out);
        self.request_sent();
        self.pass_refused();
        Ok(())
    }

    /// Marks the next request as sent: the QP has made its last segment.
    fn request_sent(&mut self) {
        let end = self.tx_pos;
        let wqe = self.sq.wqes.at_mut(self.sq.next);
        wqe.progress = Progress::Sent;
        wqe.end = end;
        self.sq.next = self.sq.next.wrapping_add(1);
        self.sending = None;
    }

    #[inline]
    fn response_segment<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        mulpdu: u32,
        (buffers, out): (&mut Buffers, &mut Fpdu),
    ) -> Result<(), Culprit> {
        let r = match self.reads.inbound.front_mut() {
            Some(Inbound::Read(r)) => r,
            Some(&mut Inbound::Atomic { msn, request }) => {
                return self.atomic_response(env, msn, &request, out);
            }
            None => return Err(Fault::Malformed.into()),
        };
        let mut len = (r.size - r.sent).min(mulpdu - TAGGED_BYTES);
        let mut found = MemRange::EMPTY;
        if len > 0 {
            // The owner may have unregistered the region since the QP accepted the request.
            found = match r.rest.take(env.mrs, len) {
                Some(found) => found,
                None => {
                    r.rest = CheckedRest::NONE;
                    let from = r.src_to.saturating_add(u64::from(r.sent));
                    env.mrs
                        .check(self.pd, self.qpn, r.src, from, len, Access::REMOTE_READ)
                        .map_err(|f| response_culprit(r, Fault::read_source(f)))?
                }
            };
            len = found.len();
        }
        let r = &*r;
        let last = r.sent + len == r.size;
        // A sink offset that wraps is the reader's mistake; the reader's end checks it.
        let to = r.sink_to.wrapping_add(u64::from(r.sent));
        put_tagged(out, last, Opcode::READ_RESPONSE, r.sink, to, len);
        if len > 0 {
            self.counters.tx_bytes += u64::from(len);
            if len <= INLINE_PAYLOAD {
                env.mem.gather(found, out.room(len as usize));
                self.counters.tx_inlined += 1;
                self.counters.tx_inlined_bytes += u64::from(len);
            } else if self.handing {
                // The peer copies it before anything else can change the memory.
                out.put_reference(found);
            } else {
                out.put_snapshot(env.mem, found, self.crc && !self.send_markers, buffers);
                self.counters.tx_snapshot_bytes += u64::from(len);
            }
        }
        self.finish(env, last, out);
        if last {
            self.reads.inbound.pop_front();
            self.sending = None;
        } else if let Some(Inbound::Read(front)) = self.reads.inbound.front_mut() {
            front.sent += len;
        }
        Ok(())
    }

    /// Carries out an atomic operation of the peer, and answers. A retransmission repeats this
    /// answer and does not carry the operation out again.
    fn atomic_response<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        asked: Msn,
        request: &AtomicRequest,
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        // The owner may have unregistered the region since the QP accepted the request.
        let original = env
            .mrs
            .check(self.pd, self.qpn, request.stag, request.to, 8, Access::REMOTE_ATOMIC)
            .map_err(Fault::atomic)
            .and_then(|at| env.mem.atomic(at, request.op).ok_or(Fault::AtomicAlignment))
            .map_err(|fault| atomic_culprit(asked, fault))?;
        let msn = self.reads.tx_atomic_msn;
        self.reads.tx_atomic_msn = msn.next();
        let start = untagged_start(true, Opcode::ATOMIC_RESPONSE, Stag::default());
        out.put_untagged(ATOMIC_RESPONSE_BYTES, start, qn_msn(Qn::ATOMIC_RESPONSE, msn), 0);
        let response = AtomicResponse { id: request.id, original };
        out.room(ATOMIC_RESPONSE_LEN).copy_from_slice(&response.emit());
        self.finish_bare(env, out);
        self.reads.inbound.pop_front();
        self.sending = None;
        self.counters.rare().tx_atomic_responses += 1;
        Ok(())
    }

    /// Completes an FPDU whose headers and payload are in place.
    #[inline(always)]
    pub(super) fn finish<M: Memory>(&mut self, env: &QpEnv<'_, M>, last: bool, out: &mut Fpdu) {
        // With markers the CRC covers them too, so `queue` computes it.
        out.complete(env.mem, self.crc && !self.send_markers);
        out.set_last(last);
        self.queue(env, out);
    }

    /// Completes a message that is one FPDU of headers; a separate function, because several kinds
    /// of message use it.
    #[inline(never)]
    pub(super) fn finish_bare<M: Memory>(&mut self, env: &QpEnv<'_, M>, out: &mut Fpdu) {
        self.finish(env, true, out);
    }

    /// Gives an FPDU its place in the stream.
    #[inline]
    pub(super) fn queue<M: Memory>(&mut self, env: &QpEnv<'_, M>, fpdu: &mut Fpdu) {
        if self.send_markers {
            let offset = self.tx_pos.0.wrapping_sub(u64::from(self.tx_grid));
            fpdu.put_markers(env.mem, offset, self.crc);
        }
        self.counters.tx_fpdus += 1;
        self.tx_pos += u64::from(fpdu.len());
    }
}

/// Bytes of the tagged and the untagged header.
pub(super) const TAGGED_BYTES: u32 = 14;
const UNTAGGED_BYTES: u32 = 18;
const _: () =
    assert!(TAGGED_LEN == TAGGED_BYTES as usize && UNTAGGED_LEN == UNTAGGED_BYTES as usize);

/// Bytes of payload that are headers.
pub(super) const READ_REQUEST_BYTES: u32 = 28;
const ATOMIC_REQUEST_BYTES: u32 = 52;
const ATOMIC_RESPONSE_BYTES: u32 = 12;
const IMMEDIATE_BYTES: u32 = 8;
const _: () = assert!(
    READ_REQUEST_LEN == READ_REQUEST_BYTES as usize
        && ATOMIC_REQUEST_LEN == ATOMIC_REQUEST_BYTES as usize
        && ATOMIC_RESPONSE_LEN == ATOMIC_RESPONSE_BYTES as usize
);

/// Returns QN and MSN as they follow each other in an untagged header.
#[inline]
pub(super) fn qn_msn(qn: Qn, msn: Msn) -> u64 {
    u64::from(qn.0) << 32 | u64::from(msn.0)
}

/// Returns the start of an untagged header.
#[inline]
pub(super) fn untagged_start(last: bool, opcode: Opcode, invalidate: Stag) -> u64 {
    ddp::untagged_start(last, Control::new(opcode).to_byte(), invalidate.0)
}

/// Writes the tagged header of a segment with `len` bytes of payload.
#[inline]
pub(super) fn put_tagged(
    head: &mut Fpdu,
    last: bool,
    opcode: Opcode,
    stag: Stag,
    to: u64,
    len: u32,
) {
    let rsvd_ulp = Control::new(opcode).to_byte();
    head.put_tagged(len, ddp::tagged_start(last, rsvd_ulp, stag), to);
}

/// Rewrites the headers of the segment of `wqe` that begins with byte `off`: the segment gets `len`
/// bytes and is not the last.
#[cold]
fn shorten(wqe: &Wqe, off: u32, len: u32, out: &mut Fpdu) {
    match wqe.op {
        WqeOp::Write { stag, to } | WqeOp::WriteImmediate { stag, to, .. } => {
            put_tagged(out, false, Opcode::WRITE, stag, to.saturating_add(u64::from(off)), len);
        }
        WqeOp::Send { solicited, invalidate } => {
            put_send(out, false, (solicited, invalidate), wqe.msn, (off, len));
        }
        _ => debug_assert!(false, "only these have a payload"),
    }
}

/// Writes the untagged header of a segment of a Send, with `len` bytes of payload that begin `off`
/// bytes into the message.
#[inline]
pub(super) fn put_send(
    head: &mut Fpdu,
    last: bool,
    (solicited, invalidate): (bool, Option<Stag>),
    msn: Msn,
    (off, len): (u32, u32),
) {
    let start = send_start(last, (solicited, invalidate));
    head.put_untagged(len, start, qn_msn(Qn::SEND, msn), off);
}

/// Returns the start of the untagged header of a segment of a Send.
#[inline]
pub(super) fn send_start(last: bool, (solicited, invalidate): (bool, Option<Stag>)) -> u64 {
    let opcode = match (solicited, invalidate.is_some()) {
        (false, false) => Opcode::SEND,
        (false, true) => Opcode::SEND_INV,
        (true, false) => Opcode::SEND_SE,
        (true, true) => Opcode::SEND_SE_INV,
    };
    untagged_start(last, opcode, invalidate.unwrap_or_default())
}

/// Returns the fault for a Read of the peer whose source failed while this end was answering it.
/// The Terminate repeats the DDP header as it was, and the RDMAP header advanced to the point that
/// the answer had reached (RFC 5040 section 4.8).
fn response_culprit(r: &InboundRead, fault: Fault) -> Culprit {
    let mut header = [0; UNTAGGED_LEN];
    untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, r.msn).emit(&mut header);
    let len = u16::try_from(UNTAGGED_LEN + READ_REQUEST_LEN).unwrap_or(0);
    let read = ReadRequest {
        sink_stag: r.sink,
        sink_to: r.sink_to.wrapping_add(u64::from(r.sent)),
        size: r.size - r.sent,
        src_stag: r.src,
        src_to: r.src_to.saturating_add(u64::from(r.sent)),
    };
    Culprit {
        segment: CopiedHeader::of_segment(&header).map(|h| (h, len)),
        read: Some(read),
        ..fault.into()
    }
}

/// Returns the fault for an atomic operation of the peer, whose own header the Terminate does not
/// repeat (RFC 7306 section 8.1).
fn atomic_culprit(msn: Msn, fault: Fault) -> Culprit {
    let mut header = [0; UNTAGGED_LEN];
    untagged(Opcode::ATOMIC_REQUEST, Qn::READ_REQUEST, msn).emit(&mut header);
    let len = u16::try_from(UNTAGGED_LEN + ATOMIC_REQUEST_LEN).unwrap_or(0);
    Culprit { segment: CopiedHeader::of_segment(&header).map(|h| (h, len)), ..fault.into() }
}
