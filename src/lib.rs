//! Heddle is a software RNIC: iWARP (RDMAP, DDP and MPA over TCP) run entirely in user space on
//! DPDK.
//!
//! This crate is the library's front: what a program needs to use an RNIC of its own. Start DPDK
//! ([`Eal`]), open an [`Endpoint`] on a device, or two joined by rings, and use its [`Device`]; or
//! hand the endpoint to a [`Node`], which runs it on threads of its own. The crate's binary,
//! `heddle`, is made of the same.

pub use heddle_base::{Instant, Seed};
pub use heddle_ctl::{
    AcceptParams, Agreed, CmEvent, CmId, ConnectFailure, ConnectParams, Cq, CtlError, Device,
    DisconnectReason, Endpoint, EndpointConfig, EventQueue, ListenParams, ListenerId, Mr, Node,
    OpenError, Qp, QpInit, Sleeper, Snapshot, Waker,
};
pub use heddle_dataplane::{
    Clock, CoreList, Eal, EalConfig, EalError, FaultConfig, PortSource, PortStats, VdevArg,
    WorkerSnapshot,
};
pub use heddle_iwarp::mpa::frame::Revision;
pub use heddle_iwarp::mpa::startup::CrcPolicy;
pub use heddle_iwarp::{
    Access, Cqe, CqeStatus, Pd, PostError, RecvWr, SendOp, SendWr, SgList, Sge, Stag,
};
pub use heddle_tcp::{AddrError, Cidr, ConnConfig, Keepalive, check_addrs};

pub use heddle_perf as perf;

/// The version of DPDK this was built for.
pub const DPDK_VERSION: &str = env!("HEDDLE_DPDK_VERSION");
