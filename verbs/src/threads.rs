//! Threads that a library starts in a program.

/// Starts a thread that takes no signals: handlers of the program run in threads of its own, and a signal that it has
/// blocked in all of these must not find one of ours.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets of this frame that the calls fill in; the mask is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    }
}
