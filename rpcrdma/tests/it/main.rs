//! The integration tests of the crate: connections in a model, and recorded messages.
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod conn;
mod linux;
mod transaction;
mod vectors;
