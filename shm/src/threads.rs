//! Threads that a library starts in a program.

/// Starts a thread that takes no signals. A program handles signals in its own threads, and a
/// signal that the program has blocked in all of these must not reach a thread of ours. Signals of
/// a thread's own faults stay unblocked: the thread may write to memory that `libibverbs` protects
/// by `mprotect` for a moment, and the kernel kills a process that blocks SIGSEGV in such a case.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: the signal sets live in this frame and the calls fill them in; the function restores
    // the mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::without_signals;

    #[test]
    fn test_library_thread_blocks_all_signals_except_its_own_faults() {
        let blocked = || {
            // SAFETY: the call only reads this thread's mask, and fills in a live set.
            let set = unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
                set
            };
            // SAFETY: the system has filled in this set.
            move |signal: i32| unsafe { libc::sigismember(&raw const set, signal) } == 1
        };
        let theirs = without_signals(|| std::thread::spawn(blocked)).join().unwrap();
        assert!([libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1].iter().all(|s| theirs(*s)));
        assert!(
            ![libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL].iter().any(|s| theirs(*s))
        );
        let ours = blocked();
        assert!(!ours(libc::SIGTERM), "the mask is put back");
    }
}
