//! Threads that a library starts in a program.

/// Starts a thread that takes no signals: handlers of the program run in threads of its own, and a signal that it has
/// blocked in all of these must not find one of ours. Signals of a thread's own faults stay: the thread may write to
/// memory that `libibverbs` guards by `mprotect` for a moment, and the kernel kills a process that blocks SIGSEGV then.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets of this frame that the calls fill in; the mask is put back.
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
    fn test_thread_of_ours_takes_its_own_faults_and_no_other_signal() {
        let blocked = || {
            // SAFETY: asks for the mask of this thread, which is filled in.
            let set = unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
                set
            };
            // SAFETY: a set that the system has filled in.
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
