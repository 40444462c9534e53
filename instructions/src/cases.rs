//! The cases that the program counts.

use core::fmt;
use core::str::FromStr;

use heddle_base::units::UnitError;
use heddle_dataplane::Eal;
use heddle_perf::hostile::{BURST, Hostile, Victim};
use heddle_services::bench::Op;
use heddle_services::rpc::program::Call;

use crate::calls::{self, By};
use crate::harness::{Harness, HarnessError, Shape, TURN, Wire};
use crate::rpc;

/// Operations outstanding for long messages, and for short messages in a stream.
const LONG_DEPTH: usize = 4;
const SHORT_DEPTH: usize = 64;

/// Bytes of a long and of a short message.
const LONG: usize = 64 << 10;
const SHORT: usize = 8;

/// Bytes of a call that fits into one Send, as its reply does.
const INLINE: usize = 512;

/// Bytes of messages of one FPDU each. The shorter messages share segments; each of the last two
/// fills a segment, at an MTU of 1500 and of 9000.
const FRAMES: [usize; 5] = [64, 256, 1024, 1424, 8924];

/// Bytes of a message of two segments at an MTU of 1500: the first segment takes 1,428 bytes.
const TWO_SEGMENTS: usize = 2000;

/// Connections of the cases with many: enough that workers look ahead.
const MANY: usize = 256;

/// Writes of a visit to one of many connections.
const VISIT: usize = 4;

/// A measured piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Messages of 64 KiB, four outstanding.
    Long {
        /// The kind of operation.
        op: Op,
        /// Bytes of the largest IP packet.
        mtu: u16,
        /// True if FPDUs carry a CRC.
        crc: bool,
    },
    /// Writes of 64 KiB with CRC, and markers both ways, at an MTU of 1500.
    Markers,
    /// Writes of 64 KiB with CRC at an MTU of 1500, between ends that count marks; there are none.
    Accurate,
    /// The same as another case, over IPv6.
    OverIpv6(OverIpv6),
    /// Messages of 64 KiB with CRC, four outstanding, at an MTU of 1500, over a port that cuts
    /// frames into segments, and brings them together.
    Train(Op),
    /// Messages of 8 bytes, one outstanding.
    Single(Op),
    /// Messages of 8 bytes, 64 outstanding.
    Stream(Op),
    /// Messages of 64 KiB, four outstanding, between two applications of one RNIC.
    InsideLong(Op),
    /// Messages of 8 bytes between two applications of one RNIC, 64 outstanding.
    InsideStream(Op),
    /// Writes of one FPDU of this many bytes, with CRC, 64 outstanding.
    Frame(usize),
    /// A pure ACK of one segment, at the sender. The ACK does not complete the message.
    Ack,
    /// A segment ahead of a gap and the segment that closes the gap, at the receiver, with the ACKs
    /// that they cause.
    OutOfOrder,
    /// The same two segments with markers: the receiver places the FPDU ahead of the gap at once.
    PlacedAhead,
    /// A call of RPC-over-RDMA version 2, with CRC at an MTU of 1500: an ECHO of 512 bytes alone,
    /// or items of 64 KiB, four outstanding.
    Rpc(Call),
    /// A call of an application alone: posting or polling, without the rest of the operation.
    Call(calls::Call, By),
    /// Writes of 8 bytes over many connections in turn, four to each.
    Many {
        /// True if both applications are tenants, so that workers take turns by shares.
        tenants: bool,
        /// The number that is counted.
        of: Unit,
    },
    /// A frame of an attacker, and what the stack sends because of it.
    Hostile {
        /// The kind of frame.
        kind: Hostile,
        /// True for frames over IPv6.
        is_ipv6: bool,
    },
    /// A connection made and closed, including the MPA start-up but not the creation of its queue
    /// pairs.
    Connect,
}

/// The cases that exist over IPv6 as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverIpv6 {
    /// Writes of 64 KiB with CRC at an MTU of 1500.
    Long,
    /// Writes of 8 bytes, one outstanding.
    Single,
    /// Writes of 8 bytes, 64 outstanding.
    Stream,
    /// A pure ACK.
    Ack,
    /// A connection made and closed.
    Connect,
}

impl OverIpv6 {
    const ALL: [OverIpv6; 5] =
        [OverIpv6::Long, OverIpv6::Single, OverIpv6::Stream, OverIpv6::Ack, OverIpv6::Connect];

    /// Returns the case over IPv4.
    fn over_ipv4(self) -> Case {
        match self {
            OverIpv6::Long => Case::Long { op: Op::Write, mtu: 1500, crc: true },
            OverIpv6::Single => Case::Single(Op::Write),
            OverIpv6::Stream => Case::Stream(Op::Write),
            OverIpv6::Ack => Case::Ack,
            OverIpv6::Connect => Case::Connect,
        }
    }
}

/// The thing that a case counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Instructions for each operation.
    Instructions,
    /// Lines of memory that each visit to a connection brings into the cache: those of both ends
    /// that belong to the connection, because the cache holds the state of few connections.
    Lines,
}

const OPS: [Op; 3] = [Op::Write, Op::Read, Op::Send];

impl Case {
    /// Returns every case.
    pub(crate) fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for op in OPS {
            for mtu in [1500, 9000] {
                all.extend([true, false].map(|crc| Case::Long { op, mtu, crc }));
            }
        }
        all.extend(OPS.map(Case::Train));
        all.extend(OPS.map(Case::Single));
        all.extend(OPS.map(Case::Stream));
        all.push(Case::Single(Op::FetchAdd));
        all.extend([Op::FetchAdd, Op::CmpSwap, Op::SendImm, Op::WriteImm].map(Case::Stream));
        all.extend(FRAMES.map(Case::Frame));
        all.extend(OPS.map(Case::InsideLong));
        all.extend(OPS.map(Case::InsideStream));
        all.extend(Call::ALL.map(Case::Rpc));
        all.extend(
            calls::Call::ALL
                .into_iter()
                .flat_map(|call| [By::Rust, By::Ibverbs].map(|by| Case::Call(call, by))),
        );
        all.extend([false, true].map(|tenants| Case::Many { tenants, of: Unit::Instructions }));
        all.push(Case::Many { tenants: false, of: Unit::Lines });
        let hostile = |is_ipv6| Hostile::ALL.map(|kind| Case::Hostile { kind, is_ipv6 });
        all.extend([false, true].into_iter().flat_map(hostile));
        all.extend([Case::Markers, Case::Accurate, Case::Ack]);
        all.extend([Case::OutOfOrder, Case::PlacedAhead, Case::Connect]);
        all.extend(OverIpv6::ALL.map(Case::OverIpv6));
        all
    }

    /// Returns what is counted.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Case::Many { of, .. } => of,
            _ => Unit::Instructions,
        }
    }

    /// Runs the case. Returns the number of operations that were measured.
    pub(crate) fn run(self, eal: &Eal) -> Result<u64, HarnessError> {
        self.run_as(eal, Shape::default())
    }

    /// Runs the case; `base` has the settings that the case leaves open.
    fn run_as(self, eal: &Eal, base: Shape) -> Result<u64, HarnessError> {
        match self {
            Case::OverIpv6(case) => case.over_ipv4().run_as(eal, Shape { is_ipv6: true, ..base }),
            Case::Long { op, mtu, crc } => {
                let shape = Shape { mtu, crc, size: LONG, depth: LONG_DEPTH, ..base };
                stream(eal, shape, op, 256, 256)
            }
            Case::Markers => {
                let shape =
                    Shape { size: LONG, depth: LONG_DEPTH, markers: true, ..Shape::default() };
                stream(eal, shape, Op::Write, 256, 256)
            }
            Case::Accurate => {
                let shape =
                    Shape { size: LONG, depth: LONG_DEPTH, accurate: true, ..Shape::default() };
                stream(eal, shape, Op::Write, 256, 256)
            }
            Case::Train(op) => {
                let shape =
                    Shape { size: LONG, depth: LONG_DEPTH, uncut: true, ..Shape::default() };
                stream(eal, shape, op, 256, 256)
            }
            Case::Single(op) => {
                // The receiver holds back the ACK that completes the operation. The delay is
                // shorter than usual: otherwise the count would consist of a thousand idle turns.
                let ack_delay = 4 * TURN;
                let shape = Shape { size: SHORT, depth: 1, ack_delay, ..base };
                stream(eal, shape, op, 512, 2048)
            }
            Case::Stream(op) => {
                let shape = Shape { size: SHORT, depth: SHORT_DEPTH, ..base };
                stream(eal, shape, op, 4096, 8192)
            }
            Case::InsideLong(op) => {
                let shape = Shape { size: LONG, depth: LONG_DEPTH, ..inside() };
                stream(eal, shape, op, 256, 256)
            }
            Case::InsideStream(op) => {
                let shape = Shape { size: SHORT, depth: SHORT_DEPTH, ..inside() };
                stream(eal, shape, op, 4096, 8192)
            }
            Case::Frame(size) => {
                let mtu = if size > 1424 { 9000 } else { 1500 };
                let shape = Shape { mtu, crc: true, size, depth: SHORT_DEPTH, ..Shape::default() };
                stream(eal, shape, Op::Write, 1024, 2048)
            }
            Case::Ack => repeat(eal, base, Harness::ack),
            Case::OutOfOrder => repeat(eal, base, Harness::out_of_order),
            Case::PlacedAhead => {
                repeat(eal, Shape { markers: true, ..base }, Harness::out_of_order)
            }
            Case::Rpc(call) => {
                let (size, depth) = match call {
                    Call::Echo => (INLINE, 1),
                    Call::Get | Call::Put => (LONG, LONG_DEPTH),
                };
                rpc::stream(eal, call, (size, depth), 256, 512)
            }
            Case::Call(call, by) => calls::run(eal, call, by),
            Case::Many { tenants, of } => many(eal, tenants, of),
            Case::Hostile { kind, is_ipv6 } => hostile(kind, is_ipv6),
            Case::Connect => {
                let mut harness = Harness::open(eal, Shape { size: SHORT, depth: 4, ..base })?;
                for i in 0..8 + 64 {
                    harness.connect_and_close(i >= 8)?;
                }
                Ok(64)
            }
        }
    }
}

/// Measures frames of an attacker, after a flood of SYNs has taken all entries for half-open
/// connections.
fn hostile(kind: Hostile, is_ipv6: bool) -> Result<u64, HarnessError> {
    const FRAMES: usize = 64 * BURST;
    let mut victim =
        Victim::new(is_ipv6).ok_or(HarnessError::Stalled("the connection of a stack"))?;
    let flood = victim.frames(Hostile::Syn, FRAMES);
    victim.take(&flood);
    let frames = victim.frames(kind, FRAMES);
    victim.take(&frames[..BURST]);
    crate::measured(|| victim.take(&frames));
    Ok(FRAMES as u64)
}

fn inside() -> Shape {
    Shape { crc: false, wire: Wire::Inside, ..Shape::default() }
}

/// Measures `ops` operations, after `warm` unmeasured ones.
fn stream(eal: &Eal, shape: Shape, op: Op, warm: usize, ops: usize) -> Result<u64, HarnessError> {
    let mut harness = Harness::open(eal, shape)?;
    harness.connect()?;
    harness.run(op, warm)?;
    crate::measured(|| harness.run(op, ops))?;
    Ok(ops as u64)
}

/// Measures visits to many connections.
fn many(eal: &Eal, tenants: bool, of: Unit) -> Result<u64, HarnessError> {
    const ROUNDS: usize = 8;
    let shape = Shape {
        size: SHORT,
        depth: VISIT,
        conns: MANY,
        tenants,
        // As in `Case::Single`.
        ack_delay: 4 * TURN,
        ..Shape::default()
    };
    let mut harness = Harness::open(eal, shape)?;
    let pairs: Vec<_> = (0..MANY).map(|_| harness.connect_another()).collect::<Result<_, _>>()?;
    let clients: Vec<_> = pairs.iter().map(|[client, _]| client).collect();
    harness.visit(&clients, ROUNDS * MANY)?;
    crate::measured(|| harness.visit(&clients, ROUNDS * MANY))?;
    let visits = ROUNDS * MANY;
    Ok(match of {
        Unit::Instructions => visits * VISIT,
        Unit::Lines => visits,
    } as u64)
}

/// Repeats a piece of work that measures a part of itself: 512 times, after 64 unmeasured times.
fn repeat(
    eal: &Eal,
    base: Shape,
    mut piece: impl FnMut(&mut Harness, bool) -> Result<(), HarnessError>,
) -> Result<u64, HarnessError> {
    const WARM: usize = 64;
    const OPS: usize = 512;
    let wire = Wire::Tapped;
    let shape = Shape { size: TWO_SEGMENTS, depth: 1, wire, ..base };
    let mut harness = Harness::open(eal, shape)?;
    harness.connect()?;
    for i in 0..WARM + OPS {
        piece(&mut harness, i >= WARM)?;
    }
    Ok(OPS as u64)
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Case::Long { op, mtu, crc } => {
                write!(f, "{op}-64k-mtu{mtu}-{}", if crc { "crc" } else { "nocrc" })
            }
            Case::OverIpv6(case) => write!(f, "{}-ipv6", case.over_ipv4()),
            Case::Train(op) => write!(f, "{op}-64k-train"),
            Case::Single(op) => write!(f, "{}-single", short(op)),
            Case::Stream(op) => write!(f, "{}-stream", short(op)),
            Case::InsideLong(op) => write!(f, "{op}-64k-inside"),
            Case::InsideStream(op) => write!(f, "{}-stream-inside", short(op)),
            Case::Frame(size) => write!(f, "write-{size}-frame"),
            Case::Markers => f.write_str("write-64k-mtu1500-crc-markers"),
            Case::Accurate => f.write_str("write-64k-mtu1500-crc-accurate-ecn"),
            Case::Ack => f.write_str("ack"),
            Case::OutOfOrder => f.write_str("out-of-order"),
            Case::PlacedAhead => f.write_str("out-of-order-markers"),
            Case::Rpc(Call::Echo) => write!(f, "rpc-echo-{INLINE}-single"),
            Case::Rpc(call) => write!(f, "rpc-{call}-64k"),
            Case::Call(call, By::Rust) => write!(f, "{call}"),
            Case::Call(call, By::Ibverbs) => write!(f, "{call}-ibverbs"),
            Case::Many { tenants, of } => {
                let tenants = if tenants { "-tenants" } else { "" };
                let of = if of == Unit::Lines { "-lines" } else { "" };
                write!(f, "write-{SHORT}-many{tenants}{of}")
            }
            Case::Hostile { kind, is_ipv6 } => {
                write!(f, "hostile-{kind}{}", if is_ipv6 { "-ipv6" } else { "" })
            }
            Case::Connect => f.write_str("connect"),
        }
    }
}

/// Returns the name of an operation of a short message, with its size where several sizes exist.
fn short(op: Op) -> String {
    match op {
        Op::SendImm => "immediate".into(),
        Op::FetchAdd | Op::CmpSwap => op.to_string(),
        Op::Write | Op::Read | Op::Send | Op::WriteImm => format!("{op}-{SHORT}"),
    }
}

impl FromStr for Case {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Case, UnitError> {
        Case::all().into_iter().find(|c| c.to_string() == s).ok_or_else(|| UnitError {
            given: s.into(),
            expected: "a case (the file of figures names them)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_case_parses_back_from_its_own_name() {
        let all = Case::all();
        for c in &all {
            assert_eq!(c.to_string().parse::<Case>().as_ref(), Ok(c));
        }
        assert!("write-64k".parse::<Case>().is_err());
    }
}
