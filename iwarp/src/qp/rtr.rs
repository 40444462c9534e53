//! The ready-to-receive indication of RFC 6581 section 9.2: in the peer-to-peer model the initiator
//! sends a message without payload before anything else, and with it the responder may send.
//!
//! It is nobody's work request: it takes no place in a queue and no receive buffer, and nothing
//! completes with it. In all else it is a message like any other: a Send or Read counts in the MSNs
//! of its queue, and a Read is answered, counts as outstanding until then, and holds a fence.

use super::fpdu::Fpdu;
use super::reads::Outbound;
use super::rx::{Segment, Untagged};
use super::terminate::untagged;
use super::tx::{Payload, put_tagged};
use super::{Qp, QpEnv, QpEvent};
use crate::ddp::{Qn, UNTAGGED_LEN};
use crate::mpa::frame::{Rtr, RtrSet};
use crate::rdmap::{Opcode, ReadRequest};
use crate::{Memory, Stag};

/// What comes before the applications' messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtrConfig {
    /// Nothing: the client-server model.
    #[default]
    None,
    /// We send this message first.
    Send(Rtr),
    /// The peer's first message may be one of these. One that is not, but good otherwise, says as
    /// much: it is taken for what it is, a Send with a receive buffer.
    Expect(RtrSet),
}

/// Named by a Read of no bytes, which refers to no memory: neither side looks it up. Not 0, which
/// some peers take for none.
const NO_MEMORY: Stag = Stag(1);

impl Qp {
    /// Whether a message of ours has to go before all others.
    #[cold]
    pub(super) fn has_rtr(&self) -> bool {
        self.state.is_live() && !self.drained && matches!(self.rtr, RtrConfig::Send(_))
    }

    /// Makes that message, once.
    #[cold]
    pub(super) fn transmit_rtr<M: Memory>(&mut self, env: &QpEnv<'_, M>, out: &mut Fpdu) -> bool {
        let RtrConfig::Send(rtr) = self.rtr else { return false };
        if !self.has_rtr() {
            return false;
        }
        (self.rtr, self.hold) = (RtrConfig::None, false);
        out.start();
        match rtr {
            Rtr::Write => put_tagged(out, true, Opcode::WRITE, NO_MEMORY, 0, 0),
            Rtr::Send => {
                untagged(Opcode::SEND, Qn::SEND, self.send_msn).emit(out.room(UNTAGGED_LEN));
                self.send_msn = self.send_msn.next();
            }
            Rtr::Read => {
                let (sink_stag, src_stag) = (NO_MEMORY, NO_MEMORY);
                let read = ReadRequest { sink_stag, sink_to: 0, size: 0, src_stag, src_to: 0 };
                let header = untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, self.read_msn);
                header.emit(out.room(UNTAGGED_LEN));
                out.put(&read.emit());
                self.read_msn = self.read_msn.next();
                let answer = Outbound { index: None, stag: sink_stag, to: 0, left: 0 };
                self.reads.outbound.push_back(answer);
            }
        }
        self.counters.rtr += 1;
        self.finish(env, &Payload::NONE, true, out);
        true
    }

    /// Whether the peer's first message may be this one, and has not come.
    fn expects(&self, rtr: Rtr) -> bool {
        self.hold && matches!(self.rtr, RtrConfig::Expect(set) if set.has(rtr))
    }

    /// Takes a Send that says "ready" and nothing else. Only before the first good FPDU.
    #[cold]
    pub(super) fn take_rtr_send(&mut self, seg: &Segment, h: Untagged) -> bool {
        let bare = h.opcode == Opcode::SEND && h.last && seg.len == 0 && h.mo == 0;
        let taken = bare && h.msn == self.rq.msn && self.expects(Rtr::Send);
        if taken {
            self.rq.msn = self.rq.msn.next();
        }
        taken
    }

    /// Whether a Read of `size` bytes says "ready": it is answered even where no others are.
    pub(super) fn is_rtr_read(&self, size: u32) -> bool {
        size == 0 && self.expects(Rtr::Read)
    }

    /// The peer's first FPDU was good: it is ready to receive (RFC 5044 section 7.1.2, rule 4).
    #[cold]
    pub(super) fn first_fpdu(&mut self, opcode: Opcode, len: u32) {
        self.seen_fpdu = true;
        let rtr = match opcode {
            Opcode::WRITE if len == 0 => self.expects(Rtr::Write),
            Opcode::SEND if len == 0 => self.expects(Rtr::Send),
            Opcode::READ_REQUEST => {
                let size = self.reads.inbound.back().map_or(u32::MAX, |r| r.size);
                self.is_rtr_read(size)
            }
            _ => false,
        };
        self.counters.rtr += u64::from(rtr);
        // An initiator that still has to say so says it first, whatever the peer does.
        if !matches!(self.rtr, RtrConfig::Send(_)) {
            (self.rtr, self.hold) = (RtrConfig::None, false);
        }
        self.raise(QpEvent::FirstFpdu);
    }
}
