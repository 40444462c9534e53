//! The parameters of a new device, and the parts of an opened device.

use serde::{Deserialize, Serialize};

documents! {
    /// Parameters of a new device. The files of its queues and of its memory, if it has any, come
    /// with the request.
    Open {
        /// Bytes of memory to register from; 0 for none.
        memory: u64,
        /// Bytes for queues.
        queues: u64,
        /// Name of the program, for people.
        name: String,
    }

    /// An opened device.
    Opened {
        /// Number of the application.
        app: u64,
        /// Number of workers.
        workers: usize,
        /// Offset of the doorbells in the queues' memory.
        bells: usize,
        /// Where workers may sleep: for each worker, the number of the descriptor that wakes it.
        /// The answer first brings the file that says which workers sleep
        /// ([`wakeup`](heddle_rings::wakeup)) and then these descriptors, counted from 0.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        wakers: Vec<Option<usize>>,
        /// Limits of the device.
        limits: Limits,
        /// True if the client can bring files that are not sealed.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        takes_files: bool,
    }

    /// The ports of the RNIC.
    Ports {
        /// Each port, by its number.
        ports: Vec<crate::PortInfo>,
    }

    /// The numbers of [`DeviceLimits`](crate::DeviceLimits).
    Limits {
        /// Queue pairs.
        qps: u32,
        /// Requests of a queue.
        qp_wrs: u32,
        /// Pieces of a request.
        sges: u16,
        /// Inline bytes of a request.
        inline: u16,
        /// Completion queues.
        cqs: u32,
        /// Completions of one completion queue.
        cqes: u32,
        /// Shared receive queues.
        srqs: u32,
        /// Receives of one shared receive queue.
        srq_wrs: u32,
        /// Regions and fast registrations.
        mrs: u32,
        /// Regions and fast registrations of one protection domain.
        mrs_per_pd: u32,
        /// Windows.
        mws: u32,
        /// Windows of one protection domain.
        mws_per_pd: u32,
        /// Bytes of a region.
        mr_size: u64,
        /// Protection domains.
        pds: u32,
        /// Reads served at a time.
        ird: u16,
        /// Reads outstanding at a time.
        ord: u16,
        /// Bytes of a message.
        message: u32,
        /// Possible page sizes, a bit for each.
        page_sizes: u64,
        /// 0: the RNIC has no atomic operations; 1: they are atomic with others of the RNIC; 2:
        /// with processors too.
        atomics: u8,
    }
}
