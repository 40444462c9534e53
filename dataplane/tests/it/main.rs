//! The integration tests of the crate that can share one EAL.
//!
//! All of them are in one binary, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod bond;
mod common;
mod devices;
mod echo;
mod idle;
mod memory;
mod queues;
mod regions;
mod ring;
mod segments;
mod side;
mod worker;
