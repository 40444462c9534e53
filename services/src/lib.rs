//! The services that an appliance offers to peers, and the clients of those that have one here.
//!
//! * [`Services`]: the services of one RNIC, stepped together; [`ServiceSpec`] names one of them.
//! * [`rping`]: the server and the client of that name. `rdmacm` and `perftest`: the servers of
//!   librdmacm's other examples and of perftest. `sink`: takes all messages and counts them.
//! * [`bench`](mod@bench): the server of `heddle bench --connect`, and the protocol that its clients
//!   speak. [`rpc`]: the server of `heddle bench --op rpc --connect`, and its program.
//!
//! A service is a `Protocol` that a `Server` runs: the part that all services have in common
//! listens, accepts or rejects, takes completions to their connections and ends connections that
//! break the rules, so that no peer keeps the others out.

pub mod bench;
mod connections;
mod inbox;
pub mod perftest;
mod rdmacm;
pub mod rpc;
pub mod rping;
mod server;
mod service;
mod shares;
mod sink;
mod throttle;

pub use connections::{place_and_low, wr_id};
pub use perftest::{Program, Test};
pub use rdmacm::Messages;
pub use server::Serve;
pub use service::{Limits, SERVICES, ServiceError, ServiceKind, ServiceSpec, Services};
pub use sink::Sink;

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was no work.
    Idle,
    /// There was work.
    Busy,
    /// The run is over and its connections are closed.
    Done,
}
