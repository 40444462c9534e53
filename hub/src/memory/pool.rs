//! Memory that is handed out in stretches, which become regions of applications.

use std::sync::{Arc, Mutex};

use heddle_shm::{Region, Stretches};

use super::region_table::RegionId;
use super::registry::{Registry, lock};

/// Memory of which stretches are handed out: an application may register it without bringing memory
/// of its own.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) region: Arc<Region>,
    pub(super) id: RegionId,
    /// Tagged offset of the pool's first byte. This is not its address: peers need not learn where
    /// a process keeps its memory.
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

/// A part of a pool that belongs to no region yet; dropping this frees the part.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(super) pool: Arc<Pool>,
    pub(super) at: usize,
    pub(super) len: usize,
    /// Bytes that are zero.
    pub(super) cleared: usize,
    pub(super) registered: bool,
}

impl Stretch {
    /// Clears up to `most` more bytes, so that the next owner cannot read the data of the last.
    /// Returns true when all are clear.
    pub(crate) fn clear(&mut self, most: usize) -> bool {
        let n = most.min(self.len - self.cleared);
        // The stretch came from the pool's own map, so it lies inside.
        let zeroed = self.pool.region.zero(self.at + self.cleared, n);
        debug_assert!(zeroed.is_ok());
        self.cleared += n;
        self.cleared == self.len
    }
}

impl Stretch {
    /// Marks the stretch cleared without zeroing. The application owns all of this memory and
    /// clears it itself.
    pub(crate) fn leave(&mut self) {
        self.cleared = self.len;
    }

    /// Returns offset and length in bytes.
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
