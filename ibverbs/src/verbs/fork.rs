//! `ibv_fork_init`: nothing has to be asked for, since registered memory of the program is right in a child anyway
//! (see [`memory`](crate::memory)).

use std::ffi::{c_int, c_void};

/// The answer "programs need not ask".
const IBV_FORK_UNNEEDED: c_int = 2;

/// Prepares for forks of the program.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Whether forks of the program are prepared for.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

/// Keeps a range from children, for libraries that register memory themselves.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Ends [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
