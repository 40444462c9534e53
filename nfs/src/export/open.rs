//! Opening what was found.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Access, AtFlags, Mode, OFlags, ResolveFlags, accessat, openat, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::flush::{Due, Extent, Flusher, Ticket};
use super::table::{Place, Table};
use super::{Export, Identity, Object, locked, stat_of};
use crate::caller::{as_server, is_for_user};
use crate::wire::{FileType, Status};

/// Most directories one in another.
const DEPTH_MAX: usize = 4096;

/// Bytes of a path that the kernel takes at once.
const PART_MAX: usize = 4000;

impl Export {
    /// Opens a directory where the table says that it is. Which object is there has yet to be looked at.
    ///
    /// # Errors
    /// `NOENT` also where it is not known where it is. What [`is_of_now`] says nothing of what is there.
    pub(super) fn open_dir_place(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let path = {
            let table = locked(&self.table);
            let mut names = Vec::new();
            self.way_to(&table, ino, &mut names).then(|| joined(&names)).ok_or(Errno::NOENT)?
        };
        self.open_beneath(&path)
    }

    /// Collects the names on the way to a directory, the last one first. Returns true if the table knows all.
    fn way_to<'a>(&self, table: &'a Table, ino: u64, names: &mut Vec<&'a [u8]>) -> bool {
        let mut at = ino;
        while at != self.root_id.ino {
            let Some(place) = table.place_of_dir(at).filter(|_| names.len() < DEPTH_MAX) else {
                return false;
            };
            names.push(&place.name);
            at = place.parent;
        }
        true
    }

    /// The ways to an object that the table knows, by each of its names.
    fn ways(&self, ino: u64) -> Vec<Vec<Vec<u8>>> {
        let mut table = locked(&self.table);
        let places: Vec<Place> = table.places(ino).cloned().collect();
        let ways = places.iter().filter_map(|place| {
            let mut names = vec![&*place.name];
            self.way_to(&table, place.parent, &mut names).then(|| joined(&names))
        });
        ways.collect()
    }

    /// Opens what is at the end of a way from the export's directory. Each name on it is looked up now, by the
    /// kernel, which follows no symbolic link and enters nothing that is mounted: what lies there is in the
    /// export at this moment.
    fn open_beneath(&self, path: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let mut fd: Option<OwnedFd> = None;
        for part in path {
            let from = fd.as_ref().unwrap_or(&self.root);
            fd = Some(self.open_part(from, part)?);
        }
        let again = || openat(&self.root, c".", PATH, Mode::empty());
        fd.map_or_else(again, Ok)
    }

    fn open_part(&self, from: &OwnedFd, part: &[u8]) -> Result<OwnedFd, Errno> {
        if self.others.are_near() {
            let names = part.split(|&byte| byte == b'/');
            return in_turn(from, names, |from, name| self.open_beside_others(from, name));
        }
        self.open_within(from, part)
    }

    /// Opens a name, unless the directory of another export has it.
    fn open_beside_others(&self, from: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let fd = self.open_within(from, name)?;
        if self.others.have_root(Identity::of(&stat_of(&fd)?)) { Err(Errno::XDEV) } else { Ok(fd) }
    }

    fn open_within(&self, from: &OwnedFd, part: &[u8]) -> Result<OwnedFd, Errno> {
        if self.name_by_name.load(Relaxed) {
            return open_each(from, part);
        }
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match openat2(from, part, PATH, Mode::empty(), within) {
            // Linux before 5.6, or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {
                self.name_by_name.store(true, Relaxed);
                open_each(from, part)
            }
            opened => opened,
        }
    }

    /// A directory, to be read.
    pub(crate) fn open_dir(&self, object: &Object) -> Result<OwnedFd, Status> {
        if object.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&object.path, c".", flags, Mode::empty())?)
    }

    /// A regular file, to be read.
    pub(crate) fn open_read(&self, object: &Object) -> Result<Arc<OwnedFd>, Status> {
        regular(object)?;
        self.check(object, Access::READ_OK)?;
        let kept = locked(&self.descriptors).read(object.id.ino);
        if let Some(fd) = kept {
            return Ok(fd);
        }
        let fd = Arc::new(self.open_regular(object, OFlags::RDONLY)?);
        locked(&self.descriptors).keep_read(object.id.ino, Arc::clone(&fd));
        Ok(fd)
    }

    /// A regular file, to be written.
    pub(crate) fn open_write(&self, object: &Object) -> Result<Arc<OwnedFd>, Status> {
        regular(object)?;
        if self.is_read_only() {
            return Err(Status::ROFS);
        }
        self.check(object, Access::WRITE_OK)?;
        let kept = locked(&self.descriptors).write(object.id.ino);
        if let Some(fd) = kept {
            return Ok(fd);
        }
        // To be read as well, so that one descriptor does for both, where that is allowed.
        let (fd, both) = match self.reopen(object, OFlags::RDWR) {
            Ok(fd) => (fd, true),
            Err(Errno::ACCESS) => (self.open_regular(object, OFlags::WRONLY)?, false),
            Err(e) => return Err(e.into()),
        };
        let fd = Arc::new(fd);
        self.keep_write(object, &fd, both);
        Ok(fd)
    }

    /// Keeps a descriptor of a file that has just been made or opened: the next call need not open it
    /// again.
    pub(crate) fn keep_write(&self, object: &Object, fd: &Arc<OwnedFd>, both: bool) {
        let mut descriptors = locked(&self.descriptors);
        descriptors.keep_write(object.id.ino, Arc::clone(fd));
        if both {
            descriptors.keep_read(object.id.ino, Arc::clone(fd));
        }
    }

    /// Checks that the user of a call may open a file: a descriptor that is kept may have been opened by
    /// another. Its owner always may (RFC 1813 section 4.4).
    fn check(&self, object: &Object, access: Access) -> Result<(), Status> {
        if !is_for_user() || object.attributes.uid == geteuid().as_raw() {
            return Ok(());
        }
        let (links, name) = self.link(object);
        Ok(accessat(links, name, access, AtFlags::EACCESS)?)
    }

    /// Opens a regular file, for its owner whatever its mode is (RFC 1813 section 4.4).
    fn open_regular(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.reopen(object, flags) {
            Err(Errno::ACCESS) => self.open_as_owner(object, flags),
            opened => opened,
        }
    }

    /// Opens what is behind a path descriptor: it is the same object, whatever its name is now.
    pub(super) fn reopen(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (links, name) = self.link(object);
        let flags = flags | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(links, name, flags, Mode::empty())
    }

    /// An object that is about to change, to be put on the disk then, where that is asked for. It is opened
    /// before: a change that is made and then fails for want of a descriptor would be asked for again. What
    /// cannot be opened (a link, a pipe, or no permission) the file system sees to.
    pub(crate) fn change(&self, object: &Object) -> Result<Change, Status> {
        if !self.is_sync() {
            return Ok(Change(None));
        }
        let open = || match object.attributes.kind {
            FileType::Regular => {
                // One that was just made, or given a size, is open.
                let kept = locked(&self.descriptors).write(object.id.ino);
                let opened =
                    kept.map_or_else(|| self.reopen(object, OFlags::RDONLY).map(Arc::new), Ok);
                opened.map_err(Status::from)
            }
            FileType::Directory => self.open_dir(object).map(Arc::new),
            _ => Err(Status::ACCES),
        };
        match self.flusher.ticket(object.id.ino, || to_flush(open)) {
            Err(Status::ACCES) => Ok(Change(None)),
            ticket => Ok(Change(Some(ticket?))),
        }
    }

    /// The same of a directory that is to have other names; one that cannot be opened has none.
    pub(crate) fn change_names(&self, dir: &Object) -> Result<Change, Status> {
        if !self.is_sync() {
            return Ok(Change(None));
        }
        let open = || self.open_dir(dir).map(Arc::new);
        Ok(Change(Some(self.flusher.ticket(dir.id.ino, || to_flush(open))?)))
    }

    /// A regular file of which data is to be put on the disk whatever the export's options are.
    pub(crate) fn change_data(&self, object: &Object, fd: Arc<OwnedFd>) -> Result<Ticket, Status> {
        self.flusher.ticket(object.id.ino, || Ok(fd))
    }

    /// What puts changes on the disk.
    pub(crate) const fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// Opens the object from where the table says that it is; `None` when it is not there. `hint` is what its
    /// handle has.
    ///
    /// # Errors
    /// `JUKEBOX`, when that cannot be said now.
    pub(super) fn open_known(&self, id: Identity, hint: u64) -> Result<Option<Object>, Status> {
        for way in self.ways(id.ino) {
            match self.open_beneath(&way) {
                Ok(path) => {
                    if let Ok(object) = self.seen(Arc::new(path), id, hint) {
                        return Ok(Some(object));
                    }
                }
                Err(e) if is_of_now(e) => return Err(e.into()),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// How a path descriptor is opened: of a symbolic link it is the link itself.
pub(super) const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens something to put it on the disk, which is the server's part of a call: a user may change a directory
/// that it may not read.
fn to_flush<T>(open: impl Fn() -> Result<T, Status>) -> Result<T, Status> {
    match open() {
        Err(Status::ACCES) if is_for_user() => as_server(open),
        opened => opened,
    }
}

/// Names as paths that the kernel takes one after the other, from names of which the last comes first.
fn joined(names: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for name in names.iter().rev() {
        match paths.last_mut() {
            Some(path) if path.len() + 1 + name.len() <= PART_MAX => {
                path.push(b'/');
                path.extend_from_slice(name);
            }
            _ => paths.push(name.to_vec()),
        }
    }
    paths
}

/// Opens name after name, without following a symbolic link. The caller compares the file system.
fn open_each(from: &OwnedFd, part: &[u8]) -> Result<OwnedFd, Errno> {
    let names = part.split(|&byte| byte == b'/');
    in_turn(from, names, |from, name| openat(from, name, PATH, Mode::empty()))
}

/// Opens name after name, each in what the one before it gave.
fn in_turn<'a>(
    from: &OwnedFd,
    names: impl Iterator<Item = &'a [u8]>,
    open: impl Fn(&OwnedFd, &[u8]) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let mut fd: Option<OwnedFd> = None;
    for name in names {
        fd = Some(open(fd.as_ref().unwrap_or(from), name)?);
    }
    fd.ok_or(Errno::NOENT)
}

impl Object {
    /// Whether `fd` is of the same object.
    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        stat_of(fd).is_ok_and(|stat| Identity::of(&stat) == self.id)
    }
}

/// See [`Export::change`].
#[derive(Debug)]
pub(crate) struct Change(Option<Ticket>);

impl Change {
    /// The change was made: its call is over when it is on the disk.
    pub(crate) fn made(self, due: &mut Due) {
        if let Some(ticket) = self.0 {
            due.push(ticket, Extent::All);
        }
    }
}

/// Whether something could not be opened for want of descriptors or memory: of now, whatever is there.
pub(super) fn is_of_now(errno: Errno) -> bool {
    Status::from(errno) == Status::JUKEBOX
}

fn regular(object: &Object) -> Result<(), Status> {
    if object.attributes.kind == FileType::Regular { Ok(()) } else { Err(Status::INVAL) }
}
