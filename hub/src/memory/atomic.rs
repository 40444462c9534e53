//! Atomic operations on registered memory.

use std::sync::atomic::{AtomicU64, Ordering};

use heddle_types::AtomicOp;

/// Carries out `op` on the 64 bits at `at`, and returns their old value. The operation is atomic
/// against all atomic instructions on these bits, in this process or another.
///
/// # Safety
/// `at` is valid for reads and writes of 8 bytes, and a multiple of 8.
#[inline]
pub(super) unsafe fn apply(at: *mut u8, op: AtomicOp) -> u64 {
    // SAFETY: valid and aligned, by the caller.
    let cell = unsafe { AtomicU64::from_ptr(at.cast()) };
    if let AtomicOp::FetchAdd { add, mask: 0 } = op {
        return cell.fetch_add(add, Ordering::SeqCst);
    }
    let update = |v| Some(op.apply(v)).filter(|new| *new != v);
    cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update).unwrap_or_else(|v| v)
}
