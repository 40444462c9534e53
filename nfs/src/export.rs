//! A directory and the objects below it, by handles.
//!
//! A handle names an object by properties of the object itself: its number in the file system and
//! the time at which it was made. So the handle stays valid through renames and through restarts of
//! the server. No handle contains a path, and the export does not use the kernel's own file
//! handles: for every call the export reaches the object anew from the export's directory
//! downwards, name by name, without following symbolic links and without leaving the file system,
//! and then compares the object with the handle. So a made-up handle cannot lead out of the
//! directory, and an object that a process of the host moves out of the directory is out of reach
//! for every later call.
//!
//! A service may have several exports, and a handle says to which export it belongs. A directory
//! that has an export of its own is no part of the export around it: the outer export lists the
//! directory's name, and enters the directory no more than a file system that is mounted there. So
//! clients reach the objects that lie in both only by the rules of the inner export ([`others`]).
//!
//! A table of bounded size says where objects are; lookups of clients fill the table ([`table`]).
//! The handle of a file also has the number of the directory in which the export first saw the
//! file, and the export looks there if the table has evicted the file. The export searches
//! ([`search`]) for a file that is in neither place (a process of the host moved it) and for a
//! directory that is not in the table (after a restart).
//!
//! The export keeps descriptors of the files last used ([`descriptors`]). The export opens a file
//! for reading or writing through a descriptor of `O_PATH`, by `/proc/self/fd`, after it has seen
//! that the object is a regular file or a directory: so the export never opens a device or pipe.

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

/// Options of an export: what clients may do, and how many resources it may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// True if clients can change nothing through the export.
    pub read_only: bool,
    /// True if changes of directories and attributes are on the disk before the reply, as RFC 1813
    /// asks. If false, replies are faster, and such changes are as safe as the file system makes
    /// them on its own. In both cases data is on the disk when a WRITE or a COMMIT says so.
    pub sync: bool,
    /// The number of files whose descriptors the export keeps: one descriptor for each file, or two
    /// for a file that can only be written.
    pub descriptors: usize,
    /// The number of objects whose places the table holds, at 150 bytes and a name each. The table
    /// evicts directories after files: the limit should leave room for all directories.
    pub places: usize,
    /// The number of threads that put changes on the disk, and so of objects at a time. The export
    /// starts these threads on demand.
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
    /// The directory cannot be opened.
    #[error("cannot export {}: {source}", path.display())]
    Open {
        /// The path of the directory.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The server cannot open `/proc/self/fd`, through which it opens descriptors anew.
    #[error("cannot open /proc/self/fd, which an NFS export needs: {0}")]
    Proc(std::io::Error),
}

/// The identity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// The object's inode number in the file system.
    pub(crate) ino: u64,
    /// Nanoseconds since 1970 at which the object was made; 0 where the file system does not say. A
    /// file system uses numbers again, and this time tells objects with the same number apart.
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

/// The first bytes of every handle: they mark it as ours and give the version of its layout.
const MAGIC: [u8; 4] = *b"HdN1";

/// An object that was found.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) id: Identity,
    /// The number of the directory that is part of a file's handle; 0 for a directory.
    hint: u64,
    /// A descriptor opened with `O_PATH`.
    pub(crate) path: Arc<OwnedFd>,
    /// The attributes at the time when the export found the object.
    pub(crate) attributes: Fattr,
}

/// An exported directory.
#[derive(Debug)]
pub struct Export {
    /// The export itself, for a thread that searches.
    me: Weak<Export>,
    root: Arc<OwnedFd>,
    root_id: Identity,
    /// The file system of the directory, and its mount where the kernel says so: a directory can be
    /// mounted in another directory of its own file system.
    place: Place,
    /// The number that clients see as the file system's.
    fsid: u64,
    others: Others,
    /// `/proc/self/fd`.
    links: OwnedFd,
    /// True after the kernel has refused `openat2`; the export then opens paths name by name.
    name_by_name: AtomicBool,
    read_only: AtomicBool,
    sync: AtomicBool,
    table: Mutex<Table>,
    descriptors: Mutex<Descriptors>,
    search: Search,
    gone: Mutex<Gone>,
    /// Changes of one object take turns, so that a reply's attributes before and after belong to
    /// the same change.
    turns: Box<[Mutex<()>]>,
    /// Held while a mode changes, also while it changes for a moment ([`owner`]).
    modes: Mutex<()>,
    /// Puts changes on the disk.
    flusher: Flusher,
}

const TURNS: u64 = 64;

/// FNV-1a: returns a number for a name, the same at every start.
fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the number of the export that a handle claims to belong to.
fn fsid_of(handle: &Handle) -> Option<u64> {
    let fsid = handle.as_slice().strip_prefix(&MAGIC)?.first_chunk()?;
    Some(u64::from_be_bytes(*fsid))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data in these mutexes is consistent after every statement, so a panic under the lock does
    // no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn stat_of(fd: impl AsFd) -> Result<Statx, Errno> {
    stat_at(fd, b"")
}

/// Returns the status of `name` in `dir`, also when the object is a symbolic link; an empty name
/// means `dir` itself.
pub(crate) fn stat_at(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID)
}

/// A file system and a mount. Linux reports numbers of mounts since 5.8.
type Place = ((u32, u32), Option<u64>);

/// Returns the file system and the mount through which an object was reached.
fn place_of(stat: &Statx) -> Place {
    let mount = (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id);
    ((stat.stx_dev_major, stat.stx_dev_minor), mount)
}

impl Export {
    /// Exports `dir` by the name `path`; `disk` decides when changes are durable. A symbolic link
    /// in the path of the directory is followed.
    ///
    /// # Errors
    /// When the directory cannot be opened, or is not a directory.
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
            // The numbers of devices change from boot to boot; the directory's identity does not.
            // The name is part of the number because a directory may be exported twice, and because
            // copies of a file system, such as snapshots, share identities.
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

    /// Returns true if clients can change nothing through the export.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    /// Makes later calls find the export read-only or not, and synchronous or not ([`Options`]);
    /// calls in progress end as they began.
    pub fn set(&self, read_only: bool, sync: bool) {
        self.read_only.store(read_only, Relaxed);
        self.sync.store(sync, Relaxed);
    }

    /// Returns true if changes must be on the disk before the reply.
    fn is_sync(&self) -> bool {
        self.sync.load(Relaxed)
    }

    /// Returns the handle of the directory itself.
    pub fn root(&self) -> Handle {
        self.handle_of(self.root_id, 0)
    }

    pub(crate) const fn root_ino(&self) -> u64 {
        self.root_id.ino
    }

    /// Returns the number by which handles tell exports apart.
    pub(crate) const fn fsid(&self) -> u64 {
        self.fsid
    }

    /// Returns true if a handle claims to belong to this export.
    pub(crate) fn is_named_by(&self, handle: &Handle) -> bool {
        fsid_of(handle) == Some(self.fsid)
    }

    pub(crate) fn handle(&self, object: &Object) -> Handle {
        self.handle_of(object.id, object.hint)
    }

    /// Returns a handle: a directory's has three numbers, any other object's also has the directory
    /// to look in.
    fn handle_of(&self, id: Identity, hint: u64) -> Handle {
        let mut bytes = [0; 36];
        let numbers = [self.fsid, id.ino, id.born, hint].map(u64::to_be_bytes);
        let all = MAGIC.iter().chain(numbers.as_flattened());
        bytes.iter_mut().zip(all).for_each(|(to, &from)| *to = from);
        let length = if hint == 0 { 28 } else { 36 };
        // A handle holds up to 64 bytes, so 36 fit.
        let handle = bytes.get(..length).and_then(Handle::new);
        handle.unwrap_or_else(|| unreachable!("36 bytes fit into 64"))
    }

    /// Returns the contents of a handle: the object's identity, and the directory to look in.
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

    /// Finds the object of a handle.
    ///
    /// # Errors
    /// `BADHANDLE` for a handle that is none of ours, `STALE` for an object that does not exist any
    /// more, `JUKEBOX` when the export has to search for the object and it is too early for another
    /// search, or when the object cannot be opened now.
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

    /// Returns the object that `path` refers to, if its identity is `id` and it still has a name.
    fn seen(&self, path: Arc<OwnedFd>, id: Identity, hint: u64) -> Result<Object, Status> {
        let stat = stat_of(&path)?;
        if Identity::of(&stat) != id || !self.is_here(&stat) || stat.stx_nlink == 0 {
            return Err(Status::STALE);
        }
        let attributes = self.attributes_of(&stat)?;
        Ok(Object { id, hint, path, attributes })
    }

    /// Returns true if an object is in the export's file system, not in a file system mounted below
    /// it.
    fn is_here(&self, stat: &Statx) -> bool {
        place_of(stat) == self.place
    }

    pub(crate) fn attributes_of(&self, stat: &Statx) -> Result<Fattr, Status> {
        attributes::fattr(stat, self.fsid).ok_or(Status::IO)
    }

    /// Returns the attributes of an object as they are now.
    pub(crate) fn attributes(&self, object: &Object) -> Option<Fattr> {
        stat_of(&object.path).ok().and_then(|stat| self.attributes_of(&stat).ok())
    }

    /// Opens the object with `name` in `dir`, and remembers this place.
    pub(crate) fn lookup(&self, dir: &Object, name: &[u8]) -> Result<Object, Status> {
        let path = openat(&dir.path, name, open::PATH, Mode::empty())?;
        let stat = stat_of(&path)?;
        if !self.is_here(&stat) {
            // A file system is mounted on this name, and the export does not include it.
            return Err(Status::ACCES);
        }
        let (id, attributes) = (Identity::of(&stat), self.attributes_of(&stat)?);
        if self.others.have_root(id) {
            return Err(Status::ACCES);
        }
        let hint = self.remember(dir, name, id, attributes.kind);
        Ok(Object { id, hint, path: Arc::new(path), attributes })
    }

    /// Returns handle and attributes of the object with `name` in `dir`, without opening the
    /// object; `None` when a handle cannot reach it.
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

    /// Returns the directory that contains `dir`; for the export's own directory, returns that
    /// directory.
    pub(crate) fn parent(&self, dir: &Object) -> Result<Object, Status> {
        if dir.id == self.root_id {
            return Ok(dir.clone());
        }
        as_server(|| self.parent_of(dir))
    }

    fn parent_of(&self, dir: &Object) -> Result<Object, Status> {
        // The export reached `dir` by its place in the table, so the table normally knows its
        // parent.
        let place = locked(&self.table).place_of_dir(dir.id.ino).map(|place| place.parent);
        let path = match self.open_dir_place(place.ok_or(Status::JUKEBOX)?) {
            Ok(path) => Arc::new(path),
            Err(e) if is_of_now(e) => return Err(e.into()),
            Err(_) => return Err(Status::STALE),
        };
        let stat = stat_of(&path)?;
        self.seen(path, Identity::of(&stat), 0)
    }

    /// Remembers that an object has `name` in `dir`. Returns the directory that the object's
    /// handles contain.
    fn remember(&self, dir: &Object, name: &[u8], id: Identity, kind: FileType) -> u64 {
        locked(&self.gone).remove(id);
        let is_dir = kind == FileType::Directory;
        self.remember_name(Entry { ino: id.ino, parent: dir.id.ino, name, is_dir, hint: None })
    }

    fn remember_name(&self, entry: Entry<'_>) -> u64 {
        if entry.ino == self.root_id.ino { 0 } else { locked(&self.table).insert(entry) }
    }

    /// Remembers that `object` has another name: `name` in `dir`.
    pub(crate) fn named(&self, dir: &Object, name: &[u8], object: &Object) {
        locked(&self.gone).remove(object.id);
        let is_dir = object.attributes.kind == FileType::Directory;
        let (ino, parent, hint) = (object.id.ino, dir.id.ino, Some(object.hint));
        self.remember_name(Entry { ino, parent, name, is_dir, hint });
    }

    /// Remembers that an object does not have `name` in `dir` any more.
    pub(crate) fn unname(&self, dir: &Object, name: &[u8], id: Identity) {
        locked(&self.table).remove(id.ino, dir.id.ino, name);
    }

    /// Remembers that the object does not exist any more.
    pub(crate) fn forget(&self, id: Identity) {
        locked(&self.gone).insert(id);
        locked(&self.table).remove_all(id.ino);
        locked(&self.descriptors).drop_all(id.ino);
    }

    /// Takes the turn to change an object.
    pub(crate) fn turn(&self, object: &Object) -> MutexGuard<'_, ()> {
        locked(self.turn_of(object))
    }

    /// Takes the turns to change two directories, always the lower index first, so that two threads
    /// cannot deadlock.
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
        // There are `TURNS` turns, and the index is a remainder modulo `TURNS`.
        self.turns.get(index).unwrap_or_else(|| unreachable!("a remainder of {TURNS}"))
    }

    /// Returns `/proc/self/fd`, and the name in it that leads to the object of a path descriptor.
    pub(crate) fn link(&self, object: &Object) -> (BorrowedFd<'_>, String) {
        use std::os::fd::AsRawFd;
        (self.links.as_fd(), object.path.as_raw_fd().to_string())
    }
}
