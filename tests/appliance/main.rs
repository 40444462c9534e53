//! `heddle serve --config`, queried and changed while it serves, on a wire between two network
//! namespaces. The tests need root; without root they fail and say so.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "parts of a test")]

#[path = "../hostile/net.rs"]
#[allow(dead_code, reason = "the wire of other tests, of which not all is used here")]
mod net;

#[path = "../support/built.rs"]
mod built;

#[path = "../support/library.rs"]
mod library;

#[path = "../support/tenant/mod.rs"]
#[allow(dead_code, reason = "what the program uses besides")]
mod hostile_tenant;

mod applications;
mod attacks;
mod bonds;
mod check;
mod congestion;
mod drain;
mod end;
mod gateway;
mod guests;
mod keys;
mod lab;
mod links;
mod memory;
mod neighbours;
mod nfs;
mod operations;
mod ports;
mod reload;
mod settings;
mod tenants;
mod watchdog;
