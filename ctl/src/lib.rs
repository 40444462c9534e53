//! Assembly: an RNIC made of a port, a worker and a control plane.
//!
//! ```text
//!   Endpoint / Node
//!     ├── Port       a DPDK device, or one end of a pair of rings            (dataplane)
//!     ├── Worker     its queues, TCP connections, queue pairs                (dataplane)
//!     ├── Control    connection manager, requests, events                    (here, over cm)
//!     └── Device     what applications hold: regions, queue pairs, events    (verbs)
//! ```
//!
//! There are two ways to run:
//!
//! - an [`Endpoint`] is all of it on one thread, driven by whoever calls [`Endpoint::poll`];
//! - a [`Node`] has its worker on a pinned lcore and the control plane on a thread of its own,
//!   which sleeps when there is nothing to do.
//!
//! Work requests and completions do not pass through here: they go through the rings of the device
//! straight to and from the worker.

mod ask;
mod control_plane;
mod counters;
mod endpoint;
mod node;
mod seed;
#[cfg(test)]
mod testing;

pub use ask::{Asker, ConnPage, ConnStatus, ControlState, Kill, QpStatus, Question, Reply};
pub use counters::{ControlCounters, CtlCounters};
pub use endpoint::{Endpoint, EndpointConfig, OpenError, Snapshot};
pub use node::Node;
pub use seed::random_seed;
