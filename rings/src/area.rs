//! Shared memory for rings, as words that either side may change at any time.

use heddle_base::sync::atomic::AtomicU64;
use heddle_shm::{Region, RegionError, Stretches, closer};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::layout::LINE;
use words::Words;

#[cfg(not(feature = "loom"))]
#[path = "area/mapped.rs"]
mod words;
#[cfg(feature = "loom")]
#[path = "area/modelled.rs"]
mod words;

/// Why there is no area, or no room in an area.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// The system could not map the area.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The area has no free stretch that is long enough.
    #[error("no room for {0} bytes of queues")]
    Full(usize),
}

/// A mapping that holds rings. Several processes may map an area; the process that made it gives
/// out blocks.
pub struct Area {
    region: Region,
    free: Mutex<Stretches>,
    words: words::Source,
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("bytes", &self.region.len()).finish_non_exhaustive()
    }
}

/// Words of an area that belong together: a queue pair, a completion queue or doorbells. The
/// process that took a block from the area gives it back by dropping it.
pub struct Block {
    words: Words,
    area: Arc<Area>,
    /// Bytes from the start of the area.
    off: usize,
    /// True if this process took the block from the area's free memory.
    owned: bool,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("off", &self.off)
            .field("words", &self.words.get().len())
            .finish()
    }
}

const WORD: usize = size_of::<u64>();

/// A line: words that share a cache line, which one side writes.
pub type Line = [AtomicU64; LINE];

impl Area {
    /// Returns a new area of `len` zeroed bytes, which the caller can pass to another process.
    ///
    /// # Errors
    /// [`AreaError::Region`].
    pub fn new(len: usize) -> Result<Arc<Area>, AreaError> {
        let region = Region::shared(len)?;
        let free = Mutex::new(Stretches::new(len));
        Ok(Arc::new(Area { region, free, words: words::Source::default() }))
    }

    /// Returns an area over a region in which this process gives out blocks. The region need not be
    /// clear.
    pub fn over(region: Region) -> Arc<Area> {
        let free = Mutex::new(Stretches::new(region.len()));
        Arc::new(Area { region, free, words: words::Source::default() })
    }

    /// Returns an area that another process has made.
    ///
    /// # Errors
    /// [`AreaError::Region`].
    pub fn attach(fd: OwnedFd, len: usize) -> Result<Arc<Area>, AreaError> {
        let region = Region::from_fd(fd, len)?;
        let free = Mutex::new(Stretches::new(0));
        Ok(Arc::new(Area { region, free, words: words::Source::default() }))
    }

    /// Returns an area over a region of this process in which another process gives out blocks.
    pub fn lent(region: Region) -> Arc<Area> {
        let free = Mutex::new(Stretches::new(0));
        Arc::new(Area { region, free, words: words::Source::default() })
    }

    /// Returns true if the area's memory has failed.
    pub fn is_lost(&self) -> bool {
        self.region.is_lost()
    }

    /// Returns the area's file, for another process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "an area is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Takes a block of `words` zeroed words, at the start of a line.
    ///
    /// # Errors
    /// [`AreaError::Full`].
    pub fn take(self: &Arc<Area>, words: usize) -> Result<Block, AreaError> {
        self.take_clearing(words, words)
    }

    /// Does the same, but zeroes only the first `clear` words. This is for blocks whose other words
    /// are written before they are read: the entries of a deep queue are megabytes. The other words
    /// keep data that the same application wrote earlier.
    ///
    /// # Errors
    /// [`AreaError::Full`].
    pub fn take_clearing(self: &Arc<Area>, words: usize, clear: usize) -> Result<Block, AreaError> {
        let len = words.saturating_mul(WORD);
        let off = self.free().take(len).ok_or(AreaError::Full(len))?;
        self.region.zero(off, clear.min(words) * WORD)?;
        let words = self.words.take(&self.region, off, words).ok_or(AreaError::Full(len))?;
        Ok(Block { words, area: self.clone(), off, owned: true })
    }

    /// Returns the block of `words` words at `off` that another process took, or `None` unless the
    /// block lies inside, at the start of a line.
    pub fn at(self: &Arc<Area>, off: usize, words: usize) -> Option<Block> {
        if words == 0 || !off.is_multiple_of(64) {
            return None;
        }
        let words = self.words.find(&self.region, off, words)?;
        Some(Block { words, area: self.clone(), off, owned: false })
    }

    fn free(&self) -> MutexGuard<'_, Stretches> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Block {
    /// Returns the block's words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.words.get()
    }

    /// Returns the block's whole lines. A block starts at the start of a line.
    #[inline]
    pub fn lines(&self) -> &[Line] {
        self.words().as_chunks().0
    }

    /// Returns the area that the block lies in.
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Returns the bytes from the start of the area, for a process that attaches.
    pub fn offset(&self) -> usize {
        self.off
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (off, len) = (self.off, self.words.get().len() * WORD);
        // A worker may run this and must not wait: the thread that holds the lock may be off its
        // processor.
        match self.area.free.try_lock() {
            Ok(mut free) => free.give(off, len),
            Err(TryLockError::Poisoned(free)) => free.into_inner().give(off, len),
            Err(TryLockError::WouldBlock) => {
                let area = self.area.clone();
                closer::run(closer::MEMORY, move || area.free().give(off, len));
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use heddle_base::sync::atomic::Ordering;

    #[test]
    fn test_area_blocks_are_zeroed_and_reused() {
        let area = Area::new(4096).unwrap();
        let b = area.take(512).unwrap();
        assert_eq!(area.take(1).err(), Some(AreaError::Full(8)));
        b.words()[511].store(7, Ordering::Relaxed);
        drop(b);
        let b = area.take(9).unwrap();
        assert!(area.take(504).is_err());
        assert_eq!((b.words().len(), b.words()[8].load(Ordering::Relaxed)), (9, 0));
        let all = {
            drop(b);
            area.take(512).unwrap()
        };
        assert_eq!(all.words()[511].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn test_take_clearing_zeroes_only_the_words_before_the_entries() {
        let area = Area::new(4096).unwrap();
        let b = area.take(512).unwrap();
        b.words().iter().for_each(|w| w.store(7, Ordering::Relaxed));
        drop(b);
        let b = area.take_clearing(512, 40).unwrap();
        let words: Vec<u64> = b.words().iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert!(words[..40].iter().all(|w| *w == 0) && words[40..].iter().all(|w| *w == 7));
    }

    #[test]
    fn test_attached_area_shows_the_same_words_and_no_others() {
        let area = Area::new(4096).unwrap();
        let block = area.take(8).unwrap();
        let fd = area.fd().unwrap().try_clone_to_owned().unwrap();
        let theirs = Area::attach(fd, 4096).unwrap();
        let same = theirs.at(block.offset(), 8).unwrap();
        same.words()[3].store(5, Ordering::Relaxed);
        assert_eq!(block.words()[3].load(Ordering::Relaxed), 5);
        for (off, words) in [(4096, 1), (4032, 9), (8, 1), (0, 0), (0, usize::MAX), (64, 512)] {
            assert!(theirs.at(off, words).is_none(), "{off} {words}");
        }
        assert!(theirs.take(1).is_err(), "only the maker gives out blocks");
    }
}
