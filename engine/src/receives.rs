//! Receive buffers from outside of a queue pair: those that several queue pairs share, and those
//! that the worker has not taken from applications yet.

use core::cell::Cell;

use arrayvec::ArrayVec;
use heddle_types::{Sge, wr::MAX_SGES};

/// A queue of receive buffers that several queue pairs share.
///
/// A queue pair that has such a queue ([`QueuePair::share_receives`](crate::QueuePair::share_receives))
/// takes a buffer when the first segment of a message has come, and the next when that message is
/// complete. So the queue pair holds at most one buffer.
pub trait SharedReceives: core::fmt::Debug + Send {
    /// Takes the oldest buffer: returns its mark, and stores its pieces in `sges`. Returns `None`
    /// when there is no buffer.
    ///
    /// # Errors
    /// Fails with [`SharedBroken`] when the queue will never have a buffer again.
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken>;
}

/// Receives that applications have posted and the worker has not taken.
///
/// A worker takes a limited number of requests in a turn. But a peer may use every receive that the
/// application has posted, as soon as it learns of the receive in any way. So a message that finds
/// the queue pair without a buffer asks here before it ends the connection.
pub trait PostedReceives<Q>: core::fmt::Debug {
    /// Posts receives to `qp`, which its worker knows by the number `of`: the oldest ones not
    /// taken, at least one if there is one, and not more than a turn takes.
    fn post_to(&self, of: usize, qp: &mut Q);
}

/// The posted receives of the queue pair that the engine is working on.
#[derive(Debug)]
pub struct Untaken<'a, Q> {
    posts: &'a dyn PostedReceives<Q>,
    of: Cell<usize>,
}

impl<'a, Q> Untaken<'a, Q> {
    /// Makes a view of the posted receives of all queue pairs.
    pub fn new(posts: &'a dyn PostedReceives<Q>) -> Untaken<'a, Q> {
        Untaken { posts, of: Cell::new(usize::MAX) }
    }

    /// Selects the queue pair that the engine works on from now on, by the
    /// [index](heddle_types::ConnId::index) of its connection.
    #[inline]
    pub fn set_of(&self, of: usize) {
        self.of.set(of);
    }

    /// Posts receives to `qp`, which must be the selected queue pair; see
    /// [`PostedReceives::post_to`].
    pub fn post_to(&self, qp: &mut Q) {
        self.posts.post_to(self.of.get(), qp);
    }
}

/// The error for a shared queue whose contents are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared receive queue makes no sense")]
pub struct SharedBroken;
