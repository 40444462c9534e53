//! Receive buffers that several queue pairs take from.

use super::QpContext;
use super::rx::{DdpSegment, Untagged};
use super::terminate::Culprit;
use super::wr::{Limits, MAX_SGES, RecvWr, Sge, recv_len};
use crate::fault::Fault;
use arrayvec::ArrayVec;

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
        let Some(shared) = &mut self.rq.shared else { return Ok(()) };
        let mut sges = ArrayVec::new();
        let taken = shared.take(&mut sges).map_err(|SharedBroken| seg.blame(Fault::Local))?;
        if let Some(wr_id) = taken {
            let wr = RecvWr { wr_id, sges: &sges };
            let limits = Limits { sges: MAX_SGES, ..Limits::default() };
            self.rq.push(&wr, recv_len(&wr, &limits));
        }
        Ok(())
    }
}
