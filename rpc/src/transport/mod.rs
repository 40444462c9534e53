//! RPC-over-RDMA on a queue pair: the driver of [`heddle_rpcrdma::conn`].
//!
//! A link is stepped by whoever owns it, and never waits. In a step it takes completions, posts each
//! Receive again as soon as its octets are read, and posts what the connection asks for as long as the
//! send queue has room. What it has to tell is polled.

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
