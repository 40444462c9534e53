//! `userfaultfd`: the guard that makes writers sleep in their page fault.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use heddle_socket::descriptor::aside;

use super::sys::{self, Errno};

/// Descriptor flag: faults of the kernel itself (in `read(2)` into a guarded page) become errors.
const USER_MODE_ONLY: usize = 1;
const API: u64 = 0xaa;
const UFFDIO_API: usize = 0xc018_aa3f;
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
const UFFDIO_WAKE: usize = 0x8010_aa02;
const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`, since Linux 6.1.
const NEW: usize = 0xaa00;
const REGISTER_WP: u64 = 2;

/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`, since Linux 5.7.
const WP: u64 = 1;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, since Linux 5.19: the kernel can guard shared memory.
const WP_SHARED: u64 = 1 << 12;
/// `UFFD_FEATURE_WP_UNPOPULATED`, since Linux 6.4: the kernel can guard absent pages.
const WP_UNPOPULATED: u64 = 1 << 13;

/// A descriptor that guards pages of this process.
#[derive(Debug)]
pub(super) struct Uffd {
    fd: OwnedFd,
    features: u64,
    /// True if the kernel's own faults wait too.
    pub(super) is_full: bool,
}

impl Uffd {
    /// Opens a descriptor, for the kernel's own faults too if the system allows that.
    ///
    /// # Errors
    /// Returns the system's errors: of a seccomp filter (EPERM, ENOSYS), of a kernel before 5.7
    /// (EINVAL).
    pub(super) fn open() -> Result<Uffd, Errno> {
        let flags = sys::bits(libc::O_CLOEXEC | libc::O_NONBLOCK);
        let new = |flags: usize| {
            // SAFETY: the call only makes a descriptor.
            let fd = unsafe { sys::call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) }?;
            Ok(own(fd))
        };
        let mut refused = Errno(libc::ENOSYS);
        for (is_full, opened) in
            [(true, new(flags)), (true, by_device(flags)), (false, new(flags | USER_MODE_ONLY))]
        {
            match opened.and_then(agree) {
                Ok((fd, features)) => return Ok(Uffd { fd: aside(fd), features, is_full }),
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns true if the kernel can guard shared memory.
    pub(super) fn guards_shared(&self) -> bool {
        self.features & WP_SHARED != 0
    }

    /// Returns true if the kernel can guard absent pages.
    pub(super) fn guards_unpopulated(&self) -> bool {
        self.features & WP_UNPOPULATED != 0
    }
}

fn own(fd: usize) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor.
    unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1)) }
}

fn by_device(flags: usize) -> Result<OwnedFd, Errno> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let device = device.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENOENT)))?;
    // SAFETY: the call only makes a descriptor.
    let fd = unsafe { ioctl(device.as_raw_fd(), NEW, flags) }?;
    Ok(own(fd))
}

/// Asks for all features, then for fewer until the kernel agrees. Returns the features agreed on.
fn agree(fd: OwnedFd) -> Result<(OwnedFd, u64), Errno> {
    let mut refused = Errno(libc::EINVAL);
    for features in [WP | WP_SHARED | WP_UNPOPULATED, WP | WP_SHARED, WP] {
        let mut api = [API, features, 0];
        // SAFETY: `api` is a live structure of three words.
        match unsafe { ioctl(fd.as_raw_fd(), UFFDIO_API, (&raw mut api).addr()) } {
            Ok(_) => return Ok((fd, features)),
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

#[inline(always)]
unsafe fn ioctl(fd: RawFd, request: usize, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the caller keeps the conditions of the call.
    unsafe { sys::call(libc::SYS_ioctl, [sys::fd(fd), request, argument, 0, 0, 0]) }
}

/// Makes writers of `[start, start + len)` sleep from here on. Touches only the stack.
///
/// # Safety
/// `fd` belongs to a [`Uffd`], and the range is whole pages.
pub(super) unsafe fn guard(fd: RawFd, start: usize, len: usize) -> Result<(), Errno> {
    let range = [start as u64, len as u64];
    let mut register = [range[0], range[1], REGISTER_WP, 0];
    let mut protect = [range[0], range[1], 1];
    // SAFETY: the structures are live and have the sizes that the requests say.
    unsafe {
        ioctl(fd, UFFDIO_REGISTER, (&raw mut register).addr())?;
        let protected = ioctl(fd, UFFDIO_WRITEPROTECT, (&raw mut protect).addr());
        if let Err(e) = protected {
            let mut range = range;
            let _ = ioctl(fd, UFFDIO_UNREGISTER, (&raw mut range).addr());
            return Err(e);
        }
    }
    Ok(())
}

/// Wakes the writers. If a new mapping has `replaced` the guarded one, the guard itself ended with
/// the old mapping.
///
/// # Safety
/// The conditions of [`guard`].
pub(super) unsafe fn wake(fd: RawFd, start: usize, len: usize, replaced: bool) {
    let mut range = [start as u64, len as u64];
    // SAFETY: the structures are live and have the sizes that the requests say.
    unsafe {
        if !replaced {
            let mut protect = [range[0], range[1], 0];
            let _ = ioctl(fd, UFFDIO_WRITEPROTECT, (&raw mut protect).addr());
            let _ = ioctl(fd, UFFDIO_UNREGISTER, (&raw mut range).addr());
        }
        let _ = ioctl(fd, UFFDIO_WAKE, (&raw mut range).addr());
    }
}
