//! The wait of threads that write pages guarded by `mprotect`: such a thread gets SIGSEGV and waits
//! here.
//!
//! The handler uses only [`Words`] and system calls. The handler passes any other fault to the
//! handler that the program had installed.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::own::{Own, Words, there};
use super::sys;

/// Number of times that a thread may repeat an access to a range that is no longer guarded.
const TRIES: usize = 3;

/// Installs the handler in the process, unless it is installed. The caller has the lock of the
/// module.
pub(super) fn install(own: *mut Own) {
    // SAFETY: the structures consist of integers and pointers, for which all zeros are valid. `own`
    // stays mapped for good.
    let (mut action, mut before, words) = unsafe {
        let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        let before: libc::sigaction = MaybeUninit::zeroed().assume_init();
        (action, before, &(*own).words)
    };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as libc::sighandler_t;
    // Run on the thread's alternate stack if it has one, because its own stack may be guarded.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the structures are live. The handler makes only system calls and uses only atomics,
    // so it is safe at any moment, until it calls a handler that the program itself has installed.
    unsafe {
        libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before);
        if before.sa_sigaction == action.sa_sigaction {
            return;
        }
        words.flags.store(before.sa_flags, Relaxed);
        words.handler.store(before.sa_sigaction, Release);
        libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
    }
}

impl Words {
    /// Makes writers of the range wait from here on.
    pub(super) fn begin(&self, start: usize, end: usize) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
        let turn = self.turn.load(Relaxed);
        let at = (turn as usize / 2) % self.recent.len();
        if let Some([first, last]) = self.recent.get(at) {
            first.store(start, Relaxed);
            last.store(end, Relaxed);
        }
        self.turn.store(turn.wrapping_add(1), SeqCst);
    }

    /// Ends the guard: writers repeat their access, now of the old mapping or of its replacement.
    pub(super) fn end(&self) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn.wrapping_add(1), SeqCst);
        // SAFETY: the word lies in memory that is mapped for good.
        unsafe { sys::futex_wake(self.turn.as_ptr()) };
    }

    /// Waits while `at` is guarded. Returns true if the access may succeed now.
    fn wait(&self, at: usize) -> bool {
        let mut waited = false;
        loop {
            let turn = self.turn.load(Acquire);
            let inside = (self.start.load(Relaxed)..self.end.load(Relaxed)).contains(&at);
            if turn.is_multiple_of(2) || !inside {
                return waited || self.may_try_again(at);
            }
            waited = true;
            // SAFETY: as in `end`.
            unsafe { sys::futex_wait(self.turn.as_ptr(), turn) };
        }
    }

    /// Returns true if the access at `at` deserves another attempt: the thread may have faulted
    /// while the range was guarded and got its signal only afterwards. A defect of the program, in
    /// contrast, faults at the same place again and again.
    fn may_try_again(&self, at: usize) -> bool {
        let recent = self
            .recent
            .iter()
            .any(|[start, end]| (start.load(Relaxed)..end.load(Relaxed)).contains(&at));
        if !recent {
            return false;
        }
        // SAFETY: the system call has no arguments.
        let thread = unsafe { sys::call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
        let [who, place, count] = &self.tried;
        if who.swap(thread, Relaxed) == thread && place.swap(at, Relaxed) == at {
            return count.fetch_add(1, Relaxed) < TRIES;
        }
        place.store(at, Relaxed);
        count.store(0, Relaxed);
        true
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(own) = there() else { return };
    // SAFETY: the memory is mapped for good; no code has a unique reference to the words.
    let words = unsafe { &(*own).words };
    // SAFETY: the kernel gives a live structure to a handler with SA_SIGINFO.
    let (at, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // Positive codes are faults of the thread itself; a process has sent the others.
    if code > 0 && words.wait(at) {
        return;
    }
    let handler = words.handler.load(Acquire);
    if handler == libc::SIG_IGN && code <= 0 {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the calls restore the default action, which the same fault meets when this
        // handler returns, and raise a signal that was sent once more.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(libc::SIGSEGV);
            }
        }
        return;
    }
    // SAFETY: the program has installed `handler` with these flags, so it has the type that they
    // say.
    unsafe {
        if words.flags.load(Relaxed) & libc::SA_SIGINFO != 0 {
            let f: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                core::mem::transmute(handler);
            f(signal, info, context);
        } else {
            let f: extern "C" fn(libc::c_int) = core::mem::transmute(handler);
            f(signal);
        }
    }
}
