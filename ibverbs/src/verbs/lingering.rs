//! Keeps the completions of destroyed queue pairs from the program.
//!
//! `ibv_destroy_qp` waits until the RNIC has ended the queue pair, and drops the completions that
//! are in the queue by then. An RNIC that a busy machine keeps off its processors may take longer
//! than the call can wait. The queue pair then lingers: its completion queues drop what still comes
//! for it, because programs use `wr_id` as a pointer to memory that they free after the call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use heddle_verbs::{Cq, Cqe, Qp};

/// The lingering queue pairs of one completion queue.
#[derive(Default)]
pub(crate) struct Lingering {
    /// The handles keep the RNIC from giving the queue pairs' numbers to others.
    qps: Mutex<Vec<Qp>>,
    /// Number of queue pairs, to be read without the lock.
    len: AtomicUsize,
}

impl Lingering {
    fn qps(&self) -> MutexGuard<'_, Vec<Qp>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a queue pair lingers.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.len.load(Ordering::Acquire) != 0
    }

    /// Drops the completions of `qp` from here on.
    pub(super) fn add(&self, qp: &Qp) {
        let mut qps = self.qps();
        qps.push(qp.clone());
        self.len.store(qps.len(), Ordering::Release);
    }

    /// Does the same as [`Cq::poll_batch`], without the completions of lingering queue pairs.
    #[cold]
    pub(super) fn poll_batch(&self, cq: &Cq, most: usize, mut f: impl FnMut(Cqe)) -> usize {
        let mut qps = self.qps();
        // The RNIC has written all completions of a queue pair that has ended, so none comes after
        // these are dropped.
        let ended: Vec<Qp> = qps.extract_if(.., |qp| qp.has_ended()).collect();
        ended.iter().for_each(|qp| cq.forget(qp.qpn()));
        self.len.store(qps.len(), Ordering::Release);
        let mut passed = 0;
        loop {
            let wanted = most - passed;
            let taken = cq.poll_batch(wanted, |cqe| {
                if qps.iter().all(|qp| qp.qpn() != cqe.qpn) {
                    passed += 1;
                    f(cqe);
                }
            });
            if taken < wanted || passed == most {
                break;
            }
        }
        // The last handle of a queue pair tells the RNIC of its end, which may take a while.
        drop(qps);
        passed
    }
}
