//! Descriptors of the files that were read or written last.
//!
//! The descriptors save opening a file for every READ and WRITE, and decide nothing: for each call
//! the export finds anew which file a handle means and whether that file is in the export.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Debug, Default)]
struct Kept {
    read: Option<Arc<OwnedFd>>,
    write: Option<Arc<OwnedFd>>,
    /// The value of the clock at the last use.
    used: u64,
}

/// Descriptors, by the numbers of objects. A caller shares the descriptor it has taken, and so can
/// use it after the eviction here.
#[derive(Debug)]
pub(super) struct Descriptors {
    kept: HashMap<u64, Kept>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    limit: usize,
}

impl Descriptors {
    /// Makes a store for `limit` objects.
    pub(super) fn new(limit: usize) -> Descriptors {
        let limit = limit.max(1);
        Descriptors { kept: HashMap::new(), by_use: BTreeMap::new(), clock: 0, limit }
    }

    pub(super) fn read(&mut self, ino: u64) -> Option<Arc<OwnedFd>> {
        self.used(ino)?.read.clone()
    }

    pub(super) fn write(&mut self, ino: u64) -> Option<Arc<OwnedFd>> {
        self.used(ino)?.write.clone()
    }

    pub(super) fn keep_read(&mut self, ino: u64, fd: Arc<OwnedFd>) {
        self.entry(ino).read = Some(fd);
    }

    pub(super) fn keep_write(&mut self, ino: u64, fd: Arc<OwnedFd>) {
        self.entry(ino).write = Some(fd);
    }

    /// Drops all descriptors of an object.
    pub(super) fn drop_all(&mut self, ino: u64) {
        if let Some(kept) = self.kept.remove(&ino) {
            self.by_use.remove(&kept.used);
        }
    }

    fn used(&mut self, ino: u64) -> Option<&mut Kept> {
        let kept = self.kept.get_mut(&ino)?;
        self.by_use.remove(&kept.used);
        self.clock += 1;
        kept.used = self.clock;
        self.by_use.insert(self.clock, ino);
        Some(kept)
    }

    fn entry(&mut self, ino: u64) -> &mut Kept {
        if !self.kept.contains_key(&ino) {
            while self.kept.len() >= self.limit {
                let Some((_, last)) = self.by_use.pop_first() else { break };
                self.kept.remove(&last);
            }
        }
        self.clock += 1;
        let kept = self.kept.entry(ino).or_default();
        self.by_use.remove(&kept.used);
        kept.used = self.clock;
        self.by_use.insert(self.clock, ino);
        kept
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.kept.len(), self.by_use.len());
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn test_least_recently_used_object_loses_all_its_descriptors() {
        let fd = || Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let mut d = Descriptors::new(2);
        d.keep_read(1, fd());
        d.keep_write(1, fd());
        let second = fd();
        d.keep_read(2, Arc::clone(&second));
        assert!(d.write(1).is_some(), "1 is used after 2");
        d.keep_write(3, fd());
        assert!(d.read(2).is_none() && d.len() == 2);
        assert_eq!(Arc::strong_count(&second), 1, "it is closed but for us");
        assert!(d.read(1).is_some() && d.write(1).is_some() && d.read(3).is_none());
        d.drop_all(1);
        assert!(d.read(1).is_none() && d.len() == 1);
    }
}
