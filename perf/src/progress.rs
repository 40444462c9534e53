//! How far a run is, for a thread that waits for the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that the thread of a run shares with a thread that shows it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Returns the operations completed in the current run.
    pub fn ops(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, ops: u64) {
        self.0.store(ops, Ordering::Relaxed);
    }
}
