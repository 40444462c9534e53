//! Frames that tests write and read by hand: Ethernet to TCP over IPv4 and IPv6, and MPA to RDMAP.
//!
//! This crate uses no other of the workspace, so a mistake in Heddle's encoders cannot hide behind
//! the same mistake in a test. Its code panics on a frame that is not well-formed: the test has
//! failed then.

pub mod frames;
pub mod ip;
pub mod mpa;
