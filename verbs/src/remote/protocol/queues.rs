//! Protection domains, queues and queue pairs.

use serde::{Deserialize, Serialize};

documents! {
    /// A protection domain.
    NewPd {
        /// Its number.
        pd: u32,
    }

    /// A protection domain that there is.
    PdName {
        /// Its number.
        pd: u32,
    }

    /// A completion queue.
    CreateCq {
        /// Completions it is to hold.
        depth: u32,
        /// The client's number for the thread that it wakes when it is armed.
        waker: Option<u64>,
    }

    /// A queue in the area.
    Block {
        /// Octets from the area's start.
        off: usize,
        /// Words of 64 bits.
        words: usize,
    }

    /// Another size for a completion queue.
    ResizeCq {
        /// The queue's place.
        cq: usize,
        /// Completions it is to hold.
        depth: u32,
    }

    /// What became of it.
    Resized {
        /// It has more completions than would find room: so many. Done at 0.
        held: u64,
        /// It is being resized already.
        resizing: bool,
    }

    /// A shared receive queue.
    CreateSrq {
        /// Its protection domain.
        pd: u32,
        /// Receives it is to hold.
        depth: u32,
        /// Pieces of one.
        max_sge: u16,
        /// The client's number for the thread that it wakes when its limit is reached.
        waker: Option<u64>,
    }

    /// A queue pair.
    CreateQp {
        /// Its protection domain.
        pd: u32,
        /// Places of its completion queues.
        send_cq: usize,
        /// The same.
        recv_cq: usize,
        /// Place of its shared receive queue.
        srq: Option<usize>,
        /// Requests.
        sq_depth: u32,
        /// Requests.
        rq_depth: u32,
        /// Pieces of a request.
        max_send_sge: u16,
        /// The same.
        max_recv_sge: u16,
        /// Octets.
        max_inline: u16,
    }

    /// A queue pair there is.
    QpName {
        /// Its number.
        qp: u32,
    }

    /// A new queue pair.
    NewQp {
        /// Its number.
        qp: u32,
        /// Its doorbell.
        bell: u32,
        /// Octets from the area's start.
        off: usize,
        /// Words of 64 bits.
        words: usize,
    }
}
