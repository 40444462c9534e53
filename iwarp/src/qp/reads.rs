//! Reads and atomic operations under way: those of this end (ORD) and those of the peer (IRD). RFC
//! 7306 section 5.2 makes both kinds share the queue of requests and its limits.

use crate::Msn;
use crate::rdmap::AtomicRequest;
use std::collections::VecDeque;

use heddle_mr::CheckedRest;
use heddle_types::Stag;

/// A Read or atomic operation of this end whose response has not come completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbound {
    /// The index in the send queue; none for a ready-to-receive message.
    pub(super) index: Option<u32>,
    /// True if the response to come is an Atomic Response, false for a Read Response.
    pub(super) atomic: bool,
    /// STag of the sink, which a Read Response must name.
    pub(super) stag: Stag,
    /// Tagged offset that the next segment of the response must have.
    pub(super) to: u64,
    /// Bytes of the response that have not come yet.
    pub(super) left: u32,
}

/// A request of the peer that this end has to answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inbound {
    Read(InboundRead),
    /// The QP carries it out when it makes the response: in its turn among the Reads, and once.
    Atomic {
        msn: Msn,
        request: AtomicRequest,
    },
}

/// A Read of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundRead {
    pub(super) msn: Msn,
    pub(super) sink: Stag,
    pub(super) sink_to: u64,
    pub(super) src: Stag,
    pub(super) src_to: u64,
    /// Bytes of the whole response.
    pub(super) size: u32,
    /// Bytes of the response that are already in FPDUs.
    pub(super) sent: u32,
    /// The source from there on, as it was when the QP accepted the request: it advances with
    /// `sent`.
    pub(super) rest: CheckedRest,
}

/// Both sets, each in order, bounded by what was negotiated, and with memory only as it fills.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Reads {
    /// The QP is answering the first request.
    pub(super) inbound: VecDeque<Inbound>,
    pub(super) outbound: VecDeque<Outbound>,
    ord: u16,
    ird: u16,
    /// MSN of the peer's next Read or Atomic Request.
    pub(super) msn: Msn,
    /// MSN of the peer's next Atomic Response.
    pub(super) rx_atomic_msn: Msn,
    /// MSN of this end's next Atomic Response.
    pub(super) tx_atomic_msn: Msn,
}

impl Reads {
    /// Bytes, from the first on, that show whether there is a request to answer.
    pub(super) const HOT: usize = core::mem::offset_of!(Reads, outbound);

    pub(super) fn new(ird: u16, ord: u16) -> Reads {
        Reads {
            outbound: VecDeque::new(),
            ord,
            inbound: VecDeque::new(),
            ird,
            msn: Msn(1),
            rx_atomic_msn: Msn(1),
            tx_atomic_msn: Msn(1),
        }
    }

    /// Returns the number of Reads that may be outstanding.
    pub(super) const fn ord(&self) -> u16 {
        self.ord
    }

    /// Frees memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.outbound.shrink_to_fit();
        self.inbound.shrink_to_fit();
    }

    /// Returns true if one more request may be outstanding.
    pub(super) fn can_send(&self) -> bool {
        self.outbound.len() < usize::from(self.ord)
    }

    /// Returns true if one more request of the peer is within what was negotiated.
    pub(super) fn can_accept(&self) -> bool {
        self.inbound.len() < usize::from(self.ird)
    }
}
