//! STags that end with a queue pair, or that an application binds over and over.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use heddle_rings::qp::TiedStags;
use heddle_types::{Access, BindError, Pd, Qpn, Stag};
use heddle_verbs::provider::HeldStag;

use crate::memory::{Registry, Ticket};

/// An STag of an RNIC in this process. The memory behind such an STag belongs to a region, so
/// freeing the STag waits for no memory.
#[derive(Debug)]
pub(crate) struct Held {
    registry: Arc<Registry>,
    pd: Pd,
    stag: Stag,
    tie: Tie,
    _tickets: [Ticket; 2],
}

/// The list in which an STag stands, so that the end of a queue pair finds it.
#[derive(Debug)]
pub(crate) enum Tie {
    None,
    Qp(Arc<Tied>),
    AnyQp(Arc<AnyQpWindows>),
}

impl Drop for Held {
    fn drop(&mut self) {
        match &self.tie {
            Tie::None => {}
            Tie::Qp(tied) => tied.remove(self.stag),
            Tie::AnyQp(windows) => {
                windows.list().remove(&self.stag);
            }
        }
        let known = self.registry.mrs().deregister(self.stag);
        debug_assert!(known.is_ok(), "given back twice");
    }
}

impl Held {
    pub(crate) fn new(
        registry: Arc<Registry>,
        (pd, stag): (Pd, Stag),
        tie: Tie,
        tickets: [Ticket; 2],
    ) -> Held {
        match &tie {
            Tie::None => {}
            Tie::Qp(tied) => tied.add(registry.clone(), stag),
            Tie::AnyQp(windows) => {
                windows.list().insert(stag);
            }
        }
        Held { registry, pd, stag, tie, _tickets: tickets }
    }
}

impl HeldStag for Held {
    fn stag(&self) -> Stag {
        self.stag
    }

    fn bind(
        &mut self,
        memory: (Stag, u64, u32),
        as_to: u64,
        access: Access,
    ) -> Result<Stag, BindError> {
        let mrs = self.registry.mrs();
        let bound = mrs.bind_window(self.pd, self.stag, memory, as_to, access)?;
        self.stag = bound.stag;
        Ok(bound.stag)
    }

    fn revoke(&mut self) {
        let known = self.registry.mrs().revoke(self.stag);
        debug_assert!(known.is_ok(), "it is ours");
    }
}

/// The windows of an application that any queue pair of their protection domain may bind. A peer
/// reaches such a window only through the queue pair that has bound it, so the window may stay bound
/// after this queue pair's end, until the queue pair has another connection or another queue pair
/// gets its number.
#[derive(Debug, Default)]
pub(crate) struct AnyQpWindows(Mutex<HashSet<Stag>>);

impl AnyQpWindows {
    /// Revokes the windows that this queue pair, which no worker has any more, has bound.
    pub(crate) fn revoke_of(&self, registry: &Registry, qpn: Qpn) {
        for stag in self.list().iter() {
            registry.mrs().revoke_of(*stag, qpn);
        }
    }

    fn list(&self) -> MutexGuard<'_, HashSet<Stag>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// STags that belong to one queue pair alone, and end with it.
///
/// The worker ends these STags and waits for no lock: it sets `ended`, and revokes the STags itself
/// unless a thread of the application holds the list at that moment. In that case this thread finds
/// `ended` set after it has released the list.
#[derive(Debug, Default)]
pub(crate) struct Tied {
    list: Mutex<Vec<(Arc<Registry>, Stag)>>,
    /// The queue pair has ended, and a thread has to revoke the STags in the list.
    ended: AtomicBool,
}

impl Tied {
    fn add(&self, registry: Arc<Registry>, stag: Stag) {
        self.list().push((registry, stag));
        self.settle();
    }

    fn remove(&self, stag: Stag) {
        // If the queue pair has ended, `settle` then revokes the STags that stay.
        self.list().retain(|(_, s)| *s != stag);
        self.settle();
    }

    /// Revokes the STags in the list if that is due and no thread that will do so holds the list.
    fn settle(&self) {
        while self.ended.load(Ordering::SeqCst) {
            let list = match self.list.try_lock() {
                Ok(list) => list,
                Err(TryLockError::Poisoned(list)) => list.into_inner(),
                // The thread that holds the list checks `ended` after it has released the list.
                Err(TryLockError::WouldBlock) => return,
            };
            self.revoke(&list);
        }
    }

    fn revoke(&self, list: &[(Arc<Registry>, Stag)]) {
        if self.ended.swap(false, Ordering::SeqCst) {
            // Revoke with the list locked: an owner that drops its STag meanwhile waits for the
            // lock.
            for (registry, stag) in list {
                let known = registry.mrs().revoke(*stag);
                debug_assert!(known.is_ok(), "given back and not taken out");
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Arc<Registry>, Stag)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TiedStags for Tied {
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.settle();
    }

    fn restart(&self) {
        let list = self.list();
        self.revoke(&list);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_base::Seed;
    use heddle_mr::{Kind, MrTable};
    use heddle_types::{Bind, Qpn};

    use super::*;
    use crate::memory::RegionTable;

    /// A thread of the application holds the list and makes no progress: the worker does.
    #[test]
    fn test_worker_ends_tied_stags_without_waiting_for_their_list() {
        let mrs = Arc::new(MrTable::new(&Seed::from_u64(1), 8));
        let registry = Arc::new(Registry::new(mrs.clone(), Arc::new(RegionTable::new(1, None))));
        let (pd, qpn) = (Pd(1), Qpn(7));
        let access = Access::BIND.with(Access::REMOTE_WRITE).with(Access::LOCAL_WRITE);
        let mr = mrs.register(pd, 0, 0, 4096, access).unwrap();
        let window = mrs.allocate_window(pd, Some(qpn)).unwrap();
        let bind = Bind { stag: window, to: 0, access: Access::REMOTE_WRITE };
        mrs.bind((pd, qpn), Kind::QpWindow, &bind, [(mr.stag, 0, 64)]).unwrap();
        let reach = || mrs.check(pd, qpn, window, 0, 8, Access::REMOTE_WRITE).is_ok();
        assert!(reach());
        let tied = Arc::new(Tied::default());
        tied.add(registry, window);
        let held = tied.list();
        let worker = tied.clone();
        std::thread::spawn(move || worker.end()).join().unwrap();
        assert!(reach(), "the list is in use");
        drop(held);
        // The holder then calls any function that takes the list.
        tied.remove(Stag(0));
        assert!(!reach());
    }
}
