//! Atomic operations (RFC 7306).

/// An atomic operation on 64 bits of memory (RFC 7306 section 5.1). Numbers here are in the
/// machine's byte order; on the wire they are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds to memory.
    FetchAdd {
        /// The number to add.
        add: u64,
        /// The highest bit of each field. The carry out of such a bit is dropped, so the fields are
        /// added independently. 0 makes one field of 64 bits.
        mask: u64,
    },
    /// Compares memory with a number, and stores another if they are equal.
    CmpSwap {
        /// The number to compare memory with.
        compare: u64,
        /// The bits that are compared; with 0 memory always counts as equal.
        compare_mask: u64,
        /// The number to store.
        swap: u64,
        /// The bits that are stored; the other bits of memory stay.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns an operation that stores without looking at the old value. The registry of RFC 7306
    /// (figure 5) has no code for it: on the wire this is a CmpSwap that compares no bits.
    pub const fn swap(swap: u64) -> AtomicOp {
        AtomicOp::CmpSwap { compare: 0, compare_mask: 0, swap, swap_mask: u64::MAX }
    }

    /// Returns the value that memory holds after the operation, when it held `original` before.
    #[inline]
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            // A field without its highest bit cannot carry into the next field; the highest bit is
            // added apart.
            AtomicOp::FetchAdd { add, mask } => {
                (original & !mask).wrapping_add(add & !mask) ^ ((original ^ add) & mask)
            }
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                if (compare ^ original) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}
