//! Hostile peers against the program itself: `heddle serve` on a virtual device, and at the other
//! end of the wire peers that do forbidden or rare things.
//!
//! Some peers sit on TCP sockets of the kernel and speak MPA by hand ([`linux`]); others make every
//! frame themselves ([`tcp`]). If a test has to inspect memory and counters, an RNIC of this
//! process takes the place of the program ([`target`]). Each test has its own wire, two network
//! namespaces and a server ([`net`], [`server`]). The tests need root; without root they fail and
//! say so.
//!
//! Time limits are for a busy machine: a test requires that the server serves a peer at all, or
//! about as well as before, and never within a number of microseconds.
#![allow(missing_docs, reason = "parts of a test")]
#![allow(unreachable_pub, reason = "each module takes what it needs from the others")]

mod linux;
#[path = "../../rpc/tests/it/common/lists.rs"]
mod lists;
mod net;
mod segments;
mod server;
mod target;
mod tcp;
mod traffic;

mod clients;
mod errors;
mod floods;
mod honest;
mod http;
mod idle;
mod immediates;
mod mads;
mod memory;
mod mutations;
mod nfs;
mod rtr;
mod services;
mod windows;
