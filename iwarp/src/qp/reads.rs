//! Reads and atomic operations under way: those we asked for (ORD) and those the peer asked for
//! (IRD). RFC 7306 section 5.2 has both share the queue of requests and its limits.

use crate::rdmap::AtomicRequest;
use crate::{Msn, Stag};
use std::collections::VecDeque;

/// A Read or atomic operation of ours whose response has not come completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbound {
    /// Its index in the send queue; none for a ready-to-receive message.
    pub(super) index: Option<u32>,
    /// What kind of response it waits for.
    pub(super) atomic: bool,
    /// The sink: a Read Response must name it.
    pub(super) stag: Stag,
    /// Where its next segment must go.
    pub(super) to: u64,
    /// Octets still to come.
    pub(super) left: u32,
}

/// What the peer asked for and we are to answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inbound {
    Read(InboundRead),
    /// Carried out when the response is made: in its turn among the Reads, and once.
    Atomic {
        msn: Msn,
        request: AtomicRequest,
    },
}

/// A Read of the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundRead {
    pub(super) msn: Msn,
    pub(super) sink: Stag,
    pub(super) sink_to: u64,
    pub(super) src: Stag,
    pub(super) src_to: u64,
    /// Bytes asked for.
    pub(super) size: u32,
    /// Bytes already in FPDUs.
    pub(super) sent: u32,
}

/// Both sets, each in order and bounded by what was negotiated; they take memory as it is used.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) outbound: VecDeque<Outbound>,
    ord: u16,
    /// The first one is being answered.
    pub(super) inbound: VecDeque<Inbound>,
    ird: u16,
    /// Of the peer's next Read or Atomic Request.
    pub(super) msn: Msn,
    /// Of its next Atomic Response, and of ours.
    pub(super) rx_atomic_msn: Msn,
    pub(super) tx_atomic_msn: Msn,
}

impl Reads {
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

    /// Reads that may be outstanding.
    pub(super) const fn ord(&self) -> u16 {
        self.ord
    }

    /// Gives back memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.outbound.shrink_to_fit();
        self.inbound.shrink_to_fit();
    }

    /// Whether one more request may be sent.
    pub(super) fn can_send(&self) -> bool {
        self.outbound.len() < usize::from(self.ord)
    }

    /// Whether one more request is within what was negotiated.
    pub(super) fn can_accept(&self) -> bool {
        self.inbound.len() < usize::from(self.ird)
    }
}
