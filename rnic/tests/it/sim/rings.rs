//! The queues that an application fills, between it and the RNIC's owner.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use heddle_engine::{POST_TURN, Posted, PostedReceives, Retired};
use heddle_iwarp::{QpConfig, QpContext};
use heddle_types::{ConnId, Cqe, CqeOp, Data, PostError, Qpn, Queue, RecvWr, SendOp, SendWr, Sge};

/// A send request in its queue.
#[derive(Debug)]
struct Send {
    wr_id: u64,
    op: SendOp,
    data: Result<Vec<Sge>, Vec<u8>>,
    signaled: bool,
    fence: bool,
}

/// Requests that an application has posted to one queue pair and the RNIC has not taken.
#[derive(Debug)]
pub struct Rings {
    qpn: Qpn,
    recvs: VecDeque<(u64, Vec<Sge>)>,
    sends: VecDeque<Send>,
    /// For the send and the receive queue: requests that they take, requests posted, requests
    /// retired.
    depth: [u32; 2],
    posted: [u32; 2],
    retired: [u32; 2],
    /// Sends that the owner has found, and receives posted before these.
    found: usize,
    owed: usize,
    /// The queue pair is on the list of those that have rung.
    pub rung: bool,
}

impl Rings {
    pub fn new(qp: &QpConfig) -> Rings {
        Rings {
            qpn: qp.qpn,
            recvs: VecDeque::new(),
            sends: VecDeque::new(),
            depth: [qp.sq_depth, qp.rq_depth],
            posted: [0; 2],
            retired: [0; 2],
            found: 0,
            owed: 0,
            rung: false,
        }
    }

    fn count(&mut self, queue: usize) -> Result<(), PostError> {
        if self.posted[queue].wrapping_sub(self.retired[queue]) >= self.depth[queue] {
            return Err(PostError::Full);
        }
        self.posted[queue] = self.posted[queue].wrapping_add(1);
        Ok(())
    }

    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.count(0)?;
        let data = match wr.data {
            Data::Sges(sges) => Ok(sges.to_vec()),
            Data::Inline(bytes) => Err(bytes.to_vec()),
        };
        let &SendWr { wr_id, op, signaled, fence, .. } = wr;
        self.sends.push_back(Send { wr_id, op, data, signaled, fence });
        Ok(())
    }

    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.count(1)?;
        self.recvs.push_back((wr.wr_id, wr.sges.to_vec()));
        Ok(())
    }

    pub fn retire(&mut self, Retired { sq, rq }: Retired) {
        self.retired = [sq, rq];
    }

    pub fn has_posts(&self) -> bool {
        !self.recvs.is_empty() || !self.sends.is_empty()
    }

    /// Ends the rings of a connection that is over: requests that no turn has taken complete as
    /// flushed.
    pub fn flush(self) -> Vec<Cqe> {
        let qpn = self.qpn;
        let cqe = |queue, op, wr_id| Cqe::flushed(qpn, queue, op, wr_id);
        let sends = self.sends.into_iter().map(|s| cqe(Queue::Sq, completion(&s.op), s.wr_id));
        let recvs = self.recvs.into_iter().map(|(id, _)| cqe(Queue::Rq, CqeOp::Recv, id));
        sends.chain(recvs).collect()
    }
}

fn completion(op: &SendOp) -> CqeOp {
    match op {
        SendOp::Send { .. } => CqeOp::Send,
        SendOp::Write { .. } | SendOp::WriteImmediate { .. } => CqeOp::Write,
        SendOp::Read { .. } => CqeOp::Read,
        SendOp::Immediate { .. } => CqeOp::Immediate,
        SendOp::Atomic { op, .. } => (*op).into(),
        SendOp::FastRegister(_) => CqeOp::FastRegister,
        SendOp::BindWindow(_) => CqeOp::BindWindow,
        SendOp::LocalInvalidate { .. } => CqeOp::LocalInvalidate,
    }
}

impl Posted<QpContext> for Rings {
    type Broken = Infallible;

    fn take_recvs(&mut self, qp: &mut QpContext, most: usize) -> Result<usize, Infallible> {
        let taken = self.recvs.len().min(most);
        for (wr_id, sges) in self.recvs.drain(..taken) {
            qp.post_recv(&RecvWr::new(wr_id, &sges)).expect("no more than the queue is deep");
        }
        self.owed = self.owed.saturating_sub(taken);
        Ok(taken)
    }

    fn has_send(&mut self) -> Result<bool, Infallible> {
        if self.found == 0 {
            (self.found, self.owed) = (self.sends.len(), self.recvs.len());
        }
        Ok(self.found > 0)
    }

    fn owes_recvs(&self) -> bool {
        self.found > 0 && self.owed > 0
    }

    fn take_sends(&mut self, qp: &mut QpContext, most: usize) -> Result<usize, Infallible> {
        let taken = self.found.min(most);
        for s in self.sends.drain(..taken) {
            let data = match &s.data {
                Ok(sges) => Data::Sges(sges),
                Err(bytes) => Data::Inline(bytes),
            };
            let wr =
                SendWr { wr_id: s.wr_id, op: s.op, data, signaled: s.signaled, fence: s.fence };
            qp.post_send(&wr).expect("no more than the queue is deep");
        }
        self.found -= taken;
        Ok(taken)
    }
}

/// Requests of all queue pairs that no turn has taken, for messages that need them earlier.
#[derive(Debug)]
pub struct NotTaken<'r>(RefCell<&'r mut BTreeMap<ConnId, Rings>>);

impl<'r> NotTaken<'r> {
    pub fn new(rings: &'r mut BTreeMap<ConnId, Rings>) -> NotTaken<'r> {
        NotTaken(RefCell::new(rings))
    }
}

impl PostedReceives<QpContext> for NotTaken<'_> {
    fn post_to(&self, of: usize, qp: &mut QpContext) {
        let mut rings = self.0.borrow_mut();
        if let Some((_, rings)) = rings.iter_mut().find(|(conn, _)| conn.index() == of) {
            let _ = rings.take_recvs(qp, POST_TURN);
        }
    }
}
