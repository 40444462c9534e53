//! Quiescence: when every worker has stopped looking at what was taken away.
//!
//! A worker that reads a table without a lock may still hold what it found when an entry is
//! cleared. It says so itself: once in every turn, at a point where it holds nothing, it counts its
//! [`Reader`] up. Whoever has cleared an entry takes a [`Grace`] and waits until every reader has
//! counted on. This costs a worker one store per turn, and no message.

use heddle_base::sync::Mutex;
use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError};

/// The workers that read tables without a lock.
#[derive(Debug, Default)]
pub struct Readers(Mutex<Vec<Arc<Turns>>>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Turns(AtomicU64);

/// In the place of a count: the reader is gone.
const GONE: u64 = u64::MAX;

/// One worker's count of turns; it reads nothing any more once this is dropped.
#[derive(Debug)]
pub struct Reader(Arc<Turns>);

/// The turns the readers had made when something was taken away.
#[derive(Debug)]
pub struct Grace(Vec<(Arc<Turns>, u64)>);

impl Readers {
    /// A new reader. It must exist before it looks at anything.
    pub fn reader(&self) -> Reader {
        let turns = Arc::new(Turns::default());
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|r| r.0.load(Ordering::Relaxed) != GONE);
        readers.push(turns.clone());
        Reader(turns)
    }

    /// To be taken after an entry has been cleared.
    pub fn grace(&self) -> Grace {
        // The store that cleared the entry comes before the loads below: a reader whose count we
        // see unchanged may have missed it, one that counts on afterwards cannot.
        fence(Ordering::SeqCst);
        let readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = |r: &Arc<Turns>| r.0.load(Ordering::Acquire);
        let all = readers.iter().map(|r| (r.clone(), turns(r)));
        Grace(all.filter(|(_, turns)| *turns != GONE).collect())
    }
}

impl Reader {
    /// Nothing that was read before is used after this. Once per turn.
    #[inline]
    pub fn quiescent(&self) {
        // One writer: no atomic addition is needed. Release: what was read before stays before. The
        // fence orders the next turn's reads behind it, so that a grace period that sees this count
        // is seen by them.
        self.0.0.store(self.0.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Release, as in `quiescent`: what was read before stays before. The end of an `Arc` would not
        // do, because finding it gone does not acquire.
        self.0.0.store(GONE, Ordering::Release);
    }
}

impl Grace {
    /// Whether every reader has passed a quiescent point since.
    pub fn is_over(&mut self) -> bool {
        self.0.retain(|(reader, then)| reader.0.load(Ordering::Acquire) == *then);
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_grace_ends_when_every_reader_has_moved_or_gone() {
        let readers = Readers::default();
        assert!(readers.grace().is_over());
        let (a, b) = (readers.reader(), readers.reader());
        let mut grace = readers.grace();
        assert!(!grace.is_over());
        a.quiescent();
        assert!(!grace.is_over());
        drop(b);
        assert!(grace.is_over());
        // A reader that came later cannot have seen what was taken away.
        let _late = readers.reader();
        assert!(grace.is_over());
        assert!(!readers.grace().is_over());
    }
}
