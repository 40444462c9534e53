//! `ibv_fork_init`: programs need not call it, because a child gets its own copy of registered
//! memory anyway (see [`memory`](crate::memory)).

use std::ffi::{c_int, c_void};

/// The answer "programs need not ask".
const IBV_FORK_UNNEEDED: c_int = 2;

/// Prepares for forks of the program, which needs no work here. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns that the program need not prepare for forks.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

/// Keeps a range from children, for libraries that register memory themselves. Does nothing here
/// and returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Ends [`ibv_dontfork_range`]. Does nothing here and returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
