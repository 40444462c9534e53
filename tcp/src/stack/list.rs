//! Lists threaded through a table: putting in an entry and taking it out, wherever it stands, costs
//! a few steps and no memory of its own.

use super::NONE;

/// The place of an entry in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

/// The value of `prev` for an entry that is in no list. Tables have fewer entries.
const OUT: u32 = NONE - 1;

impl Link {
    /// The link of an entry that is in no list.
    pub(super) const OUT: Link = Link { prev: OUT, next: OUT };

    /// Returns true if the entry is in a list.
    #[inline]
    pub(super) fn is_in(self) -> bool {
        self.prev != OUT
    }
}

/// A table whose entries have links.
pub(super) trait Linked {
    /// Returns the link `which` of entry `index`.
    fn link(&mut self, which: usize, index: u32) -> Option<&mut Link>;
}

/// A list by the links `WHICH`. The caller gives every operation the same table, through which the
/// list is threaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const WHICH: usize> {
    first: u32,
    last: u32,
    len: usize,
}

impl<const WHICH: usize> Default for List<WHICH> {
    fn default() -> Self {
        List { first: NONE, last: NONE, len: 0 }
    }
}

impl<const WHICH: usize> List<WHICH> {
    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first entry, which has been in the list for longest.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts an entry that is in no list of this kind at the end.
    pub(super) fn push(&mut self, table: &mut impl Linked, index: u32) {
        let Some(link) = table.link(WHICH, index) else { return };
        debug_assert!(!link.is_in());
        *link = Link { prev: self.last, next: NONE };
        match table.link(WHICH, self.last) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        self.last = index;
        self.len += 1;
    }

    /// Takes an entry out. Does nothing when the entry is in no list.
    pub(super) fn remove(&mut self, table: &mut impl Linked, index: u32) {
        let Some(link) = table.link(WHICH, index) else { return };
        if !link.is_in() {
            return;
        }
        let Link { prev, next } = core::mem::replace(link, Link::OUT);
        match table.link(WHICH, prev) {
            Some(l) => l.next = next,
            None => self.first = next,
        }
        match table.link(WHICH, next) {
            Some(l) => l.prev = prev,
            None => self.last = prev,
        }
        self.len -= 1;
    }

    /// Takes out the first entry, which has been in the list for longest.
    pub(super) fn pop(&mut self, table: &mut impl Linked) -> Option<u32> {
        let first = self.first()?;
        self.remove(table, first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Table(Vec<[Link; 2]>);

    impl Linked for Table {
        fn link(&mut self, which: usize, index: u32) -> Option<&mut Link> {
            self.0.get_mut(index as usize).map(|l| &mut l[which])
        }
    }

    proptest! {
        #[test]
        fn test_list_behaves_as_a_queue_with_removal(ops in proptest::collection::vec((0u32..12, 0u8..3), 0..200)) {
            let mut table = Table(vec![[Link::OUT; 2]; 12]);
            let (mut l, mut model) = (List::<1>::default(), VecDeque::new());
            for (i, op) in ops {
                match op {
                    0 if !model.contains(&i) => {
                        l.push(&mut table, i);
                        model.push_back(i);
                    }
                    1 => prop_assert_eq!(l.pop(&mut table), model.pop_front()),
                    _ => {
                        l.remove(&mut table, i);
                        model.retain(|&x| x != i);
                    }
                }
                prop_assert_eq!(l.len(), model.len());
                for i in 0..12 {
                    prop_assert_eq!(table.0[i as usize][1].is_in(), model.contains(&i));
                    prop_assert_eq!(table.0[i as usize][0], Link::OUT);
                }
            }
            while let Some(i) = l.pop(&mut table) {
                prop_assert_eq!(Some(i), model.pop_front());
            }
            prop_assert!(model.is_empty());
        }
    }
}
