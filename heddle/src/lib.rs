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
//! - [`Port`](dpdk::Port): the source and sink of frames.
//! - [`Endpoint`]: an RNIC, which runs on the thread that calls [`Endpoint::poll`].
//! - [`Node`]: an [`Endpoint`] with two threads: its worker spins on a processor of its own, its
//!   control plane sleeps while there is nothing to do. [`Node::ring_pair`] joins two nodes;
//!   [`Endpoint::open`] makes an RNIC on a device ([`PortSource`](dpdk::PortSource)), and [`Node::start`] a node of
//!   it.
//! - [`Device`]: an application's handle of an RNIC. Double lines are memory that the device shares
//!   with the worker; [`Hub::open`](hub::Hub::open) makes a device for each application, including
//!   applications of other processes. A device has calls that wait (`bind`, `dial`: see
//!   [`Connection`]) and calls that do not (`listen`, `connect`).
//!
//! [`Eal`] starts DPDK, once per process.
//!
//! # Work requests
//!
//! [`SendWr`] has a constructor for each operation. RFC 5040: Send, also with a solicited event or
//! with an STag of the peer's to invalidate; RDMA Write; RDMA Read. RFC 7306: FetchAdd, CmpSwap and
//! Swap, with masks, on 64 bits of the peer's memory; 8 bytes of Immediate Data, alone or after a
//! Write. Local operations: a fast registration, the bind of a window, the invalidation of either
//! ([`FastMr`](memory::FastMr), [`QpWindow`](memory::QpWindow)). Receive buffers belong to a queue
//! pair, or to an [`Srq`] that several queue pairs share.
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
//! # Features and modules
//!
//! The root has the names of the examples above; the modules have all names, by subject. With the
//! feature `node`, a default, the library has an RNIC in the same process ([`rnic`], [`dpdk`],
//! [`hub`], [`counters`], [`tcp`], [`iwarp`]), and DPDK must be installed. Without it, a program uses the
//! RNIC of another process ([`Device::open`]). The features `rpc` and `nfs` add the modules of the
//! same names.
//!
//! The guide, page by page, is in `docs/guide/`; programs to start from are in `examples/`. The
//! program `heddle` is made of this library.

pub use heddle_base::{Instant, Seed, units};

#[doc(no_inline)]
pub use crate::connection::{Connection, Listener};
#[doc(no_inline)]
pub use crate::device::Device;
#[cfg(feature = "node")]
#[doc(no_inline)]
pub use crate::dpdk::{Eal, EalConfig};
#[doc(no_inline)]
pub use crate::memory::{Access, Mr, Stag};
#[doc(no_inline)]
pub use crate::queue::{Cq, Cqe, Qp, RecvWr, SendWr, Sge, Srq};
#[cfg(feature = "node")]
#[doc(no_inline)]
pub use crate::rnic::{Endpoint, EndpointConfig, Node};

pub mod connection {
    //! Connections: what a program asks for, who comes, and how connections end.
    //!
    //! [`Device::dial`] and [`Device::bind`] wait; [`Device::connect`] and [`Device::listen`] report to an
    //! [`EventQueue`].
    //!
    //! [`Device::dial`]: crate::Device::dial
    //! [`Device::bind`]: crate::Device::bind
    //! [`Device::connect`]: crate::Device::connect
    //! [`Device::listen`]: crate::Device::listen

    pub use heddle_types::mpa::{
        CrcPolicy, Depth, Depths, FrameError, Revision, Rtr, RtrConfig, RtrSet, StartupError,
    };
    pub use heddle_types::{CloseReason, ConnectError, DialogueError, ListenError, ParamsError};
    pub use heddle_verbs::{
        AcceptParams, Agreed, BoundAddr, CmEvent, CmId, Congestion, ConnectFailure, ConnectParams,
        Connecting, Connection, ConnectionError, DEFAULT_READ_DEPTH, DYNAMIC_PORTS,
        DisconnectReason, Ecn, Ends, EventQueue, IbRefusal, Incoming, ListenFailure, ListenParams,
        Listener, ListenerId, MpaOptions, Pacing, PeerDepths, Protocol, QpFate, Reservation,
        ReserveError, TakenEvents, TcpTerms, TermCode, Transport,
    };
}

pub mod queue {
    //! Queue pairs, work requests and completions.

    pub use heddle_types::Cut;
    pub use heddle_verbs::{
        Arm, AtomicOp, BatchError, ChannelError, CompletionChannel, Cq, CqOverflow, Cqe, CqeOp,
        CqeStatus, Data, MAX_CQ_DEPTH, MAX_DEPTH, PostError, Qp, QpInit, QpState, Qpn, Queue,
        RecvWr, Recvs, SendOp, SendWr, Sends, Sge, Srq, WaitError,
    };
}

pub mod memory {
    //! Registered memory, protection domains, and the rights of a peer.

    pub use heddle_types::MrError;
    pub use heddle_verbs::{
        Access, Bind, BindError, Bound, FastMr, Mr, MrInfo, MrInit, MrLimits, MrUsage,
        NotReregistered, OwnedPd, PageSize, Pd, QpWindow, Region, RegionError, RegisterError, Stag,
        Window,
    };
}

pub mod device {
    //! The RNIC as an application sees it: its port, its limits and its events.

    pub use heddle_types::{Awaited, RequestError, RnicError, WorkerId};
    pub use heddle_verbs::{
        AppId, Atomics, Device, DeviceError, DeviceEvent, DeviceEvents, DeviceLimits, PortAddr,
        PortCounters, PortInfo, PortLink, PortProbe, Sleeper, Waker,
    };
}

#[cfg(feature = "node")]
pub mod rnic {
    //! An RNIC in this process, on the thread of the caller ([`Endpoint`]) or on threads of its own
    //! ([`Node`]).

    pub use heddle_ctl::{
        Detached, Endpoint, EndpointConfig, Lcores, MAX_WORKERS, MTU, Node, OpenError, OpenPort,
        Patience, PortSetup, RnicSetup, random_seed,
    };
}

#[cfg(feature = "node")]
pub mod counters {
    //! Counters and gauges, by the part of the RNIC that has them.

    pub use heddle_base::Histogram;
    pub use heddle_cm::{CmCounters, CmGauges, IbCounters, Notice, Refusal, StartupTimes};
    pub use heddle_ctl::{ControlCounters, CtlCounters, PortStatus, Snapshot, WorkerStatus};
    pub use heddle_dataplane::fault::FaultCounters;
    pub use heddle_dataplane::queue::{RxCounters, TxCounters};
    pub use heddle_dataplane::steer::SteerCounters;
    pub use heddle_dataplane::{
        PortStats, TxBuildCounters, WorkerCounters, WorkerSnapshot, WorkerTimes,
    };
    pub use heddle_hub::memory::{MemoryCounters, References};
    pub use heddle_hub::{SessionCounters, SessionUsage};
    pub use heddle_iwarp::QpCounters;
    pub use heddle_rnic::{RnicCounters, RnicSums};
    pub use heddle_tcp::{ConnCounters, StackCounters};
}

#[cfg(feature = "node")]
pub mod dpdk {
    //! DPDK: its start, its ports and its buffers; and the faults that a port can inject.

    pub use heddle_dataplane::{
        BURST, Bond, BondMode, BondState, Clock, CoreList, Eal, EalConfig, EalError, FaultConfig,
        Hugepages, IdlePolicy, IovaMode, Lacp, LacpState, LcoreError, LogLevel, ManualClock,
        Member, MemberState, MemoryMode, Mempool, MempoolConfig, MempoolError, Naps, Offloads,
        Port, PortCaps, PortConfig, PortError, PortSource, TransmitHash, VdevArg,
    };

    /// The version of DPDK that this crate was built for.
    pub const VERSION: &str = env!("HEDDLE_DPDK_VERSION");
}

#[cfg(feature = "node")]
pub mod hub {
    //! An RNIC for several applications: accounts, registered memory and sessions.
    //!
    //! [`serve`] is the RNIC's side of a socket; [`remote`](crate::remote) is the side of the application.

    pub use heddle_hub::memory::{RegionMemory, RegionTable, Registry};
    pub use heddle_hub::{
        Addresses, Board, ControlPlane, ControlRequest, DeviceConfig, Hub, Outgoing, Policy,
        Session, serve,
    };
    pub use heddle_mr::MrTable;
    pub use heddle_rings::{Area, AreaError, Bells};
}

#[cfg(feature = "node")]
pub mod tcp {
    //! Addresses, routes and the limits of TCP connections.

    pub use heddle_tcp::autoconf::{RouterAdverts, RouterAdvertsError};
    pub use heddle_tcp::{
        AddrError, Addressing, Cidr, CidrError, Congestion, ConnConfig, Ecn, Keepalive, Pacing,
        PathMtu, Patience, PeerLimit, Priority, Route, SpreadError, SynCookies, UserTimeoutOption,
        Vid, Vlan, check_addrs,
    };
}

#[cfg(feature = "node")]
pub mod iwarp {
    //! Headers and errors of RDMAP and DDP (RFC 5040 and RFC 5041), as a capture has them.

    pub use heddle_iwarp::Msn;
    pub use heddle_iwarp::ddp::{DdpError, DdpHeader, Qn};
    pub use heddle_iwarp::rdmap::{CopiedHeader, ReadRequest, Terminate};
}

pub mod remote {
    //! The RNIC of another process: [`Device::open`](crate::Device::open) takes the path of its
    //! socket.

    pub use heddle_verbs::remote::{OpenParams, process_of, protocol};
}

#[cfg(feature = "nfs")]
pub use heddle_nfs as nfs;
#[cfg(feature = "rpc")]
pub use heddle_rpc as rpc;
