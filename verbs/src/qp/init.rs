//! What a queue pair is made with.

#[cfg(doc)]
use heddle_iwarp::qp::{MAX_INLINE, MAX_SGES};

use crate::cq::Cq;
use crate::srq::Srq;
/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where completions of the send queue go.
    pub send_cq: Cq,
    /// Where completions of the receive queue go.
    pub recv_cq: Cq,
    /// Work requests the send queue holds.
    pub sq_depth: u32,
    /// Work requests the receive queue holds.
    pub rq_depth: u32,
    /// Where it takes its receive buffers from, with others; it has no receive queue of its own then.
    pub srq: Option<Srq>,
    /// Most SGEs of a send request, at most [`MAX_SGES`].
    pub max_send_sge: u16,
    /// Most SGEs of a receive request, at most [`MAX_SGES`].
    pub max_recv_sge: u16,
    /// Most inline octets of a send request, at most [`MAX_INLINE`].
    pub max_inline: u16,
}

impl QpInit {
    /// One completion queue for both, 128 requests each way, 4 SGEs, 64 inline octets.
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

    /// The same with receive buffers of this queue.
    #[must_use]
    pub fn shared(mut self, srq: &Srq) -> QpInit {
        self.srq = Some(srq.clone());
        self
    }

    /// The same with these depths.
    #[must_use]
    pub fn depths(mut self, sq: u32, rq: u32) -> QpInit {
        (self.sq_depth, self.rq_depth) = (sq, rq);
        self
    }
}
