//! Probes system features that programs for libibverbs need.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Checks that a process can handle its own page faults. The library needs this to share memory of
/// a program while the program's other threads write.
///
/// # Errors
/// Returns the system's error: the kernel has no userfaultfd, or a filter of system calls (seccomp)
/// forbids it.
pub(super) fn userfaultfd() -> io::Result<()> {
    /// `UFFD_USER_MODE_ONLY`, since Linux 5.11: needs no privilege.
    const USER_MODE_ONLY: libc::c_long = 1;
    let flags = libc::c_long::from(libc::O_CLOEXEC) | USER_MODE_ONLY;
    // SAFETY: the call takes only flags, and either makes a descriptor or fails.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above just made the descriptor, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Checks that a process can write-protect a page and undo that: the library's way without
/// userfaultfd.
///
/// # Errors
/// Returns the system's error.
pub(super) fn mprotect() -> io::Result<()> {
    const PAGE: usize = 4096;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the block makes its own mapping at an address that the kernel chooses, changes the
    // mapping's protection, and unmaps it with the same length; nothing reads or writes the memory.
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

/// Checks that memory can be shared in files that no process can shrink or punch holes into any
/// more.
///
/// # Errors
/// Returns the system's error: `F_SEAL_FUTURE_WRITE` exists since Linux 5.1.
pub(super) fn sealed_memory() -> io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("heddle-check", flags)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    Ok(fcntl_add_seals(&file, seals)?)
}

/// Returns the bytes that this process may lock in memory, or `None` for no limit.
pub(super) fn lockable() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_probes_succeed_unless_a_filter_forbids_userfaultfd() {
        mprotect().unwrap();
        sealed_memory().unwrap();
        if let Err(e) = userfaultfd() {
            let forbidden = [libc::EPERM, libc::ENOSYS, libc::EINVAL];
            assert!(forbidden.contains(&e.raw_os_error().unwrap()), "{e}");
        }
    }
}
