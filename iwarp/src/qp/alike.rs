//! Segments of a long message that differ from the one before in their place alone.
//!
//! The first segment of a message is made, and handled, with every check; the memory of the message is
//! then known up to the end of its region. For the segments after it, up to the last, the QP looks
//! whether the region is still as it was, and repeats the header.

use super::fpdu::Fpdu;
use super::queues::WqeOp;
use super::rx::{FpduAt, Tagged, crc_is_right};
use super::stream::Stream;
use super::tx::{Sending, TAGGED_BYTES, qn_msn, send_start};
use super::{QpContext, QpEnv};
use crate::ddp::{self, Qn, TAGGED_LEN, UNTAGGED_LEN};
use crate::mpa::fpdu::{HEADER_LEN, MAX_MULPDU, MIN_MULPDU, fpdu_len};
use crate::rdmap::{Control, Opcode};
use heddle_mr::{CheckedRest, Memory};
use heddle_types::Access;

/// The least payload of a segment, in bytes, with which it pays to prepare for the next: messages of
/// such segments are not cut because of their SGEs.
pub(super) const LEAST: u32 = 512;

/// The next segments of a request that is being sent.
#[derive(Debug)]
pub struct SegmentsAlike {
    memory: CheckedRest,
    header: Header,
    /// Bytes of the request before the next segment, and from it on.
    off: u32,
    left: u32,
    /// Bytes of payload of each segment.
    len: u32,
}

/// The header of the next segment.
#[derive(Debug)]
enum Header {
    Tagged { start: u64, to: u64 },
    Untagged { start: u64, qn_msn: u64 },
}

impl QpContext {
    /// Returns the next segments of the request that is being sent, if they are alike: at least two
    /// full ones, of one SGE in one region. The result is of use until the caller does anything
    /// else with the QP.
    #[inline(never)]
    pub fn segments_alike<M>(&self, env: &QpEnv<'_, M>, mulpdu: u16) -> Option<SegmentsAlike> {
        let Some(Sending::Request { off }) = self.sending else { return None };
        let wqe = self.sq.wqes.at(self.sq.next);
        let ready = self.state.is_live() && !self.hold && !self.drained && !self.send_markers;
        if !ready || wqe.refused.is_some() {
            return None;
        }
        let (header, overhead) = match wqe.op {
            WqeOp::Write { stag, to } | WqeOp::WriteImmediate { stag, to, .. } => {
                let start = ddp::tagged_start(false, Control::new(Opcode::WRITE).to_byte(), stag);
                // Posting has checked that the sum does not wrap.
                let to = to.saturating_add(u64::from(off));
                (Header::Tagged { start, to }, TAGGED_LEN)
            }
            WqeOp::Send { solicited, invalidate } => {
                let start = send_start(false, (solicited, invalidate));
                (Header::Untagged { start, qn_msn: qn_msn(Qn::SEND, wqe.msn) }, UNTAGGED_LEN)
            }
            _ => return None,
        };
        let mulpdu = usize::from(mulpdu.clamp(MIN_MULPDU, MAX_MULPDU));
        let len = u32::try_from(mulpdu - overhead).unwrap_or(0);
        let left = wqe.len.saturating_sub(off);
        if len < LEAST || left / len < 2 {
            return None;
        }
        let sge = self.sq.single_sge(wqe)?;
        let from = sge.to.checked_add(u64::from(off))?;
        let memory = env.mrs.check_rest((self.pd, self.qpn), sge.stag, from, Access::NONE)?;
        Some(SegmentsAlike { memory, header, off, left, len })
    }

    /// Makes the FPDU of the next segment, as
    /// [`poll_transmit_into`](QpContext::poll_transmit_into) would. Returns false, and does nothing,
    /// if the next segment is not like those before: the last of the request, or of memory that has
    /// changed.
    #[inline]
    pub fn next_alike<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        next: &mut SegmentsAlike,
        out: &mut Fpdu,
    ) -> bool {
        let len = next.len;
        if next.left <= len {
            return false;
        }
        let Some(range) = next.memory.take(env.mrs, len) else { return false };
        match &mut next.header {
            Header::Tagged { start, to } => {
                out.put_tagged(len, *start, *to);
                *to = to.saturating_add(u64::from(len));
            }
            Header::Untagged { start, qn_msn } => {
                out.put_untagged(len, *start, *qn_msn, next.off);
            }
        }
        out.put_reference(range);
        next.off += len;
        next.left -= len;
        self.sending = Some(Sending::Request { off: next.off });
        self.counters.tx_bytes += u64::from(len);
        self.finish(env, false, out);
        true
    }
}

/// The next segment of the peer's Write, or of its answer to our Read.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaggedAlike {
    /// The first eight bytes of its FPDU: length, control fields and STag. 0 if there is none.
    start: u64,
    to: u64,
    memory: CheckedRest,
    response: bool,
}

impl Default for TaggedAlike {
    /// Returns a segment that never comes.
    fn default() -> TaggedAlike {
        TaggedAlike { start: 0, to: 0, memory: CheckedRest::NONE, response: false }
    }
}

impl QpContext {
    /// Prepares for the segment that follows `before`, of `len` bytes.
    #[inline]
    pub(super) fn expect_alike<M>(&mut self, env: &QpEnv<'_, M>, before: Tagged, len: u32) {
        if !self.recv_markers {
            let next = self.alike(env, before, len).unwrap_or_default();
            // The memory stays for the next Write: only the first one allocates.
            **self.tagged_alike.get_or_insert_default() = next;
        }
    }

    #[inline(never)]
    fn alike<M>(&self, env: &QpEnv<'_, M>, before: Tagged, len: u32) -> Option<TaggedAlike> {
        let Tagged { opcode, stag, to, .. } = before;
        let to = to.checked_add(u64::from(len))?;
        let response = opcode == Opcode::READ_RESPONSE;
        let need = if response { Access::LOCAL_WRITE } else { Access::REMOTE_WRITE };
        let memory = env.mrs.check_rest((self.pd, self.qpn), stag, to, need)?;
        let start = ddp::tagged_start(false, Control::new(opcode).to_byte(), stag);
        let ulpdu = u64::from(len) + TAGGED_LEN as u64;
        Some(TaggedAlike { start: ulpdu << 48 | start, to, memory, response })
    }

    /// Takes the FPDU `frame` if it is the expected segment. Returns its length, or 0 if it is not, or
    /// is wrong in any way; then nothing has changed.
    #[inline(always)]
    pub(super) fn take_alike<M: Memory, S: Stream>(
        &mut self,
        env: &QpEnv<'_, M>,
        stream: &S,
        frame: FpduAt,
        crc: Option<u32>,
    ) -> usize {
        let at = frame.at;
        let Some(expected) = &mut self.tagged_alike else { return 0 };
        let starts = stream.read_at(at).map(u64::from_be_bytes) == Some(expected.start);
        if !starts || stream.read_at(at + 8).map(u64::from_be_bytes) != Some(expected.to) {
            return 0;
        }
        let len = u32::from(frame.ulpdu).saturating_sub(TAGGED_BYTES);
        if self.crc && !crc_is_right(env.mem, stream, frame, crc) {
            return 0;
        }
        let read = match (expected.response, self.reads.outbound.front_mut()) {
            (false, _) => None,
            // The segment is the next of the oldest Read, and not its last byte.
            (true, Some(read)) => {
                let next = !read.atomic && read.to == expected.to && len < read.left;
                let Some(read) = Some(read).filter(|r| next && r.stag.0 == low(expected.start))
                else {
                    return 0;
                };
                Some(read)
            }
            (true, None) => return 0,
        };
        let Some(range) = expected.memory.take(env.mrs, len) else { return 0 };
        if let Some(read) = read {
            read.left -= len;
            read.to = read.to.saturating_add(u64::from(len));
        } else {
            self.in_write = true;
        }
        stream.place(env.mem, at + HEADER_LEN + TAGGED_LEN, &[range]);
        expected.to = expected.to.wrapping_add(u64::from(len));
        self.counters.rx_bytes += u64::from(len);
        self.counters.rx_fpdus += 1;
        fpdu_len(frame.ulpdu)
    }
}

/// Returns the lower half, which is the STag in the start of a tagged FPDU.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is cut")]
fn low(start: u64) -> u32 {
    start as u32
}
