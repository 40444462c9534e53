//! A timer per index: a binary heap in which every index has at most one place.
//!
//! Timers are *lazy*: an earlier time moves the entry forward, a later time leaves it in place.
//! When the timer comes up the owner checks the real deadline and arms the timer again. A
//! connection under traffic postpones its retransmission with every ACK; lazy timers reduce the
//! cost of this to one spurious wake-up per timeout. The heap never has more entries than indices.
//! The entry of a connection repeats the time for which its timer is armed, so that a segment that
//! changes nothing here needs no line of the heap (`Entry::arm`).

use heddle_base::Instant;

const ABSENT: u32 = u32::MAX;

/// The instant of `next` while no timer is armed.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The heap. `place[index]` is the position of the entry of `index` in the heap.
#[derive(Debug)]
pub(super) struct Timers {
    /// The time of the first entry, which every turn of a worker reads; [`NEVER`] while the heap is
    /// empty.
    next: Instant,
    heap: Vec<Armed>,
    place: Vec<u32>,
}

/// An entry of the heap, without padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Armed {
    at: Instant,
    index: u32,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers::with_capacity(0)
    }
}

impl Timers {
    /// Bytes for each index.
    pub(super) const ENTRY: usize = size_of::<Armed>() + size_of::<u32>();

    /// Returns timers with room for indices below `max`.
    pub(super) fn with_capacity(max: usize) -> Timers {
        Timers { next: NEVER, heap: Vec::with_capacity(max), place: Vec::with_capacity(max) }
    }

    /// Returns when the first timer comes up.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.next != NEVER).then_some(self.next)
    }

    /// Returns the time for which the timer of `index` is armed; [`NEVER`] if it is not.
    #[cfg(test)]
    pub(super) fn armed(&self, index: u32) -> Instant {
        let place = self.place.get(index as usize);
        place.and_then(|&pos| self.heap.get(pos as usize)).map_or(NEVER, |armed| armed.at)
    }

    /// Returns the number of armed timers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if a timer is due.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Makes the timer of `index` come up at `at`, or earlier if it was already armed for an
    /// earlier time.
    #[inline]
    pub(super) fn arm(&mut self, index: u32, at: Instant) {
        // As a rule the timer already comes up earlier; the heap has no entry at `ABSENT`.
        if let Some(&pos) = self.place.get(index as usize)
            && let Some(&Armed { at: armed, .. }) = self.heap.get(pos as usize)
            && armed <= at
        {
            return;
        }
        self.move_up(index, at);
    }

    #[inline(never)]
    fn move_up(&mut self, index: u32, at: Instant) {
        let i = index as usize;
        if i >= self.place.len() {
            self.place.resize(i + 1, ABSENT);
        }
        let pos = match self.place[i] {
            ABSENT => {
                self.heap.push(Armed { at, index });
                self.heap.len() - 1
            }
            pos => {
                self.heap[pos as usize].at = at;
                pos as usize
            }
        };
        self.sift_up(pos);
        self.note_next();
    }

    /// Returns the first index whose timer is due. The timer stays armed.
    #[inline]
    pub(super) fn due(&self, now: Instant) -> Option<u32> {
        self.heap.first().filter(|first| { first.at } <= now).map(|first| first.index)
    }

    /// Disarms the first timer that is due and returns its index.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let index = self.due(now)?;
        self.remove(0);
        Some(index)
    }

    /// Makes the first timer, which is due, come up at `at` instead.
    pub(super) fn put_off(&mut self, at: Instant) {
        if let Some(first) = self.heap.first_mut() {
            first.at = at;
            self.sift_down(0);
            self.note_next();
        }
    }

    /// Disarms the timer of `index`.
    pub(super) fn cancel(&mut self, index: u32) {
        if let Some(&pos) = self.place.get(index as usize)
            && pos != ABSENT
        {
            self.remove(pos as usize);
        }
    }

    fn remove(&mut self, pos: usize) {
        let Armed { index, .. } = self.heap.swap_remove(pos);
        self.place[index as usize] = ABSENT;
        if pos < self.heap.len() {
            let pos = self.sift_up(pos);
            self.sift_down(pos);
        }
        self.note_next();
    }

    fn note_next(&mut self) {
        self.next = self.heap.first().map_or(NEVER, |first| first.at);
    }

    fn sift_up(&mut self, mut pos: usize) -> usize {
        while pos > 0 {
            let parent = (pos - 1) / 2;
            if { self.heap[parent].at } <= { self.heap[pos].at } {
                break;
            }
            self.heap.swap(parent, pos);
            self.note(pos);
            pos = parent;
        }
        self.note(pos);
        pos
    }

    fn sift_down(&mut self, mut pos: usize) {
        loop {
            let left = 2 * pos + 1;
            let Some(&Armed { at: mut least, .. }) = self.heap.get(left) else { break };
            let mut child = left;
            if let Some(&Armed { at: right, .. }) = self.heap.get(left + 1)
                && right < least
            {
                (child, least) = (left + 1, right);
            }
            if { self.heap[pos].at } <= least {
                break;
            }
            self.heap.swap(child, pos);
            self.note(pos);
            pos = child;
        }
        self.note(pos);
    }

    fn note(&mut self, pos: usize) {
        let index = self.heap[pos].index as usize;
        // Positions are below the number of indices, which are `u32`.
        self.place[index] = u32::try_from(pos).unwrap_or(ABSENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Arm(u32, u64),
        Cancel(u32),
        Pop(u64),
        PutOff(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u32..20, 0u64..100).prop_map(|(i, t)| Op::Arm(i, t)),
            (0u32..20).prop_map(Op::Cancel),
            (0u64..100).prop_map(Op::Pop),
            (0u64..100, 0u64..50).prop_map(|(now, by)| Op::PutOff(now, by)),
        ]
    }

    proptest! {
        #[test]
        fn test_behaves_as_a_map_from_index_to_the_earliest_time(ops in proptest::collection::vec(op(), 0..200)) {
            let (mut t, mut model) = (Timers::default(), BTreeMap::new());
            for op in ops {
                match op {
                    Op::Arm(i, at) => {
                        t.arm(i, Instant::from_nanos(at));
                        let e = model.entry(i).or_insert(at);
                        *e = at.min(*e);
                    }
                    Op::Cancel(i) => {
                        t.cancel(i);
                        model.remove(&i);
                    }
                    Op::Pop(now) => {
                        let least = model.values().min().copied();
                        match t.pop_due(Instant::from_nanos(now)) {
                            Some(i) => {
                                prop_assert!(least.is_some_and(|at| at <= now));
                                prop_assert_eq!(model.remove(&i), least);
                            }
                            None => prop_assert!(least.is_none_or(|at| at > now)),
                        }
                    }
                    Op::PutOff(now, by) => {
                        let due = t.due(Instant::from_nanos(now));
                        prop_assert_eq!(due.is_some(), t.is_due(Instant::from_nanos(now)));
                        if let Some(i) = due {
                            t.put_off(Instant::from_nanos(now + by));
                            model.insert(i, now + by);
                        }
                    }
                }
                prop_assert_eq!(t.len(), model.len());
                prop_assert_eq!(t.next(), model.values().min().map(|&at| Instant::from_nanos(at)));
            }
        }
    }
}
