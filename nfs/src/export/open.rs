//! Opening what was found.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags, fsync, openat};
use rustix::io::Errno;

use super::{Export, Identity, Object, locked, stat_of};
use crate::wire::{FileType, Status};

/// Most directories one in another.
pub(super) const DEPTH_MAX: usize = 512;

impl Export {
    /// Opens an object from where the table says that it is, downwards from the export's directory or
    /// the nearest directory that is open. Which object it is has yet to be looked at.
    ///
    /// # Errors
    /// `NOENT` also where it is not known where it is. What [`is_of_now`] says nothing of what is there.
    pub(super) fn open_place(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = ino;
        let mut from = Arc::clone(&self.root);
        while at != self.root_id.ino {
            // Of the object itself no descriptor is taken: it is opened to be looked at.
            let open = if names.is_empty() { None } else { locked(&self.descriptors).path(at) };
            if let Some(open) = open {
                from = open;
                break;
            }
            if names.len() == DEPTH_MAX {
                return Err(Errno::NOENT);
            }
            let table = locked(&self.table);
            let place = table.places(at).first().ok_or(Errno::NOENT)?;
            names.push(place.name.clone());
            at = place.parent;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if names.is_empty() {
            return openat(&from, c".", flags, Mode::empty());
        }
        let mut fd: Option<OwnedFd> = None;
        while let Some(name) = names.pop() {
            let last = if names.is_empty() { OFlags::empty() } else { OFlags::DIRECTORY };
            let dir = fd.as_ref().unwrap_or(&from);
            fd = Some(openat(dir, &*name, flags | last, Mode::empty())?);
        }
        fd.ok_or(Errno::NOENT)
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
        let opened = match object.attributes.kind {
            FileType::Regular => {
                // One that was just made, or given a size, is open.
                let kept = locked(&self.descriptors).write(object.id.ino);
                let opened =
                    kept.map_or_else(|| self.reopen(object, OFlags::RDONLY).map(Arc::new), Ok);
                opened.map_err(Status::from)
            }
            FileType::Directory => self.open_dir(object).map(Arc::new),
            _ => return Ok(Change(None)),
        };
        match opened {
            Err(Status::ACCES) => Ok(Change(None)),
            opened => Ok(Change(Some(opened?))),
        }
    }

    /// The same of a directory that is to have other names; one that cannot be opened has none.
    pub(crate) fn change_names(&self, dir: &Object) -> Result<Change, Status> {
        Ok(Change(if self.is_sync() { Some(Arc::new(self.open_dir(dir)?)) } else { None }))
    }

    /// What was to change has: it is on the disk, where that is asked for.
    pub(crate) fn changed(&self, change: Change) -> Result<(), Status> {
        change.0.map_or(Ok(()), |fd| self.put_on_disk(fsync(fd)))
    }

    /// What came of putting something on the disk. What could not be is lost, and the next who asks is not
    /// told: so that others who have written there find out, their verifier becomes another.
    pub(crate) fn put_on_disk(&self, done: Result<(), Errno>) -> Result<(), Status> {
        done.map_err(|errno| {
            self.losses.fetch_add(1, Relaxed);
            errno.into()
        })
    }

    /// Times that what was written could not be put on the disk.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Relaxed)
    }

    /// Opens the object from where the table says that it is; `None` when it is not there.
    ///
    /// # Errors
    /// `JUKEBOX`, when that cannot be said now.
    pub(super) fn open_known(&self, id: Identity) -> Result<Option<Object>, Status> {
        let path = match self.open_place(id.ino) {
            Ok(path) => path,
            Err(e) if is_of_now(e) => return Err(e.into()),
            Err(_) => return Ok(None),
        };
        let Ok(object) = self.seen(Arc::new(path), id) else { return Ok(None) };
        locked(&self.descriptors).keep_path(id.ino, Arc::clone(&object.path));
        Ok(Some(object))
    }
}

impl Object {
    /// Whether `fd` is of the same object.
    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        stat_of(fd).is_ok_and(|stat| Identity::of(&stat) == self.id)
    }
}

/// See [`Export::change`].
#[derive(Debug)]
pub(crate) struct Change(Option<Arc<OwnedFd>>);

/// Whether something could not be opened for want of descriptors or memory: of now, whatever is there.
pub(super) fn is_of_now(errno: Errno) -> bool {
    Status::from(errno) == Status::JUKEBOX
}

fn regular(object: &Object) -> Result<(), Status> {
    if object.attributes.kind == FileType::Regular { Ok(()) } else { Err(Status::INVAL) }
}
