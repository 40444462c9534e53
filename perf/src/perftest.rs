//! The servers of perftest: `ib_write_bw`, `ib_read_bw`, `ib_send_bw` and their `_lat` forms,
//! started with `-R`, so that all goes over RDMA connections.
//!
//! ```text
//!   client                          parameters                          server
//!     Send of 16, 4, 4, 2 octets  ─────────────▶  each answered by one as long
//!     Send of a Dest (empty)      ─────────────▶
//!                                 ◀─────────────  an empty one, when there is memory
//!                                      data
//!     connects once per QP        ─────────────▶
//!                                   parameters
//!     Send of a Dest (empty)      ─────────────▶  an empty one: the two are in step
//!     Send of a Dest, per QP      ─────────────▶  ours for that QP
//!     more of them, to be in step ─────────────▶  the same
//!                                      data
//!     the test                    ◀────────────▶
//!                                   parameters
//!     five numbers, 8 octets each ─────────────▶  each answered by one
//! ```
//!
//! The client always speaks first and waits for the answer, so that an answer of the length of the
//! question is all a server has to know of most of them. The version (16 octets) is given back as
//! it comes: the server takes itself for as old as its client.
//!
//! | Test | What the server does meanwhile |
//! |---|---|
//! | `ib_write_bw`, `ib_read_bw`, `ib_read_lat` | nothing: RDMA Writes and Reads need no program |
//! | `ib_send_bw` | takes Sends; Writes how many it has taken to where the client looks (an iWARP sender must not have more under way than there are receives) |
//! | `ib_send_lat` | sends each message back |
//! | `ib_write_lat` | Writes a message, waits for the client's, Writes the next |
//!
//! How long messages are is not told. The memory of a test has [`Test::size`] octets, and a longer
//! Write, Read or Send ends its connection as any access out of bounds does.

mod conn;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use server::Perftest;

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ib_write_bw`
    WriteBw,
    /// `ib_read_bw`
    ReadBw,
    /// `ib_send_bw`
    SendBw,
    /// `ib_write_lat`
    WriteLat,
    /// `ib_read_lat`
    ReadLat,
    /// `ib_send_lat`
    SendLat,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 6] = [
        Program::WriteBw,
        Program::ReadBw,
        Program::SendBw,
        Program::WriteLat,
        Program::ReadLat,
        Program::SendLat,
    ];

    /// As it is called.
    pub fn name(self) -> &'static str {
        match self {
            Program::WriteBw => "ib_write_bw",
            Program::ReadBw => "ib_read_bw",
            Program::SendBw => "ib_send_bw",
            Program::WriteLat => "ib_write_lat",
            Program::ReadLat => "ib_read_lat",
            Program::SendLat => "ib_send_lat",
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, Program::WriteLat | Program::ReadLat | Program::SendLat)
    }

    /// Messages come as Sends, which need receives.
    fn takes_sends(self) -> bool {
        matches!(self, Program::SendBw | Program::SendLat)
    }
}

/// What a service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// The program.
    pub program: Program,
    /// Octets of a message, 1 to [`MAX_SIZE`](Self::MAX_SIZE): of `ib_write_lat` exactly (its
    /// `-s`), of the others at most.
    pub size: u32,
}

impl Test {
    /// Most octets of a message: the longest of perftest's `-a`.
    pub const MAX_SIZE: u32 = 8 << 20;

    /// Of `ib_write_lat` 2 octets, its own default; of the others as many as `-a` has.
    pub fn new(program: Program) -> Test {
        Test { program, size: if program == Program::WriteLat { 2 } else { Test::MAX_SIZE } }
    }

    /// Octets of memory of one client: what it reaches, and behind that what is written to it.
    fn memory(self) -> u64 {
        let copies = if self.program == Program::WriteLat { 2 } else { 1 };
        copies * u64::from(self.size)
    }
}
