//! The C library as programs see it: its layouts, its names, what its functions do, and what a program and an
//! RNIC see of the program's memory.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod c;
mod events;
mod extended;
mod lab;
mod layout;
mod memory;
mod names;
mod program;
mod suite;
mod transfer;
mod ucma;
