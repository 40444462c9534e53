//! The counters of a worker.

use heddle_engine::{Counters, Engine};
use heddle_hub::memory::MemoryCounters;

use super::steer::SteerCounters;
use super::{Worker, WorkerCounters, WorkerReport, WorkerTimes};
use crate::fault::FaultCounters;
use crate::queue::{RxCounters, TxCounters};
use crate::rx::RxMbuf;
use crate::tx::TxBuildCounters;

/// All counters and measurements of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSnapshot<C> {
    /// Counters of the worker itself.
    pub worker: WorkerCounters,
    /// Counters of the engine.
    pub engine: C,
    /// Counters of the construction of frames.
    pub sink: TxBuildCounters,
    /// Counters of copies into and out of registered memory.
    pub memory: MemoryCounters,
    /// Counters of the receive queue.
    pub rx: RxCounters,
    /// Counters of the transmit queue.
    pub tx: TxCounters,
    /// Counters of frames that passed between this worker and others of its port.
    pub steer: SteerCounters,
    /// Counters of deliberate faults.
    pub fault: FaultCounters,
    /// The worker's measurements.
    pub times: WorkerTimes,
    /// Free and used buffers of the pool of its port. [`add`](WorkerSnapshot::add) leaves them out,
    /// because workers of one port have one pool.
    pub buffers: (u32, u32),
}

impl<C: Counters> WorkerSnapshot<C> {
    /// Calls `f` with group, name, help text and value of every counter.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, &'static str, u64)) {
        self.worker.for_each(|n, h, v| f("worker", n, h, v));
        self.engine.for_each(&mut f);
        self.sink.for_each(|n, h, v| f("sink", n, h, v));
        self.memory.for_each(|n, h, v| f("memory", n, h, v));
        self.rx.for_each(|n, h, v| f("rx", n, h, v));
        self.tx.for_each(|n, h, v| f("tx", n, h, v));
        self.steer.for_each(|n, h, v| f("steer", n, h, v));
        self.fault.for_each(|n, h, v| f("fault", n, h, v));
    }

    /// Adds every counter of `other` to this snapshot.
    pub fn add(&mut self, other: &WorkerSnapshot<C>) {
        let WorkerSnapshot {
            worker,
            engine,
            sink,
            memory,
            rx,
            tx,
            steer,
            fault,
            times,
            buffers: _,
        } = other;
        self.worker.add(worker);
        self.engine.add(engine);
        self.sink.add(sink);
        self.memory.add(memory);
        self.rx.add(rx);
        self.tx.add(tx);
        self.steer.add(steer);
        self.fault.add(fault);
        self.times.add(times);
    }
}

/// Connections, or queue pairs, that the engine looks at in one turn for a snapshot.
const SNAPSHOT_TURN: usize = 64;

/// Snapshots that the control plane has asked for, and the sum that waits for room for its report.
#[derive(Debug)]
pub(super) struct Snapshots<C> {
    asked: usize,
    sum: Option<C>,
}

impl<C> Snapshots<C> {
    pub(super) fn new() -> Snapshots<C> {
        Snapshots { asked: 0, sum: None }
    }

    /// Notes one more request. Each snapshot begins after those before it are answered, so that it
    /// includes everything counted before its request.
    pub(super) fn ask(&mut self) {
        self.asked += 1;
    }
}

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Adds some more connections to the snapshot in progress; returns true if there is one.
    #[inline]
    pub(super) fn count_on(&mut self) -> bool {
        if self.snapshots.asked == 0 {
            return false;
        }
        self.count_some();
        true
    }

    #[cold]
    fn count_some(&mut self) {
        let Worker { snapshots, engine, .. } = self;
        snapshots.sum = snapshots.sum.take().or_else(|| engine.poll_counters(SNAPSHOT_TURN));
        let Some(sum) = snapshots.sum else { return };
        if self.reports_are_full() {
            return;
        }
        self.snapshots = Snapshots { asked: self.snapshots.asked - 1, sum: None };
        let snapshot = Box::new(self.snapshot_with(sum));
        self.reports.send(WorkerReport::Snapshot(snapshot));
    }

    /// Returns everything counted so far. This function looks at every connection, so it is for a
    /// caller that runs the worker and has the time.
    pub fn snapshot(&self) -> WorkerSnapshot<E::Counters> {
        self.snapshot_with(self.engine.counters())
    }

    fn snapshot_with(&self, engine: E::Counters) -> WorkerSnapshot<E::Counters> {
        let mut steer = self.rx.steer_counters();
        steer.add(&self.tx.queue().steer_counters());
        WorkerSnapshot {
            worker: self.counters,
            engine,
            sink: self.tx.counters,
            memory: self.mem.counters(),
            rx: self.rx.counters(),
            tx: self.tx.queue().counters(),
            steer,
            fault: self.tx.fault().map(|f| *f.counters()).unwrap_or_default(),
            times: self.watch.times(self.engine.round_trips()),
            buffers: self.tx.buffers(),
        }
    }
}
