//! The C library as programs see it: its layouts, its names, the behaviour of its functions, and
//! the program's memory as the program and an RNIC see it.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

#[path = "../support/library.rs"]
mod library;

mod c;
mod ended;
mod events;
mod extended;
mod guide;
mod lab;
mod layout;
mod lingering;
mod memory;
mod names;
mod program;
mod sources;
mod suite;
mod transfer;
mod ucma;
