//! The two sorts of connections: the state of each, and the requests posted on it.

use heddle_verbs::{Data as Gather, Mr, PostError, Qp, RecvWr, SendOp, SendWr};

use super::wire::{Dest, MAX_LEN};
use crate::connections::wr_id;

/// A connection of a test's session.
pub(crate) enum Conn {
    Parameters(Parameters),
    Data(Data),
}

/// A connection for parameters: questions and answers.
pub(crate) struct Parameters {
    pub(super) session: u64,
    pub(super) qp: Qp,
    pub(super) inbox: Mr,
    pub(super) outbox: Mr,
}

/// A connection for the data of a test.
pub(crate) struct Data {
    pub(super) session: u64,
    /// The connection's index in its session.
    pub(super) index: usize,
    pub(super) qp: Qp,
    pub(super) credit: Mr,
    /// The number of messages taken since their length last changed, and how many of them the
    /// server has reported.
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

    /// Answers the question in buffer `n`, which is free again after the answer has arrived.
    pub(super) fn answer(&self, place: usize, n: u32, answer: &[u8]) -> Result<(), PostError> {
        let at = n as usize * MAX_LEN;
        self.outbox.write(at, answer);
        let op = SendOp::Send { solicited: false, invalidate: None };
        post_send(&self.qp, op, &self.outbox, at, answer.len(), wr_id(place, SEND | n))
    }
}

impl Data {
    /// Reports how many messages the server has taken, unless a report is already in flight.
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

/// Posts a receive. All messages end in the same memory, one over the other, since no program reads
/// them.
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

/// Bytes of a credit: the number of taken messages in the client's own byte order, which the server
/// assumes is little-endian.
pub(super) const CREDIT_LEN: usize = 4;

/// The purpose of a work request, in its mark; the buffer's number is added.
pub(super) const RECV: u32 = 1 << 30;
pub(super) const SEND: u32 = 2 << 30;
pub(super) const KIND: u32 = 3 << 30;
