//! The bench harness of Heddle.
//!
//! * [`spec`]: what to measure; [`report`]: the figures of a run, and their tables.
//! * [`document`]: all results of a command, as JSON and CSV, with the [`host`] and the [`usage`] of
//!   its processors. [`page`]: the same as HTML. [`comparison`]: two documents side by side.
//!   [`output`]: files, and standard output.
//! * [`workload`]: the client of a benchmark. [`embedded`]: client and server in one process, or the
//!   client alone.
//! * [`rpc`]: RPC-over-RDMA, beside the operations that carry it.
//! * [`exchange`]: the traffic for soaking an appliance.
//! * [`transfer`]: a file moved in each of the ways RDMA has.
//! * [`baseline`]: the systems that Heddle is compared with: another user-space TCP, and the
//!   kernel's.
//! * [`hostile`]: frames of an attacker, and a stack that gets them.
//! * [`latency`]: distributions of times. [`stats`]: medians and spreads of several rounds.
//!   [`pin`]: threads bound to processors. [`progress`]: how far a run is.

pub mod baseline;
pub mod comparison;
pub mod document;
pub mod embedded;
pub mod exchange;
pub mod host;
pub mod hostile;
pub mod latency;
pub mod output;
pub mod own_process;
pub mod page;
pub mod pin;
pub mod progress;
pub mod report;
pub mod rpc;
pub mod sizing;
pub mod spec;
pub mod stats;
pub mod transfer;
pub mod usage;
pub mod workload;
