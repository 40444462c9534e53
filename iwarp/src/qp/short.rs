//! Messages of few bytes, from a work request to an FPDU in one go.
//!
//! [`tx`](super::tx) works step by step, for any message, its segments and its possible faults. For
//! a message of 8 bytes these steps take longer than the message itself. A Send or Write of up to
//! [`INLINE_PAYLOAD`](super::config::INLINE_PAYLOAD) bytes in one piece is one FPDU, which fits in
//! the head: this module looks its request up once, and has nothing to remember between two
//! segments. Every unusual request goes the other way, which also finds its fault.

use super::fpdu::Fpdu;
use super::queues::{Progress, ShortSource, WqeOp};
use super::tx::{put_send, put_tagged};
use super::{QpContext, QpEnv};
use crate::rdmap::Opcode;
use heddle_mr::Memory;
use heddle_types::{Access, Sge};

impl QpContext {
    /// Sends the next request, if it is [short](super::queues::Wqe::short) and nothing else has its
    /// turn. Otherwise, or if the request may not use its memory so, returns false and changes
    /// nothing except `out`.
    #[inline(always)]
    pub(super) fn short_message<M: Memory>(&mut self, env: &QpEnv<'_, M>, out: &mut Fpdu) -> bool {
        if self.send_markers || !self.reads.inbound.is_empty() {
            return false;
        }
        let Some((wqe, source)) = self.sq.next_short() else { return false };
        let len = wqe.len;
        let source = match source {
            ShortSource::Inline(parts) => Err(parts),
            ShortSource::Memory(Sge { stag, to, .. }) => {
                let us = (self.pd, self.qpn);
                match env.mrs.check_region(us, stag, to, len, Access::NONE) {
                    Some(range) => Ok(range),
                    None => return false,
                }
            }
        };
        match wqe.op {
            WqeOp::Write { stag, to } => put_tagged(out, true, Opcode::WRITE, stag, to, len),
            WqeOp::Send { solicited, invalidate } => {
                wqe.msn = self.send_msn;
                self.send_msn = wqe.msn.next();
                put_send(out, true, (solicited, invalidate), wqe.msn, (0, len));
            }
            _ => return false,
        }
        out.put_short(env.mem, self.crc, len, |room| match source {
            Ok(range) => env.mem.gather(range, room),
            Err([a, b]) => {
                let (front, back) = room.split_at_mut(a.len());
                front.copy_from_slice(a);
                back.copy_from_slice(b);
            }
        });
        self.tx_pos += u64::from(out.len());
        (wqe.progress, wqe.end) = (Progress::Sent, self.tx_pos);
        self.sq.next = self.sq.next.wrapping_add(1);
        self.responses_next = true;
        self.counters.tx_fpdus += 1;
        self.counters.tx_bytes += u64::from(len);
        self.counters.tx_inlined += 1;
        self.counters.tx_inlined_bytes += u64::from(len);
        self.pass_refused();
        true
    }
}
