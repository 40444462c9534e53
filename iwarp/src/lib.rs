//! Sans-IO iWARP: MPA framing and start-up (RFC 5044, RFC 6581), DDP segments (RFC 5041), RDMAP
//! messages (RFC 5040) and the queue pairs above them.
//!
//! This crate does not know TCP. The caller hands it stream bytes with their position and the size
//! that a segment may have, and the crate returns FPDUs that refer to registered memory. The crate
//! reaches registered memory only through the [`Memory`](heddle_mr::Memory) trait, and only with a
//! [`MemRange`](heddle_mr::MemRange), which the STag table alone can make.
#![forbid(unsafe_code)]

mod counters;
pub mod ddp;
pub mod fault;
pub mod mpa;
pub mod qp;
pub mod rdmap;
mod types;

pub use qp::{
    Buffers, Fpdu, PlacedFpdu, QpConfig, QpContext, QpCounters, QpEnv, QpEvent, RnrMark, Side,
};
pub use types::{Msn, Role};
