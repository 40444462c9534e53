//! Memory of a client, on its way to be memory of the RNIC too.
//!
//! A client can hold its file for as long as it likes until the file is sealed (it fills the file,
//! or punches holes into it), and pages come as fast as the system has them. So a lane of
//! [`closer`] does all of this, piece by piece between its other jobs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_socket::wire::ForeignFd;

use heddle_shm::account::Reserved;
use heddle_shm::{Region, RegionError, Waker, closer};

/// Bytes that one step populates: a millisecond or so.
const PIECE: usize = 4 << 20;

/// The regions, in order, and the amounts taken from the account for them.
type Prepared = Result<(Vec<Region>, Vec<Reserved>), RegionError>;

/// A file of a client.
#[derive(Debug)]
pub(super) struct File {
    pub(super) fd: ForeignFd,
    /// Length of the file in bytes.
    pub(super) len: usize,
    pub(super) kind: FileKind,
}

/// The way to map a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// Sealed and populated at once.
    Whole,
    /// Sealed; only registered parts will be populated.
    Sparse,
    /// Mapped without a seal; only registered parts will be populated.
    Unsealed,
}

/// Files that are being mapped, sealed and populated.
#[derive(Debug)]
pub(super) struct Preparing {
    done: Arc<Mutex<Option<Prepared>>>,
}

impl Preparing {
    /// Makes `lane` prepare files, and wakes `waker` when all are prepared or one of them has
    /// failed. The amounts in `held` count until the lane has dropped the files, also when the
    /// session has ended.
    pub(super) fn start(
        files: Vec<File>,
        held: Vec<Reserved>,
        lane: usize,
        waker: Waker,
    ) -> Preparing {
        let done = Arc::new(Mutex::new(None));
        let mut files = files;
        files.reverse();
        let (regions, told) = (Vec::new(), done.clone());
        let work = Work { files, regions, held, populated: 0, lane, told, waker };
        closer::run(lane, move || work.go_on());
        Preparing { done }
    }

    pub(super) fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    /// Returns the result; no regions while the lane is not done.
    pub(super) fn take(self) -> Prepared {
        lock(&self.done).take().unwrap_or_else(|| Ok(Default::default()))
    }
}

/// A job of the lane.
struct Work {
    /// Files that are not mapped yet, the last one first.
    files: Vec<File>,
    regions: Vec<Region>,
    /// Dropped after the regions.
    held: Vec<Reserved>,
    /// Populated bytes of the last region.
    populated: usize,
    lane: usize,
    told: Arc<Mutex<Option<Prepared>>>,
    waker: Waker,
}

impl Work {
    fn go_on(mut self) {
        // The session may have ended.
        if Arc::strong_count(&self.told) == 1 {
            return;
        }
        let result = match self.step() {
            Ok(false) => return closer::run(self.lane, move || self.go_on()),
            Ok(true) => Ok((self.regions, self.held)),
            Err(e) => Err(e),
        };
        *lock(&self.told) = Some(result);
        self.waker.wake();
    }

    /// Carries out one piece of work. Returns true when all is done.
    fn step(&mut self) -> Result<bool, RegionError> {
        match self.regions.last() {
            Some(region) if !region.is_sparse() && self.populated < region.len() => {
                let piece = PIECE.min(region.len() - self.populated);
                region.populate(self.populated, piece)?;
                self.populated += piece;
            }
            _ => {
                let Some(File { fd, len, kind }) = self.files.pop() else { return Ok(true) };
                let fd = fd.fd().ok_or(RegionError::NotShared)?;
                let map = match kind {
                    FileKind::Whole => Region::of_client,
                    FileKind::Sparse => Region::sparse_of_client,
                    FileKind::Unsealed => Region::file_of_client,
                };
                self.regions.push(map(fd, len)?);
                self.populated = 0;
            }
        }
        Ok(false)
    }
}

fn lock(done: &Mutex<Option<Prepared>>) -> MutexGuard<'_, Option<Prepared>> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}
