//! The completions of a queue pair that the application has not taken yet.

use std::collections::VecDeque;

use heddle_types::{Cqe, Queue};

/// Completions of one queue pair, oldest first.
///
/// Completions that the application has not taken when the queue pair ends can outlive it: see
/// [`QpContext::leave_completions`](super::QpContext::leave_completions).
#[derive(Debug, Default)]
pub struct Completions(VecDeque<Entry>);

/// A completion with the index of its request.
#[derive(Debug)]
struct Entry {
    cqe: Cqe,
    index: u32,
}

impl Completions {
    #[inline]
    pub(super) fn push(&mut self, cqe: Cqe, index: u32) {
        self.0.push_back(Entry { cqe, index });
    }

    /// Takes the oldest completion, with the index of its request.
    pub(super) fn pop(&mut self) -> Option<(Cqe, u32)> {
        self.0.pop_front().map(|e| (e.cqe, e.index))
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Frees memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Returns the number of completions that there is memory for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.0.capacity()
    }

    /// Returns true if no completion waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all completions, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Cqe> {
        self.0.iter().map(|e| &e.cqe)
    }

    /// Returns all completions in runs: adjacent completions of the same queue are one run.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = (Queue, impl Iterator<Item = &Cqe>)> {
        fn same(a: &Entry, b: &Entry) -> bool {
            a.cqe.queue == b.cqe.queue
        }
        let (front, back) = self.0.as_slices();
        let runs = front.chunk_by(same).chain(back.chunk_by(same));
        runs.filter_map(|run| Some((run.first()?.cqe.queue, run.iter().map(|e| &e.cqe))))
    }

    /// Takes the oldest completion.
    pub fn take_first(&mut self) -> Option<Cqe> {
        self.pop().map(|(cqe, _)| cqe)
    }
}
