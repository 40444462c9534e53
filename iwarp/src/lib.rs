//! Sans-IO iWARP: MPA framing and start-up (RFC 5044, RFC 6581), DDP segments (RFC 5041), RDMAP
//! messages (RFC 5040) and the verbs objects (PD, MR, CQ, QP) above them.
//!
//! This crate does not know TCP. The caller hands it stream bytes with their position and the size
//! that a segment may have, and the crate returns FPDUs that refer to registered memory. The crate
//! reaches registered memory only through the [`Memory`] trait, and only with a [`MemRange`], which
//! the STag table alone can make.
#![forbid(unsafe_code)]

mod counters;
pub mod ddp;
pub mod fault;
mod memory;
pub mod mpa;
pub mod mr;
pub mod qp;
pub mod rdmap;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;

pub use memory::{MemRange, Memory};
pub use mr::{MrAttr, MrTable, Pins};
pub use qp::{
    Buffers, Completions, Fpdu, PlacedFpdu, PostedReceives, QpConfig, QpContext, QpCounters, QpEnv,
    QpEvent, Retired, RnrMark, SharedBroken, SharedReceives, Side, Untaken,
};
pub use types::{Msn, Role};
