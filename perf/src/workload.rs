//! The traffic of a benchmark: its two ends, and the messages by which they set up a run.
//!
//! The thread that polls the RNIC drives both ends: [`Client::step`] and [`PerfServer::step`] never
//! block, so they run on one thread, on two, or at the other end of a pinned worker's rings.
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

pub mod client;
pub mod hello;
pub mod pattern;
pub mod server;
pub mod sink;

pub use client::{Client, Outcome, Step, WorkloadError};
pub use server::PerfServer;
pub use sink::Sink;

use core::time::Duration;

use heddle_verbs::MpaOptions;

use crate::spec::{BenchSpec, Mode, Op, Size, Until};

/// A benchmark of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The operation to measure.
    pub op: Op,
    /// The quantity to measure.
    pub mode: Mode,
    /// Bytes of a message.
    pub size: u32,
    /// The number of connections.
    pub qps: u32,
    /// Operations outstanding per connection.
    pub depth: u32,
    /// The condition that ends the run.
    pub until: Until,
    /// The MPA options with which the client asks for connections.
    pub mpa: MpaOptions,
    /// True if the ends compare every message.
    pub verify: bool,
    /// The seed that determines the bytes of messages.
    pub seed: u64,
}

impl Run {
    /// Makes the run of one size of a specification.
    pub fn new(spec: &BenchSpec, size: Size) -> Run {
        Run {
            op: spec.op,
            mode: spec.mode,
            size: size.0,
            qps: spec.qps,
            depth: spec.depth_for(size),
            until: spec.until,
            mpa: spec.mpa,
            verify: spec.verify,
            seed: spec.faults.seed,
        }
    }

    /// Returns the time at the start that is not measured: a tenth of the duration, half a second
    /// at most.
    fn warm_up(&self) -> Duration {
        match self.until {
            Until::Elapsed(d) => (d / 10).min(Duration::from_millis(500)),
            Until::Iters(_) => Duration::ZERO,
        }
    }

    /// Returns the bytes of all slots.
    fn region(&self) -> usize {
        self.size as usize * self.depth as usize
    }
}

/// Returns the number of receive buffers that the server has for Sends.
pub(crate) fn send_window(mode: Mode, depth: u32) -> u32 {
    match mode {
        Mode::Lat => LAT_BUFFERS,
        Mode::Bw | Mode::Rate => 2 * depth,
    }
}

/// Receive buffers of either side of a Send ping-pong: the next message fills one, the answer
/// leaves from another, and two more serve a program that takes completions late.
pub(crate) const LAT_BUFFERS: u32 = 4;

/// Bytes of a credit: the number of messages taken and the number of wrong ones among them, both 64
/// bits, big-endian.
pub(crate) const CREDIT_LEN: usize = 16;

/// Bytes of the counter that Atomic Operations change.
pub(crate) const COUNTER_LEN: usize = 8;

/// The number of receive buffers for credits.
pub(crate) const CREDIT_BUFFERS: u32 = 16;
