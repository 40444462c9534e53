//! What the system lets a process do that programs for libibverbs need.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Whether faults of this process's own can be handled in it: what makes memory of a program shared while
/// other threads write.
///
/// # Errors
/// Why not: the kernel has none, or a filter of system calls (seccomp) forbids it.
pub(super) fn userfaultfd() -> io::Result<()> {
    /// `UFFD_USER_MODE_ONLY`, since Linux 5.11: no privilege is needed for it.
    const USER_MODE_ONLY: libc::c_long = 1;
    let flags = libc::c_long::from(libc::O_CLOEXEC) | USER_MODE_ONLY;
    // SAFETY: the call takes flags alone and makes a descriptor, or fails.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, which nothing else owns.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Whether a page can be protected against writing and given back: the way where there is no userfaultfd.
///
/// # Errors
/// What the system says.
pub(super) fn mprotect() -> io::Result<()> {
    const PAGE: usize = 4096;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of its own at an address of the kernel's choice, of which the protection changes and
    // which is unmapped with the same length; nothing is read or written there.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE, both, anonymous, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let changed = libc::mprotect(page, PAGE, libc::PROT_READ) == 0
            && libc::mprotect(page, PAGE, both) == 0;
        let result = if changed { Ok(()) } else { Err(io::Error::last_os_error()) };
        libc::munmap(page, PAGE);
        result
    }
}

/// Whether memory can be shared in files that nobody can shrink or punch holes into any more.
///
/// # Errors
/// What the system says: `F_SEAL_FUTURE_WRITE` is of Linux 5.1.
pub(super) fn sealed_memory() -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("heddle-check", flags)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    Ok(fcntl_add_seals(&file, seals)?)
}

/// Bytes that this process may lock in memory; no limit when absent.
pub(super) fn lockable() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_probes_succeed_where_tests_run_but_for_what_a_filter_may_forbid() {
        mprotect().unwrap();
        sealed_memory().unwrap();
        if let Err(e) = userfaultfd() {
            let forbidden = [libc::EPERM, libc::ENOSYS, libc::EINVAL];
            assert!(forbidden.contains(&e.raw_os_error().unwrap()), "{e}");
        }
    }
}
