//! Counts, for each place, how many ranges cover it that were added and not removed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges by how often each of their places is covered. Any order of [`add`](Counted::add) and
/// [`remove`](Counted::remove) gives the same counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The count from each key to the next; 0 before the first key and after the last.
    from: BTreeMap<usize, u32>,
    covered: usize,
}

impl Counted {
    /// Counts every place of `range` once more, and returns the parts that nothing covered before.
    pub fn add(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let fresh = self.change(range, |n| (n.saturating_add(1), n == 0));
        self.covered += fresh.iter().map(ExactSizeIterator::len).sum::<usize>();
        fresh
    }

    /// Counts every place of `range` once less, and returns the parts that nothing covers any more.
    /// The caller has added the same range.
    pub fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let gone = self.change(range, |n| (n.saturating_sub(1), n == 1));
        self.covered -= gone.iter().map(ExactSizeIterator::len).sum::<usize>();
        gone
    }

    /// Returns the parts of `range` that nothing covers.
    pub fn gaps(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let next = self.from.range(at + 1..).next().map_or(range.end, |(key, _)| *key);
            let next = next.min(range.end);
            if self.count(at) == 0 {
                push(&mut gaps, at..next);
            }
            at = next;
        }
        gaps
    }

    /// Returns the number of ranges that cover `place`.
    pub fn count(&self, place: usize) -> u32 {
        self.from.range(..=place).next_back().map_or(0, |(_, n)| *n)
    }

    /// Returns the number of places covered.
    pub fn covered(&self) -> usize {
        self.covered
    }

    /// Returns true if nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// Returns the covered parts, in order.
    pub fn parts(&self) -> Vec<Range<usize>> {
        let ends = self.from.keys().skip(1);
        let covered = self.from.iter().zip(ends).filter(|((_, n), _)| **n > 0);
        let mut parts = Vec::new();
        covered.for_each(|((start, _), end)| push(&mut parts, *start..*end));
        parts
    }

    /// Replaces the count of each place; returns the parts for which the flag that `to` returns is
    /// true.
    fn change(
        &mut self,
        range: &Range<usize>,
        to: impl Fn(u32) -> (u32, bool),
    ) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        if range.is_empty() {
            return parts;
        }
        for edge in [range.start, range.end] {
            let n = self.count(edge);
            self.from.entry(edge).or_insert(n);
        }
        let starts: Vec<usize> = self.from.range(range.clone()).map(|(key, _)| *key).collect();
        for (i, start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(range.end);
            let Some(n) = self.from.get_mut(start) else { continue };
            let (new, report) = to(*n);
            *n = new;
            if report {
                push(&mut parts, *start..end);
            }
        }
        self.join(range);
        parts
    }

    /// Removes the keys in and at the end of `range` that change no count.
    fn join(&mut self, range: &Range<usize>) {
        let mut before = self.from.range(..range.start).next_back().map_or(0, |(_, n)| *n);
        let keys: Vec<(usize, u32)> =
            self.from.range(range.start..=range.end).map(|(key, n)| (*key, *n)).collect();
        for (key, n) in keys {
            if n == before {
                self.from.remove(&key);
            }
            before = n;
        }
    }
}

/// Adds `part`, joined to the last part if the two meet.
fn push(parts: &mut Vec<Range<usize>>, part: Range<usize>) {
    match parts.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one range")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_counted_ranges_are_reported_when_count_leaves_and_reaches_zero() {
        let mut c = Counted::default();
        assert_eq!(c.add(&(10..20)), [10..20]);
        assert_eq!(c.add(&(15..30)), [20..30]);
        assert_eq!(c.add(&(0..40)), [0..10, 30..40]);
        assert_eq!((c.covered(), c.count(17), c.count(40)), (40, 3, 0));
        assert!(c.remove(&(10..20)).is_empty());
        assert_eq!(c.remove(&(0..40)), [0..15, 30..40]);
        assert_eq!((c.parts(), c.gaps(&(0..50))), (vec![15..30], vec![0..15, 30..50]));
        assert_eq!(c.remove(&(15..30)), [15..30]);
        assert_eq!(c, Counted::default(), "no key is left");
        assert!(c.add(&(5..5)).is_empty());
    }

    proptest! {
        /// Compares with a model that has a counter for each place.
        #[test]
        fn test_counted_ranges_match_model_with_one_counter_per_place(
            steps in prop::collection::vec((0usize..64, 0usize..20, any::<bool>()), 1..60)
        ) {
            let (mut c, mut model, mut held) = (Counted::default(), vec![0u32; 100], Vec::new());
            for (start, len, add) in steps {
                let range = start..start + len;
                let (range, add) = match (add, held.len()) {
                    (false, n) if n > 0 => (held.swap_remove(start % n), false),
                    _ => { held.push(range.clone()); (range, true) }
                };
                let before = model.clone();
                for n in &mut model[range.clone()] { if add { *n += 1 } else { *n -= 1 } }
                let changed = if add { c.add(&range) } else { c.remove(&range) };
                for place in 0..model.len() {
                    let reported = changed.iter().any(|r| r.contains(&place));
                    let expected = (before[place] == 0) != (model[place] == 0);
                    prop_assert_eq!(reported, expected, "{}", place);
                    prop_assert_eq!(c.count(place), model[place]);
                    let free = c.gaps(&(0..100)).iter().any(|r| r.contains(&place));
                    prop_assert_eq!(free, model[place] == 0);
                    let part = c.parts().iter().any(|r| r.contains(&place));
                    prop_assert_eq!(part, model[place] > 0);
                }
                prop_assert_eq!(c.covered(), model.iter().filter(|n| **n > 0).count());
                let shortest = c.from.values().zip(c.from.values().skip(1)).all(|(a, b)| a != b);
                prop_assert!(shortest && c.from.values().next() != Some(&0));
            }
        }
    }
}
