//! Heddle is a software RNIC: iWARP (RDMAP, DDP and MPA over TCP) run entirely in user space on
//! DPDK.
//!
//! This crate is the library's front. In the example, two RNICs on two threads are joined by rings,
//! and one writes into the other's memory; the example needs no NIC, no hugepages and no
//! privileges:
//!
//! ```
//! use heddle::{Access, Eal, EalConfig, EndpointConfig, Node, RecvWr, SendWr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let patience = std::time::Duration::from_secs(10);
//! let eal = Eal::init(&EalConfig::default())?;
//! let a = EndpointConfig::new(vec!["10.0.0.1/24".parse()?]);
//! let b = EndpointConfig::new(vec!["10.0.0.2/24".parse()?]);
//! let (a, b) = Node::ring_pair(&eal, "wire", &a, &b)?;
//! let listener = b.device().bind("10.0.0.2:7174")?;
//! let connecting = a.device().dial("10.0.0.2:7174")?;
//! let (server, client) = (listener.accept()?, connecting.wait()?);
//! let target = server.alloc_mr(4096, Access::REMOTE_WRITE)?;
//! server.post_recv(&RecvWr::new(1, &[]))?;
//! client.post_send(&SendWr::write_inline(2, b"hello", target.stag(), target.to()))?;
//! client.post_send(&SendWr::send_inline(3, &[]))?; // behind the Write: "it is there"
//! assert!(server.wait(patience)?.status.is_success());
//! assert_eq!((target.load(0), target.load(4)), (b'h', b'o'));
//! # Ok(())
//! # }
//! ```
//!
//! # The pieces
//!
//! ```text
//!  ┌─ Node ───────────────────────────────────┐
//!  │ ┌─ Endpoint ───────────────────────────┐ │       ┌─ Device ─────────────┐
//!  │ │ control plane ◀── requests, events ──┼─┼─────▶ │ Listener, EventQueue │
//!  │ │     │ orders, reports                │ │       │                      │
//!  │ │   worker ◀══ work requests, CQEs ════┼─┼═════▶ │ Qp, Cq               │
//!  │ │     │    ◀══ registered memory ══════┼─┼═════▶ │ Mr                   │
//!  │ │   Port                               │ │       └──────────────────────┘
//!  │ └─────┼────────────────────────────────┘ │
//!  └───────┼──────────────────────────────────┘
//!          ▼ frames: a NIC, a virtual device of DPDK, or rings to another Port
//! ```
//!
//! - [`Port`]: the source and sink of frames.
//! - [`Endpoint`]: an RNIC, which runs on the thread that calls [`Endpoint::poll`].
//! - [`Node`]: an [`Endpoint`] with two threads: its worker spins on a processor of its own, its
//!   control plane sleeps while there is nothing to do. [`Node::ring_pair`] joins two nodes;
//!   [`Endpoint::open`] makes an RNIC on a device ([`PortSource`]), and [`Node::start`] a node of
//!   it.
//! - [`Device`]: an application's handle of an RNIC. Double lines are memory that the device shares
//!   with the worker; [`Hub::open`] makes a device for each application, including applications of
//!   other processes. A device has calls that wait (`bind`, `dial`: see [`Connection`]) and calls
//!   that do not (`listen`, `connect`).
//!
//! [`Eal`] starts DPDK, once per process.
//!
//! # Work requests
//!
//! [`SendWr`] has a constructor for each operation. RFC 5040: Send, also with a solicited event or
//! with an STag of the peer's to invalidate; RDMA Write; RDMA Read. RFC 7306: FetchAdd, CmpSwap and
//! Swap, with masks, on 64 bits of the peer's memory; 8 bytes of Immediate Data, alone or after a
//! Write. Local operations: a fast registration, the bind of a window, the invalidation of either
//! ([`FastMr`], [`QpWindow`]). Receive buffers belong to a queue pair, or to an [`Srq`] that
//! several queue pairs share.
//!
//! An Atomic Operation on the peer's memory, with the two connections of the example above:
//!
//! ```
//! # use heddle::{Access, Eal, EalConfig, EndpointConfig, Node, SendWr};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let patience = std::time::Duration::from_secs(10);
//! # let eal = Eal::init(&EalConfig::default())?;
//! # let a = EndpointConfig::new(vec!["10.0.0.1/24".parse()?]);
//! # let b = EndpointConfig::new(vec!["10.0.0.2/24".parse()?]);
//! # let (a, b) = Node::ring_pair(&eal, "wire", &a, &b)?;
//! # let listener = b.device().bind("10.0.0.2:7174")?;
//! # let connecting = a.device().dial("10.0.0.2:7174")?;
//! # let (server, client) = (listener.accept()?, connecting.wait()?);
//! let counter = server.alloc_mr(8, Access::REMOTE_ATOMIC)?;
//! counter.write(0, &40u64.to_ne_bytes());
//! let result = client.alloc_mr(8, Access::LOCAL_WRITE)?;
//! let old = [result.sge(0, 8)];
//! let add = SendWr::fetch_add(1, &old, counter.stag(), counter.to(), 2);
//! client.post_send(&add)?;
//! assert!(client.wait(patience)?.status.is_success());
//! let mut word = [0; 8];
//! result.read(0, &mut word);
//! assert_eq!(u64::from_ne_bytes(word), 40); // as it was before
//! counter.read(0, &mut word);
//! assert_eq!(u64::from_ne_bytes(word), 42);
//! # Ok(())
//! # }
//! ```
//!
//! The guide, page by page, is in `docs/guide/`; programs to start from are in `examples/`. The
//! crate's binary, `heddle`, is made of the same.

pub use heddle_base::{Histogram, Instant, Seed, units};
pub use heddle_cm::{CmCounters, CmGauges, IbCounters, Notice, Refusal, StartupTimes};
pub use heddle_ctl::{
    ControlCounters, CtlCounters, Detached, Endpoint, EndpointConfig, Lcores, MAX_WORKERS, MTU,
    Node, OpenError, OpenPort, Patience, PortSetup, PortStatus, RnicSetup, Snapshot, WorkerStatus,
    random_seed,
};
pub use heddle_dataplane::fault::FaultCounters;
pub use heddle_dataplane::queue::{RxCounters, TxCounters};
pub use heddle_dataplane::steer::SteerCounters;
pub use heddle_dataplane::{
    BURST, Clock, CoreList, Eal, EalConfig, EalError, FaultConfig, Hugepages, IdlePolicy, IovaMode,
    LcoreError, LogLevel, ManualClock, MemoryMode, Mempool, MempoolConfig, MempoolError, Naps,
    Port, PortCaps, PortConfig, PortError, PortSource, PortStats, TxBuildCounters, VdevArg,
    WorkerCounters, WorkerSnapshot, WorkerTimes,
};
pub use heddle_hub::memory::{MemoryCounters, References, RegionMemory, RegionTable, Registry};
pub use heddle_hub::{Board, ControlPlane, ControlRequest, DeviceConfig, Hub};
pub use heddle_iwarp::ddp::{DdpError, DdpHeader, Qn};
pub use heddle_iwarp::rdmap::{CopiedHeader, ReadRequest, Terminate};
pub use heddle_iwarp::{Msn, QpCounters};
pub use heddle_mr::MrTable;
pub use heddle_rings::{Area, AreaError, Bells};
pub use heddle_rnic::{RnicCounters, RnicSums};
pub use heddle_tcp::{
    AddrError, Cidr, CidrError, ConnConfig, ConnCounters, Keepalive, PeerLimit, Route, SpreadError,
    StackCounters, check_addrs,
};
pub use heddle_verbs::{
    AcceptParams, Access, Agreed, AppId, Arm, AtomicOp, Atomics, BatchError, Bind, BindError,
    Bound, BoundAddr, ChannelError, CmEvent, CmId, CompletionChannel, ConnectFailure,
    ConnectParams, Connecting, Connection, ConnectionError, Cq, CqOverflow, Cqe, CqeOp, CqeStatus,
    DEFAULT_READ_DEPTH, DYNAMIC_PORTS, Data, Device, DeviceError, DeviceEvent, DeviceEvents,
    DeviceLimits, DisconnectReason, Ends, EventQueue, FastMr, IbRefusal, Incoming, ListenFailure,
    ListenParams, Listener, ListenerId, MAX_CQ_DEPTH, MAX_DEPTH, MpaOptions, Mr, MrInfo, MrInit,
    MrLimits, MrUsage, NotReregistered, PageSize, Pd, PeerDepths, PortAddr, PortCounters, PortInfo,
    PortLink, PortProbe, PostError, Protocol, Qp, QpFate, QpInit, QpState, QpWindow, Qpn, Queue,
    RecvWr, Region, RegionError, RegisterError, Reservation, ReserveError, SendOp, SendWr, Sge,
    Sleeper, Srq, Stag, TakenEvents, TermCode, Transport, WaitError, Waker, Window,
};

/// Applications in processes of their own, through a socket: both sides.
pub mod remote {
    pub use heddle_hub::{
        Addresses, Outgoing, Policy, Session, SessionCounters, SessionUsage, serve,
    };
    pub use heddle_verbs::remote::{OpenParams, process_of, protocol};
}

pub use heddle_daemon as daemon;
pub use heddle_nfs as nfs;
pub use heddle_perf as perf;
pub use heddle_rpc as rpc;
pub use heddle_services as services;
pub use heddle_socket as socket;
pub use heddle_types::{
    Awaited, CloseReason, ConnectError, Cut, DialogueError, ListenError, MrError, ParamsError,
    RequestError, RnicError, WorkerId,
    mpa::{CrcPolicy, Depth, Depths, FrameError, Revision, Rtr, RtrConfig, RtrSet, StartupError},
};

/// The version of DPDK that this crate was built for.
pub const DPDK_VERSION: &str = env!("HEDDLE_DPDK_VERSION");
