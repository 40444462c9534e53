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
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use super::file;
use super::guard::Watch;
use super::pages::{PAGE, PageSize};
use crate::closer;
use mapping::{Mapping, check_available, map_anonymous, mmap, mmap_at};

mod access;
mod error;
mod mapping;
mod sparse;
#[cfg(test)]
mod tests;

pub use error::RegionError;
use sparse::Sparse;
pub(crate) use sparse::{Hold, HoldError, Holding};

/// Bytes that the kernel maps for one read of any of them, as far as their pages are there, from a multiple of them on.
/// In a shared mapping of a file in memory they can be written at once, after a quarter of the time that a write to each
/// page takes.
const AROUND: usize = 64 << 10;

/// A mapping; see [`memory`](crate::memory). Unmapped, or given back to its owner, when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    page: usize,
    backing: Backing,
    /// Of a region that has pages only where something is registered.
    sparse: Option<Sparse>,
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
        Ok(Region {
            base,
            len,
            page,
            backing: Backing::Mapped { bytes, fd: None, client: None },
            sparse: None,
        })
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
        if cfg!(miri) {
            // Miri has no files in memory: under it no other process can map a region.
            return Region::anonymous_on(len, pages);
        }
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        for &page in pages.hugepages(len) {
            let bytes = len.next_multiple_of(page);
            // The mapping reserves them all, or fails.
            let fd = file::create(bytes, page);
            if let Ok(fd) = fd
                && let Ok(base) = mmap(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd())
            {
                let backing = Backing::Mapped { bytes, fd: Some(fd), client: None };
                return Ok(Region { base, len, page, backing, sparse: None });
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
            sparse: None,
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
        Ok(Region { base, len, page: PAGE, backing, sparse: None })
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
        let region = Region { base, len, page, backing, sparse: None };
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
        let populated = match self.sparse {
            // Its pages are there, and only have to be mapped.
            Some(_) => {
                let start = first.next_multiple_of(AROUND).min(end);
                let stop = (end / AROUND * AROUND).max(start);
                self.touch(first..start, libc::MADV_POPULATE_WRITE)
                    .and_then(|()| self.touch(start..stop, libc::MADV_POPULATE_READ))
                    .and_then(|()| self.touch(stop..end, libc::MADV_POPULATE_WRITE))
            }
            None => self.touch(first..end, libc::MADV_POPULATE_WRITE),
        };
        // Swapped out, a page of a client's would keep a worker waiting for the disk. This fails beyond
        // RLIMIT_MEMLOCK, and then the pages are only there.
        if client && page == PAGE && self.sparse.is_none() {
            // SAFETY: whole pages of our mapping, which keep what is in them.
            unsafe { libc::mlock(self.base.as_ptr().add(first).cast(), end - first) };
        }
        match populated {
            // Before Linux 5.14 pages come with their lock, or with their first use.
            Err(e) if e.raw_os_error() != Some(libc::EINVAL) => {
                Err(RegionError::NoMemory { len, why: e.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Has the kernel touch whole pages of our mapping.
    fn touch(&self, pages: Range<usize>, how: libc::c_int) -> std::io::Result<()> {
        // SAFETY: pages of our mapping, by the caller, which keep what is in them.
        let touched = pages.is_empty()
            || unsafe {
                let at = self.base.as_ptr().add(pages.start);
                libc::madvise(at.cast(), pages.len(), how) == 0
            };
        if touched { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Memory an application has already, of any alignment. `owner` is what keeps it: it is dropped
    /// when nothing refers to the region any more, which may be long after the last handle of the
    /// application is gone.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes, from any thread, until `owner` is
    /// dropped; and until then no Rust reference to those bytes is used, since they may change at
    /// any time. A `Box` of those bytes counts as a reference to them, also as a part of `owner`:
    /// it is used whenever it is moved. A `Vec` is not.
    ///
    /// # Errors
    /// [`RegionError::Size`].
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Region, RegionError> {
        check_size(len)?;
        Ok(Region {
            base,
            len,
            page: 1,
            backing: Backing::Borrowed { _owner: owner },
            sparse: None,
        })
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

fn check_size(len: usize) -> Result<(), RegionError> {
    let max = isize::MAX.unsigned_abs() - 2 * super::pages::GIB;
    if (1..=max).contains(&len) { Ok(()) } else { Err(RegionError::Size(len)) }
}
