//! Receive buffers from outside of the queue pair: those that several queue pairs share, and those
//! that its owner has not taken yet.

use super::QpContext;
use super::rx::{DdpSegment, Untagged};
use super::terminate::Culprit;
use crate::fault::Fault;
use arrayvec::ArrayVec;
use core::cell::Cell;

use heddle_types::{
    Limits, RecvWr, Sge,
    wr::{MAX_SGES, recv_len},
};

/// A queue of receive buffers that several queue pairs share.
///
/// A queue pair that has such a queue ([`QpContext::share_receives`]) takes a buffer when the first
/// segment of a message has come, and the next when that message is complete. So the queue pair
/// holds at most one buffer.
pub trait SharedReceives: core::fmt::Debug + Send {
    /// Takes the oldest buffer: returns its mark, and stores its pieces in `sges`. Returns `None`
    /// when there is no buffer.
    ///
    /// # Errors
    /// Fails with [`SharedBroken`] when the queue will never have a buffer again.
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken>;
}

/// Receives that applications have posted and the owner of the queue pairs has not taken.
///
/// An owner takes a limited number of requests in a turn. But a peer may use every receive that the
/// application has posted, as soon as it learns of the receive in any way. So a message that finds
/// the queue pair without a buffer asks here before it ends the stream.
pub trait PostedReceives: core::fmt::Debug {
    /// Posts receives to `qp`, which its owner knows by the number `of`: the oldest ones not taken,
    /// at least one if there is one, and not more than a turn takes.
    fn post_to(&self, of: usize, qp: &mut QpContext);
}

/// The posted receives of the queue pair that the owner is working on.
#[derive(Debug)]
pub struct Untaken<'a> {
    posts: &'a dyn PostedReceives,
    of: Cell<usize>,
}

impl<'a> Untaken<'a> {
    /// Makes a view of the posted receives of all queue pairs.
    pub fn new(posts: &'a dyn PostedReceives) -> Untaken<'a> {
        Untaken { posts, of: Cell::new(usize::MAX) }
    }

    /// Selects the queue pair that the owner works on from now on, by the owner's number for it.
    #[inline]
    pub fn set_of(&self, of: usize) {
        self.of.set(of);
    }
}

/// The error for a shared queue whose contents are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared receive queue makes no sense")]
pub struct SharedBroken;

impl QpContext {
    /// Makes the queue pair take its receive buffers from `shared` from now on. The caller calls
    /// this function before the first message. A queue pair that has receives of its own uses them
    /// up first.
    pub fn share_receives(&mut self, shared: Box<dyn SharedReceives>) {
        self.rq.shared = Some(Box::new(shared));
    }

    /// Takes a buffer for the message that `seg` begins, if there is one. A segment that begins no
    /// message takes no buffer, so a bad segment costs the other queue pairs nothing.
    #[inline(never)]
    pub(super) fn take_shared(&mut self, seg: DdpSegment<'_>, h: Untagged) -> Result<(), Culprit> {
        if h.msn != self.rq.msn || h.mo != 0 {
            return Ok(());
        }
        self.take_one_shared().map_err(|SharedBroken| seg.blame(Fault::Local))
    }

    /// Takes a buffer of the shared queue for a message that waits for one. Returns true if the
    /// message has a buffer now, or is about to find out why it will never have one.
    pub fn take_shared_receive(&mut self) -> bool {
        !self.rq.rqes.is_empty() || self.take_one_shared().is_err() || !self.rq.rqes.is_empty()
    }

    fn take_one_shared(&mut self) -> Result<(), SharedBroken> {
        let Some(shared) = &mut self.rq.shared else { return Ok(()) };
        let mut sges = ArrayVec::new();
        if let Some(wr_id) = shared.take(&mut sges)? {
            let wr = RecvWr { wr_id, sges: &sges };
            let limits = Limits { sges: MAX_SGES, ..Limits::default() };
            self.rq.push(&wr, recv_len(&wr, &limits));
        }
        Ok(())
    }

    /// Returns true if the next message finds a receive, or finds out why there will never be one.
    /// Looks in the queue, in the shared queue or among the receives that the owner has not taken.
    #[cold]
    #[inline(never)]
    pub(super) fn has_receive(&mut self, posted: Option<&Untaken<'_>>) -> bool {
        if self.rq.shared.is_some() {
            return self.take_one_shared().is_err() || !self.rq.rqes.is_empty();
        }
        self.has_more_posted(posted, Fault::NoReceive)
    }

    /// Asks for receives that the owner has not taken, after a message has found none. Returns true
    /// if there are some now: the FPDU has changed nothing, so the QP can handle it once more.
    #[cold]
    #[inline(never)]
    pub(super) fn has_more_posted(&mut self, posted: Option<&Untaken<'_>>, fault: Fault) -> bool {
        let wants = fault == Fault::NoReceive && self.rq.shared.is_none();
        if wants && let Some(Untaken { posts, of }) = posted {
            posts.post_to(of.get(), self);
            return !self.rq.rqes.is_empty();
        }
        false
    }
}
