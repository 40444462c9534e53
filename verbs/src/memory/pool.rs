//! Memory that is handed out in stretches, which become regions of applications.

use std::sync::{Arc, Mutex};

use super::region::Region;
use super::region_table::RegionId;
use super::registry::{Registry, lock};
use super::stretches::Stretches;

/// Memory of which stretches are handed out: what an application may register without bringing its
/// own.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) region: Arc<Region>,
    pub(super) id: RegionId,
    /// Tagged offset of its first byte. Not its address: peers need not learn where a process keeps
    /// its memory.
    pub(super) to: u64,
    pub(super) stretches: Mutex<Stretches>,
    pub(super) registry: Arc<Registry>,
}

impl Pool {
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.registry.regions().remove(self.id);
    }
}

/// A part of a pool that is nobody's region yet; free again when dropped.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(super) pool: Arc<Pool>,
    pub(super) at: usize,
    pub(super) len: usize,
    /// Octets that are zero.
    pub(super) cleared: usize,
    pub(super) registered: bool,
}

impl Stretch {
    /// Clears up to `most` octets more; true when all are clear. What was there before is nobody's
    /// business.
    pub(crate) fn clear(&mut self, most: usize) -> bool {
        let n = most.min(self.len - self.cleared);
        // Taken from the pool's own map: it lies inside.
        let zeroed = self.pool.region.zero(self.at + self.cleared, n);
        debug_assert!(zeroed.is_ok());
        self.cleared += n;
        self.cleared == self.len
    }
}

impl Stretch {
    /// Leaves in it what is there: whoever gets it has had all of it, and clears it.
    pub(crate) fn leave(&mut self) {
        self.cleared = self.len;
    }

    /// Offset and octets.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.at, self.len)
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if !self.registered {
            lock(&self.pool.stretches).give(self.at, self.len);
        }
    }
}
