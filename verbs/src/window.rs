//! STags that are given parts of registered memory over and over: fast registrations and windows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_iwarp::{Access, BindError, Pd, Stag};

use crate::memory::{Registry, Ticket};
use crate::mr::Mr;

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
    tied: Option<Arc<Tied>>,
    _tickets: [Ticket; 2],
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(tied) = &self.tied {
            tied.remove(self.stag);
        }
        let known = self.registry.mrs().deregister(self.stag);
        debug_assert!(known.is_ok(), "given back twice");
    }
}

impl Held {
    pub(crate) fn new(
        registry: Arc<Registry>,
        (pd, stag): (Pd, Stag),
        tied: Option<Arc<Tied>>,
        tickets: [Ticket; 2],
    ) -> Held {
        if let Some(tied) = &tied {
            tied.add(registry.clone(), stag);
        }
        Held { registry, pd, stag, tied, _tickets: tickets }
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

/// A memory window of type 2: bound by [`SendWr::bind_window`](crate::SendWr::bind_window) on the
/// queue pair it was made for, invalidated as a [`FastMr`] is. It ends with the queue pair's
/// connection. Given back when dropped.
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

/// STags that are for one queue pair alone. When it ends, so do they.
#[derive(Debug, Default)]
pub(crate) struct Tied(Mutex<Vec<(Arc<Registry>, Stag)>>);

impl Tied {
    fn add(&self, registry: Arc<Registry>, stag: Stag) {
        self.list().push((registry, stag));
    }

    fn remove(&self, stag: Stag) {
        self.list().retain(|(_, s)| *s != stag);
    }

    /// The queue pair has ended: they name nothing any more.
    pub(crate) fn end(&self) {
        // Held until the end: the owner of one that it drops meanwhile waits.
        for (registry, stag) in self.list().iter() {
            let known = registry.mrs().revoke(*stag);
            debug_assert!(known.is_ok(), "given back and not taken out");
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Arc<Registry>, Stag)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
