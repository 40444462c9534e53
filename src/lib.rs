//! Heddle is a software RNIC: iWARP (RDMAP, DDP and MPA over TCP) run entirely in user space on
//! DPDK.
//!
//! This crate is the library's front: what a program needs to use an RNIC of its own. Start DPDK
//! ([`Eal`]), open an [`Endpoint`] on a device, or two joined by rings, and use its [`Device`]; or
//! hand the endpoint to a [`Node`], which runs it on threads of its own. The crate's binary,
//! `heddle`, is made of the same.

pub use heddle_base::{Instant, Seed};
pub use heddle_cm::{
    Awaited, CmCounters, DialogueError, Notice, ParamsError, Refusal, RequestError, WorkerId,
};
pub use heddle_ctl::{
    ControlCounters, CtlCounters, Endpoint, EndpointConfig, Node, OpenError, Snapshot, random_seed,
};
pub use heddle_dataplane::{
    BURST, Clock, CoreList, Eal, EalConfig, EalError, FaultConfig, Hugepages, LcoreError, LogLevel,
    ManualClock, MemoryMode, Mempool, MempoolConfig, MempoolError, Port, PortCaps, PortConfig,
    PortError, PortSource, PortStats, VdevArg, WorkerCounters, WorkerSnapshot,
};
pub use heddle_iwarp::mpa::frame::Revision;
pub use heddle_iwarp::mpa::startup::CrcPolicy;
pub use heddle_iwarp::rdmap::TermCode;
pub use heddle_rnic::{CloseReason, RnicCounters, RnicError};
pub use heddle_tcp::{
    AddrError, Cidr, CidrError, ConnConfig, ConnectError, Keepalive, ListenError, check_addrs,
};
pub use heddle_verbs::device::MAX_DEPTH;
pub use heddle_verbs::memory::{MemoryCounters, RegionMemory, Regions, Registry};
pub use heddle_verbs::ring::{Area, AreaError, Bells};
pub use heddle_verbs::{
    AcceptParams, Access, Agreed, AppId, Arm, CmEvent, CmId, ConnectFailure, ConnectParams,
    Connecting, Connection, ConnectionError, Cq, CqOverflow, Cqe, CqeOp, CqeStatus,
    DEFAULT_READ_DEPTH, Data, Device, DeviceConfig, DeviceError, DisconnectReason, Ends,
    EventQueue, Hub, Incoming, ListenFailure, ListenParams, Listener, ListenerId, MpaOptions, Mr,
    MrInfo, Pd, PostError, Protocol, Qp, QpFate, QpInit, Qpn, Queue, RecvWr, Region, RegionError,
    RegisterError, Reservation, SendOp, SendWr, Sge, Sleeper, Stag, Taken, WaitError, Waker,
};

pub use heddle_perf as perf;

/// The version of DPDK this was built for.
pub const DPDK_VERSION: &str = env!("HEDDLE_DPDK_VERSION");
