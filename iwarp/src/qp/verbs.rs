//! The queue pair as a worker knows it, whatever its protocol.

use super::QpContext;
use heddle_engine::{QueuePair, Retired, SharedReceives};
use heddle_types::{ConnectedState, PostError, RecvWr, SendWr};

impl QueuePair for QpContext {
    #[inline(always)]
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        QpContext::post_send(self, wr)
    }

    #[inline(always)]
    fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        QpContext::post_recv(self, wr)
    }

    fn share_receives(&mut self, shared: Box<dyn SharedReceives>) {
        QpContext::share_receives(self, shared);
    }

    #[inline]
    fn retired(&self) -> Retired {
        Retired { sq: self.sq_retired(), rq: self.rq_retired() }
    }

    #[inline]
    fn state(&self) -> ConnectedState {
        QpContext::state(self)
    }
}
