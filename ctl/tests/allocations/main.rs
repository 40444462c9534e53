//! Tests that count allocations, thread by thread, in one binary with the counting allocator.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod copies;
mod counting;
mod idle;
mod markers;
#[path = "../../../rnic/tests/it/sim/mod.rs"]
mod sim;
mod steady_state;
