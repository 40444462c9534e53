//! The completions of a queue pair that the application has not taken yet.

use std::collections::VecDeque;

use heddle_types::{Cqe, Queue};

/// Completions of one queue pair, oldest first.
///
/// A queue pair adds to them, and its worker takes all of them at once
/// ([`Engine::take_completions`](crate::Engine::take_completions)). They can outlive the queue pair.
#[derive(Debug, Default)]
pub struct Completions(VecDeque<Entry>);

/// Requests whose places in their queues are free again, counted from the first request ever
/// posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Requests of the send queue, modulo 2^32.
    pub sq: u32,
    /// Requests of the receive queue, modulo 2^32.
    pub rq: u32,
}

/// A completion with the index of its request.
#[derive(Debug)]
struct Entry {
    cqe: Cqe,
    index: u32,
}

impl Completions {
    /// Adds the completion of the request at `index` of its queue, which counts from the first
    /// request ever posted, modulo 2^32.
    #[inline]
    pub fn push(&mut self, cqe: Cqe, index: u32) {
        self.0.push_back(Entry { cqe, index });
    }

    /// Takes the oldest completion, with the index of its request.
    pub fn pop(&mut self) -> Option<(Cqe, u32)> {
        self.0.pop_front().map(|e| (e.cqe, e.index))
    }

    /// Removes all completions.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Frees memory beyond what is in use.
    pub fn trim(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Returns the number of completions that there is memory for.
    pub fn room(&self) -> usize {
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
