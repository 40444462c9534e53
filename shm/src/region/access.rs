//! Access to the bytes of a region: by offset, through raw pointers alone.

use std::os::fd::{AsRawFd, BorrowedFd};

use heddle_base::Sum;

use super::{Region, RegionError};

impl Region {
    /// Returns the address of `[off, off + len)`, or `None` when this range does not lie inside.
    #[inline]
    pub fn ptr(&self, off: usize, len: usize) -> Option<*mut u8> {
        let end = off.checked_add(len)?;
        // SAFETY: off <= self.len, the size of one mapping.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(off) })
    }

    /// Copies `src` to `off`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; the call writes nothing then.
    pub fn place(&self, off: usize, src: &[u8]) -> Result<(), RegionError> {
        let dst = self.checked(off, src.len())?;
        // SAFETY: `dst` is valid for `src.len()` bytes while self lives, and `src`, a reference,
        // never overlaps registered memory.
        unsafe { heddle_digest::place(dst, src) };
        Ok(())
    }

    /// Copies from `off` into `dst`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn gather(&self, off: usize, dst: &mut [u8]) -> Result<(), RegionError> {
        let src = self.checked(off, dst.len())?;
        // SAFETY: as in `place`.
        unsafe { heddle_digest::gather(src, dst) };
        Ok(())
    }

    /// Has the system read up to `count` bytes of `file`, from the file's offset `at` on, to `off`:
    /// fewer at the end of the file, or when a signal comes. No buffer lies in between: file data
    /// gets to the place where a peer reads them, or from the place where a peer wrote them,
    /// without a copy of ours.
    ///
    /// # Errors
    /// The errors of `pread(2)`; `InvalidInput` when the range does not lie inside, and the call
    /// reads nothing then.
    pub fn place_file(
        &self,
        off: usize,
        count: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> std::io::Result<usize> {
        let dst = self.checked(off, count).map_err(invalid)?;
        let at = libc::off_t::try_from(at).map_err(invalid)?;
        // SAFETY: `dst` is valid for writes of `count` bytes while self lives, and no reference to
        // them exists.
        let read = unsafe { libc::pread(file.as_raw_fd(), dst.cast(), count, at) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }

    /// Has the system write up to `count` bytes from `off` on to `file`, at the file's offset `at`.
    ///
    /// # Errors
    /// The errors of `pwrite(2)`; `InvalidInput` when the range does not lie inside, and the call
    /// writes nothing then.
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

    /// Returns one byte, loaded anew at each call: for waiting until another thread or the peer has
    /// written it.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    #[inline]
    pub fn load(&self, off: usize) -> Result<u8, RegionError> {
        let src = self.checked(off, 1)?;
        // SAFETY: valid for one byte while self lives.
        Ok(unsafe { heddle_digest::load(src) })
    }

    /// Fills `[off, off + len)` with zeros.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn zero(&self, off: usize, len: usize) -> Result<(), RegionError> {
        let dst = self.checked(off, len)?;
        // SAFETY: valid for `len` bytes while self lives.
        unsafe { heddle_digest::zero(dst, len) };
        Ok(())
    }

    /// Returns the CRC-32C (continued from `crc`) and the Internet checksum of `[off, off + len)`,
    /// in one pass.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`].
    pub fn digest(&self, off: usize, len: usize, crc: u32) -> Result<(u32, Sum), RegionError> {
        let src = self.checked(off, len)?;
        // SAFETY: `src` is valid for `len` bytes while self lives.
        Ok(unsafe { heddle_digest::digest(src, len, crc) })
    }

    #[inline]
    pub(super) fn checked(&self, off: usize, count: usize) -> Result<*mut u8, RegionError> {
        self.ptr(off, count).ok_or(RegionError::OutOfRange { off, count, len: self.len })
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, error)
}
