//! The program's signal handlers, as a wait of a thread depends on them.
//!
//! The kernel's wait for a completion event is a `read`, which the kernel begins anew after a handler with
//! SA_RESTART. Ours is a `poll`, which every handler ends. Programs whose handlers all have SA_RESTART (each
//! program in Go, whose runtime sends signals to its own threads) do not expect EINTR.

use std::mem::MaybeUninit;
use std::ptr;

use heddle_shm::closer;

/// Returns true if every handler of the process has SA_RESTART. With handlers of both kinds we cannot know
/// which has run, and the program has to expect EINTR.
pub(super) fn all_restart() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| *signal != closer::nudge()).all(restarts)
}

fn restarts(signal: libc::c_int) -> bool {
    // SAFETY: the structure consists of integers and pointers, for which all zeros are valid, and the
    // call fills it in.
    let (known, action) = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        (libc::sigaction(signal, ptr::null(), &raw mut action) == 0, action)
    };
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    !(known && has_handler) || action.sa_flags & libc::SA_RESTART != 0
}
