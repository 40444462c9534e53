//! The operations that a benchmark carries out, and the quantities that it measures.

use core::fmt;
use core::str::FromStr;

use heddle_base::units::Size;
use serde::{Deserialize, Serialize};

/// A text that names none of the operations or modes, with those that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} '{given}' (known: {})", known.join(", "))]
pub struct UnknownWord {
    /// The kind of word that was expected.
    pub what: &'static str,
    /// The word on the command line.
    pub given: String,
    /// The words that are known.
    pub known: &'static [&'static str],
}

/// The operation that the client carries out on the server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// RDMA Write: the client writes to the server's region.
    Write,
    /// RDMA Read: the client reads the server's region.
    Read,
    /// Send: the message takes a receive buffer of the server.
    Send,
    /// RDMA Write followed by Immediate Data (RFC 7306).
    WriteImm,
    /// Immediate Data alone: 8 bytes.
    SendImm,
    /// FetchAdd of 1 to a counter of 64 bits.
    FetchAdd,
    /// CmpSwap on a counter of 64 bits, which replaces the expected number by its successor.
    CmpSwap,
}

impl Op {
    /// All operations.
    pub const ALL: [Op; 7] =
        [Op::Write, Op::Read, Op::Send, Op::WriteImm, Op::SendImm, Op::FetchAdd, Op::CmpSwap];

    /// Returns true if each operation takes a receive buffer of the peer.
    pub fn takes_buffer(self) -> bool {
        matches!(self, Op::Send) || self.is_immediate()
    }

    /// Returns true if the operation delivers Immediate Data.
    pub fn is_immediate(self) -> bool {
        matches!(self, Op::WriteImm | Op::SendImm)
    }

    /// Returns true if this is an Atomic Operation.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CmpSwap)
    }

    /// Returns true if the peer answers the operation, so that its completion brings the requested
    /// data.
    pub fn is_answered(self) -> bool {
        matches!(self, Op::Read) || self.is_atomic()
    }

    /// Returns true if a run may have the operation in both directions at once.
    pub fn is_bidirectional(self) -> bool {
        matches!(self, Op::Write | Op::Read)
    }

    /// Returns the bytes of a message, for an operation with a fixed size.
    pub fn fixed_size(self) -> Option<Size> {
        (self.is_atomic() || self == Op::SendImm).then_some(Size(8))
    }
}

/// The quantity that a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Throughput, with many operations outstanding.
    Bw,
    /// Latency, with one operation outstanding: for `read`, `fetch-add` and `cmp-swap` the time
    /// from posting to completion. The others run a ping-pong, whose figure is the full round trip,
    /// not half of it.
    Lat,
    /// Operations per second, as `bw` with small messages.
    Rate,
}

macro_rules! words {
    ($type:ident, $what:literal, $($word:literal => $value:ident),+) => {
        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(s: &str) -> Result<$type, UnknownWord> {
                match s {
                    $($word => Ok($type::$value),)+
                    _ => Err(UnknownWord {
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
