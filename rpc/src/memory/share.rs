//! What connections and addresses have of a memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a stretch of memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Results,
    Reply,
}

/// Of what an address leaves to others it may have this many times as much.
const TIMES: usize = 2;

/// What one address has of a memory, on all its connections; clones are handles of the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share(Arc<[Arc<AtomicUsize>; 3]>);

impl Share {
    /// Returns true if both are handles of one.
    pub(super) fn is_same(&self, other: &Share) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Tells it from all others that there are.
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

    /// Returns true if the address may take `bytes` when `after` are free then: its first of a kind, or if
    /// all that it has, of any kind, is in proportion to what is free.
    pub(super) fn may_take(&self, kind: Kind, bytes: usize, after: usize) -> bool {
        let all = self.0.iter().map(|used| used.load(Ordering::Relaxed));
        let all = all.fold(bytes, usize::saturating_add);
        !self.has_some(kind) || all <= after.saturating_mul(TIMES)
    }

    /// Returns true if the address has any.
    pub(super) fn has_some(&self, kind: Kind) -> bool {
        self.used(kind).load(Ordering::Relaxed) > 0
    }

    pub(super) fn charge(&self, kind: Kind, bytes: usize) -> Charge {
        let used = self.used(kind).clone();
        used.fetch_add(bytes, Ordering::Relaxed);
        Charge { used, bytes }
    }

    /// Returns true if nobody else has a handle of it: no connection, and no stretch of memory.
    pub(crate) fn is_unused(&self) -> bool {
        let idle = |used: &Arc<AtomicUsize>| used.load(Ordering::Relaxed) == 0;
        Arc::strong_count(&self.0) == 1 && self.0.iter().all(idle)
    }
}

/// How much of a memory one connection may have, with all that its application has not given back.
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

/// Bytes that are used as long as it lives.
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
