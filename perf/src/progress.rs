//! How far a run is, for a thread that waits for the run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::workload::Interval;

/// Steps, or polls of an RNIC, between updates of [`Progress`].
pub(crate) const UPDATE_EVERY: u32 = 1 << 14;

/// A counter, and the intervals so far, that the thread of a run shares with a thread that shows
/// them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ops: AtomicU64,
    /// Segments that RNICs of this process have retransmitted, as far as their threads have said.
    retransmits: AtomicU64,
    /// True once a thread has said so.
    counts_retransmits: AtomicBool,
    intervals: Mutex<Vec<Interval>>,
}

impl Progress {
    /// Returns the operations completed in the current run.
    pub fn ops(&self) -> u64 {
        self.0.ops.load(Ordering::Relaxed)
    }

    /// Returns the intervals of the current run that have ended, from number `first` on.
    pub fn intervals_from(&self, first: usize) -> Vec<Interval> {
        let all = self.0.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(first..).unwrap_or_default().to_vec()
    }

    /// Starts a run.
    pub(crate) fn clear(&self) {
        self.set(0);
        self.0.intervals.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn set(&self, ops: u64) {
        self.0.ops.store(ops, Ordering::Relaxed);
    }

    /// Adds segments that an RNIC of this process has retransmitted.
    pub(crate) fn add_retransmits(&self, count: u64) {
        self.0.retransmits.fetch_add(count, Ordering::Relaxed);
        self.0.counts_retransmits.store(true, Ordering::Relaxed);
    }

    /// Returns the number of segments that the RNICs of this process have retransmitted since the
    /// process began; `None` if it has no RNIC.
    pub(crate) fn retransmits(&self) -> Option<u64> {
        let counts = self.0.counts_retransmits.load(Ordering::Relaxed);
        counts.then(|| self.0.retransmits.load(Ordering::Relaxed))
    }

    pub(crate) fn push(&self, intervals: Vec<Interval>) {
        if !intervals.is_empty() {
            self.0.intervals.lock().unwrap_or_else(PoisonError::into_inner).extend(intervals);
        }
    }
}

/// Tells the progress of a run how many segments some workers retransmit.
pub(crate) struct Teller {
    progress: Progress,
    told: u64,
    polls: u32,
}

impl Teller {
    /// Makes a teller for workers that have retransmitted `now` segments before.
    pub(crate) fn new(progress: &Progress, now: u64) -> Teller {
        progress.add_retransmits(0);
        Teller { progress: progress.clone(), told: now, polls: 0 }
    }

    /// Tells now and then; the thread that polls the workers calls this after each poll.
    #[inline]
    pub(crate) fn tell(&mut self, count: impl FnOnce() -> u64) {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(UPDATE_EVERY) {
            let now = count();
            self.progress.add_retransmits(now.saturating_sub(self.told));
            self.told = now;
        }
    }
}
