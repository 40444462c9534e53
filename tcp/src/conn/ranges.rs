//! The byte ranges accepted ahead of a gap.
//!
//! ```text
//!   rcv_nxt          r0         r1                 right edge
//!      |   gap    |#####|  gap |###|     gap          |
//! ```
//! Invariant: ranges are not empty, ascend, and neither overlap nor touch.

use arrayvec::ArrayVec;
use heddle_base::StreamPos;

/// Ranges kept at most. Each gap costs the peer at least one segment, so 32 gaps in one window mean
/// heavy loss or an attack; a range that would be one too many is refused and comes again later.
pub(super) const MAX_RANGES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: StreamPos,
    end: StreamPos,
}

/// A bounded set of ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(ArrayVec<Range, MAX_RANGES>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the highest byte, if there is any.
    pub(super) fn end(&self) -> Option<StreamPos> {
        self.0.last().map(|r| r.end)
    }

    /// The first part of `[start, end)` that lies in no range; `None` when all of it does.
    pub(super) fn first_gap(
        &self,
        mut start: StreamPos,
        end: StreamPos,
    ) -> Option<(StreamPos, StreamPos)> {
        for r in &self.0 {
            if r.end <= start {
                continue;
            }
            if r.start > start {
                return (start < end).then(|| (start, end.min(r.start)));
            }
            start = r.end;
        }
        (start < end).then_some((start, end))
    }

    /// Whether [`insert`](Ranges::insert) of `[start, end)` would find room.
    pub(super) fn has_room(&self, start: StreamPos, end: StreamPos) -> bool {
        !self.0.is_full() || self.0.iter().any(|r| r.start <= end && start <= r.end)
    }

    /// Adds `[start, end)`; false, and nothing is changed, when there is no room for it.
    pub(super) fn insert(&mut self, start: StreamPos, end: StreamPos) -> bool {
        if start >= end {
            return true;
        }
        let first = self.0.iter().take_while(|r| r.end < start).count();
        let joined = self.0.iter().skip(first).take_while(|r| r.start <= end).count();
        if joined == 0 {
            return self.0.try_insert(first, Range { start, end }).is_ok();
        }
        let last_end = self.0.get(first + joined - 1).map_or(end, |r| r.end);
        self.0.drain(first + 1..first + joined);
        if let Some(r) = self.0.get_mut(first) {
            r.start = r.start.min(start);
            r.end = last_end.max(end);
        }
        true
    }

    /// Drops what lies at or before `next`, and returns where the data now reaches without a gap.
    pub(super) fn reach(&mut self, mut next: StreamPos) -> StreamPos {
        let mut done = 0;
        for r in &self.0 {
            if r.start > next {
                break;
            }
            next = next.max(r.end);
            done += 1;
        }
        self.0.drain(..done);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn p(n: u64) -> StreamPos {
        StreamPos(n)
    }

    fn list(r: &Ranges) -> Vec<(u64, u64)> {
        r.0.iter().map(|r| (r.start.0, r.end.0)).collect()
    }

    #[test]
    fn test_insert_joins_what_touches_and_keeps_the_rest() {
        let mut r = Ranges::default();
        for (a, b) in [(10, 20), (40, 50), (30, 35)] {
            assert!(r.insert(p(a), p(b)));
        }
        assert_eq!(list(&r), [(10, 20), (30, 35), (40, 50)]);
        assert!(r.insert(p(20), p(30)));
        assert_eq!(list(&r), [(10, 35), (40, 50)]);
        assert!(r.insert(p(36), p(39)));
        assert_eq!(list(&r), [(10, 35), (36, 39), (40, 50)]);
        assert!(r.insert(p(0), p(60)));
        assert_eq!(list(&r), [(0, 60)]);
    }

    #[test]
    fn test_insert_when_full_takes_only_what_touches() {
        let mut r = Ranges::default();
        for i in 0..MAX_RANGES as u64 {
            assert!(r.insert(p(i * 10 + 10), p(i * 10 + 15)));
        }
        assert!(!r.has_room(p(5), p(9)) && !r.insert(p(5), p(9)));
        assert!(r.has_room(p(5), p(10)) && r.insert(p(5), p(10)));
        assert_eq!(list(&r)[0], (5, 15));
    }

    #[test]
    fn test_first_gap_skips_what_is_there() {
        let mut r = Ranges::default();
        r.insert(p(10), p(20));
        r.insert(p(30), p(40));
        let gap = |a, b| r.first_gap(p(a), p(b)).map(|(a, b)| (a.0, b.0));
        assert_eq!(gap(0, 5), Some((0, 5)));
        assert_eq!(gap(0, 15), Some((0, 10)));
        assert_eq!(gap(12, 18), None);
        assert_eq!(gap(12, 21), Some((20, 21)));
        assert_eq!(gap(12, 50), Some((20, 30)));
        assert_eq!(gap(35, 50), Some((40, 50)));
    }

    proptest! {
        #[test]
        fn test_ranges_match_a_bit_map(ops in proptest::collection::vec((0usize..200, 1usize..30), 0..60)) {
            let mut r = Ranges::default();
            let mut map = [false; 256];
            for (a, n) in ops {
                if r.insert(p(a as u64), p((a + n) as u64)) {
                    map[a..a + n].fill(true);
                }
                let flat: Vec<_> = list(&r).into_iter().flat_map(|(a, b)| [a, b]).collect();
                prop_assert!(flat.windows(2).all(|w| w[0] < w[1]));
                for (i, &set) in map.iter().enumerate() {
                    let i = i as u64;
                    prop_assert_eq!(r.first_gap(p(i), p(i + 1)).is_none(), set);
                }
            }
            let start = usize::try_from(r.reach(p(0)).0).unwrap();
            prop_assert!(map[..start].iter().all(|&b| b) && !map[start]);
        }
    }
}
