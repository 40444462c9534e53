//! The integration tests of the crate: clients and servers on queue pairs that rings join.
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod attacks;
mod blocking;
mod call_only;
mod common;
mod hostile;
mod losses;
mod races;
mod reach;
mod reverse;
mod reverse_reach;
mod reverse_threads;
mod stalls;
mod transfer;
mod waits;
