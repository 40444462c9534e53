//! Everything an RNIC has counted.

use heddle_dataplane::{PortStats, RestCounters, WorkerSnapshot};

use crate::counters::CtlCounters;

/// Everything an RNIC has counted.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All workers together, those that have ended not counted.
    pub worker: WorkerSnapshot,
    /// The control plane.
    pub ctl: CtlCounters,
    /// All ports together.
    pub port: PortStats,
    /// Each worker, by its number.
    pub workers: Vec<WorkerStatus>,
    /// Each port, by its number.
    pub ports: Vec<PortStatus>,
    /// Each thread that polls workers; none when the RNIC runs inline.
    pub lcores: Vec<LcoreStatus>,
}

/// A thread that polls workers.
#[derive(Clone, Copy, Debug)]
pub struct LcoreStatus {
    /// The processor it is bound to.
    pub lcore: usize,
    /// How it rested.
    pub rest: RestCounters,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Number of the port whose frames it handles.
    pub port: usize,
    /// The processor that its thread is bound to; none when the RNIC runs inline.
    pub lcore: Option<usize>,
    /// What it has counted; none when it has ended, or did not answer in time.
    pub counters: Option<Box<WorkerSnapshot>>,
}

/// One port.
#[derive(Clone, Debug)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// What it has counted.
    pub stats: PortStats,
}

impl Snapshot {
    /// Adds it up.
    pub(crate) fn of(
        workers: Vec<WorkerStatus>,
        ports: Vec<PortStatus>,
        lcores: Vec<LcoreStatus>,
        ctl: CtlCounters,
    ) -> Snapshot {
        let (mut worker, mut port) = (WorkerSnapshot::default(), PortStats::default());
        for w in workers.iter().filter_map(|w| w.counters.as_deref()) {
            worker.add(w);
        }
        for p in &ports {
            port.add(&p.stats);
        }
        Snapshot { worker, ctl, port, workers, ports, lcores }
    }
}
