//! The C library as programs see it: its layouts, its names, and what its functions do.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod c;
mod events;
mod extended;
mod lab;
mod layout;
mod names;
mod program;
mod transfer;
