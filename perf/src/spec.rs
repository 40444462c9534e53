//! The specification of a benchmark.
//!
//! Every type here parses from the words of the command line, and refuses senseless values before
//! anything starts: a [`BenchSpec`] that [`check`](BenchSpec::check) accepts can run.

use core::fmt;
use std::time::Duration;

use heddle_base::units::{Probability, Size, Sizes, UnitError};
use heddle_ctl::MTU;
use heddle_dataplane::Offloads;
use heddle_services::bench::{MAX_DEPTH, MAX_SIZE, Mode, Op, UnknownWord};
pub use heddle_tcp::{Congestion, ConnConfig, Ecn, Pacing};
use heddle_verbs::MpaOptions;
use serde::{Deserialize, Serialize};

use crate::workload::{self, Peer, Run};

mod rate;

pub use rate::Rate;

/// The medium that carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Two ports of this process, connected by rings (`net_ring`).
    Ring,
    /// The same, where frames of many segments, and without checksums, pass as they are.
    #[serde(rename = "ring-tso")]
    RingTso,
    /// Two ports of this process, connected by a vhost-user socket (`net_vhost`, `net_virtio_user`).
    Vhost,
    /// No medium: client and server are two applications of one RNIC.
    Loop,
    /// A device given on the command line.
    Vdev,
    /// The RNIC of another process on this machine, through its control socket.
    Socket,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::Ring => "ring",
            Wire::RingTso => "ring-tso",
            Wire::Vhost => "vhost",
            Wire::Loop => "loop",
            Wire::Vdev => "vdev",
            Wire::Socket => "socket",
        })
    }
}

/// The condition that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The run ends after this number of operations per connection.
    Iters(u64),
    /// The run ends after this time.
    Elapsed(Duration),
}

/// The faults that the wire injects into frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The share of frames that the wire loses.
    pub loss: Probability,
    /// The share of frames that the wire delivers after later ones.
    pub reorder: Probability,
    /// The share of frames that the wire delivers twice.
    pub dup: Probability,
    /// The seed by which the wire chooses the frames.
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

    /// Returns true if every frame arrives, once and in order.
    pub fn is_none(&self) -> bool {
        self.loss == Probability::ZERO
            && self.reorder == Probability::ZERO
            && self.dup == Probability::ZERO
    }
}

/// A benchmark, for one message size or for several in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSpec {
    /// The operation to measure.
    pub op: Op,
    /// The quantity to measure.
    pub mode: Mode,
    /// Bytes of a message.
    pub sizes: Sizes,
    /// The number of connections.
    pub qps: u32,
    /// Operations outstanding per connection; [`BenchSpec::depth_for`] gives the number for `None`.
    pub depth: Option<u32>,
    /// Bytes outstanding over all connections where `depth` is `None`: [`OUTSTANDING`], or
    /// [`OUTSTANDING_INLINE`] where one thread does everything.
    pub outstanding: u32,
    /// The condition that ends the run of each size.
    pub until: Until,
    /// The MPA options with which the client asks for its connections.
    pub mpa: MpaOptions,
    /// The size of the largest IP packet in bytes.
    pub mtu: u16,
    /// The medium between two RNICs of this process: [`Wire::Ring`], [`Wire::RingTso`],
    /// [`Wire::Vhost`], or [`Wire::Vdev`] with devices that the caller names.
    pub wire: Wire,
    /// The work that the ports may do by themselves.
    pub offloads: Offloads,
    /// Settings of TCP, of both sides if both are in this process.
    pub tcp: ConnConfig,
    /// The faults that the wire injects into frames.
    pub faults: Faults,
    /// True if the ends compare every byte.
    pub verify: bool,
    /// True if the server carries out operations as well, on the same connections.
    pub bidirectional: bool,
    /// The time at the start of each run that is not measured; `None` for a tenth of the duration,
    /// half a second at most.
    pub warmup: Option<Duration>,
    /// The time after which a run reports the figures so far, again and again.
    pub interval: Option<Duration>,
    /// The rate at which operations are due; `None` for as many as there can be.
    pub rate: Option<Rate>,
    /// True if the latency of a ping-pong is half of the round trip.
    pub half: bool,
    /// The program at the other end.
    pub peer: Peer,
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
            wire: Wire::Ring,
            offloads: Offloads::default(),
            tcp: ConnConfig::default(),
            faults: Faults::NONE,
            verify: false,
            bidirectional: false,
            warmup: None,
            interval: None,
            rate: None,
            half: false,
            peer: Peer::Bench,
        }
    }
}

/// Bytes outstanding between two processors: each end works in bursts, and the bytes in flight from
/// one to the other have to outlast the other's burst, or one of them waits.
pub const OUTSTANDING: u32 = 1 << 20;
/// Bytes outstanding where one thread does everything: no bytes are in flight while the thread
/// works, and fewer bytes stay in nearer caches.
pub const OUTSTANDING_INLINE: u32 = 256 << 10;
/// The highest number of connections.
pub const MAX_QPS: u32 = 16 * 1024;
/// The most memory in bytes that the two sides of all connections may need together.
pub const MAX_MEMORY: u64 = 1 << 30;

/// The longest duration and warm-up in milliseconds: a day.
const MAX_TIME: u64 = 86_400_000;
/// The shortest interval in milliseconds. Closing an interval takes the client tens of microseconds.
const MIN_INTERVAL: u64 = 10;
/// The highest number of intervals of a run.
const MAX_INTERVALS: u64 = 100_000;
/// The highest rate in operations per second.
const MAX_RATE: f64 = 1e10;

/// Why a specification cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A word is unknown.
    #[error(transparent)]
    Unknown(#[from] UnknownWord),
    /// A text is not a number with a unit.
    #[error(transparent)]
    Malformed(#[from] UnitError),
    /// A number is out of its range.
    #[error("{what} {given} is not between {min} and {max}")]
    Range {
        /// The name of the quantity.
        what: &'static str,
        /// The number on the command line.
        given: u64,
        /// The smallest permitted number.
        min: u64,
        /// The largest permitted number.
        max: u64,
    },
    /// Two options exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The benchmark needs more memory than permitted.
    #[error(
        "size, depth and connections need {0} bytes of registered memory, more than {MAX_MEMORY}"
    )]
    Memory(u64),
}

impl BenchSpec {
    /// Returns the operations outstanding per connection, as given or by default: one for latency,
    /// otherwise enough to reach [`BenchSpec::outstanding`] over all connections, within 4 to 128.
    pub fn depth_for(&self, size: Size) -> u32 {
        match (self.depth, self.mode) {
            (Some(d), _) => d,
            (None, Mode::Lat) => 1,
            (None, Mode::Bw | Mode::Rate) => {
                (self.outstanding / size.0.max(1) / self.qps.max(1)).clamp(4, 128)
            }
        }
    }

    /// Refuses a specification that cannot run.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |what, given: u64, min: u64, max: u64| {
            if (min..=max).contains(&given) { Ok(()) } else { Err(range_of(what, given, min, max)) }
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
                range("duration in milliseconds", ms, 1, MAX_TIME)?;
            }
        }
        self.check_times()?;
        if self.half && self.mode != Mode::Lat {
            return Err(SpecError::Conflict(
                "half round trips are latencies: --half takes mode lat",
            ));
        }
        self.check_bidirectional()?;
        for size in self.sizes.iter() {
            range("size", size.0.into(), 0, MAX_SIZE.into())?;
            self.check_size(size)?;
        }
        if self.peer == Peer::Perftest {
            if self.sizes.iter().count() > 1 {
                return Err(SpecError::Conflict(
                    "a server of perftest ends after one size: give --size",
                ));
            }
            for size in self.sizes.iter() {
                workload::perftest::program(&Run::new(self, size)).map_err(SpecError::Conflict)?;
            }
        }
        Ok(())
    }

    /// Refuses a run in both directions of what has only one.
    fn check_bidirectional(&self) -> Result<(), SpecError> {
        if !self.bidirectional {
            return Ok(());
        }
        Err(SpecError::Conflict(if !self.op.is_bidirectional() || self.mode == Mode::Lat {
            "--bidirectional goes with write and read, in modes bw and rate"
        } else if self.verify || self.rate.is_some() {
            "--bidirectional does not go with --verify and --rate"
        } else if self.peer == Peer::Perftest {
            "--bidirectional goes with the perf service, not with --perftest"
        } else {
            return Ok(());
        }))
    }

    /// Refuses a warm-up or an interval that does not fit the duration.
    fn check_times(&self) -> Result<(), SpecError> {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        if let Some(warmup) = self.warmup {
            if matches!(self.until, Until::Iters(_)) {
                return Err(SpecError::Conflict(
                    "a warm-up goes with a duration, not with a number of operations",
                ));
            }
            if ms(warmup) > MAX_TIME {
                return Err(range_of("warm-up in milliseconds", ms(warmup), 0, MAX_TIME));
            }
        }
        if let Some(interval) = self.interval {
            let most = match self.until {
                Until::Elapsed(d) => ms(d),
                Until::Iters(_) => MAX_TIME,
            };
            if !(MIN_INTERVAL..=most.max(MIN_INTERVAL)).contains(&ms(interval)) {
                let what = "interval in milliseconds";
                return Err(range_of(what, ms(interval), MIN_INTERVAL, most.max(MIN_INTERVAL)));
            }
            if most / ms(interval) > MAX_INTERVALS && matches!(self.until, Until::Elapsed(_)) {
                return Err(SpecError::Conflict("a run has at most 100000 intervals"));
            }
        }
        Ok(())
    }

    /// Refuses a rate that is no rate of this size.
    fn check_rate(&self, size: Size) -> Result<(), SpecError> {
        let Some(rate) = self.rate else { return Ok(()) };
        if size.0 == 0 && matches!(rate, Rate::Bytes(_)) {
            return Err(SpecError::Conflict(
                "a rate in bytes or bits does not go with messages of size 0",
            ));
        }
        // A client that does nothing for half a minute counts as stalled.
        if rate.ops(size) < 0.1 * f64::from(self.qps) {
            return Err(SpecError::Conflict(
                "the rate is too low: each connection needs an operation every 10 s",
            ));
        }
        if rate.ops(size) > MAX_RATE {
            return Err(SpecError::Conflict("the rate is beyond 10^10 operations per second"));
        }
        Ok(())
    }

    fn check_size(&self, size: Size) -> Result<(), SpecError> {
        self.check_rate(size)?;
        if self.op.fixed_size().is_some_and(|fixed| size != fixed) {
            return Err(SpecError::Conflict(if self.op.is_atomic() {
                "an Atomic Operation takes 8 bytes: fetch-add and cmp-swap go with size 8 only"
            } else {
                "Immediate Data has 8 bytes: send-imm goes with size 8 only"
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
        if size.0 == 0 && self.bidirectional {
            return Err(SpecError::Conflict("--bidirectional does not go with size 0"));
        }
        let directions = if self.bidirectional { 2 } else { 1 };
        let needs = 2 * directions * self.region(size) * u64::from(self.qps);
        if needs > MAX_MEMORY { Err(SpecError::Memory(needs)) } else { Ok(()) }
    }

    /// Returns the bytes of message buffers per connection and side: one buffer for each
    /// outstanding operation.
    pub fn region(&self, size: Size) -> u64 {
        u64::from(size.0.max(1)) * u64::from(self.depth_for(size))
    }
}

fn range_of(what: &'static str, given: u64, min: u64, max: u64) -> SpecError {
    SpecError::Range { what, given, min, max }
}

#[cfg(test)]
mod tests;
