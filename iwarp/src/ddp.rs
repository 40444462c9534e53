//! DDP segment headers (RFC 5041 section 4).
//!
//! A DDP segment is what MPA calls a ULPDU: one of the two headers below, then payload. All fields
//! are big-endian.
//!
//! ```text
//!           0 1 2 3 4 5 6 7 | 8 .. 15   | 16 .. 47     | 48 .. 111
//! tagged   |1|L| rsvd  |DV  | RsvdULP   | STag         | TO (64 bits)
//! untagged |0|L| rsvd  |DV  | RsvdULP   | RsvdULP (32) | QN (32) | MSN (32) | MO (32)
//! ```
//!
//! This module only takes a header apart: the QP decides whether the STag, queue, MSN and offset
//! mean something. The sender sets the reserved bits to zero, and the receiver ignores them.

mod header;
#[cfg(test)]
mod tests;

pub use header::{DdpError, DdpHeader, MAX_LEN, Qn, TAGGED_LEN, UNTAGGED_LEN, VERSION};
pub(crate) use header::{tagged_start, untagged_start};
