//! The end of a stream by error: by this end's Terminate, or by the peer's.

use super::event::{QpEvent, Side};
use super::fpdu::Fpdu;
use super::queues::WqeOp;
use super::state::{self, Transition};
use super::tx::Sending;
use super::{QpContext, QpEnv};
use crate::Msn;
use crate::ddp::{DdpHeader, Qn};
use crate::fault::{Answer, Fault};
use crate::mpa::fpdu;
use crate::rdmap::{Control, CopiedHeader, Opcode, ReadRequest, Terminate, TerminateError};
use heddle_base::StreamPos;
use heddle_mr::Memory;
use heddle_types::{CqeStatus, Queue, TermCode};

/// An error and all that this end knows about its cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Culprit {
    pub(super) fault: Fault,
    /// The DDP header of the segment at fault, and the segment's length.
    pub(super) segment: Option<(CopiedHeader, u16)>,
    /// The RDMAP header of that segment, if it is a Read Request.
    pub(super) read: Option<ReadRequest>,
    /// The local request that the error hits, by index, and the status with which it completes.
    pub(super) request: Option<(Queue, u32, CqeStatus)>,
}

/// The facts about the end of a stream.
#[derive(Debug, Default)]
pub(super) struct End {
    /// A Terminate that this end still has to send.
    pub(super) terminate: Option<Terminate>,
    /// The peer's Terminate, if one ended the stream.
    pub(super) received: Option<Terminate>,
    /// The local request that caused the end, by index, and the status with which it completes.
    pub(super) culprit: Option<(Queue, u32, CqeStatus)>,
    /// The position up to which the peer had acknowledged before the end.
    pub(super) acked: StreamPos,
    /// TCP sends nothing any more.
    pub(super) gone: bool,
}

impl From<Fault> for Culprit {
    fn from(fault: Fault) -> Culprit {
        Culprit { fault, segment: None, read: None, request: None }
    }
}

/// Returns the header of an untagged message of one segment.
pub(super) const fn untagged(opcode: Opcode, qn: Qn, msn: Msn) -> DdpHeader {
    let rsvd_ulp = Control::new(opcode).to_byte();
    DdpHeader::Untagged { last: true, rsvd_ulp, rsvd_ulp32: 0, qn, msn, mo: 0 }
}

impl QpContext {
    /// Ends the stream for an error found at this end: flushes everything, and prepares a Terminate
    /// if the peer may receive one. The first of several errors counts (RFC 5040 section 7.1).
    ///
    /// A responder sends nothing before it has validated an FPDU (RFC 5044 section 7.1.2), which
    /// means its start and its CRC (section 6). So this end does not answer an error that MPA found
    /// in the first FPDU, but answers one that DDP or RDMAP found there.
    #[cold]
    pub(super) fn fail(&mut self, culprit: Culprit) {
        let Culprit { fault, segment, read, request } = culprit;
        let code = fault.code();
        let mut term = Terminate::new(code);
        let answer = match fault.answer() {
            _ if self.hold && code.layer == TermCode::LAYER_LLP => Answer::Nothing,
            answer => answer,
        };
        if matches!(answer, Answer::Ddp | Answer::DdpAndRdmap) {
            term.segment_len = segment.map(|(_, len)| len);
            term.ddp = segment.map(|(header, _)| header);
        }
        if answer == Answer::DdpAndRdmap {
            term.read_request = read;
        }
        let (how, terminate, event) = match answer {
            Answer::Nothing => (Transition::Abort, None, QpEvent::Failed { code }),
            Answer::Code | Answer::Ddp | Answer::DdpAndRdmap => {
                (Transition::Fault, Some(term), QpEvent::Terminated { by: Side::Local, code })
            }
        };
        if self.end_stream(how, End { terminate, culprit: request, ..End::default() }) {
            fault.count(self.counters.rare());
            self.raise(event);
        }
    }

    /// Ends the stream, unless it is over already. The QP then places nothing and begins no
    /// request, and flushes each posted request as its memory becomes free.
    #[cold]
    pub(super) fn end_stream(&mut self, how: Transition, end: End) -> bool {
        let Some(state) = state::next(self.state, how) else { return false };
        tracing::debug!(qpn = self.qpn.0, from = ?self.state, ?how, culprit = ?end.culprit, "stream ended");
        self.state = state;
        if self.end.is_none() {
            self.end = Some(Box::new(End { acked: self.acked, ..end }));
        }
        if let Some(Sending::Request { off: 1.. }) = self.sending.take() {
            self.sq.cut_off(self.tx_pos);
        }
        self.reads.outbound.clear();
        self.reads.inbound.clear();
        self.flush_sends();
        self.flush_recvs();
        true
    }

    /// Makes the Terminate, once; the QP sends nothing after it (RFC 5040 section 5.4).
    #[cold]
    pub(super) fn transmit_terminate<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        out: &mut Fpdu,
    ) -> bool {
        let Some(term) = self.end.as_mut().and_then(|e| e.terminate.take()) else { return false };
        self.counters.rare().tx_terminates += 1;
        let mut bytes = Vec::new();
        // The segment has at most 70 bytes, so it cannot be too long.
        if fpdu::append(&term.segment(), self.crc, &mut bytes).is_err() {
            return false;
        }
        *out = Fpdu::owned(bytes);
        out.set_last(true);
        self.queue(env, out);
        true
    }

    /// Handles the peer's Terminate; `body` is what follows its DDP header.
    ///
    /// # Errors
    /// Fails when the Terminate has no control field. A Terminate that ends inside a header that it
    /// repeats still has its error code.
    #[cold]
    pub(super) fn terminated_by_peer(&mut self, body: &[u8]) -> Result<(), Fault> {
        let received = match Terminate::parse(body) {
            Ok(t) => t,
            Err(TerminateError::Truncated { read, .. }) => {
                self.counters.rare().err_malformed += 1;
                read
            }
            Err(TerminateError::Short { .. }) => return Err(Fault::TerminateMalformed),
        };
        let code = received.code;
        let culprit = self
            .find_request(received.ddp.and_then(|h| h.header().ok()))
            .map(|index| (Queue::Sq, index, CqeStatus::of_terminate(code)));
        let end = End { received: Some(received), culprit, ..End::default() };
        if self.end_stream(Transition::RemoteTerminate, end) {
            self.raise(QpEvent::Terminated { by: Side::Remote, code });
        }
        Ok(())
    }

    /// Returns the peer's Terminate with the headers that it repeats, once the QP has raised
    /// [`QpEvent::Terminated`]. By these headers the application can tell which of its requests the
    /// peer refused, and how far a Read had got.
    pub fn received_terminate(&self) -> Option<&Terminate> {
        self.end.as_ref()?.received.as_ref()
    }

    /// Finds the send request that a Terminate is about: by the DDP header that the Terminate
    /// repeats (the request may have completed already), or without a header the oldest request
    /// that was started and is not done.
    fn find_request(&self, header: Option<DdpHeader>) -> Option<u32> {
        let started = if self.sending.is_some() && self.sq.has_next() {
            self.sq.next.wrapping_add(1)
        } else {
            self.sq.next
        };
        let count = started.wrapping_sub(self.sq.wqes.head());
        let all = (0..count).map(|i| self.sq.wqes.head().wrapping_add(i));
        let named = header.and_then(|h| {
            all.clone().find(|i| {
                let wqe = self.sq.wqes.at(*i);
                match (wqe.op, h) {
                    (
                        WqeOp::Write { stag: s, to: t }
                        | WqeOp::WriteImmediate { stag: s, to: t, .. },
                        DdpHeader::Tagged { stag, to, .. },
                    ) => s == stag && to.wrapping_sub(t) <= u64::from(wqe.len),
                    (
                        WqeOp::Send { .. } | WqeOp::Immediate { .. } | WqeOp::WriteImmediate { .. },
                        DdpHeader::Untagged { qn: Qn::SEND, msn, .. },
                    ) => msn == wqe.msn,
                    (op, DdpHeader::Untagged { qn: Qn::READ_REQUEST, msn, .. }) => {
                        op.is_answered() && msn == wqe.msn
                    }
                    _ => false,
                }
            })
        });
        match header {
            None => all.clone().find(|i| !self.is_done(self.sq.wqes.at(*i))),
            // siw writes the size of the Read where the MSN belongs, so take the oldest outstanding
            // Read.
            Some(DdpHeader::Untagged { qn: Qn::READ_REQUEST, .. }) => {
                named.or_else(|| self.reads.outbound.front().and_then(|r| r.index))
            }
            Some(_) => named,
        }
    }
}
