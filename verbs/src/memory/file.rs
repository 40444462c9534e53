//! Files in memory that two processes map.
//!
//! **Order.** A client makes the file, maps it and sends it. The RNIC's process maps it too, seals it, and
//! only then touches a byte:
//!
//! | Seal | Without it |
//! |---|---|
//! | `F_SEAL_SHRINK` | the file ends under the mapping, and a worker that touches a byte beyond is killed |
//! | `F_SEAL_GROW` | the file has more memory than its owner's quota counts |
//! | `F_SEAL_FUTURE_WRITE` | a hole is punched into it (`fallocate`, `MADV_REMOVE`): a worker that touches it waits for whoever punches, refills it at its own expense, and is killed where there is no page |
//! | `F_SEAL_SEAL` | |
//!
//! Mappings that are there when the third seal comes stay writable, in the client too, and in its children.
//! No process can make another writable one, so a file can be brought to one device in its life.
//!
//! A file that a program shares with others cannot be sealed: they go on using it. The RNIC of one user alone maps those
//! of its own programs as they are ([`Region::of_file`](super::Region::of_file)).

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use heddle_socket::descriptor::aside;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create, open, seek,
};
use rustix::io::Errno;

use super::pages::{GIB, MIB2, PAGE};
use super::region::RegionError;

/// File systems of memory, by what `fstatfs` says.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// A file of `bytes` bytes on pages of `page` that can neither shrink nor grow.
pub(super) fn create(bytes: usize, page: usize) -> std::io::Result<OwnedFd> {
    let pages = match page {
        MIB2 => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        GIB => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        _ => MemfdFlags::empty(),
    };
    let fd = memfd_create(c"heddle", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages)?;
    let fd = aside(fd);
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// Looks whether `len` bytes of a file of a process that is trusted can be mapped.
pub(super) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), RegionError> {
    if !seals(fd)?.contains(SealFlags::SHRINK) {
        return Err(RegionError::NotSealed);
    }
    if file_system(fd)? != TMPFS {
        return Err(RegionError::NotMemory);
    }
    let has = size(fd, len)?;
    if has < len as u64 { Err(RegionError::FileTooShort { has, wanted: len }) } else { Ok(()) }
}

/// Looks whether the file of a client, of exactly `len` bytes in whole pages, can be mapped: bytes of a
/// page of it.
pub(super) fn check_client(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    let seals = seals(fd)?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(RegionError::AlreadySealed);
    }
    let page = page_size(fd, len)?;
    check_size(fd, len, page)?;
    Ok(page)
}

/// Looks whether `len` bytes of a file that anybody may shrink can be mapped: bytes of a page of it.
pub(super) fn check_unsealed(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    let page = page_size(fd, len)?;
    let has = size(fd, len)?;
    if has < len as u64 { Err(RegionError::FileTooShort { has, wanted: len }) } else { Ok(page) }
}

fn page_size(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    match file_system(fd)? {
        TMPFS => Ok(PAGE),
        HUGETLBFS => {
            let size = fstatfs(fd).map_err(|e| no_memory(len, e))?.f_bsize;
            let size = usize::try_from(size).ok().filter(|s| s.is_power_of_two());
            size.ok_or(RegionError::NotMemory)
        }
        _ => Err(RegionError::NotMemory),
    }
}

/// Seals the file of a client, which is mapped here by now: from here on it keeps its size and all its
/// pages, whatever descriptors and mappings of it there are.
pub(super) fn seal(fd: BorrowedFd<'_>, len: usize, page: usize) -> Result<(), RegionError> {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let all = size | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    match fcntl_add_seals(fd, all) {
        Ok(()) => {}
        // Linux 5.1 has the third.
        Err(Errno::INVAL) => return Err(RegionError::NoSuchSeal),
        Err(Errno::PERM) => return Err(RegionError::AlreadySealed),
        Err(e) => return Err(no_memory(len, e)),
    }
    // It may have had another size until now, and pages beyond its end.
    check_size(fd, len, page)
}

/// Another open file description of the file behind `fd`, to read alone. A client shares the one behind
/// `fd` itself, and with it the lock of the file position, which it can hold for as long as it likes.
pub(super) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, RegionError> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| no_memory(0, e))
}

/// The first byte at or after `at` that the file has no page for; its size when it has all.
pub(super) fn hole(fd: BorrowedFd<'_>, at: usize) -> Result<u64, RegionError> {
    seek(fd, SeekFrom::Hole(at as u64)).map_err(|e| no_memory(0, e))
}

fn check_size(fd: BorrowedFd<'_>, len: usize, page: usize) -> Result<(), RegionError> {
    let wanted = len.next_multiple_of(page);
    let has = size(fd, len)?;
    if has < wanted as u64 {
        return Err(RegionError::FileTooShort { has, wanted });
    }
    let blocks = fstat(fd).map_err(|e| no_memory(len, e))?.st_blocks;
    let held = u64::try_from(blocks).unwrap_or(u64::MAX).saturating_mul(512);
    let most = has.max(held);
    if most > wanted as u64 {
        return Err(RegionError::FileTooLong { has: most, wanted });
    }
    Ok(())
}

fn seals(fd: BorrowedFd<'_>) -> Result<SealFlags, RegionError> {
    // The first question: only files in memory have seals, and any other one may wait for whoever serves
    // the file.
    fcntl_get_seals(fd).map_err(|_| RegionError::NotSealed)
}

fn file_system(fd: BorrowedFd<'_>) -> Result<u64, RegionError> {
    let found = fstatfs(fd).map_err(|_| RegionError::NotMemory)?.f_type;
    Ok(u64::try_from(found).unwrap_or(0))
}

fn size(fd: BorrowedFd<'_>, len: usize) -> Result<u64, RegionError> {
    let stat = fstat(fd).map_err(|e| no_memory(len, e))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

fn no_memory(len: usize, e: Errno) -> RegionError {
    RegionError::NoMemory { len, why: e.to_string() }
}
