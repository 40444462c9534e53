//! The worker: one thread's share of the RNIC, from the port's queue to the applications' rings.
//!
//! The worker moves frames, work requests and completions, and knows no protocol: that is its
//! [`Engine`]'s. The crate's root has the types of this module for the engine of iWARP over TCP.

use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_base::Instant;
use heddle_engine::{Change, Engine, FairQueue, QueuePair as _, Untaken};
use heddle_hub::memory::{RegionMemory, RegionTable};
use heddle_mr::{MrTable, Pins};
use heddle_rings::Entry;
use heddle_rings::worker::WorkerQp;
use heddle_shm::Waker;
use heddle_types::{AppId, ConnId};

use crate::extmem::ExternalMemory;
use crate::rx::RxMbuf;
use crate::tx::Tx;
use crate::{Clock, FaultInjector, Mbuf, Mempool, RxQueue};

mod ahead;
mod commands;
mod completions;
mod control;
mod ending;
mod inspect;
mod queues;
mod requests;
mod ring;
mod snapshot;
pub mod steer;
#[cfg(test)]
pub(crate) mod tests;
mod times;

pub use control::{Command, CommandSender, NoReport, ReportReceiver, WorkerReport};
pub use inspect::{ConnFacts, INSPECT_MAX};
pub use queues::Doorbells;
pub use snapshot::WorkerSnapshot;
pub use times::WorkerTimes;

use control::ReportSender;
use queues::Queues;
use requests::{NotTaken, Waiting};
use ring::{Consumer, ring};
use snapshot::Snapshots;
use steer::{RxEnd, TxEnd};
use times::Stopwatch;

/// Frames taken from the port at a time.
const RX_BURST: usize = crate::BURST;

/// Orders and reports that may wait in their rings.
const RING: usize = 4096;

/// Datagrams that may wait in their ring: those of several turns of the control plane.
const DATAGRAMS: usize = 512;

/// Segments built before the worker polls the port for received frames again.
#[expect(clippy::cast_possible_truncation, reason = "a burst is short")]
const TX_BURST: u32 = RX_BURST as u32;

heddle_base::counters! {
    /// Counters of a worker, beside those of its port, stack and queue pairs.
    pub struct WorkerCounters {
        /// Times the worker looked for work.
        polls,
        /// Times the worker looked for work and found some.
        busy_polls,
        /// Nanoseconds of turns that found work.
        busy_ns,
        /// Completions that had no room in their CQ; the queue pair ended.
        cq_overflows,
        /// Times orders or events had to wait because the control plane was behind.
        reports_full,
        /// UDP datagrams dropped because the control plane was behind. Datagrams of strangers leave
        /// half of their ring to those about connections.
        datagrams_dropped,
        /// Entries of send and receive queues that no honest application writes; the queue pair
        /// ended.
        wr_broken,
        /// Work requests beyond the depth of their queue; the queue pair ended.
        wr_overruns,
    }
}

/// The parts and settings of a worker.
#[derive(Debug)]
pub struct WorkerConfig<E: Engine> {
    /// The worker's number among the workers of its RNIC.
    pub index: usize,
    /// Limits and settings of the engine.
    pub engine: E::Config,
    /// The source of frames: a receive queue of the port, or an end that [`steer::share`] made of
    /// it.
    pub rx: RxEnd,
    /// The destination of frames: a transmit queue of the port, or an end that [`steer::share`]
    /// made of it.
    pub tx: TxEnd,
    /// The pool for headers and copies.
    pub pool: Mempool,
    /// Registered memory.
    pub regions: Arc<RegionTable>,
    /// Counters of the frames that refer to registered memory.
    pub external: ExternalMemory,
    /// The table of STags.
    pub mrs: Arc<MrTable>,
    /// The worker's source of time.
    pub clock: Clock,
    /// Faults to inject into sent frames.
    pub fault: Option<FaultInjector>,
    /// Frames taken from the port at a time, 1..=[`BURST`](crate::BURST).
    pub rx_burst: usize,
    /// Wakes the control plane's thread for a report.
    pub waker: Option<Waker>,
}

/// A worker owns a pair of port queues, the connections on them, their queue pairs and timers. A
/// single thread calls [`poll`](Worker::poll), over and over. When the worker is dropped, also by a
/// panic, all its queue pairs end, and the control plane gets a report.
pub struct Worker<E: Engine<Frame = RxMbuf>> {
    engine: E,
    rx: RxEnd,
    tx: Tx,
    mem: RegionMemory,
    clock: Clock,
    rx_burst: usize,
    frames: ArrayVec<Mbuf, RX_BURST>,
    /// The same frames, on their way through the engine.
    received: ArrayVec<Option<RxMbuf>, RX_BURST>,
    commands: Consumer<Command<E>>,
    reports: ReportSender<E>,
    queues: Queues,
    /// The queue pair that is about to get its connection.
    entering: Option<(ConnId, AppId, Box<WorkerQp>)>,
    /// Slots of queue pairs to look at: those that rang, and those that had more requests than one
    /// turn takes.
    ready: Waiting,
    /// The same slots, in turns of their shares, once there are several shares.
    fair: FairQueue<usize>,
    /// The work request that the worker is taking.
    entry: Box<Entry>,
    counters: WorkerCounters,
    /// The beginning of the last turn.
    began: Instant,
    watch: Stopwatch,
    snapshots: Snapshots<E::Counters>,
    /// The engine's configuration, for the engine that takes the place of a failed one.
    config: Box<E::Config>,
    /// The worker has ended by a defect: see [`end`](Worker::end).
    ended: bool,
}

impl<E: Engine<Frame = RxMbuf>> std::fmt::Debug for Worker<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Returns a worker, and the control plane's ends of its rings.
    pub fn new(config: WorkerConfig<E>) -> (Worker<E>, CommandSender<E>, ReportReceiver<E>) {
        // Fault injection needs frames, so connections of the RNIC with itself must use them.
        let frames_only = config.fault.is_some();
        let conns = E::max_conns(&config.engine);
        let (commands_in, commands) = ring(RING);
        let (reports, reports_out) = control::reports(config.waker);
        let worker = Worker {
            config: Box::new(config.engine.clone()),
            engine: E::new(config.engine, config.mrs, frames_only),
            rx: config.rx,
            tx: Tx::new(config.tx, config.pool, config.external, config.fault),
            mem: RegionMemory::new(config.regions),
            clock: config.clock,
            rx_burst: config.rx_burst.clamp(1, RX_BURST),
            frames: ArrayVec::new(),
            received: ArrayVec::new(),
            commands,
            reports,
            queues: Queues::new(config.index, conns),
            entering: None,
            ready: Waiting::with_capacity(conns),
            fair: FairQueue::default(),
            entry: Box::default(),
            counters: WorkerCounters::default(),
            began: Instant::ZERO,
            watch: Stopwatch::default(),
            snapshots: Snapshots::new(),
            ended: false,
        };
        (worker, CommandSender::new(commands_in), reports_out)
    }

    /// Returns the counts of references that the engine keeps to registered memory, for callers that
    /// hand memory back.
    pub fn pins(&self) -> Arc<Pins> {
        self.engine.pins()
    }

    /// Returns the time of the worker's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Takes one turn: received frames, orders, new work requests, timers, completions, frames to
    /// send. Returns true if there was something to do.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let now = self.clock.now();
        self.began = now;
        let rested = self.watch.begin(now, &mut self.counters);
        let mut busy = self.receive();
        busy |= self.take_commands(now);
        busy |= self.count_on();
        // Take requests after the frames were taken from the port and before they are handled: a
        // frame may answer to a receive buffer that was posted before the frame was sent.
        busy |= self.take_work_requests();
        // Most turns of a worker that spins end here.
        if busy || !self.engine.is_idle(now) || !self.tx.is_idle() {
            busy |= self.work(now, rested);
        }
        // Nothing found in a table above is used below.
        self.mem.quiescent();
        self.counters.polls += 1;
        self.counters.busy_polls += u64::from(busy);
        self.watch.end(now, busy);
        busy
    }

    /// Returns the beginning of the last turn.
    #[inline]
    pub fn turn_began(&self) -> Instant {
        self.began
    }

    /// Counts the last turn's time up to `now` as busy, if that turn found work. A thread of
    /// several workers calls this function with the beginning of the next worker's turn: without
    /// the call, the turn lasts until this worker's own next turn.
    #[inline]
    pub fn settle(&mut self, now: Instant) {
        self.watch.settle(now, &mut self.counters);
    }

    /// Handles the frames, orders and work requests that were taken, and the timers that are due;
    /// `rested` is true if the turn before found no work. Returns true if anything beside received
    /// frames needed handling.
    #[inline]
    fn work(&mut self, now: Instant, rested: bool) -> bool {
        self.handle_frames(now, rested);
        let mut busy = false;
        if self.engine.is_due(now) {
            self.engine.handle_timeouts(now);
            busy = true;
        }
        if self.engine.has_handed() {
            self.hand_over(now);
            busy = true;
        }
        busy |= self.deliver();
        busy |= self.transmit(now);
        busy
    }

    /// Takes frames; returns true if there was one, for this worker or another of the port.
    #[inline]
    fn receive(&mut self) -> bool {
        let RxEnd::Queue(queue) = &mut self.rx else { return self.receive_steered() };
        if self.rx_burst == RX_BURST {
            queue.burst(&mut self.frames);
        } else {
            self.receive_few();
        }
        if self.frames.is_empty() {
            return false;
        }
        self.prefetch();
        true
    }

    #[inline]
    fn prefetch(&self) {
        // Prefetch step by step along each chain, and for all frames at each step: no step waits
        // for another.
        for f in &self.frames {
            f.prefetch_head();
        }
        for f in &self.frames {
            f.prefetch();
        }
    }

    /// Like [`receive`](Self::receive), for a worker that shares its port; also sends frames of
    /// workers without a transmit queue. Returns true if there was a frame of either kind.
    #[inline(never)]
    fn receive_steered(&mut self) -> bool {
        let relayed = self.tx.relay();
        let RxEnd::Steered(rx) = &mut self.rx else { return relayed };
        let received = rx.receive(&mut self.frames, self.rx_burst);
        self.prefetch();
        received | relayed
    }

    #[inline]
    fn handle_frames(&mut self, now: Instant, rested: bool) {
        if self.frames.is_empty() {
            return;
        }
        if rested {
            self.engine.rest();
        }
        // The engine keeps a frame that must wait; this worker frees the others together.
        let Worker { engine, mem, queues, entry, frames, received, .. } = self;
        let posted = NotTaken::new(queues, entry);
        let posted = Untaken::new(&posted);
        let digests = engine.wants_digest();
        // `received` is as large as `frames`.
        for frame in frames.drain(..) {
            received.push(Some(RxMbuf::new(frame, digests)));
        }
        if received.len() > 1 && engine.is_wide() {
            ahead::handle_frames(engine, now, mem, &posted, received);
        } else {
            engine.handle_frames(now, mem, &posted, received);
        }
        while let Some(frame) = received.pop() {
            if let Some(frame) = frame {
                frames.push(frame.into_mbuf());
            }
        }
        Mbuf::free_bulk(frames);
    }

    /// Lets connections of the RNIC with itself make progress.
    #[inline(never)]
    fn hand_over(&mut self, now: Instant) {
        let Worker { engine, mem, queues, entry, .. } = self;
        let posted = NotTaken::new(queues, entry);
        engine.hand_over(now, mem, &Untaken::new(&posted));
    }

    /// Takes frames one at a time, for a deterministic run whose answers must not depend on the
    /// number of frames that happen to be there.
    #[cold]
    fn receive_few(&mut self) {
        let RxEnd::Queue(queue) = &mut self.rx else { return };
        let mut one: ArrayVec<Mbuf, 1> = ArrayVec::new();
        while self.frames.len() < self.rx_burst && queue.burst(&mut one) > 0 {
            self.frames.extend(one.drain(..));
        }
    }

    /// Gives completions to applications and events to the control plane; returns true if there
    /// were any.
    #[inline]
    fn deliver(&mut self) -> bool {
        let mut busy = self.collect_completions();
        while self.engine.has_events() {
            busy = true;
            if self.reports_are_full() {
                break;
            }
            if let Some((change, report)) = self.engine.poll_event() {
                match change {
                    Change::None => {}
                    Change::State(conn) => self.tell_state(conn),
                    // A control plane that learns of the end finds everything completed.
                    Change::Closed(conn) => self.end_qp(conn),
                }
                self.report(report);
            }
        }
        if self.engine.has_datagrams() {
            self.deliver_datagrams();
        }
        self.queues.notify();
        busy
    }

    /// Delivers all datagrams of this turn and keeps none for a later turn.
    #[cold]
    #[inline(never)]
    fn deliver_datagrams(&mut self) {
        while let Some(datagram) = self.engine.poll_datagram() {
            let sent = self.reports.send_datagram(datagram);
            self.counters.datagrams_dropped += u64::from(!sent);
        }
    }

    /// Shows an application the state of a queue pair, which an order or an event may have changed.
    fn tell_state(&mut self, conn: ConnId) {
        if let Some(slot) = self.queues.of(conn)
            && let Some(qp) = self.engine.qp(conn)
        {
            slot.qp.tell_state(qp.state());
        }
    }

    fn reports_are_full(&mut self) -> bool {
        let full = self.reports.is_full();
        self.counters.reports_full += u64::from(full);
        full
    }

    /// Sends a report. There is room: no other code sends reports, and the caller has checked.
    fn report(&mut self, report: E::Report) {
        self.reports.send(WorkerReport::Engine(report));
    }

    #[inline]
    fn transmit(&mut self, now: Instant) -> bool {
        let mut built = 0;
        if self.engine.wants_transmit() {
            let mut sink = self.tx.sink(now, &self.mem);
            while built < TX_BURST && self.engine.wants_transmit() {
                match self.engine.poll_transmit(now, &self.mem, &mut sink) {
                    0 => break,
                    segments => built += segments,
                }
            }
            self.engine.end_transmit(&self.mem);
        }
        self.tx.flush(now);
        built > 0
    }

    /// Returns the worker's receive queue; none if another worker of the port hands it its frames.
    pub fn rx_queue(&self) -> Option<&RxQueue> {
        match &self.rx {
            RxEnd::Queue(queue) => Some(queue),
            RxEnd::Steered(rx) => rx.queue(),
        }
    }

    /// Returns true if other workers of the port depend on this worker's turns, even after it has
    /// ended: it has the queue that their frames come from or go to.
    pub fn serves_others(&self) -> bool {
        let feeds = match &self.rx {
            RxEnd::Queue(_) => false,
            RxEnd::Steered(rx) => rx.feeds_others(),
        };
        feeds || self.tx.serves_others()
    }

    /// Returns when [`poll`](Worker::poll) has something to do although nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    /// Returns true if no frame waits for the port.
    pub fn is_idle(&self) -> bool {
        self.tx.is_empty()
    }
}
