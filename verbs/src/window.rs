//! STags that are given parts of registered memory over and over: fast registrations and windows.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use heddle_iwarp::{Access, BindError, Pd, Qpn, Stag};

use crate::memory::{Registry, Ticket};
use crate::mr::Mr;
use crate::qp::Qp;

/// The queue pairs that may bind a window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowFor<'a> {
    /// None: the application binds it by a call, for all queue pairs of its protection domain (type 1).
    Domain,
    /// One, by a request (type 2).
    Qp(&'a Qp),
    /// Any of its protection domain, by a request (type 2).
    AnyQp,
}

/// An STag without memory of its own, given back when dropped.
pub(crate) trait HeldStag: Send + Sync + std::fmt::Debug {
    /// As it is now.
    fn stag(&self) -> Stag;

    /// Shows `len` octets at `to` of the region with this STag, the first of which peers call `as_to`.
    fn bind(
        &mut self,
        memory: (Stag, u64, u32),
        as_to: u64,
        access: Access,
    ) -> Result<Stag, BindError>;

    /// It names nothing any more.
    fn revoke(&mut self);
}

/// One of the RNIC of this process. Its memory is a region's, so there is none to wait for.
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

/// An STag for fast registrations: [`SendWr::fast_register`](crate::SendWr::fast_register) makes it
/// valid in its turn on a send queue, [`SendWr::local_invalidate`](crate::SendWr::local_invalidate) or
/// the peer's Send with Invalidate ends that. Given back when dropped.
#[derive(Debug)]
pub struct FastMr {
    held: Box<dyn HeldStag>,
    len: u64,
}

impl FastMr {
    pub(crate) fn new(held: Box<dyn HeldStag>, len: u64) -> FastMr {
        FastMr { held, len }
    }

    /// Its STag with `key`. Another key for each registration keeps a peer from using a later one by
    /// an STag it was told earlier.
    pub fn stag(&self, key: u8) -> Stag {
        self.held.stag().with_key(key)
    }

    /// Most octets it can name, in whole pages of 4096.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

/// A memory window of type 2. [`SendWr::bind_window`](crate::SendWr::bind_window) binds it on the queue
/// pair that it was made for, or on any of its protection domain; it is invalidated as a [`FastMr`] is.
/// A window for one queue pair ends with the connection, any other at the latest when the queue pair that
/// bound it is reset or destroyed. Given back when dropped.
#[derive(Debug)]
pub struct QpWindow(Box<dyn HeldStag>);

impl QpWindow {
    pub(crate) fn new(held: Box<dyn HeldStag>) -> QpWindow {
        QpWindow(held)
    }

    /// Its STag with `key`.
    pub fn stag(&self, key: u8) -> Stag {
        self.0.stag().with_key(key)
    }
}

/// A memory window of type 1: peers of all queue pairs of its protection domain may use it. Given back
/// when dropped.
#[derive(Debug)]
pub struct Window(Box<dyn HeldStag>);

impl Window {
    pub(crate) fn new(held: Box<dyn HeldStag>) -> Window {
        Window(held)
    }

    /// Shows `len` octets at `off` of a region that has [`Access::BIND`], the first of which peers call
    /// `to`. At once, and in no order with what is posted; what it showed before is not reachable by it
    /// any more. The STag for peers, with another key each time.
    ///
    /// # Errors
    /// [`BindError`]; it shows what it showed then.
    pub fn bind(
        &mut self,
        mr: &Mr,
        (off, len): (usize, u32),
        to: u64,
        access: Access,
    ) -> Result<Stag, BindError> {
        let memory = (mr.stag(), mr.to().saturating_add(off as u64), len);
        self.0.bind(memory, to, access)
    }

    /// Shows nothing any more.
    pub fn unbind(&mut self) {
        self.0.revoke();
    }
}

/// The windows of an application that any queue pair of their protection domain may bind. A peer reaches
/// them through the queue pair that bound them alone, so they may stay bound after its end, until another
/// queue pair gets its number or it has another connection.
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

/// STags that are for one queue pair alone. When it ends, so do they.
///
/// The worker ends them and waits for no lock: it leaves word, and revokes them itself unless the
/// application's thread has the list at that moment, which then finds the word when it lets go of the list.
#[derive(Debug, Default)]
pub(crate) struct Tied {
    list: Mutex<Vec<(Arc<Registry>, Stag)>>,
    /// The queue pair has ended, and somebody has to revoke what is in the list.
    ended: AtomicBool,
}

impl Tied {
    fn add(&self, registry: Arc<Registry>, stag: Stag) {
        self.list().push((registry, stag));
        self.settle();
    }

    fn remove(&self, stag: Stag) {
        // Those that stay are revoked first where the queue pair has ended.
        self.list().retain(|(_, s)| *s != stag);
        self.settle();
    }

    /// The queue pair has ended: they name nothing any more. Called by the worker.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// The queue pair begins anew: what is left to be revoked is revoked before anything is bound again.
    pub(crate) fn restart(&self) {
        let list = self.list();
        self.revoke(&list);
    }

    /// Revokes what is in the list if there is word to, and nobody has it who will.
    fn settle(&self) {
        while self.ended.load(Ordering::SeqCst) {
            let list = match self.list.try_lock() {
                Ok(list) => list,
                Err(TryLockError::Poisoned(list)) => list.into_inner(),
                // Its holder looks for word after it has let go.
                Err(TryLockError::WouldBlock) => return,
            };
            self.revoke(&list);
        }
    }

    fn revoke(&self, list: &[(Arc<Registry>, Stag)]) {
        if self.ended.swap(false, Ordering::SeqCst) {
            // With the list held: the owner of one that it drops meanwhile waits.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_base::Seed;
    use heddle_iwarp::mr::Kind;
    use heddle_iwarp::{Bind, MrTable, Qpn};

    use super::*;
    use crate::memory::RegionTable;

    /// The thread of the application has the list, and does not get on: the worker does.
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
        // Whatever its owner does next.
        tied.remove(Stag(0));
        assert!(!reach());
    }
}
