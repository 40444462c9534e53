//! How far a run is, for whoever waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared between the thread of a run and one that shows it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Operations completed in the run under way.
    pub fn ops(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, ops: u64) {
        self.0.store(ops, Ordering::Relaxed);
    }
}
