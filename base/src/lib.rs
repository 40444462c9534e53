//! Small types that the core crates share.
//!
//! All code here is pure: no function reads a clock ([`Instant`] comes in as a value), randomness
//! comes from a [`Seed`], and the data path never allocates.
#![forbid(unsafe_code)]

mod chunks;
mod counters;
mod fetch;
mod histogram;
mod random;
mod stream;
mod sum;
pub mod sync;
mod time;
pub mod units;

pub use chunks::{Chunks, Skip};
pub use fetch::Fetch;
pub use histogram::Histogram;
pub use random::{Random, Seed};
pub use stream::StreamPos;
pub use sum::Sum;
pub use time::Instant;
