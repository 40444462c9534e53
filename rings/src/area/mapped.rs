//! The words of a block where the area is mapped.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use heddle_shm::Region;

/// Finds words in the mapping. The mapping is all the state, so this type has none.
#[derive(Debug, Default)]
pub(super) struct Source {}

impl Source {
    /// Returns the `words` words at byte `off`, which the caller has just taken from the free
    /// memory.
    pub(super) fn take(&self, region: &Region, off: usize, words: usize) -> Option<Words> {
        self.find(region, off, words)
    }

    /// Returns the `words` words at byte `off`, a multiple of 64, or `None` unless they lie inside.
    pub(super) fn find(&self, region: &Region, off: usize, words: usize) -> Option<Words> {
        let base = NonNull::new(region.ptr(off, words.checked_mul(size_of::<u64>())?)?)?.cast();
        Some(Words { base, words })
    }
}

/// Words of a mapping. Every post and poll uses them, so this type holds their address itself.
#[derive(Debug)]
pub(super) struct Words {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: `base` points to words in the mapping of the area that `Block` holds beside this. The
// area is `Send` and `Sync` and lives as long as the block; all code reaches the words as shared
// references to atomics and in no other way.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    #[inline]
    pub(super) fn get(&self) -> &[AtomicU64] {
        // SAFETY: `base` is the address of `words` words that `find` checked against the mapping.
        // The mapping is page-aligned and the offset a multiple of 64, so each word is aligned. The
        // mapping lives as long as the area, which the block that owns this holds. Every access to
        // this memory, here and in other processes, is an atomic access of 8 bytes or happens
        // before the area is handed out, so shared references to atomics are the only references to
        // this memory.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}
