//! The bench harness of Heddle.
//!
//! * [`spec`]: what to measure; [`report`]: the results, as JSON and as a table.
//! * [`workload`]: the client of a benchmark. [`embedded`]: client and server in one process, or the
//!   client alone.
//! * [`rpc`]: RPC-over-RDMA, beside the operations that carry it.
//! * [`exchange`]: the traffic for soaking an appliance.
//! * [`transfer`]: a file moved in each of the ways RDMA has.
//! * [`baseline`]: the systems that Heddle is compared with: another user-space TCP, and the
//!   kernel's.
//! * [`latency`]: distributions of times. [`stats`]: medians and spreads of several rounds.
//!   [`pin`]: threads bound to processors. [`progress`]: how far a run is.

pub mod baseline;
pub mod embedded;
pub mod exchange;
pub mod latency;
pub mod own_process;
pub mod pin;
pub mod progress;
pub mod report;
pub mod rpc;
pub mod spec;
pub mod stats;
pub mod transfer;
pub mod workload;
