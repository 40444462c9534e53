//! The places of objects: for each object, by inode number, the directory that contains it and its
//! name there.
//!
//! The table says where to look, not what exists there: a reader compares the object that it finds
//! with the one that it looked for. The table has a bound, and evicts files first, the least
//! recently used one first: a file's handle names a directory to look in, so losing a file's place
//! costs reading that directory. Nothing else says where a directory is, so the table keeps
//! directories while there is a file to evict, and as long as it knows another directory in them:
//! whatever the table evicts, the way to each remaining object is complete.

use std::collections::HashMap;

/// The highest number of names that the table keeps of one object.
const NAMES_MAX: usize = 8;

/// The index that refers to no node.
const NONE: u32 = u32::MAX;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory's inode number.
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
}

/// The facts about an object that `insert` records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) ino: u64,
    /// The number of the directory that contains the object.
    pub(super) parent: u64,
    pub(super) name: &'a [u8],
    pub(super) is_dir: bool,
    /// The directory that the object's handles contain, if that is settled.
    pub(super) hint: Option<u64>,
}

/// An object, in one of the queues or in none.
#[derive(Debug)]
struct Node {
    ino: u64,
    place: Place,
    /// Other names of a file.
    more: Vec<Place>,
    /// The directory that the object's handles contain, which is the directory in which the export
    /// first saw the object, so that all names of a file have one handle.
    hint: u64,
    is_dir: bool,
    /// The number of directories in this one that the table knows.
    dirs: u32,
    before: u32,
    after: u32,
}

/// Nodes that the table may evict, the least recently used first.
#[derive(Debug)]
struct Queue {
    first: u32,
    last: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { first: NONE, last: NONE }
    }
}

/// Places of objects.
#[derive(Debug)]
pub(super) struct Table {
    root: u64,
    limit: usize,
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_ino: HashMap<u64, u32>,
    files: Queue,
    /// Directories in which the table knows no directory.
    leaves: Queue,
}

impl Table {
    /// Makes a table for `limit` objects below the directory numbered `root`, which has no place
    /// itself.
    pub(super) fn new(root: u64, limit: usize) -> Table {
        let limit = limit.clamp(1, NONE as usize - 1);
        Table {
            root,
            limit,
            nodes: Vec::new(),
            free: Vec::new(),
            by_ino: HashMap::new(),
            files: Queue::default(),
            leaves: Queue::default(),
        }
    }

    /// Returns true if inserting another object would evict one.
    pub(super) fn is_full(&self) -> bool {
        self.by_ino.len() >= self.limit
    }

    /// Returns the places of an object, the latest name first, and marks the object as used now.
    pub(super) fn places(&mut self, ino: u64) -> impl Iterator<Item = &Place> {
        let found = self.by_ino.get(&ino).copied();
        if let Some(index) = found {
            self.unlink(index);
            self.link(index);
        }
        let node = found.and_then(|index| self.nodes.get(index as usize));
        node.into_iter().flat_map(|node| std::iter::once(&node.place).chain(&node.more))
    }

    /// Returns the place of a directory.
    pub(super) fn place_of_dir(&self, ino: u64) -> Option<&Place> {
        let node = self.nodes.get(*self.by_ino.get(&ino)? as usize)?;
        node.is_dir.then_some(&node.place)
    }

    /// Records that an object has a name. Returns the directory that the object's handles contain.
    pub(super) fn insert(&mut self, entry: Entry<'_>) -> u64 {
        let Entry { ino, parent, name, is_dir, hint } = entry;
        let hint = hint.unwrap_or(if is_dir { 0 } else { parent });
        if parent != self.root && !self.by_ino.contains_key(&parent) {
            // Without its parent in the table, no way leads to the object.
            return hint;
        }
        let known = self.by_ino.get(&ino).copied();
        if let Some(index) = known
            && self.node(index).is_some_and(|node| node.is_dir != is_dir)
        {
            // Another object has taken this number.
            self.remove_all(ino);
        } else if let Some(index) = known {
            self.unlink(index);
            let moved = self.node(index).map(|node| node.take_name(parent, name));
            if let Some(Some(old)) = moved {
                self.count_dir(old, false);
                self.count_dir(parent, true);
            }
            self.link(index);
            return self.node(index).map_or(hint, |node| node.hint);
        }
        while self.is_full() {
            let first = match (self.files.first, self.leaves.first) {
                (NONE, leaf) => leaf,
                (file, _) => file,
            };
            match self.node(first).map(|node| node.ino) {
                Some(evicted) if evicted != parent => self.remove_all(evicted),
                _ => return hint,
            }
        }
        let place = Place { parent, name: name.into() };
        let more = Vec::new();
        let node = Node { ino, place, more, hint, is_dir, dirs: 0, before: NONE, after: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(free) = self.node(index) {
                    *free = node;
                }
                index
            }
            None => {
                self.nodes.push(node);
                // `limit` is below `NONE`, so the index fits.
                u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
            }
        };
        self.by_ino.insert(ino, index);
        self.link(index);
        if is_dir {
            self.count_dir(parent, true);
        }
        hint
    }

    /// Records that an object does not have a name any more.
    pub(super) fn remove(&mut self, ino: u64, parent: u64, name: &[u8]) {
        let Some(&index) = self.by_ino.get(&ino) else { return };
        let Some(node) = self.node(index) else { return };
        node.more.retain(|p| p.parent != parent || *p.name != *name);
        if node.place.parent == parent && *node.place.name == *name {
            if node.more.is_empty() {
                self.remove_all(ino);
            } else {
                node.place = node.more.remove(0);
            }
        }
    }

    /// Removes an object that does not exist any more.
    pub(super) fn remove_all(&mut self, ino: u64) {
        let Some(index) = self.by_ino.remove(&ino) else { return };
        self.unlink(index);
        self.free.push(index);
        let Some(node) = self.node(index) else { return };
        node.place.name = Box::default();
        node.more = Vec::new();
        let (parent, is_dir) = (node.place.parent, node.is_dir);
        if is_dir {
            self.count_dir(parent, false);
        }
    }

    fn node(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    /// Counts one directory more that the table knows in `dir`, or one less.
    fn count_dir(&mut self, dir: u64, more: bool) {
        let Some(&index) = self.by_ino.get(&dir) else { return };
        self.unlink(index);
        if let Some(node) = self.node(index) {
            node.dirs = if more { node.dirs + 1 } else { node.dirs.saturating_sub(1) };
        }
        self.link(index);
    }

    /// Puts a node at the end of its queue, if the table may evict the node.
    fn link(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        let queue = match (node.is_dir, node.dirs) {
            (false, _) => &mut self.files,
            (true, 0) => &mut self.leaves,
            (true, _) => return,
        };
        (node.before, node.after) = (queue.last, NONE);
        let last = std::mem::replace(&mut queue.last, index);
        if last == NONE {
            queue.first = index;
        } else if let Some(last) = self.node(last) {
            last.after = index;
        }
    }

    /// Takes a node out of its queue, if the node is in one.
    fn unlink(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        let queue = if node.is_dir { &mut self.leaves } else { &mut self.files };
        let (before, after) = (node.before, node.after);
        (node.before, node.after) = (NONE, NONE);
        if queue.first == index {
            queue.first = after;
        }
        if queue.last == index {
            queue.last = before;
        }
        if let Some(before) = self.node(before) {
            before.after = after;
        }
        if let Some(after) = self.node(after) {
            after.before = before;
        }
    }
}

impl Node {
    /// Makes a name the first one. For a directory, which has only one name, returns its previous
    /// parent.
    fn take_name(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        if self.place.parent == parent && *self.place.name == *name {
            return None;
        }
        let new = Place { parent, name: name.into() };
        let old = std::mem::replace(&mut self.place, new);
        if self.is_dir {
            return Some(old.parent);
        }
        self.more.retain(|place| *place != self.place);
        self.more.insert(0, old);
        self.more.truncate(NAMES_MAX - 1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 1;

    fn file(ino: u64, parent: u64, name: &[u8]) -> Entry<'_> {
        Entry { ino, parent, name, is_dir: false, hint: None }
    }

    fn dir(ino: u64, parent: u64) -> Entry<'static> {
        Entry { ino, parent, name: b"dir", is_dir: true, hint: None }
    }

    fn names(t: &mut Table, ino: u64) -> Vec<(u64, Vec<u8>)> {
        t.places(ino).map(|place| (place.parent, place.name.to_vec())).collect()
    }

    /// Checks that each node is in a place where the table finds it, and in a queue if the table
    /// may evict it.
    fn check(t: &Table) {
        let mut queued = 0;
        for (queue, is_dir) in [(&t.files, false), (&t.leaves, true)] {
            let (mut at, mut before) = (queue.first, NONE);
            while at != NONE {
                let node = &t.nodes[at as usize];
                assert_eq!((node.before, node.is_dir), (before, is_dir));
                assert!(!is_dir || node.dirs == 0);
                assert_eq!(t.by_ino[&node.ino], at);
                (before, at) = (at, node.after);
                queued += 1;
            }
            assert_eq!(queue.last, before);
        }
        let nodes = || t.by_ino.values().map(|&index| &t.nodes[index as usize]);
        assert_eq!(queued, nodes().filter(|node| !node.is_dir || node.dirs == 0).count());
        for node in nodes() {
            let parent = node.place.parent;
            assert!(parent == ROOT || !node.is_dir || t.by_ino.contains_key(&parent));
            let below = nodes().filter(|n| n.is_dir && n.place.parent == node.ino).count();
            assert_eq!(node.dirs as usize, below);
        }
        assert!(t.by_ino.len() <= t.limit && t.nodes.len() <= t.limit);
    }

    #[test]
    fn test_object_with_several_names_keeps_its_remaining_names() {
        let mut t = Table::new(ROOT, 10);
        t.insert(dir(2, ROOT));
        assert_eq!(t.insert(file(5, ROOT, b"a")), ROOT);
        assert_eq!(t.insert(file(5, 2, b"b")), ROOT, "all names have one handle");
        assert_eq!(names(&mut t, 5), [(2, b"b".to_vec()), (ROOT, b"a".to_vec())]);
        t.insert(file(5, ROOT, b"a"));
        assert_eq!(names(&mut t, 5), [(ROOT, b"a".to_vec()), (2, b"b".to_vec())], "kept once");
        t.remove(5, ROOT, b"a");
        assert_eq!(names(&mut t, 5), [(2, b"b".to_vec())]);
        t.remove(5, 2, b"b");
        assert!(names(&mut t, 5).is_empty() && !t.by_ino.contains_key(&5));
        check(&t);
    }

    #[test]
    fn test_least_recently_used_file_is_evicted_and_directories_stay() {
        let mut t = Table::new(ROOT, 5);
        t.insert(dir(2, ROOT));
        t.insert(dir(3, 2));
        (10..13).for_each(|ino| {
            t.insert(file(ino, 3, b"n"));
        });
        assert_eq!(names(&mut t, 10).len(), 1, "10 is used after 11");
        t.insert(file(13, 3, b"n"));
        let known = |t: &mut Table| (10..14).map(|i| names(t, i).len()).collect::<Vec<_>>();
        assert_eq!(known(&mut t), [1, 0, 1, 1]);
        (20..1000).for_each(|ino| {
            t.insert(file(ino, 3, b"n"));
            check(&t);
        });
        assert!(t.place_of_dir(2).is_some() && t.place_of_dir(3).is_some());
        assert!(t.place_of_dir(999).is_none(), "it is a file");
    }

    #[test]
    fn test_only_directories_with_none_below_are_evicted() {
        let mut t = Table::new(ROOT, 4);
        for ino in 2..6 {
            t.insert(dir(ino, ino - 1));
        }
        assert!(t.is_full());
        // The only directory that the table could evict is the parent of the new one.
        t.insert(dir(6, 5));
        assert!(t.place_of_dir(6).is_none() && t.place_of_dir(5).is_some());
        t.insert(dir(7, ROOT));
        assert!(t.place_of_dir(7).is_some() && t.place_of_dir(5).is_none());
        check(&t);
        t.insert(dir(8, 99));
        assert!(t.place_of_dir(8).is_none(), "there is no way to it");
    }

    #[test]
    fn test_table_stays_consistent_under_random_adds_removes_and_moves() {
        let mut t = Table::new(ROOT, 40);
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let (ino, parent) = (2 + random(100), 1 + random(30));
            match random(10) {
                // Directories are below directories of smaller numbers, so that they form no
                // circle.
                0..4 if parent < ino && ino < 32 => _ = t.insert(dir(ino, parent)),
                0..8 if ino >= 32 => _ = t.insert(file(ino, parent, b"n")),
                8 if t.place_of_dir(ino).is_none() => t.remove(ino, parent, b"n"),
                9 => _ = t.places(ino).count(),
                _ => {}
            }
            check(&t);
        }
        for ino in 200..10_000 {
            t.insert(file(ino, ROOT, b"n"));
            t.remove(ino, ROOT, b"n");
        }
        (0..100).for_each(|_| {
            (0..50u8).for_each(|name| _ = t.insert(file(7000, ROOT, &[name])));
        });
        assert_eq!(names(&mut t, 7000).len(), NAMES_MAX);
        check(&t);
    }
}
