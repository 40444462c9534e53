//! Rings in shared memory: a protocol between two processes that do not trust each other.
//!
//! ```text
//!   application ── post ──▶ [SQ] [RQ] ── doorbell bit ──▶ worker
//!               ◀─ poll ─── [CQ: one ring per worker] ◀── worker ── wake-up, when armed ──▶
//! ```
//!
//! Every ring has one producer and one consumer. What crosses is 64-bit words in the byte order of
//! the machine, each loaded and stored whole (`Relaxed`), published by an index (`Release` /
//! `Acquire`): no pointer, no Rust enum, nothing that is read as it lies. Sizes and offsets stand in
//! [`layout`] and are asserted there.
//!
//! **What the worker believes.** Nothing. It keeps its own copy of every index that is its to move,
//! and of sizes; an index it reads of the other side only says how much more there is, and a distance
//! that no honest producer makes ends the queue pair ([`Broken`]). An entry is copied out before it is
//! looked at, so that it cannot change between check and use, and is checked in full: opcode, counts
//! and lengths here; STags, bounds and rights by the STag table, against the protection domain of
//! that very queue pair. So an application that breaks its rings, by mistake or on purpose, ends its
//! own queue pairs and nothing else.
//!
//! **Who waits for whom.** Nobody. A producer that is descheduled or killed between two stores has not
//! moved its index, and the worker has seen nothing. A consumer that does not take completions
//! overflows its own completion queue.

mod area;
mod bells;
pub mod cqe;
#[allow(missing_docs, reason = "the table in the module's documentation names every word")]
pub mod layout;
mod wqe;

pub use area::{Area, AreaError, Block, Line};
pub use bells::{BELLS, Bells, BellsTaken};
pub(crate) use wqe::{
    BlockRing, Encoded, EntryReader, behind, encode_recv, encode_send, encode_with_operands,
    look_back, low32, read_recv, store,
};
pub use wqe::{Broken, Entry, MAX_BLOCKS, OnSend};
