//! Completions: in queue order, each once, and all of them when the QP fails.

use super::Qp;
use super::cqe::{Cqe, CqeOp, CqeStatus, QpEvent, Queue};
use super::queues::Progress;
use super::state::QpState;
use super::wr::SendOp;
use crate::Stag;
use heddle_base::StreamPos;

impl Qp {
    /// Tells that the peer's TCP has everything before `upto`: Sends and Writes that end there
    /// complete.
    pub fn handle_acked(&mut self, upto: StreamPos) {
        self.acked = self.acked.max(upto);
        self.complete_sends();
    }

    /// Whether there is a completion or an event.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.cq.is_empty() || !self.events.is_empty()
    }

    /// The next completion, oldest first; its [`retired`](Cqe::retired) entries are free again.
    pub fn poll_completion(&mut self) -> Option<Cqe> {
        let cqe = self.cq.pop_front()?;
        match cqe.queue {
            Queue::Sq => self.sq.freed = self.sq.freed.wrapping_add(cqe.retired),
            Queue::Rq => self.rq.freed = self.rq.freed.wrapping_add(cqe.retired),
        }
        Some(cqe)
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_at(0)
    }

    /// Completes from the oldest request on what is done, and stops at the first that is not:
    /// completions are in the order of posting (RFC 5040 section 5.5).
    pub(super) fn complete_sends(&mut self) {
        while self.sq.head != self.sq.next {
            let index = self.sq.head;
            if !self.is_done(index) {
                break;
            }
            self.sq.head = index.wrapping_add(1);
            if self.sq.ring.at(index).wr.signaled {
                self.report_send(index, CqeStatus::Success);
            }
        }
        if self.state == QpState::Closing {
            self.check_drained();
        }
    }

    fn report_send(&mut self, index: u32, status: CqeStatus) {
        let wqe = self.sq.ring.at(index);
        let after = index.wrapping_add(1);
        self.cq.push_back(Cqe {
            wr_id: wqe.wr.wr_id,
            qpn: self.qpn,
            queue: Queue::Sq,
            op: match wqe.wr.op {
                SendOp::Send { .. } => CqeOp::Send,
                SendOp::Write { .. } => CqeOp::Write,
                SendOp::Read { .. } => CqeOp::Read,
            },
            status,
            solicited: false,
            len: if status.is_success() { wqe.len } else { 0 },
            retired: after.wrapping_sub(self.sq.reported),
            invalidated: None,
        });
        self.sq.reported = after;
    }

    /// Completes the receive buffer at the head.
    pub(super) fn report_recv(
        &mut self,
        status: CqeStatus,
        len: u32,
        solicited: bool,
        invalidated: Option<Stag>,
    ) {
        let Some(rqe) = self.rq.front() else { return };
        let wr_id = rqe.wr_id;
        self.cq.push_back(Cqe {
            wr_id,
            qpn: self.qpn,
            queue: Queue::Rq,
            op: CqeOp::Recv,
            status,
            solicited,
            len,
            retired: 1,
            invalidated,
        });
        self.rq.head = self.rq.head.wrapping_add(1);
    }

    /// Completes everything that is posted; `culprit` is the request that failed and how.
    pub(super) fn flush(&mut self, culprit: Option<(Queue, u32, CqeStatus)>) {
        self.sending = None;
        self.reads.outbound.clear();
        self.reads.inbound.clear();
        while self.sq.head != self.sq.tail {
            let index = self.sq.head;
            let status = match culprit {
                Some((Queue::Sq, i, status)) if i == index => status,
                // Its last byte is acknowledged or placed: only an earlier one held it back.
                _ if self.is_done(index) => CqeStatus::Success,
                _ => CqeStatus::Flushed,
            };
            self.counters.flushed += u64::from(status == CqeStatus::Flushed);
            self.sq.head = index.wrapping_add(1);
            if status != CqeStatus::Success || self.sq.ring.at(index).wr.signaled {
                self.report_send(index, status);
            }
        }
        self.sq.next = self.sq.tail;
        self.flush_recvs(culprit);
    }

    pub(super) fn flush_recvs(&mut self, culprit: Option<(Queue, u32, CqeStatus)>) {
        while self.rq.head != self.rq.tail {
            let status = match culprit {
                Some((Queue::Rq, i, status)) if i == self.rq.head => status,
                _ => CqeStatus::Flushed,
            };
            self.counters.flushed += u64::from(status == CqeStatus::Flushed);
            self.report_recv(status, 0, false, None);
        }
        self.rq.received = 0;
    }

    /// Whether a send request's last byte is acknowledged, or placed (Read).
    #[inline]
    pub(super) fn is_done(&self, index: u32) -> bool {
        let wqe = self.sq.ring.at(index);
        match wqe.progress {
            Progress::Queued => false,
            Progress::Sent => !matches!(wqe.wr.op, SendOp::Read { .. }) && wqe.end <= self.acked,
            Progress::Done => true,
        }
    }

    pub(super) fn raise(&mut self, event: QpEvent) {
        // Each event comes at most once in the life of a QP, and there are few.
        let _ = self.events.try_push(event);
    }

    pub(super) fn check_drained(&mut self) {
        if !self.drained && self.sq.is_empty() && self.reads.inbound.is_empty() {
            self.drained = true;
            self.raise(QpEvent::Drained);
        }
    }
}
