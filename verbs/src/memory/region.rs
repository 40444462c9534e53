//! A mapping whose bytes may be registered.
//!
//! Regions come from three places: memory the library maps for itself ([`Region::anonymous`], on
//! hugepages when some are free); memory that can be handed to another process as a file descriptor
//! ([`Region::shared`], [`Region::from_fd`]); and memory an application has already
//! ([`Region::from_raw`]). All pages of the first two are touched at once, so that the data path
//! takes no page fault.
//!
//! **A file that another process holds may shrink** under the mapping, and a worker that touches a
//! byte beyond its end is killed. So a shared region is sealed against shrinking, and one that
//! comes from outside is refused without that seal. A file of a client may lose no page either: it is
//! sealed against that before a byte of it is touched ([`Region::of_client`]), and its pages are locked.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use heddle_base::Sum;

use super::guard::Watch;
use super::pages::{MIB2, PAGE, PageSize};
use super::{file, raw};
use crate::closer;

const HUGE: usize = MIB2;

/// Why there is no region, or no access to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The size is zero, or no address space has it.
    #[error("a region cannot have {0} bytes")]
    Size(usize),
    /// The system has no memory for it, or refuses to map it.
    #[error("no memory for a region of {len} bytes: {why}")]
    NoMemory {
        /// Bytes asked for.
        len: usize,
        /// The system's reason.
        why: String,
    },
    /// The file could become shorter than the mapping.
    #[error("the file is not sealed against shrinking (F_SEAL_SHRINK)")]
    NotSealed,
    /// The file is none of ordinary memory. One of hugepages may lose a page that the pool has no other
    /// for, and a worker that touches it is killed.
    #[error("the file is not one in ordinary memory (memfd_create without MFD_HUGETLB)")]
    NotMemory,
    /// The file has been brought to a device before: it has a seal against further writable mappings.
    #[error(
        "the file is sealed against writing: memory can be brought to one device, once (make another Region)"
    )]
    AlreadySealed,
    /// The kernel has no seal against holes.
    #[error("this kernel cannot seal a file against holes (F_SEAL_FUTURE_WRITE, Linux 5.1)")]
    NoSuchSeal,
    /// The file has more memory than was to be mapped.
    #[error("the file has {has} bytes of memory, more than {wanted}")]
    FileTooLong {
        /// Its length, or what it holds beyond that.
        has: u64,
        /// Bytes to be mapped, in whole pages.
        wanted: usize,
    },
    /// No other process can be given it: it has no file.
    #[error("the region cannot be given to another process (Region::shared can)")]
    NotShared,
    /// The file is shorter than what was to be mapped.
    #[error("the file has {has} bytes, fewer than {wanted}")]
    FileTooShort {
        /// Its length.
        has: u64,
        /// Bytes to be mapped.
        wanted: usize,
    },
    /// The range does not lie inside.
    #[error("bytes {off}..{off}+{count} are outside a region of {len} bytes")]
    OutOfRange {
        /// First byte.
        off: usize,
        /// Number of bytes.
        count: usize,
        /// Size of the region.
        len: usize,
    },
}

/// A mapping; see [`memory`](crate::memory). Unmapped, or given back to its owner, when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    page: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Our mapping of so many bytes, and the file behind it. One that is a client's, by its making or
    /// its size, is unmapped by another thread: see [`closer`].
    Mapped { bytes: usize, fd: Option<OwnedFd>, client: Option<Client> },
    /// Somebody else's memory, which stays valid while this lives.
    Borrowed { _owner: Box<dyn Any + Send + Sync> },
}

/// What there is beside a mapping of a client's file.
#[derive(Debug)]
struct Client {
    /// None where too many regions are watched.
    watch: Option<Watch>,
}

// SAFETY: a region is an address range; every access to its bytes goes through raw pointers, with
// no reference to them and no promise about their content, from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zeroed bytes for this process alone; on hugepages when enough of them are free, else
    /// transparent ones are asked for.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn anonymous(len: usize) -> Result<Region, RegionError> {
        Region::anonymous_on(len, PageSize::Auto)
    }

    /// As [`anonymous`](Region::anonymous), on pages of a size. The memory is touched, and so it
    /// lies at the processor socket of the thread that calls this.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`]; the latter also when hugepages are asked for
    /// and too few are free.
    pub fn anonymous_on(len: usize, pages: PageSize) -> Result<Region, RegionError> {
        check_size(len)?;
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let (base, bytes, page) = map_anonymous(len, pages).map_err(no_memory)?;
        Ok(Region { base, len, page, backing: Backing::Mapped { bytes, fd: None, client: None } })
    }

    /// `len` zeroed bytes that another process can map by [`fd`](Region::fd). The file is sealed:
    /// it can neither shrink nor grow.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn shared(len: usize) -> Result<Region, RegionError> {
        Region::shared_on(len, PageSize::Small)
    }

    /// As [`shared`](Region::shared), on pages of a size.
    ///
    /// # Errors
    /// As [`anonymous_on`](Region::anonymous_on).
    pub fn shared_on(len: usize, pages: PageSize) -> Result<Region, RegionError> {
        check_size(len)?;
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        for &page in pages.hugepages(len) {
            let bytes = len.next_multiple_of(page);
            // The mapping reserves them all, or fails.
            let fd = file::create(bytes, page);
            if let Ok(fd) = fd
                && let Ok(base) = mmap(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd())
            {
                let backing = Backing::Mapped { bytes, fd: Some(fd), client: None };
                return Ok(Region { base, len, page, backing });
            }
        }
        if !pages.may_be_small() {
            return Err(no_memory(std::io::Error::other("too few hugepages are free")));
        }
        let bytes = len.next_multiple_of(PAGE);
        check_available(bytes).map_err(no_memory)?;
        let fd = file::create(bytes, PAGE).map_err(no_memory)?;
        let base = mmap(bytes, libc::MAP_SHARED, fd.as_raw_fd()).map_err(no_memory)?;
        let region = Region {
            base,
            len,
            page: PAGE,
            backing: Backing::Mapped { bytes, fd: Some(fd), client: None },
        };
        region.populate(0, len)?;
        Ok(region)
    }

    /// The first `len` bytes of a file in memory that somebody else has made.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`], [`RegionError::NotMemory`], [`RegionError::FileTooShort`],
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn from_fd(fd: OwnedFd, len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        file::check(fd.as_fd(), len)?;
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let bytes = len.next_multiple_of(PAGE);
        let how = libc::MAP_SHARED | libc::MAP_POPULATE;
        let base = mmap(bytes, how, fd.as_raw_fd()).map_err(no_memory)?;
        let backing = Backing::Mapped { bytes, fd: Some(fd), client: None };
        Ok(Region { base, len, page: PAGE, backing })
    }

    /// Memory that a client has made and mapped: all of its file, which is sealed here so that it keeps
    /// its pages. Nothing of it is touched; [`populate`](Region::populate) follows. The descriptor stays
    /// with its owner, who closes it where that may wait. This waits as long as the client holds its file
    /// (it may be filling it), so it is for a thread that may wait; so is the end of the mapping
    /// ([`closer`]).
    ///
    /// # Errors
    /// [`RegionError`].
    pub(crate) fn of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        let page = file::check_client(fd, len)?;
        let bytes = len.next_multiple_of(page);
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let base = mmap(bytes, libc::MAP_SHARED, fd.as_raw_fd()).map_err(no_memory)?;
        let client = Some(Client { watch: Watch::new(base.as_ptr(), bytes) });
        let backing = Backing::Mapped { bytes, fd: None, client };
        let region = Region { base, len, page, backing };
        file::seal(fd, len, page)?;
        Ok(region)
    }

    /// Touches `[off, off + len)`, so that nobody takes a page fault there later; of a client's file the
    /// pages are locked as well, where the process may lock as many. For whoever maps much and has
    /// something else to do in between.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; [`RegionError::NoMemory`] when the system has no page for it.
    pub fn populate(&self, off: usize, len: usize) -> Result<(), RegionError> {
        let page = self.page.max(PAGE);
        let end = off.saturating_add(len).div_ceil(page).saturating_mul(page);
        self.checked(off, len)?;
        let Backing::Mapped { bytes, client, .. } = &self.backing else { return Ok(()) };
        let (bytes, client) = (*bytes, client.is_some());
        let (first, end) = (off / page * page, end.min(bytes));
        // SAFETY: whole pages of our mapping, which keep what is in them.
        let populated = unsafe {
            let at = self.base.as_ptr().add(first);
            let populated = libc::madvise(at.cast(), end - first, libc::MADV_POPULATE_WRITE);
            let why = std::io::Error::last_os_error();
            // Swapped out, a page of a client's would keep a worker waiting for the disk. This fails
            // beyond RLIMIT_MEMLOCK, and then the pages are only there.
            if client && page == PAGE {
                libc::mlock(at.cast(), end - first);
            }
            if populated == 0 { Ok(()) } else { Err(why) }
        };
        match populated {
            // Before Linux 5.14 pages come with their lock, or with their first use.
            Err(e) if e.raw_os_error() != Some(libc::EINVAL) => {
                Err(RegionError::NoMemory { len, why: e.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Memory an application has already, of any alignment. `owner` is what keeps it: it is dropped
    /// when nothing refers to the region any more, which may be long after the last handle of the
    /// application is gone.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes, from any thread, until `owner` is
    /// dropped; and until then no Rust reference to those bytes is used, since they may change at
    /// any time.
    ///
    /// # Errors
    /// [`RegionError::Size`].
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Region, RegionError> {
        check_size(len)?;
        Ok(Region { base, len, page: 1, backing: Backing::Borrowed { _owner: owner } })
    }

    /// Whether memory of a client has failed here: it reads as zeros, and its session has to end.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.backing {
            Backing::Mapped { client: Some(client), .. } => {
                client.watch.as_ref().is_some_and(Watch::is_lost)
            }
            _ => false,
        }
    }

    /// Bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of the mapping, whole pages; `None` when it is not ours, and then it may begin and end
    /// anywhere.
    pub fn mapped_len(&self) -> Option<usize> {
        match self.backing {
            Backing::Mapped { bytes, .. } => Some(bytes),
            Backing::Borrowed { .. } => None,
        }
    }

    /// Octets of a page of it, as far as asked for explicitly.
    pub fn page_size(&self) -> usize {
        self.page
    }

    /// The file behind a shared region.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Mapped { fd, .. } => fd.as_ref().map(AsFd::as_fd),
            Backing::Borrowed { .. } => None,
        }
    }

    /// Address of `[off, off + len)`; `None` when it does not lie inside.
    #[inline]
    pub fn ptr(&self, off: usize, len: usize) -> Option<*mut u8> {
        let end = off.checked_add(len)?;
        // SAFETY: off <= self.len, the size of one mapping.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(off) })
    }

    /// Copies `src` to `off`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; nothing is written then.
    pub fn place(&self, off: usize, src: &[u8]) -> Result<(), RegionError> {
        let dst = self.checked(off, src.len())?;
        // SAFETY: `dst` is valid for `src.len()` bytes while self lives, and `src`, a reference,
        // never overlaps registered memory.
        unsafe { raw::place(dst, src) };
        Ok(())
    }

    /// Copies from `off` into `dst`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn gather(&self, off: usize, dst: &mut [u8]) -> Result<(), RegionError> {
        let src = self.checked(off, dst.len())?;
        // SAFETY: as in `place`.
        unsafe { raw::gather(src, dst) };
        Ok(())
    }

    /// Has the system read up to `count` bytes of `file`, from its offset `at` on, to `off`: fewer at
    /// the end of the file, or when a signal comes. Nothing lies in between: a file's data gets where a
    /// peer reads it, or from where it was written, without a copy of ours.
    ///
    /// # Errors
    /// Those of `pread(2)`; `InvalidInput` when the range does not lie inside, and nothing is read.
    pub fn place_file(
        &self,
        off: usize,
        count: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> std::io::Result<usize> {
        let dst = self.checked(off, count).map_err(invalid)?;
        let at = libc::off_t::try_from(at).map_err(invalid)?;
        // SAFETY: `dst` is valid for writes of `count` bytes while self lives, and nothing refers to them.
        let read = unsafe { libc::pread(file.as_raw_fd(), dst.cast(), count, at) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }

    /// Has the system write up to `count` bytes from `off` on to `file`, at its offset `at`.
    ///
    /// # Errors
    /// Those of `pwrite(2)`; `InvalidInput` when the range does not lie inside, and nothing is written.
    pub fn gather_file(
        &self,
        off: usize,
        count: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> std::io::Result<usize> {
        let src = self.checked(off, count).map_err(invalid)?;
        let at = libc::off_t::try_from(at).map_err(invalid)?;
        // SAFETY: `src` is valid for reads of `count` bytes while self lives.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), src.cast(), count, at) };
        usize::try_from(written).map_err(|_| std::io::Error::last_os_error())
    }

    /// One byte, loaded anew at each call: for waiting until somebody has written it.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    #[inline]
    pub fn load(&self, off: usize) -> Result<u8, RegionError> {
        let src = self.checked(off, 1)?;
        // SAFETY: valid for one byte while self lives.
        Ok(unsafe { raw::load(src) })
    }

    /// Fills `[off, off + len)` with zeros.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn zero(&self, off: usize, len: usize) -> Result<(), RegionError> {
        let dst = self.checked(off, len)?;
        // SAFETY: valid for `len` bytes while self lives.
        unsafe { raw::zero(dst, len) };
        Ok(())
    }

    /// CRC-32C (continued from `crc`) and Internet checksum of `[off, off + len)` in one pass.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn digest(&self, off: usize, len: usize, crc: u32) -> Result<(u32, Sum), RegionError> {
        let src = self.checked(off, len)?;
        // SAFETY: `src` is valid for `len` bytes while self lives.
        Ok(unsafe { raw::digest(src, len, crc) })
    }

    #[inline]
    fn checked(&self, off: usize, count: usize) -> Result<*mut u8, RegionError> {
        self.ptr(off, count).ok_or(RegionError::OutOfRange { off, count, len: self.len })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &mut self.backing {
            Backing::Mapped { bytes, client: Some(client), .. } => {
                // Watched until it is unmapped by somebody.
                let watch = client.watch.take();
                let mapping = Mapping { base: self.base, bytes: *bytes };
                closer::run(closer::MEMORY, move || {
                    drop(watch);
                    drop(mapping);
                });
            }
            Backing::Mapped { bytes, .. } => drop(Mapping { base: self.base, bytes: *bytes }),
            Backing::Borrowed { .. } => {}
        }
    }
}

/// A mapping to which nothing refers any more; unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range that belongs to this value alone.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In pieces: a page fault of another thread waits for one of them, and not for all.
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

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, error)
}

fn check_size(len: usize) -> Result<(), RegionError> {
    let max = isize::MAX.unsigned_abs() - 2 * super::pages::GIB;
    if (1..=max).contains(&len) { Ok(()) } else { Err(RegionError::Size(len)) }
}

/// Maps `len` bytes: base, bytes mapped, page size.
fn map_anonymous(len: usize, pages: PageSize) -> std::io::Result<(NonNull<u8>, usize, usize)> {
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for &page in pages.hugepages(len) {
        // Which of the system's sizes, by its logarithm; what is asked for without is the default.
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
    // Aligned to a hugepage, for transparent ones: map more and cut both ends off.
    let raw = mmap(huge + HUGE, PRIVATE, -1)?;
    let skip = raw.as_ptr().align_offset(HUGE);
    // SAFETY: all ranges lie inside the mapping just made, which nobody else knows; what is
    // unmapped is not used again; madvise is a hint.
    unsafe {
        let base = raw.as_ptr().add(skip);
        if skip > 0 {
            libc::munmap(raw.as_ptr().cast(), skip);
        }
        if skip < HUGE {
            libc::munmap(base.add(huge).cast(), HUGE - skip);
        }
        libc::madvise(base.cast(), huge, libc::MADV_HUGEPAGE);
        // Linux 5.14; older kernels fault the pages in at first use.
        libc::madvise(base.cast(), huge, libc::MADV_POPULATE_WRITE);
        Ok((NonNull::new_unchecked(base), huge, PAGE))
    }
}

/// All pages are touched at once: more than there is would end in the out-of-memory killer.
fn check_available(bytes: usize) -> std::io::Result<()> {
    match available_memory().filter(|&a| bytes as u64 > a) {
        Some(a) => Err(std::io::Error::other(format!("{} MiB are available", a >> 20))),
        None => Ok(()),
    }
}

/// Bytes the system can give without swapping, if it says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn mmap(len: usize, flags: i32, fd: i32) -> std::io::Result<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let p = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
    match NonNull::new(p.cast::<u8>()) {
        Some(p) if p.as_ptr().cast() != libc::MAP_FAILED => Ok(p),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    #[test]
    fn test_access_ends_with_the_region() {
        let r = Region::anonymous(5000).unwrap();
        r.place(4996, b"abcd").unwrap();
        assert!(r.place(4997, b"abcd").is_err() && r.place(usize::MAX, b"a").is_err());
        let mut out = [0; 6];
        r.gather(4994, &mut out).unwrap();
        assert_eq!(&out, b"\0\0abcd");
        assert_eq!((r.load(4999), r.load(5000).is_err()), (Ok(b'd'), true));
        r.zero(4996, 3).unwrap();
        assert_eq!((r.load(4998), r.load(4999)), (Ok(0), Ok(b'd')));
    }

    #[test]
    fn test_files_are_read_to_where_they_are_wanted_and_written_from_there() {
        let file = std::fs::File::from(file::create(PAGE, PAGE).unwrap());
        let r = Region::anonymous(100).unwrap();
        r.place(10, b"0123456789").unwrap();
        assert_eq!(r.gather_file(12, 5, file.as_fd(), 4090).unwrap(), 5);
        // To the end of the file, and not beyond what was asked for.
        assert_eq!(r.place_file(90, 10, file.as_fd(), 4088).unwrap(), 8);
        assert_eq!(r.place_file(50, 2, file.as_fd(), 4091).unwrap(), 2);
        assert_eq!(r.place_file(50, 50, file.as_fd(), 4096).unwrap(), 0);
        let mut out = [0; 100];
        r.gather(0, &mut out).unwrap();
        assert_eq!(&out[88..], b"\0\0\0\x0023456\0\0\0");
        assert_eq!(&out[49..53], b"\x0034\0");
        for (off, count, at) in [(99, 2, 0), (usize::MAX, 1, 0), (0, 1, u64::MAX)] {
            for done in [
                r.place_file(off, count, file.as_fd(), at),
                r.gather_file(off, count, file.as_fd(), at),
            ] {
                assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
            }
        }
        let closed = std::fs::File::open("/").unwrap();
        assert!(r.place_file(0, 1, closed.as_fd(), 0).is_err(), "a directory was read");
    }

    /// Whatever the machine has: what is asked for is what one gets, or an error that says so.
    #[test]
    fn test_pages_are_those_that_were_asked_for() {
        let small = Region::anonymous_on(5 << 20, PageSize::Small).unwrap();
        assert_eq!((small.page_size(), small.mapped_len()), (PAGE, Some(5 << 20)));
        for (pages, size) in [(PageSize::Huge2M, 2 << 20), (PageSize::Huge1G, 1 << 30)] {
            match Region::anonymous_on(100, pages) {
                Ok(r) => {
                    assert_eq!((r.page_size(), r.mapped_len()), (size, Some(size)));
                    r.place(99, b"x").unwrap();
                }
                Err(e) => assert!(e.to_string().contains("hugepages"), "{e}"),
            }
        }
    }

    #[test]
    fn test_shared_region_is_the_same_memory_and_keeps_its_size() {
        let r = Region::shared(10_000).unwrap();
        let fd = r.fd().unwrap().try_clone_to_owned().unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        assert!(file.set_len(4096).is_err(), "a sealed file was cut");
        let other = Region::from_fd(fd, 10_000).unwrap();
        other.place(9999, b"x").unwrap();
        assert_eq!(r.load(9999), Ok(b'x'));
    }

    #[test]
    fn test_file_that_may_shrink_or_is_short_is_refused() {
        // SAFETY: the name is a C string; the result is checked.
        let raw = unsafe { libc::memfd_create(c"t".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: a descriptor just made.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let err = Region::from_fd(fd, 4096).err();
        assert_eq!(err, Some(RegionError::NotSealed));
        let short = Region::shared(4096).unwrap();
        let fd = short.fd().unwrap().try_clone_to_owned().unwrap();
        let err = Region::from_fd(fd, 4097).err();
        assert_eq!(err, Some(RegionError::FileTooShort { has: 4096, wanted: 4097 }));
        assert_eq!(Region::anonymous(0).err(), Some(RegionError::Size(0)));
    }

    /// The pool of hugepages may be empty when a hole that somebody punched is touched.
    #[test]
    fn test_file_of_hugepages_is_refused_though_it_is_sealed() {
        const HOW: libc::c_uint = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: as above.
        let raw = unsafe { libc::memfd_create(c"t".as_ptr(), HOW) };
        assert!(raw >= 0, "this kernel has no hugepages");
        // SAFETY: a descriptor just made.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: calls on our descriptor with integer arguments.
        let sealed = unsafe {
            libc::ftruncate(raw, 2 << 20) == 0
                && libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
        };
        assert!(sealed);
        assert_eq!(Region::from_fd(fd, 2 << 20).err(), Some(RegionError::NotMemory));
    }

    fn clients(len: usize) -> (Region, Region) {
        let theirs = Region::shared(len).unwrap();
        let ours = Region::of_client(theirs.fd().unwrap(), len).unwrap();
        (theirs, ours)
    }

    #[test]
    fn test_clients_region_is_touched_by_populate_alone_and_locked() {
        let bytes = 6 * PAGE;
        let fd = file::create(bytes, PAGE).unwrap();
        let r = Region::of_client(fd.as_fd(), 5 * PAGE + 1).unwrap();
        let resident = |page: usize| {
            let mut found = 0u8;
            // SAFETY: asks for one page of the mapping, into one live byte.
            let rc = unsafe {
                let at = r.base().as_ptr().add(page * PAGE);
                libc::mincore(at.cast(), 1, &raw mut found)
            };
            rc == 0 && found & 1 == 1
        };
        assert!((0..6).all(|p| !resident(p)));
        r.populate(PAGE + 5, PAGE).unwrap();
        assert_eq!([0, 1, 2, 3].map(resident), [false, true, true, false]);
        r.populate(5 * PAGE, 1).unwrap();
        assert!(resident(5));
        assert!(r.populate(5 * PAGE, 2).is_err() && r.populate(usize::MAX, 2).is_err());
        let at = format!("{:x}-", r.base().as_ptr().addr() + PAGE);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.split(&at).nth(1).unwrap();
        let locked = mapping.lines().find(|l| l.starts_with("Locked:")).unwrap();
        assert!(!locked.contains(" 0 kB"), "{locked}");
    }

    /// By whatever descriptor or mapping, made before or after the seal.
    #[test]
    fn test_clients_region_loses_no_page_to_anybody() {
        let len = 16 * PAGE;
        let theirs = Region::shared(len).unwrap();
        let fd = theirs.fd().unwrap();
        let copy = fd.try_clone_to_owned().unwrap();
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let options = || std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let earlier = options().unwrap();
        let second = mmap(len, libc::MAP_SHARED, copy.as_raw_fd()).unwrap();
        let ours = Region::of_client(fd, len).unwrap();
        ours.populate(0, len).unwrap();
        ours.place(0, b"here").unwrap();
        let later = options();
        let punch = |fd: BorrowedFd<'_>| {
            let how =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, how, 0, len as u64)
        };
        let fds = [
            Some(fd),
            Some(copy.as_fd()),
            Some(earlier.as_fd()),
            later.as_ref().ok().map(AsFd::as_fd),
        ];
        for fd in fds.into_iter().flatten() {
            assert_eq!(punch(fd), Err(rustix::io::Errno::PERM));
            assert!(rustix::fs::ftruncate(fd, 0).is_err());
            assert!(rustix::fs::ftruncate(fd, 2 * len as u64).is_err());
            assert!(mmap(len, libc::MAP_SHARED, fd.as_raw_fd()).is_err(), "a new writable mapping");
        }
        for base in [theirs.base(), second, ours.base()] {
            // SAFETY: whole pages of a live mapping; a hole would read as zeros.
            let removed = unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_REMOVE) };
            let why = std::io::Error::last_os_error().raw_os_error();
            // Of locked pages the kernel says that before it asks the file.
            let locked = base == ours.base() && why == Some(libc::EINVAL);
            assert!(removed == -1 && (locked || why == Some(libc::EPERM)), "{why:?}");
        }
        let mut here = [0; 4];
        ours.gather(0, &mut here).unwrap();
        assert_eq!(&here, b"here");
        // Both still write what the other reads.
        theirs.place(1, b"!").unwrap();
        assert_eq!(ours.load(1), Ok(b'!'));
        let again = Region::of_client(fd, len).err();
        assert_eq!(again, Some(RegionError::AlreadySealed));
        // SAFETY: our mapping, to which nothing refers.
        unsafe { libc::munmap(second.as_ptr().cast(), len) };
    }

    #[test]
    fn test_clients_file_has_the_size_that_it_is_said_to_have() {
        let fd = file::create(4 * PAGE, PAGE).unwrap();
        let of = |len| Region::of_client(fd.as_fd(), len).err();
        let (has, wanted) = (4 * PAGE as u64, PAGE);
        assert_eq!(of(PAGE), Some(RegionError::FileTooLong { has, wanted }));
        assert_eq!(of(4 * PAGE + 1), Some(RegionError::FileTooShort { has, wanted: 5 * PAGE }));
        assert_eq!(of(0), Some(RegionError::Size(0)));
        assert_eq!(of(3 * PAGE + 1), None);
        // Pages beyond the end: not of its length, and of its owner's memory all the same.
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("t", flags).unwrap();
        rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, keep, 0, 8 * PAGE as u64).unwrap();
        let refused = Region::of_client(fd.as_fd(), PAGE).err();
        let has = 8 * PAGE as u64;
        assert_eq!(refused, Some(RegionError::FileTooLong { has, wanted: PAGE }));
        let pipe = std::io::pipe().unwrap().0;
        assert_eq!(Region::of_client(pipe.as_fd(), PAGE).err(), Some(RegionError::NotSealed));
    }

    /// Where the machine has some: they keep what they are made of, too.
    #[test]
    fn test_clients_region_may_lie_on_hugepages() {
        let Ok(theirs) = Region::shared_on(3 << 20, PageSize::Huge2M) else { return };
        assert_eq!((theirs.page_size(), theirs.mapped_len()), (MIB2, Some(2 * MIB2)));
        let fd = theirs.fd().unwrap();
        let ours = Region::of_client(fd, 3 << 20).unwrap();
        assert_eq!((ours.page_size(), ours.mapped_len()), (MIB2, Some(2 * MIB2)));
        ours.populate(0, 3 << 20).unwrap();
        ours.place((3 << 20) - 1, b"x").unwrap();
        assert_eq!(theirs.load((3 << 20) - 1), Ok(b'x'));
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(fd, how, 0, MIB2 as u64);
        assert_eq!(punched, Err(rustix::io::Errno::PERM));
    }

    /// What a page that fails looks like: the file ends under the mapping, which a seal forbids.
    #[test]
    fn test_memory_that_fails_is_zeros_and_its_region_lost() {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("t", flags).unwrap();
        rustix::fs::ftruncate(&fd, 2 * PAGE as u64).unwrap();
        let base = mmap(2 * PAGE, libc::MAP_SHARED, fd.as_raw_fd()).unwrap();
        let client = Some(Client { watch: Watch::new(base.as_ptr(), 2 * PAGE) });
        let backing = Backing::Mapped { bytes: 2 * PAGE, fd: None, client };
        let failing = Region { base, len: 2 * PAGE, page: PAGE, backing };
        let (_theirs, other) = clients(PAGE);
        failing.place(0, b"here").unwrap();
        other.place(0, b"here").unwrap();
        let before = crate::memory::lost();
        rustix::fs::ftruncate(&fd, 0).unwrap();
        assert!(!failing.is_lost());
        assert_eq!(failing.load(PAGE), Ok(0));
        assert!(failing.is_lost() && crate::memory::lost() > before);
        assert_eq!(failing.load(0), Ok(0));
        failing.place(PAGE, b"nowhere").unwrap();
        assert_eq!((other.is_lost(), other.load(0)), (false, Ok(b'h')));
    }

    #[test]
    fn test_clients_region_is_unmapped_by_another_thread() {
        let (theirs, ours) = clients(200 << 20);
        let at = format!("{:x}-", ours.base().as_ptr().addr());
        let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&at);
        assert!(mapped());
        let (done, is_done) = std::sync::mpsc::channel();
        // The lane stands, so that nobody else can have done it.
        closer::run(closer::MEMORY, move || is_done.recv().unwrap());
        drop(ours);
        assert!(mapped());
        done.send(()).unwrap();
        while mapped() {
            std::thread::yield_now();
        }
        drop(theirs);
    }

    #[test]
    fn test_borrowed_memory_keeps_its_owner() {
        let mut owner = vec![7u8; 100].into_boxed_slice();
        let base = NonNull::new(owner.as_mut_ptr()).unwrap();
        let (mark, gone) = (std::sync::Arc::new(()), std::sync::Arc::new(()));
        // SAFETY: the box is owned by the region and not touched otherwise.
        let r = unsafe { Region::from_raw(base, 100, Box::new((owner, mark.clone()))) }.unwrap();
        drop(gone);
        assert_eq!((r.load(99), std::sync::Arc::strong_count(&mark)), (Ok(7), 2));
        drop(r);
        assert_eq!(std::sync::Arc::strong_count(&mark), 1);
    }
}
