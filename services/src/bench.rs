//! The server of `heddle bench --connect`, and the protocol between it and its clients.
//!
//! # Set-up
//!
//! The client sends a [`Hello`](hello::Hello) as private data of its connection request: operation,
//! mode, size, depth, seed, and the region that the server may write. The server checks the Hello
//! and accepts, or rejects with a [`Refusal`](hello::Refusal). Once connected, the client asks for
//! its memory with an empty Send; the server prepares the memory, piece by piece, and answers with
//! a Send: a [`Welcome`](hello::Welcome) that names its own region, or a Refusal. So a greeting
//! alone costs no memory.
//!
//! # Traffic
//!
//! Memory is divided into *slots* of one message; operation `i` of a connection uses slot `i %
//! depth` on both sides.
//!
//! * `bw`, `rate`: the client keeps `depth` operations outstanding. RDMA Writes and Reads need no
//!   act of the server's program.
//! * Sends need receive buffers: the server posts twice `depth` before it accepts, and posts each
//!   buffer again after it has taken the message. The server reports the number of messages that it
//!   has taken in a *credit*: a Send of 16 bytes, with this number and the number of wrong
//!   messages, after every `depth / 2` messages and after a message that asks for an event
//!   (solicited). The client never has more messages in flight than the window beyond the last
//!   credit. At most four credits can be in flight, and the client has 16 buffers for them. A
//!   credit is a Send and not an RDMA Write, because the arrival of a Send needs no assumption on
//!   the order in which bytes are placed.
//! * `lat`: one message to and fro. A Write ping-pong waits for the last byte of the message to
//!   change; the server writes the message back from where it arrived. RFC 5040 promises no order
//!   of placement within a message; with this stack on both ends placement is in order, and
//!   `verify` would reveal any other order. The figure is the full round trip. The client times an
//!   RDMA Read from posting to completion, and Atomic Operations likewise.
//! * Immediate Data, alone or after a Write, takes receives as Sends do, and so has the same
//!   credits; the data is the number of the operation. The Writes go into as many slots as the
//!   server has receives, so that no Write overwrites another that the server has not checked yet.
//! * Atomic Operations all change the first 64 bits of the connection's region, which begin with 0
//!   and count the operations. CmpSwap expects the number of the operations before it and stores
//!   the next.
//!
//! # Both directions at once
//!
//! In a bidirectional run of RDMA Writes or Reads the server keeps `depth` operations outstanding as
//! well, on the client's region, over the same connection. Three empty Sends of the client say how
//! far the run is: the server's operations begin, they count from now on, they end. When the last is
//! done, the server answers with a Send, its [`Tally`](tally::Tally): the operations that count, the
//! time between the client's second and third message, all operations from the first on, and the
//! number of slots with wrong bytes that its Reads brought. The client adds nothing up: each
//! direction has its figures.
//!
//! # Verification
//!
//! The seed and the number of the operation determine the bytes of a message ([`pattern`]). With
//! `verify` the ends compare every message: the client reads a Write back (RDMA Read) before it
//! uses the slot again, and compares each Read and a ping-pong's echo; the server compares each
//! Send. Without `verify` the bytes depend on the slot alone, so that the ends do no work per
//! message, and compare the contents of the slots once at the end. A difference is an error.
//!
//! The ends always compare Immediate Data. The client always compares the value that each Atomic
//! Operation found with the number of operations before; after a `bw` or `rate` it reads and
//! compares the counter once more.

pub mod hello;
mod operation;
pub mod pattern;
mod server;
pub mod tally;

pub use operation::{Mode, Op, UnknownWord};
pub use server::BenchServer;

/// The largest message in bytes.
pub const MAX_SIZE: u32 = 64 << 20;

/// The highest number of operations outstanding per connection.
pub const MAX_DEPTH: u32 = 4096;

/// Returns the number of receive buffers that the server has for Sends.
pub fn send_window(mode: Mode, depth: u32) -> u32 {
    match mode {
        Mode::Lat => LAT_BUFFERS,
        Mode::Bw | Mode::Rate => 2 * depth,
    }
}

/// Receive buffers of either side of a Send ping-pong: the next message fills one, the answer
/// leaves from another, and two more serve a program that takes completions late.
pub const LAT_BUFFERS: u32 = 4;

/// Bytes of a credit: the number of messages taken and the number of wrong ones among them, both 64
/// bits, big-endian.
pub const CREDIT_LEN: usize = 16;

/// Bytes of the counter that Atomic Operations change.
pub const COUNTER_LEN: usize = 8;

/// The number of receive buffers for credits.
pub const CREDIT_BUFFERS: u32 = 16;
