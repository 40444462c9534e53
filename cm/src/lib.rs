//! The connection manager as a pure state machine: start-up and life of every connection.
//!
//! Requests of applications and reports of workers go in, each with the current time; orders to
//! workers and events to applications come out. The manager works on ids alone: it holds no handle
//! of a queue or a thread, makes no callbacks, and ends a queue pair by putting out an order. A
//! control plane with threads and a test in virtual time differ only in the shell around the
//! manager.
//!
//! * [`ConnectionManager`]: the calling order, and the manager's promises;
//! * [`Request`](heddle_types::Request), [`Event`](heddle_types::Event): messages between applications and the manager;
//! * [`Order`](heddle_rnic::Order), [`Report`](heddle_rnic::Report): messages between workers and
//!   the manager;
//! * [`Protocol`](heddle_types::Protocol): the start-up dialogue, of which MPA is one;
//! * [`IbConfig`]: settings of InfiniBand, another protocol below the same requests and events.
#![forbid(unsafe_code)]

mod claims;
mod config;
mod conn;
mod counters;
mod dialogue;
mod ib;
mod listener;
mod manager;
mod notice;
mod ports;
mod shares;
mod small;

pub use config::CmConfig;
pub use counters::CmCounters;
pub use heddle_ib::roce::UDP_PORT as ROCE_PORT;
pub use ib::{IbConfig, IbCounters, IbDatagram, IbPort};
pub use manager::{CONN_BYTES, CmGauges, ConnView, ConnectionManager, ListenerView, StartupTimes};
pub use notice::{Notice, Refusal};
pub use ports::{Own, Ports, PortsError};
