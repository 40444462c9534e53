//! Opening a file that its mode keeps its owner from.
//!
//! A client opens a file once and writes to it for as long as it likes, whatever the mode becomes or was
//! from the start: `tar` and `git` make files of mode 0444 and then write them. An NFS server sees no open
//! file, so RFC 1813 section 4.4 has it let the owner read and write regardless of the mode. The kernel
//! does not: a file whose descriptor was evicted, or was opened by an earlier process, could not be opened
//! again. An owner without privileges can change the mode though, so the export adds the owner's bit, opens
//! the file, and takes the bit back.
//!
//! For these microseconds the owner, and nobody else, could open the file from elsewhere, which the owner
//! can do at any time by the same means. A process that is killed in between leaves the bit.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, chmodat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Export, Object, locked, stat_of};

/// Bits that `chmod` sets.
const MODE: u32 = 0o7777;

impl Export {
    /// Opens a regular file for its owner, whom its mode refused.
    ///
    /// # Errors
    /// `ACCESS` when the thread does not act as the owner; what the system says otherwise.
    pub(super) fn open_as_owner(&self, object: &Object, flags: OFlags) -> Result<OwnedFd, Errno> {
        if object.attributes.uid != geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let needed = match flags & OFlags::RWMODE {
            OFlags::RDONLY => Mode::RUSR,
            OFlags::WRONLY => Mode::WUSR,
            _ => Mode::RUSR | Mode::WUSR,
        };
        // A SETATTR in between would have its mode undone.
        let _modes = locked(&self.modes);
        let mode = self.mode(object)?;
        let wider = mode | needed;
        self.chmod(object, wider)?;
        let opened = self.reopen(object, flags);
        // The host may have set another mode meanwhile, which stays.
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

    /// Takes the rights of its owner and group from a program whose contents are about to change, as the
    /// kernel does before a write of anybody but root: set-user-ID, and set-group-ID where the group may
    /// execute the file.
    ///
    /// # Errors
    /// What the system says.
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
            // A thread that may not change the mode has no CAP_FSETID, so the kernel strips these bits.
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
