//! Reads under way: those we asked for (ORD) and those the peer asked for (IRD).

use crate::{Msn, Stag};
use std::collections::VecDeque;

/// A Read of ours whose response has not come completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbound {
    /// Its index in the send queue; none for a ready-to-receive message.
    pub(super) index: Option<u32>,
    /// The sink the response must name.
    pub(super) stag: Stag,
    /// Where its next segment must go.
    pub(super) to: u64,
    /// Bytes still to come.
    pub(super) left: u32,
}

/// A Read of the peer's that we are to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
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
    ord: usize,
    /// The first one is being answered.
    pub(super) inbound: VecDeque<Inbound>,
    ird: usize,
    /// Of the peer's next Read Request.
    pub(super) msn: Msn,
}

impl Reads {
    pub(super) fn new(ird: u16, ord: u16) -> Reads {
        Reads {
            outbound: VecDeque::new(),
            ord: usize::from(ord),
            inbound: VecDeque::new(),
            ird: usize::from(ird),
            msn: Msn(1),
        }
    }

    /// Whether one more Read may be sent.
    pub(super) fn can_send(&self) -> bool {
        self.outbound.len() < self.ord
    }

    /// Whether one more Read Request is within what was negotiated.
    pub(super) fn can_accept(&self) -> bool {
        self.inbound.len() < self.ird
    }
}
