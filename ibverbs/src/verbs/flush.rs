//! Completions of requests that are posted after the end of their connection.
//!
//! The RNIC refuses such a request, and libibverbs promises that a request posted in the error state completes as
//! flushed: programs post one and wait for it to know that all before it have completed. So the library completes
//! it. Its completion is taken after those that the RNIC has written, which are all there by then: the RNIC
//! completes what it took before it refuses anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::ibv_wc;

/// Such completions of one completion queue, in the order of their posts.
#[derive(Default)]
pub(crate) struct Flushed {
    queue: Mutex<VecDeque<ibv_wc>>,
    /// How many there are, to be read without the lock.
    len: AtomicUsize,
}

/// Most that wait in one queue: beyond them posts are refused, as when the queue of requests is full.
const MOST: usize = 1 << 16;

impl Flushed {
    fn queue(&self) -> MutexGuard<'_, VecDeque<ibv_wc>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is one.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.len.load(Ordering::Acquire) != 0
    }

    /// Adds one; false when too many wait.
    pub(super) fn push(&self, completion: ibv_wc) -> bool {
        let mut queue = self.queue();
        if queue.len() >= MOST {
            return false;
        }
        queue.push_back(completion);
        self.len.store(queue.len(), Ordering::Release);
        true
    }

    /// Takes up to `most`; how many.
    ///
    /// # Safety
    /// `to` has room for `most`.
    #[cold]
    pub(super) unsafe fn take(&self, most: usize, to: *mut ibv_wc) -> usize {
        let mut queue = self.queue();
        let count = most.min(queue.len());
        for (i, completion) in queue.drain(..count).enumerate() {
            // SAFETY: no more than the caller has room for.
            unsafe { to.add(i).write(completion) };
        }
        self.len.store(queue.len(), Ordering::Release);
        count
    }

    /// Takes the oldest.
    pub(super) fn pop(&self) -> Option<ibv_wc> {
        if !self.is_some() {
            return None;
        }
        let mut queue = self.queue();
        let first = queue.pop_front();
        self.len.store(queue.len(), Ordering::Release);
        first
    }

    /// Forgets those of a queue pair that is destroyed.
    pub(super) fn forget(&self, qp_num: u32) {
        if self.is_some() {
            let mut queue = self.queue();
            queue.retain(|completion| completion.qp_num != qp_num);
            self.len.store(queue.len(), Ordering::Release);
        }
    }
}
