//! Memory regions as applications hold them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use heddle_shm::Region;
use heddle_types::{Sge, Stag};

mod limits;

pub use limits::{MrLimits, MrUsage, RegisterError};

/// A registered memory region; dropping it unregisters it. Its memory is used again when nothing
/// refers to the memory any more.
///
/// The peer may write the memory at any time as its rights allow, so callers copy bytes in and out
/// and never borrow them.
///
/// ```
/// # use heddle_verbs as heddle;
/// use heddle::{Access, Device};
///
/// /// Offers a mailbox: the peer may write it.
/// fn offer(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
///     let mailbox = device.alloc_mr(device.alloc_pd()?, 4096, Access::REMOTE_WRITE)?;
///     println!("STag {:#x}, offset {:#x}", mailbox.stag().0, mailbox.to());
///     mailbox.write(0, b"empty");
///     let mut copy = [0; 5];
///     mailbox.read(0, &mut copy);
///     // From here on, the peer's Writes to the STag end its connection.
///     mailbox.deregister()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Mr {
    region: Arc<Region>,
    /// Offset in the region.
    off: usize,
    len: usize,
    stag: Stag,
    to: u64,
    /// `None` in a process that was handed the region and did not register it.
    owner: Option<Box<dyn MrOwner>>,
}

/// The owner of a registration: dropping it unregisters the region.
pub trait MrOwner: Send + Sync + std::fmt::Debug {
    /// Unregisters the region unless windows or fast registrations of it are valid; the error is
    /// their number.
    fn deregister(&self) -> Result<(), u32>;
}

/// Data that another process needs, beside the mapping, to use a region that was registered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// STag of the region.
    pub stag: Stag,
    /// Tagged offset of the region's first byte.
    pub to: u64,
    /// Offset of the region in the mapping, in bytes.
    pub off: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Mr {
    /// Returns a region, which has to lie in the mapping.
    pub fn new(region: Arc<Region>, info: MrInfo, owner: Box<dyn MrOwner>) -> Mr {
        let MrInfo { stag, to, off, len } = info;
        Mr { region, off, len, stag, to, owner: Some(owner) }
    }

    /// Returns a region that another process has registered, over a mapping of its memory, or
    /// `None` when the region does not lie in the mapping. Dropping this handle unregisters
    /// nothing.
    pub fn attach(region: &Arc<Region>, info: MrInfo) -> Option<Mr> {
        region.ptr(info.off, info.len)?;
        let MrInfo { stag, to, off, len } = info;
        Some(Mr { region: region.clone(), off, len, stag, to, owner: None })
    }

    /// Unregisters the region unless a window or fast registration of it is valid. Dropping the
    /// region instead ends its windows and fast registrations too.
    ///
    /// # Errors
    /// [`Bound`], with the region.
    pub fn deregister(self) -> Result<(), Bound> {
        match self.owner.as_ref().map_or(Ok(()), |owner| owner.deregister()) {
            Ok(()) => Ok(()),
            Err(count) => Err(Bound { mr: Box::new(self), count }),
        }
    }

    /// Returns the data that another process needs beside the mapping.
    pub fn info(&self) -> MrInfo {
        MrInfo { stag: self.stag, to: self.to, off: self.off, len: self.len }
    }

    /// Returns the mapping that the region lies in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the region's STag, which serves local and remote accesses.
    pub fn stag(&self) -> Stag {
        self.stag
    }

    /// Returns the tagged offset of the region's first byte.
    pub fn to(&self) -> u64 {
        self.to
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `off`.
    ///
    /// # Panics
    ///
    /// When `bytes` do not fit: the caller made the region and knows its length.
    pub fn write(&self, off: usize, bytes: &[u8]) {
        self.inside(off, bytes.len());
        let inside = self.region.place(self.off + off, bytes);
        debug_assert!(inside.is_ok());
    }

    /// Copies bytes from `off` on over `out`.
    ///
    /// # Panics
    ///
    /// When the region has fewer bytes.
    pub fn read(&self, off: usize, out: &mut [u8]) {
        self.inside(off, out.len());
        let inside = self.region.gather(self.off + off, out);
        debug_assert!(inside.is_ok());
    }

    /// Has the system read up to `len` bytes of `file`, from the file's offset `at` on, to `off`,
    /// without a copy in between. Returns the number of bytes read; 0 at the end of the file.
    ///
    /// # Errors
    /// The errors of `pread(2)`; `InvalidInput` when the region has fewer bytes.
    pub fn write_from_file(
        &self,
        off: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> std::io::Result<usize> {
        self.region.place_file(self.of_region(off, len)?, len, file, at)
    }

    /// Has the system write up to `len` bytes from `off` on to `file`, at the file's offset `at`,
    /// without a copy in between. Returns the number of bytes written.
    ///
    /// # Errors
    /// The errors of `pwrite(2)`; `InvalidInput` when the region has fewer bytes.
    pub fn read_to_file(
        &self,
        off: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> std::io::Result<usize> {
        self.region.gather_file(self.of_region(off, len)?, len, file, at)
    }

    fn of_region(&self, off: usize, len: usize) -> std::io::Result<usize> {
        let inside = off.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then_some(self.off + off).ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
    }

    /// Returns one byte, read anew at each call: for waiting until the peer has written this byte.
    ///
    /// # Panics
    ///
    /// When the region has no such byte.
    #[inline]
    pub fn load(&self, off: usize) -> u8 {
        self.inside(off, 1);
        self.region.load(self.off + off).unwrap_or(0)
    }

    /// Fills `len` bytes at `off` with zeros.
    ///
    /// # Panics
    ///
    /// When the region has fewer bytes.
    pub fn zero(&self, off: usize, len: usize) {
        self.inside(off, len);
        let inside = self.region.zero(self.off + off, len);
        debug_assert!(inside.is_ok());
    }

    /// Returns a scatter/gather element of `len` bytes at `off`. The RNIC refuses an element that
    /// does not lie inside the region when a request uses it.
    ///
    /// # Panics
    /// When `len` is 4 GiB or more: the length of an element has 32 bits.
    pub fn sge(&self, off: usize, len: usize) -> Sge {
        #[expect(clippy::expect_used, reason = "documented")]
        let len = u32::try_from(len).expect("an element is shorter than 4 GiB");
        Sge { stag: self.stag, to: self.to.wrapping_add(off as u64), len }
    }

    #[inline]
    fn inside(&self, off: usize, len: usize) {
        assert!(
            off.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {off} are not inside a region of {}",
            self.len
        );
    }
}

/// A region that stays registered, because windows or fast registrations of it are valid.
#[derive(Debug)]
pub struct Bound {
    /// The region, unchanged.
    pub mr: Box<Mr>,
    /// Number of valid windows and fast registrations of the region.
    pub count: u32,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} windows or fast registrations of the region are valid", self.count)
    }
}

impl std::error::Error for Bound {}
