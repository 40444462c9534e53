//! Procedures that make an object: CREATE, MKDIR, SYMLINK, MKNOD.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType as Kind, Mode, OFlags, mkdirat, mknodat, openat, unlinkat};
use rustix::io::Errno;

use super::{Outcome, Share, unknown};
use crate::export::Object;
use crate::export::flush::Due;
use crate::export::name::fresh;
use crate::wire::{
    Create, Created, DirEntryName, FileType, How, Mkdir, Mknod, MknodKind, PATH_MAX, Sattr,
    SetTime, Status, Symlink, Time, Verifier, WccData,
};

/// A new object is accessible only to its owner until its attributes are set.
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_DIR: Mode = Mode::RWXU;

impl Share {
    pub(super) fn create(&self, call: &Create<'_>, due: &mut Due) -> Outcome<Created, WccData> {
        self.make(&call.at, due, |dir, name, due| match call.how {
            How::Unchecked(attributes) => self.create_file((dir, name), &attributes, false, due),
            How::Guarded(attributes) => self.create_file((dir, name), &attributes, true, due),
            How::Exclusive(verifier) => self.create_exclusive((dir, name), verifier, due),
        })
    }

    pub(super) fn mkdir(&self, call: &Mkdir<'_>, due: &mut Due) -> Outcome<Created, WccData> {
        self.make(&call.at, due, |dir, name, due| {
            mkdirat(&dir.path, name, PRIVATE_DIR)?;
            // A client cannot set the size of a directory.
            let attributes = Sattr { size: None, ..call.attributes };
            self.finish((dir, name), &attributes, AtFlags::REMOVEDIR, due)
        })
    }

    /// Makes a symbolic link. The service ignores the client's attributes, since nothing depends on
    /// the attributes of a link.
    pub(super) fn symlink(&self, call: &Symlink<'_>, due: &mut Due) -> Outcome<Created, WccData> {
        self.make(&call.at, due, |dir, name, _| {
            let path = call.path.0;
            if path.len() > PATH_MAX as usize {
                return Err(Status::NAMETOOLONG);
            }
            if path.is_empty() || path.contains(&0) {
                return Err(Status::INVAL);
            }
            rustix::fs::symlinkat(path, &dir.path, name)?;
            self.found(dir, name, AtFlags::empty())
        })
    }

    /// Makes a pipe or a socket. The service makes no devices: they would reach out of the
    /// directory.
    pub(super) fn mknod(&self, call: &Mknod<'_>, due: &mut Due) -> Outcome<Created, WccData> {
        self.make(&call.at, due, |dir, name, due| {
            let (kind, attributes) = match &call.kind {
                MknodKind::Fifo(attributes) => (Kind::Fifo, attributes),
                MknodKind::Socket(attributes) => (Kind::Socket, attributes),
                MknodKind::Character(..) | MknodKind::Block(..) => return Err(Status::PERM),
                MknodKind::Other(_) => return Err(Status::BADTYPE),
            };
            mknodat(&dir.path, name, kind, PRIVATE_FILE, 0)?;
            let attributes = Sattr { size: None, ..*attributes };
            self.finish((dir, name), &attributes, AtFlags::empty(), due)
        })
    }

    /// Does the part that is common to all procedures: the name, the directory's turn, and its
    /// attributes.
    fn make(
        &self,
        at: &DirEntryName<'_>,
        due: &mut Due,
        make: impl FnOnce(&Object, &[u8], &mut Due) -> Result<Object, Status>,
    ) -> Outcome<Created, WccData> {
        let failed = |e| (e, unknown());
        let dir = self.export.object(&at.dir).map_err(failed)?;
        self.writable().map_err(failed)?;
        let turn = self.export.turn(&dir);
        let before = self.export.attributes(&dir).map(|a| a.wcc());
        let made = self.make_in(&dir, at.name.0, due, make);
        let wcc = WccData { before, after: self.export.attributes(&dir) };
        drop(turn);
        let object = made.map_err(|e| (e, wcc))?;
        Ok(Created {
            object: Some(self.export.handle(&object)),
            attributes: self.export.attributes(&object),
            dir: wcc,
        })
    }

    fn make_in(
        &self,
        dir: &Object,
        name: &[u8],
        due: &mut Due,
        make: impl FnOnce(&Object, &[u8], &mut Due) -> Result<Object, Status>,
    ) -> Result<Object, Status> {
        if dir.attributes.kind != FileType::Directory {
            return Err(Status::NOTDIR);
        }
        let name = fresh(name)?;
        let change = self.export.change_names(dir)?;
        let object = make(dir, name, due)?;
        change.made(due);
        Ok(object)
    }

    /// Sets these attributes on the new object, and returns the object.
    fn finish(
        &self,
        (dir, name): (&Object, &[u8]),
        attributes: &Sattr,
        removal: AtFlags,
        due: &mut Due,
    ) -> Result<Object, Status> {
        let object = self.found(dir, name, removal)?;
        self.complete((dir, name), &object, (attributes, removal), due)?;
        Ok(object)
    }

    /// Sets the attributes of a new object; if that fails, removes the object again.
    fn complete(
        &self,
        (dir, name): (&Object, &[u8]),
        object: &Object,
        (attributes, removal): (&Sattr, AtFlags),
        due: &mut Due,
    ) -> Result<(), Status> {
        let set = self.export.change(object).and_then(|change| {
            self.set_new(object, attributes)?;
            change.made(due);
            Ok(())
        });
        set.inspect_err(|_| self.undo(dir, name, object, removal))
    }

    /// Sets the attributes of a new object, except an owner and a group that the object may not
    /// get: some clients send their user's own with every CREATE and MKDIR, and RFC 1813 lets the
    /// server decide which attributes a new object gets.
    fn set_new(&self, object: &Object, new: &Sattr) -> Result<(), Status> {
        let owned_by = |uid, gid| self.set(object, &Sattr { uid, gid, ..*new });
        match owned_by(new.uid, new.gid) {
            Err(Status::PERM) if new.uid.is_some() => match owned_by(None, new.gid) {
                Err(Status::PERM) if new.gid.is_some() => owned_by(None, None),
                set => set,
            },
            Err(Status::PERM) if new.gid.is_some() => owned_by(None, None),
            set => set,
        }
    }

    /// Returns the new object. If the server cannot open the object now, it removes it again, as a
    /// client that comes again later would find the name taken.
    fn found(&self, dir: &Object, name: &[u8], removal: AtFlags) -> Result<Object, Status> {
        self.export.lookup(dir, name).inspect_err(|&status| {
            if status == Status::JUKEBOX {
                // The object may have gone by now, and the client learns of the failure in any
                // case.
                let _ = unlinkat(&dir.path, name, removal);
            }
        })
    }

    fn undo(&self, dir: &Object, name: &[u8], object: &Object, removal: AtFlags) {
        if unlinkat(&dir.path, name, removal).is_ok() {
            self.export.forget(object.id);
        }
    }

    /// Makes a file, and returns it; returns `None` when the name exists already.
    fn new_file(&self, dir: &Object, name: &[u8]) -> Result<Option<(Object, OwnedFd)>, Status> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW;
        match openat(&dir.path, name, flags | OFlags::CLOEXEC, PRIVATE_FILE) {
            Ok(fd) => {
                let object = self.found(dir, name, AtFlags::empty())?;
                // Another object may have taken the name already; then its handle must not lead to
                // this descriptor.
                Ok(object.is_of(&fd).then_some((object, fd)))
            }
            Err(Errno::EXIST) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn create_file(
        &self,
        (dir, name): (&Object, &[u8]),
        attributes: &Sattr,
        guarded: bool,
        due: &mut Due,
    ) -> Result<Object, Status> {
        let Some((object, fd)) = self.new_file(dir, name)? else {
            if guarded {
                return Err(Status::EXIST);
            }
            return self.take_file((dir, name), attributes, due);
        };
        self.export.keep_write(&object, &Arc::new(fd), true);
        self.complete((dir, name), &object, (attributes, AtFlags::empty()), due)?;
        Ok(object)
    }

    /// Takes a file that existed already: the file gets the size, and keeps its other attributes.
    fn take_file(
        &self,
        (dir, name): (&Object, &[u8]),
        attributes: &Sattr,
        due: &mut Due,
    ) -> Result<Object, Status> {
        let object = self.export.lookup(dir, name)?;
        if object.attributes.kind != FileType::Regular {
            return Err(Status::EXIST);
        }
        let size = Sattr { size: attributes.size, ..Sattr::default() };
        let change = self.export.change(&object)?;
        self.set(&object, &size)?;
        change.made(due);
        Ok(object)
    }

    /// Makes a file with the verifier in its times, where a repeated call finds the verifier also
    /// after a restart; the client sets the times by SETATTR after it knows that the file is its
    /// own.
    fn create_exclusive(
        &self,
        (dir, name): (&Object, &[u8]),
        verifier: Verifier,
        due: &mut Due,
    ) -> Result<Object, Status> {
        let (atime, mtime) = times(verifier);
        let Some((object, fd)) = self.new_file(dir, name)? else {
            let object = self.export.lookup(dir, name)?;
            let found = &object.attributes;
            let same = found.kind == FileType::Regular
                && found.size == 0
                && (found.atime, found.mtime) == (atime, mtime);
            if !same {
                return Err(Status::EXIST);
            }
            self.export.change(&object)?.made(due);
            return Ok(object);
        };
        self.export.keep_write(&object, &Arc::new(fd), true);
        let attributes = Sattr {
            atime: SetTime::Client(atime),
            mtime: SetTime::Client(mtime),
            ..Sattr::default()
        };
        self.complete((dir, name), &object, (&attributes, AtFlags::empty()), due)?;
        Ok(object)
    }
}

/// Returns a verifier as two times, in seconds that every file system can store. Two bits of the
/// verifier are lost.
fn times(verifier: Verifier) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = verifier.0;
    let time =
        |bytes| Time { seconds: u32::from_be_bytes(bytes) & (u32::MAX >> 1), nanoseconds: 0 };
    (time([a, b, c, d]), time([e, f, g, h]))
}
