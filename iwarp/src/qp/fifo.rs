//! A ring whose entries have running indices, and whose memory grows with its contents.

use heddle_base::Fetch;

/// A queue: first in, first out. Indices count from the first entry ever and wrap modulo 2^32. An
/// entry keeps its index from [`push`](Fifo::push) to [`free`](Fifo::free).
///
/// A new ring has no memory of its own. The ring doubles its memory when it is full, and keeps that
/// size until it is trimmed. So a ring that has once reached its largest size allocates no more.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    /// Empty, or of a length that is a power of two.
    slots: Box<[T]>,
    head: u32,
    tail: u32,
}

/// Entries of the first memory that a ring allocates.
const FIRST: usize = 4;

impl<T: Copy + Default> Fifo<T> {
    pub(super) fn new() -> Fifo<T> {
        Fifo { slots: Box::default(), head: 0, tail: 0 }
    }

    /// Makes a ring whose first entry will have the index `at`.
    #[cfg(test)]
    pub(super) fn starting_at(at: u32) -> Fifo<T> {
        Fifo { slots: Box::default(), head: at, tail: at }
    }

    /// Returns the index of the oldest entry.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Returns the index that the next new entry will have.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns the number of entries that the ring has memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & self.slots.len().wrapping_sub(1)
    }

    /// Fetches the oldest entry and the place of the next new one.
    #[inline]
    pub(super) fn fetch(&self, fetch: impl Fetch) {
        for index in [self.head, self.tail] {
            if let Some(entry) = self.slots.get(self.slot(index)) {
                fetch.value(entry);
            }
        }
    }

    /// Returns an entry between head and tail.
    #[inline]
    pub(super) fn at(&self, index: u32) -> &T {
        &self.slots[self.slot(index)]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut T {
        let slot = self.slot(index);
        &mut self.slots[slot]
    }

    /// Adds an entry and returns its place, with stale contents. The caller overwrites them, so
    /// that it builds the entry in place.
    #[inline]
    pub(super) fn push(&mut self) -> &mut T {
        if self.len() == self.slots.len() {
            self.grow(1);
        }
        let index = self.tail;
        self.tail = index.wrapping_add(1);
        self.at_mut(index)
    }

    /// Drops the oldest entry and returns it; its contents stay until the ring needs the place.
    #[inline]
    pub(super) fn pop(&mut self) -> &T {
        let index = self.head;
        self.head = index.wrapping_add(1);
        self.at(index)
    }

    #[inline]
    pub(super) fn extend(&mut self, values: &[T]) {
        if values.is_empty() {
            return;
        }
        if self.slots.len() - self.len() < values.len() {
            self.grow(values.len());
        }
        let at = self.slot(self.tail);
        let (front, rest) = values.split_at((self.slots.len() - at).min(values.len()));
        self.slots[at..at + front.len()].copy_from_slice(front);
        self.slots[..rest.len()].copy_from_slice(rest);
        self.tail = self.tail.wrapping_add(u32::try_from(values.len()).unwrap_or(0));
    }

    /// Returns the `n` entries from `index` on, in place: as one slice, or two where the ring ends.
    #[inline]
    pub(super) fn run(&self, index: u32, n: usize) -> [&[T]; 2] {
        if n == 0 {
            return [&[], &[]];
        }
        let at = self.slot(index);
        let front = (self.slots.len() - at).min(n);
        [&self.slots[at..at + front], &self.slots[..n - front]]
    }

    /// Drops the oldest entries, up to but not including the entry with index `upto`.
    #[inline]
    pub(super) fn free(&mut self, upto: u32) {
        self.head = upto;
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        self.move_to((self.len() + more).next_power_of_two().max(FIRST));
    }

    /// Frees memory beyond what is in use; a later entry may allocate it again.
    #[cold]
    pub(super) fn trim(&mut self) {
        if self.is_empty() {
            self.slots = Box::default();
            return;
        }
        let room = self.len().next_power_of_two().max(FIRST);
        if room < self.slots.len() {
            self.move_to(room);
        }
    }

    /// Moves the entries to new memory for `room` of them. `room` is a power of two and holds all.
    fn move_to(&mut self, room: usize) {
        let mut slots = vec![T::default(); room].into_boxed_slice();
        let mut index = self.head;
        while index != self.tail {
            slots[index as usize & (room - 1)] = *self.at(index);
            index = index.wrapping_add(1);
        }
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_fifo_entries_keep_their_index_while_it_grows_and_wraps() {
        let mut f = Fifo::starting_at(u32::MAX - 5);
        let (mut next, mut oldest) = (0u64, 0u64);
        for round in 0..200u64 {
            let n = round % 9;
            let values: Vec<u64> = (next..next + n).collect();
            let first = f.tail();
            f.extend(&values);
            assert_eq!(f.run(first, values.len()).concat(), values);
            next += n;
            while next - oldest > round % 13 {
                assert_eq!(*f.at(f.head()), oldest);
                if oldest.is_multiple_of(2) {
                    assert_eq!(*f.pop(), oldest);
                } else {
                    f.free(f.head().wrapping_add(1));
                }
                oldest += 1;
            }
            *f.push() = next;
            next += 1;
        }
        assert_eq!(f.len() as u64, next - oldest);
        assert_eq!(f.capacity(), 32, "no more than it had to hold, as a power of two");
    }

    #[test]
    fn test_trimmed_fifo_keeps_its_entries_and_little_spare_memory() {
        for left in [0u64, 1, 4, 5, 60] {
            let mut f = Fifo::starting_at(u32::MAX - 70);
            f.extend(&(0..100).collect::<Vec<u64>>());
            f.free(f.tail().wrapping_sub(u32::try_from(left).unwrap()));
            let (head, tail) = (f.head(), f.tail());
            f.trim();
            let want = if left == 0 { 0 } else { left.next_power_of_two().max(4) };
            assert_eq!(f.capacity() as u64, want);
            assert_eq!((f.head(), f.tail()), (head, tail));
            let rest: Vec<u64> = (100 - left..100).collect();
            assert_eq!(f.run(head, rest.len()).concat(), rest);
            *f.push() = 7;
            assert_eq!(*f.at(tail), 7);
        }
    }

    #[test]
    fn test_empty_fifo_has_no_memory() {
        assert_eq!(Fifo::<u64>::new().capacity(), 0);
    }
}
