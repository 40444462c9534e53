//! Receive buffers from outside of the queue pair: those that several queue pairs take from, and those
//! that its owner has not taken yet.

use super::QpContext;
use super::rx::{DdpSegment, Untagged};
use super::terminate::Culprit;
use super::wr::{Limits, MAX_SGES, RecvWr, Sge, recv_len};
use crate::fault::Fault;
use arrayvec::ArrayVec;
use core::cell::Cell;

/// A queue of receive buffers that is not this queue pair's alone.
///
/// A queue pair that has one ([`QpContext::share_receives`]) takes a buffer when the first segment
/// of a message is there, and the next when that message is complete: it holds one at most.
pub trait SharedReceives: core::fmt::Debug + Send {
    /// Takes the oldest buffer: its mark, and its pieces into `sges`. `None` when there is none.
    ///
    /// # Errors
    /// [`SharedBroken`]: there will be none any more.
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken>;
}

/// What applications have posted to receive queues and the owner of the queue pairs has not taken.
///
/// An owner takes a limited number of requests in a turn. A peer may still use every receive that the
/// application has posted, as soon as it learns of that by whatever way: a message that finds the queue
/// pair without a buffer asks here before it ends the stream.
pub trait PostedReceives: core::fmt::Debug {
    /// Posts receives to `qp`, which its owner knows by the number `of`: the oldest that are not taken,
    /// at least one if there is one, and not more than a turn takes.
    fn post_to(&self, of: usize, qp: &mut QpContext);
}

/// The posted receives of the queue pair that is at work.
#[derive(Debug)]
pub struct Untaken<'a> {
    posts: &'a dyn PostedReceives,
    of: Cell<usize>,
}

impl<'a> Untaken<'a> {
    /// Those of all queue pairs.
    pub fn new(posts: &'a dyn PostedReceives) -> Untaken<'a> {
        Untaken { posts, of: Cell::new(usize::MAX) }
    }

    /// The queue pair that is at work from here on is the one that its owner knows by the number `of`.
    #[inline]
    pub fn set_of(&self, of: usize) {
        self.of.set(of);
    }
}

/// The shared queue cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared receive queue makes no sense")]
pub struct SharedBroken;

impl QpContext {
    /// Takes its receive buffers from `shared` from here on. Before the first message; a queue pair
    /// that has receives of its own uses them up first.
    pub fn share_receives(&mut self, shared: Box<dyn SharedReceives>) {
        self.rq.shared = Some(Box::new(shared));
    }

    /// Takes a buffer for the message that `seg` begins, if there is one. A segment that begins none
    /// takes none, so what is wrong with it costs the others nothing.
    #[inline(never)]
    pub(super) fn take_shared(&mut self, seg: DdpSegment<'_>, h: Untagged) -> Result<(), Culprit> {
        if h.msn != self.rq.msn || h.mo != 0 {
            return Ok(());
        }
        self.take_one_shared().map_err(|SharedBroken| seg.blame(Fault::Local))
    }

    /// Takes a buffer of the shared queue for a message that waits for one. Returns true if it has one now, or
    /// is about to find out why there never will be one.
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

    /// Returns true if the next message finds a receive, or finds out why there never will be one: in
    /// the queue, in the shared one or among those that the owner has not taken.
    #[cold]
    #[inline(never)]
    pub(super) fn has_receive(&mut self, posted: Option<&Untaken<'_>>) -> bool {
        if self.rq.shared.is_some() {
            return self.take_one_shared().is_err() || !self.rq.rqes.is_empty();
        }
        self.has_more_posted(posted, Fault::NoReceive)
    }

    /// Asks for receives that the owner has not taken, where a message has found none. Returns true if
    /// there are some now: the FPDU, which has changed nothing, can be handled once more.
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
