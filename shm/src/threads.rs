//! Threads that a library starts in a program.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Starts a thread that takes no signals and calls `work`; returns once the thread has come that far.
///
/// A new thread frees what its maker has allocated for it, and the C library may unmap memory by that.
/// Libraries that watch a program's mappings (libfabric's `memhooks`) write a jump over the first
/// instructions of `munmap`, while other threads run. A thread that returns from the kernel just then
/// continues in the middle of the jump. So no thread of ours starts while the program is outside of our
/// calls.
///
/// # Errors
/// The system's error, when it has no thread left.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let begun = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = Arc::clone(&begun);
    let thread = std::thread::Builder::new().name(name.to_owned());
    let run = move || {
        *theirs.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        theirs.1.notify_one();
        work();
        // To free this at the beginning could unmap memory as well.
        drop(theirs);
    };
    without_signals(|| thread.spawn(run))?;
    let mut has_begun = begun.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*has_begun {
        has_begun = begun.1.wait(has_begun).unwrap_or_else(PoisonError::into_inner);
    }
    Ok(())
}

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
    use std::sync::mpsc::channel;

    use super::{start, without_signals};

    /// The standard library names a thread after it has freed what the thread's maker had allocated.
    #[test]
    fn test_started_thread_runs_its_own_code() {
        for n in 0..200 {
            let name = format!("own-{n}");
            let (stop, stopped) = channel::<()>();
            start(&name, move || assert!(stopped.recv().is_err())).unwrap();
            let is_named = |task: std::io::Result<std::fs::DirEntry>| {
                let comm = std::fs::read_to_string(task.unwrap().path().join("comm"));
                comm.is_ok_and(|comm| comm.trim_end() == name)
            };
            let lives = || std::fs::read_dir("/proc/self/task").unwrap().any(is_named);
            assert!(lives(), "{name}");
            drop(stop);
            // A thread that ends while the kernel lists the threads can hide another.
            while lives() {
                std::thread::yield_now();
            }
        }
    }

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
