//! An arena as the protocol's [`Memory`].

use std::cell::Cell;

use heddle_base::Sum;
use heddle_iwarp::{MemRange, Memory};

use crate::Arena;
use crate::raw;

heddle_base::counters! {
    /// Copies between frames and registered memory. Whatever the protocols count of their own, no
    /// byte gets into or out of registered memory on a worker without being counted here, except by
    /// a frame that refers to it.
    pub struct MemoryCounters {
        /// Bytes copied into registered memory.
        mem_placed_bytes,
        /// Bytes copied out of registered memory.
        mem_gathered_bytes,
    }
}

/// Registered memory of one RNIC, as one worker sees it. The address of a [`MemRange`] is an offset in the arena, and is
/// checked against it at each access: no range, however made, reaches beyond.
#[derive(Clone, Debug)]
pub struct ArenaMemory {
    arena: Arena,
    placed: Cell<u64>,
    gathered: Cell<u64>,
}

impl ArenaMemory {
    /// The memory of `arena`.
    pub fn new(arena: Arena) -> ArenaMemory {
        ArenaMemory { arena, placed: Cell::new(0), gathered: Cell::new(0) }
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What was copied through this handle.
    pub fn counters(&self) -> MemoryCounters {
        MemoryCounters {
            mem_placed_bytes: self.placed.get(),
            mem_gathered_bytes: self.gathered.get(),
        }
    }
}

fn offset(range: MemRange) -> usize {
    usize::try_from(range.addr()).unwrap_or(usize::MAX)
}

impl Memory for ArenaMemory {
    #[inline]
    fn place(&self, dst: MemRange, src: &[u8]) {
        let n = src.len().min(dst.len() as usize);
        self.placed.set(self.placed.get() + n as u64);
        let placed = self.arena.place(offset(dst), &src[..n]);
        debug_assert!(placed.is_ok(), "the STag table knows a range outside the arena");
    }

    #[inline]
    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        let n = dst.len().min(src.len() as usize);
        self.gathered.set(self.gathered.get() + n as u64);
        let gathered = self.arena.gather(offset(src), &mut dst[..n]);
        debug_assert!(gathered.is_ok(), "the STag table knows a range outside the arena");
    }

    #[inline]
    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        self.arena.digest(offset(src), src.len() as usize, crc).unwrap_or((crc, Sum::ZERO))
    }

    #[inline]
    fn copy_digest(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> (u32, Sum) {
        let n = dst.len().min(src.len() as usize);
        self.gathered.set(self.gathered.get() + n as u64);
        let copied = self.arena.gather_digest(offset(src), &mut dst[..n], crc);
        debug_assert!(copied.is_ok(), "the STag table knows a range outside the arena");
        copied.unwrap_or((crc, Sum::ZERO))
    }

    #[inline]
    fn crc(&self, crc: u32, bytes: &[u8]) -> u32 {
        raw::crc32c_append(crc, bytes)
    }
}
