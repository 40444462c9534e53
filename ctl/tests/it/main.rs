//! The integration tests of the crate: RNICs and their control planes over rings.
//!
//! A single binary holds them all, because each binary costs seconds to link.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod applications;
mod blocking;
mod common;
mod congestion;
mod connections;
mod cqs;
mod domains;
mod flood;
mod fpdus;
mod gateway;
mod hazards;
mod infiniband;
mod inner;
mod limits;
mod many;
mod memory;
mod mutate;
mod options;
mod patience;
mod places;
mod posting;
mod routers;
mod shares;
mod srq;
mod startup;
mod states;
mod terminates;
mod trains;
mod vlans;
mod windows;
mod workers;
