//! Mappings: how they are made, and how they end.

use std::ptr::{self, NonNull};

use crate::pages::{MIB2, PAGE, PageSize};

const HUGE: usize = MIB2;

/// A mapping to which nothing refers any more; dropping this unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
}

// SAFETY: an address range that belongs to this value alone.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmap in pieces: a page fault of another thread waits for one piece, and not for all.
        const PIECE: usize = 64 << 20;
        for off in (0..self.bytes).step_by(PIECE) {
            // SAFETY: part of a mapping that a region made, to which nothing refers any more.
            unsafe {
                let at = self.base.as_ptr().add(off);
                libc::munmap(at.cast(), PIECE.min(self.bytes - off));
            }
        }
    }
}

/// Maps `len` bytes. Returns the base, the bytes mapped, and the page size.
pub(super) fn map_anonymous(
    len: usize,
    pages: PageSize,
) -> std::io::Result<(NonNull<u8>, usize, usize)> {
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if cfg!(miri) {
        // Miri knows no other flags, and no `madvise`.
        let bytes = len.next_multiple_of(PAGE);
        return Ok((mmap(bytes, PRIVATE, -1)?, bytes, PAGE));
    }
    for &page in pages.hugepages(len) {
        // The flags select one of the system's page sizes by its logarithm; without one, they
        // select the default.
        let size = page.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
        let bytes = len.next_multiple_of(page);
        if let Ok(p) = mmap(bytes, PRIVATE | libc::MAP_HUGETLB | size | libc::MAP_POPULATE, -1) {
            return Ok((p, bytes, page));
        }
    }
    if !pages.may_be_small() {
        return Err(std::io::Error::other("too few hugepages are free"));
    }
    let huge = len.next_multiple_of(HUGE);
    check_available(huge)?;
    if len < HUGE || pages == PageSize::Small {
        let mapped = len.next_multiple_of(PAGE);
        return Ok((mmap(mapped, PRIVATE | libc::MAP_POPULATE, -1)?, mapped, PAGE));
    }
    // Transparent hugepages need alignment to a hugepage: map more and cut both ends off.
    let raw = mmap(huge + HUGE, PRIVATE, -1)?;
    let skip = raw.as_ptr().align_offset(HUGE);
    // SAFETY: all ranges lie inside the mapping just made, which no other code knows; the unmapped
    // parts are not used again; madvise is a hint.
    unsafe {
        let base = raw.as_ptr().add(skip);
        if skip > 0 {
            libc::munmap(raw.as_ptr().cast(), skip);
        }
        if skip < HUGE {
            libc::munmap(base.add(huge).cast(), HUGE - skip);
        }
        libc::madvise(base.cast(), huge, libc::MADV_HUGEPAGE);
        // MADV_POPULATE_WRITE exists since Linux 5.14; on older kernels the first use faults the
        // pages in.
        libc::madvise(base.cast(), huge, libc::MADV_POPULATE_WRITE);
        Ok((NonNull::new_unchecked(base), huge, PAGE))
    }
}

/// Checks that so much memory is available: this process touches all pages at once, and too many
/// would end in the out-of-memory killer.
pub(super) fn check_available(bytes: usize) -> std::io::Result<()> {
    match available_memory().filter(|&a| bytes as u64 > a) {
        Some(a) => Err(std::io::Error::other(format!("{} MiB are available", a >> 20))),
        None => Ok(()),
    }
}

/// Returns the bytes that the system can give without swapping, if it reports them.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

pub(super) fn mmap(len: usize, flags: i32, fd: i32) -> std::io::Result<NonNull<u8>> {
    mmap_at(0, len, flags, fd)
}

/// Maps at an address that the kernel need not take; 0 leaves the choice to the kernel.
pub(super) fn mmap_at(
    hint: usize,
    len: usize,
    flags: i32,
    fd: i32,
) -> std::io::Result<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where none exists, which touches no memory in use.
    let p = unsafe { libc::mmap(ptr::without_provenance_mut(hint), len, prot, flags, fd, 0) };
    match NonNull::new(p.cast::<u8>()) {
        Some(p) if p.as_ptr().cast() != libc::MAP_FAILED => Ok(p),
        _ => Err(std::io::Error::last_os_error()),
    }
}
