//! Atomics, fences and locks of the code that several threads or processes run without waiting for each
//! other. In the tests of the feature `loom` a model checker replaces them, and runs every order in
//! which the threads of a small program can take their steps and see each other's stores.
//!
//! The feature is for these tests alone: a program built with it panics at its first atomic. See
//! CONTRIBUTING.md, "Model checking".

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

/// Marks a place that needs the one order of all `SeqCst` operations.
///
/// It is nothing in a program, where the operations around it are `SeqCst` and suffice. The model
/// checker takes `SeqCst` loads and stores for weaker ones, and only fences for what they are.
#[inline(always)]
pub fn seq_cst_operations() {
    #[cfg(feature = "loom")]
    atomic::fence(atomic::Ordering::SeqCst);
}
