//! Searching for an object of which it is not known where it is.
//!
//! A handle of a file names the directory the file was in, so that one is looked at first. A directory that is
//! in no place the table knows, after a restart or because a process of the host moved it, takes a walk: one
//! thread looks at all names below the export, directory by directory, and fills the table with what it sees,
//! so that the next handle need not be searched for. It opens no file. The call that asked waits a moment, and
//! is told to come again (`JUKEBOX`) when the walk takes longer.
//!
//! A handle of something that was removed, or that was made up, is found nowhere. So that no client keeps the
//! server at it, walks, and looks at directories that were in vain, take at most one twentieth of the time: a
//! call that comes too early is told to come again.

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

/// Names one walk looks at, at most.
const NAMES_MAX: u64 = 20_000_000;

/// How many times names are looked at before an object is said not to be there.
const WALKS: u32 = 2;

/// How many times as long as a search took there is none.
const REST: u32 = 19;

/// How long a call waits for a walk. A walk through a hundred thousand names takes less.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of a directory read at once. Not less than the longest entry.
const BUFFER: usize = 32 << 10;

/// Names behind the one that was looked for which are remembered: a client that goes through a directory asks
/// for them next.
const AHEAD: usize = 1024;

/// Walks, and when one may be.
#[derive(Debug, Default)]
pub(super) struct Search {
    state: Mutex<State>,
    /// A walk has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// No walk begins before.
    after: Option<Instant>,
    /// No look at a single directory before.
    look_after: Option<Instant>,
    /// When the last walk began.
    since: Option<Instant>,
    /// Walks that have begun, and that have ended.
    begun: u64,
    ended: u64,
}

/// Ends a walk, also by a panic.
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
    /// Looks for a file in the directory that its handle names. `None` when it is not there, or cannot be
    /// looked for now.
    ///
    /// # Errors
    /// `JUKEBOX`, when something cannot be opened now.
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
            // Last, so that the others have not evicted it.
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

    /// Has a thread search for an object.
    ///
    /// # Errors
    /// `STALE` when it is not there, `JUKEBOX` when that cannot be said now.
    pub(super) fn search(&self, id: Identity, hint: u64) -> Result<Object, Status> {
        let mut state = locked(&self.search.state);
        // Another call's walk may have found it meanwhile.
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
        // However many calls come, a walk has each wait for as long once.
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

    /// Looks at all names for an object, and says of one that is not there that it is gone.
    fn walk_for(&self, id: Identity, hint: u64) {
        let walking = Walking(&self.search);
        let start = Instant::now();
        // An object that is moved while names are looked at may be missed once.
        let (mut found, mut all) = (Ok(None), true);
        for _ in 0..WALKS {
            all &= self.walk(id.ino);
            found = self.open_known(id, hint);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        if matches!(found, Ok(None)) && all {
            // What has its number now stays known.
            locked(&self.gone).insert(id);
        }
        tracing::debug!(ino = id.ino, took = ?start.elapsed(), all, "searched for an object of an export");
        locked(&self.search.state).after = rest(start);
        drop(walking);
    }

    /// Looks at all names. `false` when there are too many, or not all can be looked at now: what was not
    /// found may be there all the same.
    fn walk(&self, wanted: u64) -> bool {
        let mut dirs = VecDeque::from([self.root_id.ino]);
        let (mut names, mut all) = (0, true);
        while let Some(parent) = dirs.pop_front() {
            let dir = match self.open_walked(parent) {
                Ok(dir) => dir,
                Err(e) if is_of_now(e) => return false,
                Err(_) => {
                    // One that the table had no room for is there; any other is not.
                    all &= self.is_known_dir(parent);
                    continue;
                }
            };
            let read = each_name(&dir, |name, ino, is_dir| {
                names += 1;
                let mut table = locked(&self.table);
                // Files that clients use stay when there is no room for all: what is wanted goes in, and the
                // directories, which lead to the others.
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

    /// A directory, if it still is one, and of this file system.
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

/// Calls `each` with every name in a directory, its number, and whether it is a directory, until that returns
/// false.
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
