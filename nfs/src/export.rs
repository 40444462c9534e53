//! A directory and what is below it, by handles.
//!
//! A handle names an object by what is the object's own: its number in the file system and when it was
//! made. So it stays what it was through renames, and through restarts of the server, and all names of
//! an object have one handle. No handle has a path in it and none is opened by the kernel's own handles:
//! an object is reached from the export's directory downwards, name by name, without following symbolic
//! links and without leaving the file system, and is then compared with what the handle says. Whatever a
//! client makes up, it cannot lead out.
//!
//! Where objects are is kept in a table of bounded size, which is filled by what clients look up
//! ([`table`]). An object that is not in it (after a restart, or moved behind our back) is searched for
//! ([`search`]).
//!
//! Descriptors are kept for the objects last used ([`descriptors`]). Those of `O_PATH` say which object
//! is meant; what is read and written is opened anew through them, by `/proc/self/fd`, once it is known
//! to be a regular file or a directory: no device or pipe is ever opened.

pub(crate) mod attributes;
mod descriptors;
mod gone;
pub(crate) mod name;
mod open;
mod owner;
mod search;
mod table;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;

use crate::wire::{Fattr, Handle, Status};
use descriptors::Descriptors;
use gone::Gone;
use open::is_of_now;
use search::Search;
use table::Table;

/// What an export may and may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Whether what has changed in directories and attributes is on the disk before the reply, as RFC
    /// 1813 asks. Without, it is as safe as the file system makes it on its own, and faster. Data is on
    /// the disk when a WRITE or a COMMIT says so either way.
    pub sync: bool,
    /// Objects of which descriptors are kept: two for each, or three for those that can only be written.
    pub descriptors: usize,
    /// Objects of which it is known where they are. About 100 octets and the name for each.
    pub places: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { read_only: false, sync: true, descriptors: 200, places: 1 << 20 }
    }
}

/// Why a directory cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// It cannot be opened.
    #[error("cannot export {}: {source}", path.display())]
    Open {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Descriptors cannot be opened anew.
    #[error("cannot open /proc/self/fd, which an NFS export needs: {0}")]
    Proc(std::io::Error),
}

/// What an object is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Its number in the file system.
    pub(crate) ino: u64,
    /// Nanoseconds since 1970 at which it was made; 0 where the file system does not say. Numbers are
    /// used again, and this tells objects of one number apart.
    pub(crate) born: u64,
}

impl Identity {
    fn of(stat: &Statx) -> Identity {
        let born = if stat.stx_mask & StatxFlags::BTIME.bits() == 0 {
            0
        } else {
            let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
            seconds.wrapping_mul(1_000_000_000).wrapping_add(stat.stx_btime.tv_nsec.into())
        };
        Identity { ino: stat.stx_ino, born }
    }
}

/// First octets of every handle: whose it is, and the version of its layout.
const MAGIC: [u8; 4] = *b"HdN1";

/// An object that was found.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) id: Identity,
    /// Of `O_PATH`.
    pub(crate) path: Arc<OwnedFd>,
    /// As they were when it was found.
    pub(crate) attributes: Fattr,
}

/// An exported directory.
#[derive(Debug)]
pub struct Export {
    root: Arc<OwnedFd>,
    root_id: Identity,
    /// Its file system, and how that is mounted, where the kernel says so: a directory can be mounted
    /// in another of its own file system.
    place: ((u32, u32), Option<u64>),
    fsid: u64,
    /// `/proc/self/fd`.
    links: OwnedFd,
    read_only: AtomicBool,
    sync: AtomicBool,
    table: Mutex<Table>,
    descriptors: Mutex<Descriptors>,
    search: Mutex<Search>,
    gone: Mutex<Gone>,
    /// Changes of an object take turns, so that attributes before and after belong together.
    turns: Box<[Mutex<()>]>,
    /// Taken while a mode is changed, also for a moment ([`owner`]).
    modes: Mutex<()>,
    /// Times that data could not be put on the disk.
    losses: AtomicU64,
}

const TURNS: u64 = 64;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn stat_of(fd: impl AsFd) -> Result<Statx, Errno> {
    stat_at(fd, b"")
}

/// Of `name` in `dir`, also when it is a symbolic link; of `dir` itself for no name.
pub(crate) fn stat_at(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID)
}

/// The file system and the mount that an object was reached by. Linux has numbers of mounts since 5.8.
fn place_of(stat: &Statx) -> ((u32, u32), Option<u64>) {
    let mount = (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id);
    ((stat.stx_dev_major, stat.stx_dev_minor), mount)
}

impl Export {
    /// Exports `dir`. A symbolic link in its own path is followed.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a directory.
    pub fn new(dir: &Path, options: Options) -> Result<Export, ExportError> {
        let failed = |e: Errno| ExportError::Open { path: dir.to_owned(), source: e.into() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, dir, flags, Mode::empty()).map_err(failed)?;
        let stat = stat_of(&root).map_err(failed)?;
        let links = openat(CWD, "/proc/self/fd", flags, Mode::empty())
            .map_err(|e| ExportError::Proc(e.into()))?;
        let root_id = Identity::of(&stat);
        Ok(Export {
            root: Arc::new(root),
            root_id,
            place: place_of(&stat),
            // Numbers of devices change from boot to boot; the directory's identity does not.
            fsid: root_id.born.rotate_left(32) ^ root_id.ino,
            links,
            read_only: options.read_only.into(),
            sync: options.sync.into(),
            table: Mutex::new(Table::new(options.places)),
            descriptors: Mutex::new(Descriptors::new(options.descriptors)),
            search: Mutex::default(),
            gone: Mutex::default(),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            modes: Mutex::default(),
            losses: AtomicU64::new(0),
        })
    }

    /// Whether nothing can be changed through it.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    /// Has calls from here on find it read-only or not, and on the disk before the reply or not
    /// ([`Options`]); those under way end as they began.
    pub fn set(&self, read_only: bool, sync: bool) {
        self.read_only.store(read_only, Relaxed);
        self.sync.store(sync, Relaxed);
    }

    /// Whether what has changed is to be on the disk before the reply.
    fn is_sync(&self) -> bool {
        self.sync.load(Relaxed)
    }

    /// The handle of the directory itself.
    pub fn root(&self) -> Handle {
        self.handle(self.root_id)
    }

    pub(crate) const fn root_ino(&self) -> u64 {
        self.root_id.ino
    }

    pub(crate) fn handle(&self, id: Identity) -> Handle {
        let mut octets = [0; 28];
        let numbers = [self.fsid, id.ino, id.born].map(u64::to_be_bytes);
        let all = MAGIC.iter().chain(numbers.as_flattened());
        octets.iter_mut().zip(all).for_each(|(to, &from)| *to = from);
        // At most 64 octets fit.
        Handle::new(&octets).unwrap_or_else(|| unreachable!("28 octets fit into 64"))
    }

    /// What a handle says.
    fn identity(&self, handle: &Handle) -> Result<Identity, Status> {
        let rest = handle.as_slice().strip_prefix(&MAGIC).ok_or(Status::BADHANDLE)?;
        let (numbers, []) = rest.as_chunks::<8>() else { return Err(Status::BADHANDLE) };
        let &[fsid, ino, born] = numbers else { return Err(Status::BADHANDLE) };
        if u64::from_be_bytes(fsid) != self.fsid {
            return Err(Status::STALE);
        }
        Ok(Identity { ino: u64::from_be_bytes(ino), born: u64::from_be_bytes(born) })
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// `BADHANDLE` for what is no handle of ours, `STALE` for what is not there any more, `JUKEBOX` when
    /// it has to be searched for and it is too early for another search, or cannot be opened now.
    pub(crate) fn object(&self, handle: &Handle) -> Result<Object, Status> {
        self.find(self.identity(handle)?)
    }

    fn find(&self, id: Identity) -> Result<Object, Status> {
        if id == self.root_id {
            return self.seen(Arc::clone(&self.root), id);
        }
        let kept = locked(&self.descriptors).path(id.ino);
        if let Some(path) = kept {
            return self.seen(Arc::clone(&path), id).inspect_err(|_| {
                // Another object that has its number now stays known.
                if stat_of(&path).is_ok_and(|stat| Identity::of(&stat) == id) {
                    self.forget(id);
                }
            });
        }
        if locked(&self.gone).contains(id) {
            return Err(Status::STALE);
        }
        match self.open_known(id)? {
            Some(object) => Ok(object),
            None => self.search(id),
        }
    }

    /// The object behind `path`, if it is the one that is meant and still has a name.
    fn seen(&self, path: Arc<OwnedFd>, id: Identity) -> Result<Object, Status> {
        let stat = stat_of(&path)?;
        if Identity::of(&stat) != id || !self.is_here(&stat) || stat.stx_nlink == 0 {
            return Err(Status::STALE);
        }
        let attributes = self.attributes_of(&stat)?;
        Ok(Object { id, path, attributes })
    }

    /// Whether an object is in the export's file system, not in what is mounted below it.
    fn is_here(&self, stat: &Statx) -> bool {
        place_of(stat) == self.place
    }

    pub(crate) fn attributes_of(&self, stat: &Statx) -> Result<Fattr, Status> {
        attributes::fattr(stat, self.fsid).ok_or(Status::IO)
    }

    /// Attributes of an object as they are now.
    pub(crate) fn attributes(&self, object: &Object) -> Option<Fattr> {
        stat_of(&object.path).ok().and_then(|stat| self.attributes_of(&stat).ok())
    }

    /// What has `name` in `dir`, which is remembered to be there.
    pub(crate) fn lookup(&self, dir: &Object, name: &[u8]) -> Result<Object, Status> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = openat(&dir.path, name, flags, Mode::empty())?;
        let stat = stat_of(&path)?;
        if !self.is_here(&stat) {
            // Another file system is mounted there, and is not exported.
            return Err(Status::ACCES);
        }
        let id = Identity::of(&stat);
        let object = Object { id, path: Arc::new(path), attributes: self.attributes_of(&stat)? };
        self.remember(dir, name, id);
        locked(&self.descriptors).keep_path(id.ino, Arc::clone(&object.path));
        Ok(object)
    }

    /// What has `name` in `dir`, without opening it; `None` when it cannot be reached by handle.
    pub(crate) fn glance(&self, dir: &Object, name: &[u8]) -> Option<(Identity, Fattr)> {
        let stat = stat_at(&dir.path, name).ok().filter(|stat| self.is_here(stat))?;
        let attributes = self.attributes_of(&stat).ok()?;
        let id = Identity::of(&stat);
        self.remember(dir, name, id);
        Some((id, attributes))
    }

    /// The directory that `dir` is in; of the export's own, itself.
    pub(crate) fn parent(&self, dir: &Object) -> Result<Object, Status> {
        if dir.id == self.root_id {
            return Ok(dir.clone());
        }
        let parent = locked(&self.table).places(dir.id.ino).first().map(|p| p.parent);
        let parent = match parent {
            Some(parent) => parent,
            None => {
                // It is kept open and not in the table.
                self.search(dir.id)?;
                let found = locked(&self.table).places(dir.id.ino).first().map(|p| p.parent);
                found.ok_or(Status::STALE)?
            }
        };
        let path: Arc<OwnedFd> = match self.open_place(parent) {
            Ok(path) => Arc::new(path),
            Err(e) if is_of_now(e) => return Err(e.into()),
            Err(_) => return Err(Status::STALE),
        };
        let stat = stat_of(&path)?;
        self.seen(path, Identity::of(&stat))
    }

    /// That an object has `name` in `dir`.
    pub(crate) fn remember(&self, dir: &Object, name: &[u8], id: Identity) {
        if id.ino != self.root_id.ino {
            locked(&self.gone).remove(id);
            locked(&self.table).insert(id.ino, dir.id.ino, name);
        }
    }

    /// That an object does not have `name` in `dir` any more.
    pub(crate) fn unname(&self, dir: &Object, name: &[u8], id: Identity) {
        locked(&self.table).remove(id.ino, dir.id.ino, name);
    }

    /// That there is no such object.
    pub(crate) fn forget(&self, id: Identity) {
        locked(&self.gone).insert(id);
        locked(&self.table).remove_all(id.ino);
        locked(&self.descriptors).drop_all(id.ino);
    }

    /// A turn to change an object.
    pub(crate) fn turn(&self, object: &Object) -> MutexGuard<'_, ()> {
        locked(self.turn_of(object))
    }

    /// A turn to change two directories. The order is the same for everybody.
    pub(crate) fn turns(
        &self,
        a: &Object,
        b: &Object,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (low, high) = {
            let (a, b) = (a.id.ino % TURNS, b.id.ino % TURNS);
            (a.min(b), a.max(b))
        };
        let first = locked(self.turn_at(low));
        (first, (high != low).then(|| locked(self.turn_at(high))))
    }

    fn turn_of(&self, object: &Object) -> &Mutex<()> {
        self.turn_at(object.id.ino % TURNS)
    }

    fn turn_at(&self, index: u64) -> &Mutex<()> {
        let index = usize::try_from(index).unwrap_or(0);
        // There are as many as the remainders that there can be.
        self.turns.get(index).unwrap_or_else(|| unreachable!("a remainder of {TURNS}"))
    }

    /// `/proc/self/fd`, and the name of a descriptor in it: the object behind a path descriptor.
    pub(crate) fn link(&self, object: &Object) -> (BorrowedFd<'_>, String) {
        use std::os::fd::AsRawFd;
        (self.links.as_fd(), object.path.as_raw_fd().to_string())
    }
}
