//! The RNIC: connections, queue pairs, and the orders of the control plane.

use std::collections::VecDeque;
use std::sync::Arc;

use core::net::{IpAddr, SocketAddr};
use heddle_base::Instant;
use heddle_iwarp::{
    Cqe, Memory, MrTable, Pins, PostError, QpContext, QpCounters, QpEvent, RecvWr, SendWr, Side,
};
use heddle_tcp::{
    ConnCounters, ConnEvent, ConnId, ConnectError, ListenError, RxFrame, SendQueue, Stack,
    StackConfig, StackCounters, StackEvent, TxFrame,
};

use crate::counters::RnicCounters;
use crate::event::{CloseReason, Event, FpduMode};
use crate::held::HoldPool;
use crate::kept::Snapshots;
use crate::link::{ConnState, Mode};
use crate::rounds::Rounds;

/// What an RNIC is made with.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// Addresses, limits and seed of the TCP stack.
    pub stack: StackConfig,
    /// Buffers that bytes which have to wait may take, of all connections together: received frames
    /// that are kept, and buffers of 2 KiB for copies of what lies ahead of a gap. A connection may
    /// hold as many of them as are still free, so that a few cannot take all from the others.
    pub max_held_frames: usize,
    /// Octets of Read Responses that may be kept until they are acknowledged. A connection may keep
    /// as much as all of them leave free, and one FPDU always.
    pub max_snapshot_bytes: usize,
}

/// An order the RNIC could not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RnicError {
    /// The connection does not exist (any more).
    #[error("no such connection")]
    NoConnection,
    /// The connection is not in the state the order needs.
    #[error("the connection is not in the start-up phase")]
    NotStartup,
    /// The connection has no running queue pair.
    #[error("the connection has no queue pair")]
    NoQueuePair,
    /// The queue pair refused the work request.
    #[error("{0}")]
    Post(#[from] PostError),
}

/// A software RNIC on one port queue; see the crate's documentation for the calling order.
///
/// One thread owns it. `F` is a received frame: an mbuf in a worker, a byte vector in a test.
pub struct Rnic<F> {
    pub(crate) stack: Stack<ConnState<F>>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) counters: RnicCounters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) completions: VecDeque<(ConnId, Cqe)>,
    /// Connections whose queue pair may have FPDUs to make.
    pub(crate) ready: VecDeque<ConnId>,
    pub(crate) kept: Snapshots,
    /// Buffers for bytes that wait.
    pub(crate) pool: HoldPool<F>,
    /// Connections with a running queue pair: a list, so that reports find them, in which each
    /// connection knows its place.
    pub(crate) running: Vec<ConnId>,
    pub(crate) rounds: Rounds,
    /// Counters of queue pairs that are gone.
    retired_qps: QpCounters,
    /// The sum [`Rnic::poll_qp_counters`] is at, and how many of `running` are in it.
    tally: Option<(QpCounters, usize)>,
    /// The frame that is being sent, kept so that it is filled in place.
    pub(crate) frame: TxFrame,
}

impl<F> core::fmt::Debug for Rnic<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rnic")
            .field("queue_pairs", &self.running.len())
            .field("held_buffers", &self.pool.used())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<F: RxFrame> Rnic<F> {
    /// Octets of the heap that a connection with a queue pair takes while nothing is posted or under
    /// way, its places in all tables included.
    pub const CONN_OCTETS: usize =
        Stack::<ConnState<F>>::CONN_OCTETS + size_of::<QpContext>() + 2 * size_of::<ConnId>();

    /// An RNIC with no connections, over the regions of `mrs`.
    pub fn new(config: RnicConfig, mrs: Arc<MrTable>) -> Rnic<F> {
        let conns = config.stack.max_conns;
        let kept = Snapshots::new(Arc::new(Pins::new(mrs.capacity())), config.max_snapshot_bytes);
        Rnic {
            stack: Stack::new(config.stack),
            pool: HoldPool::new(config.max_held_frames),
            mrs,
            counters: RnicCounters::default(),
            events: VecDeque::with_capacity(64),
            completions: VecDeque::with_capacity(1024),
            ready: VecDeque::with_capacity(conns),
            kept,
            running: Vec::with_capacity(conns),
            rounds: Rounds::default(),
            retired_qps: QpCounters::default(),
            tally: None,
            frame: TxFrame::default(),
        }
    }

    /// Accepts TCP connections to `port` on `addr`, or on every address of ours.
    pub fn listen(
        &mut self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<(), ListenError> {
        self.stack.listen(addr, port, backlog)
    }

    /// Ends what [`listen`](Self::listen) began with the same address and port; connections go on.
    pub fn unlisten(&mut self, addr: Option<IpAddr>, port: u16) {
        self.stack.unlisten(addr, port);
    }

    /// Starts a TCP connection; [`Event::Connected`] or [`Event::Closed`] follows.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<ConnId, ConnectError> {
        self.stack.connect(now, remote, None)
    }

    /// Queues bytes of the MPA start-up.
    pub fn send_startup(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), RnicError> {
        let (_, link) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        if !matches!(link.mode, Mode::Startup) {
            return Err(RnicError::NotStartup);
        }
        link.queue.push_startup(bytes);
        self.stack.notify_send(conn);
        Ok(())
    }

    /// Ends the start-up: sends what is left of it and makes the queue pair. Call
    /// [`start`](Self::start) when its first receives are posted.
    pub fn enter_fpdu_mode(&mut self, conn: ConnId, mode: FpduMode) -> Result<(), RnicError> {
        self.send_startup(conn, &mode.reply)?;
        let (_, link) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let held = link.held.ready_len();
        link.held.consume(&mut self.pool, mode.startup_len);
        let mut config = mode.qp;
        config.tx_start = link.queue.end();
        config.rx_start = link.rx_next;
        config.rx_start.0 =
            config.rx_start.0.saturating_sub(held.saturating_sub(mode.startup_len) as u64);
        link.mode = Mode::Fpdu(Box::new(QpContext::new(&config)));
        link.running_at = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        self.running.push(conn);
        self.rounds.wake();
        Ok(())
    }

    /// Hands a new queue pair the bytes that came behind the start-up.
    pub fn start<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        self.advance_held(mem, conn);
        self.drain_qp(conn);
    }

    /// Posts to a queue pair's send queue.
    pub fn post_send(&mut self, conn: ConnId, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let (_, link) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let qp = link.qp().ok_or(RnicError::NoQueuePair)?;
        let result = qp.post_send(wr);
        let news = qp.has_news();
        // Whether it can be sent now is found out when its turn comes.
        if !link.on_ready_list {
            link.on_ready_list = true;
            self.ready.push_back(conn);
        }
        if news {
            self.collect_qp(conn);
        }
        Ok(result?)
    }

    /// Posts to a queue pair's receive queue.
    pub fn post_recv(&mut self, conn: ConnId, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        Ok(self.qp_mut(conn)?.post_recv(wr)?)
    }

    /// Calls `f` with the queue pair of a connection, to post as much as there is to post: it is found,
    /// and what comes of the posts is collected, once for all.
    #[inline]
    pub fn post_with<R>(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut QpContext) -> R,
    ) -> Result<R, RnicError> {
        let result = f(self.qp_mut(conn)?);
        self.drain_qp(conn);
        Ok(result)
    }

    #[inline]
    fn qp_mut(&mut self, conn: ConnId) -> Result<&mut QpContext, RnicError> {
        let (_, link) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        link.qp().ok_or(RnicError::NoQueuePair)
    }

    /// The queue pair of a connection, for its counters, its state and the peer's Terminate.
    pub fn qp(&self, conn: ConnId) -> Option<&QpContext> {
        match &self.stack.user(conn)?.mode {
            Mode::Fpdu(qp) => Some(qp),
            _ => None,
        }
    }

    /// Ends a connection in order: what is posted is sent and acknowledged, then FIN.
    pub fn disconnect(&mut self, conn: ConnId) {
        if let Some((_, link)) = self.stack.get_mut(conn)
            && let Some(qp) = link.qp()
        {
            // TCP follows when the send queue has drained.
            qp.close();
            return self.drain_qp(conn);
        }
        self.stack.close(conn);
    }

    /// Ends a connection with a reset.
    pub fn abort(&mut self, conn: ConnId) {
        self.stack.abort(conn);
        self.end(conn);
        self.pump_stack_events();
    }

    /// Frees a connection whose [`Event::Closed`] has been seen; one that is still open is reset.
    pub fn release(&mut self, conn: ConnId) {
        self.end(conn);
        self.stack.release(conn);
    }

    /// Runs the timers that are due.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.stack.handle_timeouts(now);
        self.pump_stack_events();
        self.go_round(now);
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.rounds.poll_timeout(self.stack.poll_timeout())
    }

    /// Whether [`handle_timeouts`](Self::handle_timeouts) has something to do.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.stack.is_due(now)
    }

    /// Whether there is nothing to do until a frame, an order or a work request comes, or time passes:
    /// no timer is due, nothing is to be sent, told or completed.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        self.stack.is_idle(now)
            && self.ready.is_empty()
            && self.completions.is_empty()
            && self.events.is_empty()
    }

    /// Whether [`poll_event`](Self::poll_event) may have something to give.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event for the control plane. However long they are left to wait, their number is
    /// bounded: a connection has a few, each at most once, and stays until it is released.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(event) = self.events.pop_front() {
            let Event::StartupBytes { conn, .. } = event else { return Some(event) };
            let Some((_, link)) = self.stack.get_mut(conn) else { continue };
            link.startup_event = false;
            // The start-up may be over by now, one way or the other.
            let new = link.held.ready_len().saturating_sub(link.startup_told as usize);
            if matches!(link.mode, Mode::Startup) && new > 0 {
                // It is a few KiB at most.
                link.startup_told += u32::try_from(new).unwrap_or(u32::MAX);
                return Some(Event::StartupBytes { conn, bytes: link.held.last_ready(new) });
            }
        }
        None
    }

    /// The next completion and the connection of its queue pair, as
    /// [`poll_completion`](Self::poll_completion) will give them.
    #[inline]
    pub fn peek_completion(&self) -> Option<&(ConnId, Cqe)> {
        self.completions.front()
    }

    /// The next completion, and the connection of its queue pair.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<(ConnId, Cqe)> {
        self.completions.pop_front()
    }

    /// Counters of the joint.
    pub fn counters(&self) -> &RnicCounters {
        &self.counters
    }

    /// Counters of the TCP/IP stack.
    pub fn stack_counters(&self) -> &StackCounters {
        self.stack.counters()
    }

    /// Counters of all TCP connections there are and were, added up.
    pub fn conn_counters(&self) -> ConnCounters {
        self.stack.conn_counters()
    }

    /// The TCP/IP stack, to look at.
    pub fn connection(&self, conn: ConnId) -> Option<&heddle_tcp::Connection> {
        self.stack.conn(conn)
    }

    /// As [`conn_counters`](Self::conn_counters), looking at `most` connections at a time: `None`
    /// until all were looked at.
    pub fn poll_conn_counters(&mut self, most: usize) -> Option<ConnCounters> {
        self.stack.poll_conn_counters(most)
    }

    /// As [`qp_counters`](Self::qp_counters), looking at `most` queue pairs at a time: `None` until
    /// all were looked at.
    pub fn poll_qp_counters(&mut self, most: usize) -> Option<QpCounters> {
        let (mut sum, from) = self.tally.take().unwrap_or((self.retired_qps, 0));
        let upto = from.saturating_add(most.max(1)).min(self.running.len());
        for conn in self.running.get(from..upto).unwrap_or_default() {
            if let Some(qp) = self.qp(*conn) {
                sum.add(&qp.counters());
            }
        }
        if upto >= self.running.len() {
            return Some(sum);
        }
        self.tally = Some((sum, upto));
        None
    }

    /// Counters of all queue pairs there are and were, added up.
    pub fn qp_counters(&self) -> QpCounters {
        let mut sum = self.retired_qps;
        for conn in &self.running {
            if let Some(qp) = self.qp(*conn) {
                sum.add(&qp.counters());
            }
        }
        sum
    }

    /// Counts, for each region, of the FPDUs in send queues that refer to it.
    pub fn pins(&self) -> Arc<Pins> {
        self.kept.pins.clone()
    }

    /// FPDUs that refer to the region in slot `mr`, counted anew by a walk through all send queues:
    /// what [`pins`](Self::pins) should say. For tests.
    pub fn count_references(&self, mr: u32) -> u32 {
        self.running
            .iter()
            .filter_map(|conn| self.stack.user(*conn))
            .map(|link| link.queue.references(mr))
            .sum()
    }

    /// Octets of Read Responses kept at this moment.
    pub fn snapshot_bytes(&self) -> usize {
        self.kept.snapshots()
    }

    /// Buffers that bytes which wait take at this moment; see [`RnicConfig::max_held_frames`].
    pub fn held_frames(&self) -> usize {
        self.pool.used()
    }

    /// Takes completions and events out of a queue pair, and puts the connection on the ready list
    /// when there may be FPDUs to make.
    #[inline]
    pub(crate) fn drain_qp(&mut self, conn: ConnId) {
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        let Mode::Fpdu(qp) = &mut link.mode else { return };
        if qp.has_news() || link.closing {
            self.collect_qp(conn);
        }
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        let Mode::Fpdu(qp) = &mut link.mode else { return };
        if qp.has_transmit() && !link.on_ready_list {
            link.on_ready_list = true;
            self.ready.push_back(conn);
        }
    }

    /// Takes completions and events out of a queue pair.
    pub(crate) fn collect_qp(&mut self, conn: ConnId) {
        let Some((tcp, link)) = self.stack.get_mut(conn) else { return };
        let Mode::Fpdu(qp) = &mut link.mode else { return };
        while let Some(event) = qp.poll_event() {
            // By an error; and nobody needs what TCP has not begun to send.
            let (ended, withdraw) = match event {
                QpEvent::Terminated { by, .. } => (true, by == Side::Remote || qp.has_transmit()),
                QpEvent::Failed { .. } | QpEvent::Truncated(_) => (true, true),
                QpEvent::FirstFpdu | QpEvent::Drained => (false, false),
            };
            self.counters.rx_truncated += u64::from(matches!(event, QpEvent::Truncated(_)));
            link.closing |= ended || event == QpEvent::Drained;
            if withdraw {
                // A Terminate of ours goes in its place. If that is queued already, it is about a
                // local request, and those before it are still carried out.
                let end = link.queue.withdraw(&mut self.kept, tcp.snd_max());
                qp.handle_withdrawn(end);
            }
            if !matches!(event, QpEvent::Drained) {
                self.events.push_back(Event::Qp { conn, event });
            }
        }
        qp.take_completions(|cqe| self.completions.push_back((conn, *cqe)));
        self.rounds.wake();
        if link.closing && !qp.has_transmit() {
            link.closing = false;
            self.stack.close(conn);
        }
    }

    /// Flushes a connection's queue pair and drops what waits.
    fn end(&mut self, conn: ConnId) {
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        if let Mode::Fpdu(qp) = &mut link.mode {
            qp.abort();
            let (at, counters) = (link.running_at as usize, qp.counters());
            self.retired_qps.add(&counters);
            self.stop_running(at, &counters);
        }
        let Some((_, link)) = self.stack.get_mut(conn) else { return };
        link.held.clear(&mut self.pool);
        self.drain_qp(conn);
        if let Some((_, link)) = self.stack.get_mut(conn) {
            link.mode = Mode::Dead;
            link.queue.clear(&mut self.kept);
        }
    }

    /// Takes place `at` off the list of connections with a running queue pair, whose counters were
    /// `counters`; the last takes the place.
    fn stop_running(&mut self, at: usize, counters: &QpCounters) {
        if at >= self.running.len() {
            return;
        }
        self.running.swap_remove(at);
        self.rounds.moved();
        let moved = self.running.get(at).copied();
        if let Some((_, link)) = moved.and_then(|conn| self.stack.get_mut(conn)) {
            link.running_at = u32::try_from(at).unwrap_or(u32::MAX);
        }
        // A sum under way has to get those it would miss now.
        let left = self.running.len();
        let moved = moved.and_then(|conn| self.qp(conn)).map(QpContext::counters);
        if let Some((sum, done)) = &mut self.tally {
            if at >= *done {
                sum.add(counters);
            } else if left >= *done {
                if let Some(moved) = moved {
                    sum.add(&moved);
                }
            } else {
                // The last was in the sum already.
                *done = left;
            }
        }
    }

    pub(crate) fn pump_stack_events(&mut self) {
        while let Some((conn, event)) = self.stack.poll_event() {
            let reason = match event {
                StackEvent::Accepted { local, remote } => {
                    self.events.push_back(Event::Accepted { conn, local, remote });
                    continue;
                }
                StackEvent::Conn(ConnEvent::Connected) => {
                    if let Some(local) = self.stack.local_addr(conn) {
                        self.events.push_back(Event::Connected { conn, local });
                    }
                    continue;
                }
                StackEvent::Conn(ConnEvent::PeerClosed) => {
                    if let Some((_, link)) = self.stack.get_mut(conn)
                        && let in_fpdu = link.held.has_ready()
                        && let Some(qp) = link.qp()
                    {
                        // What has not made a whole FPDU never will.
                        qp.handle_peer_closed(in_fpdu);
                        self.drain_qp(conn);
                    }
                    self.events.push_back(Event::PeerClosed { conn });
                    continue;
                }
                StackEvent::Conn(ConnEvent::Closed) => CloseReason::Orderly,
                StackEvent::Conn(ConnEvent::Reset) => CloseReason::Reset,
                StackEvent::Conn(ConnEvent::Refused) => CloseReason::Refused,
                StackEvent::Conn(ConnEvent::TimedOut) => CloseReason::TimedOut,
                StackEvent::Conn(ConnEvent::Aborted) => CloseReason::Aborted,
                StackEvent::Unreachable => CloseReason::Unreachable,
                // The connection goes on; TCP and the stack have counted it.
                _ => continue,
            };
            self.end(conn);
            self.events.push_back(Event::Closed { conn, reason });
        }
    }
}
