//! A mapping whose bytes may be registered.
//!
//! Regions come from three places: memory that the library maps for itself ([`Region::anonymous`],
//! on hugepages when some are free); memory that can be handed to another process as a file
//! descriptor ([`Region::shared`], [`Region::from_fd`]); and memory that an application already has
//! ([`Region::from_raw`]). The library touches all pages of the first two at once, so that the data
//! path takes no page fault.
//!
//! **A file that another process holds may shrink** under the mapping, and the kernel kills a
//! worker that touches a byte beyond the file's end. So a shared region is sealed against
//! shrinking, and the library refuses a region from outside without that seal. A client's file must
//! not lose a page either: the RNIC's process seals it against that before it touches a byte
//! ([`Region::of_client`]), and locks its pages.

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
pub use sparse::{Hold, HoldError, Holding};

/// Size of the aligned block that the kernel maps on one read of any byte in it, as far as the
/// block's pages exist. In a shared mapping of a file in memory, the program can write to the whole
/// block at once after that; this takes a quarter of the time that a write to each page takes.
const AROUND: usize = 64 << 10;

/// A mapping. Dropping it unmaps the memory, or gives it back to its
/// owner.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    page: usize,
    backing: Backing,
    /// Present in a region that has pages only where memory is registered.
    sparse: Option<Sparse>,
}

#[derive(Debug)]
enum Backing {
    /// Our mapping of `bytes` bytes, and the file behind it. Another thread unmaps a mapping that a
    /// client has made or sized: see [`closer`].
    Mapped { bytes: usize, fd: Option<OwnedFd>, client: Option<Client> },
    /// Memory of another owner, which stays valid while `_owner` lives.
    Borrowed { _owner: Box<dyn Any + Send + Sync> },
}

/// The state beside a mapping of a client's file.
#[derive(Debug)]
struct Client {
    /// `None` where too many regions are watched.
    watch: Option<Watch>,
}

// SAFETY: a region is an address range; every access to its bytes goes through raw pointers, with
// no reference to the bytes and no promise about their content, from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Returns `len` zeroed bytes for this process alone; on hugepages when enough of them are
    /// free, else the library asks for transparent hugepages.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn anonymous(len: usize) -> Result<Region, RegionError> {
        Region::anonymous_on(len, PageSize::Auto)
    }

    /// As [`anonymous`](Region::anonymous), on pages of a given size. The function touches the
    /// memory, so the memory lies at the processor socket of the calling thread.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`]; the latter also when the caller asks for
    /// hugepages and too few are free.
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

    /// Returns `len` zeroed bytes that another process can map by [`fd`](Region::fd). The file is
    /// sealed: it can neither shrink nor grow.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn shared(len: usize) -> Result<Region, RegionError> {
        Region::shared_on(len, PageSize::Small)
    }

    /// As [`shared`](Region::shared), on pages of a given size.
    ///
    /// # Errors
    /// As [`anonymous_on`](Region::anonymous_on).
    pub fn shared_on(len: usize, pages: PageSize) -> Result<Region, RegionError> {
        check_size(len)?;
        if cfg!(miri) {
            // Miri has no files in memory: under Miri no other process can map a region.
            return Region::anonymous_on(len, pages);
        }
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        for &page in pages.hugepages(len) {
            let bytes = len.next_multiple_of(page);
            // The mapping reserves all hugepages, or fails.
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

    /// Returns the first `len` bytes of a file in memory that another process has made.
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

    /// Maps memory that a client has made and mapped: all of the client's file, which this function
    /// seals so that the file keeps its pages. The function touches no page;
    /// [`populate`](Region::populate) follows. The descriptor stays with its owner, who closes it
    /// on a thread that may wait. This function waits as long as the client holds its file (the
    /// client may be filling it), so call it on a thread that may wait; the mapping has to end on
    /// such a thread too ([`closer`]).
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
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

    /// Touches `[off, off + len)`, so that no thread takes a page fault there later; in a client's
    /// file, also locks the pages, where the process may lock as many. A caller that maps much
    /// memory and has other work to do in between calls this for one part after the other.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; [`RegionError::NoMemory`] when the system has no page.
    pub fn populate(&self, off: usize, len: usize) -> Result<(), RegionError> {
        let page = self.page.max(PAGE);
        let end = off.saturating_add(len).div_ceil(page).saturating_mul(page);
        self.checked(off, len)?;
        let Backing::Mapped { bytes, client, .. } = &self.backing else { return Ok(()) };
        let (bytes, client) = (*bytes, client.is_some());
        let (first, end) = (off / page * page, end.min(bytes));
        let populated = match self.sparse {
            // The pages of a sparse region exist already, and only have to be mapped.
            Some(_) => {
                let start = first.next_multiple_of(AROUND).min(end);
                let stop = (end / AROUND * AROUND).max(start);
                self.touch(first..start, libc::MADV_POPULATE_WRITE)
                    .and_then(|()| self.touch(start..stop, libc::MADV_POPULATE_READ))
                    .and_then(|()| self.touch(stop..end, libc::MADV_POPULATE_WRITE))
            }
            None => self.touch(first..end, libc::MADV_POPULATE_WRITE),
        };
        // A worker that touches a client's swapped-out page would wait for the disk, so lock the
        // pages. The call fails beyond RLIMIT_MEMLOCK; then the pages are present but not locked.
        if client && page == PAGE && self.sparse.is_none() {
            // SAFETY: whole pages of our mapping, which keep their contents.
            unsafe { libc::mlock(self.base.as_ptr().add(first).cast(), end - first) };
        }
        match populated {
            // EINVAL: before Linux 5.14, pages appear when they are locked, or on first use.
            Err(e) if e.raw_os_error() != Some(libc::EINVAL) => {
                Err(RegionError::NoMemory { len, why: e.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Makes the kernel touch whole pages of our mapping.
    fn touch(&self, pages: Range<usize>, how: libc::c_int) -> std::io::Result<()> {
        // SAFETY: pages of our mapping, by the caller, which keep their contents.
        let touched = pages.is_empty()
            || unsafe {
                let at = self.base.as_ptr().add(pages.start);
                libc::madvise(at.cast(), pages.len(), how) == 0
            };
        if touched { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Returns a region over memory that an application already has, of any alignment. `owner`
    /// keeps the memory: it is dropped when nothing refers to the region any more, which may be
    /// long after the application has dropped its last handle.
    ///
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes, from any thread, until `owner` is
    /// dropped; and until then no Rust reference to those bytes is used, since they may change at
    /// any time. A `Box` of those bytes counts as a reference to them, also as a part of `owner`:
    /// every move uses it. A `Vec` does not.
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

    /// Returns true if a client's memory has failed here: the region reads as zeros, and its
    /// session has to end.
    pub fn is_lost(&self) -> bool {
        match &self.backing {
            Backing::Mapped { client: Some(client), .. } => {
                client.watch.as_ref().is_some_and(Watch::is_lost)
            }
            _ => false,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the bytes of the mapping, in whole pages; `None` when the memory is not mapped by
    /// us, and may begin and end anywhere.
    pub fn mapped_len(&self) -> Option<usize> {
        match self.backing {
            Backing::Mapped { bytes, .. } => Some(bytes),
            Backing::Borrowed { .. } => None,
        }
    }

    /// Returns the bytes of a page of the region, as far as the maker asked for a size explicitly.
    pub fn page_size(&self) -> usize {
        self.page
    }

    /// Returns the file behind a shared region.
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
                // Watch the region until the lane unmaps it.
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
