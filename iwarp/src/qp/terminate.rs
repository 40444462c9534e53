//! The end of a stream by error: ours, with a Terminate, or the peer's.

use super::cqe::{CqeStatus, QpEvent, Queue, Side};
use super::fault::{Copied, Fault};
use super::fpdu::Fpdu;
use super::hdr::{Header, READ_REQUEST_LEN, UNTAGGED_LEN, Untagged, op, qn};
use super::state::Transition;
use super::wr::SendOp;
use super::{Qp, QpEnv};
use crate::rdmap::TermCode;
use crate::{Memory, Msn, Stag};

/// Terminate control, segment length, DDP header, Read Request header.
pub(super) const MAX_BODY: usize = 4 + 2 + UNTAGGED_LEN + READ_REQUEST_LEN;

/// An error and all that is known about its cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Culprit {
    pub(super) fault: Fault,
    /// The DDP header, and the length of the segment with it.
    pub(super) segment: Option<(Header, u16)>,
    /// The RDMAP header, of a Read Request.
    pub(super) read: Option<[u8; READ_REQUEST_LEN]>,
    /// The local request it hits, by index, and how that completes.
    pub(super) request: Option<(Queue, u32, CqeStatus)>,
}

impl From<Fault> for Culprit {
    fn from(fault: Fault) -> Culprit {
        Culprit { fault, segment: None, read: None, request: None }
    }
}

/// A Terminate of ours that waits for room in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    code: TermCode,
    segment: Option<(Header, u16)>,
    read: Option<[u8; READ_REQUEST_LEN]>,
}

/// Header control bits (RFC 5040 figure 8): segment length valid, DDP header, RDMAP header.
const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

impl Pending {
    fn ulpdu(&self) -> Vec<u8> {
        let header = Untagged {
            last: true,
            opcode: op::TERMINATE,
            invalidate: Stag(0),
            qn: qn::TERMINATE,
            msn: Msn(1),
            mo: 0,
        };
        let mut v = header.emit().to_vec();
        let bits = if self.segment.is_some() { M | D } else { 0 }
            | if self.read.is_some() { R } else { 0 };
        v.extend([self.code.layer << 4 | self.code.etype & 15, self.code.code, bits, 0]);
        if let Some((header, len)) = &self.segment {
            v.extend(len.to_be_bytes());
            v.extend(&header.0[..header.len()]);
        }
        v.extend(self.read.iter().flatten());
        v
    }
}

impl Qp {
    /// Ends the stream for an error found here: everything is flushed, and a Terminate waits to be
    /// sent. Of several errors the first counts (RFC 5040 section 7.1).
    #[cold]
    pub(super) fn fail(&mut self, culprit: Culprit) {
        let Some(state) = self.state.next(Transition::Fault) else { return };
        self.state = state;
        let Culprit { fault, segment, read, request } = culprit;
        fault.count(&mut self.counters);
        let (segment, read) = match fault.copied() {
            Copied::Nothing => (None, None),
            Copied::Ddp => (segment, None),
            Copied::DdpAndRdmap => (segment, read),
        };
        let code = fault.code();
        self.terminate = Some(Box::new(Pending { code, segment, read }));
        self.flush(request);
        self.raise(QpEvent::Terminated { by: Side::Local, code });
    }

    /// The Terminate, once; nothing is sent after it (RFC 5040 section 5.4).
    #[cold]
    pub(super) fn transmit_terminate<Me: Memory>(&mut self, env: &QpEnv<'_, Me>) -> Option<Fpdu> {
        let pending = self.terminate.take()?;
        self.counters.tx_terminates += 1;
        let ulpdu = pending.ulpdu();
        let mut bytes = u16::try_from(ulpdu.len()).unwrap_or(0).to_be_bytes().to_vec();
        bytes.extend(ulpdu);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let crc = if self.crc { env.mem.crc(0, &bytes) } else { 0 };
        bytes.extend(crc.to_le_bytes());
        Some(self.queue(env, Fpdu::owned(bytes, true)))
    }

    /// The peer's Terminate came; `body` is what follows its DDP header.
    #[cold]
    pub(super) fn terminated_by_peer(&mut self, body: &[u8]) {
        self.counters.rx_terminates += 1;
        let (code, header) = read_terminate(body);
        let culprit = self
            .find_request(header)
            .map(|index| (Queue::Sq, index, CqeStatus::RemoteTerminated(code)));
        if let Some(state) = self.state.next(Transition::RemoteTerminate) {
            self.state = state;
            self.flush(culprit);
            self.raise(QpEvent::Terminated { by: Side::Remote, code });
        }
    }

    /// The send request that a Terminate speaks of: by the DDP header it repeats, else the oldest
    /// one that was started and is not done.
    fn find_request(&self, header: Option<Header>) -> Option<u32> {
        let started = if self.sending.is_some() && self.sq.has_next() {
            self.sq.next.wrapping_add(1)
        } else {
            self.sq.next
        };
        let count = started.wrapping_sub(self.sq.head);
        let all = (0..count).map(|i| self.sq.head.wrapping_add(i));
        let named = header.and_then(|h| {
            all.clone().find(|i| {
                let wqe = self.sq.ring.at(*i);
                match wqe.wr.op {
                    SendOp::Write { stag, to } => {
                        h.tagged() && h.stag() == stag && h.to().wrapping_sub(to) <= wqe.len.into()
                    }
                    SendOp::Send { .. } => !h.tagged() && h.qn() == qn::SEND && h.msn() == wqe.msn,
                    SendOp::Read { .. } => !h.tagged() && h.qn() == qn::READ && h.msn() == wqe.msn,
                }
            })
        });
        named.or_else(|| all.clone().find(|i| !self.is_done(*i)))
    }
}

/// The code of a Terminate and the DDP header it repeats, read liberally: what is cut off or
/// reserved does not matter.
fn read_terminate(body: &[u8]) -> (TermCode, Option<Header>) {
    let at = |i: usize| body.get(i).copied().unwrap_or(0);
    let code = TermCode { layer: at(0) >> 4, etype: at(0) & 15, code: at(1) };
    let mut header = Header([0; UNTAGGED_LEN]);
    let found = at(2) & D != 0 && body.len() >= 6 + 2;
    if found {
        let rest = &body[6..];
        let n = rest.len().min(UNTAGGED_LEN);
        header.0[..n].copy_from_slice(&rest[..n]);
    }
    (code, (found && body.len() >= 6 + header.len()).then_some(header))
}
