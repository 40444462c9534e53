//! What Heddle is compared with, run by the same program on the same machine in the same minute.
//!
//! A baseline gets the best of what it can be set to: a figure that flatters Heddle is worth
//! nothing.

pub mod kernel;
pub mod smoltcp;
