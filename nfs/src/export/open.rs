//! Opening what was found.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fsync, openat};
use rustix::io::Errno;

use super::{Export, Object, locked};
use crate::wire::{FileType, Status};

/// Most directories one in another.
pub(super) const DEPTH_MAX: usize = 512;

impl Export {
    /// Opens an object from where the table says that it is, downwards from the export's directory or
    /// the nearest directory that is open. Which object it is has yet to be looked at.
    pub(super) fn open_place(&self, ino: u64) -> Option<OwnedFd> {
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
                return None;
            }
            let table = locked(&self.table);
            let place = table.places(at).first()?;
            names.push(place.name.clone());
            at = place.parent;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if names.is_empty() {
            return openat(&from, c".", flags, Mode::empty()).ok();
        }
        let mut fd: Option<OwnedFd> = None;
        while let Some(name) = names.pop() {
            let last = if names.is_empty() { OFlags::empty() } else { OFlags::DIRECTORY };
            let dir = fd.as_ref().unwrap_or(&from);
            fd = Some(openat(dir, &*name, flags | last, Mode::empty()).ok()?);
        }
        fd
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
        let fd = Arc::new(self.reopen(object, OFlags::RDONLY)?);
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
            Err(Errno::ACCESS) => (self.reopen(object, OFlags::WRONLY)?, false),
            Err(e) => return Err(e.into()),
        };
        let fd = Arc::new(fd);
        self.keep_write(object, &fd, both);
        Ok(fd)
    }

    /// A descriptor of a file that has just been made, or opened: its permissions may forbid to open it
    /// again.
    pub(crate) fn keep_write(&self, object: &Object, fd: &Arc<OwnedFd>, both: bool) {
        let mut descriptors = locked(&self.descriptors);
        descriptors.keep_write(object.id.ino, Arc::clone(fd));
        if both {
            descriptors.keep_read(object.id.ino, Arc::clone(fd));
        }
    }

    /// Opens what is behind a path descriptor: it is the same object, whatever its name is now.
    fn reopen(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (links, name) = self.link(object);
        let flags = flags | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(links, name, flags, Mode::empty())
    }

    /// What has changed in a directory is on the disk, where that is asked for.
    pub(crate) fn sync_dir(&self, dir: &Object) -> Result<(), Status> {
        if self.is_sync() {
            fsync(self.open_dir(dir)?)?;
        }
        Ok(())
    }

    /// What has changed in an object's attributes is on the disk, where that is asked for. Of what
    /// cannot be opened (a link, a pipe, or no permission) the file system sees to it.
    pub(crate) fn sync_object(&self, object: &Object) -> Result<(), Status> {
        if !self.is_sync() {
            return Ok(());
        }
        match object.attributes.kind {
            FileType::Regular => match self.reopen(object, OFlags::RDONLY) {
                Ok(fd) => Ok(fsync(fd)?),
                Err(Errno::ACCESS) => Ok(()),
                Err(e) => Err(e.into()),
            },
            FileType::Directory => match self.open_dir(object) {
                Err(Status::ACCES) => Ok(()),
                dir => Ok(fsync(dir?)?),
            },
            _ => Ok(()),
        }
    }
}

fn regular(object: &Object) -> Result<(), Status> {
    if object.attributes.kind == FileType::Regular { Ok(()) } else { Err(Status::INVAL) }
}
