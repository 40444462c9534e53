//! Calls that wait for room for their results. The server holds them, so no thread of a program
//! waits.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::Request;
use crate::memory::{Lack, Memory, NoMemory};

/// A call that waits.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) request: Request,
    pub(super) len: usize,
    pub(super) until: Instant,
}

/// The calls that wait; calls under way bound their number.
#[derive(Debug)]
pub(super) struct Parking {
    memory: Memory,
    /// Waiting calls, in the order in which they began to wait.
    waiting: VecDeque<Parked>,
}

impl Parking {
    pub(super) fn new(memory: Memory) -> Parking {
        Parking { memory, waiting: VecDeque::new() }
    }

    /// Adds a call.
    pub(super) fn push(&mut self, parked: Parked) {
        self.waiting.push_back(parked);
        self.memory.set_parked(self.waiting.len());
    }

    /// Returns true if a call has waited for too long.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.waiting.iter().any(|parked| parked.until <= now)
    }

    /// Returns the time when the first call will have waited for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|parked| parked.until).min()
    }

    /// Takes the calls that get the room they wait for, and the calls that have waited for too
    /// long. The first call that finds no memory and waits on holds up the calls after it, so that
    /// many short calls do not take memory that a long call needs. A call whose address has used up
    /// its share holds up only the calls of its address.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Request> {
        let (mut ready, mut is_held_up, mut over) = (Vec::new(), false, HashSet::new());
        for mut parked in std::mem::take(&mut self.waiting) {
            let Some(share) = parked.request.room.share.clone() else { continue };
            let taken = if is_held_up || over.contains(&share.id()) {
                Err(None)
            } else {
                self.memory.take_for_parked(&share, parked.len).map_err(Some)
            };
            let is_late = parked.until <= now || parked.len > self.memory.results_max();
            match taken {
                Err(lack) if !is_late => {
                    is_held_up |= lack == Some(Lack::Others);
                    over.extend((lack == Some(Lack::Own)).then(|| share.id()));
                    self.waiting.push_back(parked);
                }
                taken => {
                    let none = |_| NoMemory { len: parked.len };
                    parked.request.room.waited = Some(taken.map_err(none));
                    ready.push(parked.request);
                }
            }
        }
        self.memory.set_parked(self.waiting.len());
        ready
    }
}
