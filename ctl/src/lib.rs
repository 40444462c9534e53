//! Assembly: an RNIC made of ports, workers and a control plane.
//!
//! ```text
//!   Endpoint / Node
//!     ├── Port  ...  DPDK devices, or ends of pairs of rings                 (dataplane)
//!     ├── Worker...  one for each pair of a port's queues, or sharing one:
//!     │              TCP connections, queue pairs                            (dataplane)
//!     ├── Control    connection manager, requests, events                    (here, over cm)
//!     └── Device     an application's regions, queue pairs, events           (verbs)
//! ```
//!
//! [`EndpointConfig`] has the settings of an RNIC with one port. For several ports, a caller opens
//! [`OpenPort`]s and gives them to [`Endpoint::assemble`]. There are two ways to run:
//!
//! - an [`Endpoint`] is the whole RNIC on one thread, driven by calls of [`Endpoint::poll`];
//! - a [`Node`] has its workers on pinned lcores and the control plane on a thread of its own,
//!   which sleeps when there is nothing to do.
//!
//! Work requests and completions do not pass through here: they go through the rings of the device
//! straight to and from the workers.

mod ask;
mod assembly;
mod config;
mod control_plane;
mod counters;
mod endpoint;
mod lcore;
mod node;
mod port;
mod seed;
mod snapshot;
#[cfg(test)]
mod testing;

/// The smallest and the largest MTU of a port, in bytes of an IP packet.
pub const MTU: core::ops::RangeInclusive<u16> = 576..=9000;

pub use ask::{Asker, ConnPage, ConnStatus, ControlState, Kill, QpStatus, Question, Reply};
pub use assembly::OpenPort;
pub use config::{
    EndpointConfig, InnerSetup, MAX_INNER, MAX_WORKERS, OpenError, Patience, PortSetup, RnicSetup,
};
pub use counters::{ControlCounters, CtlCounters};
pub use endpoint::{Detached, Endpoint};
pub use lcore::Lcores;
pub use node::{Node, WorkerPlace};
pub use seed::random_seed;
pub use snapshot::{LcoreStatus, PortStatus, Snapshot, WorkerStatus};
