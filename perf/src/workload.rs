//! The traffic of a benchmark: its two ends, and what they say to each other first.
//!
//! Both ends are driven by whoever polls the RNIC: [`Client::step`] and [`PerfServer::step`] never
//! block, so they run on one thread, on two, or behind the rings of a pinned worker.
//!
//! # Set-up
//!
//! The client sends a [`Hello`](hello::Hello) as private data of its connection request: operation,
//! mode, size, depth, seed, and the region the server may write. The server checks it and accepts,
//! or rejects with a [`Refusal`](hello::Refusal). Once connected, the client asks for its memory
//! with a Send without content; the server makes it ready, piece by piece, and answers with a Send,
//! a [`Welcome`](hello::Welcome) that names its own region, or a Refusal. So a greeting alone costs
//! nothing.
//!
//! # Traffic
//!
//! Memory is cut into *slots* of one message; operation `i` of a connection uses slot `i % depth`
//! on both sides.
//!
//! * `bw`, `rate`: the client keeps `depth` operations outstanding. RDMA Writes and Reads need
//!   nothing of the server's program.
//! * Sends need receive buffers: the server posts twice `depth` before it accepts, and posts each
//!   again when its message is taken. How many messages it has taken in all goes back in a
//!   *credit*: a Send of 16 octets, this number and that of wrong messages, after every
//!   `depth / 2` messages and after one that asks for an event (solicited). The client never has
//!   more than the window beyond the last credit under way. At most four credits can be, and the
//!   client has 16 buffers for them. A Send is used for it, not an RDMA Write, because its arrival
//!   needs no assumption on the order in which octets are placed.
//! * `lat`: one message to and fro. A Write ping-pong waits for the last octet of the message to
//!   change; the server writes the message back from where it arrived. RFC 5040 promises no order
//!   of placement within a message; with this stack on both ends placement is in order, and
//!   `verify` would show it if it were not. The figure is the full round trip. An RDMA Read is
//!   timed from posting to completion, and so are Atomic Operations.
//! * Immediate Data, alone or behind a Write, takes receives as Sends do, and so has the same
//!   credits; what it hands over is the number of the operation. The Writes go into as many slots
//!   as the server has receives, so that none is overwritten before the server has looked at it.
//! * Atomic Operations all change the first 64 bits of the connection's region, which begin with 0
//!   and count them. CmpSwap expects the number of those before it and stores the next.
//!
//! # Verification
//!
//! The octets of a message follow from the seed and the number of the operation ([`pattern`]).
//! With `verify` every message is compared: a Write is read back (RDMA Read) before its slot is
//! used again, what was Read is compared, a Send is compared by the server, a ping-pong's echo by
//! the client. Without it the octets depend on the slot alone, so that nothing is done per
//! message, and what is in the slots at the end is compared once. A difference is an error.
//!
//! Immediate Data is always compared. So is what each Atomic Operation found, with the number of
//! those before it; after a `bw` or `rate` the counter is read and compared once more.

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

/// One benchmark of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The operation.
    pub op: Op,
    /// What is measured.
    pub mode: Mode,
    /// Octets of a message.
    pub size: u32,
    /// Connections.
    pub qps: u32,
    /// Operations outstanding per connection.
    pub depth: u32,
    /// When it is over.
    pub until: Until,
    /// How the connections are asked for.
    pub mpa: MpaOptions,
    /// Compare every message.
    pub verify: bool,
    /// From which the octets of messages follow.
    pub seed: u64,
}

impl Run {
    /// The run of one size of a specification.
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

    /// Time that is not measured, at the start: a tenth of the duration, half a second at most.
    fn warm_up(&self) -> Duration {
        match self.until {
            Until::Elapsed(d) => (d / 10).min(Duration::from_millis(500)),
            Until::Iters(_) => Duration::ZERO,
        }
    }

    /// Octets of all slots.
    fn region(&self) -> usize {
        self.size as usize * self.depth as usize
    }
}

/// Receive buffers the server has for Sends.
pub(crate) fn send_window(mode: Mode, depth: u32) -> u32 {
    match mode {
        Mode::Lat => LAT_BUFFERS,
        Mode::Bw | Mode::Rate => 2 * depth,
    }
}

/// Receive buffers of either side of a Send ping-pong: one is filled next, one is being sent back,
/// and two more for a program that takes completions late.
pub(crate) const LAT_BUFFERS: u32 = 4;

/// Octets of a credit: messages taken and, of those, wrong ones, both 64 bits, big-endian.
pub(crate) const CREDIT_LEN: usize = 16;

/// Octets of the counter that Atomic Operations change.
pub(crate) const COUNTER_LEN: usize = 8;

/// Receive buffers for credits.
pub(crate) const CREDIT_BUFFERS: u32 = 16;
