//! Searching for an object of which it is not known where it is.
//!
//! After a restart clients come with handles of before; and what was moved by others than us is not
//! where it was. One search looks at all names below the export, directory by directory, and fills the
//! table with what it sees, so that the next handle need not be searched for. It opens no file.
//!
//! A handle of something that was removed, or that was made up, is found nowhere. So that nobody keeps
//! the server at it, searches take at most one twentieth of the time: who comes too early is told to try
//! again later.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FileType as Kind, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

use super::open::is_of_now;
use super::{Export, Identity, Object, locked, stat_at, stat_of};
use crate::wire::Status;

/// Names one search looks at, at most.
const NAMES_MAX: u64 = 20_000_000;

/// How many times names are looked at before an object is said not to be there.
const WALKS: u32 = 2;

/// How many times as long as a search took there is none.
const REST: u32 = 19;

/// Octets of a directory read at once. Not less than the longest entry.
const BUFFER: usize = 32 << 10;

/// When a search may be.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Not before.
    after: Option<Instant>,
}

impl Export {
    /// Searches for an object.
    pub(super) fn search(&self, id: Identity) -> Result<Object, Status> {
        let mut search = locked(&self.search);
        // Somebody else's search may have found it meanwhile.
        if let Some(object) = self.open_known(id)? {
            return Ok(object);
        }
        let start = Instant::now();
        if search.after.is_some_and(|after| start < after) {
            return Err(Status::JUKEBOX);
        }
        // What is moved while names are looked at may be missed once.
        let (mut found, mut all) = (Ok(None), true);
        for _ in 0..WALKS {
            all &= self.walk(id.ino);
            found = self.open_known(id);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        let took = start.elapsed();
        search.after = Some(start + took.max(Duration::from_micros(100)) * (REST + 1));
        tracing::debug!(ino = id.ino, ?took, all, "searched for an object of an export");
        found?.ok_or_else(|| {
            if !all {
                return Status::JUKEBOX;
            }
            // What has its number now stays known.
            locked(&self.gone).insert(id);
            Status::STALE
        })
    }

    /// Looks at all names. `false` when there are too many, or not all can be looked at now: what was not
    /// found may be there all the same.
    fn walk(&self, wanted: u64) -> bool {
        // Where it is said to be it is not.
        locked(&self.table).remove_all(wanted);
        let mut dirs = VecDeque::from([self.root_id.ino]);
        let mut names = 0;
        while let Some(ino) = dirs.pop_front() {
            let dir = match self.open_walked(ino) {
                Ok(dir) => dir,
                Err(e) if is_of_now(e) => return false,
                Err(_) => continue,
            };
            let read = self.walk_dir(&dir, ino, wanted, &mut dirs, &mut names);
            if names > NAMES_MAX || read.is_err_and(is_of_now) {
                return false;
            }
        }
        true
    }

    /// A directory, if it still is one, and of this file system.
    fn open_walked(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let path = self.open_place(ino)?;
        let stat = stat_of(&path)?;
        if stat.stx_ino != ino || !self.is_here(&stat) {
            return Err(Errno::NOENT);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&path, c".", flags, Mode::empty())
    }

    fn walk_dir(
        &self,
        dir: &OwnedFd,
        ino: u64,
        wanted: u64,
        dirs: &mut VecDeque<u64>,
        names: &mut u64,
    ) -> Result<(), Errno> {
        let mut buffer = Vec::with_capacity(BUFFER);
        buffer.resize(BUFFER, MaybeUninit::uninit());
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            *names += 1;
            let is_dir = match entry.file_type() {
                Kind::Directory => true,
                Kind::Unknown => stat_at(dir, name)
                    .is_ok_and(|s| Kind::from_raw_mode(s.stx_mode.into()) == Kind::Directory),
                _ => false,
            };
            let mut table = locked(&self.table);
            // What clients use stays when there is no room for all: what is wanted, and the
            // directories, which lead to the others.
            if is_dir || entry.ino() == wanted || !table.is_full() {
                table.insert(entry.ino(), ino, name);
            }
            if is_dir {
                dirs.push_back(entry.ino());
            }
        }
        Ok(())
    }
}
