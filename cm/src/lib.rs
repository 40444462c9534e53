//! The connection manager as a pure state machine: start-up and life of every connection.
//!
//! Requests of applications and reports of workers go in, each with the current time; orders to
//! workers and events to applications come out. The manager works on ids alone: it holds no handle
//! of a queue or a thread, makes no callbacks, and ends a queue pair by putting out an order. A
//! control plane with threads and a test in virtual time differ only in the shell around the
//! manager.
//!
//! * [`ConnectionManager`]: the calling order, and the manager's promises;
//! * [`Request`], [`Event`]: messages between applications and the manager;
//! * [`Order`](heddle_rnic::Order), [`Report`](heddle_rnic::Report): messages between workers and
//!   the manager;
//! * [`Protocol`]: the start-up dialogue, of which MPA is one;
//! * [`IbConfig`]: settings of InfiniBand, another protocol below the same requests and events.
#![forbid(unsafe_code)]

mod claims;
mod conn;
mod counters;
mod dialogue;
mod event;
pub mod gateway;
mod ib;
mod id;
mod listener;
mod manager;
mod notice;
mod params;
mod ports;
mod request;
mod shares;
mod small;

pub use counters::CmCounters;
pub use dialogue::{DialogueError, MpaOptions, ParamsError, Protocol};
pub use event::{
    Agreed, Awaited, ConnectFailure, DisconnectReason, Event, IbRefusal, ListenFailure, Notice,
    PeerDepths, QpFate, Refusal, Transport,
};
pub use heddle_ib::roce::UDP_PORT as ROCE_PORT;
pub use heddle_tcp::ListenError;
pub use ib::{IbConfig, IbCounters, IbDatagram, IbPort};
pub use id::{AppId, CmId, ListenerId, TenantId, WorkerId};
pub use manager::{CONN_BYTES, CmGauges, ConnView, ConnectionManager, ListenerView, StartupTimes};
pub use params::{AcceptTerms, CmConfig, ConnectTerms, DEFAULT_READ_DEPTH, ListenParams, QpSpec};
pub use ports::{Own, Ports, PortsError};
pub use request::{Request, RequestError};
