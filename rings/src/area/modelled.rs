//! The words of a block in the tests of the feature `loom`: atomics of the model checker, which
//! cannot lie in a mapping.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use heddle_base::sync::atomic::AtomicU64;

use heddle_shm::Region;

/// The blocks taken so far, by their offset: a process that attaches finds the same words.
#[derive(Default)]
pub(super) struct Source(Mutex<HashMap<usize, Arc<[AtomicU64]>>>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Source {
    /// Returns new words, all zero, at byte `off`.
    pub(super) fn take(&self, _region: &Region, off: usize, words: usize) -> Option<Words> {
        let new: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(off, new.clone());
        Some(Words(new))
    }

    /// Returns the block that was taken at byte `off`, if it has that many words.
    pub(super) fn find(&self, _region: &Region, off: usize, words: usize) -> Option<Words> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&off).filter(|w| w.len() >= words).cloned().map(Words)
    }
}

/// See [`Source`].
#[derive(Debug)]
pub(super) struct Words(Arc<[AtomicU64]>);

impl Words {
    pub(super) fn get(&self) -> &[AtomicU64] {
        &self.0
    }
}
