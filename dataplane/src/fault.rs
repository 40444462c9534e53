//! Loss, duplication and reordering on purpose, the same for the same seed.
//!
//! Frames go in with [`FaultInjector::handle`] and come out with [`FaultInjector::poll`]. A frame
//! that is reordered is held back until [`FaultConfig::hold_frames`] others have passed it or
//! [`FaultConfig::hold_time`] is over, whichever is first: with no traffic behind it, it still
//! comes out ([`FaultInjector::poll_timeout`] says when).
//!
//! Decisions follow from the seed and the order of frames alone, three draws per frame whatever
//! their outcome, so that changing one probability does not shift the others.

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use heddle_base::{Instant, Random, Seed};

use crate::mbuf::Mbuf;
use crate::mempool::Mempool;

/// How much of what. Probabilities are in 0..=1, per frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultConfig {
    /// A frame is lost.
    pub drop: f64,
    /// A frame comes twice, the second a copy of its own.
    pub duplicate: f64,
    /// A frame is held back behind later ones.
    pub reorder: f64,
    /// Frames that pass one that is held back.
    pub hold_frames: u32,
    /// Longest time a frame is held back.
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
    /// Whether it leaves every frame as it is.
    pub fn is_none(&self) -> bool {
        self.drop <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0
    }
}

heddle_base::counters! {
    /// What a fault injector did.
    pub struct FaultCounters {
        /// Frames that passed or were dropped, duplicates not counted.
        fault_frames,
        /// Frames lost on purpose.
        fault_dropped,
        /// Frames duplicated on purpose.
        fault_duplicated,
        /// Duplicates not made because the mempool was empty.
        fault_duplicate_failed,
        /// Frames held back on purpose.
        fault_reordered,
        /// Frames lost because the injector was full.
        fault_overflow,
    }
}

/// Frames that may wait inside.
const MAX_WAITING: usize = 4096;

struct Held {
    frame: Mbuf,
    /// Comes out once this many frames in all have passed.
    after: u64,
    until: Instant,
}

/// Drops, duplicates and reorders frames. Owned by one worker.
pub struct FaultInjector {
    config: FaultConfig,
    random: Random,
    pool: Mempool,
    ready: VecDeque<Mbuf>,
    /// In the order they went in, which is also that of `after` and `until`.
    held: VecDeque<Held>,
    passed: u64,
    counters: FaultCounters,
}

impl FaultInjector {
    /// `pool` serves the duplicates.
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

    /// A frame comes out, and behind it what was held back for as many.
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

    /// Appends frames that are due to what room `out` has; returns how many.
    pub fn poll<const N: usize>(&mut self, now: Instant, out: &mut ArrayVec<Mbuf, N>) -> usize {
        while self.held.front().is_some_and(|h| h.until <= now) {
            self.release();
        }
        let n = out.remaining_capacity().min(self.ready.len());
        out.extend(self.ready.drain(..n));
        n
    }

    /// When [`FaultInjector::poll`] has something although nothing more goes in: the origin of
    /// the clock when it has it already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        self.held.front().map(|h| h.until)
    }

    /// What it did.
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
