//! The control socket: what is said on it, and how it travels.
//!
//! `heddle serve` listens on a Unix stream socket. Each request and each answer is one JSON document
//! on a line of its own, so `socat - UNIX-CONNECT:/run/heddle.sock` is enough to talk to it:
//!
//! ```text
//! > {"v":1,"id":1,"op":"status"}
//! < {"v":1,"id":1,"ok":{…}}
//! > {"v":1,"id":2,"op":"conn-kill","args":{"conn":9}}
//! < {"v":1,"id":2,"error":{"kind":"not-found","text":"there is no connection 9"}}
//! ```
//!
//! `v` is [`VERSION`], `id` any number of the asker's, repeated in the answer. An answer may bring file
//! descriptors; it says how many (`fds`), and they come with its first octet. What is told without
//! having been asked for is an event: `{"v":1,"event":{…}}`.
//!
//! * [`bounds`]: what the numbers of requests are cut to;
//! * [`document`]: requests, answers, events and faults, as they are for everybody;
//! * [`wire`]: lines and descriptors through a socket, for either side, with or without waiting;
//! * [`admin`]: what those ask who look after an appliance;
//! * [`client`]: the asking side, for programs that wait for each answer;
//! * [`descriptor`]: where a library keeps descriptors in a program that does not know of them.
//!
//! There is no DPDK here, and nothing of the RNIC: programs that only ask need no more than this.
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

/// Where the socket is unless configured otherwise.
pub const DEFAULT_PATH: &str = "/run/heddle.sock";
