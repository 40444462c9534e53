//! Memory of this module's own, which the program never registers: no guard can ever cover it.
//!
//! While pages are guarded, the thread that guards them and those that wait for the end use this memory
//! alone. Their stacks, the heap and the library's own variables may lie in the guarded pages.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize};

use super::convert::Job;

/// Bytes of the stack on which pages are converted.
const STACK: usize = 64 << 10;

/// Ranges that were guarded last. A thread that is late with its signal finds its address here.
pub(super) const RECENT: usize = 64;

/// What the memory holds.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(super) struct Own {
    /// Grows down from its end.
    stack: [u8; STACK],
    /// What is being converted. Belongs to the thread that has the lock of the module.
    pub(super) job: Job,
    pub(super) words: Words,
}

/// What the handler for SIGSEGV looks at.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Odd while a range is guarded. Threads that wrote there sleep on it.
    pub(super) turn: AtomicU32,
    pub(super) start: AtomicUsize,
    pub(super) end: AtomicUsize,
    /// Start and end of each, by turn.
    pub(super) recent: [[AtomicUsize; 2]; RECENT_LEN],
    /// Who tried an access of a recent range again, where, and how often.
    pub(super) tried: [AtomicUsize; 3],
    /// The program's own handler for SIGSEGV, and its flags.
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicI32,
}

/// As [`RECENT`]; arrays of this length have a default value.
const RECENT_LEN: usize = 32;
const _: () = assert!(RECENT == 2 * RECENT_LEN);

static OWN: OnceLock<usize> = OnceLock::new();

/// The memory, mapped at the first call; `None` where the system has none.
pub(super) fn own() -> Option<*mut Own> {
    if let Some(own) = there() {
        return Some(own);
    }
    // SAFETY: a new mapping at an address of the kernel's choice. Zeros are a value of `Own`.
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

/// The memory, if it has been mapped.
pub(super) fn there() -> Option<*mut Own> {
    OWN.get().map(|at| ptr::with_exposed_provenance_mut(*at))
}

impl Own {
    /// The end of the stack.
    pub(super) fn top(own: *mut Own) -> *mut u8 {
        own.cast::<u8>().wrapping_add(STACK)
    }
}
