//! Memory of this module's own, which the program never registers: no guard can ever cover it.
//!
//! While pages are guarded, the guarding thread and the threads that wait for the end of the guard
//! use only this memory. Their stacks, the heap and the library's own variables may lie in the
//! guarded pages.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize};

use super::convert::Job;

/// Bytes of the stack on which pages are converted.
const STACK: usize = 64 << 10;

/// Words of the table of recently guarded ranges, two for each range. A thread whose signal comes
/// late finds its address in one of these ranges.
pub(super) const RECENT: usize = 64;

/// The contents of the memory.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(super) struct Own {
    /// The stack for conversions; grows down from its end.
    stack: [u8; STACK],
    /// The current conversion. Belongs to the thread that has the lock of the module.
    pub(super) job: Job,
    pub(super) words: Words,
}

/// The words that the handler for SIGSEGV uses.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Odd while a range is guarded. Threads that wrote to the range sleep on this word.
    pub(super) turn: AtomicU32,
    pub(super) start: AtomicUsize,
    pub(super) end: AtomicUsize,
    /// Start and end of each recent range, indexed by turn.
    pub(super) recent: [[AtomicUsize; 2]; RECENT_LEN],
    /// The last access to a recent range that a thread tried again: the thread, the address, and
    /// the number of attempts.
    pub(super) tried: [AtomicUsize; 3],
    /// The program's own handler for SIGSEGV, and its flags.
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicI32,
}

/// Number of ranges in the table; only arrays up to this length have a default value.
const RECENT_LEN: usize = 32;
const _: () = assert!(RECENT == 2 * RECENT_LEN);

static OWN: OnceLock<usize> = OnceLock::new();

/// Returns the memory, which the first call maps; `None` if the system has none.
pub(super) fn own() -> Option<*mut Own> {
    if let Some(own) = there() {
        return Some(own);
    }
    // SAFETY: the call makes a new mapping at an address that the kernel chooses. Zeros are a valid
    // `Own`.
    let mapped = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size_of::<Own>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    Some(ptr::with_exposed_provenance_mut(*OWN.get_or_init(|| mapped.expose_provenance())))
}

/// Returns the memory, if it is already mapped.
pub(super) fn there() -> Option<*mut Own> {
    OWN.get().map(|at| ptr::with_exposed_provenance_mut(*at))
}

impl Own {
    /// Returns the end of the stack.
    pub(super) fn top(own: *mut Own) -> *mut u8 {
        own.cast::<u8>().wrapping_add(STACK)
    }
}
