//! How far a run is, for a thread that waits for the run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::workload::Interval;

/// The time between two updates of [`Progress`]: a small part of the shortest interval.
const UPDATE_EVERY: Duration = Duration::from_millis(2);
/// Steps, or polls of an RNIC, between two looks at the clock: a power of two.
const LOOK_EVERY: u32 = 1 << 6;

/// Says when a thread that steps or polls all the time has to update [`Progress`].
pub(crate) struct Rhythm {
    steps: u32,
    updated: Instant,
}

impl Rhythm {
    pub(crate) fn new() -> Rhythm {
        Rhythm { steps: 0, updated: Instant::now() }
    }

    /// Counts a step. Returns true if an update is due.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        self.steps.is_multiple_of(LOOK_EVERY) && self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        let now = Instant::now();
        let due = now - self.updated >= UPDATE_EVERY;
        if due {
            self.updated = now;
        }
        due
    }
}

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
    rhythm: Rhythm,
}

impl Teller {
    /// Makes a teller for workers that have retransmitted `now` segments before.
    pub(crate) fn new(progress: &Progress, now: u64) -> Teller {
        progress.add_retransmits(0);
        Teller { progress: progress.clone(), told: now, rhythm: Rhythm::new() }
    }

    /// Tells now and then; the thread that polls the workers calls this after each poll.
    #[inline]
    pub(crate) fn tell(&mut self, count: impl FnOnce() -> u64) {
        if self.rhythm.is_due() {
            let now = count();
            self.progress.add_retransmits(now.saturating_sub(self.told));
            self.told = now;
        }
    }
}
