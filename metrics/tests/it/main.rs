//! The integration tests of the crate: the text, the HTTP server and the dashboard.
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;
mod dashboard;
mod http;
mod text;
