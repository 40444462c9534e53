//! From work requests and inbound Reads to FPDUs.
//!
//! Messages are sent one after another, in the order of posting; Read Responses in the order of
//! the requests. When both wait they take turns, message by message: DDP messages are sent in the
//! order they were submitted (RFC 5041 section 5.3), and deployed peers do not take two tagged
//! messages whose segments interleave.
//!
//! A segment never spans two SGEs unless its payload is small enough to be copied
//! ([`INLINE_PAYLOAD`]): each FPDU refers to one piece of memory. Receivers place segments of any
//! length, so this costs only headers where SGEs are short.

use super::config::INLINE_PAYLOAD;
use super::cqe::{CqeStatus, Queue};
use super::fault::Fault;
use super::fpdu::Fpdu;
use super::queues::{Progress, WqeOp};
use super::reads::{Inbound, InboundRead, Outbound};
use super::state::QpState;
use super::terminate::{Culprit, untagged};
#[cfg(doc)]
use super::wr::SendOp;
use super::wr::{PostError, Sge};
use super::{Qp, QpEnv};
use crate::ddp::{self, DdpHeader, Qn, TAGGED_LEN, UNTAGGED_LEN};
use crate::mpa::fpdu::{MAX_MULPDU, MIN_MULPDU};
use crate::mpa::markers;
use crate::rdmap::{
    ATOMIC_REQUEST_LEN, AtomicOp, AtomicRequest, AtomicResponse, Control, CopiedHeader, Opcode,
    READ_REQUEST_LEN, ReadRequest,
};
use crate::{Access, MemRange, Memory, Msn, Stag};

/// The message whose segments are being made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sending {
    /// The next request of the send queue, `off` bytes of which are in FPDUs.
    Request { off: u32 },
    /// The oldest inbound Read or atomic operation.
    Response,
}

/// The payload of one segment.
struct Payload {
    range: MemRange,
    len: u32,
}

impl Qp {
    /// The next FPDU to send, its ULPDU at most `mulpdu` bytes (taken into
    /// [`MIN_MULPDU`]..=[`MAX_MULPDU`]); `None` when there is nothing to send now. It follows the
    /// previous one in the stream without a gap.
    pub fn poll_transmit<M: Memory>(&mut self, env: &QpEnv<'_, M>, mulpdu: u16) -> Option<Fpdu> {
        let mut fpdu = Fpdu::default();
        let made = self.poll_transmit_into(env, mulpdu, &mut fpdu);
        fpdu.seal(env.mem);
        made.then_some(fpdu)
    }

    /// As [`poll_transmit`](Qp::poll_transmit), in the place where the FPDU is kept; false, and
    /// `out` is of no meaning, when there is none. The FPDU may be [open](Fpdu::is_open): whoever
    /// sends it seals it.
    #[inline]
    pub fn poll_transmit_into<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        mulpdu: u16,
        out: &mut Fpdu,
    ) -> bool {
        if !self.state.is_live() || self.hold || self.drained {
            return self.state == QpState::Terminate && self.transmit_terminate(env, out);
        }
        let sending = match self.sending {
            Some(s) => s,
            None => match self.start_message(env) {
                Some(s) => s,
                // What was tried without sending may have failed.
                None => return !self.state.is_live() && self.transmit_terminate(env, out),
            },
        };
        if matches!(sending, Sending::Response) && env.snapshots_full {
            self.counters.tx_snapshot_stalls += 1;
            return false;
        }
        let mulpdu = u32::from(mulpdu.clamp(MIN_MULPDU, MAX_MULPDU));
        out.start();
        let made = match sending {
            Sending::Request { off } => self.request_segment(env, off, mulpdu, out),
            Sending::Response => self.response_segment(env, mulpdu, out),
        };
        match made {
            Ok(()) => true,
            Err(culprit) => self.transmit_failure(env, culprit, out),
        }
    }

    /// What could not be sent ends the stream.
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

    /// Whether the next FPDU may have to own its bytes: it is worth giving it
    /// [memory](Fpdu::with_memory).
    #[inline]
    pub fn wants_memory(&self) -> bool {
        match self.sending {
            Some(Sending::Response) => true,
            None if !self.reads.inbound.is_empty() => true,
            _ if !self.sq.has_next() => false,
            _ => {
                let wqe = self.sq.wqes.at(self.sq.next);
                wqe.inline || wqe.op.is_atomic()
            }
        }
    }

    /// Whether [`poll_transmit`](Qp::poll_transmit) would give an FPDU, if snapshots have room, or
    /// carry out a request for which [nothing is sent](SendOp::is_local).
    #[inline]
    pub fn has_transmit(&self) -> bool {
        if self.state == QpState::Terminate {
            return self.end.as_ref().is_some_and(|e| e.terminate.is_some());
        }
        self.state.is_live()
            && !self.hold
            && !self.drained
            && (self.sending.is_some() || !self.reads.inbound.is_empty() || self.may_start())
    }

    /// Whether the next send request may start: there is one, and no fence or Read limit holds it.
    pub(super) fn may_start(&self) -> bool {
        if !self.sq.has_next() {
            return false;
        }
        let wqe = self.sq.wqes.at(self.sq.next);
        let fenced = wqe.fence && !self.reads.outbound.is_empty();
        let limited = wqe.op.is_answered() && !self.reads.can_send();
        // What is refused waits for nothing but its turn.
        (!fenced && !limited) || wqe.refused.is_some()
    }

    #[inline]
    pub(super) fn start_message<M>(&mut self, env: &QpEnv<'_, M>) -> Option<Sending> {
        let snapshots_full = env.snapshots_full;
        let waits = !self.reads.inbound.is_empty();
        let response = waits && !snapshots_full;
        self.counters.tx_snapshot_stalls += u64::from(waits && snapshots_full);
        let request = self.may_start();
        if self.sq.has_next() && !request {
            self.counters.tx_read_stalls += 1;
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
                // Of the Immediate Data behind a Write too: no other message comes in between.
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
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        let wqe = self.sq.wqes.at(self.sq.next);
        if let Some(why) = wqe.refused {
            return Err(self.local_culprit(CqeStatus::LocalQpOperation(why)));
        }
        let (len, msn) = (wqe.len, wqe.msn);
        let payload = match wqe.op {
            WqeOp::Read { stag, to } => {
                return self.read_request(env, stag, to, out);
            }
            WqeOp::FetchAdd { stag, to } | WqeOp::CmpSwap { stag, to } => {
                return self.atomic_request(env, stag, to, out);
            }
            WqeOp::Immediate { solicited } | WqeOp::WriteImmediate { solicited, .. }
                if off == len =>
            {
                self.immediate(env, solicited, out);
                return Ok(());
            }
            // Nothing comes before its Immediate Data.
            WqeOp::Immediate { .. } => return Err(Fault::Local.into()),
            WqeOp::Write { stag, to } | WqeOp::WriteImmediate { stag, to, .. } => {
                let (n, sge) = self.next_piece(off, mulpdu - TAGGED_BYTES);
                // Posting has checked that the sum does not wrap.
                let to = to.saturating_add(u64::from(off));
                put_tagged(out, off + n == len, Opcode::WRITE, stag, to, n);
                self.request_payload(env, out, off, n, sge)?
            }
            // These are carried out before anything is started.
            WqeOp::FastRegister { .. }
            | WqeOp::BindWindow { .. }
            | WqeOp::LocalInvalidate { .. } => {
                return Err(Fault::Local.into());
            }
            WqeOp::Send { solicited, invalidate } => {
                let (n, sge) = self.next_piece(off, mulpdu - UNTAGGED_BYTES);
                let opcode = match (solicited, invalidate.is_some()) {
                    (false, false) => Opcode::SEND,
                    (false, true) => Opcode::SEND_INV,
                    (true, false) => Opcode::SEND_SE,
                    (true, true) => Opcode::SEND_SE_INV,
                };
                let header = DdpHeader::Untagged {
                    last: off + n == len,
                    rsvd_ulp: Control::new(opcode).to_byte(),
                    rsvd_ulp32: invalidate.unwrap_or_default().0,
                    qn: Qn::SEND,
                    msn,
                    mo: off,
                };
                header.emit(out.room(UNTAGGED_LEN));
                self.request_payload(env, out, off, n, sge)?
            }
        };
        let last = off + payload.len == len;
        let more = matches!(wqe.op, WqeOp::WriteImmediate { .. });
        self.finish(env, &payload, last, out);
        if last && !more {
            self.request_sent();
            self.pass_refused();
        } else {
            self.sending = Some(Sending::Request { off: off + payload.len });
        }
        Ok(())
    }

    /// Payload bytes of the segment that begins `off` bytes into the next request, and the memory
    /// they lie in; `None` when they are inline, or few enough to be copied, from wherever.
    #[inline(always)]
    fn next_piece(&self, off: u32, max: u32) -> (u32, Option<Sge>) {
        let wqe = self.sq.wqes.at(self.sq.next);
        let left = wqe.len - off;
        if left <= INLINE_PAYLOAD {
            return (left, None);
        }
        if wqe.inline {
            return (left.min(max), None);
        }
        let sge = self.sq.sges(wqe).piece(off, max.min(left));
        (sge.map_or(0, |s| s.len), sge)
    }

    /// Checks the memory of a segment and copies or refers to it.
    #[inline(always)]
    fn request_payload<M: Memory>(
        &self,
        env: &QpEnv<'_, M>,
        head: &mut Fpdu,
        off: u32,
        len: u32,
        sge: Option<Sge>,
    ) -> Result<Payload, Culprit> {
        let mut range = MemRange::EMPTY;
        match sge.filter(|s| s.len > INLINE_PAYLOAD) {
            Some(sge) => range = self.local(env, sge, Access::NONE)?,
            None => {
                let wqe = self.sq.wqes.at(self.sq.next);
                if wqe.inline {
                    head.put_inline(self.sq.inline(wqe, off, len));
                    return Ok(Payload { range, len });
                }
                self.sq.sges(wqe).try_for_each(off, len, |s| {
                    let r = self.local(env, s, Access::NONE)?;
                    env.mem.gather(r, head.room(r.len() as usize));
                    Ok::<(), Culprit>(())
                })?;
            }
        }
        Ok(Payload { range, len })
    }

    /// Checks local memory of the request that is being sent.
    #[inline(always)]
    fn local<M>(&self, env: &QpEnv<'_, M>, s: Sge, need: Access) -> Result<MemRange, Culprit> {
        env.mrs
            .check(self.pd, self.qpn, s.stag, s.to, s.len, need)
            .map_err(|_| self.local_culprit(CqeStatus::LocalProtection))
    }

    /// The request whose turn it is cannot be carried out.
    #[cold]
    pub(super) fn local_culprit(&self, status: CqeStatus) -> Culprit {
        Culprit { request: Some((Queue::Sq, self.sq.next, status)), ..Fault::Local.into() }
    }

    /// What was posted after the close is not sent, and is complete as soon as all before it is.
    #[inline]
    pub(super) fn pass_refused(&mut self) {
        if self.state != QpState::Closing {
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
            // The answer cannot come.
            return Err(self.local_culprit(CqeStatus::Flushed));
        }
        untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, msn).emit(out.room(UNTAGGED_LEN));
        let request =
            ReadRequest { sink_stag: sink.stag, sink_to: sink.to, size, src_stag: src, src_to };
        out.put(&request.emit());
        self.reads.outbound.push_back(Outbound {
            index: self.sq.next,
            atomic: false,
            stag: sink.stag,
            to: sink.to,
            left: size,
        });
        let none = Payload { range: MemRange::EMPTY, len: 0 };
        self.finish(env, &none, true, out);
        self.request_sent();
        self.pass_refused();
        Ok(())
    }

    /// The Immediate Data of the next request, behind its Write if it has one.
    fn immediate<M: Memory>(&mut self, env: &QpEnv<'_, M>, solicited: bool, out: &mut Fpdu) {
        let wqe = self.sq.wqes.at(self.sq.next);
        let opcode = if solicited { Opcode::IMMEDIATE_SE } else { Opcode::IMMEDIATE };
        untagged(opcode, Qn::SEND, wqe.msn).emit(out.room(UNTAGGED_LEN));
        out.put(&self.sq.immediate(wqe).to_be_bytes());
        self.finish(env, &Payload { range: MemRange::EMPTY, len: 0 }, true, out);
        self.request_sent();
        self.pass_refused();
    }

    fn atomic_request<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        stag: Stag,
        to: u64,
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        let wqe = self.sq.wqes.at(self.sq.next);
        let (msn, op) = (wqe.msn, self.sq.atomic(wqe).unwrap_or(AtomicOp::swap(0)));
        let sink = self.sq.sges(wqe).first().copied().unwrap_or_default();
        self.local(env, sink, Access::LOCAL_WRITE)?;
        if self.peer_closed {
            // The answer cannot come.
            return Err(self.local_culprit(CqeStatus::Flushed));
        }
        untagged(Opcode::ATOMIC_REQUEST, Qn::READ_REQUEST, msn).emit(out.room(UNTAGGED_LEN));
        // Its number within the queue tells it from every other that is outstanding.
        let request = AtomicRequest { id: msn.0, stag, to, op };
        out.put_inline([&request.emit(), &[]]);
        self.reads.outbound.push_back(Outbound {
            index: self.sq.next,
            atomic: true,
            stag: sink.stag,
            to: sink.to,
            left: sink.len,
        });
        self.finish(env, &Payload { range: MemRange::EMPTY, len: 0 }, true, out);
        self.request_sent();
        self.pass_refused();
        Ok(())
    }

    /// The last segment of the next request is made.
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
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        let r = match self.reads.inbound.front().copied() {
            Some(Inbound::Read(r)) => r,
            Some(Inbound::Atomic { msn, request }) => {
                return self.atomic_response(env, msn, &request, out);
            }
            None => return Err(Fault::Malformed.into()),
        };
        let len = (r.size - r.sent).min(mulpdu - TAGGED_BYTES);
        let last = r.sent + len == r.size;
        // A sink offset that wraps is the reader's own doing; its checks are not ours.
        let to = r.sink_to.wrapping_add(u64::from(r.sent));
        put_tagged(out, last, Opcode::READ_RESPONSE, r.sink, to, len);
        if len > 0 {
            // The region may have gone since the request was accepted.
            let from = r.src_to.saturating_add(u64::from(r.sent));
            let found = env
                .mrs
                .check(self.pd, self.qpn, r.src, from, len, Access::REMOTE_READ)
                .map_err(|f| response_culprit(&r, Fault::ReadSource(f)))?;
            if len <= INLINE_PAYLOAD {
                env.mem.gather(found, out.room(len as usize));
            } else {
                out.put_snapshot(env.mem, found, self.crc && !self.send_markers);
            }
        }
        self.finish(env, &Payload { range: MemRange::EMPTY, len }, last, out);
        if last {
            self.reads.inbound.pop_front();
            self.sending = None;
        } else if let Some(Inbound::Read(front)) = self.reads.inbound.front_mut() {
            front.sent += len;
        }
        Ok(())
    }

    /// Carries out an atomic operation of the peer's, and answers. What is sent again is this answer:
    /// the operation is not carried out again.
    fn atomic_response<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        asked: Msn,
        request: &AtomicRequest,
        out: &mut Fpdu,
    ) -> Result<(), Culprit> {
        // The region may have gone since the request was accepted.
        let original = env
            .mrs
            .check(self.pd, self.qpn, request.stag, request.to, 8, Access::REMOTE_ATOMIC)
            .map_err(Fault::ReadSource)
            .and_then(|at| env.mem.atomic(at, request.op).ok_or(Fault::Misaligned))
            .map_err(|fault| atomic_culprit(asked, fault))?;
        let msn = self.reads.tx_atomic_msn;
        self.reads.tx_atomic_msn = msn.next();
        untagged(Opcode::ATOMIC_RESPONSE, Qn::ATOMIC_RESPONSE, msn).emit(out.room(UNTAGGED_LEN));
        out.put(&AtomicResponse { id: request.id, original }.emit());
        self.finish(env, &Payload { range: MemRange::EMPTY, len: 0 }, true, out);
        self.reads.inbound.pop_front();
        self.sending = None;
        self.counters.rare().tx_atomic_responses += 1;
        Ok(())
    }

    /// Completes an FPDU whose headers are written.
    #[inline]
    fn finish<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        payload: &Payload,
        last: bool,
        out: &mut Fpdu,
    ) {
        self.counters.tx_bytes += u64::from(payload.len);
        let snapshot = u64::from(out.is_snapshot());
        self.counters.tx_snapshot_bytes += snapshot * u64::from(payload.len);
        if payload.len > 0 && payload.range.is_empty() && snapshot == 0 {
            self.counters.tx_inlined += 1;
            self.counters.tx_inlined_bytes += u64::from(payload.len);
        }
        self.counters.tx_marked_bytes += u64::from(self.send_markers) * u64::from(payload.len);
        // Markers make a copy with a CRC of its own.
        let (crc, sum) = (self.crc && !self.send_markers, env.want_sum && !self.send_markers);
        out.complete(env.mem, payload.range, crc, sum, last);
        self.queue(env, out);
    }

    /// Gives an FPDU its place in the stream.
    #[inline]
    pub(super) fn queue<M: Memory>(&mut self, env: &QpEnv<'_, M>, fpdu: &mut Fpdu) {
        if self.send_markers {
            *fpdu = self.with_markers(env, fpdu);
        }
        self.counters.tx_fpdus += 1;
        self.tx_pos += u64::from(fpdu.len());
    }

    /// A copy of `fpdu` with the markers that fall into it. This reads and copies the payload.
    #[cold]
    fn with_markers<M: Memory>(&self, env: &QpEnv<'_, M>, fpdu: &Fpdu) -> Fpdu {
        let mut plain = vec![0; fpdu.len() as usize];
        fpdu.copy_to(env.mem, 0, &mut plain);
        let mut marked = Vec::new();
        markers::insert(&plain, self.tx_pos - self.tx_start, self.crc, &mut marked);
        Fpdu::owned(marked, fpdu.ends_message()).kept_like(fpdu)
    }
}

/// Bytes of the two headers.
const TAGGED_BYTES: u32 = 14;
const UNTAGGED_BYTES: u32 = 18;
const _: () =
    assert!(TAGGED_LEN == TAGGED_BYTES as usize && UNTAGGED_LEN == UNTAGGED_BYTES as usize);

/// Writes the tagged header of a segment with `len` bytes of payload.
#[inline]
fn put_tagged(head: &mut Fpdu, last: bool, opcode: Opcode, stag: Stag, to: u64, len: u32) {
    let rsvd_ulp = Control::new(opcode).to_byte();
    head.put_tagged(len, ddp::tagged_start(last, rsvd_ulp, stag), to);
}

/// What a Terminate says of a Read whose source failed while it was being answered: the DDP header
/// as it was, and the RDMAP header moved on to where we were (RFC 5040 section 4.8).
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

/// The same of an atomic operation, whose own header is not repeated (RFC 7306 section 8.1).
fn atomic_culprit(msn: Msn, fault: Fault) -> Culprit {
    let mut header = [0; UNTAGGED_LEN];
    untagged(Opcode::ATOMIC_REQUEST, Qn::READ_REQUEST, msn).emit(&mut header);
    let len = u16::try_from(UNTAGGED_LEN + ATOMIC_REQUEST_LEN).unwrap_or(0);
    Culprit { segment: CopiedHeader::of_segment(&header).map(|h| (h, len)), ..fault.into() }
}
