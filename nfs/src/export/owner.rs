//! Opens a file whose mode denies access to its owner.
//!
//! A client opens a file once and writes to it for as long as it likes, whatever the mode becomes
//! or was from the start: `tar` and `git` make files of mode 0444 and then write them. An NFS
//! server sees no open file, so RFC 1813 section 4.4 has it let the owner read and write regardless
//! of the mode. The kernel does not: it would refuse to reopen such a file after its descriptor was
//! evicted or the server restarted. An owner without privileges can change the mode though, so the
//! export adds the owner's bit, opens the file, and takes the bit back.
//!
//! For these microseconds the owner, and no other user, could open the file from elsewhere, which
//! the owner can do at any time by the same means. If the process is killed in between, the bit
//! stays set.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, chmodat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Export, Object, locked, stat_of};

/// The bits that `chmod` sets.
const MODE: u32 = 0o7777;

impl Export {
    /// Opens a regular file for its owner, to whom the file's mode denied access.
    ///
    /// # Errors
    /// `ACCESS` when the thread does not act as the owner; otherwise the error of the system call.
    pub(super) fn open_as_owner(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        if object.attributes.uid != geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let needed = match flags & OFlags::RWMODE {
            OFlags::RDONLY => Mode::RUSR,
            OFlags::WRONLY => Mode::WUSR,
            _ => Mode::RUSR | Mode::WUSR,
        };
        // Without the lock this function could undo the mode that a concurrent SETATTR sets.
        let _modes = locked(&self.modes);
        let mode = self.mode(object)?;
        let wider = mode | needed;
        self.chmod(object, wider)?;
        let opened = self.reopen(object, flags);
        // A process of the host may have set another mode meanwhile, which stays.
        if self.mode(object) == Ok(wider) {
            self.chmod(object, mode)?;
        }
        opened
    }

    /// Sets the mode of an object.
    pub(crate) fn set_mode(&self, object: &Object, mode: Mode) -> Result<(), Errno> {
        let _modes = locked(&self.modes);
        self.chmod(object, mode)
    }

    /// Removes the bits of a program by which it runs with the rights of its owner and group,
    /// before its contents change: set-user-ID, and set-group-ID where the group may execute the
    /// file. The kernel does the same before a write by any user but root.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn strip_set_id(&self, object: &Object) -> Result<(), Errno> {
        let _modes = locked(&self.modes);
        let mode = self.mode(object)?;
        let mut stripped = mode - Mode::SUID;
        if mode.contains(Mode::XGRP) {
            stripped -= Mode::SGID;
        }
        if stripped == mode {
            return Ok(());
        }
        match self.chmod(object, stripped) {
            // A thread that may not change the mode has no CAP_FSETID, so the kernel strips these
            // bits at the write.
            Err(Errno::PERM) => Ok(()),
            done => done,
        }
    }

    fn mode(&self, object: &Object) -> Result<Mode, Errno> {
        Ok(Mode::from_raw_mode(u32::from(stat_of(&object.path)?.stx_mode) & MODE))
    }

    fn chmod(&self, object: &Object, mode: Mode) -> Result<(), Errno> {
        let (links, name) = self.link(object);
        chmodat(links, name, mode, AtFlags::empty())
    }
}
