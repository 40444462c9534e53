//! The bench harness of Heddle.
//!
//! * [`spec`]: what to measure; [`report`]: the results, as JSON and as a table.
//! * [`workload`]: the traffic of a benchmark, client and server. [`embedded`]: both of them in one
//!   process, or the client alone.
//! * [`rpc`]: RPC-over-RDMA, beside the operations that carry it.
//! * [`rping`]: the client and server of that name. [`rdmacm`] and [`perftest`]: the servers of
//!   librdmacm's other examples and of perftest. [`service`]: the services that an appliance can
//!   offer.
//! * [`exchange`]: the traffic for soaking an appliance.
//! * [`transfer`]: a file moved in each of the ways RDMA has.
//! * [`baseline`]: the systems that Heddle is compared with: another user-space TCP, and the
//!   kernel's.
//! * [`latency`]: distributions of times. [`stats`]: medians and spreads of several rounds.
//!   [`pin`]: threads bound to processors. [`progress`]: how far a run is.

pub mod baseline;
mod connections;
pub mod embedded;
pub mod exchange;
mod inbox;
pub mod latency;
pub mod own_process;
pub mod perftest;
pub mod pin;
pub mod progress;
pub mod rdmacm;
pub mod report;
pub mod rpc;
pub mod rping;
mod server;
pub mod service;
mod shares;
pub mod spec;
pub mod stats;
mod throttle;
pub mod transfer;
pub mod workload;
