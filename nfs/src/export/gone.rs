//! Objects that are known not to exist any more.
//!
//! A client may ask for an object after its removal. The export need not search for such an object
//! again.

use std::collections::{HashSet, VecDeque};

use super::Identity;

/// The number of objects that the export remembers.
const LIMIT: usize = 4096;

/// The objects last removed, or last searched for in vain.
#[derive(Debug, Default)]
pub(super) struct Gone {
    all: HashSet<Identity>,
    order: VecDeque<Identity>,
}

impl Gone {
    pub(super) fn insert(&mut self, id: Identity) {
        if self.all.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > LIMIT {
            self.order.pop_front().map(|first| self.all.remove(&first));
        }
    }

    /// Removes an object that exists after all: a process of the host moved the object away, and
    /// back.
    pub(super) fn remove(&mut self, id: Identity) {
        if self.all.remove(&id) {
            self.order.retain(|&other| other != id);
        }
    }

    pub(super) fn contains(&self, id: Identity) -> bool {
        self.all.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_latest_removed_objects_are_remembered_until_they_return() {
        let mut gone = Gone::default();
        let id = |ino| Identity { ino, born: 1 };
        for ino in 0..=LIMIT as u64 {
            gone.insert(id(ino));
            gone.insert(id(ino));
        }
        assert!(!gone.contains(id(0)) && gone.contains(id(1)));
        assert!(!gone.contains(Identity { ino: 1, born: 2 }), "another of the same number");
        gone.remove(id(1));
        assert!(!gone.contains(id(1)) && gone.contains(id(2)));
        assert_eq!((gone.all.len(), gone.order.len()), (LIMIT - 1, LIMIT - 1));
    }
}
