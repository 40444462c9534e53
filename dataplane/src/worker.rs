//! The worker: one thread's share of the RNIC, from the port's queue to the applications' rings.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use crossbeam_queue::ArrayQueue;
use heddle_base::Instant;
use heddle_iwarp::{Cqe, MrTable, QpCounters};
use heddle_rnic::{FpduMode, Rnic, RnicConfig, RnicCounters};
use heddle_tcp::{ConnCounters, ConnId, StackCounters};

use crate::control::{Command, Report};
use crate::fault::FaultCounters;
use crate::memory::{ArenaMemory, MemoryCounters};
use crate::queue::{RxCounters, TxCounters};
use crate::queues::{Doorbells, Qp, flushed_recv, flushed_send};
use crate::rx::RxMbuf;
use crate::tx::{SinkCounters, Tx};
use crate::{Arena, Clock, FaultInjector, Mbuf, Mempool, RxQueue, TxQueue};

/// Frames taken from the port at a time.
const RX_BURST: usize = crate::BURST;

/// Orders and reports that may wait in their rings.
const RING: usize = 4096;

/// Frames built before the port is polled for received ones again.
const TX_BURST: usize = RX_BURST;

/// Work requests taken from one queue pair before the next has its turn.
const WR_TURN: usize = 64;

heddle_base::counters! {
    /// What a worker counts beside its port, stack and queue pairs.
    pub struct WorkerCounters {
        /// Times the worker looked for work.
        polls,
        /// Of those, times it found some.
        busy_polls,
        /// Completions that had to wait because a CQ was full.
        cq_full,
        /// Times orders or events had to wait because the control plane was behind.
        reports_full,
        /// Work requests the queue pair refused when it took them.
        wr_refused,
    }
}

/// A queue pair this worker runs.
#[derive(Debug)]
struct Slot {
    conn: ConnId,
    qp: Qp,
    /// Completions that did not fit into their CQ. While there are any, no work requests are taken.
    pending: VecDeque<heddle_iwarp::Cqe>,
}

/// What a worker is made of.
#[derive(Debug)]
pub struct WorkerConfig {
    /// Addresses, limits and seed of the RNIC.
    pub rnic: RnicConfig,
    /// The port's receive queue.
    pub rx: RxQueue,
    /// The port's transmit queue.
    pub tx: TxQueue,
    /// Where headers and copies come from.
    pub pool: Mempool,
    /// Registered memory.
    pub arena: Arena,
    /// STags.
    pub mrs: Arc<MrTable>,
    /// Time.
    pub clock: Clock,
    /// Faults to make on sent frames.
    pub fault: Option<FaultInjector>,
    /// Frames taken from the port at a time, 1..=32.
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
    pub sink: SinkCounters,
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
    mem: ArenaMemory,
    clock: Clock,
    rx_burst: usize,
    frames: ArrayVec<Mbuf, RX_BURST>,
    /// Whether received segments are likely to be whole FPDUs with a CRC.
    guess_crc: bool,
    /// Frames that can be freed.
    done: ArrayVec<Mbuf, RX_BURST>,
    commands: Arc<ArrayQueue<Command>>,
    reports: Sender<Report>,
    bells: Arc<Doorbells>,
    /// By index of the connection.
    slots: Vec<Option<Slot>>,
    /// Queue pairs that had more work requests than one turn takes, or completions that wait.
    again: VecDeque<u32>,
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
            tx: Tx::new(config.tx, config.pool, config.fault),
            mem: ArenaMemory::new(config.arena),
            clock: config.clock,
            rx_burst: config.rx_burst.clamp(1, RX_BURST),
            frames: ArrayVec::new(),
            guess_crc: false,
            done: ArrayVec::new(),
            commands: commands.clone(),
            reports,
            bells: Doorbells::new(conns),
            slots: (0..conns).map(|_| None).collect(),
            again: VecDeque::with_capacity(conns),
            counters: WorkerCounters::default(),
        };
        (worker, CommandSender(commands), reports_out)
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
        self.handle_frames(now);
        if self.rnic.poll_timeout().is_some_and(|t| t <= now) {
            self.rnic.handle_timeouts(now);
            busy = true;
        }
        busy |= self.deliver();
        busy |= self.transmit(now);
        self.counters.polls += 1;
        self.counters.busy_polls += u64::from(busy);
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
        for f in &self.frames {
            f.prefetch_tail();
        }
        // A frame that must wait is kept by the RNIC; the others are freed together.
        for frame in self.frames.drain(..) {
            let frame = RxMbuf::new(frame, self.guess_crc);
            if let Some(done) = self.rnic.handle_frame(now, &self.mem, frame) {
                self.guess_crc = done.next_guess();
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
            Command::Listen { token, addr, port, backlog } => {
                let result = self.rnic.listen(addr, port, backlog);
                self.report(Report::Listening { token, result });
            }
            Command::Unlisten { addr, port } => self.rnic.unlisten(addr, port),
            Command::Connect { token, remote } => {
                let result = self.rnic.connect(now, remote);
                self.report(Report::Connecting { token, result });
            }
            Command::SendStartup { conn, bytes } => {
                if let Err(error) = self.rnic.send_startup(conn, &bytes) {
                    self.report(Report::Refused { conn, error });
                }
            }
            Command::EnterFpduMode { conn, mode, qp } => self.enter_fpdu_mode(conn, *mode, qp),
            Command::Disconnect { conn } => self.rnic.disconnect(conn),
            Command::Abort { conn } => self.rnic.abort(conn),
            Command::Release { conn } => {
                self.retire(conn);
                self.rnic.release(conn);
            }
            Command::Quiesce { token } => self.report(Report::Quiesced { token }),
            Command::Snapshot { reply } => {
                // Whoever asked may have stopped waiting.
                let _ = reply.try_send(Box::new(self.snapshot()));
            }
        }
    }

    fn enter_fpdu_mode(&mut self, conn: ConnId, mode: FpduMode, qp: Qp) {
        let index = conn.index();
        let Some(slot) = self.slots.get_mut(index) else { return qp.kill() };
        let bell = u32::try_from(index).unwrap_or(u32::MAX);
        if !qp.attach(&self.bells, bell) {
            // Its application connected one queue pair twice.
            self.rnic.abort(conn);
            return;
        }
        *slot = Some(Slot { conn, qp, pending: VecDeque::new() });
        // Receives first: the first message may lie behind the start-up already. They are posted
        // by the queue pair's own depth, so all of them fit.
        if let Err(error) = self.rnic.enter_fpdu_mode(conn, mode) {
            self.retire(conn);
            return self.report(Report::Refused { conn, error });
        }
        self.take_from(bell);
        self.rnic.start(&self.mem, conn);
    }

    /// Ends the queue pair of a connection that is over.
    fn retire(&mut self, conn: ConnId) {
        let Some(entry) = self.slots.get_mut(conn.index()) else { return };
        if entry.as_ref().is_some_and(|s| s.conn == conn)
            && let Some(slot) = entry.take()
        {
            for cqe in slot.pending {
                slot.qp.complete_late(cqe);
            }
            slot.qp.kill();
        }
    }

    #[inline]
    fn take_work_requests(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..self.again.len() {
            let Some(index) = self.again.pop_front() else { break };
            busy |= self.take_from(index);
        }
        while let Some(index) = self.bells.pop() {
            busy |= self.take_from(index);
        }
        busy
    }

    /// Takes work requests from the rings of one queue pair.
    fn take_from(&mut self, index: u32) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(index as usize) else { return false };
        slot.qp.answer();
        while let Some(cqe) = slot.pending.pop_front() {
            if let Err(cqe) = slot.qp.complete(cqe) {
                slot.pending.push_front(cqe);
                self.again.push_back(index);
                return false;
            }
        }
        let (conn, mut taken) = (slot.conn, 0);
        while let Some(wr) = slot.qp.pop_recv() {
            taken += 1;
            if self.rnic.post_recv(conn, &wr).is_err() {
                self.counters.wr_refused += 1;
                slot.qp.complete_late(flushed_recv(slot.qp.qpn(), &wr));
            }
        }
        let mut sends = 0;
        while sends < WR_TURN {
            let Some(wr) = slot.qp.pop_send() else { break };
            sends += 1;
            if self.rnic.post_send(conn, &wr).is_err() {
                self.counters.wr_refused += 1;
                slot.qp.complete_late(flushed_send(slot.qp.qpn(), &wr));
            }
        }
        if sends == WR_TURN {
            self.again.push_back(index);
        }
        taken + sends > 0
    }

    /// Gives completions to applications and events to the control plane.
    #[inline]
    fn deliver(&mut self) -> bool {
        let mut busy = false;
        while let Some((conn, cqe)) = self.rnic.poll_completion() {
            busy = true;
            self.complete(conn, cqe);
        }
        while self.rnic.has_events() {
            busy = true;
            if self.reports_are_full() {
                break;
            }
            if let Some(event) = self.rnic.poll_event() {
                self.report(Report::Event(event));
            }
        }
        busy
    }

    #[inline]
    fn complete(&mut self, conn: ConnId, cqe: Cqe) {
        let index = conn.index();
        let Some(Some(slot)) = self.slots.get_mut(index) else { return };
        if slot.conn != conn {
            return;
        }
        let refused = if slot.pending.is_empty() { slot.qp.complete(cqe) } else { Err(cqe) };
        if let Err(cqe) = refused {
            self.counters.cq_full += 1;
            if slot.pending.is_empty() {
                self.again.push_back(u32::try_from(index).unwrap_or(u32::MAX));
            }
            slot.pending.push_back(cqe);
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
