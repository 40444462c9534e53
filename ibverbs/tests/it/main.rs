//! What a program and an RNIC see of each other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod memory;
