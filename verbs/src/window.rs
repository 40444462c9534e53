//! STags that applications bind to parts of registered memory over and over: fast registrations and
//! windows.

use heddle_types::{Access, BindError, Stag};

use crate::mr::Mr;
use crate::qp::Qp;

/// The queue pairs that may bind a window.
#[derive(Clone, Copy, Debug)]
pub enum WindowFor<'a> {
    /// The application binds the window by a call, for all queue pairs of its protection domain (type
    /// 1).
    Domain,
    /// This queue pair binds the window by a request (type 2).
    Qp(&'a Qp),
    /// Any queue pair of the protection domain binds the window by a request (type 2).
    AnyQp,
}

/// An STag without memory of its own; dropping this frees the STag.
pub trait HeldStag: Send + Sync + std::fmt::Debug {
    /// Returns the STag with its present key.
    fn stag(&self) -> Stag;

    /// Shows `len` bytes at `to` of the region with the given STag; peers address the first byte as
    /// `as_to`.
    fn bind(
        &mut self,
        memory: (Stag, u64, u32),
        as_to: u64,
        access: Access,
    ) -> Result<Stag, BindError>;

    /// Makes the STag name no memory any more.
    fn revoke(&mut self);
}

/// An STag for fast registrations: [`SendWr::fast_register`](crate::SendWr::fast_register) makes
/// the STag valid in its turn on a send queue;
/// [`SendWr::local_invalidate`](crate::SendWr::local_invalidate) or the peer's Send with Invalidate
/// makes it invalid again. Dropping this frees the STag.
#[derive(Debug)]
pub struct FastMr {
    held: Box<dyn HeldStag>,
    len: u64,
}

impl FastMr {
    pub(crate) fn new(held: Box<dyn HeldStag>, len: u64) -> FastMr {
        FastMr { held, len }
    }

    /// Returns the STag with `key`. Another key for each registration keeps a peer from using a
    /// later registration by an STag that it learned earlier.
    pub fn stag(&self, key: u8) -> Stag {
        self.held.stag().with_key(key)
    }

    /// Returns the most bytes that the STag can name, in whole pages of 4096.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

/// A memory window of type 2: [`SendWr::bind_window`](crate::SendWr::bind_window) binds the window
/// on the queue pair it was made for, or on any of its protection domain, and a window is
/// invalidated as a [`FastMr`] is. The binding of a window for one queue pair ends with the
/// connection, any other at the latest when the application resets or destroys the queue pair that
/// bound it. Dropping this frees the window.
#[derive(Debug)]
pub struct QpWindow(Box<dyn HeldStag>);

impl QpWindow {
    pub(crate) fn new(held: Box<dyn HeldStag>) -> QpWindow {
        QpWindow(held)
    }

    /// Returns the STag with `key`.
    pub fn stag(&self, key: u8) -> Stag {
        self.0.stag().with_key(key)
    }

    /// Makes the window show no memory any more, at once and in no order with posted requests. No peer
    /// reaches memory by the window after this returns; dropping the window does not wait for that.
    pub fn unbind(&mut self) {
        self.0.revoke();
    }
}

/// A memory window of type 1: peers of all queue pairs of its protection domain may use the window.
/// Dropping this frees the window.
#[derive(Debug)]
pub struct Window(Box<dyn HeldStag>);

impl Window {
    pub(crate) fn new(held: Box<dyn HeldStag>) -> Window {
        Window(held)
    }

    /// Shows `len` bytes at `off` of a region that has [`Access::BIND`]; peers address the first
    /// byte as `to`. The binding takes effect at once, in no order with posted requests, and peers
    /// cannot reach the earlier memory by this window any more. Returns the STag for peers, with
    /// another key each time.
    ///
    /// # Errors
    /// [`BindError`]; the window then shows what it showed before.
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

    /// Makes the window show no memory any more.
    pub fn unbind(&mut self) {
        self.0.revoke();
    }
}
