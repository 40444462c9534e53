//! Where objects are: the directory and the name in it, by their numbers.
//!
//! It says where to look, not what is there: whoever opens a place compares what he finds with what he
//! looked for. The table has a bound; what came first goes first, and is searched for when it is asked
//! for again.

use std::collections::{HashMap, VecDeque};

/// Names that are kept of one object.
const NAMES_MAX: usize = 8;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the directory.
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
}

/// Places of objects.
#[derive(Debug)]
pub(super) struct Table {
    places: HashMap<u64, Vec<Place>>,
    /// Objects in the order in which they came, also some that have gone.
    order: VecDeque<u64>,
    limit: usize,
}

impl Table {
    /// For `limit` objects.
    pub(super) fn new(limit: usize) -> Table {
        Table { places: HashMap::new(), order: VecDeque::new(), limit: limit.max(1) }
    }

    /// Whether another object would make one go.
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= self.limit
    }

    /// Where an object is; the name that came last comes first.
    pub(super) fn places(&self, ino: u64) -> &[Place] {
        self.places.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// An object has a name.
    pub(super) fn insert(&mut self, ino: u64, parent: u64, name: &[u8]) {
        if let Some(places) = self.places.get_mut(&ino) {
            let known = places.iter().position(|p| p.parent == parent && *p.name == *name);
            match known {
                Some(0) => {}
                Some(index) => places.swap(0, index),
                None => {
                    places.truncate(NAMES_MAX - 1);
                    places.insert(0, Place { parent, name: name.into() });
                }
            }
            return;
        }
        while self.is_full() {
            let Some(first) = self.order.pop_front() else { break };
            self.places.remove(&first);
        }
        self.places.insert(ino, vec![Place { parent, name: name.into() }]);
        self.order.push_back(ino);
        if self.order.len() > 2 * self.limit {
            let places = &self.places;
            self.order.retain(|ino| places.contains_key(ino));
        }
    }

    /// An object does not have a name any more.
    pub(super) fn remove(&mut self, ino: u64, parent: u64, name: &[u8]) {
        if let Some(places) = self.places.get_mut(&ino) {
            places.retain(|p| p.parent != parent || *p.name != *name);
            if places.is_empty() {
                self.places.remove(&ino);
            }
        }
    }

    /// An object is not there any more.
    pub(super) fn remove_all(&mut self, ino: u64) {
        self.places.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_object_with_several_names_keeps_those_that_are_left() {
        let mut t = Table::new(10);
        t.insert(5, 1, b"a");
        t.insert(5, 2, b"b");
        assert_eq!(t.places(5)[0], Place { parent: 2, name: (*b"b").into() });
        t.insert(5, 1, b"a");
        assert_eq!(t.places(5).len(), 2, "a name is kept once");
        assert_eq!(t.places(5)[0].parent, 1);
        t.remove(5, 1, b"a");
        assert_eq!(t.places(5), [Place { parent: 2, name: (*b"b").into() }]);
        t.remove(5, 2, b"b");
        assert!(t.places(5).is_empty() && !t.places.contains_key(&5));
    }

    #[test]
    fn test_full_table_loses_what_came_first() {
        let mut t = Table::new(3);
        (1..=4).for_each(|ino| t.insert(ino, 0, b"n"));
        assert!(t.places(1).is_empty());
        assert_eq!((2..=4).filter(|&i| t.places(i).len() == 1).count(), 3);
    }

    #[test]
    fn test_coming_and_going_takes_no_memory() {
        let mut t = Table::new(4);
        for ino in 0..10_000 {
            t.insert(ino, 0, b"n");
            t.remove(ino, 0, b"n");
        }
        assert!(t.order.len() <= 9 && t.places.is_empty(), "{}", t.order.len());
        (0..100).for_each(|_| (0..50).for_each(|name| t.insert(7, name, b"n")));
        assert_eq!(t.places(7).len(), NAMES_MAX);
    }
}
