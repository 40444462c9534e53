//! An allocator that counts, thread by thread.
//!
//! Each thread counts into a slot of its own, which it takes at its first allocation and keeps. So
//! a test can say which thread allocated, and the test runner's own threads do not disturb the
//! counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Counts calls and passes them on to the system's allocator.
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of threads with a slot of their own; later threads share the last slot.
const THREADS: usize = 256;

/// Counts of one thread since it began.
struct Slot {
    tid: AtomicI32,
    allocated: AtomicU64,
    freed: AtomicU64,
    bytes: AtomicI64,
}

static SLOTS: [Slot; THREADS] = [const {
    Slot {
        tid: AtomicI32::new(0),
        allocated: AtomicU64::new(0),
        freed: AtomicU64::new(0),
        bytes: AtomicI64::new(0),
    }
}; THREADS];

static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // The value is constant and has no destructor, so a use allocates nothing at any time of a
    // thread's life.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn slot() -> &'static Slot {
    let mut at = MINE.get();
    if at == usize::MAX {
        at = TAKEN.fetch_add(1, Ordering::Relaxed).min(THREADS - 1);
        MINE.set(at);
        // SAFETY: `gettid` only asks the kernel for a number, and touches no memory.
        SLOTS[at].tid.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }
    &SLOTS[at]
}

/// Returns the heap bytes of a piece of memory: glibc's allocator puts a word in front and rounds
/// up.
fn chunk(size: usize) -> i64 {
    i64::try_from((size + 8).next_multiple_of(16).max(32)).unwrap_or(i64::MAX)
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().bytes.fetch_add(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise is the callee's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().bytes.fetch_add(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().bytes.fetch_add(chunk(size) - chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `alloc`; `p` came from the same allocator.
        unsafe { System.realloc(p, layout, size) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        slot().freed.fetch_add(1, Ordering::Relaxed);
        slot().bytes.fetch_sub(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(p, layout) }
    }
}

/// Allocator calls of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls of alloc, alloc_zeroed and realloc.
    pub allocated: u64,
    /// Calls of dealloc.
    pub freed: u64,
}

impl Calls {
    /// No calls at all.
    pub const NONE: Calls = Calls { allocated: 0, freed: 0 };

    /// Returns the calls since `earlier`.
    pub fn since(self, earlier: Calls) -> Calls {
        Calls { allocated: self.allocated - earlier.allocated, freed: self.freed - earlier.freed }
    }
}

/// Returns true if successive stretches of traffic belong to a steady state that was almost reached
/// when they began. Queues may still have grown, by doubling, to their greatest length, and have
/// given back their old memory, and the first loss of a connection leaves its record. Such growth
/// happens a handful of times in all, and at least one stretch made no calls.
pub fn is_steady(stretches: &[Calls]) -> bool {
    const GROWTHS: u64 = 8;
    stretches.contains(&Calls::NONE)
        && stretches.iter().all(|c| c.freed <= c.allocated)
        && stretches.iter().map(|c| c.allocated).sum::<u64>() <= GROWTHS
}

fn calls(slot: &Slot) -> Calls {
    Calls {
        allocated: slot.allocated.load(Ordering::Relaxed),
        freed: slot.freed.load(Ordering::Relaxed),
    }
}

/// Returns the calls of this thread so far.
pub fn mine() -> Calls {
    calls(slot())
}

/// Returns the heap bytes that this thread has taken and not given back, including the allocator's
/// own share. The number is negative when the thread gave back memory that others took.
pub fn bytes() -> i64 {
    slot().bytes.load(Ordering::Relaxed)
}

/// Calls of every thread so far. Taking and comparing these counts makes no allocator calls.
pub struct All([Calls; THREADS]);

/// Returns the calls of every thread so far; see [`All`].
pub fn all() -> All {
    All(std::array::from_fn(|i| calls(&SLOTS[i])))
}

impl All {
    /// Returns the name of each thread that still runs, and its calls since `earlier`.
    pub fn since(&self, earlier: &All) -> Vec<(String, Calls)> {
        let taken = TAKEN.load(Ordering::Relaxed).min(THREADS);
        (0..taken)
            .filter_map(|i| {
                let tid = SLOTS[i].tid.load(Ordering::Relaxed);
                let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok()?;
                Some((name.trim().to_owned(), self.0[i].since(earlier.0[i])))
            })
            .collect()
    }
}
