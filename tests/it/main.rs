//! The integration tests of the program and of the library, except the tests with a lab of their
//! own (`appliance`, `hostile`).
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod architecture;
mod bench;
mod cli;
mod dependencies;
mod docs;
mod eal;
mod end_to_end;
mod examples;
mod generate;
mod metrics;
mod names;
mod packaging;
mod pcap;
mod ports;
mod run;
mod socket;
