//! The end of a queue pair whose RNIC, another process, no longer exists.
//!
//! No worker completes the queue pair's requests any more, so the application's end does: every
//! request that was posted and not retired completes as flushed, in order, after the completions
//! that the worker has written. Each entry records the length of the entry before it, so the
//! application's end finds the entries from the last backwards; no entry is overwritten before it
//! is retired. The application's end also finds completions that the worker had written and not
//! shown when it died ([`CqProducer::stage`](heddle_rings::cq::CqProducer::stage)), so each request
//! completes once, no matter when the worker died. Receives of a shared queue belong to no queue
//! pair, and stay without completions.

use heddle_base::sync::atomic::Ordering;
use heddle_base::sync::{MutexGuard, TryLockError, yield_now};
use heddle_rings::layout::opcode;
use heddle_rings::qp::{Header, QueueWords};
use heddle_rings::{BlockRing, low32};
use heddle_types::{Cqe, CqeOp, Queue};

use super::{Producer, Qp, RQ, SQ, at, header, state};
use crate::cq::Cq;

impl Qp {
    /// Ends the queue pair, which no worker runs any more: all posted requests complete as flushed,
    /// and the queue pair refuses posts from here on.
    pub(super) fn lose(&self) {
        let q = &*self.0;
        let words = header(&q.block);
        // A worker that has ended the queue pair has also completed all its requests.
        let mut ended = self.state() & 0xff == state::DEAD;
        let mut sq = self.lock_without_worker(&q.sq, &mut ended);
        let mut rq = self.lock_without_worker(&q.rq, &mut ended);
        if !ended {
            let lines = q.block.words().as_chunks().0;
            let (send, recv) = (q.rings.sq_of(lines), q.rings.rq_of(lines));
            self.flush(words, (&mut sq, SQ), send, (&q.init.send_cq, Queue::Sq));
            self.flush(words, (&mut rq, RQ), recv, (&q.init.recv_cq, Queue::Rq));
            words[at::STATE].store(state::DEAD, Ordering::SeqCst);
        }
        self.set_over();
    }

    /// Locks a queue. The thread that holds the lock may be waiting for a worker that died while it
    /// ended the queue pair. This function then marks all posted requests as taken, so that the
    /// thread stops waiting; its request completes with the others.
    fn lock_without_worker<'q>(
        &self,
        queue: &'q heddle_base::sync::Mutex<Producer>,
        ended: &mut bool,
    ) -> MutexGuard<'q, Producer> {
        loop {
            match queue.try_lock() {
                Ok(queue) => return queue,
                Err(TryLockError::Poisoned(e)) => return e.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.state() & 0xff == state::ENDING {
                let words = header(&self.0.block);
                for at in [SQ, RQ] {
                    let posted = words[at.posted].load(Ordering::Acquire);
                    words[at.last].store(posted, Ordering::Release);
                }
                words[at::STATE].store(state::DEAD, Ordering::SeqCst);
                *ended = false;
            }
            yield_now();
        }
    }

    fn flush(
        &self,
        words: &Header,
        (queue, at): (&mut Producer, QueueWords),
        ring: BlockRing<'_>,
        (cq, kind): (&Cq, Queue),
    ) {
        let retired = words[at.retired].load(Ordering::Acquire);
        let flushed =
            queue.outstanding(ring, retired).map(|(wr_id, op)| flushed(self, kind, op, wr_id));
        cq.complete((self.qpn(), kind), low32(retired), flushed);
        queue.retire_all(words, at);
    }
}

fn flushed(qp: &Qp, queue: Queue, op: u64, wr_id: u64) -> Cqe {
    let op = match op {
        opcode::RECV => CqeOp::Recv,
        opcode::WRITE | opcode::WRITE_IMMEDIATE => CqeOp::Write,
        opcode::READ => CqeOp::Read,
        opcode::IMMEDIATE => CqeOp::Immediate,
        opcode::FETCH_ADD => CqeOp::FetchAdd,
        opcode::COMPARE_SWAP => CqeOp::CmpSwap,
        opcode::FAST_REGISTER => CqeOp::FastRegister,
        opcode::BIND_WINDOW => CqeOp::BindWindow,
        opcode::LOCAL_INVALIDATE => CqeOp::LocalInvalidate,
        _ => CqeOp::Send,
    };
    Cqe::flushed(qp.qpn(), queue, op, wr_id)
}

#[cfg(all(test, not(feature = "loom")))]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
pub(super) mod tests;
