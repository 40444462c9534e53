//! The two sorts of connections: what each holds, and what is posted on it.

use heddle_verbs::{Data as Gather, Mr, PostError, Qp, RecvWr, SendOp, SendWr};

use super::wire::{Dest, MAX_LEN};
use crate::connections::wr_id;

/// A connection.
pub(crate) enum Conn {
    Parameters(Parameters),
    Data(Data),
}

/// One for parameters: questions and answers.
pub(crate) struct Parameters {
    pub(super) session: u64,
    pub(super) qp: Qp,
    pub(super) inbox: Mr,
    pub(super) outbox: Mr,
}

/// One for the data of a test.
pub(crate) struct Data {
    pub(super) session: u64,
    /// Which of the session's.
    pub(super) index: usize,
    pub(super) qp: Qp,
    pub(super) credit: Mr,
    /// Messages taken since their length changed last, and how many of them were told.
    pub(super) taken: u32,
    pub(super) told: u32,
    pub(super) len: u32,
    pub(super) credit_out: bool,
}

impl Parameters {
    pub(super) fn post_buffer(&self, place: usize, n: u32) -> Result<(), PostError> {
        let sges = &[self.inbox.sge(n as usize * MAX_LEN, MAX_LEN)];
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, RECV | n), sges })
    }

    /// Answers the question in buffer `n`, which is free again when the answer has arrived.
    pub(super) fn answer(&self, place: usize, n: u32, answer: &[u8]) -> Result<(), PostError> {
        let at = n as usize * MAX_LEN;
        self.outbox.write(at, answer);
        let op = SendOp::Send { solicited: false, invalidate: None };
        post_send(&self.qp, op, &self.outbox, at, answer.len(), wr_id(place, SEND | n))
    }
}

impl Data {
    /// Tells how many messages were taken, unless that is on its way already.
    pub(super) fn give_credit(&mut self, place: usize, client: Dest) -> Result<(), PostError> {
        if self.credit_out || self.told == self.taken {
            return Ok(());
        }
        self.credit.write(0, &self.taken.to_le_bytes());
        (self.told, self.credit_out) = (self.taken, true);
        let op = SendOp::Write { stag: client.stag(), to: client.to };
        post_send(&self.qp, op, &self.credit, 0, CREDIT_LEN, wr_id(place, SEND))
    }
}

/// All messages end in the same memory, one over the other: nobody reads them.
pub(super) fn post_recv(
    qp: &Qp,
    region: &Mr,
    place: usize,
    n: u32,
    size: u32,
) -> Result<(), PostError> {
    let sges = &[region.sge(0, size as usize)];
    qp.post_recv(&RecvWr { wr_id: wr_id(place, RECV | n), sges })
}

pub(super) fn post_send(
    qp: &Qp,
    op: SendOp,
    mr: &Mr,
    at: usize,
    len: usize,
    wr_id: u64,
) -> Result<(), PostError> {
    let sges = &[mr.sge(at, len)];
    qp.post_send(&SendWr { wr_id, op, data: Gather::Sges(sges), signaled: true, fence: false })
}

/// Octets of a credit: messages taken, in the client's own byte order, which is taken to be
/// little-endian.
pub(super) const CREDIT_LEN: usize = 4;

/// What a work request is for; a buffer's number is added.
pub(super) const RECV: u32 = 1 << 30;
pub(super) const SEND: u32 = 2 << 30;
pub(super) const KIND: u32 = 3 << 30;
