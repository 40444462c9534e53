//! The memory that connections and addresses hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The purpose of a stretch of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Results,
    Reply,
}

/// An address may have this many times as much memory as it leaves to others.
const TIMES: usize = 2;

/// The memory that one address holds, on all its connections; clones are handles of the same share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share(Arc<[Arc<AtomicUsize>; 3]>);

impl Share {
    /// Returns true if both are handles of the same share.
    pub(super) fn is_same(&self, other: &Share) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a number that differs from those of all other existing shares.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn used(&self, kind: Kind) -> &Arc<AtomicUsize> {
        let [calls, results, replies] = &*self.0;
        match kind {
            Kind::Call => calls,
            Kind::Results => results,
            Kind::Reply => replies,
        }
    }

    /// Returns true if the address may take `bytes` when that leaves `after` bytes free: as its
    /// first of a kind, or if all its memory, of any kind, stays in proportion to the free memory.
    pub(super) fn may_take(&self, kind: Kind, bytes: usize, after: usize) -> bool {
        let all = self.0.iter().map(|used| used.load(Ordering::Relaxed));
        let all = all.fold(bytes, usize::saturating_add);
        !self.has_some(kind) || all <= after.saturating_mul(TIMES)
    }

    /// Returns true if the address has any memory of this kind.
    pub(super) fn has_some(&self, kind: Kind) -> bool {
        self.used(kind).load(Ordering::Relaxed) > 0
    }

    pub(super) fn charge(&self, kind: Kind, bytes: usize) -> Charge {
        let used = self.used(kind).clone();
        used.fetch_add(bytes, Ordering::Relaxed);
        Charge { used, bytes }
    }

    /// Returns true if there is no other handle of the share: no connection has one, and no stretch
    /// of memory.
    pub(crate) fn is_unused(&self) -> bool {
        let idle = |used: &Arc<AtomicUsize>| used.load(Ordering::Relaxed) == 0;
        Arc::strong_count(&self.0) == 1 && self.0.iter().all(idle)
    }
}

/// The memory that one connection may have, including all that its application has not given back.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    pub(super) max: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Budget {
        Budget { used: Arc::default(), max }
    }

    pub(super) fn charge(&self, bytes: usize) -> Option<Charge> {
        let more = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Charge { used: self.used.clone(), bytes })
    }
}

/// Bytes that are used until this value is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
