//! Checks captures with Wireshark as the judge.
#![allow(clippy::unwrap_used, reason = "tests")]

mod decode;
mod recorded;
mod script;
mod startup;
mod tshark;
mod wire;
mod witness;
