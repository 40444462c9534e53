//! Receive buffers from outside of the queue pair: those that several queue pairs share, and those
//! that its owner has not taken yet.

use super::QpContext;
use super::rx::{DdpSegment, Untagged};
use super::terminate::Culprit;
use crate::fault::Fault;
use arrayvec::ArrayVec;
use heddle_engine::{SharedBroken, SharedReceives, Untaken};

use heddle_types::{
    Limits, RecvWr,
    wr::{MAX_SGES, recv_len},
};

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
    pub(super) fn has_receive(&mut self, posted: Option<&Untaken<'_, QpContext>>) -> bool {
        if self.rq.shared.is_some() {
            return self.take_one_shared().is_err() || !self.rq.rqes.is_empty();
        }
        self.has_more_posted(posted, Fault::NoReceive)
    }

    /// Asks for receives that the owner has not taken, after a message has found none. Returns true
    /// if there are some now: the FPDU has changed nothing, so the QP can handle it once more.
    #[cold]
    #[inline(never)]
    pub(super) fn has_more_posted(
        &mut self,
        posted: Option<&Untaken<'_, QpContext>>,
        fault: Fault,
    ) -> bool {
        let wants = fault == Fault::NoReceive && self.rq.shared.is_none();
        if wants && let Some(posted) = posted {
            posted.post_to(self);
            return !self.rq.rqes.is_empty();
        }
        false
    }
}
