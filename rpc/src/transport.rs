//! RPC-over-RDMA on a queue pair: the driver of [`heddle_rpcrdma::conn`].
//!
//! The owner of a link steps it, and the link never waits. In a step the link takes completions,
//! posts each Receive again as soon as its bytes are read, and posts the connection's work as long
//! as the send queue has room. The owner polls the link's events.

mod config;
mod layout;
mod link;
mod parts;
mod post;
mod requester;
mod responder;
mod send_queue;
mod store;

pub use config::TransportConfig;
pub use parts::SetupError;

pub(crate) use link::{Link, LinkEvent};
pub(crate) use parts::Parts;
pub(crate) use requester::Made;
