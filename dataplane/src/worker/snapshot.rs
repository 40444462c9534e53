//! What a worker has counted.

use heddle_iwarp::QpCounters;
use heddle_rnic::RnicCounters;
use heddle_tcp::{ConnCounters, StackCounters};
use heddle_verbs::memory::MemoryCounters;

use super::{Worker, WorkerCounters};
use crate::fault::FaultCounters;
use crate::queue::{RxCounters, TxCounters};
use crate::tx::TxBuildCounters;

/// Everything a worker counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSnapshot {
    /// The worker's own.
    pub worker: WorkerCounters,
    /// The joint of TCP and iWARP.
    pub rnic: RnicCounters,
    /// The TCP/IP stack.
    pub stack: StackCounters,
    /// TCP connections, all together.
    pub tcp: ConnCounters,
    /// Queue pairs, all together.
    pub qps: QpCounters,
    /// Building frames.
    pub sink: TxBuildCounters,
    /// Copies into and out of registered memory.
    pub memory: MemoryCounters,
    /// The receive queue.
    pub rx: RxCounters,
    /// The transmit queue.
    pub tx: TxCounters,
    /// Faults made on purpose.
    pub fault: FaultCounters,
}

impl WorkerSnapshot {
    /// Calls `f` with group, name, help text and value of every counter.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, &'static str, u64)) {
        self.worker.for_each(|n, h, v| f("worker", n, h, v));
        self.rnic.for_each(|n, h, v| f("rnic", n, h, v));
        self.stack.for_each(|n, h, v| f("stack", n, h, v));
        self.tcp.for_each(|n, h, v| f("tcp", n, h, v));
        self.qps.for_each(|n, h, v| f("qp", n, h, v));
        self.sink.for_each(|n, h, v| f("sink", n, h, v));
        self.memory.for_each(|n, h, v| f("memory", n, h, v));
        self.rx.for_each(|n, h, v| f("rx", n, h, v));
        self.tx.for_each(|n, h, v| f("tx", n, h, v));
        self.fault.for_each(|n, h, v| f("fault", n, h, v));
    }
}

impl Worker {
    /// Everything counted so far.
    pub fn snapshot(&self) -> WorkerSnapshot {
        WorkerSnapshot {
            worker: self.counters,
            rnic: *self.rnic.counters(),
            stack: *self.rnic.stack_counters(),
            tcp: self.rnic.conn_counters(),
            qps: self.rnic.qp_counters(),
            sink: self.tx.counters,
            memory: self.mem.counters(),
            rx: *self.rx.counters(),
            tx: *self.tx.queue().counters(),
            fault: self.tx.fault().map(|f| *f.counters()).unwrap_or_default(),
        }
    }
}
