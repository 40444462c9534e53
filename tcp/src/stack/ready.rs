//! A queue of indices that holds each index at most once, and so is never longer than the number of
//! indices.

use std::collections::VecDeque;

/// The queue. By the time an index is taken off, it may name another connection: the taker must
/// check.
#[derive(Debug, Default)]
pub(super) struct IndexQueue {
    queue: VecDeque<u32>,
    queued: Vec<bool>,
}

impl IndexQueue {
    /// Bytes for each index.
    pub(super) const ENTRY: usize = size_of::<u32>() + size_of::<bool>();

    /// Returns a queue with room for indices below `max`.
    pub(super) fn with_capacity(max: usize) -> IndexQueue {
        IndexQueue { queue: VecDeque::with_capacity(max), queued: Vec::with_capacity(max) }
    }

    /// Puts `index` at the end, unless it is already in the queue.
    #[inline]
    pub(super) fn push(&mut self, index: u32) {
        let i = index as usize;
        if i >= self.queued.len() {
            self.queued.resize(i + 1, false);
        }
        if !self.queued[i] {
            self.queued[i] = true;
            self.queue.push_back(index);
        }
    }

    /// Returns true if no index is queued.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the first index.
    #[inline]
    pub(super) fn front(&self) -> Option<u32> {
        self.queue.front().copied()
    }

    /// Takes off the first index.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let index = self.queue.pop_front()?;
        self.queued[index as usize] = false;
        Some(index)
    }

    /// Moves the first index to the end.
    pub(super) fn rotate(&mut self) {
        if let Some(index) = self.queue.pop_front() {
            self.queue.push_back(index);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_index_queue_holds_each_index_once_in_order() {
        let mut q = IndexQueue::default();
        for i in [3, 1, 3, 2, 1] {
            q.push(i);
        }
        assert_eq!((q.len(), q.front()), (3, Some(3)));
        q.rotate();
        assert_eq!([q.pop(), q.pop()], [Some(1), Some(2)]);
        q.push(1);
        assert_eq!([q.pop(), q.pop(), q.pop()], [Some(3), Some(1), None]);
    }
}
