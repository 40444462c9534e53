//! Stretches of an arena.

use std::collections::BTreeMap;

/// Hands out aligned stretches of `[0, size)`, first fit, and merges stretches that come back.
#[derive(Debug)]
pub struct Stretches {
    size: usize,
    /// Start and length of each free stretch; no two touch.
    free: BTreeMap<usize, usize>,
}

/// Regions start and end at cache lines, so that two never share one.
const ALIGN: usize = 64;

/// Regions of a page and more start at pages.
const PAGE: usize = 4096;

impl Stretches {
    /// Returns `size` bytes, all free.
    pub fn new(size: usize) -> Stretches {
        Stretches { size, free: BTreeMap::from([(0, size)]) }
    }

    /// Takes `len` bytes. Returns their offset.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let len = round_up(len.max(1), ALIGN)?;
        let align = if len >= PAGE { PAGE } else { ALIGN };
        let (start, have, at) = self.free.iter().find_map(|(&start, &have)| {
            let at = round_up(start, align)?;
            (at.checked_add(len)? <= start + have).then_some((start, have, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + have {
            self.free.insert(at + len, start + have - at - len);
        }
        Some(at)
    }

    /// Gives back `len` bytes at `at`, as they were taken.
    pub fn give(&mut self, at: usize, len: usize) {
        let Some(mut len) = round_up(len.max(1), ALIGN) else { return };
        let mut start = at;
        if let Some((&before, &n)) = self.free.range(..at).next_back()
            && before + n == at
        {
            self.free.remove(&before);
            start = before;
            len += n;
        }
        if let Some(n) = self.free.remove(&(start + len)) {
            len += n;
        }
        self.free.insert(start, len);
    }

    /// Returns the bytes that there are, free or not.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the length of the longest free stretch.
    pub fn largest(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }
}

fn round_up(n: usize, to: usize) -> Option<usize> {
    n.checked_next_multiple_of(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn test_stretches_never_overlap_and_are_all_returned(
            ops in proptest::collection::vec((0usize..20_000, any::<bool>()), 1..200)
        ) {
            let mut s = Stretches::new(1 << 18);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (n, take) in ops {
                if take {
                    if let Some(at) = s.take(n) {
                        prop_assert!(at % ALIGN == 0 && at + n <= 1 << 18);
                        prop_assert!(held.iter().all(|&(a, l)| at + n.max(1) <= a || a + l.max(1) <= at));
                        held.push((at, n));
                    }
                } else if !held.is_empty() {
                    let (at, n) = held.swap_remove(n % held.len());
                    s.give(at, n);
                }
            }
            for (at, n) in held {
                s.give(at, n);
            }
            prop_assert_eq!(s.largest(), s.size());
        }
    }

    #[test]
    fn test_stretches_refuse_one_byte_more_than_their_size() {
        let mut s = Stretches::new(8192);
        assert_eq!(s.take(8193), None);
        assert_eq!(s.take(8192), Some(0));
        assert_eq!(s.take(1), None);
        assert_eq!(s.take(usize::MAX), None);
    }
}
