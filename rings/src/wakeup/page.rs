//! The words that say which workers sleep, in memory that applications can read and not write.

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use crate::layout::LINE;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// A line of the mapping.
type Mapped = [std::sync::atomic::AtomicU64; LINE];

/// A line for each worker. Its first word is odd while the worker sleeps, or is about to, with
/// another odd number each time.
#[derive(Debug)]
pub(super) struct Page {
    base: NonNull<Mapped>,
    workers: usize,
    bytes: usize,
    fd: OwnedFd,
    /// This process made the page.
    ours: bool,
    /// Used instead of the mapping, whose words the model checker cannot follow.
    #[cfg(feature = "loom")]
    modelled: Box<[AtomicU64]>,
}

// SAFETY: the address is that of a mapping that lives as long as the page; all code reaches the
// mapping as shared references to atomics and in no other way.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// Most workers that a page has words for.
const MOST: usize = 1 << 16;

fn bytes(workers: usize) -> io::Result<usize> {
    if workers == 0 || workers > MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such number of workers"));
    }
    Ok((workers * size_of::<Mapped>()).next_multiple_of(4096))
}

impl Page {
    /// Returns a page on which every worker is awake. A process that gets the descriptor can map it
    /// for reading only, however it opens the file: the seal belongs to the file, and this mapping
    /// was made before the seal.
    pub(super) fn new(workers: usize) -> io::Result<Page> {
        let bytes = bytes(workers)?;
        let fd = memfd_create(c"heddle-wake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        let base = map(&fd, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let page = Page {
            base,
            workers,
            bytes,
            fd,
            ours: true,
            #[cfg(feature = "loom")]
            modelled: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        };
        let size = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&page.fd, size | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(page)
    }

    /// Returns the page of another process.
    pub(super) fn attach(fd: OwnedFd, workers: usize) -> io::Result<Page> {
        let bytes = bytes(workers)?;
        let has = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        if has < bytes as u64 || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not what says who sleeps"));
        }
        let base = map(&fd, bytes, libc::PROT_READ)?;
        Ok(Page {
            base,
            workers,
            bytes,
            fd,
            ours: false,
            #[cfg(feature = "loom")]
            modelled: Box::default(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline]
    fn word(&self, worker: usize) -> Option<&AtomicU64> {
        #[cfg(feature = "loom")]
        return self.modelled.get(worker);
        #[cfg(not(feature = "loom"))]
        self.mapped(worker)
    }

    #[inline]
    #[cfg_attr(feature = "loom", expect(dead_code, reason = "the model has words of its own"))]
    fn mapped(&self, worker: usize) -> Option<&std::sync::atomic::AtomicU64> {
        if worker >= self.workers {
            return None;
        }
        // SAFETY: inside the mapping, which has a line for each worker and lives as long as `self`.
        // Code in this and other processes reaches the mapping by atomic operations of 8 bytes
        // alone.
        let line: &Mapped = unsafe { self.base.add(worker).as_ref() };
        Some(&line[0])
    }

    /// Returns a worker's word; 0 for a worker without a word. `Relaxed`: memory mapped for reading
    /// only allows no other kind of load.
    #[inline]
    pub(super) fn load(&self, worker: usize) -> u64 {
        self.word(worker).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Stores a worker's word. Only the process that made the page can.
    pub(super) fn store(&self, worker: usize, value: u64) {
        if self.ours
            && let Some(w) = self.word(worker)
        {
            w.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which no reference outlives this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn map(fd: &OwnedFd, bytes: usize, rights: i32) -> io::Result<NonNull<Mapped>> {
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let p = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, fd.as_raw_fd(), 0) };
    match NonNull::new(p.cast::<Mapped>()) {
        Some(p) if p.as_ptr().cast() != libc::MAP_FAILED => Ok(p),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn test_wakeup_page_is_readable_and_not_writable_by_other_processes() {
        let page = Page::new(3).unwrap();
        let lent = || page.fd().try_clone_to_owned().unwrap();
        let theirs = Page::attach(lent(), 3).unwrap();
        page.store(2, 7);
        theirs.store(2, 9);
        assert_eq!([0, 1, 2, 3].map(|w| theirs.load(w)), [0, 0, 7, 0]);
        // No process can map the file for writing, however it opens the file.
        assert!(map(&lent(), 4096, libc::PROT_READ | libc::PROT_WRITE).is_err());
        let path = format!("/proc/self/fd/{}", page.fd().as_raw_fd());
        if let Ok(again) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
            use std::os::unix::fs::FileExt;
            assert!(again.write_at(&[1; 8], 0).is_err() && again.set_len(0).is_err());
            assert!(map(&again.into(), 4096, libc::PROT_READ | libc::PROT_WRITE).is_err());
        }
        // SAFETY: changes the rights of a mapping of ours, or fails.
        let rc = unsafe {
            libc::mprotect(theirs.base.as_ptr().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_ne!(rc, 0, "it could be made writable");
    }

    #[test]
    fn test_invalid_wakeup_page_is_refused() {
        assert!(Page::new(0).is_err() && Page::new(MOST + 1).is_err());
        let page = Page::new(1).unwrap();
        let lent = || page.fd().try_clone_to_owned().unwrap();
        assert!(Page::attach(lent(), 65).is_err() && Page::attach(lent(), usize::MAX).is_err());
        let unsealed = memfd_create(c"x", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(Page::attach(unsealed, 1).is_err());
    }
}
