//! Regions that are larger than the memory behind them.
//!
//! A sparse region stands for a stretch of address space: its file is as long as that, and has pages only
//! where its owner has written. So the RNIC's process maps the file without touching it. The pages of a
//! registration are populated, locked and paid for while a [`Hold`] of it lives; no worker reaches any
//! other, since an STag names only what is registered.
//!
//! **Who does it.** A lane of [`closer`] populates and releases, piece by piece, so neither the thread that
//! serves clients nor a worker waits for a page. The RNIC of one user alone populates a few pages itself, which
//! saves two wake-ups. A release unmaps what it counts down, where that is locked, under the lock of the holds: a
//! later hold of the same pages, on whatever thread, finds them released and populates them, or finds them held.
//!
//! **Who pays.** Each page counts once in its owner's account, however many registrations have it. The owner
//! must have filled the page before, or else a client could register hole after hole, and the RNIC's
//! process would fill the file beyond any quota: no page leaves a sealed file. The RNIC's own user owns the files
//! that are not sealed, and with them the memory.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Backing, Client, Region, RegionError, check_size, file};
use crate::account::{Account, Kind, Over, Reserved};
use crate::closer;
use crate::memory::counted::Counted;
use crate::memory::guard::Watch;
use crate::memory::pages::{MIB2, PAGE};

/// Bytes that are populated at a time: a millisecond or so.
const PIECE: usize = 4 << 20;

/// `MADV_DONTNEED` for locked pages too, of Linux 5.18.
const DONTNEED_LOCKED: libc::c_int = 24;

/// What a sparse region has beside its mapping.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// The sealed file of a client: where it has pages.
    file: Option<OwnedFd>,
    /// The file is one that others may shrink.
    is_unsealed: bool,
    /// The kernel locks its pages as soon as they are mapped. A release leaves pages mapped that are not locked: that
    /// costs the system nothing, and the next hold is quick.
    is_locked: bool,
    holds: Mutex<Holds>,
}

#[derive(Debug, Default)]
struct Holds {
    /// Bytes, whole pages.
    pages: Counted,
    /// What they take of the account.
    paid: Option<Reserved>,
}

/// Why pages are not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// The account has not that much left.
    Over(Over),
    /// The system, or the file.
    Region(RegionError),
}

impl From<RegionError> for HoldError {
    fn from(e: RegionError) -> HoldError {
        HoldError::Region(e)
    }
}

impl Region {
    /// A region of `len` bytes without a page: memory comes with the first touch of each page, and stays
    /// until the region goes. The file behind it is sealed as that of [`shared`](Region::shared), and may
    /// be longer than the machine has memory. Another process that registers a part of the region needs the
    /// pages of that part to be there, so touch them first.
    ///
    /// # Errors
    /// [`RegionError::Size`], [`RegionError::NoMemory`].
    pub fn sparse(len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let bytes = len.next_multiple_of(PAGE);
        let fd = file::create(bytes, PAGE).map_err(no_memory)?;
        let base = map_aside(fd.as_fd(), bytes).map_err(no_memory)?;
        let backing = Backing::Mapped { bytes, fd: Some(fd), client: None };
        Ok(Region { base, len, page: PAGE, backing, sparse: Some(Sparse::default()) })
    }

    /// The first `len` bytes of a file in memory, of ordinary or huge pages, that a program shares with others. It is
    /// sparse: who registers a part of it has to touch that part first. It is not sealed, so only an RNIC that serves
    /// its own user alone takes it ([`Device::takes_files`](crate::Device::takes_files)). Who makes the file shorter
    /// than what is registered of it ends the program's session with the RNIC.
    ///
    /// # Errors
    /// [`RegionError::NotMemory`], [`RegionError::FileTooShort`], [`RegionError::Size`]; [`RegionError::NoMemory`], also
    /// for a descriptor that is not open for writing.
    pub fn of_file(fd: OwnedFd, len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        let page = file::check_unsealed(fd.as_fd(), len)?;
        let bytes = len.next_multiple_of(page);
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let base = map_aside(fd.as_fd(), bytes).map_err(no_memory)?;
        let backing = Backing::Mapped { bytes, fd: Some(fd), client: None };
        let sparse = Sparse { is_unsealed: true, ..Sparse::default() };
        Ok(Region { base, len, page, backing, sparse: Some(sparse) })
    }

    /// [`of_file`](Region::of_file) in the process of the RNIC. It waits as [`of_client`](Region::of_client) does.
    ///
    /// # Errors
    /// [`RegionError`]; [`RegionError::NoMemory`] also where as many regions are watched as can be.
    pub(crate) fn file_of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        let page = file::check_unsealed(fd, len)?;
        let bytes = len.next_multiple_of(page);
        let no_memory = |why: String| RegionError::NoMemory { len, why };
        let base = map(fd, bytes).map_err(|e| no_memory(e.to_string()))?;
        let watch = Watch::new(base.as_ptr(), bytes);
        let is_watched = watch.is_some();
        let backing = Backing::Mapped { bytes, fd: None, client: Some(Client { watch }) };
        let sparse = Sparse { is_unsealed: true, ..Sparse::default() };
        let region = Region { base, len, page, backing, sparse: Some(sparse) };
        if is_watched { Ok(region) } else { Err(no_memory("too many are watched".into())) }
    }

    /// As [`of_client`](Region::of_client), for a sparse region of ordinary pages. No page is touched
    /// until a [`Hold`] has it.
    ///
    /// # Errors
    /// [`RegionError`].
    pub(crate) fn sparse_of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
        check_size(len)?;
        if file::check_client(fd, len)? != PAGE {
            return Err(RegionError::NotMemory);
        }
        let bytes = len.next_multiple_of(PAGE);
        let no_memory = |e: std::io::Error| RegionError::NoMemory { len, why: e.to_string() };
        let base = map(fd, bytes).map_err(no_memory)?;
        let client = Some(Client { watch: Watch::new(base.as_ptr(), bytes) });
        let backing = Backing::Mapped { bytes, fd: None, client };
        let sparse = Sparse { file: Some(file::reopen(fd)?), ..Sparse::default() };
        let mut region = Region { base, len, page: PAGE, backing, sparse: Some(sparse) };
        file::seal(fd, len, PAGE)?;
        // One lock for the whole mapping, which each page meets when it is populated. A lock for each
        // registration would split the mapping, and a client could use up the mappings that the kernel
        // allows this process. Beyond RLIMIT_MEMLOCK this fails, and the pages are only there.
        // SAFETY: whole pages of our mapping, which keep what is in them.
        let locked = unsafe { libc::mlock2(base.as_ptr().cast(), bytes, libc::MLOCK_ONFAULT) };
        if let Some(sparse) = &mut region.sparse {
            sparse.is_locked = locked == 0;
        }
        Ok(region)
    }

    /// Returns true if the region has pages only where they were touched.
    pub fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }

    /// Returns true if others may shrink the file behind it.
    pub fn is_unsealed(&self) -> bool {
        self.sparse.as_ref().is_some_and(|s| s.is_unsealed)
    }

    /// Bytes that holds have, each counted once; of a region that is not sparse, all.
    pub(crate) fn held(&self) -> usize {
        self.sparse.as_ref().map_or(self.len, |s| s.holds().pages.covered())
    }

    /// Whether pages that nothing holds are locked no more, and so not mapped.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.sparse.as_ref().is_some_and(|s| s.is_locked)
    }

    /// Whether its pages are there only while they are held.
    pub(crate) fn needs_hold(&self) -> bool {
        let is_clients = matches!(&self.backing, Backing::Mapped { client: Some(_), .. });
        self.is_sparse() && is_clients
    }
}

impl Sparse {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages of a client's sparse region. They stay populated and paid for until this is dropped, which any
/// thread may do.
#[derive(Debug)]
pub(crate) struct Hold {
    region: Arc<Region>,
    /// Bytes, whole pages.
    pages: Range<usize>,
    lane: usize,
}

/// A hold whose pages are being populated.
#[derive(Debug)]
pub(crate) struct Holding {
    hold: Hold,
    /// Nothing else holds these; the last one comes first.
    todo: Vec<Range<usize>>,
}

impl Holding {
    /// Counts and pays for the pages of `[off, off + len)`. The registrations of a client are populated one
    /// after the other: what another hold has is taken for populated. Thread `lane` releases them.
    ///
    /// # Errors
    /// [`HoldError`]; nothing is held then.
    pub(crate) fn start(
        region: Arc<Region>,
        (off, len): (usize, usize),
        account: &Arc<Account>,
        lane: usize,
    ) -> Result<Holding, HoldError> {
        region.checked(off, len)?;
        let pages = off / PAGE * PAGE..(off + len).next_multiple_of(PAGE);
        let Some(sparse) = &region.sparse else {
            return Ok(Holding { hold: Hold { region, pages: 0..0, lane }, todo: Vec::new() });
        };
        let todo = {
            let mut holds = sparse.holds();
            let new = holds.pages.gaps(&pages);
            let bytes: usize = new.iter().map(ExactSizeIterator::len).sum();
            match &mut holds.paid {
                Some(paid) => paid.add(bytes as u64),
                none => account.take(Kind::Memory, bytes as u64).map(|paid| *none = Some(paid)),
            }
            .map_err(HoldError::Over)?;
            holds.pages.add(&pages)
        };
        Ok(Holding { hold: Hold { region, pages, lane }, todo })
    }

    /// Populates one piece; true when all pages are there.
    ///
    /// # Errors
    /// [`HoldError::Region`]: a page that the client has not filled, or no memory.
    pub(crate) fn step(&mut self) -> Result<bool, HoldError> {
        let Some(part) = self.todo.last_mut() else { return Ok(true) };
        let piece = part.start..part.end.min(part.start + PIECE);
        part.start = piece.end;
        if part.start >= part.end {
            self.todo.pop();
        }
        let region = &self.hold.region;
        if let Some(file) = region.sparse.as_ref().and_then(|s| s.file.as_ref()) {
            let hole = file::hole(file.as_fd(), piece.start)?;
            if hole < piece.end as u64 {
                return Err(RegionError::Hole { off: hole }.into());
            }
        }
        let len = piece.len().min(region.len - piece.start);
        region.populate(piece.start, len)?;
        Ok(self.todo.is_empty())
    }

    /// Gives up at once what it counts, so that no later hold takes a page for populated that this one has not
    /// populated.
    pub(crate) fn abandon(mut self) {
        let pages = core::mem::take(&mut self.hold.pages);
        release(&self.hold.region, &pages);
    }

    /// What holds the pages, once [`step`](Holding::step) has said that they are there.
    pub(crate) fn finish(self) -> Hold {
        self.hold
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let (region, pages) = (self.region.clone(), self.pages.clone());
        closer::run(self.lane, move || release(&region, &pages));
    }
}

fn release(region: &Region, pages: &Range<usize>) {
    let mut rest = pages.clone();
    while !rest.is_empty() {
        let piece = rest.start..rest.end.min(rest.start + PIECE);
        rest.start = piece.end;
        release_piece(region, &piece);
    }
}

fn release_piece(region: &Region, pages: &Range<usize>) {
    let Some(sparse) = &region.sparse else { return };
    let mut holds = sparse.holds();
    let gone = holds.pages.remove(pages);
    for part in gone.iter().filter(|_| sparse.is_locked) {
        // SAFETY: whole pages of our mapping of a file, which keeps what is in them; the mapping finds them
        // again at the next touch. Nothing refers to what no registration holds.
        let dropped = unsafe {
            let at = region.base.as_ptr().add(part.start).cast();
            libc::madvise(at, part.len(), DONTNEED_LOCKED) == 0
                || libc::madvise(at, part.len(), libc::MADV_DONTNEED) == 0
        };
        // Before Linux 5.18 locked pages stay mapped until the region goes. They are the client's own.
        let _ = dropped;
    }
    let bytes: usize = gone.iter().map(ExactSizeIterator::len).sum();
    if let Some(paid) = &mut holds.paid {
        paid.give(bytes as u64);
    }
}

/// Maps a file far from where the kernel puts what the program maps next, which comes to lie close to what it has then.
/// Next to the last mapping, a region of many gigabytes would part the ones before it from those behind it.
fn map_aside(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<NonNull<u8>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    let hint = NEXT.fetch_add(bytes.next_multiple_of(MIB2).saturating_add(MIB2), Ordering::Relaxed);
    super::mmap_at(hint, bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd())
}

fn map(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<NonNull<u8>> {
    super::mmap(bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd())
}
