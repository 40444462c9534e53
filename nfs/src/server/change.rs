//! Procedures that change existing objects: SETATTR, REMOVE, RMDIR, RENAME, LINK.

use rustix::fs::{
    AtFlags, Gid, Mode, Timestamps, Uid, chownat, ftruncate, linkat, renameat, unlinkat, utimensat,
};

use super::data::SIZE_MAX;
use super::{Outcome, Share, unknown};
use crate::export::Object;
use crate::export::attributes::timespec;
use crate::export::flush::Due;
use crate::export::name::{fresh, removable};
use crate::wire::{
    FileType, Handle, Link, LinkDone, Remove, Rename, RenameDone, Sattr, SetTime, Setattr, Status,
    WccData,
};

/// Returns the bits of a mode that clients can set. For files, the bits that run a program with its
/// owner's or group's rights are not among them, since all callers act as the server's user.
const fn settable(kind: FileType) -> u32 {
    match kind {
        FileType::Directory => 0o3777,
        _ => 0o1777,
    }
}

impl Share {
    pub(super) fn setattr(&self, call: &Setattr, due: &mut Due) -> Outcome<WccData, WccData> {
        let failed = |e| (e, unknown());
        let object = self.export.object(&call.object).map_err(failed)?;
        self.writable().map_err(failed)?;
        let turn = self.export.turn(&object);
        let before = self.export.attributes(&object);
        let done = if call.guard.is_some_and(|guard| before.is_none_or(|b| b.ctime != guard)) {
            Err(Status::NOT_SYNC)
        } else {
            self.export.change(&object).and_then(|change| {
                self.set(&object, &call.attributes)?;
                change.made(due);
                Ok(())
            })
        };
        let after = self.export.attributes(&object);
        drop(turn);
        let wcc = WccData { before: before.map(|b| b.wcc()), after };
        done.map(|()| wcc).map_err(|e| (e, wcc))
    }

    /// Sets attributes. Size comes first, since a new size changes the times and clears
    /// set-user-ID, as a new owner does, too; times come last.
    pub(super) fn set(&self, object: &Object, new: &Sattr) -> Result<(), Status> {
        if let Some(size) = new.size {
            self.set_size(object, size)?;
        }
        self.set_owner(object, new)?;
        if let Some(mode) = new.mode {
            let mode = Mode::from_raw_mode(mode & settable(object.attributes.kind));
            self.export.set_mode(object, mode)?;
        }
        if new.atime != SetTime::Keep || new.mtime != SetTime::Keep {
            let times = Timestamps {
                last_access: timespec(new.atime),
                last_modification: timespec(new.mtime),
            };
            let (links, name) = self.export.link(object);
            utimensat(links, name, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    fn set_size(&self, object: &Object, size: u64) -> Result<(), Status> {
        match object.attributes.kind {
            FileType::Directory => return Err(Status::ISDIR),
            FileType::Regular => {}
            _ => return Err(Status::INVAL),
        }
        if size > SIZE_MAX {
            return Err(Status::FBIG);
        }
        let file = self.export.open_write(object)?;
        self.export.strip_set_id(object)?;
        Ok(ftruncate(file, size)?)
    }

    /// Sets the owner. Any caller may set the owner that the object has already; to set another,
    /// the server's user needs the right.
    fn set_owner(&self, object: &Object, new: &Sattr) -> Result<(), Status> {
        let now = object.attributes;
        let (uid, gid) =
            (new.uid.filter(|&uid| uid != now.uid), new.gid.filter(|&gid| gid != now.gid));
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            // The system call would take this number as "leave unchanged".
            return Err(Status::INVAL);
        }
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(chownat(&object.path, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    pub(super) fn remove(&self, call: &Remove<'_>, due: &mut Due) -> Outcome<WccData, WccData> {
        self.unlink(call, AtFlags::empty(), due)
    }

    pub(super) fn rmdir(&self, call: &Remove<'_>, due: &mut Due) -> Outcome<WccData, WccData> {
        if call.name.0 == b".." {
            // RFC 1813 section 3.3.13 has this status for `..`.
            return Err((Status::EXIST, unknown()));
        }
        self.unlink(call, AtFlags::REMOVEDIR, due)
    }

    fn unlink(
        &self,
        call: &Remove<'_>,
        flags: AtFlags,
        due: &mut Due,
    ) -> Outcome<WccData, WccData> {
        let failed = |e| (e, unknown());
        let dir = self.export.object(&call.dir).map_err(failed)?;
        self.writable().map_err(failed)?;
        let turn = self.export.turn(&dir);
        let before = self.export.attributes(&dir).map(|a| a.wcc());
        let done = self.unlink_in(&dir, call.name.0, flags, due);
        let wcc = WccData { before, after: self.export.attributes(&dir) };
        drop(turn);
        done.map(|()| wcc).map_err(|e| (e, wcc))
    }

    fn unlink_in(
        &self,
        dir: &Object,
        name: &[u8],
        flags: AtFlags,
        due: &mut Due,
    ) -> Result<(), Status> {
        directory(dir)?;
        let name = removable(name)?;
        let object = self.export.lookup(dir, name)?;
        let change = self.export.change_names(dir)?;
        unlinkat(&dir.path, name, flags)?;
        self.gone(dir, name, &object);
        change.made(due);
        Ok(())
    }

    /// Records that a name is gone; the object may have other names.
    fn gone(&self, dir: &Object, name: &[u8], object: &Object) {
        match self.export.attributes(object) {
            Some(now) if now.nlink > 0 => self.export.unname(dir, name, object.id),
            _ => self.export.forget(object.id),
        }
    }

    pub(super) fn rename(
        &self,
        call: &Rename<'_>,
        due: &mut Due,
    ) -> Outcome<RenameDone, RenameDone> {
        let nothing = RenameDone { from: unknown(), to: unknown() };
        let failed = |e| (e, nothing);
        let from = self.export.object(&call.from.dir).map_err(failed)?;
        let to = self.beside(&call.to.dir).map_err(failed)?;
        self.writable().map_err(failed)?;
        let turns = self.export.turns(&from, &to);
        let before = [&from, &to].map(|dir| self.export.attributes(dir).map(|a| a.wcc()));
        let done = self.rename_in((&from, call.from.name.0), (&to, call.to.name.0), due);
        let after = [&from, &to].map(|dir| self.export.attributes(dir));
        drop(turns);
        let ([from_before, to_before], [from_after, to_after]) = (before, after);
        let wcc = RenameDone {
            from: WccData { before: from_before, after: from_after },
            to: WccData { before: to_before, after: to_after },
        };
        done.map(|()| wcc).map_err(|e| (e, wcc))
    }

    /// Returns the directory that a call names in addition to an object of this export.
    ///
    /// # Errors
    /// `XDEV` when the directory belongs to another export, and the errors of
    /// [`Export::object`](crate::export::Export::object).
    fn beside(&self, dir: &Handle) -> Result<Object, Status> {
        if self.export.is_of_other(dir) {
            return Err(Status::XDEV);
        }
        self.export.object(dir)
    }

    fn rename_in(
        &self,
        (from, from_name): (&Object, &[u8]),
        (to, to_name): (&Object, &[u8]),
        due: &mut Due,
    ) -> Result<(), Status> {
        directory(from)?;
        directory(to)?;
        let (from_name, to_name) = (removable(from_name)?, removable(to_name)?);
        let object = self.export.lookup(from, from_name)?;
        let replaced = match self.export.lookup(to, to_name) {
            // The export has to know which object disappears; and the directory of another export
            // stays where it is.
            Err(status @ (Status::JUKEBOX | Status::ACCES)) => return Err(status),
            replaced => replaced.ok(),
        };
        let changes = [self.export.change_names(from)?, self.export.change_names(to)?];
        renameat(&from.path, from_name, &to.path, to_name)?;
        if replaced.as_ref().is_some_and(|r| r.id == object.id) {
            // Both names belong to one object: the system keeps both.
            return Ok(());
        }
        if let Some(replaced) = replaced {
            self.gone(to, to_name, &replaced);
        }
        self.export.unname(from, from_name, object.id);
        self.export.named(to, to_name, &object);
        changes.into_iter().for_each(|change| change.made(due));
        Ok(())
    }

    pub(super) fn link(&self, call: &Link<'_>, due: &mut Due) -> Outcome<LinkDone, LinkDone> {
        let nothing = LinkDone { attributes: None, dir: unknown() };
        let failed = |e| (e, nothing);
        let object = self.export.object(&call.file).map_err(failed)?;
        let dir = self.beside(&call.at.dir).map_err(failed)?;
        self.writable().map_err(failed)?;
        let turn = self.export.turn(&dir);
        let before = self.export.attributes(&dir).map(|a| a.wcc());
        let done = self.link_in(&object, &dir, call.at.name.0, due);
        let dir = WccData { before, after: self.export.attributes(&dir) };
        drop(turn);
        let all = LinkDone { attributes: self.export.attributes(&object), dir };
        done.map(|()| all).map_err(|e| (e, all))
    }

    fn link_in(
        &self,
        object: &Object,
        dir: &Object,
        name: &[u8],
        due: &mut Due,
    ) -> Result<(), Status> {
        directory(dir)?;
        let name = fresh(name)?;
        if object.attributes.kind == FileType::Directory {
            return Err(Status::ISDIR);
        }
        // File systems store the new count of names along with the name. An fsync of the object
        // itself would put all data on the disk that clients have not committed.
        let change = self.export.change_names(dir)?;
        // Link through the descriptor, so that the new name is for exactly this object, also for a
        // symbolic link itself.
        let (links, of) = self.export.link(object);
        linkat(links, of, &dir.path, name, AtFlags::SYMLINK_FOLLOW)?;
        self.export.named(dir, name, object);
        change.made(due);
        Ok(())
    }
}

fn directory(object: &Object) -> Result<(), Status> {
    if object.attributes.kind == FileType::Directory { Ok(()) } else { Err(Status::NOTDIR) }
}
