//! Untagged segments: the Send types, RDMA Read Request, Terminate.

use super::cqe::{CqeStatus, Queue};
use super::fault::Fault;
use super::queues::Rqe;
use super::reads::Inbound;
use super::rx::{Segment, Untagged, place};
use super::terminate::Culprit;
use super::wr::MAX_SGES;
use super::{Qp, QpEnv};
use crate::rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest, TERMINATE_MAX_LEN};
use crate::{Access, MemRange, Memory};
use arrayvec::ArrayVec;
use heddle_base::Chunks;

impl Qp {
    #[inline]
    pub(super) fn handle_untagged<M: Memory, C: Chunks>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: &Segment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        match h.opcode {
            Opcode::SEND | Opcode::SEND_INV | Opcode::SEND_SE | Opcode::SEND_SE_INV => {
                self.handle_send(env, stream, seg, h)
            }
            Opcode::READ_REQUEST => self.handle_read_request(env, stream, seg, h),
            Opcode::TERMINATE => {
                self.handle_terminate(stream, seg);
                Ok(())
            }
            // RFC 7306, not spoken yet.
            _ => Err(seg.blame(Fault::Opcode)),
        }
    }

    #[inline]
    fn handle_send<M: Memory, C: Chunks>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: &Segment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        if self.hold && self.take_rtr_send(seg, h) {
            return Ok(());
        }
        if h.msn != self.rq.msn {
            return Err(seg.blame(Fault::Msn));
        }
        let Some(rqe) = self.rq.front() else {
            return Err(seg.blame(Fault::NoBuffer));
        };
        if let Some(why) = rqe.refused {
            return Err(Culprit {
                request: Some((Queue::Rq, self.rq.rqes.head(), CqeStatus::LocalQpOperation(why))),
                ..seg.blame(Fault::Local)
            });
        }
        // In order over TCP, so the only legal offset is where the last segment ended.
        if h.mo != self.rq.received {
            return Err(seg.blame(Fault::Offset));
        }
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
                .map_err(|f| seg.blame(Fault::Invalidate(f)))?;
        }
        if seg.len > 0 {
            let ranges = self.receive_ranges(env, rqe, seg.len).map_err(|fault| Culprit {
                request: Some((Queue::Rq, self.rq.rqes.head(), CqeStatus::LocalProtection)),
                ..seg.blame(fault)
            })?;
            place(env.mem, stream, seg.at, &ranges);
            self.rq.received += seg.len;
            self.counters.rx_bytes += u64::from(seg.len);
        }
        if h.last {
            if let Some(stag) = invalidate {
                // Somebody may have taken it back since the check.
                env.mrs
                    .invalidate(self.pd, self.qpn, stag)
                    .map_err(|f| seg.blame(Fault::Invalidate(f)))?;
            }
            let len = core::mem::take(&mut self.rq.received);
            self.rq.msn = self.rq.msn.next();
            self.counters.rx_sends += 1;
            self.report_recv(CqeStatus::Success, len, h.opcode.is_solicited(), invalidate);
        }
        Ok(())
    }

    /// The memory of the next `len` bytes of the message being received.
    fn receive_ranges<M>(
        &self,
        env: &QpEnv<'_, M>,
        rqe: &Rqe,
        len: u32,
    ) -> Result<ArrayVec<MemRange, MAX_SGES>, Fault> {
        let mut ranges = ArrayVec::new();
        self.rq.sges(rqe).try_for_each(self.rq.received, len, |s| {
            let range = env
                .mrs
                .check(self.pd, self.qpn, s.stag, s.to, s.len, Access::LOCAL_WRITE)
                .map_err(|_| Fault::Local)?;
            ranges.try_push(range).map_err(|_| Fault::Local)
        })?;
        Ok(ranges)
    }

    fn handle_read_request<M: Memory, C: Chunks>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: &Segment,
        h: Untagged,
    ) -> Result<(), Culprit> {
        if h.msn != self.reads.msn {
            return Err(seg.blame(Fault::Msn));
        }
        if h.mo != 0 {
            return Err(seg.blame(Fault::Offset));
        }
        if seg.len as usize > READ_REQUEST_LEN {
            return Err(seg.blame(Fault::TooLong));
        }
        let mut bytes = [0; READ_REQUEST_LEN];
        if seg.len as usize != READ_REQUEST_LEN
            || !h.last
            || stream.copy_at(seg.at, &mut bytes) != READ_REQUEST_LEN
        {
            return Err(seg.blame(Fault::Malformed));
        }
        let r = ReadRequest::parse(&bytes).map_err(|_| seg.blame(Fault::Malformed))?;
        let blame = |fault| Culprit { read: Some(r), ..seg.blame(fault) };
        if !self.reads.can_accept() && !self.is_rtr_read(r.size) {
            return Err(blame(Fault::NoBuffer));
        }
        // Checked again when each segment of the response is made; a Read of no bytes must not be
        // checked at all (RFC 5040 section 5.2.1).
        if r.size > 0 {
            env.mrs
                .check(self.pd, self.qpn, r.src_stag, r.src_to, r.size, Access::REMOTE_READ)
                .map_err(|f| blame(Fault::ReadSource(f)))?;
        }
        self.reads.inbound.push_back(Inbound {
            msn: h.msn,
            sink: r.sink_stag,
            sink_to: r.sink_to,
            src: r.src_stag,
            src_to: r.src_to,
            size: r.size,
            sent: 0,
        });
        self.reads.msn = self.reads.msn.next();
        self.counters.rx_read_requests += 1;
        Ok(())
    }

    #[cold]
    fn handle_terminate<C: Chunks>(&mut self, stream: &C, seg: &Segment) {
        // The stream is over whatever it says: read what can be read.
        let mut bytes = [0; TERMINATE_MAX_LEN];
        let n = (seg.len as usize).min(TERMINATE_MAX_LEN);
        let n = stream.copy_at(seg.at, &mut bytes[..n]);
        self.terminated_by_peer(&bytes[..n]);
    }
}
