//! The DPDK shell of Heddle: everything between the sans-IO crates and the NIC.
//!
//! * [`eal`]: starts DPDK once per process, with hugepages when there are some.
//! * [`mempool`], [`mbuf`]: packet buffers, owned; chains are read through
//!   [`heddle_base::Chunks`].
//! * [`port`]: ports and their burst-wise queues, owned by one worker each.
//! * [`extmem`]: mbufs that point into registered memory ([`heddle_verbs::memory`]), counted so that
//!   it can be known when none does any more; nothing is copied.
//! * [`worker`]: one thread's share of the RNIC, on a pair of port queues, and the applications' rings
//!   ([`heddle_verbs::ring`]) at its end.
//! * [`lcore`]: pinned worker threads; [`numa`]: where they belong. [`idle`]: when they sleep. [`clock`]: their time. [`fault`]: loss, duplicates and
//!   reordering on purpose.
//!
//! Which files have `unsafe` is listed in `docs/architecture.md`, and a test compares the list; each
//! block takes up what the callee asks for.

pub mod clock;
pub mod eal;
pub mod extmem;
pub mod fault;
pub mod idle;
pub mod lcore;
pub mod mbuf;
pub mod mempool;
pub mod numa;
pub mod port;
use heddle_verbs::memory::raw;
mod rest;
mod rx;
mod tx;
pub mod worker;

pub use clock::{Clock, ManualClock};
pub use eal::{Eal, EalConfig, EalError, Hugepages, IovaMode, LogLevel, MemoryMode};
pub use extmem::{DpdkRegions, ExternalMemory};
pub use fault::{FaultConfig, FaultInjector};
pub use idle::{Idle, IdlePolicy, Naps, Rest};
pub use lcore::{CoreList, LcoreError, LcoreWorker, Registration, Stop};
pub use mbuf::{ExternalError, Mbuf, TxOffload};
pub use mempool::{Mempool, MempoolConfig, MempoolError};
pub use numa::{Place, Topology, home};
pub use port::queue::{self, RxQueue, TxQueue};
pub use port::{
    DmaPorts, Link, Port, PortCaps, PortConfig, PortError, PortProbe, PortSource, PortStats,
    QueueSpread, VdevArg,
};
pub use rest::{RestCounters, RestShown, Rester};
pub use tx::TxBuildCounters;

pub use worker::{
    Command, CommandSender, ConnFacts, Doorbells, INSPECT_MAX, NoReport, QpFacts, ReportReceiver,
    Worker, WorkerConfig, WorkerCounters, WorkerReport, WorkerSnapshot, WorkerTimes, steer,
};

/// Frames that one call of [`RxQueue::burst`] or [`TxQueue::burst`] usually moves.
pub const BURST: usize = 64;
