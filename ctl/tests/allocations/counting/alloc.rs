//! An allocator that counts, thread by thread.
//!
//! Each thread counts into a slot of its own, which it takes at its first allocation and keeps. So
//! a test can say which thread allocated, and the test runner's own threads disturb nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Counts calls and passes them on to the system's allocator.
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Threads that can be told apart; later ones share the last slot.
const THREADS: usize = 256;

/// What one thread did since it began.
struct Slot {
    tid: AtomicI32,
    allocated: AtomicU64,
    freed: AtomicU64,
    octets: AtomicI64,
}

static SLOTS: [Slot; THREADS] = [const {
    Slot {
        tid: AtomicI32::new(0),
        allocated: AtomicU64::new(0),
        freed: AtomicU64::new(0),
        octets: AtomicI64::new(0),
    }
}; THREADS];

static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Constant and without a destructor: using it allocates nothing, at any time of a thread.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn slot() -> &'static Slot {
    let mut at = MINE.get();
    if at == usize::MAX {
        at = TAKEN.fetch_add(1, Ordering::Relaxed).min(THREADS - 1);
        MINE.set(at);
        // SAFETY: asks the kernel for a number; no memory is touched.
        SLOTS[at].tid.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }
    &SLOTS[at]
}

/// What a piece of memory takes of the heap: glibc's allocator puts a word in front and rounds up.
fn chunk(size: usize) -> i64 {
    i64::try_from((size + 8).next_multiple_of(16).max(32)).unwrap_or(i64::MAX)
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().octets.fetch_add(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise is the callee's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().octets.fetch_add(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        slot().allocated.fetch_add(1, Ordering::Relaxed);
        slot().octets.fetch_add(chunk(size) - chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `alloc`; `p` came from the same allocator.
        unsafe { System.realloc(p, layout, size) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        slot().freed.fetch_add(1, Ordering::Relaxed);
        slot().octets.fetch_sub(chunk(layout.size()), Ordering::Relaxed);
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(p, layout) }
    }
}

/// Calls of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// alloc, alloc_zeroed and realloc.
    pub allocated: u64,
    /// dealloc.
    pub freed: u64,
}

impl Calls {
    /// None at all.
    pub const NONE: Calls = Calls { allocated: 0, freed: 0 };

    /// Those since `earlier`.
    pub fn since(self, earlier: Calls) -> Calls {
        Calls { allocated: self.allocated - earlier.allocated, freed: self.freed - earlier.freed }
    }
}

/// Whether stretches of traffic, one after another, are those of a steady state that was not quite
/// reached when they began: queues may still have grown, by doubling, to the most there has been in
/// them, and have given back what they had before; that is a handful of times in all, and at least
/// one stretch made no calls at all.
pub fn is_steady(stretches: &[Calls]) -> bool {
    const GROWTHS: u64 = 4;
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

/// Calls of this thread so far.
pub fn mine() -> Calls {
    calls(slot())
}

/// Octets of the heap that this thread has taken and not given back, the allocator's own share
/// included; negative when it gave back what others took.
pub fn octets() -> i64 {
    slot().octets.load(Ordering::Relaxed)
}

/// Calls of every thread so far. Makes no calls itself.
pub struct All([Calls; THREADS]);

/// See [`All`].
pub fn all() -> All {
    All(std::array::from_fn(|i| calls(&SLOTS[i])))
}

impl All {
    /// Name and calls since `earlier` of each thread that still runs.
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
