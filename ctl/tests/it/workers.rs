//! RNICs of several workers.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]
#![allow(unreachable_pub, reason = "one program in several files")]
#![allow(clippy::needless_range_loop, reason = "a side, or a connection, has a number here")]

mod devices;
mod hazards;
mod ports;
mod rig;
mod shared;
