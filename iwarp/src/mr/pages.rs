//! Page lists: what a fast registration names whose pages do not lie together.
//!
//! One STag, tagged offsets without a gap, and memory in several *runs*: stretches of whole pages that
//! lie together. The first run may begin inside a page and the last may end inside one, as the
//! memory between them may not, so whatever is aligned in the memory of a page is aligned across runs
//! too, and no aligned word lies in two of them.
//!
//! A list stands beside its slot, not in it: only slots of fast registrations ever have one, made when
//! the STag is allocated and kept for the next. The slot's sequence lock covers it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;

/// Most runs of one list: as many as a request has SGEs.
pub const MAX_RUNS: usize = 16;

/// Memory that lies together: where in the registration it ends, in octets, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) end: u64,
    pub(super) addr: u64,
}

/// The runs of one slot, in the order of their offsets; how many count stands in the slot.
#[derive(Debug, Default)]
pub(super) struct PageList(OnceLock<Box<[[AtomicU64; 2]; MAX_RUNS]>>);

impl PageList {
    /// Makes the memory of the list, which takes some; the rest takes none.
    pub(super) fn reserve(&self) {
        let none = || [AtomicU64::new(0), AtomicU64::new(0)];
        self.0.get_or_init(|| Box::new(core::array::from_fn(|_| none())));
    }

    /// Stores `runs`, as far as there is room. Whoever calls it is alone inside the slot.
    pub(super) fn store(&self, runs: &[Run]) {
        for ([end, addr], run) in self.0.get().into_iter().flat_map(|l| l.iter()).zip(runs) {
            end.store(run.end, Relaxed);
            addr.store(run.addr, Relaxed);
        }
    }

    /// Where octet `off` of a registration of `runs` runs lies, and how many octets lie together from
    /// there on. It means something only if the slot has not changed since.
    pub(super) fn find(&self, runs: u8, off: u64) -> Option<(u64, u64)> {
        let mut begin = 0;
        for [end, addr] in self.0.get()?.iter().take(runs.into()) {
            let end = end.load(Relaxed);
            if off < end {
                return Some((addr.load(Relaxed).wrapping_add(off.wrapping_sub(begin)), end - off));
            }
            begin = end;
        }
        None
    }
}
