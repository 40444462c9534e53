//! Tagged segments: RDMA Write and RDMA Read Response.

use super::alike::LEAST;
use super::queues::Progress;
use super::rx::{DdpSegment, Tagged};
use super::stream::Stream;
use super::terminate::Culprit;
use super::{QpContext, QpEnv};
use crate::fault::Fault;
use crate::rdmap::Opcode;
use heddle_mr::Memory;
use heddle_types::{Access, CqeStatus, Queue, Sge};

impl QpContext {
    #[inline]
    pub(super) fn handle_tagged<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Tagged,
    ) -> Result<(), Culprit> {
        match h.opcode {
            Opcode::WRITE => self.handle_write(env, stream, seg, h),
            Opcode::READ_RESPONSE => self.handle_response(env, stream, seg, h),
            _ => Err(seg.blame(Fault::Opcode)),
        }
    }

    #[inline]
    fn handle_write<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Tagged,
    ) -> Result<(), Culprit> {
        // The QP must not check STag and TO of a segment without bytes (RFC 5041 section 5.2).
        if seg.len > 0 {
            let sink = Sge { stag: h.stag, to: h.to, len: seg.len };
            self.place_at(env, (stream, seg.at), sink, Access::REMOTE_WRITE)
                .map_err(|f| seg.blame(Fault::tagged(f)))?;
            self.counters.rx_bytes += u64::from(seg.len);
        }
        self.in_write = !h.last;
        if seg.len >= LEAST && !h.last {
            self.expect_tagged(env, h, seg.len);
        }
        Ok(())
    }

    fn handle_response<M: Memory, C: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &C,
        seg: DdpSegment<'_>,
        h: Tagged,
    ) -> Result<(), Culprit> {
        let Some(read) = self.reads.outbound.front().copied().filter(|r| !r.atomic) else {
            return Err(seg.blame(Fault::Opcode));
        };
        if seg.len > read.left {
            return Err(seg.blame(Fault::ResponseRange));
        }
        if h.last && seg.len < read.left {
            return Err(seg.blame(Fault::ResponseShort));
        }
        if seg.len > 0 {
            if h.stag != read.stag {
                return Err(seg.blame(Fault::ResponseStag));
            }
            if h.to != read.to {
                return Err(seg.blame(Fault::ResponseRange));
            }
            let sink = Sge { stag: read.stag, to: read.to, len: seg.len };
            self.place_at(env, (stream, seg.at), sink, Access::LOCAL_WRITE).map_err(|f| {
                Culprit {
                    request: read.index.map(|i| (Queue::Sq, i, CqeStatus::LocalProtection)),
                    ..seg.blame(Fault::tagged(f))
                }
            })?;
            self.counters.rx_bytes += u64::from(seg.len);
        }
        if h.last {
            self.reads.outbound.pop_front();
            self.counters.rx_read_responses += 1;
            if let Some(index) = read.index {
                self.sq.wqes.at_mut(index).progress = Progress::Done;
                self.complete_sends();
            }
        } else if let Some(front) = self.reads.outbound.front_mut() {
            front.left -= seg.len;
            // The QP has checked that the sink ends before 2^64.
            front.to = front.to.saturating_add(u64::from(seg.len));
            if seg.len >= LEAST {
                self.expect_tagged(env, h, seg.len);
            }
        }
        Ok(())
    }
}
