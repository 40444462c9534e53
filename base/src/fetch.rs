//! Memory that a later step will touch.

/// Fetches memory into the processor's caches ahead of its use.
///
/// A worker with many connections finds the state of most of them in memory, not in a cache. It
/// knows a burst in advance, so it asks the rooms which memory the next connections need, and the
/// fetches overlap with each other and with the work for the connections before. The code that
/// fetches lies where `unsafe` may lie; the rooms only name the memory.
pub trait Fetch: Copy {
    /// Fetches `len` bytes from `at` on. The processor does not fetch what it cannot read, so any
    /// address will do.
    fn bytes(self, at: *const u8, len: usize);

    /// Fetches a value. Memory that the value points to is not included.
    #[inline(always)]
    fn value<T>(self, value: &T) {
        self.bytes(core::ptr::from_ref(value).cast(), size_of::<T>());
    }
}
