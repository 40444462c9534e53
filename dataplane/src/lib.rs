//! The DPDK shell of Heddle: everything between the sans-IO crates and the NIC.
//!
//! * [`eal`]: starts DPDK once per process, with hugepages when there are some.
//! * [`mempool`], [`mbuf`]: packet buffers, owned; chains are read through
//!   [`heddle_base::Chunks`].
//! * [`port`], [`queue`]: ports and their burst-wise queues, owned by one worker each.
//! * [`arena`]: registered memory; external-buffer mbufs point into it and nothing is copied.
//! * [`raw`]: the one file that copies and digests registered memory.
//! * [`lcore`]: pinned worker threads. [`clock`]: their time. [`fault`]: loss, duplicates and
//!   reordering on purpose.
//!
//! `unsafe` is in `eal`, `mempool`, `mbuf`, `port`, `ring`, `queue`, `arena`, `raw`, `crc`,
//! `lcore` and `clock`; each block lists what the callee asks for.

pub mod arena;
pub mod clock;
mod crc;
pub mod eal;
pub mod fault;
pub mod lcore;
pub mod mbuf;
pub mod mempool;
pub mod port;
pub mod queue;
pub mod raw;
mod ring;
mod vdev;

pub use arena::{Arena, ArenaError};
pub use clock::{Clock, ManualClock};
pub use eal::{Eal, EalConfig, EalError, Hugepages, LogLevel, MemoryMode};
pub use fault::{FaultConfig, FaultInjector};
pub use lcore::{CoreList, LcoreError, LcoreWorker, Stop};
pub use mbuf::{ExternalError, Mbuf, RxChecksum, TxOffload};
pub use mempool::{Mempool, MempoolConfig, MempoolError};
pub use port::{Port, PortCaps, PortConfig, PortError, PortSource, PortStats};
pub use queue::{RxQueue, TxQueue};
pub use vdev::VdevArg;

/// Frames that one call of [`RxQueue::burst`] or [`TxQueue::burst`] usually moves.
pub const BURST: usize = 32;
