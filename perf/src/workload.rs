//! The traffic of a benchmark: its client, and the runs of a specification.
//!
//! [`heddle_services::bench`] has the server and the messages by which the two ends set up a run.
//! The thread that polls the RNIC drives both ends: [`Client::step`] and `BenchServer::step` never
//! block, so they run on one thread, on two, or at the other end of a pinned worker's rings.

pub mod client;
pub(crate) mod perftest;

pub use client::{Client, Interval, Outcome, ReverseOutcome, WorkloadError};
pub use perftest::PerftestClient;

use core::time::Duration;

use heddle_base::units::Size;
use heddle_services::Step;
use heddle_services::bench::{Mode, Op};
use heddle_verbs::MpaOptions;

use crate::spec::{BenchSpec, Until};

/// The end that measures. A thread calls [`step`](Workload::step), with the polls of the RNIC in
/// between, until the run is done.
pub trait Workload {
    /// Does the work that is due. After [`Step::Done`] no work is left.
    ///
    /// # Errors
    /// The reason for which the run has failed.
    fn step(&mut self) -> Result<Step, WorkloadError>;

    /// Returns the measured figures, which are final after the run is done.
    fn outcome(&self) -> Outcome;

    /// Returns the number of operations measured so far.
    fn ops(&self) -> u64;

    /// Returns true after the warm-up, from the beginning of the first interval on.
    fn is_measuring(&self) -> bool;

    /// Returns the intervals of the run that have ended since the last call.
    fn take_intervals(&mut self) -> Vec<Interval>;

    /// Gives up: closes the open connections, without waiting.
    fn abandon(&mut self);
}

/// The program at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// [`BenchServer`](heddle_services::bench::BenchServer).
    #[default]
    Bench,
    /// The server of a program of perftest.
    Perftest,
}

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
    /// True if the server carries out operations as well.
    pub bidirectional: bool,
    /// The seed that determines the bytes of messages.
    pub seed: u64,
    /// The time at the start that is not measured; `None` for a tenth of the duration, half a
    /// second at most.
    pub warmup: Option<Duration>,
    /// The time after which the client reports the figures so far, again and again.
    pub interval: Option<Duration>,
    /// The operations per second of all connections together; `None` for as many as there can be.
    pub rate: Option<f64>,
    /// The program at the other end.
    pub peer: Peer,
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
            bidirectional: spec.bidirectional,
            seed: spec.faults.seed,
            warmup: spec.warmup,
            interval: spec.interval,
            rate: spec.rate.map(|rate| rate.ops(size)),
            peer: spec.peer,
        }
    }

    /// Returns the time at the start that is not measured.
    pub fn warm_up(&self) -> Duration {
        match self.until {
            Until::Elapsed(d) => self.warmup.unwrap_or((d / 10).min(Duration::from_millis(500))),
            Until::Iters(_) => Duration::ZERO,
        }
    }

    /// Returns the bytes of all slots.
    fn region(&self) -> usize {
        self.size as usize * self.depth as usize
    }
}
