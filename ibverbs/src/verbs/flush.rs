//! Completes requests that the program posts after the end of their connection.
//!
//! The RNIC refuses such a request, but libibverbs promises that a request posted in the error
//! state completes as flushed: programs post one and wait for its completion, to know that all
//! earlier requests have completed. So the library completes the request itself. Programs receive
//! such a completion after those of the RNIC, which are all in the queue by then: the RNIC
//! completes everything that it accepted before it refuses anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::ibv_wc;

/// The library's own completions of one completion queue, in the order of their posts.
#[derive(Default)]
pub(crate) struct Flushed {
    queue: Mutex<VecDeque<ibv_wc>>,
    /// Number of waiting completions, to be read without the lock.
    len: AtomicUsize,
}

/// Most completions that wait in one queue. Beyond this number the library refuses posts, as it
/// does when the queue of requests is full.
const MOST: usize = 1 << 16;

impl Flushed {
    fn queue(&self) -> MutexGuard<'_, VecDeque<ibv_wc>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a completion waits.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.len.load(Ordering::Acquire) != 0
    }

    /// Adds a completion. Returns false if too many wait.
    pub(super) fn push(&self, completion: ibv_wc) -> bool {
        let mut queue = self.queue();
        if queue.len() >= MOST {
            return false;
        }
        queue.push_back(completion);
        self.len.store(queue.len(), Ordering::Release);
        true
    }

    /// Takes up to `most` completions and returns their number.
    ///
    /// # Safety
    /// `to` has room for `most` completions.
    #[cold]
    pub(super) unsafe fn take(&self, most: usize, to: *mut ibv_wc) -> usize {
        let mut queue = self.queue();
        let count = most.min(queue.len());
        for (i, completion) in queue.drain(..count).enumerate() {
            // SAFETY: the loop writes no more completions than the caller has room for.
            unsafe { to.add(i).write(completion) };
        }
        self.len.store(queue.len(), Ordering::Release);
        count
    }

    /// Takes the oldest completion.
    pub(super) fn pop(&self) -> Option<ibv_wc> {
        if !self.is_some() {
            return None;
        }
        let mut queue = self.queue();
        let first = queue.pop_front();
        self.len.store(queue.len(), Ordering::Release);
        first
    }

    /// Drops the completions of a queue pair that the program destroys.
    pub(super) fn forget(&self, qp_num: u32) {
        if self.is_some() {
            let mut queue = self.queue();
            queue.retain(|completion| completion.qp_num != qp_num);
            self.len.store(queue.len(), Ordering::Release);
        }
    }
}
