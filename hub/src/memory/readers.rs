//! Quiescence: when every worker has stopped looking at entries that were taken away.
//!
//! A worker that reads a table without a lock may still hold an entry's contents when the entry is
//! cleared. The worker itself reports when it does not: once in every turn, at a point where it
//! holds nothing, it counts its [`Reader`] up. A thread that has cleared an entry takes a [`Grace`]
//! and waits until every reader has counted on. This costs a worker one store per turn, and no
//! message.

use heddle_base::sync::Mutex;
use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError};

/// The workers that read tables without a lock.
#[derive(Debug, Default)]
pub struct Readers(Mutex<Vec<Arc<Turns>>>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Turns(AtomicU64);

/// Stands for a count: the reader has been dropped.
const GONE: u64 = u64::MAX;

/// A worker's count of turns; after this is dropped, the worker reads no more.
#[derive(Debug)]
pub struct Reader(Arc<Turns>);

/// The turns that the readers had made when an entry was taken away.
#[derive(Debug)]
pub struct Grace(Vec<(Arc<Turns>, u64)>);

impl Readers {
    /// Returns a new reader, which must exist before its worker looks at any entry.
    pub fn reader(&self) -> Reader {
        let turns = Arc::new(Turns::default());
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|r| r.0.load(Ordering::Relaxed) != GONE);
        readers.push(turns.clone());
        Reader(turns)
    }

    /// Begins a grace period. Call this after an entry has been cleared.
    pub fn grace(&self) -> Grace {
        // This fence orders the store that cleared the entry before the loads below. A reader whose
        // count we see unchanged may have missed that store; a reader that counts on afterwards
        // cannot miss it.
        fence(Ordering::SeqCst);
        let readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = |r: &Arc<Turns>| r.0.load(Ordering::Acquire);
        let all = readers.iter().map(|r| (r.clone(), turns(r)));
        Grace(all.filter(|(_, turns)| *turns != GONE).collect())
    }
}

impl Reader {
    /// Counts one turn: the worker uses nothing after this that it read before. Call this once per
    /// turn.
    #[inline]
    pub fn quiescent(&self) {
        // Only this thread writes the count, so it needs no atomic addition. Release: earlier reads
        // stay before the store. The fence orders the next turn's reads after the store, so that if
        // a grace period sees this count, those reads see the entry cleared.
        self.0.0.store(self.0.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Release, as in `quiescent`: earlier reads stay before the store. The end of an `Arc`
        // would not do, because a thread that finds the `Arc` gone does not acquire.
        self.0.0.store(GONE, Ordering::Release);
    }
}

impl Grace {
    /// Returns true if every reader has passed a quiescent point since the grace period began.
    pub fn is_over(&mut self) -> bool {
        self.0.retain(|(reader, then)| reader.0.load(Ordering::Acquire) == *then);
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_grace_period_ends_when_every_reader_has_moved_on_or_left() {
        let readers = Readers::default();
        assert!(readers.grace().is_over());
        let (a, b) = (readers.reader(), readers.reader());
        let mut grace = readers.grace();
        assert!(!grace.is_over());
        a.quiescent();
        assert!(!grace.is_over());
        drop(b);
        assert!(grace.is_over());
        // A reader that came later cannot have seen the entry that was taken away.
        let _late = readers.reader();
        assert!(grace.is_over());
        assert!(!readers.grace().is_over());
    }
}
