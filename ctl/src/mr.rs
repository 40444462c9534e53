//! Memory regions as applications hold them.

use std::sync::Arc;

use heddle_dataplane::Arena;
use heddle_iwarp::{Sge, Stag};

use crate::device::Registry;

/// A registered memory region; deregistered when dropped.
///
/// The peer may write it at any time as its rights allow, so its bytes are copied in and out and
/// never borrowed.
#[derive(Debug)]
pub struct Mr {
    pub(crate) stag: Stag,
    pub(crate) to: u64,
    pub(crate) len: usize,
    /// Offset in the arena.
    pub(crate) at: usize,
    pub(crate) arena: Arena,
    pub(crate) registry: Arc<Registry>,
}

impl Mr {
    /// Its STag, local and remote.
    pub fn stag(&self) -> Stag {
        self.stag
    }

    /// The tagged offset of its first byte.
    pub fn to(&self) -> u64 {
        self.to
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `off`.
    ///
    /// # Panics
    ///
    /// When they do not fit: the caller made the region and knows its length.
    pub fn write(&self, off: usize, bytes: &[u8]) {
        self.inside(off, bytes.len());
        let inside = self.arena.place(self.at + off, bytes);
        debug_assert!(inside.is_ok());
    }

    /// Copies bytes from `off` on over `out`.
    ///
    /// # Panics
    ///
    /// When the region has not that many.
    pub fn read(&self, off: usize, out: &mut [u8]) {
        self.inside(off, out.len());
        let inside = self.arena.gather(self.at + off, out);
        debug_assert!(inside.is_ok());
    }

    /// One byte, read anew at each call: for waiting until the peer has written it.
    ///
    /// # Panics
    ///
    /// When the region has no such byte.
    #[inline]
    pub fn load(&self, off: usize) -> u8 {
        let mut byte = [0];
        self.read(off, &mut byte);
        byte[0]
    }

    /// A scatter/gather element of `len` bytes at `off`.
    pub fn sge(&self, off: usize, len: usize) -> Sge {
        Sge {
            stag: self.stag,
            to: self.to + off as u64,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    #[inline]
    fn inside(&self, off: usize, len: usize) {
        assert!(
            off.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {off} are not inside a region of {}",
            self.len
        );
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.registry.deregister(self.stag, self.at, self.len);
    }
}
