//! The integration tests of the crate: connection managers over RNICs in virtual time.
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod infiniband;
mod log;
mod model;
mod options;
mod peer_to_peer;
mod startup;
mod support;
mod wire;
