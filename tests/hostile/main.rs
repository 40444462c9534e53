//! Hostile peers against the program itself: `heddle serve` on a virtual device, and on the other
//! end of the wire peers that do what they should not, or what few do.
//!
//! Some sit on TCP sockets of the kernel and speak MPA by hand ([`linux`]); others make every frame
//! themselves ([`tcp`]). Where a test has to look at memory and counters, an RNIC of this process
//! is in the place of the program ([`target`]). Each test has a wire, two network namespaces and a
//! server of its own ([`net`], [`server`]). That needs root; without it the tests fail and say so.
//!
//! Times are those of a busy machine: what is asked for is that somebody is served at all, or
//! served about as well as before, never that it takes so many microseconds.
#![allow(missing_docs, reason = "parts of a test")]
#![allow(unreachable_pub, reason = "each module takes what it needs from the others")]

mod frames;
mod linux;
#[path = "../../rpc/tests/it/common/lists.rs"]
mod lists;
mod mpa;
mod net;
mod segments;
mod server;
mod target;
mod tcp;
mod traffic;

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
