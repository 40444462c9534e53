//! Threads that the program cancels.
//!
//! `pthread_cancel` ends a thread at a call that may wait, by unwinding its stack. Programs cancel threads that wait
//! for events, which the C library lets them do, so these waits are [`read`] and [`poll`], called by frames that
//! neither catch what unwinds nor drop anything. Everywhere else a call may hold a lock or have half a request written:
//! [`Off`] puts the end of the thread off.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// As `libc::read`, which a thread that is cancelled unwinds through.
    pub(super) fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    /// As `libc::poll`, likewise.
    pub(super) fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// The thread is not cancelled while it has one.
pub(super) struct Off {
    before: c_int,
    /// It is about the thread that made it.
    _thread: PhantomData<*mut ()>,
}

impl Off {
    pub(super) fn new() -> Off {
        let mut before = 0;
        // SAFETY: changes a flag of the thread and fills a live number.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Off { before, _thread: PhantomData }
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        // SAFETY: gives the thread back the flag that it had.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
