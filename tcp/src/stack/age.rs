//! Connections in the order in which they came into a state, to find the one that has been there
//! for longest.

use std::collections::VecDeque;

use super::slab::ConnId;

/// The queue. Those that have left the state are still in it until someone looks: `still` tells
/// them apart.
#[derive(Debug, Default)]
pub(super) struct AgeQueue(VecDeque<ConnId>);

impl AgeQueue {
    /// Puts `id` at the end. At most `most` are in the state at a time, and the queue is never
    /// longer than twice that.
    pub(super) fn push(&mut self, id: ConnId, most: usize, still: impl Fn(ConnId) -> bool) {
        if self.0.len() >= most.max(8).saturating_mul(2) {
            self.0.retain(|&id| still(id));
        }
        self.0.push_back(id);
    }

    /// Takes off the oldest.
    pub(super) fn pop(&mut self, still: impl Fn(ConnId) -> bool) -> Option<ConnId> {
        while let Some(id) = self.0.pop_front() {
            if still(id) {
                return Some(id);
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
