//! The integration tests of the crate: two RNICs in virtual time, and hand-made peers.
//!
//! All tests share one binary, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod closing;
mod datagrams;
mod early;
mod ending;
mod fin;
mod fpdus;
mod handed;
mod hindered;
mod hostile;
mod kept;
mod million;
mod paths;
mod probed;
mod programs;
mod readdress;
mod receives;
mod reports;
mod rnr;
mod shares;
mod sim;
mod startup;
mod terminates;
mod timers;
mod unfinished;
