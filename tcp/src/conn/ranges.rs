//! Sets of byte ranges: the ranges accepted ahead of a gap, and the ranges that the peer reports as
//! received.
//!
//! ```text
//!   next             r0         r1                 right edge
//!      |   gap    |#####|  gap |###|     gap          |
//! ```
//! Invariant: ranges are not empty, ascend, and neither overlap nor touch.

use heddle_base::StreamPos;
use std::collections::VecDeque;

/// The most ranges that a set keeps. The end of slow start may lose every other segment of a window
/// that overflows a queue, so a window of two thousand segments can have this many gaps. The set
/// refuses a further range, whose bytes come again later. The bound also limits the work that a peer
/// can cause with ranges of its choice: a search, and at most one move of 8 KiB per range. Honest
/// ranges come at the end, and go at the front, where nothing moves.
pub(super) const MAX_RANGES: usize = 1024;

/// Bytes `[start, end)` of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: StreamPos,
    pub(super) end: StreamPos,
}

impl Range {
    pub(super) fn new(start: StreamPos, end: StreamPos) -> Range {
        Range { start, end }
    }

    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }
}

/// A bounded set of ranges. The set allocates memory at the first range and keeps this memory: most
/// connections never see a gap.
#[allow(clippy::box_collection, reason = "eight bytes in each connection, not 24")]
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Option<Box<VecDeque<Range>>>);

static NONE: VecDeque<Range> = VecDeque::new();

impl Ranges {
    fn list(&self) -> &VecDeque<Range> {
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// Frees memory beyond the memory in use.
    pub(super) fn trim(&mut self) {
        match &mut self.0 {
            Some(list) if !list.is_empty() => list.shrink_to_fit(),
            list => *list = None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Returns the number of ranges.
    pub(super) fn count(&self) -> usize {
        self.list().len()
    }

    /// Returns the position after the highest byte, if there is any range.
    pub(super) fn end(&self) -> Option<StreamPos> {
        self.list().back().map(|r| r.end)
    }

    /// Returns the index of the first range that ends beyond `pos`: mostly the first of all, before
    /// which the gap lies, or the last, to which the newest bytes belong.
    fn first_beyond(&self, pos: StreamPos) -> usize {
        let list = self.list();
        match (list.front(), list.back()) {
            (Some(first), _) if first.end > pos => 0,
            (_, Some(last)) if last.start <= pos => list.len() - usize::from(last.end > pos),
            _ => list.partition_point(|r| r.end <= pos),
        }
    }

    /// Returns the range that holds `pos`.
    pub(super) fn containing(&self, pos: StreamPos) -> Option<Range> {
        self.list().get(self.first_beyond(pos)).copied().filter(|r| r.start <= pos)
    }

    /// Returns the first part of `[start, end)` that lies in no range; `None` when all of it lies
    /// in ranges.
    pub(super) fn first_gap(
        &self,
        mut start: StreamPos,
        end: StreamPos,
    ) -> Option<(StreamPos, StreamPos)> {
        let mut at = self.first_beyond(start);
        let mut next = self.list().get(at);
        // Ranges do not touch, so a gap follows each range.
        if let Some(r) = next.filter(|r| r.start <= start) {
            start = r.end;
            at += 1;
            next = self.list().get(at);
        }
        (start < end).then(|| (start, next.map_or(end, |r| end.min(r.start))))
    }

    /// Returns the number of bytes at or beyond `start` that lie in ranges.
    pub(super) fn bytes_from(&self, start: StreamPos) -> u64 {
        self.list().range(self.first_beyond(start)..).map(|r| r.end - r.start.max(start)).sum()
    }

    /// Returns true if [`insert`](Ranges::insert) of `[start, end)` would find room.
    pub(super) fn has_room(&self, start: StreamPos, end: StreamPos) -> bool {
        let list = self.list();
        let first = || list.get(list.partition_point(|r| r.end < start));
        list.len() < MAX_RANGES || first().is_some_and(|r| r.start <= end)
    }

    /// Adds `[start, end)`. Returns false, and changes nothing, when the set has no room for the
    /// range.
    pub(super) fn insert(&mut self, start: StreamPos, end: StreamPos) -> bool {
        if start >= end {
            return true;
        }
        let list = self.0.get_or_insert_default();
        // Segments come in order, but for the lost ones: most bytes belong behind all others.
        let room = list.len() < MAX_RANGES;
        match list.back_mut() {
            Some(last) if start > last.end => {
                if room {
                    list.push_back(Range { start, end });
                }
                return room;
            }
            Some(last) if start >= last.start => {
                last.end = last.end.max(end);
                return true;
            }
            _ => {}
        }
        let first = list.partition_point(|r| r.end < start);
        let joined = list.range(first..).take_while(|r| r.start <= end).count();
        if joined == 0 {
            if room {
                list.insert(first, Range { start, end });
            }
            return room;
        }
        let last_end = list[first + joined - 1].end;
        list.drain(first + 1..first + joined);
        let r = &mut list[first];
        r.start = r.start.min(start);
        r.end = last_end.max(end);
        true
    }

    /// Drops the ranges that start at or before `next`, and returns the position up to which the
    /// data now has no gap.
    pub(super) fn reach(&mut self, mut next: StreamPos) -> StreamPos {
        let Some(list) = &mut self.0 else { return next };
        while let Some(r) = list.pop_front_if(|r| r.start <= next) {
            next = next.max(r.end);
        }
        next
    }

    pub(super) fn clear(&mut self) {
        if let Some(list) = &mut self.0 {
            list.clear();
        }
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
        r.list().iter().map(|r| (r.start.0, r.end.0)).collect()
    }

    #[test]
    fn test_inserted_range_merges_with_adjacent_ranges_only() {
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
    fn test_full_ranges_accept_only_adjacent_inserts() {
        let mut r = Ranges::default();
        for i in 0..MAX_RANGES as u64 {
            assert!(r.insert(p(i * 10 + 10), p(i * 10 + 15)));
        }
        assert!(!r.has_room(p(5), p(9)) && !r.insert(p(5), p(9)));
        assert!(r.has_room(p(5), p(10)) && r.insert(p(5), p(10)));
        assert_eq!(list(&r)[0], (5, 15));
    }

    #[test]
    fn test_first_gap_skips_present_ranges() {
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
