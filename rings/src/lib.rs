//! Rings in shared memory: a protocol between two processes that do not trust each other.
//!
//! ```text
//!   application ── post ──▶ [SQ] [RQ] ── doorbell bit ──▶ worker
//!               ◀─ poll ─── [CQ: one ring per worker] ◀── worker ── wake-up, when armed ──▶
//! ```
//!
//! Every ring has one producer and one consumer. The two sides exchange 64-bit words in the byte
//! order of the machine. Each side loads and stores a word whole (`Relaxed`) and publishes entries
//! by an index (`Release` / `Acquire`): the rings contain no pointer, no Rust enum, and no data
//! that a side uses before it has copied it. [`layout`] defines sizes and offsets, and asserts
//! them.
//!
//! **The worker believes nothing.** It keeps its own copies of sizes and of every index that it
//! moves. An index that it reads from the other side only says how much more there is, and a
//! distance that no honest producer makes ends the queue pair ([`Broken`]). The worker copies an
//! entry before it looks at the entry, so that no word can change between check and use, and checks
//! the copy in full: opcode, counts and lengths here; STags, bounds and rights by the STag table,
//! against the protection domain of that very queue pair. So an application that breaks its rings,
//! by mistake or on purpose, ends its own queue pairs and nothing else.
//!
//! **No side waits for the other.** A producer that is descheduled or killed between two stores has
//! not moved its index, and the worker has seen nothing. A consumer that does not take completions
//! overflows its own completion queue.
//!
//! | Module | Contents |
//! |---|---|
//! | [`layout`] | sizes and offsets of every word |
//! | `area` | the memory that queues lie in, and the blocks that it is given out in |
//! | [`bells`](Bells) | doorbells: which queue pairs have new requests |
//! | [`wakeup`] | how a doorbell wakes a worker that sleeps |
//! | `wqe`, [`cqe`] | work requests and completions, as words |
//! | [`qp`] | a queue pair's block, and the application's end of its two rings |
//! | [`worker`] | the worker's ends of a queue pair |
//! | [`cq`] | the room of a completion queue, and the worker's end |
//! | [`srq`] | shared receive queues, which all workers take from |
//!
//! The application's end of a completion queue is in `heddle_verbs`, beside the threads that wait
//! for it. This crate knows no region, no STag table and no connection.
//!
//! `unsafe` is in `area` and `wakeup::page`; each block says why it is sound.

mod area;
mod bells;
pub mod cq;
pub mod cqe;
#[allow(missing_docs, reason = "the table in the module's documentation names every word")]
pub mod layout;
pub mod qp;
pub mod srq;
pub mod wakeup;
pub mod worker;
mod wqe;

pub use area::{Area, AreaError, Block, Line};
pub use bells::{BELLS, Bells, BellsTaken};
pub use wqe::{
    BlockRing, Broken, Encoded, Entry, EntryReader, MAX_BLOCKS, OnSend, behind, encode_recv,
    encode_send, encode_with_operands, look_back, low32, read_recv, store,
};
