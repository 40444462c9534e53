//! The worker: one thread's share of the RNIC, from the port's queue to the applications' rings.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use crossbeam_queue::ArrayQueue;
use heddle_base::Instant;
use heddle_cm::AppId;
use heddle_iwarp::mr::Pins;
use heddle_iwarp::{Cqe, CqeOp, CqeStatus, MrTable, QpContext, QpCounters, Qpn, Queue};
use heddle_rnic::{Event, FpduMode, Report, Rnic, RnicConfig, RnicCounters};
use heddle_tcp::{ConnCounters, ConnId, StackCounters};
use heddle_verbs::memory::{MemoryCounters, RegionMemory, Regions};
use heddle_verbs::ring::{Broken, Entry};
use heddle_verbs::worker::WorkerQp;

use crate::extmem::ExternalMemory;
use crate::fault::FaultCounters;
use crate::queue::{RxCounters, TxCounters};
use crate::rx::RxMbuf;
use crate::tx::{Tx, TxBuildCounters};
use crate::{Clock, FaultInjector, Mbuf, Mempool, RxQueue, TxQueue};

mod control;
mod queues;

pub use control::Command;

use queues::Queues;

/// Frames taken from the port at a time.
const RX_BURST: usize = crate::BURST;

/// Orders and reports that may wait in their rings.
const RING: usize = 4096;

/// Frames built before the port is polled for received ones again.
const TX_BURST: usize = RX_BURST;

/// Work requests taken from one queue of a queue pair before the next has its turn.
const WR_TURN: usize = 64;

heddle_base::counters! {
    /// What a worker counts beside its port, stack and queue pairs.
    pub struct WorkerCounters {
        /// Times the worker looked for work.
        polls,
        /// Of those, times it found some.
        busy_polls,
        /// Completions that had no room in their CQ; the queue pair ended.
        cq_overflows,
        /// Times orders or events had to wait because the control plane was behind.
        reports_full,
        /// Entries of send and receive queues that no honest application writes; the queue pair ended.
        wr_broken,
        /// Work requests beyond the depth of their queue; the queue pair ended.
        wr_overruns,
    }
}

/// What a worker is made of.
#[derive(Debug)]
pub struct WorkerConfig {
    /// Its number among the workers of its RNIC.
    pub index: usize,
    /// Addresses, limits and seed of the RNIC.
    pub rnic: RnicConfig,
    /// The port's receive queue.
    pub rx: RxQueue,
    /// The port's transmit queue.
    pub tx: TxQueue,
    /// Where headers and copies come from.
    pub pool: Mempool,
    /// Registered memory.
    pub regions: Arc<Regions>,
    /// Counters of the frames that refer to it.
    pub external: ExternalMemory,
    /// STags.
    pub mrs: Arc<MrTable>,
    /// Time.
    pub clock: Clock,
    /// Faults to make on sent frames.
    pub fault: Option<FaultInjector>,
    /// Frames taken from the port at a time, 1..=[`BURST`](crate::BURST).
    pub rx_burst: usize,
}

/// The control plane's end of the ring of orders.
#[derive(Clone, Debug)]
pub struct CommandSender(Arc<ArrayQueue<Command>>);

impl CommandSender {
    /// Queues an order; hands it back when the ring is full.
    pub fn send(&self, command: Command) -> Result<(), Box<Command>> {
        self.0.push(command).map_err(Box::new)
    }
}

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

/// A worker owns a pair of port queues, the connections on them, their queue pairs and timers. One
/// thread calls [`poll`](Worker::poll), over and over.
pub struct Worker {
    rnic: Rnic<RxMbuf>,
    rx: RxQueue,
    tx: Tx,
    mem: RegionMemory,
    clock: Clock,
    rx_burst: usize,
    frames: ArrayVec<Mbuf, RX_BURST>,
    /// Frames that can be freed.
    done: ArrayVec<Mbuf, RX_BURST>,
    commands: Arc<ArrayQueue<Command>>,
    reports: Sender<Report>,
    queues: Queues,
    /// Slots of queue pairs to be looked at: those that rang, and those that had more than one turn
    /// takes.
    ready: VecDeque<usize>,
    /// The work request that is being taken.
    entry: Box<Entry>,
    counters: WorkerCounters,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("rnic", &self.rnic).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker, and the control plane's ends of its rings.
    pub fn new(config: WorkerConfig) -> (Worker, CommandSender, Receiver<Report>) {
        let conns = config.rnic.stack.max_conns;
        let commands = Arc::new(ArrayQueue::new(RING));
        let (reports, reports_out) = crossbeam_channel::bounded(RING);
        let worker = Worker {
            rnic: Rnic::new(config.rnic, config.mrs),
            rx: config.rx,
            tx: Tx::new(config.tx, config.pool, config.external, config.fault),
            mem: RegionMemory::new(config.regions),
            clock: config.clock,
            rx_burst: config.rx_burst.clamp(1, RX_BURST),
            frames: ArrayVec::new(),
            done: ArrayVec::new(),
            commands: commands.clone(),
            reports,
            queues: Queues::new(config.index, conns),
            ready: VecDeque::with_capacity(conns),
            entry: Box::default(),
            counters: WorkerCounters::default(),
        };
        (worker, CommandSender(commands), reports_out)
    }

    /// Counts of the FPDUs that refer to registered memory, for whoever hands memory back.
    pub fn pins(&self) -> Arc<Pins> {
        self.rnic.pins()
    }

    /// The worker's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Does what there is to do once: received frames, orders, new work requests, timers,
    /// completions, frames to send. True when there was something.
    pub fn poll(&mut self) -> bool {
        let now = self.clock.now();
        let received = self.receive();
        let mut busy = received > 0;
        busy |= self.take_commands(now);
        // After the frames were taken from the port and before they are looked at: what is in a
        // frame may answer to a receive buffer that was posted before the frame was sent.
        busy |= self.take_work_requests();
        // Most turns of a worker that spins end here.
        if busy || !self.rnic.is_idle(now) || !self.tx.is_idle() {
            busy |= self.work(now);
        }
        // Nothing found in a table above is used below.
        self.mem.quiescent();
        self.counters.polls += 1;
        self.counters.busy_polls += u64::from(busy);
        busy
    }

    /// What follows on frames, orders and work requests that were taken, and what is due.
    #[inline]
    fn work(&mut self, now: Instant) -> bool {
        self.handle_frames(now);
        let mut busy = false;
        if self.rnic.is_due(now) {
            self.rnic.handle_timeouts(now);
            busy = true;
        }
        busy |= self.deliver();
        busy |= self.transmit(now);
        busy
    }

    #[inline]
    fn receive(&mut self) -> usize {
        if self.rx_burst == RX_BURST {
            self.rx.burst(&mut self.frames);
        } else {
            self.receive_few();
        }
        // Step by step along each chain, and for all frames at each step: none waits for another.
        for f in &self.frames {
            f.prefetch_head();
        }
        for f in &self.frames {
            f.prefetch();
        }
        self.frames.len()
    }

    #[inline]
    fn handle_frames(&mut self, now: Instant) {
        // A frame that must wait is kept by the RNIC; the others are freed together.
        for frame in self.frames.drain(..) {
            let frame = RxMbuf::new(frame, self.rnic.wants_crc());
            if let Some(done) = self.rnic.handle_frame(now, &self.mem, frame) {
                // As large as `frames`.
                self.done.push(done.into_mbuf());
            }
        }
        Mbuf::free_bulk(&mut self.done);
    }

    /// A deterministic run takes frames one at a time, so that what is answered does not depend on
    /// how many happen to be there.
    #[cold]
    fn receive_few(&mut self) {
        let mut one: ArrayVec<Mbuf, 1> = ArrayVec::new();
        while self.frames.len() < self.rx_burst && self.rx.burst(&mut one) > 0 {
            self.frames.extend(one.drain(..));
        }
    }

    fn take_commands(&mut self, now: Instant) -> bool {
        let mut busy = false;
        // Each is answered by one report at most; where there is no room for it, it waits in its
        // ring, and when that is full too, with the control plane.
        while !self.commands.is_empty() {
            // Also when they have to wait, so that an inline control plane is given its turn.
            busy = true;
            if self.reports_are_full() {
                break;
            }
            if let Some(command) = self.commands.pop() {
                self.carry_out(now, command);
            }
        }
        busy
    }

    fn carry_out(&mut self, now: Instant, command: Command) {
        match command {
            Command::Order(order) => {
                if let heddle_rnic::Order::Release { conn } = order {
                    self.end_qp(conn);
                }
                let conn = match order {
                    heddle_rnic::Order::Disconnect { conn } => Some(conn),
                    _ => None,
                };
                if let Some(report) = self.rnic.handle_order(now, order) {
                    self.report(report);
                }
                if let Some(conn) = conn {
                    self.tell_state(conn);
                }
            }
            Command::EnterFpduMode { conn, mode, app, qp } => {
                self.enter_fpdu_mode(conn, *mode, app, *qp);
            }
            Command::OpenApp { app, bells } => self.queues.open_app(app, bells),
            Command::ResizeCq { app, link } => self.queues.resize_cq(app, &link),
            Command::CloseApp { app } => self.queues.close_app(app),
            Command::Snapshot { reply } => {
                // Whoever asked may have stopped waiting.
                let _ = reply.try_send(Box::new(self.snapshot()));
            }
        }
    }

    fn enter_fpdu_mode(&mut self, conn: ConnId, mode: FpduMode, app: AppId, qp: WorkerQp) {
        let result = if self.queues.is_free(conn) {
            self.rnic.enter_fpdu_mode(conn, mode)
        } else {
            Err(heddle_rnic::RnicError::NotStartup)
        };
        if result.is_ok() {
            if let Some(srq) = self.queues.insert(conn, app, qp) {
                let shared = self.rnic.post_with(conn, |qp| qp.share_receives(srq));
                debug_assert!(shared.is_ok(), "it was made above");
            }
            // Receives first: the first message may lie behind the start-up already. They are posted
            // by the queue pair's own depth, so all of them are taken.
            while self.take_from(conn.index()) {}
            self.rnic.start(&self.mem, conn);
        }
        self.report(Report::Entered { conn, result });
    }

    /// Ends the queue pair of a connection that is over: what its application has posted and nobody has
    /// taken completes as flushed.
    fn end_qp(&mut self, conn: ConnId) {
        self.collect_completions();
        let Some(mut slot) = self.queues.remove(conn) else { return };
        let (qpn, send_cq, recv_cq) = (slot.qp.qpn(), slot.send_cq, slot.recv_cq);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        slot.qp.end(|wr_id, op| sends.push((wr_id, op)), |wr_id| recvs.push(wr_id));
        let sends = sends.into_iter().map(|(id, op)| (send_cq, flushed(qpn, Queue::Sq, op, id)));
        let recvs = recvs.into_iter().map(|id| (recv_cq, flushed(qpn, Queue::Rq, CqeOp::Recv, id)));
        for (cq, cqe) in sends.chain(recvs) {
            if self.queues.complete(cq, &cqe).is_err() {
                self.counters.cq_overflows += 1;
            }
        }
        self.queues.notify();
        self.queues.leave(&slot);
    }

    #[inline]
    fn take_work_requests(&mut self) -> bool {
        let Worker { queues, ready, .. } = self;
        let turn = ready.len();
        queues.take_bells(|slot| ready.push_back(slot));
        if ready.is_empty() {
            return false;
        }
        self.take_ready(turn)
    }

    fn take_ready(&mut self, turn: usize) -> bool {
        let mut busy = false;
        // Those that waited from the last turn first, then those that rang; each once.
        for i in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            if i < turn
                && let Some(slot) = self.queues.slot(index)
            {
                slot.again = false;
            }
            if self.take_from(index)
                && let Some(slot) = self.queues.slot(index)
                && !std::mem::replace(&mut slot.again, true)
            {
                self.ready.push_back(index);
            }
            busy = true;
        }
        busy
    }

    /// Takes work requests from the rings of one queue pair, at most a turn of each; whether there may
    /// be more.
    fn take_from(&mut self, index: usize) -> bool {
        let Worker { rnic, queues, entry, .. } = self;
        let Some(slot) = queues.slot(index) else { return false };
        if slot.broken {
            return false;
        }
        let (conn, ends) = (slot.conn, &mut slot.qp);
        let taken = rnic.post_with(conn, |qp| {
            // An application that finds its queue full rings, to be told what was retired in silence.
            ends.retire(qp.sq_retired(), qp.rq_retired());
            take_wrs(qp, ends, entry)
        });
        match taken.unwrap_or(Err(Broken::Overrun)) {
            Ok(more) => more,
            Err(e) => {
                slot.broken = true;
                match e {
                    Broken::Overrun => self.counters.wr_overruns += 1,
                    _ => self.counters.wr_broken += 1,
                }
                self.rnic.abort(conn);
                false
            }
        }
    }

    /// Gives completions to applications and events to the control plane.
    #[inline]
    fn deliver(&mut self) -> bool {
        let mut busy = self.collect_completions();
        while self.rnic.has_events() {
            busy = true;
            if self.reports_are_full() {
                break;
            }
            if let Some(event) = self.rnic.poll_event() {
                if let Event::Qp { conn, .. } = event {
                    self.tell_state(conn);
                }
                if let Event::Closed { conn, .. } = event {
                    // Whoever hears of the end finds everything completed.
                    self.end_qp(conn);
                }
                self.report(Report::Event(event));
            }
        }
        self.queues.notify();
        busy
    }

    /// Writes what has completed to the completion queues.
    #[inline]
    fn collect_completions(&mut self) -> bool {
        let mut any = false;
        while let Some(&(conn, cqe)) = self.rnic.peek_completion() {
            any = true;
            self.complete_run(conn, cqe.queue);
        }
        any
    }

    /// Writes the next completion and those after it that are of the same queue.
    #[inline(never)]
    fn complete_run(&mut self, conn: ConnId, queue: Queue) {
        let Worker { rnic, queues, .. } = self;
        let cq = queues.of(conn).map(|slot| match queue {
            Queue::Sq => slot.send_cq,
            Queue::Rq => slot.recv_cq,
        });
        let mut end = cq.and_then(|cq| queues.producer(cq));
        let mut lost = 0;
        while let Some((of, cqe)) = rnic.peek_completion()
            && (*of, cqe.queue) == (conn, queue)
        {
            lost += u64::from(end.as_mut().is_some_and(|end| end.push(cqe).is_err()));
            let _ = rnic.poll_completion();
        }
        if lost > 0 {
            self.overflowed(conn, lost);
        }
        self.retire_of(conn);
    }

    #[cold]
    fn overflowed(&mut self, conn: ConnId, lost: u64) {
        self.counters.cq_overflows += lost;
        if let Some(slot) = self.queues.of(conn)
            && !std::mem::replace(&mut slot.broken, true)
        {
            self.rnic.abort(conn);
        }
    }

    /// Tells an application how many of its requests are retired.
    #[inline]
    fn retire_of(&mut self, conn: ConnId) {
        if let Some(slot) = self.queues.of(conn)
            && let Some(qp) = self.rnic.qp(conn)
        {
            slot.qp.retire(qp.sq_retired(), qp.rq_retired());
        }
    }

    /// Tells an application the state of a queue pair, which an order or an event may have changed.
    fn tell_state(&mut self, conn: ConnId) {
        if let Some(slot) = self.queues.of(conn)
            && let Some(qp) = self.rnic.qp(conn)
        {
            slot.qp.tell_state(qp.state());
        }
    }

    fn reports_are_full(&mut self) -> bool {
        let full = self.reports.is_full();
        self.counters.reports_full += u64::from(full);
        full
    }

    /// There is room: nobody else sends, and the caller has looked.
    fn report(&mut self, report: Report) {
        // When nobody receives any more, the control plane has ended.
        let sent = self.reports.try_send(report);
        debug_assert!(!matches!(sent, Err(TrySendError::Full(_))));
    }

    #[inline]
    fn transmit(&mut self, now: Instant) -> bool {
        let mut built = 0;
        {
            let mut sink = self.tx.sink(now, &self.mem);
            while built < TX_BURST && self.rnic.poll_transmit(now, &self.mem, &mut sink) {
                built += 1;
            }
        }
        self.tx.flush(now);
        built > 0
    }

    /// When [`poll`](Worker::poll) has something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.rnic.poll_timeout()
    }

    /// Whether no frame waits for the port.
    pub fn is_idle(&self) -> bool {
        self.tx.is_empty()
    }

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

/// Takes work requests from the rings of a queue pair, at most a turn of each; whether there may be
/// more.
#[inline]
fn take_wrs(qp: &mut QpContext, ends: &mut WorkerQp, entry: &mut Entry) -> Result<bool, Broken> {
    let (mut recvs, mut sends) = (0, 0);
    while recvs < WR_TURN
        && let Some(wr) = ends.take_recv(entry)?
    {
        recvs += 1;
        qp.post_recv(&wr).map_err(|_| Broken::Overrun)?;
    }
    while sends < WR_TURN
        && let Some(wr) = ends.take_send(entry)?
    {
        sends += 1;
        qp.post_send(&wr).map_err(|_| Broken::Overrun)?;
    }
    ends.give_blocks();
    Ok(recvs == WR_TURN || sends == WR_TURN)
}

/// The completion of a work request that was never begun.
fn flushed(qpn: Qpn, queue: Queue, op: CqeOp, wr_id: u64) -> Cqe {
    Cqe {
        wr_id,
        qpn,
        queue,
        op,
        status: CqeStatus::Flushed,
        solicited: false,
        len: 0,
        invalidated: None,
        immediate: None,
    }
}
