//! What is to be measured.
//!
//! Every type here parses from the words of the command line, and refuses what makes no sense
//! before anything is started: a [`BenchSpec`] that [`check`](BenchSpec::check) accepts can be run.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

use heddle_verbs::MpaOptions;
use serde::{Deserialize, Serialize};

mod units;

pub use units::{Probability, Size, Sizes, Span};

/// What the client asks of the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
    /// RDMA Write with Immediate Data behind it (RFC 7306).
    WriteImm,
    /// Immediate Data alone: 8 octets.
    SendImm,
    /// FetchAdd of 1 to a counter of 64 bits.
    FetchAdd,
    /// CmpSwap of a counter of 64 bits for the number after the one expected there.
    CmpSwap,
}

impl Op {
    /// All there are.
    pub const ALL: [Op; 7] =
        [Op::Write, Op::Read, Op::Send, Op::WriteImm, Op::SendImm, Op::FetchAdd, Op::CmpSwap];

    /// Whether each takes a receive buffer of the peer's.
    pub fn takes_buffer(self) -> bool {
        matches!(self, Op::Send) || self.is_immediate()
    }

    /// Whether it hands over Immediate Data.
    pub fn is_immediate(self) -> bool {
        matches!(self, Op::WriteImm | Op::SendImm)
    }

    /// Whether it is an Atomic Operation.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CmpSwap)
    }

    /// Whether the peer answers it: its completion has what was asked for.
    pub fn is_answered(self) -> bool {
        matches!(self, Op::Read) || self.is_atomic()
    }

    /// Octets of a message, for an operation that leaves no choice.
    pub fn fixed_size(self) -> Option<Size> {
        (self.is_atomic() || self == Op::SendImm).then_some(Size(8))
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Throughput, with many operations outstanding.
    Bw,
    /// Latency, with one operation outstanding. For `read`, `fetch-add` and `cmp-swap` from posting
    /// to completion. For the others a ping-pong: the figure is the full round trip, not half of it.
    Lat,
    /// Operations per second, as `bw` with small messages.
    Rate,
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Two ports of this process, joined by rings (`net_ring`).
    Ring,
    /// None: client and server are two applications of one RNIC.
    Loop,
    /// A device given on the command line.
    Vdev,
    /// The RNIC of another process on this machine, through its control socket.
    Socket,
}

macro_rules! words {
    ($type:ident, $what:literal, $($word:literal => $value:ident),+) => {
        impl FromStr for $type {
            type Err = SpecError;

            fn from_str(s: &str) -> Result<$type, SpecError> {
                match s {
                    $($word => Ok($type::$value),)+
                    _ => Err(SpecError::Unknown {
                        what: $what,
                        given: s.into(),
                        known: &[$($word),+],
                    }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$value => $word),+ })
            }
        }
    };
}
words!(
    Op, "operation",
    "write" => Write,
    "read" => Read,
    "send" => Send,
    "write-imm" => WriteImm,
    "send-imm" => SendImm,
    "fetch-add" => FetchAdd,
    "cmp-swap" => CmpSwap
);
words!(Mode, "mode", "bw" => Bw, "lat" => Lat, "rate" => Rate);

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::Ring => "ring",
            Wire::Loop => "loop",
            Wire::Vdev => "vdev",
            Wire::Socket => "socket",
        })
    }
}

/// When a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After that many operations per connection.
    Iters(u64),
    /// After that time.
    Elapsed(Duration),
}

/// What the wire does to frames on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Frames lost.
    pub loss: Probability,
    /// Frames delivered behind later ones.
    pub reorder: Probability,
    /// Frames delivered twice.
    pub dup: Probability,
    /// From which the frames are chosen.
    pub seed: u64,
}

impl Faults {
    /// A wire without faults.
    pub const NONE: Faults = Faults {
        loss: Probability::ZERO,
        reorder: Probability::ZERO,
        dup: Probability::ZERO,
        seed: 1,
    };

    /// Whether every frame arrives, once and in order.
    pub fn is_none(&self) -> bool {
        self.loss == Probability::ZERO
            && self.reorder == Probability::ZERO
            && self.dup == Probability::ZERO
    }
}

/// One benchmark, for one message size or for several in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSpec {
    /// The operation.
    pub op: Op,
    /// What is measured.
    pub mode: Mode,
    /// Bytes of a message.
    pub sizes: Sizes,
    /// Connections.
    pub qps: u32,
    /// Operations outstanding per connection; [`BenchSpec::depth_for`] says what `None` is.
    pub depth: Option<u32>,
    /// Octets outstanding over all connections where `depth` is `None`: [`OUTSTANDING`], or
    /// [`OUTSTANDING_INLINE`] where one thread does everything.
    pub outstanding: u32,
    /// When each size is over.
    pub until: Until,
    /// How the client asks for its connections.
    pub mpa: MpaOptions,
    /// IP packet size.
    pub mtu: u16,
    /// What the wire does to frames.
    pub faults: Faults,
    /// Compare every byte.
    pub verify: bool,
}

impl Default for BenchSpec {
    /// RDMA Write of 64 KiB on one connection for 2 s, with CRC, MTU 1500.
    fn default() -> Self {
        BenchSpec {
            op: Op::Write,
            mode: Mode::Bw,
            sizes: Sizes::one(Size(64 << 10)),
            qps: 1,
            depth: None,
            outstanding: OUTSTANDING,
            until: Until::Elapsed(Duration::from_secs(2)),
            mpa: MpaOptions::new(),
            mtu: 1500,
            faults: Faults::NONE,
            verify: false,
        }
    }
}

/// Octets outstanding between two processors: each end works in bursts, and what is on the way from
/// one to the other has to outlast the other's burst, or one of them waits.
pub const OUTSTANDING: u32 = 1 << 20;
/// Octets outstanding where one thread does everything: nothing is ever on the way while it works, and
/// less of it stays in nearer caches.
pub const OUTSTANDING_INLINE: u32 = 256 << 10;
/// Largest message.
pub const MAX_SIZE: u32 = 64 << 20;
/// Most connections.
pub const MAX_QPS: u32 = 1024;
/// Most operations outstanding per connection.
pub const MAX_DEPTH: u32 = 4096;
/// Smallest and largest MTU.
pub const MTU: core::ops::RangeInclusive<u16> = 576..=9000;
/// Most memory the two sides of all connections may need together.
pub const MAX_MEMORY: u64 = 1 << 30;

/// Why a specification cannot be run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A word that means nothing here.
    #[error("unknown {what} '{given}' (known: {})", known.join(", "))]
    Unknown {
        /// What it should have been.
        what: &'static str,
        /// As given.
        given: String,
        /// What could have been given.
        known: &'static [&'static str],
    },
    /// Not a number with a unit.
    #[error("'{given}' is not {expected}")]
    Malformed {
        /// As given.
        given: String,
        /// What it should look like.
        expected: &'static str,
    },
    /// A number out of its range.
    #[error("{what} {given} is not between {min} and {max}")]
    Range {
        /// What.
        what: &'static str,
        /// As given.
        given: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// Two things that do not go together.
    #[error("{0}")]
    Conflict(&'static str),
    /// More than fits.
    #[error(
        "size, depth and connections need {0} bytes of registered memory, more than {MAX_MEMORY}"
    )]
    Memory(u64),
}

impl BenchSpec {
    /// Operations outstanding per connection, as given or by default: one for latency, otherwise as
    /// many as make [`BenchSpec::outstanding`] over all connections, but 4 to 128.
    pub fn depth_for(&self, size: Size) -> u32 {
        match (self.depth, self.mode) {
            (Some(d), _) => d,
            (None, Mode::Lat) => 1,
            (None, Mode::Bw | Mode::Rate) => {
                (self.outstanding / size.0.max(1) / self.qps.max(1)).clamp(4, 128)
            }
        }
    }

    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |what, given: u64, min: u64, max: u64| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(SpecError::Range { what, given, min, max })
            }
        };
        range("number of connections", self.qps.into(), 1, MAX_QPS.into())?;
        range("MTU", self.mtu.into(), (*MTU.start()).into(), (*MTU.end()).into())?;
        if let Some(d) = self.depth {
            range("depth", d.into(), 1, MAX_DEPTH.into())?;
        }
        match self.until {
            Until::Iters(n) => range("number of operations", n, 1, 1 << 40)?,
            Until::Elapsed(d) => {
                let ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
                range("duration in milliseconds", ms, 1, 86_400_000)?;
            }
        }
        for size in self.sizes.iter() {
            range("size", size.0.into(), 0, MAX_SIZE.into())?;
            self.check_size(size)?;
        }
        Ok(())
    }

    fn check_size(&self, size: Size) -> Result<(), SpecError> {
        if self.op.fixed_size().is_some_and(|fixed| size != fixed) {
            return Err(SpecError::Conflict(if self.op.is_atomic() {
                "an Atomic Operation takes 8 octets: fetch-add and cmp-swap go with size 8 only"
            } else {
                "Immediate Data has 8 octets: send-imm goes with size 8 only"
            }));
        }
        if self.mode == Mode::Lat {
            if self.depth.is_some_and(|d| d != 1) {
                return Err(SpecError::Conflict("latency is measured with a depth of 1"));
            }
            if size.0 == 0 && self.op == Op::Write {
                return Err(SpecError::Conflict(
                    "a Write ping-pong needs a byte to wait for: size 0 does not go with op write in mode lat",
                ));
            }
        }
        if size.0 == 0 && self.verify {
            return Err(SpecError::Conflict("there is nothing to verify in messages of size 0"));
        }
        let needs = 2 * self.region(size) * u64::from(self.qps);
        if needs > MAX_MEMORY { Err(SpecError::Memory(needs)) } else { Ok(()) }
    }

    /// Bytes of message buffers per connection and side: one for each operation outstanding.
    pub fn region(&self, size: Size) -> u64 {
        u64::from(size.0.max(1)) * u64::from(self.depth_for(size))
    }
}

#[cfg(test)]
mod tests;
