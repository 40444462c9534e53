//! Page lists, for fast registrations whose pages are not contiguous.
//!
//! Such a registration has one STag, tagged offsets without a gap, and memory in several *runs*:
//! contiguous stretches of whole pages. The first run may begin inside a page and the last may end
//! inside one; the runs between may not. So data that is aligned within a page of memory is aligned
//! across runs too, and no aligned word lies in two of them.
//!
//! A list is stored beside its slot, not in it. Only slots of fast registrations ever have a list,
//! which the table makes when it allocates the STag and keeps for the next one. The slot's sequence
//! lock covers the list.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;

use heddle_types::mr::MAX_RUNS;

/// A contiguous stretch of memory: the offset in the registration at which it ends, in bytes, and
/// its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) end: u64,
    pub(super) addr: u64,
}

/// The runs of one slot, in the order of their offsets. The slot stores how many are in use.
#[derive(Debug, Default)]
pub(super) struct PageList(OnceLock<Box<[[AtomicU64; 2]; MAX_RUNS]>>);

impl PageList {
    /// Allocates the list, so that only slots of fast registrations take memory for one.
    pub(super) fn reserve(&self) {
        let none = || [AtomicU64::new(0), AtomicU64::new(0)];
        self.0.get_or_init(|| Box::new(core::array::from_fn(|_| none())));
    }

    /// Stores `runs`, as far as there is room. The caller is the only writer inside the slot.
    pub(super) fn store(&self, runs: &[Run]) {
        for ([end, addr], run) in self.0.get().into_iter().flat_map(|l| l.iter()).zip(runs) {
            end.store(run.end, Relaxed);
            addr.store(run.addr, Relaxed);
        }
    }

    /// Returns the address of byte `off` of a registration of `runs` runs, and the number of
    /// contiguous bytes from there on. The result is valid only if the slot has not changed since.
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
