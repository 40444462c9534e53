//! A gateway at connection level between InfiniBand's connection management and iWARP.
//!
//! ```text
//!   asker ── request ──▶ Gateway ── request ──▶ target
//!         ◀── answer ───         ◀── answer ───
//! ```
//!
//! [`Gateway`] is an application of an RNIC like any other, with a device, queue pairs and listeners
//! of its own. [`pairing`] decides for it: events go in and requests come out, so the tests run the
//! decisions in virtual time.
#![forbid(unsafe_code)]

mod gateway;
pub mod pairing;

pub use gateway::{Gateway, GatewayError, MAX_FORWARDED, Rule};
pub use pairing::{GatewayCounters, RuleError};
