//! The ring in which a send queue keeps its FPDUs.

use heddle_base::{Fetch, StreamPos};
use heddle_iwarp::Fpdu;

/// An FPDU and its position in the stream.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Queued {
    pub(super) start: StreamPos,
    pub(super) fpdu: Fpdu,
}

impl Queued {
    /// Returns the position after the last byte.
    #[inline]
    pub(super) fn end(&self) -> StreamPos {
        self.start + u64::from(self.fpdu.len())
    }
}

/// A first-in, first-out queue. The send queue makes, seals and drops an FPDU where it lies, and
/// the ring moves an FPDU only when the ring is resized; free places keep their old content.
///
/// An FPDU has a running index, which wraps modulo 2^32, from [`push`](Ring::push) on.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Empty, or a power of two of places.
    slots: Box<[Queued]>,
    head: u32,
    tail: u32,
}

/// Places in the first allocation.
const FIRST: usize = 4;

impl Ring {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count() as usize
    }

    /// Returns the length in the width of an index.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns the index of the next FPDU.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns the number of FPDUs that the ring has memory for.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn has(&self, index: u32) -> bool {
        (index.wrapping_sub(self.head) as usize) < self.len()
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Queued> {
        if self.has(index) { self.slots.get(self.slot(index)) } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Queued> {
        let slot = self.slot(index);
        if self.has(index) { self.slots.get_mut(slot) } else { None }
    }

    /// Returns the FPDUs from `first` up to `end`, as far as the ring has them: one slice, or two
    /// where the ring wraps.
    #[inline(always)]
    pub(super) fn run_mut(&mut self, first: u32, end: u32) -> [&mut [Queued]; 2] {
        let n = (end.wrapping_sub(first)).min(self.tail.wrapping_sub(first)) as usize;
        if !self.has(first) {
            return [&mut [], &mut []];
        }
        let at = self.slot(first);
        let (front, back) = self.slots.split_at_mut(at);
        let in_back = n.min(back.len());
        let in_front = (n - in_back).min(front.len());
        [&mut back[..in_back], &mut front[..in_front]]
    }

    /// Fetches the oldest FPDU and the place of the next.
    #[inline]
    pub(super) fn fetch(&self, fetch: impl Fetch) {
        for index in [self.head, self.tail] {
            if let Some(place) = self.slots.get(self.slot(index)) {
                fetch.value(place);
            }
        }
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Queued> {
        self.get(self.head)
    }

    pub(super) fn back(&self) -> Option<&Queued> {
        self.get(self.tail.wrapping_sub(1))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Queued> {
        (0..self.tail.wrapping_sub(self.head)).filter_map(|i| self.get(self.head.wrapping_add(i)))
    }

    /// Lets `make` fill in the next place, whose content is arbitrary. If `make` returns true, the
    /// place becomes the youngest FPDU.
    #[inline]
    pub(super) fn push(&mut self, make: impl FnOnce(&mut Queued) -> bool) -> Option<&Queued> {
        if self.len() == self.slots.len() {
            self.resize(self.slots.len() + 1);
        }
        let slot = self.slot(self.tail);
        let place = self.slots.get_mut(slot)?;
        let made = make(place);
        self.tail = self.tail.wrapping_add(u32::from(made));
        made.then_some(place)
    }

    /// Takes out the oldest FPDU, which stays in its place until `push` needs the place.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<&mut Queued> {
        let index = self.head;
        if self.is_empty() {
            return None;
        }
        self.head = index.wrapping_add(1);
        let slot = self.slot(index);
        self.slots.get_mut(slot)
    }

    /// Takes out the youngest FPDU, which stays in its place until `push` needs the place.
    pub(super) fn pop_back(&mut self) -> Option<&mut Queued> {
        if self.is_empty() {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        let slot = self.slot(self.tail);
        self.slots.get_mut(slot)
    }

    /// Returns the index of the first FPDU that ends after `pos`, by bisection, or the next index
    /// to be used if there is none.
    pub(super) fn search(&self, pos: StreamPos) -> u32 {
        let (mut low, mut high) = (0, self.tail.wrapping_sub(self.head));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(self.head.wrapping_add(middle)).is_some_and(|q| q.end() <= pos) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.head.wrapping_add(low)
    }

    /// Frees memory beyond what is in use, and all memory if the ring is empty.
    #[cold]
    pub(super) fn trim(&mut self) {
        if self.is_empty() {
            self.slots = Box::default();
        } else if self.len() * 2 < self.slots.len() {
            self.resize(0);
        }
    }

    /// Resizes the ring to memory for `room` FPDUs, rounded up, but not for fewer than it holds.
    #[cold]
    pub(super) fn resize(&mut self, room: usize) {
        let room = room.max(self.len()).max(FIRST).next_power_of_two();
        let mut slots: Box<[Queued]> = (0..room).map(|_| Queued::default()).collect();
        let mut index = self.head;
        while let Some(q) = self.get_mut(index) {
            let q = core::mem::take(q);
            if let Some(slot) = slots.get_mut(index as usize & (room - 1)) {
                *slot = q;
            }
            index = index.wrapping_add(1);
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, start: u64) {
        ring.push(|q| {
            q.start = StreamPos(start);
            true
        });
    }

    #[test]
    fn test_entry_fits_two_cache_lines() {
        assert_eq!(size_of::<Queued>(), 128);
    }

    #[test]
    fn test_entries_keep_their_index_while_it_grows_wraps_and_shrinks() {
        let mut ring = Ring { head: u32::MAX - 20, tail: u32::MAX - 20, ..Ring::default() };
        let (mut next, mut oldest) = (0, 0);
        let base = ring.head;
        for round in 0..300u64 {
            for _ in 0..round % 11 {
                push(&mut ring, next);
                next += 1;
            }
            assert!(ring.push(|_| false).is_none(), "not made, not there");
            if round % 7 == 0 && ring.pop_back().is_some() {
                next -= 1;
            }
            while next - oldest > round % 17 {
                assert_eq!(ring.pop_front().map(|q| q.start.0), Some(oldest));
                oldest += 1;
            }
            if round % 50 == 0 {
                ring.resize(0);
            }
            assert_eq!(ring.len() as u64, next - oldest);
            assert!(ring.iter().map(|q| q.start.0).eq(oldest..next));
            for at in oldest..next {
                let index = base.wrapping_add(u32::try_from(at).unwrap());
                assert_eq!(ring.get(index).map(|q| q.start.0), Some(at));
            }
            // Ask for a part of the FPDUs, and for no more than there are.
            let skip = u32::try_from(round % 3).unwrap();
            let first = ring.head.wrapping_add(skip);
            for (end, upto) in [(ring.tail, next), (ring.tail.wrapping_add(9), next)] {
                let run = ring.run_mut(first, end).into_iter().flatten().map(|q| q.start.0);
                assert!(run.eq((oldest + u64::from(skip)).min(upto)..upto));
            }
            assert!(ring.get(ring.tail).is_none());
            assert!(ring.get(ring.head.wrapping_sub(1)).is_none());
        }
        assert!(ring.capacity() <= 32, "{}", ring.capacity());
        while ring.pop_front().is_some() {}
        ring.trim();
        assert_eq!(ring.capacity(), 0);
    }
}
