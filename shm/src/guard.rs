//! The last line of defence against SIGBUS in memory of a client.
//!
//! A sealed file keeps its pages, so no client can get a worker killed. Memory can still fail: the
//! kernel then takes the page away and sends SIGBUS to the thread that touches it. A handler
//! replaces the whole region by memory of this process, so the worker goes on with zeros, and marks
//! the region as lost: its session ends, and no other session does. The handler leaves a SIGBUS at
//! any other address alone.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most regions that can be watched at a time.
const MOST: usize = 1024;

#[derive(Debug)]
struct Entry {
    taken: AtomicBool,
    base: AtomicUsize,
    /// Length of the watched mapping; 0 in an entry that watches none.
    bytes: AtomicUsize,
    lost: AtomicBool,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MOST];

/// Number of times that a region was lost.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// The handler that was in place before this one.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is watched until this is dropped.
#[derive(Debug)]
pub(super) struct Watch(usize);

/// Returns how often memory of any client was lost: when this number has changed, sessions check
/// their own memory.
pub fn lost() -> usize {
    LOST.load(Ordering::Relaxed)
}

impl Watch {
    /// Watches `bytes` bytes at `base`, whole pages. Returns `None` when no more regions can be
    /// watched.
    pub(super) fn new(base: *const u8, bytes: usize) -> Option<Watch> {
        install();
        let free = |e: &Entry| !e.taken.swap(true, Ordering::Acquire);
        let at = ENTRIES.iter().position(free)?;
        let entry = &ENTRIES[at];
        entry.lost.store(false, Ordering::Relaxed);
        entry.base.store(base.addr(), Ordering::Relaxed);
        // Store this last: the handler looks at it first.
        entry.bytes.store(bytes, Ordering::Release);
        Some(Watch(at))
    }

    /// Returns true if a page of the mapping has failed, so that all of it is now zeros of this
    /// process.
    pub(super) fn is_lost(&self) -> bool {
        ENTRIES[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.0];
        entry.bytes.store(0, Ordering::Release);
        entry.taken.store(false, Ordering::Release);
    }
}

fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: structures of integers and pointers, for which all zeros are values.
        let (mut action, mut before) = unsafe {
            let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            let before: libc::sigaction = MaybeUninit::zeroed().assume_init();
            (action, before)
        };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: live structures; the handler only makes system calls and loads and stores
        // atomics.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
        before
    });
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a live structure to a handler with SA_SIGINFO.
    let at = unsafe { (*info).si_addr() }.addr();
    for entry in &ENTRIES {
        let bytes = entry.bytes.load(Ordering::Acquire);
        let base = entry.base.load(Ordering::Relaxed);
        if bytes == 0 || at < base || at - base >= bytes {
            continue;
        }
        // NORESERVE: a sparse region may be larger than the machine's memory.
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces a mapping of ours, which exists as long as it is watched. All code
        // reaches the mapping through raw pointers and atomics alone, and its bytes may change at
        // any time.
        let new = unsafe {
            libc::mmap(ptr::with_exposed_provenance_mut(base), bytes, rights, how, -1, 0)
        };
        if new != libc::MAP_FAILED {
            entry.lost.store(true, Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // The address is not ours: restore the earlier handler, which gets the signal when the
    // instruction faults again.
    if let Some(before) = BEFORE.get() {
        // SAFETY: the system has filled in this structure.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    }
}
