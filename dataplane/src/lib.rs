//! The DPDK shell of Heddle: everything between the sans-IO crates and the NIC.
//!
//! * [`eal`]: starts DPDK once per process, with hugepages if there are some.
//! * [`mempool`], [`mbuf`]: packet buffers, owned; callers read chains through
//!   [`heddle_base::Chunks`].
//! * [`port`]: ports and their queues, which move bursts of frames; one worker owns each queue.
//! * [`extmem`]: mbufs that point into registered memory ([`heddle_hub::memory`]) without copies,
//!   and counts of them, which show when none points there any more.
//! * [`worker`]: one thread's share of the RNIC, on a pair of port queues, and its end of the
//!   applications' rings ([`heddle_rings`]).
//! * [`interface`]: interfaces of the host's kernel.
//! * [`lcore`]: pinned worker threads; [`numa`]: where they belong; [`idle`]: when they sleep;
//!   [`clock`]: their time.
//! * [`fault`]: deliberate loss, duplication and reordering.
//!
//! `docs/architecture.md` lists the files that have `unsafe`, and a test compares the list; the
//! comment of each block takes up the conditions of the callee.

pub mod clock;
pub mod eal;
pub mod extmem;
pub mod fault;
pub mod idle;
pub mod interface;
pub mod lcore;
pub mod mbuf;
pub mod mempool;
pub mod numa;
pub mod port;
mod prefetch;
mod rest;
mod rx;
mod tx;
pub mod worker;

pub use clock::{Clock, ManualClock};
pub use eal::{Eal, EalConfig, EalError, Hugepages, IovaMode, LogLevel, MemoryMode};
pub use extmem::{DpdkRegions, ExternalMemory};
pub use fault::{FaultConfig, FaultInjector};
pub use idle::{Idle, IdlePolicy, Naps, Rest};
pub use interface::Interface;
pub use lcore::{CoreList, LcoreError, LcoreWorker, Registration, Stop};
pub use mbuf::{ExternalError, Mbuf, TxOffload};
pub use mempool::{Mempool, MempoolConfig, MempoolError};
pub use numa::{Place, Topology, home};
pub use port::queue::{self, RxQueue, TxQueue};
pub use port::{
    Bond, BondMode, BondState, DmaPorts, Lacp, LacpState, Link, MAX_MEMBERS, Member, MemberState,
    Offloads, Port, PortCaps, PortConfig, PortError, PortProbe, PortSource, PortStats, QueueSpread,
    TransmitHash, VHOST_BUFFERS, VdevArg,
};
pub use rest::{Parker, RestCounters, RestShown};
pub use tx::TxBuildCounters;

pub use rx::RxMbuf;
pub use worker::{Doorbells, INSPECT_MAX, NoReport, WorkerCounters, WorkerTimes, steer};

/// The engine of iWARP over TCP, on mbufs.
pub type MbufRnic = heddle_rnic::Rnic<RxMbuf>;
/// A [worker](worker::Worker) with the engine of iWARP over TCP.
pub type Worker = worker::Worker<MbufRnic>;
/// The parts and settings of a [`Worker`].
pub type WorkerConfig = worker::WorkerConfig<MbufRnic>;
/// An order to a [`Worker`].
pub type Command = worker::Command<MbufRnic>;
/// The control plane's end of the ring of orders to a [`Worker`].
pub type CommandSender = worker::CommandSender<MbufRnic>;
/// News and answers from a [`Worker`] to the control plane.
pub type WorkerReport = worker::WorkerReport<MbufRnic>;
/// The control plane's end of the rings of reports from a [`Worker`].
pub type ReportReceiver = worker::ReportReceiver<MbufRnic>;
/// All counters and measurements of a [`Worker`].
pub type WorkerSnapshot = worker::WorkerSnapshot<heddle_rnic::RnicSums>;
/// The state of a connection of a [`Worker`].
pub type ConnFacts = worker::ConnFacts<heddle_rnic::RnicFacts>;

/// Frames that one call of [`RxQueue::burst`] or [`TxQueue::burst`] usually moves.
pub const BURST: usize = 64;
