//! The benchmark's program, and its server.
//!
//! The program has three procedures:
//!
//! * 1, ECHO: takes an opaque, and returns the same;
//! * 2, GET: takes seed, number and length, and returns the bytes of that [`pattern`], which RDMA
//!   may place;
//! * 3, PUT: takes seed, number, whether to compare, and an opaque, which RDMA may place; returns
//!   whether a byte was wrong, and the index of the first.
//!
//! Seed and number are hypers. The server keeps the result of GET: a client that asks for the same
//! again costs the server no copy.

use core::fmt;

use heddle_rpc::binding::{Entry, Reply, ReplySize, Table};
use heddle_rpc::{Body, Buffer, Memory, Opaque, Procedure, Program, Refusal, Repeat, Request};
use serde::{Deserialize, Serialize};

use crate::bench::Op;
use crate::bench::pattern;

/// The program's number, from the range for users' own programs.
pub const PROGRAM: u32 = 0x2000_4844;
/// The only version of the program.
pub const VERSION: u32 = 1;
/// Bytes of the longest item.
pub const MAX_SIZE: u32 = 1 << 20;

/// A procedure of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// Bytes to and fro, within messages.
    Echo,
    /// Bytes from the server, by its RDMA Writes.
    Get,
    /// Bytes to the server, by its RDMA Reads.
    Put,
}

impl Call {
    /// All procedures.
    pub const ALL: [Call; 3] = [Call::Echo, Call::Get, Call::Put];

    /// Returns the raw operation that moves as many bytes in the same direction without RPC.
    pub fn raw(self) -> Op {
        match self {
            Call::Echo => Op::Send,
            Call::Get => Op::Write,
            Call::Put => Op::Read,
        }
    }

    /// Returns the RPC procedure.
    pub const fn procedure(self) -> Procedure {
        let procedure = match self {
            Call::Echo => 1,
            Call::Get => 2,
            Call::Put => 3,
        };
        Procedure { program: PROGRAM, version: VERSION, procedure }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Echo => "echo",
            Call::Get => "get",
            Call::Put => "put",
        })
    }
}

/// The items that RDMA may place.
pub const BINDING: Table<'static> = Table(&[
    Entry {
        procedure: Call::Echo.procedure(),
        arguments: None,
        results: None,
        reply: Reply::Unknown,
    },
    Entry {
        procedure: Call::Get.procedure(),
        arguments: None,
        results: Some(|s| s.item()),
        reply: Reply::Of(|_| Ok(ReplySize { stream: 4, item: MAX_SIZE })),
    },
    Entry {
        procedure: Call::Put.procedure(),
        arguments: Some(|s| {
            s.u64()?;
            s.u64()?;
            s.flag()?;
            s.item()
        }),
        results: None,
        reply: Reply::Fixed(8),
    },
]);

/// Bytes, with the seed and number that determine them.
struct Named {
    seed: u64,
    number: u64,
    bytes: Buffer,
}

/// The server's side of the program.
pub struct Bench {
    memory: Memory,
    /// The result of the last GET.
    last: Option<Named>,
}

impl Bench {
    /// Makes a program that takes its items from a server's `memory`.
    pub fn new(memory: Memory) -> Bench {
        Bench { memory, last: None }
    }

    fn carry_out(&mut self, request: &Request) -> Result<Body, Refusal> {
        let (mut arguments, mut results) = (request.arguments.reader(), Body::new());
        match request.procedure {
            p if p == Call::Echo.procedure() => {
                let data = arguments.opaque(MAX_SIZE)?;
                arguments.finish()?;
                match data {
                    Opaque::Bytes(bytes) => results.opaque(bytes)?,
                    Opaque::Apart(buffer) => results.item(buffer.clone())?,
                };
            }
            p if p == Call::Get.procedure() => {
                let (seed, number) = (arguments.u64()?, arguments.u64()?);
                let len = arguments.u32()?;
                arguments.finish()?;
                results.item(self.named(seed, number, len)?)?;
            }
            p if p == Call::Put.procedure() => {
                let (seed, number) = (arguments.u64()?, arguments.u64()?);
                let compare = arguments.flag()?;
                let data = arguments.opaque(MAX_SIZE)?;
                arguments.finish()?;
                let wrong = match compare {
                    true => pattern::first_difference(&data.to_vec(), seed, number),
                    false => None,
                };
                let at = wrong.map_or(0, |at| u32::try_from(at).unwrap_or(u32::MAX));
                results.u32(wrong.is_some().into())?.u32(at)?;
            }
            _ => return Err(Refusal::ProcUnavail),
        }
        Ok(results)
    }

    fn named(&mut self, seed: u64, number: u64, len: u32) -> Result<Buffer, Refusal> {
        if len > MAX_SIZE {
            return Err(Refusal::GarbageArgs);
        }
        let len = len as usize;
        let is = |n: &&Named| (n.seed, n.number, n.bytes.len()) == (seed, number, len);
        if let Some(named) = self.last.as_ref().filter(is) {
            return Ok(named.bytes.clone());
        }
        // The old item's memory may be needed for the new one.
        self.last = None;
        let mut bytes = vec![0; len];
        pattern::fill(&mut bytes, seed, number);
        let bytes = self.memory.take_copy(&bytes)?;
        self.last = Some(Named { seed, number, bytes: bytes.clone() });
        Ok(bytes)
    }
}

impl Program for Bench {
    fn call(&mut self, request: Request) {
        let outcome = self.carry_out(&request);
        request.reply(outcome);
    }

    /// All procedures may run again: none changes anything.
    fn repeat(&self, _procedure: Procedure) -> Repeat {
        Repeat::Always
    }
}
