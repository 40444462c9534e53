//! The integration tests of the crate: the bench harness and the services on rings.
//!
//! A single binary holds all tests, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod bench;
mod bidirectional;
mod common;
mod hostile_perftest;
mod linux_programs;
mod rpc;
mod services;
mod vhost;
