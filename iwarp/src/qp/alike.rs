//! Segments of a long message that differ from the one before in their place alone.
//!
//! The first segment of a message is made, and handled, with every check; the memory of the message is
//! then known up to the end of its region. For the segments after it, up to the last, the QP looks
//! whether the region is still as it was, and repeats the header.

use super::buffers::Buffers;
use super::fpdu::Fpdu;
use super::queues::WqeOp;
use super::reads::Inbound;
use super::rx::{Tagged, Untagged};
use super::tx::{Sending, qn_msn, send_start};
use super::{QpContext, QpEnv};
use crate::ddp::{self, Qn, TAGGED_LEN, UNTAGGED_LEN};
use crate::mpa::fpdu::{MAX_MULPDU, MIN_MULPDU, crc_from_wire, fpdu_len};
use crate::rdmap::{Control, Opcode};
use heddle_mr::{CheckedRest, Memory};
use heddle_types::Access;

/// The least payload of a segment, in bytes, with which it pays to prepare for the next: messages of
/// such segments are not cut because of their SGEs.
pub(super) const LEAST: u32 = 512;

/// The next segments of the message that is being sent: a request, or an answer to a Read.
#[derive(Debug)]
pub struct SegmentsAlike {
    memory: CheckedRest,
    header: Header,
    /// Bytes of the message before the next segment, and from it on.
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
    Response { start: u64, to: u64 },
}

impl SegmentsAlike {
    /// Returns true if the segments are those of a Read Response, which keep snapshots.
    #[inline]
    pub fn keep_snapshots(&self) -> bool {
        matches!(self.header, Header::Response { .. })
    }
}

impl QpContext {
    /// Returns the next segments of the message that is being sent, if they are alike: at least two
    /// full ones, of one SGE or source in one region. The result is of use until the caller does
    /// anything else with the QP.
    #[inline(never)]
    pub fn segments_alike<M>(&self, env: &QpEnv<'_, M>, mulpdu: u16) -> Option<SegmentsAlike> {
        if !self.state.is_live() || self.hold || self.drained || self.send_markers {
            return None;
        }
        let mulpdu = usize::from(mulpdu.clamp(MIN_MULPDU, MAX_MULPDU));
        match self.sending? {
            Sending::Request { off } => self.request_alike(env, off, mulpdu),
            Sending::Response => self.response_alike(env, mulpdu),
        }
    }

    fn request_alike<M>(
        &self,
        env: &QpEnv<'_, M>,
        off: u32,
        mulpdu: usize,
    ) -> Option<SegmentsAlike> {
        let wqe = self.sq.wqes.at(self.sq.next);
        if wqe.refused.is_some() {
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
        let (len, left) = two_or_more(mulpdu - overhead, wqe.len.saturating_sub(off))?;
        let sge = self.sq.single_sge(wqe)?;
        let from = sge.to.checked_add(u64::from(off))?;
        let memory = env.mrs.check_rest((self.pd, self.qpn), sge.stag, from, Access::NONE)?;
        Some(SegmentsAlike { memory, header, off, left, len })
    }

    fn response_alike<M>(&self, env: &QpEnv<'_, M>, mulpdu: usize) -> Option<SegmentsAlike> {
        let Some(Inbound::Read(r)) = self.reads.inbound.front() else { return None };
        if self.handing {
            return None;
        }
        let (len, left) = two_or_more(mulpdu - TAGGED_LEN, r.size.saturating_sub(r.sent))?;
        let from = r.src_to.checked_add(u64::from(r.sent))?;
        let user = (self.pd, self.qpn);
        let memory = env.mrs.check_rest(user, r.src, from, Access::REMOTE_READ)?;
        let response = Control::new(Opcode::READ_RESPONSE).to_byte();
        let start = ddp::tagged_start(false, response, r.sink);
        let header = Header::Response { start, to: r.sink_to.wrapping_add(u64::from(r.sent)) };
        Some(SegmentsAlike { memory, header, off: r.sent, left, len })
    }

    /// Makes the FPDU of the next segment, as
    /// [`poll_transmit_into`](QpContext::poll_transmit_into) would. Returns false, and does nothing,
    /// if the next segment is not like those before: the last of the message, or of memory that has
    /// changed, or a snapshot for which there is no room.
    ///
    /// The FPDU may [owe its snapshot](Fpdu::owes_snapshot). It refers to memory until the caller fills
    /// or seals it, so the caller does that before it lets the memory go: within its turn.
    #[inline]
    pub fn next_alike<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        next: &mut SegmentsAlike,
        buffers: &mut Buffers,
        out: &mut Fpdu,
    ) -> bool {
        let len = next.len;
        if next.left <= len || next.keep_snapshots() && env.snapshots_full {
            return false;
        }
        let Some(range) = next.memory.take(env.mrs, len) else { return false };
        let sent = next.off + len;
        match &mut next.header {
            Header::Tagged { start, to } => {
                out.put_tagged(len, *start, *to);
                *to = to.wrapping_add(u64::from(len));
                out.put_reference(range);
                self.sending = Some(Sending::Request { off: sent });
            }
            Header::Untagged { start, qn_msn } => {
                out.put_untagged(len, *start, *qn_msn, next.off);
                out.put_reference(range);
                self.sending = Some(Sending::Request { off: sent });
            }
            Header::Response { start, to } => {
                out.put_tagged(len, *start, *to);
                *to = to.wrapping_add(u64::from(len));
                if self.crc && buffers.may_owe() {
                    out.owe_snapshot(range, buffers);
                } else {
                    out.put_snapshot(env.mem, range, self.crc, buffers);
                }
                self.counters.tx_snapshot_bytes += u64::from(len);
                if let Some(Inbound::Read(front)) = self.reads.inbound.front_mut() {
                    (front.sent, front.rest) = (sent, next.memory);
                }
            }
        }
        next.off = sent;
        next.left -= len;
        self.counters.tx_bytes += u64::from(len);
        self.finish(env, false, out);
        true
    }
}

/// Returns the payload of a full segment, of `len` bytes, and the bytes `left`, if it pays to
/// prepare for them.
fn two_or_more(len: usize, left: u32) -> Option<(u32, u32)> {
    let len = u32::try_from(len).unwrap_or(0);
    (len >= LEAST && left / len >= 2).then_some((len, left))
}

/// The next segment of a message of the peer, after a segment that has passed every check. It is a
/// claim only until it comes: the receiver compares every byte of its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedSegment {
    /// The first eight bytes of its FPDU: length, control fields, and STag.
    start: u64,
    /// The next eight bytes: the tagged offset, or the queue and MSN of a Send.
    second: u64,
    /// Bytes of the FPDU; 0 if no segment is expected.
    fpdu: u32,
    /// Bytes of payload.
    len: u32,
    /// For a Send: the message offset for whose byte `memory` begins. Segments that are not expected
    /// may come between and move on in the buffer, but not in `memory`.
    offset: u32,
    memory: CheckedRest,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Response,
    Send,
}

impl Default for ExpectedSegment {
    /// Returns a segment that never comes.
    fn default() -> ExpectedSegment {
        ExpectedSegment {
            start: 0,
            second: 0,
            fpdu: 0,
            len: 0,
            offset: 0,
            memory: CheckedRest::NONE,
            kind: Kind::Write,
        }
    }
}

impl ExpectedSegment {
    /// Returns the segment of `len` bytes whose header of `header` bytes begins with `start`, whose
    /// upper two bytes are 0, and `second`.
    fn new(
        (start, second): (u64, u64),
        (header, len): (usize, u32),
        memory: CheckedRest,
        kind: Kind,
    ) -> Option<ExpectedSegment> {
        let ulpdu = u16::try_from(header + len as usize).ok()?;
        let fpdu = u32::try_from(fpdu_len(ulpdu)).ok()?;
        let start = u64::from(ulpdu) << 48 | start;
        Some(ExpectedSegment { start, second, fpdu, len, offset: 0, memory, kind })
    }
}

impl QpContext {
    /// Prepares for the segment that follows `before`, of `len` bytes.
    #[inline]
    pub(super) fn expect_tagged<M>(&mut self, env: &QpEnv<'_, M>, before: Tagged, len: u32) {
        if !self.recv_markers {
            let next = self.tagged_after(env, before, len);
            self.expect(next);
        }
    }

    /// Prepares for the segment of a Send that follows `before`, of `len` bytes, which are already
    /// in their buffer.
    #[inline]
    pub(super) fn expect_send<M>(&mut self, env: &QpEnv<'_, M>, before: Untagged, len: u32) {
        if !self.recv_markers {
            let next = self.send_after(env, before, len);
            self.expect(next);
        }
    }

    fn expect(&mut self, next: Option<ExpectedSegment>) {
        // The memory stays for the next message: only the first one allocates.
        **self.expected.get_or_insert_default() = next.unwrap_or_default();
    }

    /// Handles that the oldest receive buffer leaves its queue: a segment that belongs there must
    /// not come any more.
    #[inline(always)]
    pub(super) fn forget_expected(&mut self) {
        if let Some(expected) = &mut self.expected {
            expected.fpdu = 0;
        }
    }

    #[inline(never)]
    fn tagged_after<M>(
        &self,
        env: &QpEnv<'_, M>,
        before: Tagged,
        len: u32,
    ) -> Option<ExpectedSegment> {
        let Tagged { opcode, stag, to, .. } = before;
        let to = to.checked_add(u64::from(len))?;
        let (kind, need) = match opcode == Opcode::READ_RESPONSE {
            true => (Kind::Response, Access::LOCAL_WRITE),
            false => (Kind::Write, Access::REMOTE_WRITE),
        };
        let memory = env.mrs.check_rest((self.pd, self.qpn), stag, to, need)?;
        let start = ddp::tagged_start(false, Control::new(opcode).to_byte(), stag);
        ExpectedSegment::new((start, to), (TAGGED_LEN, len), memory, kind)
    }

    #[inline(never)]
    fn send_after<M>(
        &self,
        env: &QpEnv<'_, M>,
        before: Untagged,
        len: u32,
    ) -> Option<ExpectedSegment> {
        let Untagged { opcode, invalidate, msn, .. } = before;
        let to = self.rq.rest_of_first_piece(self.rq.front()?, self.rq.received)?;
        let user = (self.pd, self.qpn);
        let memory = env.mrs.check_rest(user, to.stag, to.to, Access::LOCAL_WRITE)?.limit(to.len);
        let control = Control::new(opcode).to_byte();
        let start = ddp::untagged_start(false, control, invalidate.0);
        let second = qn_msn(Qn::SEND, msn);
        let next = ExpectedSegment::new((start, second), (UNTAGGED_LEN, len), memory, Kind::Send)?;
        Some(ExpectedSegment { offset: self.rq.received, ..next })
    }

    /// Takes the FPDU `fpdu`, whole and without markers, if it is the expected segment. Returns false
    /// if it is not, or is wrong in any way; then nothing has changed.
    #[inline(always)]
    pub(super) fn take_expected<M: Memory>(
        &mut self,
        env: &QpEnv<'_, M>,
        fpdu: &[u8],
        crc: Option<u32>,
    ) -> bool {
        // A look at the length spares other FPDUs a call.
        match &self.expected {
            Some(expected) if expected.fpdu as usize == fpdu.len() => {
                self.take_alike(env, fpdu, crc)
            }
            _ => false,
        }
    }

    #[inline(never)]
    fn take_alike<M: Memory>(&mut self, env: &QpEnv<'_, M>, fpdu: &[u8], crc: Option<u32>) -> bool {
        let Some(expected) = self.expected.as_deref_mut() else { return false };
        let Some((head, tagged)) = fpdu.split_first_chunk::<16>() else { return false };
        let [start, second] = [&head[..8], &head[8..]].map(number);
        if start != expected.start || second != expected.second {
            return false;
        }
        let Some((offset, untagged)) = tagged.split_first_chunk() else { return false };
        let payload = match expected.kind {
            Kind::Write => tagged,
            // The segment is the next of the oldest Read, and not its last byte.
            Kind::Response => match self.reads.outbound.front() {
                Some(read)
                    if !read.atomic
                        && read.to == expected.second
                        && expected.len < read.left
                        && read.stag.0 == low(expected.start) =>
                {
                    tagged
                }
                _ => return false,
            },
            Kind::Send => {
                let offset = u32::from_be_bytes(*offset);
                if offset != self.rq.received || offset != expected.offset {
                    return false;
                }
                untagged
            }
        };
        let len = expected.len;
        let Some(payload) = payload.get(..len as usize) else { return false };
        if self.crc {
            let Some((body, field)) = fpdu.split_last_chunk() else { return false };
            let crc = crc.unwrap_or_else(|| env.mem.crc(0, body));
            if crc_from_wire(*field) != crc {
                return false;
            }
        }
        let Some(range) = expected.memory.take(env.mrs, len) else { return false };
        match expected.kind {
            Kind::Write => self.in_write = true,
            Kind::Response => {
                if let Some(read) = self.reads.outbound.front_mut() {
                    read.left -= len;
                    read.to = read.to.saturating_add(u64::from(len));
                }
            }
            Kind::Send => {
                self.rq.received += len;
                expected.offset += len;
            }
        }
        if expected.kind != Kind::Send {
            expected.second = expected.second.wrapping_add(u64::from(len));
        }
        env.mem.place(range, payload);
        self.counters.rx_bytes += u64::from(len);
        self.counters.rx_fpdus += 1;
        true
    }
}

/// Returns the number in eight bytes.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_be_bytes(*b))
}

/// Returns the lower half, which is the STag in the start of a tagged FPDU.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is cut")]
fn low(start: u64) -> u32 {
    start as u32
}
