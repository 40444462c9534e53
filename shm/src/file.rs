//! Files in memory that two processes map.
//!
//! **Order.** A client makes the file, maps it and sends it. The RNIC's process maps it too, seals
//! it, and only then touches a byte:
//!
//! | Seal | Without it |
//! |---|---|
//! | `F_SEAL_SHRINK` | the file ends under the mapping; touching a byte beyond kills a worker |
//! | `F_SEAL_GROW` | the file has more memory than its owner's quota counts |
//! | `F_SEAL_FUTURE_WRITE` | a client punches a hole into it (`fallocate`, `MADV_REMOVE`) |
//! | `F_SEAL_SEAL` | |
//!
//! A worker that touches a hole waits for the thread that is punching it, refills the hole at its
//! own expense, and is killed where there is no page.
//!
//! Mappings made before the third seal stay writable, in the client and in its children too. No
//! process can make another writable mapping after that seal, so a client can bring a file to only
//! one device in the file's life.
//!
//! The RNIC's process cannot seal a file that a program shares with others, because they go on
//! using the file. An RNIC that serves only one user maps such files of its own programs as they
//! are ([`Region::of_file`](super::Region::of_file)).

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use heddle_socket::descriptor::aside;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create, open, seek,
};
use rustix::io::Errno;

use super::pages::{GIB, MIB2, PAGE};
use super::region::RegionError;

/// File systems of memory, by their numbers in `fstatfs`.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Returns a file of `bytes` bytes on pages of `page` bytes that can neither shrink nor grow.
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

/// Checks that `len` bytes of a file can be mapped, of a process that is trusted.
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

/// Checks that a client's file, of exactly `len` bytes in whole pages, can be mapped. Returns the
/// bytes of a page of the file.
pub(super) fn check_client(fd: BorrowedFd<'_>, len: usize) -> Result<usize, RegionError> {
    let seals = seals(fd)?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(RegionError::AlreadySealed);
    }
    let page = page_size(fd, len)?;
    check_size(fd, len, page)?;
    Ok(page)
}

/// Checks that `len` bytes of a file that any process may shrink can be mapped. Returns the bytes
/// of a page of the file.
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

/// Seals a client's file, which is mapped here by now: from here on the file keeps its size and all
/// its pages, regardless of all descriptors and mappings of it.
pub(super) fn seal(fd: BorrowedFd<'_>, len: usize, page: usize) -> Result<(), RegionError> {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let all = size | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    match fcntl_add_seals(fd, all) {
        Ok(()) => {}
        // Linux has the third seal since version 5.1.
        Err(Errno::INVAL) => return Err(RegionError::NoSuchSeal),
        Err(Errno::PERM) => return Err(RegionError::AlreadySealed),
        Err(e) => return Err(no_memory(len, e)),
    }
    // The file may have had another size until now, and pages beyond its end.
    check_size(fd, len, page)
}

/// Opens the file behind `fd` again, for reading only. The client shares the open file description
/// of `fd` itself, and with it the lock of the file position, which the client can hold for as long
/// as it likes.
pub(super) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd, RegionError> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| no_memory(0, e))
}

/// Returns the first byte at or after `at` that the file has no page for; the file's size when it
/// has all pages.
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
    // Ask this first: only files in memory have seals, and a call on any other file may wait for
    // the server of that file.
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
