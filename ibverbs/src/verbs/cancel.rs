//! Handles threads that the program cancels.
//!
//! `pthread_cancel` ends a thread at a call that may wait, by unwinding its stack. Programs cancel
//! threads that wait for events, which the C library permits. So these waits are [`read`] and
//! [`poll`], and the frames that call them neither catch the unwinding nor hold a value to drop. In
//! all other places a call may hold a lock or have written half a request, so [`Off`] delays the
//! end of the thread.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// Calls `libc::read`. A cancelled thread may unwind through this call.
    pub(super) fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    /// Calls `libc::poll`. A cancelled thread may unwind through this call.
    pub(super) fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// While this value lives, the program cannot cancel the thread.
pub(super) struct Off {
    before: c_int,
    /// Keeps the value on the thread that made it.
    _thread: PhantomData<*mut ()>,
}

impl Off {
    pub(super) fn new() -> Off {
        let mut before = 0;
        // SAFETY: the call changes a flag of this thread and writes a live number.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Off { before, _thread: PhantomData }
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        // SAFETY: the call restores the flag that this thread had.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
