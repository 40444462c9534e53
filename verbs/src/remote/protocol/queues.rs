//! Protection domains, queues and queue pairs.

use serde::{Deserialize, Serialize};

documents! {
    /// A new protection domain.
    NewPd {
        /// Number of the protection domain.
        pd: u32,
    }

    /// An existing protection domain.
    PdName {
        /// Number of the protection domain.
        pd: u32,
    }

    /// A completion queue to create.
    CreateCq {
        /// Completions that the queue has to hold.
        depth: u32,
        /// The client's number for the thread that the queue wakes when it is armed.
        waker: Option<u64>,
    }

    /// A queue in the area.
    Block {
        /// Bytes from the start of the area.
        off: usize,
        /// Length in words of 64 bits.
        words: usize,
    }

    /// Another size for a completion queue.
    ResizeCq {
        /// The queue's place.
        cq: usize,
        /// Completions that the queue has to hold.
        depth: u32,
    }

    /// The result of a resize.
    Resized {
        /// Completions in the queue, if they are more than would find room; 0 if the resize is
        /// done.
        held: u64,
        /// True if an earlier resize is not complete.
        resizing: bool,
    }

    /// A shared receive queue to create.
    CreateSrq {
        /// Number of the protection domain.
        pd: u32,
        /// Receives that the queue has to hold.
        depth: u32,
        /// Pieces of one receive.
        max_sge: u16,
        /// The client's number for the thread that the queue wakes when it reaches its limit.
        waker: Option<u64>,
    }

    /// A queue pair to create.
    CreateQp {
        /// Number of the protection domain.
        pd: u32,
        /// Place of the completion queue for sends.
        send_cq: usize,
        /// Place of the completion queue for receives.
        recv_cq: usize,
        /// Place of the shared receive queue, if the queue pair uses one.
        srq: Option<usize>,
        /// Depth of the send queue, in requests.
        sq_depth: u32,
        /// Depth of the receive queue, in requests.
        rq_depth: u32,
        /// Most pieces of a send request.
        max_send_sge: u16,
        /// Most pieces of a receive request.
        max_recv_sge: u16,
        /// Most inline bytes of a send request.
        max_inline: u16,
    }

    /// An existing queue pair.
    QpName {
        /// Number of the queue pair.
        qp: u32,
    }

    /// A new queue pair.
    NewQp {
        /// Number of the queue pair.
        qp: u32,
        /// Number of the queue pair's doorbell.
        bell: u32,
        /// Bytes from the start of the area.
        off: usize,
        /// Length in words of 64 bits.
        words: usize,
    }
}
