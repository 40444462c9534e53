//! Completions: in queue order, one for each request, and for all requests when the QP fails.

use super::QpContext;
use super::event::QpEvent;
use super::queues::{Progress, Wqe, WqeOp};
use heddle_base::StreamPos;
use heddle_engine::{Completions, Retired};
use heddle_types::{ConnectedState, Cqe, CqeOp, CqeStatus, Queue, Stag};

/// The data that the completion of a receive buffer reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    pub(super) len: u32,
    pub(super) solicited: bool,
    pub(super) invalidated: Option<Stag>,
    pub(super) immediate: Option<u64>,
}

impl QpContext {
    /// Handles that the peer's TCP has received everything before `upto`: Sends and Writes that end
    /// there complete.
    pub fn handle_acked(&mut self, upto: StreamPos) {
        self.acked = self.acked.max(upto);
        self.complete_sends();
    }

    /// Returns true if a completion or an event waits.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.has_completions() || self.has_events()
    }

    /// Returns true if an event waits.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the next completion, oldest first. The call frees the place of its request, and those
    /// of the silent successes around it: see [`sq_retired`](QpContext::sq_retired).
    pub fn poll_completion(&mut self) -> Option<Cqe> {
        let (cqe, index) = self.cq.pop()?;
        match cqe.queue {
            Queue::Sq => {
                self.sq.retired = index.wrapping_add(1);
                self.sq.unpolled -= 1;
                self.retire_silent();
            }
            Queue::Rq => self.rq.retired = index.wrapping_add(1),
        }
        Some(cqe)
    }

    /// Calls `f` with all completions, and then removes them. Does what
    /// [`poll_completion`](QpContext::poll_completion) does one by one, but computes the free
    /// places only once. The places are free before the call of `f`, which may have to publish that
    /// before it passes the completions on.
    #[inline]
    pub fn take_completions<R>(&mut self, f: impl FnOnce(&Completions, Retired) -> R) -> R {
        self.sq.unpolled = 0;
        self.retire_silent();
        // Each receive buffer has a completion, so all complete buffers are free now.
        self.rq.retired = self.rq.rqes.head();
        let result = f(&self.cq, Retired { sq: self.sq.retired, rq: self.rq.retired });
        self.cq.clear();
        result
    }

    /// Returns true if a completion waits.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.cq.is_empty()
    }

    /// Takes the completions that the application has not taken, of a queue pair that is about to
    /// end.
    pub fn leave_completions(&mut self) -> Completions {
        core::mem::take(&mut self.cq)
    }

    /// Returns the number of send requests whose places are free again, counted from the first one
    /// ever posted, modulo 2^32. A place is free when its request and all before it are complete
    /// and the application has polled their completions. Silent successes count at once while no
    /// completion waits, else with the next polled completion.
    #[inline]
    pub const fn sq_retired(&self) -> u32 {
        self.sq.retired
    }

    /// Returns the same number as [`sq_retired`](QpContext::sq_retired), for the receive queue.
    #[inline]
    pub const fn rq_retired(&self) -> u32 {
        self.rq.retired
    }

    /// Frees the places of requests that completed silently, if no completion waits to be polled.
    #[inline]
    fn retire_silent(&mut self) {
        if self.sq.unpolled == 0 {
            self.sq.retired = self.sq.wqes.head();
        }
    }

    /// Takes the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_at(0)
    }

    /// Completes finished requests from the oldest on, and stops at the first that is not finished:
    /// completions are in the order of posting (RFC 5040 section 5.5).
    #[inline]
    pub(super) fn complete_sends(&mut self) {
        if self.end.is_some() {
            return self.flush_sends();
        }
        while self.sq.wqes.head() != self.sq.next {
            let wqe = self.sq.wqes.at(self.sq.wqes.head());
            if !self.is_done(wqe) {
                break;
            }
            let status = wqe.refused.map_or(CqeStatus::Success, CqeStatus::LocalQpOperation);
            self.report_send(status);
        }
        self.retire_silent();
        if self.state == ConnectedState::Closing {
            self.check_drained();
        }
    }

    /// Completes the oldest send request; silently if the request asked for that and succeeded.
    #[inline(always)]
    fn report_send(&mut self, status: CqeStatus) {
        let (index, wqe) = self.sq.pop();
        if !wqe.signaled && status.is_success() {
            return;
        }
        let cqe = Cqe {
            wr_id: wqe.wr_id,
            qpn: self.qpn,
            queue: Queue::Sq,
            op: match wqe.op {
                WqeOp::Send { .. } => CqeOp::Send,
                WqeOp::Write { .. } | WqeOp::WriteImmediate { .. } => CqeOp::Write,
                WqeOp::Read { .. } => CqeOp::Read,
                WqeOp::Immediate { .. } => CqeOp::Immediate,
                WqeOp::FetchAdd { .. } => CqeOp::FetchAdd,
                WqeOp::CmpSwap { .. } => CqeOp::CmpSwap,
                WqeOp::FastRegister { .. } => CqeOp::FastRegister,
                WqeOp::BindWindow { .. } => CqeOp::BindWindow,
                WqeOp::LocalInvalidate { .. } => CqeOp::LocalInvalidate,
            },
            status,
            solicited: false,
            len: if status.is_success() { wqe.len } else { 0 },
            invalidated: None,
            immediate: None,
        };
        if self.sq.unpolled == 0 {
            self.sq.retired = index;
        }
        self.cq.push(cqe, index);
        self.sq.unpolled += 1;
    }

    /// Completes the oldest receive buffer.
    pub(super) fn report_recv(&mut self, status: CqeStatus, what: Received) {
        let Some(rqe) = self.rq.front() else { return };
        let Received { len, solicited, invalidated, immediate } = what;
        let cqe = Cqe {
            wr_id: rqe.wr_id,
            qpn: self.qpn,
            queue: Queue::Rq,
            op: CqeOp::Recv,
            status,
            solicited,
            len,
            invalidated,
            immediate,
        };
        self.cq.push(cqe, self.rq.rqes.head());
        self.rq.pop();
        self.forget_expected();
    }

    /// After the end of the stream: completes send requests from the oldest on, up to the first
    /// whose bytes TCP may still have to send.
    ///
    /// A completed request returns its memory to the application. So a request with bytes in FPDUs
    /// completes only when the peer has acknowledged them or the connection has ended, although the
    /// QP knows long before that the request has failed.
    #[cold]
    pub(super) fn flush_sends(&mut self) {
        let Some(end) = self.end.as_deref() else { return };
        let (acked, gone, culprit) = (end.acked, end.gone, end.culprit);
        while !self.sq.is_empty() {
            let index = self.sq.wqes.head();
            let wqe = self.sq.wqes.at(index);
            let in_fpdus = index != self.sq.next && wqe.progress != Progress::Done;
            // A Read or Atomic Request carries none of the application's memory, so nothing holds
            // it back.
            let reads = wqe.op.is_answered();
            if in_fpdus && !reads && wqe.end > self.acked && !gone {
                break;
            }
            // A request that was acknowledged or placed before the end had only to wait for an
            // earlier request. An acknowledgment after the end proves nothing: the peer may have
            // dropped the bytes.
            let done = match wqe.progress {
                Progress::Queued => false,
                Progress::Sent => !reads && wqe.end <= acked,
                Progress::Done => true,
            };
            let status = match (culprit, wqe.refused) {
                (_, Some(why)) => CqeStatus::LocalQpOperation(why),
                (Some((Queue::Sq, i, status)), _) if i == index => status,
                _ if done => CqeStatus::Success,
                _ => CqeStatus::Flushed,
            };
            if status == CqeStatus::Flushed {
                self.counters.rare().flushed += 1;
            }
            self.report_send(status);
        }
        self.retire_silent();
    }

    /// Completes all receive buffers.
    #[cold]
    pub(super) fn flush_recvs(&mut self) {
        let culprit = self.end.as_ref().and_then(|e| e.culprit);
        while let Some(rqe) = self.rq.front() {
            let status = match (culprit, rqe.refused) {
                (_, Some(why)) => CqeStatus::LocalQpOperation(why),
                (Some((Queue::Rq, i, status)), _) if i == self.rq.rqes.head() => status,
                _ => CqeStatus::Flushed,
            };
            if status == CqeStatus::Flushed {
                self.counters.rare().flushed += 1;
            }
            self.report_recv(status, Received::default());
        }
        self.rq.received = 0;
    }

    /// Returns true if the peer has acknowledged a send request's last byte, or a Read's data is
    /// placed.
    #[inline]
    pub(super) fn is_done(&self, wqe: &Wqe) -> bool {
        match wqe.progress {
            Progress::Queued => false,
            Progress::Sent => !wqe.op.is_answered() && wqe.end <= self.acked,
            Progress::Done => true,
        }
    }

    pub(super) fn raise(&mut self, event: QpEvent) {
        tracing::trace!(qpn = self.qpn.0, ?event, "queue pair event");
        // The array has room: each event comes at most once in the life of a QP, and there are few.
        let _ = self.events.try_push(event);
    }

    pub(super) fn check_drained(&mut self) {
        if !self.drained && self.sq.is_empty() && self.reads.inbound.is_empty() {
            self.drained = true;
            self.raise(QpEvent::Drained);
        }
    }
}
