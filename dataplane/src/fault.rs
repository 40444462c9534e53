//! Deliberate loss, duplication and reordering, the same for the same seed.
//!
//! Frames go in with [`FaultInjector::handle`] and come out with [`FaultInjector::poll`]. The
//! injector holds a reordered frame back until [`FaultConfig::hold_frames`] others have passed it
//! or [`FaultConfig::hold_time`] is over, whichever is first: even without later traffic, the frame
//! comes out ([`FaultInjector::poll_timeout`] says when).
//!
//! Decisions follow from the seed and the order of frames alone, with three draws per frame
//! whatever their outcome, so that a change of one probability does not shift the others.

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use heddle_base::{Instant, Random, Seed};

use crate::mbuf::Mbuf;
use crate::mempool::Mempool;

/// The faults to inject. Probabilities are in 0..=1, per frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultConfig {
    /// Probability that the injector drops a frame.
    pub drop: f64,
    /// Probability that a frame comes twice, the second time as a copy of its own.
    pub duplicate: f64,
    /// Probability that the injector holds a frame back until later frames have passed.
    pub reorder: f64,
    /// Frames that pass a frame that is held back.
    pub hold_frames: u32,
    /// Longest time that the injector holds a frame back.
    pub hold_time: Duration,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            hold_frames: 3,
            hold_time: Duration::from_millis(1),
        }
    }
}

impl FaultConfig {
    /// Returns true if this configuration leaves every frame as it is.
    pub fn is_none(&self) -> bool {
        self.drop <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0
    }
}

heddle_base::counters! {
    /// Counters of a fault injector.
    pub struct FaultCounters {
        /// Frames that passed or were dropped, duplicates not counted.
        fault_frames,
        /// Frames dropped on purpose.
        fault_dropped,
        /// Frames duplicated on purpose.
        fault_duplicated,
        /// Duplicates not made because the mempool was empty.
        fault_duplicate_failed,
        /// Frames held back on purpose.
        fault_reordered,
        /// Frames dropped because the injector was full.
        fault_overflow,
    }
}

/// Frames that may wait inside the injector.
const MAX_WAITING: usize = 4096;

struct Held {
    frame: Mbuf,
    /// The frame comes out after this many frames in all have passed.
    after: u64,
    until: Instant,
}

/// Drops, duplicates and reorders frames. A worker owns its injector.
pub struct FaultInjector {
    config: FaultConfig,
    random: Random,
    pool: Mempool,
    ready: VecDeque<Mbuf>,
    /// In the order in which the frames went in, which is also that of `after` and `until`.
    held: VecDeque<Held>,
    passed: u64,
    counters: FaultCounters,
}

impl FaultInjector {
    /// Returns an injector that allocates duplicates from `pool`.
    pub fn new(config: FaultConfig, seed: &Seed, pool: Mempool) -> FaultInjector {
        FaultInjector {
            config,
            random: Random::new(seed),
            pool,
            ready: VecDeque::with_capacity(MAX_WAITING),
            held: VecDeque::with_capacity(MAX_WAITING),
            passed: 0,
            counters: FaultCounters::default(),
        }
    }

    /// Takes all of `frames`.
    pub fn handle<const N: usize>(&mut self, now: Instant, frames: &mut ArrayVec<Mbuf, N>) {
        for frame in frames.drain(..) {
            self.handle_frame(now, frame);
        }
    }

    fn handle_frame(&mut self, now: Instant, frame: Mbuf) {
        self.counters.fault_frames += 1;
        let drop = self.random.chance(self.config.drop);
        let duplicate = self.random.chance(self.config.duplicate);
        let reorder = self.random.chance(self.config.reorder);
        if drop {
            self.counters.fault_dropped += 1;
            return;
        }
        if duplicate {
            match frame.copy(&self.pool) {
                Some(copy) => {
                    self.counters.fault_duplicated += 1;
                    self.pass(copy);
                }
                None => self.counters.fault_duplicate_failed += 1,
            }
        }
        if reorder && self.config.hold_frames > 0 && self.held.len() < MAX_WAITING {
            self.counters.fault_reordered += 1;
            let after = self.passed + u64::from(self.config.hold_frames);
            self.held.push_back(Held { frame, after, until: now + self.config.hold_time });
        } else {
            self.pass(frame);
        }
    }

    /// Lets a frame come out, and after it the frames that were held back for so many.
    fn pass(&mut self, frame: Mbuf) {
        self.push(frame);
        self.passed += 1;
        while self.held.front().is_some_and(|h| h.after <= self.passed) {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(h) = self.held.pop_front() {
            self.push(h.frame);
        }
    }

    fn push(&mut self, frame: Mbuf) {
        if self.ready.len() < MAX_WAITING {
            self.ready.push_back(frame);
        } else {
            self.counters.fault_overflow += 1;
        }
    }

    /// Appends as many due frames to `out` as it has room for, and returns how many.
    pub fn poll<const N: usize>(&mut self, now: Instant, out: &mut ArrayVec<Mbuf, N>) -> usize {
        while self.held.front().is_some_and(|h| h.until <= now) {
            self.release();
        }
        let n = out.remaining_capacity().min(self.ready.len());
        out.extend(self.ready.drain(..n));
        n
    }

    /// Returns when [`FaultInjector::poll`] will have a frame although nothing more goes in; the
    /// origin of the clock if it has one already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        self.held.front().map(|h| h.until)
    }

    /// Returns the counters of the faults injected so far.
    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }
}

impl std::fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultInjector")
            .field("config", &self.config)
            .field("ready", &self.ready.len())
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
