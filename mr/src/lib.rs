//! Memory regions: which memory a peer and the local queue pairs may use, with which rights, and
//! how an engine reaches it.
//!
//! [`MrTable`] has the STags of an RNIC, and checks each use of one. A check that passes returns a
//! [`MemRange`], which only this crate can make, and [`Memory`] takes nothing else: an engine
//! cannot touch memory that the table has not granted. [`Pins`] count the references that an engine
//! keeps to memory after a check, so that the owner of the memory can wait for their end.
//!
//! The crate knows no protocol. "STag" is iWARP's term (RFC 5040 section 1.1); InfiniBand calls the
//! same 32 bits an L_Key or R_Key, with 24 bits of index and 8 of key as well.
#![forbid(unsafe_code)]

mod memory;
mod pins;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use memory::{MemRange, Memory};
pub use pins::Pins;
pub use table::{Kind, MAX_SLOTS, MrAttr, MrTable};
