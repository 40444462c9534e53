//! The control socket: its documents, and how they travel.
//!
//! `heddle serve` listens on a Unix stream socket. Each request and each answer is one JSON
//! document on a line of its own, so `socat - UNIX-CONNECT:/run/heddle.sock` is enough to talk to
//! the server:
//!
//! ```text
//! > {"v":1,"id":1,"op":"status"}
//! < {"v":1,"id":1,"ok":{…}}
//! > {"v":1,"id":2,"op":"conn-kill","args":{"conn":9}}
//! < {"v":1,"id":2,"error":{"kind":"not-found","text":"there is no connection 9"}}
//! ```
//!
//! `v` is [`VERSION`], `id` is any number that the client chooses, and the answer repeats it. An
//! answer may bring file descriptors; `fds` says how many, and they come with the first byte of the
//! answer. A document that the server sends without a request is an event: `{"v":1,"event":{…}}`.
//!
//! * [`bounds`]: the bounds of the numbers in requests;
//! * [`document`]: requests, answers, events and faults, as far as all kinds of client share them;
//! * [`wire`]: lines and descriptors through a socket, for either side, with or without waiting;
//! * [`admin`]: the requests of an appliance's administrators;
//! * [`client`]: the client's side, for programs that wait for each answer;
//! * [`descriptor`]: where a library keeps descriptors in a program that does not know of them.
//!
//! This crate contains nothing of DPDK and nothing of the RNIC: programs that only ask need no
//! other crate.
#![forbid(unsafe_code)]

pub mod admin;
pub mod bounds;
pub mod client;
pub mod descriptor;
pub mod document;
pub mod wire;

pub use bounds::Bounded;
pub use client::{Client, ClientError};
pub use document::{Answer, Call, Event, Fault, FaultKind, Head, VERSION};
pub use wire::{Inbox, Line, WireError};

/// Path of the socket unless the configuration says otherwise.
pub const DEFAULT_PATH: &str = "/run/heddle.sock";
