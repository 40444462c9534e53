//! The path of completions from the queue pairs to the rings of applications, and the end of a
//! queue pair.

use heddle_engine::Engine;
use heddle_rings::worker::WorkerQp;
use heddle_types::{AppId, ConnId, Cqe, CqeOp, Queue};

use super::queues::let_go;
use super::{Worker, ahead};
use crate::rx::RxMbuf;

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Writes completions to the completion queues; returns true if there were any.
    #[inline]
    pub(super) fn collect_completions(&mut self) -> bool {
        let any = self.engine.has_completions();
        if any {
            self.complete_all();
        }
        any
    }

    #[inline(never)]
    fn complete_all(&mut self) {
        let looks = self.engine.is_wide();
        loop {
            let Worker { engine, queues, .. } = self;
            if looks {
                ahead::fetch_completed(engine, queues);
            }
            let taken = engine.take_completions(|conn, all, retired| {
                (queues.complete(conn, all, retired), retired)
            });
            let Some((conn, (lost, retired))) = taken else { return };
            if lost > 0 {
                self.overflowed(conn, lost);
            }
            if let Some(retired) = retired
                && self.watch.follows(conn.index())
            {
                self.watch.retired(retired.sq, self.clock.now());
            }
        }
    }

    #[cold]
    fn overflowed(&mut self, conn: ConnId, lost: u64) {
        self.counters.cq_overflows += lost;
        if let Some(slot) = self.queues.of(conn)
            && !std::mem::replace(&mut slot.qp.broken, true)
        {
            self.engine.abort(conn);
        }
    }

    /// Ends the queue pair of a connection that is over: requests that its application has posted
    /// and no turn has taken complete as flushed.
    pub(super) fn end_qp(&mut self, conn: ConnId) {
        self.collect_completions();
        self.flush_qp(conn, false);
    }

    /// Like [`end_qp`](Self::end_qp), but without the engine. With `results_lost`, the engine can
    /// no longer report the results of the requests that it had taken.
    pub(super) fn flush_qp(&mut self, conn: ConnId, results_lost: bool) {
        self.watch.forget(conn.index());
        let Some(mut slot) = self.queues.remove(conn) else { return };
        let (send_cq, recv_cq) = (slot.send_cq, slot.recv_cq);
        let taken = slot.qp.outstanding();
        for (cq, taken) in [(send_cq, taken.0), (recv_cq, taken.1)] {
            if results_lost && taken > 0 {
                self.queues.lose(cq);
                self.counters.cq_overflows += u64::from(taken);
            }
        }
        self.flush_posts(&mut slot.qp, [send_cq, recv_cq]);
        self.queues.leave(slot);
    }

    /// Flushes a queue pair that never had a connection, at its application's request.
    pub(super) fn flush_idle(&mut self, app: AppId, mut qp: WorkerQp) {
        let Some(cqs) = self.queues.join_cqs(app, &mut qp) else { return let_go(qp) };
        self.flush_posts(&mut qp, cqs);
        self.queues.leave_cqs(cqs, qp);
    }

    /// Completes, as flushed, the posted requests that no turn has taken, and ends the queue pair.
    fn flush_posts(&mut self, qp: &mut WorkerQp, cqs: [u32; 2]) {
        let qpn = qp.qpn();
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        qp.end(
            |wr_id, op| sends.push(Cqe::flushed(qpn, Queue::Sq, op, wr_id)),
            |wr_id| recvs.push(Cqe::flushed(qpn, Queue::Rq, CqeOp::Recv, wr_id)),
        );
        self.counters.cq_overflows += self.queues.complete_last(qp, cqs, [&sends, &recvs]);
        qp.close();
        self.queues.notify();
    }
}
