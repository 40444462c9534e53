//! Opens objects that the export has found.

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

/// The highest number of directories nested in one another.
const DEPTH_MAX: usize = 4096;

/// The highest number of bytes in a path that the export passes to the kernel at once.
const PART_MAX: usize = 4000;

impl Export {
    /// Opens a directory where the table says that the directory is. The caller has yet to check
    /// which object it has opened.
    ///
    /// # Errors
    /// `NOENT` also where the table does not know the directory's place. An error for which
    /// [`is_of_now`] is true does not tell whether the directory exists.
    pub(super) fn open_dir_place(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let path = {
            let table = locked(&self.table);
            let mut names = Vec::new();
            self.way_to(&table, ino, &mut names).then(|| joined(&names)).ok_or(Errno::NOENT)?
        };
        self.open_beneath(&path)
    }

    /// Collects the names on the way to a directory, the last name first. Returns true if the table
    /// knows them all.
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

    /// Returns the ways to an object that the table knows, one for each of the object's names.
    fn ways(&self, ino: u64) -> Vec<Vec<Vec<u8>>> {
        let mut table = locked(&self.table);
        let places: Vec<Place> = table.places(ino).cloned().collect();
        let ways = places.iter().filter_map(|place| {
            let mut names = vec![&*place.name];
            self.way_to(&table, place.parent, &mut names).then(|| joined(&names))
        });
        ways.collect()
    }

    /// Opens the object at the end of a way from the export's directory. The kernel looks up each
    /// name on the way now, follows no symbolic link and enters no mounted file system: so the
    /// object is in the export at this moment.
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

    /// Opens a name, unless it leads to the directory of another export.
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
            // Linux before 5.6, or a sandbox that does not know `openat2`.
            Err(Errno::NOSYS | Errno::PERM) => {
                self.name_by_name.store(true, Relaxed);
                open_each(from, part)
            }
            opened => opened,
        }
    }

    /// Opens a directory for reading.
    pub(crate) fn open_dir(&self, object: &Object) -> Result<OwnedFd, Status> {
        if object.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&object.path, c".", flags, Mode::empty())?)
    }

    /// Opens a regular file for reading.
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

    /// Opens a regular file for writing.
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
        // Ask for read access as well, so that one descriptor serves both directions where the mode
        // allows that.
        let (fd, both) = match self.reopen(object, OFlags::RDWR) {
            Ok(fd) => (fd, true),
            Err(Errno::ACCESS) => (self.open_regular(object, OFlags::WRONLY)?, false),
            Err(e) => return Err(e.into()),
        };
        let fd = Arc::new(fd);
        self.keep_write(object, &fd, both);
        Ok(fd)
    }

    /// Keeps a descriptor of a file that was just made or opened, so that the next call need not
    /// open the file again.
    pub(crate) fn keep_write(&self, object: &Object, fd: &Arc<OwnedFd>, both: bool) {
        let mut descriptors = locked(&self.descriptors);
        descriptors.keep_write(object.id.ino, Arc::clone(fd));
        if both {
            descriptors.keep_read(object.id.ino, Arc::clone(fd));
        }
    }

    /// Checks that the user of a call may open a file: another user's call may have opened the
    /// descriptor that is kept. The file's owner may always open it (RFC 1813 section 4.4).
    fn check(&self, object: &Object, access: Access) -> Result<(), Status> {
        if !is_for_user() || object.attributes.uid == geteuid().as_raw() {
            return Ok(());
        }
        let (links, name) = self.link(object);
        Ok(accessat(links, name, access, AtFlags::EACCESS)?)
    }

    /// Opens a regular file; the owner may open it whatever its mode is (RFC 1813 section 4.4).
    fn open_regular(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.reopen(object, flags) {
            Err(Errno::ACCESS) => self.open_as_owner(object, flags),
            opened => opened,
        }
    }

    /// Opens the object of a path descriptor: this is the same object, whatever its name is now.
    pub(super) fn reopen(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (links, name) = self.link(object);
        let flags = flags | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(links, name, flags, Mode::empty())
    }

    /// Prepares a change of an object that has to reach the disk, if the export is synchronous. The
    /// object is opened before the change: otherwise a change could be made and then fail for want
    /// of a descriptor, and the client would ask for it again. If the object cannot be opened (a
    /// link, a pipe, or no permission), the file system itself takes care of the change.
    pub(crate) fn change(&self, object: &Object) -> Result<Change, Status> {
        if !self.is_sync() {
            return Ok(Change(None));
        }
        let open = || match object.attributes.kind {
            FileType::Regular => {
                // A file that was just made, or given a size, has an open descriptor.
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

    /// Prepares a change of a directory's names; unlike `change`, it fails when the directory
    /// cannot be opened.
    pub(crate) fn change_names(&self, dir: &Object) -> Result<Change, Status> {
        if !self.is_sync() {
            return Ok(Change(None));
        }
        let open = || self.open_dir(dir).map(Arc::new);
        Ok(Change(Some(self.flusher.ticket(dir.id.ino, || to_flush(open))?)))
    }

    /// Prepares a change of a regular file's data, which has to reach the disk whatever the
    /// export's options are.
    pub(crate) fn change_data(&self, object: &Object, fd: Arc<OwnedFd>) -> Result<Ticket, Status> {
        self.flusher.ticket(object.id.ino, || Ok(fd))
    }

    /// Returns the flusher, which puts changes on the disk.
    pub(crate) const fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// Opens the object from where the table says that the object is; `None` when it is not there.
    /// `hint` is the directory from its handle.
    ///
    /// # Errors
    /// `JUKEBOX` when the object cannot be opened now for want of resources.
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

/// The flags of a path descriptor: for a symbolic link it refers to the link itself.
pub(super) const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens an object to put it on the disk. If the call's user may not read the object, the server
/// opens it: a user may change a directory that the user may not read.
fn to_flush<T>(open: impl Fn() -> Result<T, Status>) -> Result<T, Status> {
    match open() {
        Err(Status::ACCES) if is_for_user() => as_server(open),
        opened => opened,
    }
}

/// Joins names, of which the last comes first, to paths that are short enough for the kernel and
/// have to be opened in turn.
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

/// Opens name after name, each in the directory that the previous name gave.
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
    /// Returns true if `fd` refers to the same object.
    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        stat_of(fd).is_ok_and(|stat| Identity::of(&stat) == self.id)
    }
}

/// A prepared change; see [`Export::change`].
#[derive(Debug)]
pub(crate) struct Change(Option<Ticket>);

impl Change {
    /// Records that the change was made: its call ends after the change is on the disk.
    pub(crate) fn made(self, due: &mut Due) {
        if let Some(ticket) = self.0 {
            due.push(ticket, Extent::All);
        }
    }
}

/// Returns true if opening failed for want of descriptors or memory. Such an error is temporary and
/// says nothing about the object.
pub(super) fn is_of_now(errno: Errno) -> bool {
    Status::from(errno) == Status::JUKEBOX
}

fn regular(object: &Object) -> Result<(), Status> {
    if object.attributes.kind == FileType::Regular { Ok(()) } else { Err(Status::INVAL) }
}
