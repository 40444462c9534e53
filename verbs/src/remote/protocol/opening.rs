//! What a device is opened with, and what it has then.

use serde::{Deserialize, Serialize};

documents! {
    /// What a device is opened with. The files of its queues and of its memory, if it has any, come with it.
    Open {
        /// Bytes of memory to register from; none at 0.
        memory: u64,
        /// Bytes for queues.
        queues: u64,
        /// Who asks, for people.
        name: String,
    }

    /// A device.
    Opened {
        /// The application's number.
        app: u64,
        /// Workers there are.
        workers: usize,
        /// Where in the queues' memory the doorbells lie.
        bells: usize,
        /// Where workers may sleep, for each of them which descriptor wakes it. First comes the file that
        /// says who sleeps ([`wakeup`](crate::wakeup)) and then these, counted from 0.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        wakers: Vec<Option<usize>>,
        /// What can be had.
        limits: Limits,
        /// Files that are not sealed can be brought.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        takes_files: bool,
    }

    /// The ports of the RNIC.
    Ports {
        /// Each of them, by its number.
        ports: Vec<crate::PortInfo>,
    }

    /// [`DeviceLimits`](crate::DeviceLimits).
    Limits {
        /// Queue pairs.
        qps: u32,
        /// Requests of a queue.
        qp_wrs: u32,
        /// Pieces of a request.
        sges: u16,
        /// Octets of a request that stand in it.
        inline: u16,
        /// Completion queues.
        cqs: u32,
        /// Completions of one.
        cqes: u32,
        /// Shared receive queues.
        srqs: u32,
        /// Receives of one.
        srq_wrs: u32,
        /// Regions and fast registrations.
        mrs: u32,
        /// Those of one protection domain.
        mrs_per_pd: u32,
        /// Windows.
        mws: u32,
        /// Those of one protection domain.
        mws_per_pd: u32,
        /// Octets of a region.
        mr_size: u64,
        /// Protection domains.
        pds: u32,
        /// Reads served at a time.
        ird: u16,
        /// Reads outstanding at a time.
        ord: u16,
        /// Octets of a message.
        message: u32,
        /// A bit for each size of page.
        page_sizes: u64,
        /// 0: there are no atomic operations; 1: with others of the RNIC; 2: with processors too.
        atomics: u8,
    }
}
