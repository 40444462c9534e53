//! Types that an application and an RNIC exchange: ids, work requests, completions, events,
//! parameters, and the reasons for which something fails.
//!
//! Everything here is plain data. The crate has no state and makes no decisions, so that an
//! application, the protocols and the connection manager share one definition of each type and
//! nothing else. The types of one protocol alone are in a module of that protocol: [`mpa`],
//! [`ib`], [`TermCode`].
#![forbid(unsafe_code)]

mod access;
mod atomic;
mod cqe;
mod event;
mod failure;
pub mod ib;
mod id;
mod listen_at;
pub mod mpa;
pub mod mr;
mod number;
mod params;
mod protocol;
mod qp;
mod request;
mod tcp;
mod term_code;
mod terminate;
pub mod wr;

pub use access::Access;
pub use atomic::AtomicOp;
pub use cqe::{Cqe, CqeOp, CqeStatus, Cut, Queue};
pub use event::{
    Agreed, Awaited, ConnectFailure, DisconnectReason, Event, IbRefusal, ListenFailure, PeerDepths,
    QpFate, Transport,
};
pub use failure::{CloseReason, ConnectError, ListenError, MAX_LISTENERS, RnicError};
pub use id::{AppId, CmId, ConnId, ListenerId, TenantId, WorkerId};
pub use listen_at::ListenAt;
pub use mpa::MpaOptions;
pub use mr::{Bind, BindError, MrError, MrFault};
pub use number::{Pd, Qpn, Stag};
pub use params::{AcceptTerms, ConnectTerms, DEFAULT_READ_DEPTH, ListenParams, QpSpec};
pub use protocol::{DialogueError, ParamsError, Protocol};
pub use qp::ConnectedState;
pub use request::{Request, RequestError};
pub use tcp::{Congestion, Ecn, Pacing, TcpTerms};
pub use term_code::TermCode;
pub use terminate::TerminatePayload;
pub use wr::{Data, Limits, PostError, RecvWr, SendOp, SendWr, Sge, check_recv, check_send};
