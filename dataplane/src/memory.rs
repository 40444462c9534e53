//! An arena as the protocol's [`Memory`].

use heddle_base::Sum;
use heddle_iwarp::{MemRange, Memory};

use crate::Arena;
use crate::raw;

/// Registered memory of one RNIC. The address of a [`MemRange`] is an offset in the arena, and is
/// checked against it at each access: no range, however made, reaches beyond.
#[derive(Clone, Debug)]
pub struct ArenaMemory(Arena);

impl ArenaMemory {
    /// The memory of `arena`.
    pub fn new(arena: Arena) -> ArenaMemory {
        ArenaMemory(arena)
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.0
    }
}

fn offset(range: MemRange) -> usize {
    usize::try_from(range.addr()).unwrap_or(usize::MAX)
}

impl Memory for ArenaMemory {
    #[inline]
    fn place(&self, dst: MemRange, src: &[u8]) {
        let n = src.len().min(dst.len() as usize);
        let placed = self.0.place(offset(dst), &src[..n]);
        debug_assert!(placed.is_ok(), "the STag table knows a range outside the arena");
    }

    #[inline]
    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        let n = dst.len().min(src.len() as usize);
        let gathered = self.0.gather(offset(src), &mut dst[..n]);
        debug_assert!(gathered.is_ok(), "the STag table knows a range outside the arena");
    }

    #[inline]
    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        self.0.digest(offset(src), src.len() as usize, crc).unwrap_or((crc, Sum::ZERO))
    }

    #[inline]
    fn crc(&self, crc: u32, bytes: &[u8]) -> u32 {
        raw::crc32c_append(crc, bytes)
    }
}
