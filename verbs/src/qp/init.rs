//! Parameters of a new queue pair.

#[cfg(doc)]
use heddle_types::wr::{MAX_INLINE, MAX_SGES};

use heddle_rings::qp::Sizes;

use crate::cq::Cq;
use crate::srq::Srq;
/// Parameters with which an application makes a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The completion queue for completions of the send queue.
    pub send_cq: Cq,
    /// The completion queue for completions of the receive queue.
    pub recv_cq: Cq,
    /// Work requests that the send queue holds.
    pub sq_depth: u32,
    /// Work requests that the receive queue holds.
    pub rq_depth: u32,
    /// The shared queue from which the queue pair takes its receive buffers; such a queue pair has
    /// no receive queue of its own.
    pub srq: Option<Srq>,
    /// Most SGEs of a send request, at most [`MAX_SGES`].
    pub max_send_sge: u16,
    /// Most SGEs of a receive request, at most [`MAX_SGES`].
    pub max_recv_sge: u16,
    /// Most inline bytes of a send request, at most [`MAX_INLINE`].
    pub max_inline: u16,
}

impl QpInit {
    /// Returns the numbers from which the sizes of the rings follow.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            sq_depth: self.sq_depth,
            rq_depth: self.srq.is_none().then_some(self.rq_depth),
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
        }
    }

    /// Returns parameters with one completion queue for both queues, 128 requests each way, 4 SGEs
    /// and 64 inline bytes.
    pub fn new(cq: Cq) -> QpInit {
        QpInit {
            send_cq: cq.clone(),
            recv_cq: cq,
            sq_depth: 128,
            rq_depth: 128,
            srq: None,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        }
    }

    /// Returns these parameters with receive buffers from the queue `srq`.
    #[must_use]
    pub fn shared(mut self, srq: &Srq) -> QpInit {
        self.srq = Some(srq.clone());
        self
    }

    /// Returns these parameters with the given depths.
    #[must_use]
    pub fn depths(mut self, sq: u32, rq: u32) -> QpInit {
        (self.sq_depth, self.rq_depth) = (sq, rq);
        self
    }
}
