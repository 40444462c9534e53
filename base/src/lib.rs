//! Small types the core crates share.
//!
//! Everything here is pure: no clock is read ([`Instant`] comes in as a value), randomness comes
//! from a [`Seed`], and nothing allocates on the data path.
#![forbid(unsafe_code)]

mod chunks;
mod counters;
mod histogram;
mod random;
mod stream;
mod sum;
pub mod sync;
mod time;

pub use chunks::{Chunks, Skip};
pub use histogram::Histogram;
pub use random::{Random, Seed};
pub use stream::StreamPos;
pub use sum::Sum;
pub use time::Instant;
