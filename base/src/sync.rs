//! Atomics, fences and locks for code that several threads or processes run without waiting for
//! each other. In the tests of the feature `loom`, a model checker replaces these types and runs
//! every order in which the threads of a small program can take their steps and see each other's
//! stores.
//!
//! The feature is for these tests alone: a program built with this feature panics at its first
//! atomic. See CONTRIBUTING.md, "Model checking".

pub use imp::{Arc, Mutex, MutexGuard, TryLockError, atomic, yield_now};

#[cfg(not(feature = "loom"))]
mod imp {
    pub use std::sync::atomic;
    pub use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
    pub use std::thread::yield_now;
}

#[cfg(feature = "loom")]
mod imp {
    pub use loom::sync::atomic;
    pub use loom::sync::{Arc, Mutex, MutexGuard};
    pub use loom::thread::yield_now;
    pub use std::sync::TryLockError;
}

/// Marks a place that needs the single total order of all `SeqCst` operations.
///
/// In a program this function does nothing: the surrounding operations are `SeqCst` and suffice.
/// The model checker treats `SeqCst` loads and stores as weaker operations and gives only fences
/// their full strength, so under the feature `loom` the function is a fence.
#[inline(always)]
pub fn seq_cst_operations() {
    #[cfg(feature = "loom")]
    atomic::fence(atomic::Ordering::SeqCst);
}
