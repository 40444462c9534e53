//! A directory and what is below it, by handles.
//!
//! A handle names an object by what is the object's own: its number in the file system and when it was
//! made. So it stays what it was through renames, and through restarts of the server. No handle has a path in
//! it and none is opened by the kernel's own handles: for every call an object is reached anew from the
//! export's directory downwards, name by name, without following symbolic links and without leaving the file
//! system, and is then compared with what the handle says. Whatever a client makes up cannot lead out, and
//! an object that a process of the host moves out of the directory is out of reach for every call that comes
//! after.
//!
//! A service may have several exports. A handle says which one it is of, and a directory that is exported by itself
//! is no part of the one it lies in: the outer export lists its name, and enters it no more than a file system that
//! is mounted there. So what lies in both is only reached by the rules of the inner one ([`others`]).
//!
//! Where objects are is kept in a table of bounded size, which is filled by what clients look up ([`table`]).
//! The handle of a file also has the number of the directory it was in when it was first seen, where it is
//! looked for if the table has evicted it. What is in neither place (moved behind our back) and a directory
//! that is not in the table (after a restart) are searched for ([`search`]).
//!
//! Descriptors are kept for the files last used ([`descriptors`]). What is read and written is opened through
//! a descriptor of `O_PATH`, by `/proc/self/fd`, once it is known to be a regular file or a directory: no device
//! or pipe is ever opened.

pub(crate) mod attributes;
mod descriptors;
pub(crate) mod flush;
mod gone;
pub(crate) mod name;
mod open;
mod others;
mod owner;
mod search;
mod table;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;

use crate::caller::as_server;
use crate::wire::{Fattr, FileType, Handle, Status};
use descriptors::Descriptors;
use flush::{Disk, Flusher};
use gone::Gone;
use open::is_of_now;
use others::Others;
use search::Search;
use table::{Entry, Table};

/// What an export may and may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Whether what has changed in directories and attributes is on the disk before the reply, as RFC
    /// 1813 asks. Without, it is as safe as the file system makes it on its own, and faster. Data is on
    /// the disk when a WRITE or a COMMIT says so either way.
    pub sync: bool,
    /// Files of which descriptors are kept: one for each, or two for those that can only be written.
    pub descriptors: usize,
    /// Objects of which it is known where they are, of 150 bytes and a name each. Directories are evicted after
    /// files: all of them should have room.
    pub places: usize,
    /// Threads that put changes on the disk: as many objects at a time. They are started when they are
    /// needed.
    pub flushers: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { read_only: false, sync: true, descriptors: 200, places: 1 << 20, flushers: 16 }
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
    /// The number of the directory that handles of a file name; 0 for a directory.
    hint: u64,
    /// Of `O_PATH`.
    pub(crate) path: Arc<OwnedFd>,
    /// As they were when it was found.
    pub(crate) attributes: Fattr,
}

/// An exported directory.
#[derive(Debug)]
pub struct Export {
    /// Itself, for a thread that searches.
    me: Weak<Export>,
    root: Arc<OwnedFd>,
    root_id: Identity,
    /// Its file system, and how that is mounted, where the kernel says so: a directory can be mounted
    /// in another of its own file system.
    place: Place,
    /// Clients take it for the number of a file system.
    fsid: u64,
    others: Others,
    /// `/proc/self/fd`.
    links: OwnedFd,
    /// The kernel has no `openat2`.
    name_by_name: AtomicBool,
    read_only: AtomicBool,
    sync: AtomicBool,
    table: Mutex<Table>,
    descriptors: Mutex<Descriptors>,
    search: Search,
    gone: Mutex<Gone>,
    /// Changes of an object take turns, so that attributes before and after belong together.
    turns: Box<[Mutex<()>]>,
    /// Taken while a mode is changed, also for a moment ([`owner`]).
    modes: Mutex<()>,
    /// Puts changes on the disk.
    flusher: Flusher,
}

const TURNS: u64 = 64;

/// FNV-1a: a number for a name, the same at every start.
fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The number of the export that a handle says it is of.
fn fsid_of(handle: &Handle) -> Option<u64> {
    let fsid = handle.as_slice().strip_prefix(&MAGIC)?.first_chunk()?;
    Some(u64::from_be_bytes(*fsid))
}

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

/// A file system and a mount. Linux has numbers of mounts since 5.8.
type Place = ((u32, u32), Option<u64>);

/// The file system and the mount that an object was reached by.
fn place_of(stat: &Statx) -> Place {
    let mount = (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id);
    ((stat.stx_dev_major, stat.stx_dev_minor), mount)
}

impl Export {
    /// Exports `dir` by the name `path`, on a disk that says itself when changes are on it. A symbolic link in the
    /// path of the directory is followed.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a directory.
    pub(crate) fn with_disk(
        dir: &Path,
        path: &[u8],
        options: Options,
        disk: Arc<dyn Disk>,
    ) -> Result<Arc<Export>, ExportError> {
        let failed = |e: Errno| ExportError::Open { path: dir.to_owned(), source: e.into() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, dir, flags, Mode::empty()).map_err(failed)?;
        let stat = stat_of(&root).map_err(failed)?;
        let links = openat(CWD, "/proc/self/fd", flags, Mode::empty())
            .map_err(|e| ExportError::Proc(e.into()))?;
        let root_id = Identity::of(&stat);
        Ok(Arc::new_cyclic(|me| Export {
            me: Weak::clone(me),
            root: Arc::new(root),
            root_id,
            place: place_of(&stat),
            // Numbers of devices change from boot to boot; the directory's identity does not. Its name is in it
            // for a directory that is exported twice, and for copies of a file system, as a snapshot is one.
            fsid: root_id.born.rotate_left(32) ^ root_id.ino ^ hash(path),
            others: Others::default(),
            links,
            name_by_name: false.into(),
            read_only: options.read_only.into(),
            sync: options.sync.into(),
            table: Mutex::new(Table::new(root_id.ino, options.places)),
            descriptors: Mutex::new(Descriptors::new(options.descriptors)),
            search: Search::default(),
            gone: Mutex::default(),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            modes: Mutex::default(),
            flusher: Flusher::new(disk, options.flushers),
        }))
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
        self.handle_of(self.root_id, 0)
    }

    pub(crate) const fn root_ino(&self) -> u64 {
        self.root_id.ino
    }

    /// The number by which handles tell exports apart.
    pub(crate) const fn fsid(&self) -> u64 {
        self.fsid
    }

    /// Returns true if a handle says that it is of this export.
    pub(crate) fn is_named_by(&self, handle: &Handle) -> bool {
        fsid_of(handle) == Some(self.fsid)
    }

    pub(crate) fn handle(&self, object: &Object) -> Handle {
        self.handle_of(object.id, object.hint)
    }

    /// A handle: of a directory three numbers, and of everything else the directory to look in as well.
    fn handle_of(&self, id: Identity, hint: u64) -> Handle {
        let mut bytes = [0; 36];
        let numbers = [self.fsid, id.ino, id.born, hint].map(u64::to_be_bytes);
        let all = MAGIC.iter().chain(numbers.as_flattened());
        bytes.iter_mut().zip(all).for_each(|(to, &from)| *to = from);
        let length = if hint == 0 { 28 } else { 36 };
        // At most 64 bytes fit.
        let handle = bytes.get(..length).and_then(Handle::new);
        handle.unwrap_or_else(|| unreachable!("36 bytes fit into 64"))
    }

    /// What a handle says: the object, and the directory to look in.
    fn identity(&self, handle: &Handle) -> Result<(Identity, u64), Status> {
        let rest = handle.as_slice().strip_prefix(&MAGIC).ok_or(Status::BADHANDLE)?;
        let (numbers, []) = rest.as_chunks::<8>() else { return Err(Status::BADHANDLE) };
        let number = |bytes: &[u8; 8]| u64::from_be_bytes(*bytes);
        let (fsid, ino, born, hint) = match numbers {
            [fsid, ino, born] => (number(fsid), number(ino), number(born), 0),
            [fsid, ino, born, hint] => (number(fsid), number(ino), number(born), number(hint)),
            _ => return Err(Status::BADHANDLE),
        };
        if fsid != self.fsid {
            return Err(Status::STALE);
        }
        Ok((Identity { ino, born }, hint))
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// `BADHANDLE` for what is no handle of ours, `STALE` for what is not there any more, `JUKEBOX` when
    /// it has to be searched for and it is too early for another search, or cannot be opened now.
    pub(crate) fn object(&self, handle: &Handle) -> Result<Object, Status> {
        let (id, hint) = self.identity(handle)?;
        as_server(|| self.find(id, hint))
    }

    fn find(&self, id: Identity, hint: u64) -> Result<Object, Status> {
        if id == self.root_id {
            return self.seen(Arc::clone(&self.root), id, 0);
        }
        if let Some(object) = self.open_known(id, hint)? {
            return Ok(object);
        }
        if locked(&self.gone).contains(id) {
            return Err(Status::STALE);
        }
        match self.look_in(hint, id)? {
            Some(object) => Ok(object),
            None => self.search(id, hint),
        }
    }

    /// The object behind `path`, if it is the one that is meant and still has a name.
    fn seen(&self, path: Arc<OwnedFd>, id: Identity, hint: u64) -> Result<Object, Status> {
        let stat = stat_of(&path)?;
        if Identity::of(&stat) != id || !self.is_here(&stat) || stat.stx_nlink == 0 {
            return Err(Status::STALE);
        }
        let attributes = self.attributes_of(&stat)?;
        Ok(Object { id, hint, path, attributes })
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
        let path = openat(&dir.path, name, open::PATH, Mode::empty())?;
        let stat = stat_of(&path)?;
        if !self.is_here(&stat) {
            // Another file system is mounted there, and is not exported.
            return Err(Status::ACCES);
        }
        let (id, attributes) = (Identity::of(&stat), self.attributes_of(&stat)?);
        if self.others.have_root(id) {
            return Err(Status::ACCES);
        }
        let hint = self.remember(dir, name, id, attributes.kind);
        Ok(Object { id, hint, path: Arc::new(path), attributes })
    }

    /// What has `name` in `dir`, without opening it; `None` when it cannot be reached by handle.
    pub(crate) fn glance(&self, dir: &Object, name: &[u8]) -> Option<(Handle, Fattr)> {
        let stat = stat_at(&dir.path, name).ok().filter(|stat| self.is_here(stat))?;
        let attributes = self.attributes_of(&stat).ok()?;
        let id = Identity::of(&stat);
        if self.others.have_root(id) {
            return None;
        }
        let hint = self.remember(dir, name, id, attributes.kind);
        Some((self.handle_of(id, hint), attributes))
    }

    /// The directory that `dir` is in; of the export's own, itself.
    pub(crate) fn parent(&self, dir: &Object) -> Result<Object, Status> {
        if dir.id == self.root_id {
            return Ok(dir.clone());
        }
        as_server(|| self.parent_of(dir))
    }

    fn parent_of(&self, dir: &Object) -> Result<Object, Status> {
        // It was found by its place.
        let place = locked(&self.table).place_of_dir(dir.id.ino).map(|place| place.parent);
        let path = match self.open_dir_place(place.ok_or(Status::JUKEBOX)?) {
            Ok(path) => Arc::new(path),
            Err(e) if is_of_now(e) => return Err(e.into()),
            Err(_) => return Err(Status::STALE),
        };
        let stat = stat_of(&path)?;
        self.seen(path, Identity::of(&stat), 0)
    }

    /// That an object has `name` in `dir`. Gives the directory that handles of it name.
    fn remember(&self, dir: &Object, name: &[u8], id: Identity, kind: FileType) -> u64 {
        locked(&self.gone).remove(id);
        let is_dir = kind == FileType::Directory;
        self.remember_name(Entry { ino: id.ino, parent: dir.id.ino, name, is_dir, hint: None })
    }

    fn remember_name(&self, entry: Entry<'_>) -> u64 {
        if entry.ino == self.root_id.ino { 0 } else { locked(&self.table).insert(entry) }
    }

    /// That `object` has another name: `name` in `dir`.
    pub(crate) fn named(&self, dir: &Object, name: &[u8], object: &Object) {
        locked(&self.gone).remove(object.id);
        let is_dir = object.attributes.kind == FileType::Directory;
        let (ino, parent, hint) = (object.id.ino, dir.id.ino, Some(object.hint));
        self.remember_name(Entry { ino, parent, name, is_dir, hint });
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
