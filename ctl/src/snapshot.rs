//! All counters of an RNIC.

use heddle_dataplane::{PortStats, RestCounters, WorkerSnapshot};

use crate::counters::CtlCounters;

/// All counters of an RNIC, read at about the same time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The sum over all workers that have not ended.
    pub worker: WorkerSnapshot,
    /// Counters of the control plane.
    pub ctl: CtlCounters,
    /// The sum over all ports.
    pub port: PortStats,
    /// Each worker, by its number.
    pub workers: Vec<WorkerStatus>,
    /// Each port, by its number.
    pub ports: Vec<PortStatus>,
    /// Each thread that polls workers; empty when the RNIC runs inline.
    pub lcores: Vec<LcoreStatus>,
}

/// A thread that polls workers.
#[derive(Clone, Copy, Debug)]
pub struct LcoreStatus {
    /// The processor it is bound to.
    pub lcore: usize,
    /// Its times of rest.
    pub rest: RestCounters,
}

/// The counters of a worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Number of the port whose frames the worker handles.
    pub port: usize,
    /// The processor that the worker's thread is bound to; absent when the RNIC runs inline.
    pub lcore: Option<usize>,
    /// Absent when the worker has ended, or did not answer in time.
    pub counters: Option<Box<WorkerSnapshot>>,
}

/// The counters of a port.
#[derive(Clone, Debug)]
pub struct PortStatus {
    /// DPDK's name of the port.
    pub name: String,
    /// Frames, bytes and errors of the port.
    pub stats: PortStats,
}

impl Snapshot {
    /// Adds the workers' and ports' counters up.
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
