//! The client always speaks first and waits for the answer, so for most questions a server only has
//! to send an answer of the same length. The server returns the version (16 bytes) as it comes: it
//! claims the same version as its client.
//!
//! The server's part in the meantime depends on the test:
//!
//! * `ib_write_bw`, `ib_read_bw`, `ib_read_lat`: none, since RDMA Writes and Reads need no program;
//! * `ib_send_bw`: the server takes Sends, and Writes how many it has taken to where the client
//!   looks (an iWARP sender must not have more in flight than there are receives);
//! * `ib_send_lat`: the server sends each message back;
//! * `ib_write_lat`: the server Writes a message, waits for the client's, and Writes the next.
//!
//! No message gives the length of the messages. The memory of a test has [`Test::size`] bytes, and
//! a longer Write, Read or Send ends its connection like any access out of bounds.

mod conn;
mod server;
mod session;
#[cfg(test)]
mod tests;
pub mod wire;

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
    /// All programs that a service can answer.
    pub const ALL: [Program; 6] = [
        Program::WriteBw,
        Program::ReadBw,
        Program::SendBw,
        Program::WriteLat,
        Program::ReadLat,
        Program::SendLat,
    ];

    /// Returns the name of the program's command.
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

    /// Returns true if the program has one message under way at a time.
    pub fn is_latency(self) -> bool {
        matches!(self, Program::WriteLat | Program::ReadLat | Program::SendLat)
    }

    /// Returns true if messages arrive as Sends, which need receives.
    pub fn takes_sends(self) -> bool {
        matches!(self, Program::SendBw | Program::SendLat)
    }
}

/// The test that a service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// The client's program.
    pub program: Program,
    /// Bytes of a message, 1 to [`MAX_SIZE`](Self::MAX_SIZE): for `ib_write_lat` exactly this many
    /// (its `-s`), for the others at most.
    pub size: u32,
}

impl Test {
    /// The highest number of bytes in a message: the longest of perftest's `-a`.
    pub const MAX_SIZE: u32 = 8 << 20;

    /// A test with the default size: for `ib_write_lat` 2 bytes, its own default; for the others as
    /// many as `-a` has.
    pub fn new(program: Program) -> Test {
        Test { program, size: if program == Program::WriteLat { 2 } else { Test::MAX_SIZE } }
    }

    /// Returns the bytes of memory for one client: the region that the client reaches, and for
    /// `ib_write_lat` as much again for our own Writes.
    fn memory(self) -> u64 {
        let copies = if self.program == Program::WriteLat { 2 } else { 1 };
        copies * u64::from(self.size)
    }
}
