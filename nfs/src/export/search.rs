//! Searches for an object whose place the table does not know.
//!
//! A file's handle names the directory in which the file was, so the search looks in that directory
//! first. A directory may be in no place that the table knows, after a restart or because a process
//! of the host moved it. Such a directory takes a walk: one thread looks at all names below the
//! export, directory by directory, and fills the table with what it sees, so that the next handle
//! needs no search. The walk opens no file. The call that asked waits a moment, and asks the client
//! to come again (`JUKEBOX`) when the walk takes longer.
//!
//! No walk finds the object of a handle that was made up, or whose object was removed. To keep
//! clients from occupying the server with such handles, walks and fruitless looks at directories
//! take at most one twentieth of the time: a call that comes too early gets `JUKEBOX`.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType as Kind, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

use super::open::is_of_now;
use super::table::Entry;
use super::{Export, Identity, Object, locked, stat_at, stat_of};
use crate::wire::Status;

/// The highest number of names in one walk.
const NAMES_MAX: u64 = 20_000_000;

/// How many times a walk looks at all names before it reports that an object does not exist.
const WALKS: u32 = 2;

/// The pause after a search, as a multiple of the search's own duration.
const REST: u32 = 19;

/// How long a call waits for a walk. A walk through a hundred thousand names takes less.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of a directory read at once; at least as many as the longest entry takes.
const BUFFER: usize = 32 << 10;

/// How many names after the found one the search remembers: a client that goes through a directory
/// asks for them next.
const AHEAD: usize = 1024;

/// The state of walks, and the earliest time of the next one.
#[derive(Debug, Default)]
pub(super) struct Search {
    state: Mutex<State>,
    /// Signals that a walk has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// No walk begins before this time.
    after: Option<Instant>,
    /// The search does not look in a single directory before this time.
    look_after: Option<Instant>,
    /// When the last walk began.
    since: Option<Instant>,
    /// The number of walks that have begun; `ended` counts the walks that have ended.
    begun: u64,
    ended: u64,
}

/// Counts a walk as ended when dropped, also by a panic.
struct Walking<'a>(&'a Search);

impl Drop for Walking<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).ended += 1;
        self.0.ended.notify_all();
    }
}

fn rest(start: Instant) -> Option<Instant> {
    Some(start + start.elapsed().max(Duration::from_micros(100)) * (REST + 1))
}

impl Export {
    /// Looks for a file in the directory that its handle names. Returns `None` when the file is not
    /// there, or when it is too early for another look.
    ///
    /// # Errors
    /// `JUKEBOX` when the directory or file cannot be opened now.
    pub(super) fn look_in(&self, dir: u64, id: Identity) -> Result<Option<Object>, Status> {
        let start = Instant::now();
        let may = locked(&self.search.state).look_after.is_none_or(|after| after <= start);
        if dir == 0 || !may {
            return Ok(None);
        }
        let fd = match self.open_walked(dir) {
            Ok(fd) => fd,
            Err(e) if is_of_now(e) => return Err(e.into()),
            Err(_) => return Ok(None),
        };
        let (mut found, mut ahead) = (None, 0);
        let read = each_name(&fd, |name, ino, is_dir| {
            if ino == id.ino {
                found = Some((name.to_vec(), is_dir));
            } else if found.is_some() {
                self.remember_name(Entry { ino, parent: dir, name, is_dir, hint: None });
                ahead += 1;
            }
            ahead < AHEAD
        });
        if let Some((name, is_dir)) = found {
            // Inserted last, so that the names after it cannot evict it.
            self.remember_name(Entry { ino: id.ino, parent: dir, name: &name, is_dir, hint: None });
        }
        if read.is_err_and(is_of_now) {
            return Err(Status::JUKEBOX);
        }
        let object = self.open_known(id, dir)?;
        if object.is_none() {
            locked(&self.search.state).look_after = rest(start);
        }
        Ok(object)
    }

    /// Makes a thread search for an object, and waits a moment for the outcome.
    ///
    /// # Errors
    /// `STALE` when the object does not exist, `JUKEBOX` when the search has not decided that yet.
    pub(super) fn search(&self, id: Identity, hint: u64) -> Result<Object, Status> {
        let mut state = locked(&self.search.state);
        // Another call's walk may have found the object meanwhile.
        if let Some(object) = self.open_known(id, hint)? {
            return Ok(object);
        }
        if state.begun == state.ended {
            if state.after.is_some_and(|after| Instant::now() < after) {
                return Err(Status::JUKEBOX);
            }
            let me = Weak::clone(&self.me);
            let walk = move || {
                if let Some(export) = me.upgrade() {
                    export.walk_for(id, hint);
                }
            };
            let spawned = thread::Builder::new().name("nfs-search".into()).spawn(walk);
            spawned.map_err(|_| Status::JUKEBOX)?;
            state.begun += 1;
            state.since = Some(Instant::now());
        }
        // All calls that wait for one walk share its start, so each waits at most `PATIENCE` from
        // there.
        let (since, walk) = (state.since, state.begun);
        while state.ended < walk {
            let left =
                since.map_or(Duration::ZERO, |since| PATIENCE.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Err(Status::JUKEBOX);
            }
            let waited = self.search.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        if locked(&self.gone).contains(id) {
            return Err(Status::STALE);
        }
        let found = match self.open_known(id, hint)? {
            // The walk was for another object, but has seen all directories.
            None => self.look_in(hint, id)?,
            found => found,
        };
        found.ok_or(Status::JUKEBOX)
    }

    /// Looks at all names for an object, and marks the object as gone if no name leads to it.
    fn walk_for(&self, id: Identity, hint: u64) {
        let walking = Walking(&self.search);
        let start = Instant::now();
        // A walk may miss an object that moves during the walk, so a second walk looks again.
        let (mut found, mut all) = (Ok(None), true);
        for _ in 0..WALKS {
            all &= self.walk(id.ino);
            found = self.open_known(id, hint);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        if matches!(found, Ok(None)) && all {
            // Only this identity is marked: another object that has the number now stays known.
            locked(&self.gone).insert(id);
        }
        tracing::debug!(ino = id.ino, took = ?start.elapsed(), all, "searched for an object of an export");
        locked(&self.search.state).after = rest(start);
        drop(walking);
    }

    /// Looks at all names. Returns false when there are too many, or when not all can be looked at
    /// now: the object may exist even if this walk did not find it.
    fn walk(&self, wanted: u64) -> bool {
        let mut dirs = VecDeque::from([self.root_id.ino]);
        let (mut names, mut all) = (0, true);
        while let Some(parent) = dirs.pop_front() {
            let dir = match self.open_walked(parent) {
                Ok(dir) => dir,
                Err(e) if is_of_now(e) => return false,
                Err(_) => {
                    // A directory exists though the table had no room for it; any other is gone by
                    // now.
                    all &= self.is_known_dir(parent);
                    continue;
                }
            };
            let read = each_name(&dir, |name, ino, is_dir| {
                names += 1;
                let mut table = locked(&self.table);
                // When there is no room for all, files that clients use stay in the table. The walk
                // inserts the wanted object, and the directories, which lead to the other objects.
                if ino != self.root_id.ino && (is_dir || ino == wanted || !table.is_full()) {
                    table.insert(Entry { ino, parent, name, is_dir, hint: None });
                }
                if is_dir {
                    dirs.push_back(ino);
                }
                names <= NAMES_MAX
            });
            if names > NAMES_MAX || read.is_err_and(is_of_now) {
                return false;
            }
        }
        all
    }

    fn is_known_dir(&self, ino: u64) -> bool {
        ino == self.root_id.ino || locked(&self.table).place_of_dir(ino).is_some()
    }

    /// Opens a directory for reading, if the object still is a directory and of this file system.
    fn open_walked(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let path = self.open_dir_place(ino)?;
        let stat = stat_of(&path)?;
        if stat.stx_ino != ino || !self.is_here(&stat) {
            return Err(Errno::NOENT);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&path, c".", flags, Mode::empty())
    }
}

/// Calls `each` with every name in a directory, its number, and whether it is a directory, until
/// `each` returns false.
fn each_name(dir: &OwnedFd, mut each: impl FnMut(&[u8], u64, bool) -> bool) -> Result<(), Errno> {
    let mut buffer = Vec::with_capacity(BUFFER);
    buffer.resize(BUFFER, MaybeUninit::uninit());
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            Kind::Directory => true,
            Kind::Unknown => stat_at(dir, name)
                .is_ok_and(|s| Kind::from_raw_mode(s.stx_mode.into()) == Kind::Directory),
            _ => false,
        };
        if !each(name, entry.ino(), is_dir) {
            break;
        }
    }
    Ok(())
}
