//! Baselines for Heddle, run by the same program on the same machine in the same minute.
//!
//! A baseline gets its best settings: a figure that flatters Heddle is worth nothing.

pub mod kernel;
pub mod smoltcp;
