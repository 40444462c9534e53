//! The integration tests of the crate: the service and the client, over RDMA and TCP.
//!
//! A single binary holds all tests, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod access;
mod apart;
mod client_over_rdma;
mod common;
mod contents;
mod directories;
mod eal;
mod exports;
mod fair;
mod handles;
mod hostile;
mod hostile_server;
mod judge;
mod large;
mod model;
mod mounts;
mod objects;
mod over_rdma;
mod over_tcp;
mod owner;
mod together;
