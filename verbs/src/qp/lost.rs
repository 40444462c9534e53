//! The end of a queue pair whose RNIC, another process, is gone.
//!
//! No worker completes its requests any more, so the application's end does: whatever was posted and has not been
//! retired completes as flushed, in order, behind the completions that the worker has written. Each entry says how
//! long the one before it is, so they are found from the last one backwards; none of them is overwritten before it is
//! retired. Completions that the worker had written and not shown when it died are found as well
//! ([`CqProducer::stage`](crate::cq::CqProducer::stage)): each request completes once, whenever that was. Receives of
//! a shared queue, which are no queue pair's, stay without completions.

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_base::sync::{MutexGuard, TryLockError, yield_now};

use heddle_iwarp::{Cqe, CqeOp, Queue};

use super::{Header, Producer, Qp, QueueWords, RQ, SQ, at, header, state};
use crate::cq::Cq;
use crate::ring::layout::opcode;
use crate::ring::{BlockRing, look_back, low32};

impl Qp {
    /// No worker runs it any more: what is posted completes as flushed, and posts from here on are refused.
    pub(super) fn lose(&self) {
        let q = &*self.0;
        let words = header(&q.block);
        // A worker that has ended it has also completed everything.
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

    /// Locks a queue. A thread that has the lock may wait for a worker that has died while it ended the queue pair:
    /// it is told that its request was taken, which completes with the others.
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
        let left = queue.posted.wrapping_sub(retired).min(queue.depth);
        let left = look_back(ring, (queue.tail, queue.before), left);
        let flushed = left.map(|(wr_id, op)| flushed(self, kind, op, wr_id));
        cq.complete((self.qpn(), kind), low32(retired), flushed);
        let set = |i: usize, value: u64| AtomicU64::store(&words[i], value, Ordering::Release);
        set(at.last, queue.posted);
        set(at.retired, queue.posted);
        set(at.head, queue.tail);
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
