//! Objects that an application holds of an RNIC: devices, memory regions, queue pairs, completion
//! queues and connection events.
//!
//! ```text
//!   Device ── alloc_pd ──▶ Pd
//!     │ alloc_mr, register_mr ──▶ Mr      memory the peer and the workers reach by its STag
//!     │ create_cq ──────────────▶ Cq ◀── completions, from every worker
//!     │ create_qp ──────────────▶ Qp ──▶ work requests, to the worker that runs it
//!     │ listen, connect ────────▶ EventQueue ◀── connection events, from the control plane
//! ```
//!
//! This crate contains nothing of DPDK, and nothing of the RNIC's half. Work requests and completions
//! go through rings in shared memory ([`heddle_rings`]) straight to and from the workers, which may be
//! threads of this process or of another process. Requests that occur once per object or connection
//! go to the RNIC by a [`provider`]: a hub in this process, or a socket to a process that has one
//! ([`remote`]).
//!
//! `unsafe` is in `remote::process`; each block says why it is sound.

pub mod connection;
pub mod cq;
pub mod device;
mod error;
mod event;
mod limits;
#[cfg(all(test, feature = "loom"))]
mod model;
mod mr;
mod params;
mod port;
pub mod provider;
mod qp;
pub mod remote;
pub mod srq;
mod state;
mod window;

pub use connection::{Connecting, Connection, ConnectionError, Ends, Incoming, Listener};
pub use cq::{Arm, ChannelError, CompletionChannel, Cq, CqOverflow, WaitError};
pub use device::{
    BoundAddr, DYNAMIC_PORTS, Device, DeviceEvent, DeviceEvents, MAX_CQ_DEPTH, MAX_DEPTH, MrInit,
    NotReregistered, OwnedPd, Reservation, ReserveError,
};
pub use error::{BatchError, DeviceError};
pub use event::{EventQueue, TakenEvents};
pub use heddle_shm::{PageSize, Region, RegionError, Sleeper, Waker};
pub use heddle_types::{
    Access, Agreed, AppId, AtomicOp, Bind, BindError, CmId, Congestion, ConnectFailure, Cqe, CqeOp,
    CqeStatus, DEFAULT_READ_DEPTH, Data, DisconnectReason, Ecn, Event as CmEvent, IbRefusal,
    ListenFailure, ListenerId, MpaOptions, Pacing, Pd, PeerDepths, PostError, Protocol, QpFate,
    Qpn, Queue, RecvWr, SendOp, SendWr, Sge, Stag, TcpTerms, TermCode, Transport,
};
pub use limits::{Atomics, DeviceLimits};
pub use mr::{Bound, Mr, MrInfo, MrLimits, MrUsage, RegisterError};
pub use params::{AcceptParams, ConnectParams, ListenParams};
pub use port::{PortAddr, PortCounters, PortInfo, PortLink, PortProbe, PortRoute};
pub use qp::{Qp, QpInit, Recvs, Sends};
pub use srq::Srq;
pub use state::QpState;
pub use window::{FastMr, QpWindow, Window};
