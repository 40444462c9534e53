//! Regions that are larger than the memory behind them.
//!
//! A sparse region stands for a stretch of address space: its file is as long as that stretch, and
//! has pages only where its owner has written. So the RNIC's process maps the file without touching
//! it. While a [`Hold`] of a registration lives, the registration's pages are populated, locked and
//! paid for. No worker reaches any other page, since an STag names only registered memory.
//!
//! **Which thread does the work.** A lane of [`closer`] populates and releases, piece by piece, so
//! neither the thread that serves clients nor a worker waits for a page. An RNIC that serves only
//! one user populates a few pages itself, which saves two wake-ups. A release unmaps the pages
//! whose count falls to zero, where they are locked, under the lock of the holds: a later hold of
//! the same pages, on any thread, either finds them released and populates them, or finds them
//! held.
//!
//! **Payment.** Each page counts once in its owner's account, no matter how many registrations
//! include it. The owner must have filled the page before. Otherwise a client could register hole
//! after hole, and the RNIC's process would fill the file beyond any quota: no page leaves a sealed
//! file. Files that are not sealed belong to the RNIC's own user, and so does their memory.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Backing, Client, Region, RegionError, check_size, file};
use crate::account::{Account, Kind, Over, Reserved};
use crate::closer;
use crate::counted::Counted;
use crate::guard::Watch;
use crate::pages::{MIB2, PAGE};

/// Bytes that one step populates: a millisecond or so.
const PIECE: usize = 4 << 20;

/// `MADV_DONTNEED` that also works on locked pages, since Linux 5.18.
const DONTNEED_LOCKED: libc::c_int = 24;

/// The state that a sparse region has beside its mapping.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// The sealed file of a client, which shows where there are pages.
    file: Option<OwnedFd>,
    /// Others may shrink the file.
    is_unsealed: bool,
    /// The kernel locks the region's pages as soon as they are mapped. A release leaves pages
    /// mapped that are not locked: this costs the system nothing, and makes the next hold quick.
    is_locked: bool,
    holds: Mutex<Holds>,
}

#[derive(Debug, Default)]
struct Holds {
    /// Held bytes, in whole pages.
    pages: Counted,
    /// The amount taken from the account for these pages.
    paid: Option<Reserved>,
}

/// Why pages are not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldError {
    /// The account has too little left.
    Over(Over),
    /// The system or the file is the reason.
    Region(RegionError),
}

impl From<RegionError> for HoldError {
    fn from(e: RegionError) -> HoldError {
        HoldError::Region(e)
    }
}

impl Region {
    /// Returns a region of `len` bytes without a page: the first touch of each page brings memory,
    /// which stays until the region ends. Core dumps of the process leave the region out. The file
    /// behind the region is sealed as that of [`shared`](Region::shared), and may be longer than
    /// the machine has memory. Another process that registers a part of the region needs the pages
    /// of that part to exist, so touch them first.
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

    /// Maps the first `len` bytes of a file in memory, of ordinary or huge pages, that a program
    /// shares with others. The region is sparse: a program has to touch a part before it registers
    /// the part. The file is not sealed, so only an RNIC that serves its own user alone takes the
    /// region (`heddle_verbs::Device::takes_files`). A process that makes the file
    /// shorter than a registered part ends the program's session with the RNIC.
    ///
    /// # Errors
    /// [`RegionError::NotMemory`], [`RegionError::FileTooShort`], [`RegionError::Size`];
    /// [`RegionError::NoMemory`], also for a descriptor that is not open for writing.
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

    /// Does the same as [`of_file`](Region::of_file) in the process of the RNIC. This function
    /// waits as [`of_client`](Region::of_client) does.
    ///
    /// # Errors
    /// [`RegionError`]; [`RegionError::NoMemory`] also when no more regions can be watched.
    pub fn file_of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
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

    /// As [`of_client`](Region::of_client), for a sparse region of ordinary pages. No code touches
    /// a page until a [`Hold`] includes it.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn sparse_of_client(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
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
        // A single lock covers the whole mapping, and applies to each page when it is populated. A
        // lock for each registration would split the mapping, and a client could use up the
        // mappings that the kernel allows this process. Beyond RLIMIT_MEMLOCK this fails; then the
        // pages are present but not locked.
        // SAFETY: whole pages of our mapping, which keep their contents.
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

    /// Returns true if others may shrink the file behind the region.
    pub fn is_unsealed(&self) -> bool {
        self.sparse.as_ref().is_some_and(|s| s.is_unsealed)
    }

    /// Returns the bytes that holds include, each counted once; in a region that is not sparse, all
    /// bytes.
    pub fn held(&self) -> usize {
        self.sparse.as_ref().map_or(self.len, |s| s.holds().pages.covered())
    }

    /// Returns true if the kernel locks held pages, so that pages without a hold are not mapped.
    pub fn is_locked(&self) -> bool {
        self.sparse.as_ref().is_some_and(|s| s.is_locked)
    }

    /// Returns true if the region's pages exist only while they are held.
    pub fn needs_hold(&self) -> bool {
        let is_clients = matches!(&self.backing, Backing::Mapped { client: Some(_), .. });
        self.is_sparse() && is_clients
    }
}

impl Sparse {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages of a client's sparse region. They stay populated and paid for until this is dropped, on
/// any thread.
#[derive(Debug)]
pub struct Hold {
    region: Arc<Region>,
    /// Held bytes, in whole pages.
    pages: Range<usize>,
    lane: usize,
}

/// A hold whose pages are being populated.
#[derive(Debug)]
pub struct Holding {
    hold: Hold,
    /// Parts to populate, which no other hold includes; the last one comes first.
    todo: Vec<Range<usize>>,
}

impl Holding {
    /// Counts and pays for the pages of `[off, off + len)`. The registrations of a client are
    /// populated one after the other: pages of another hold count as populated. Thread `lane`
    /// releases the pages.
    ///
    /// # Errors
    /// [`HoldError`]; nothing is held then.
    pub fn start(
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

    /// Populates one piece. Returns true when all pages exist.
    ///
    /// # Errors
    /// [`HoldError::Region`]: a page that the client has not filled, or no memory.
    pub fn step(&mut self) -> Result<bool, HoldError> {
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

    /// Releases the pages at once, so that no later hold takes a page for populated that this one
    /// has not populated.
    pub fn abandon(mut self) {
        let pages = core::mem::take(&mut self.hold.pages);
        release(&self.hold.region, &pages);
    }

    /// Returns the hold, once [`step`](Holding::step) has said that all pages exist.
    pub fn finish(self) -> Hold {
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
        // SAFETY: whole pages of our mapping of a file, which keeps their contents; the next touch
        // maps the pages again. Nothing refers to pages that no registration holds.
        let dropped = unsafe {
            let at = region.base.as_ptr().add(part.start).cast();
            libc::madvise(at, part.len(), DONTNEED_LOCKED) == 0
                || libc::madvise(at, part.len(), libc::MADV_DONTNEED) == 0
        };
        // Ignore a failure: before Linux 5.18, locked pages stay mapped until the region ends. They
        // belong to the client.
        let _ = dropped;
    }
    let bytes: usize = gone.iter().map(ExactSizeIterator::len).sum();
    if let Some(paid) = &mut holds.paid {
        paid.give(bytes as u64);
    }
}

/// Maps a file far from the place where the kernel puts the program's next mapping, which is close
/// to the program's other mappings. Next to the last mapping, a region of many gigabytes would
/// separate the earlier mappings from the later ones.
fn map_aside(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<NonNull<u8>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    let hint = NEXT.fetch_add(bytes.next_multiple_of(MIB2).saturating_add(MIB2), Ordering::Relaxed);
    let how = libc::MAP_SHARED | libc::MAP_NORESERVE;
    super::mmap_at(hint, bytes, how, fd.as_raw_fd()).map(|base| undumped(base, bytes))
}

fn map(fd: BorrowedFd<'_>, bytes: usize) -> std::io::Result<NonNull<u8>> {
    let how = libc::MAP_SHARED | libc::MAP_NORESERVE;
    super::mmap(bytes, how, fd.as_raw_fd()).map(|base| undumped(base, bytes))
}

/// Leaves a mapping out of core dumps. The kernel reads every page of a mapping that it dumps, and
/// gives the file of a sparse region each page that it lacks: many gigabytes of zeros. In the
/// process of the RNIC the pages are a client's besides.
fn undumped(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: whole pages of a new mapping, whose contents the call leaves alone. Ignore an error:
    // the call is a hint.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTDUMP) };
    base
}
