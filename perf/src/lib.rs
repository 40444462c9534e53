//! The bench harness of Heddle.
//!
//! * [`spec`]: what is to be measured; [`report`]: what came out, as JSON and as a table.
//! * [`control`]: what Heddle is compared with: another user-space TCP, and the kernel's.
//! * [`latency`]: distributions of times. [`stats`]: medians and spreads of several rounds. [`pin`]: threads bound to processors.

pub mod control;
pub mod latency;
pub mod pin;
pub mod report;
pub mod spec;
pub mod stats;
