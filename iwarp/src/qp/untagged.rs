//! Untagged segments: the Send types, Immediate Data, RDMA Read Request, Atomic Request and
//! Response, Terminate.

use super::alike::LEAST;
use super::complete::Received;
use super::queues::{Progress, Rqe};
use super::ranges::Ranges;
use super::reads::{Inbound, InboundRead, Outbound};
use super::rx::{DdpSegment, Untagged};
use super::stream::Stream;
use super::terminate::Culprit;
use super::{QpContext, QpEnv};
use crate::Msn;
use crate::fault::Fault;
use crate::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequest, AtomicRequestError, AtomicResponse,
    Opcode, READ_REQUEST_LEN, ReadRequest, TERMINATE_MAX_LEN,
};
use heddle_mr::{CheckedRest, Memory};
use heddle_types::{Access, CqeStatus, MrFault, Queue, Sge};

impl QpContext {
    #[inline]
    pub(super) fn handle_untagged<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Untagged,
    ) -> Result<(), Culprit> {
        match h.opcode {
            Opcode::SEND | Opcode::SEND_INV | Opcode::SEND_SE | Opcode::SEND_SE_INV => {
                self.handle_send(env, stream, seg, h)
            }
            Opcode::READ_REQUEST => self.handle_read_request(env, stream, seg, h),
            Opcode::TERMINATE => self.handle_terminate(stream, seg, h),
            Opcode::IMMEDIATE | Opcode::IMMEDIATE_SE => self.handle_immediate(stream, seg, h),
            Opcode::ATOMIC_REQUEST => self.handle_atomic_request(env, stream, seg, h),
            Opcode::ATOMIC_RESPONSE => self.handle_atomic_response(env, stream, seg, h),
            _ => Err(seg.blame(Fault::Opcode)),
        }
    }

    #[inline]
    fn handle_send<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Untagged,
    ) -> Result<(), Culprit> {
        if self.hold && self.take_rtr_send(seg, h) {
            return Ok(());
        }
        if self.rq.rqes.is_empty() {
            self.take_shared(seg, h)?;
        }
        let rqe = self.receive_buffer(seg, h)?;
        if seg.len > rqe.len - self.rq.received {
            return Err(Culprit {
                request: Some((Queue::Rq, self.rq.rqes.head(), CqeStatus::LocalLength)),
                ..seg.blame(Fault::TooLong)
            });
        }
        let invalidate = (h.last && h.opcode.invalidates()).then_some(h.invalidate);
        if let Some(stag) = invalidate {
            env.mrs
                .check_invalidate(self.pd, self.qpn, stag)
                .map_err(|_| seg.blame(Fault::Invalidate))?;
        }
        if seg.len > 0 {
            self.place_received(env, stream, seg, rqe).map_err(|fault| Culprit {
                request: Some((Queue::Rq, self.rq.rqes.head(), CqeStatus::LocalProtection)),
                ..seg.blame(fault)
            })?;
            self.rq.received += seg.len;
            self.counters.rx_bytes += u64::from(seg.len);
        }
        // A segment without bytes also begins a message.
        self.in_send = !h.last;
        if h.last {
            if let Some(stag) = invalidate {
                // The owner may have unregistered the STag since the check.
                env.mrs
                    .invalidate(self.pd, self.qpn, stag)
                    .map_err(|_| seg.blame(Fault::Invalidate))?;
            }
            let len = core::mem::take(&mut self.rq.received);
            self.rq.msn = self.rq.msn.next();
            self.counters.rx_sends += 1;
            let solicited = h.opcode.is_solicited();
            let what = Received { len, solicited, invalidated: invalidate, immediate: None };
            self.report_recv(CqeStatus::Success, what);
        } else if seg.len >= LEAST {
            self.expect_send(env, h, seg.len);
        }
        Ok(())
    }

    /// Returns the buffer for a segment of the queue of Sends.
    #[inline]
    fn receive_buffer(&self, seg: DdpSegment, h: Untagged) -> Result<&Rqe, Culprit> {
        if h.msn != self.rq.msn {
            return Err(seg.blame(Fault::Msn));
        }
        let Some(rqe) = self.rq.front() else {
            return Err(seg.blame(Fault::NoReceive));
        };
        if let Some(why) = rqe.refused {
            return Err(Culprit {
                request: Some((Queue::Rq, self.rq.rqes.head(), CqeStatus::LocalQpOperation(why))),
                ..seg.blame(Fault::Local)
            });
        }
        // TCP keeps the order, so the only legal offset is where the last segment ended.
        if h.mo != self.rq.received {
            return Err(seg.blame(Fault::Offset));
        }
        Ok(rqe)
    }

    /// Immediate Data consumes a buffer and writes nothing to it (RFC 7306 section 6.3).
    fn handle_immediate<C: Stream>(
        &mut self,
        stream: &C,
        seg: DdpSegment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        if self.rq.rqes.is_empty() {
            self.take_shared(seg, h)?;
        }
        self.receive_buffer(seg, h)?;
        let data = whole(stream, seg, h).ok_or_else(|| seg.blame(Fault::Malformed))?;
        self.rq.msn = self.rq.msn.next();
        self.counters.rare().rx_immediates += 1;
        let solicited = h.opcode.is_solicited();
        let immediate = Some(u64::from_be_bytes(data));
        self.report_recv(
            CqeStatus::Success,
            Received { solicited, immediate, ..Received::default() },
        );
        Ok(())
    }

    /// Copies the payload of a segment to its buffer, after the bytes received before.
    #[inline]
    fn place_received<M: Memory, C: Stream>(
        &self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        rqe: &Rqe,
    ) -> Result<(), Fault> {
        let off = self.rq.received;
        // The payload usually goes to one piece of the buffer.
        let done = match self.rq.first_piece(rqe, off, seg.len) {
            Some(s) => self.place_at(env, (stream, seg.at), s, Access::LOCAL_WRITE),
            None => self.place_in_pieces(env, stream, seg, rqe),
        };
        done.map_err(|_| Fault::Local)
    }

    /// Copies the payload where it goes to several pieces of the buffer.
    #[inline(never)]
    fn place_in_pieces<M: Memory, C: Stream>(
        &self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        rqe: &Rqe,
    ) -> Result<(), MrFault> {
        let mut ranges = Ranges::new();
        self.receive_ranges(env, rqe, (self.rq.received, seg.len), &mut ranges)?;
        stream.place(env.mem, seg.at, &ranges);
        Ok(())
    }

    /// Finds the memory of `len` bytes of a message, `off` bytes into its buffer.
    #[inline(never)]
    pub(super) fn receive_ranges<M>(
        &self,
        env: &QpEnv<'_, M>,
        rqe: &Rqe,
        (off, len): (u32, u32),
        out: &mut Ranges,
    ) -> Result<(), MrFault> {
        self.rq
            .sges(rqe)
            .try_for_each(off, len, |s| self.push_ranges(env, s, Access::LOCAL_WRITE, out))
    }

    fn handle_read_request<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Untagged,
    ) -> Result<(), Culprit> {
        self.check_request(seg, h, READ_REQUEST_LEN)?;
        let bytes: [u8; READ_REQUEST_LEN] =
            whole(stream, seg, h).ok_or_else(|| seg.blame(Fault::Malformed))?;
        let r = ReadRequest::parse(&bytes).map_err(|_| seg.blame(Fault::Malformed))?;
        let blame = |fault| Culprit { read: Some(r), ..seg.blame(fault) };
        if !self.reads.can_accept() && !self.is_rtr_read(r.size) {
            return Err(blame(Fault::NoBuffer));
        }
        // The QP checks again when it makes each segment of the response. RFC 5040 section 5.2.1
        // forbids any check for a Read of no bytes.
        let mut rest = CheckedRest::NONE;
        if r.size > 0 {
            let (us, need) = ((self.pd, self.qpn), Access::REMOTE_READ);
            env.mrs
                .check(us.0, us.1, r.src_stag, r.src_to, r.size, need)
                .map_err(|f| blame(Fault::read_source(f)))?;
            if r.size > LEAST {
                rest = env.mrs.check_rest(us, r.src_stag, r.src_to, need).unwrap_or(rest);
            }
        }
        self.reads.inbound.push_back(Inbound::Read(InboundRead {
            msn: h.msn,
            sink: r.sink_stag,
            sink_to: r.sink_to,
            src: r.src_stag,
            src_to: r.src_to,
            size: r.size,
            sent: 0,
            rest,
        }));
        self.reads.msn = self.reads.msn.next();
        self.counters.rx_read_requests += 1;
        Ok(())
    }

    /// Makes the checks that Read Requests and Atomic Requests have in common: their place in queue
    /// 1, and that each is one segment with a header of `len` bytes.
    fn check_request(&self, seg: DdpSegment, h: Untagged, len: usize) -> Result<(), Culprit> {
        if h.msn != self.reads.msn {
            return Err(seg.blame(Fault::Msn));
        }
        if h.mo != 0 {
            return Err(seg.blame(Fault::Offset));
        }
        if seg.len as usize > len {
            return Err(seg.blame(Fault::TooLong));
        }
        Ok(())
    }

    fn handle_atomic_request<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        self.check_request(seg, h, ATOMIC_REQUEST_LEN)?;
        let bytes: [u8; ATOMIC_REQUEST_LEN] =
            whole(stream, seg, h).ok_or_else(|| seg.blame(Fault::Malformed))?;
        let request = AtomicRequest::parse(&bytes).map_err(|e| match e {
            AtomicRequestError::Code { .. } => seg.blame(Fault::AtomicOperation),
            AtomicRequestError::Length { .. } => seg.blame(Fault::Malformed),
        })?;
        if !self.reads.can_accept() {
            return Err(seg.blame(Fault::NoBuffer));
        }
        // The QP checks again when it carries the operation out.
        let at = env
            .mrs
            .check(self.pd, self.qpn, request.stag, request.to, 8, Access::REMOTE_ATOMIC)
            .map_err(|f| seg.blame(Fault::atomic(f)))?;
        if !env.mem.takes_atomics(at) {
            return Err(seg.blame(Fault::AtomicAlignment));
        }
        self.reads.inbound.push_back(Inbound::Atomic { msn: h.msn, request });
        self.reads.msn = self.reads.msn.next();
        self.counters.rare().rx_atomic_requests += 1;
        Ok(())
    }

    /// Handles the answer to the oldest outstanding request, which must be an atomic one: the peer
    /// answers in the order of the requests.
    fn handle_atomic_response<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        if h.msn != self.reads.rx_atomic_msn {
            return Err(seg.blame(Fault::Msn));
        }
        let Some(&Outbound { index: Some(index), atomic: true, stag, to, left }) =
            self.reads.outbound.front()
        else {
            return Err(seg.blame(Fault::NoBuffer));
        };
        if h.mo != 0 {
            return Err(seg.blame(Fault::Offset));
        }
        if seg.len as usize > ATOMIC_RESPONSE_LEN {
            return Err(seg.blame(Fault::TooLong));
        }
        let bytes: [u8; ATOMIC_RESPONSE_LEN] =
            whole(stream, seg, h).ok_or_else(|| seg.blame(Fault::Malformed))?;
        let response = AtomicResponse::parse(&bytes)
            .ok()
            .filter(|r| r.id == self.sq.wqes.at(index).msn.0)
            .ok_or_else(|| seg.blame(Fault::AtomicResponse))?;
        let original = response.original.to_ne_bytes();
        let sink = Sge { stag, to, len: left };
        self.place_at(env, (&&original[..], 0), sink, Access::LOCAL_WRITE).map_err(|_| {
            Culprit {
                request: Some((Queue::Sq, index, CqeStatus::LocalProtection)),
                ..seg.blame(Fault::Local)
            }
        })?;
        self.reads.outbound.pop_front();
        self.reads.rx_atomic_msn = self.reads.rx_atomic_msn.next();
        self.sq.wqes.at_mut(index).progress = Progress::Done;
        self.counters.rare().rx_atomic_responses += 1;
        self.complete_sends();
        Ok(())
    }

    /// Handles a Terminate of the peer. The stream is over whatever the Terminate says, and this
    /// end does not answer it. A Terminate with a wrong sequence is not credible as the peer's
    /// word, so this end reports an error that it found itself.
    #[cold]
    fn handle_terminate<C: Stream>(
        &mut self,
        stream: &C,
        seg: DdpSegment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        self.counters.rare().rx_terminates += 1;
        if h.msn != Msn(1) {
            return Err(seg.blame(Fault::TerminateMsn));
        }
        if h.mo != 0 {
            return Err(seg.blame(Fault::TerminateOffset));
        }
        // The longest Terminate fits the smallest MULPDU, so it never needs a second segment.
        if !h.last {
            return Err(seg.blame(Fault::TerminateMalformed));
        }
        let mut bytes = [0; TERMINATE_MAX_LEN];
        let n = (seg.len as usize).min(TERMINATE_MAX_LEN);
        let n = stream.copy_at(seg.at, &mut bytes[..n]);
        self.terminated_by_peer(&bytes[..n]).map_err(|fault| seg.blame(fault))
    }
}

/// Returns the payload of a message that is one segment of exactly `N` bytes.
#[inline]
fn whole<const N: usize, C: Stream>(stream: &C, seg: DdpSegment, h: Untagged) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (h.last && seg.len as usize == N && stream.copy_at(seg.at, &mut bytes) == N).then_some(bytes)
}
