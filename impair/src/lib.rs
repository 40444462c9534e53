//! A link that impairs the frames of a network, in virtual time.
//!
//! A [`Link`] is one direction of a wire. The caller pushes the frames that one host sends, with the
//! time, and pops the frames that are due at the other host. The library has no clock and no
//! randomness of its own and makes no system call, so its tests run in virtual time; the program
//! `impair` joins two links to two tap devices.
//!
//! ```text
//!            router              bottleneck                  wire
//! frame ──▶ MTU: drop, ──▶ queue (bytes), rate, ──▶ loss, bit errors, copies, ──▶ delay line ──▶
//!           answer ICMP    mark or drop             delay, jitter, reordering
//! ```
//!
//! A frame that the wire loses has taken its share of the rate, as on a real link.
#![forbid(unsafe_code)]

mod answer;
mod frame;
mod link;
mod loss;
mod settings;

pub use frame::Codepoint;
pub use link::{Counters, Link};
pub use settings::{Burst, Reorder, Settings, SettingsError};
