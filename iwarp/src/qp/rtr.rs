//! The ready-to-receive indication of RFC 6581 section 9.2. In the peer-to-peer model the initiator
//! sends a message without payload before anything else, and after it the responder may send.
//!
//! No application posts this message: it takes no place in a queue and no receive buffer, and has
//! no completion. In all else it is a message like any other: a Send or Read counts in the MSNs of
//! its queue. A Read is also answered, counts as outstanding until then, and holds a fence.

use super::fpdu::Fpdu;
use super::reads::{Inbound, Outbound};
use super::rx::{DdpSegment, Untagged};
use super::tx::{READ_REQUEST_BYTES, put_tagged, qn_msn, untagged_start};
use super::{QpContext, QpEnv, QpEvent};
use crate::ddp::Qn;
use crate::rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest};
use heddle_mr::Memory;
use heddle_types::{
    Stag,
    mpa::{Rtr, RtrConfig},
};

/// The STag of a Read of no bytes. Such a Read refers to no memory, so neither side looks the STag
/// up. Not 0, which some peers take for no STag.
const NO_MEMORY: Stag = Stag(1);

impl QpContext {
    /// Returns true if this end has to send its ready-to-receive message before all others.
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
        match rtr {
            Rtr::Write => put_tagged(out, true, Opcode::WRITE, NO_MEMORY, 0, 0),
            Rtr::Send => {
                let start = untagged_start(true, Opcode::SEND, Stag::default());
                out.put_untagged(0, start, qn_msn(Qn::SEND, self.send_msn), 0);
                self.send_msn = self.send_msn.next();
            }
            Rtr::Read => {
                let (sink_stag, src_stag) = (NO_MEMORY, NO_MEMORY);
                let read = ReadRequest { sink_stag, sink_to: 0, size: 0, src_stag, src_to: 0 };
                let start = untagged_start(true, Opcode::READ_REQUEST, Stag::default());
                let place = qn_msn(Qn::READ_REQUEST, self.read_msn);
                out.put_untagged(READ_REQUEST_BYTES, start, place, 0);
                out.room(READ_REQUEST_LEN).copy_from_slice(&read.emit());
                self.read_msn = self.read_msn.next();
                let answer =
                    Outbound { index: None, atomic: false, stag: sink_stag, to: 0, left: 0 };
                self.reads.outbound.push_back(answer);
            }
        }
        self.counters.rare().rtr += 1;
        self.finish_bare(env, out);
        true
    }

    /// Returns true if the peer's first message may be `rtr`, and has not come.
    pub(super) fn expects(&self, rtr: Rtr) -> bool {
        self.hold && matches!(self.rtr, RtrConfig::Expect(set) if set.has(rtr))
    }

    /// Returns true if the Send that says "ready" comes next and takes a receive of the peer,
    /// because the peer does not expect that form.
    pub(super) fn wants_receive_for_rtr(&self, peer: &QpContext) -> bool {
        self.has_rtr()
            && self.rtr == RtrConfig::Send(Rtr::Send)
            && self.hold
            && !peer.expects(Rtr::Send)
    }

    /// Takes a Send that only says "ready". Returns true only before the first good FPDU.
    #[cold]
    pub(super) fn take_rtr_send(&mut self, seg: DdpSegment, h: Untagged) -> bool {
        let bare = h.opcode == Opcode::SEND && h.last && seg.len == 0 && h.mo == 0;
        let taken = bare && h.msn == self.rq.msn && self.expects(Rtr::Send);
        if taken {
            self.rq.msn = self.rq.msn.next();
        }
        taken
    }

    /// Returns true if a Read of `size` bytes says "ready". The QP answers such a Read even where
    /// it answers no others.
    pub(super) fn is_rtr_read(&self, size: u32) -> bool {
        size == 0 && self.expects(Rtr::Read)
    }

    /// Handles the peer's first good FPDU: the peer is ready to receive (RFC 5044 section 7.1.2,
    /// rule 4).
    #[cold]
    pub(super) fn first_fpdu(&mut self, opcode: Opcode, last: bool, len: u32) {
        self.seen_fpdu = true;
        // A segment that others follow is the beginning of a message, which says more than "ready".
        let bare = last && len == 0;
        let rtr = match opcode {
            Opcode::WRITE if bare => self.expects(Rtr::Write),
            Opcode::SEND if bare => self.expects(Rtr::Send),
            Opcode::READ_REQUEST => {
                let last = self.reads.inbound.back();
                last.is_some_and(|r| matches!(r, Inbound::Read(r) if self.is_rtr_read(r.size)))
            }
            _ => false,
        };
        if rtr {
            self.counters.rare().rtr += 1;
        }
        // An initiator that still has to say "ready" says it first, whatever the peer does.
        if !matches!(self.rtr, RtrConfig::Send(_)) {
            (self.rtr, self.hold) = (RtrConfig::None, false);
        }
        self.raise(QpEvent::FirstFpdu);
    }
}
