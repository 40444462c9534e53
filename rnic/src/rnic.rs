//! The RNIC: connections, queue pairs, and the orders of the control plane.

use std::collections::VecDeque;
use std::sync::Arc;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_base::{Histogram, Instant};
use heddle_iwarp::{
    Completions, Cqe, Memory, MrTable, Pins, PostError, QpConfig, QpContext, RecvWr, Retired,
    SendWr,
};
use heddle_tcp::{
    Addressing, ConnEvent, ConnId, ConnectError, ListenError, RxDatagram, Stack, StackConfig,
    StackCounters, StackEvent, TxFrame,
};

use crate::conn::{ConnState, Mode};
use crate::counters::RnicCounters;
use crate::event::{CloseReason, Event, FpduMode};
use crate::frame::RnicFrame;
use crate::handed::Handed;
use crate::held::HoldPool;
use crate::kept::Snapshots;
use crate::looks::Looks;
use crate::receive::Sink;
use crate::rnr::Rnr;
use crate::rounds::Rounds;
use crate::running::Running;
use crate::shared::Shared;

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
    /// Octets of FPDUs that have begun and are not whole, of all connections together, each counted
    /// with its full length. The connections of one peer address may have as much as is free beside.
    /// At least 512 KiB.
    pub max_unfinished_bytes: usize,
    /// How long a peer may leave an FPDU unfinished, or a gap, in which it gets on by less than 4 KiB:
    /// then the connection ends with [`CloseReason::Unfinished`]. An eighth of that while the room of
    /// the FPDU is what another connection of the same address waits for.
    pub fpdu_stall: Duration,
    /// How long a message of the peer's that finds no receive waits for one before it ends the stream
    /// (RFC 5041 section 7.1), as InfiniBand's "receiver not ready" has it. Zero: it does at once.
    pub rnr_wait: Duration,
    /// Whether queue pairs of this RNIC that are connected to each other hand FPDUs over, by one copy of the
    /// payload from region to region. Otherwise they send frames to each other, as to any peer.
    pub hand_over: bool,
}

impl RnicConfig {
    /// Octets for unfinished FPDUs: a thousand of the longest.
    pub const FPDU_MEMORY: usize = 64 << 20;

    /// How long a peer may leave one so: as long as TCP bears with a peer that is silent, for the
    /// cause can be the same.
    pub const FPDU_STALL: Duration = Duration::from_secs(120);

    /// [`FPDU_MEMORY`](Self::FPDU_MEMORY) and [`FPDU_STALL`](Self::FPDU_STALL) for unfinished FPDUs.
    pub fn new(
        stack: StackConfig,
        max_held_frames: usize,
        max_snapshot_bytes: usize,
    ) -> RnicConfig {
        RnicConfig {
            stack,
            max_held_frames,
            max_snapshot_bytes,
            max_unfinished_bytes: Self::FPDU_MEMORY,
            fpdu_stall: Self::FPDU_STALL,
            rnr_wait: Duration::ZERO,
            hand_over: true,
        }
    }
}

/// How long an RNIC bears with peers that keep its connections from getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// What TCP bears; see [`Stack::set_patience`].
    pub tcp: heddle_tcp::Patience,
    /// See [`RnicConfig::fpdu_stall`].
    pub fpdu_stall: Duration,
}

/// An order the RNIC could not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    pub(crate) shared: Shared<F>,
    pub(crate) running: Running,
    /// See [`Rnic::wants_crc`].
    pub(crate) wants_crc: bool,
    /// The frame that is being sent, kept so that it is filled in place.
    pub(crate) frame: TxFrame,
}

impl<F> core::fmt::Debug for Rnic<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rnic")
            .field("queue_pairs", &self.running.list.len())
            .field("held_buffers", &self.shared.pool.used())
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}

impl<F: RnicFrame> Rnic<F> {
    /// Octets of the heap that a connection with a queue pair takes while nothing is posted or under
    /// way, its places in all tables included.
    pub const CONN_OCTETS: usize =
        Stack::<ConnState<F>>::CONN_OCTETS + size_of::<QpContext>() + 3 * size_of::<ConnId>();

    /// An RNIC with no connections, over the regions of `mrs`.
    pub fn new(config: RnicConfig, mrs: Arc<MrTable>) -> Rnic<F> {
        let conns = config.stack.max_conns;
        let kept = Snapshots::new(Arc::new(Pins::new(mrs.capacity())), config.max_snapshot_bytes);
        Rnic {
            stack: Stack::new(config.stack),
            shared: Shared {
                mrs,
                counters: RnicCounters::default(),
                events: VecDeque::with_capacity(64),
                completed: VecDeque::with_capacity(conns),
                left: VecDeque::new(),
                ready: VecDeque::with_capacity(conns),
                handed: Handed::new(config.hand_over),
                kept,
                pool: HoldPool::new(config.max_held_frames, config.max_unfinished_bytes),
                looks: Looks::default(),
                rounds: Rounds::default(),
                rnr: Rnr::new(config.rnr_wait),
                fpdu_stall: config.fpdu_stall,
            },
            running: Running::with_capacity(conns),
            wants_crc: false,
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
    pub fn unlisten(&mut self, now: Instant, addr: Option<IpAddr>, port: u16) {
        self.stack.unlisten(now, addr, port);
    }

    /// Starts a TCP connection; [`Event::Connected`] or [`Event::Closed`] follows.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<ConnId, ConnectError> {
        self.connect_from(now, None, remote)
    }

    /// As [`connect`](Self::connect), from `local`, an address of ours.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) -> Result<ConnId, ConnectError> {
        self.stack.connect_from(now, local, remote, None)
    }

    /// Uses these addresses and routes from now on; see [`Stack::set_addressing`]. Connections that
    /// cannot go on are reset, and end with [`CloseReason::Withdrawn`]. It looks at every connection.
    pub fn set_addressing(&mut self, now: Instant, net: Addressing) {
        self.stack.set_addressing(now, net);
        self.pump_stack_events();
    }

    /// Queues bytes of the MPA start-up.
    pub fn send_startup(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), RnicError> {
        let (_, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        if !matches!(state.mode, Mode::Startup) {
            return Err(RnicError::NotStartup);
        }
        state.queue.push_startup(bytes);
        self.stack.notify_send(conn);
        Ok(())
    }

    /// Ends the start-up: sends what is left of it and makes the queue pair. Call
    /// [`start`](Self::start) when its first receives are posted.
    pub fn enter_fpdu_mode(&mut self, conn: ConnId, mode: FpduMode) -> Result<(), RnicError> {
        self.send_startup(conn, &mode.reply)?;
        let (_, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let qp = QpConfig { rnr_wait: !self.shared.rnr.wait.is_zero(), ..mode.qp };
        state.enter_fpdu(mode.startup_len, qp, &mut self.shared.pool);
        state.running_at = self.running.add(conn);
        self.shared.looks.wake_rounds();
        Ok(())
    }

    /// Hands a new queue pair the bytes that came behind the start-up.
    pub fn start<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        self.advance_held(Sink { mem, posted: None }, conn);
        if let Some((_, state)) = self.stack.get_mut(conn)
            && state.held.has_ready()
            && let Some(peer) = self.stack.remote_addr(conn)
            && let Some((_, state)) = self.stack.get_mut(conn)
            && !state.charge_fpdu(peer.ip(), &mut self.shared)
        {
            // The bytes were taken in the start-up, where it was not known that they are an FPDU's, and
            // peers that keep to the rules send none so early.
            return self.end_unfinished(conn);
        }
        self.drain_qp(conn);
        self.join(conn);
    }

    /// Resets a connection whose peer leaves an FPDU unfinished.
    pub(crate) fn end_unfinished(&mut self, conn: ConnId) {
        self.end(conn);
        if let Some((_, state)) = self.stack.get_mut(conn) {
            state.mode = Mode::Dead(Some(CloseReason::Unfinished));
            self.shared.counters.unfinished_timeouts += 1;
        }
        self.stack.abort(conn);
        self.pump_stack_events();
    }

    /// Posts to a queue pair's send queue.
    pub fn post_send(&mut self, conn: ConnId, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let (tcp, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let qp = state.qp().ok_or(RnicError::NoQueuePair)?;
        let result = qp.post_send(wr);
        // Whether it can be sent now is found out when its turn comes.
        state.make_ready(conn, &mut self.shared);
        if state.has_news() && state.collect(conn, tcp, &mut self.shared) {
            self.stack.close(conn);
        }
        Ok(result?)
    }

    /// Posts to a queue pair's receive queue.
    pub fn post_recv(&mut self, conn: ConnId, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let (_, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        state.qp().ok_or(RnicError::NoQueuePair)?.post_recv(wr)?;
        state.retry_rnr(conn, &mut self.shared);
        Ok(())
    }

    /// Calls `f` with the queue pair of a connection, to post as much as there is to post: it is found,
    /// and what comes of the posts is collected, once for all.
    #[inline]
    pub fn post_with<R>(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut QpContext) -> R,
    ) -> Result<R, RnicError> {
        let (tcp, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let result = f(state.qp().ok_or(RnicError::NoQueuePair)?);
        state.retry_rnr(conn, &mut self.shared);
        if state.drain(conn, tcp, &mut self.shared) {
            self.stack.close(conn);
        }
        Ok(result)
    }

    /// The queue pair of a connection, for its counters, its state and the peer's Terminate.
    pub fn qp(&self, conn: ConnId) -> Option<&QpContext> {
        match &self.stack.user(conn)?.mode {
            Mode::Fpdu(qp) => Some(qp),
            _ => None,
        }
    }

    /// Ends a connection in order: what is posted is sent and acknowledged, then FIN. It ends with
    /// [`CloseReason::TimedOut`] when nothing moves for
    /// [`ConnConfig::close_stall`](heddle_tcp::ConnConfig::close_stall).
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) {
        self.stack.bound_close(now, conn);
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let over = match state.qp() {
            Some(qp) => {
                // TCP follows when the send queue has drained.
                qp.close();
                state.drain(conn, tcp, &mut self.shared)
            }
            None => true,
        };
        if over {
            self.stack.close(conn);
        }
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
        self.look_at_rnr(now);
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) has to be called next.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let other = self.stack.poll_timeout();
        self.shared.looks.poll_timeout(other)
    }

    /// Returns true if [`handle_timeouts`](Self::handle_timeouts) has something to do: the time of
    /// [`poll_timeout`](Self::poll_timeout) has come. An owner sleeps by the one and acts by the other,
    /// so both ask the same parts; this costs a few loads, for every turn of a worker.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.shared.looks.is_due(now) || self.stack.is_due(now)
    }

    /// Whether there is nothing to do until a frame, an order or a work request comes, or time passes:
    /// no timer is due, nothing is to be sent, told or completed.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        // The stack's part of `is_due` is in its `is_idle`.
        !self.shared.looks.is_due(now)
            && self.stack.is_idle(now)
            && self.shared.ready.is_empty()
            && !self.has_handed()
            && !self.has_completions()
            && self.shared.events.is_empty()
    }

    /// Whether [`poll_event`](Self::poll_event) may have something to give.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.shared.events.is_empty()
    }

    /// Whether the [`payload_crc`](RnicFrame::payload_crc) of the next frame may be of use, as far as
    /// the last one tells.
    #[inline]
    pub fn wants_crc(&self) -> bool {
        self.wants_crc
    }

    /// The next event for the control plane. However long they are left to wait, their number is
    /// bounded: a connection has a few, each at most once, and stays until it is released.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(event) = self.shared.events.pop_front() {
            let Event::StartupBytes { conn, .. } = event else { return Some(event) };
            let Some((_, state)) = self.stack.get_mut(conn) else { continue };
            if let Some(bytes) = state.take_startup() {
                return Some(Event::StartupBytes { conn, bytes });
            }
        }
        None
    }

    /// Whether [`poll_datagram`](Self::poll_datagram) has something to give.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        self.stack.has_datagrams()
    }

    /// The next UDP datagram for the control plane. Few wait, and those beyond are dropped.
    pub fn poll_datagram(&mut self) -> Option<RxDatagram> {
        self.stack.poll_datagram()
    }

    /// Whether [`take_completions`](Self::take_completions) may have something to give.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.shared.completed.is_empty() || !self.shared.left.is_empty()
    }

    /// Calls `f` with all completions of one queue pair, and their connection; `None` when there are
    /// none of any. They lie where they were made: the queue pair that completes much is not the one
    /// that is looked up for each. `f` is also told whose places in the queues are free again, unless
    /// the connection is over: whoever sees the completions may count on these places.
    #[inline]
    pub fn take_completions<R>(
        &mut self,
        f: impl FnOnce(ConnId, &Completions, Option<Retired>) -> R,
    ) -> Option<(ConnId, R)> {
        while let Some(conn) = self.shared.completed.pop_front() {
            let Some((_, state)) = self.stack.get_mut(conn) else { continue };
            state.on_completed_list = false;
            if let Mode::Fpdu(qp) = &mut state.mode
                && qp.has_completions()
            {
                let result = qp.take_completions(|all, retired| f(conn, all, Some(retired)));
                return Some((conn, result));
            }
        }
        let (conn, left) = self.shared.left.pop_front()?;
        Some((conn, f(conn, &left, None)))
    }

    /// The next completion, and the connection of its queue pair: one at a time what
    /// [`take_completions`](Self::take_completions) gives.
    pub fn poll_completion(&mut self) -> Option<(ConnId, Cqe)> {
        while let Some(&conn) = self.shared.completed.front() {
            if let Some((_, state)) = self.stack.get_mut(conn) {
                if let Some(cqe) = state.qp().and_then(QpContext::poll_completion) {
                    return Some((conn, cqe));
                }
                state.on_completed_list = false;
            }
            self.shared.completed.pop_front();
        }
        while let Some((conn, left)) = self.shared.left.front_mut() {
            if let Some(cqe) = left.take_first() {
                return Some((*conn, cqe));
            }
            self.shared.left.pop_front();
        }
        None
    }

    /// Counters of the joint.
    pub fn counters(&self) -> &RnicCounters {
        &self.shared.counters
    }

    /// Counters of the TCP/IP stack.
    pub fn stack_counters(&self) -> &StackCounters {
        self.stack.counters()
    }

    /// Round trips that TCP measured ([`Stack::round_trips`]).
    pub fn round_trips(&self) -> &Histogram {
        self.stack.round_trips()
    }

    /// A TCP connection, to look at.
    pub fn connection(&self, conn: ConnId) -> Option<&heddle_tcp::Connection> {
        self.stack.conn(conn)
    }

    /// Counts, for each region, of the FPDUs in send queues that refer to it.
    pub fn pins(&self) -> Arc<Pins> {
        self.shared.kept.pins.clone()
    }

    /// FPDUs that refer to the region in slot `mr`, counted anew by a walk through all send queues:
    /// what [`pins`](Self::pins) should say. For tests.
    pub fn count_references(&self, mr: u32) -> u32 {
        self.running
            .list
            .iter()
            .filter_map(|conn| self.stack.user(*conn))
            .map(|state| state.queue.references(mr))
            .sum()
    }

    /// Octets of Read Responses kept at this moment.
    pub fn snapshot_bytes(&self) -> usize {
        self.shared.kept.snapshots()
    }

    /// Buffers that bytes which wait take at this moment; see [`RnicConfig::max_held_frames`].
    pub fn held_frames(&self) -> usize {
        self.shared.pool.used()
    }

    /// Octets that FPDUs which are not whole are charged with at this moment; see
    /// [`RnicConfig::max_unfinished_bytes`].
    pub fn unfinished_bytes(&self) -> usize {
        self.shared.pool.unfinished()
    }

    /// Bears with peers for so long from now on, those of connections that stand included.
    pub fn set_patience(&mut self, patience: Patience) {
        self.stack.set_patience(patience.tcp);
        self.shared.fpdu_stall = patience.fpdu_stall;
    }

    /// Takes events out of a queue pair, and puts the connection on the lists it belongs on.
    #[inline]
    pub(crate) fn drain_qp(&mut self, conn: ConnId) {
        if let Some((tcp, state)) = self.stack.get_mut(conn)
            && state.drain(conn, tcp, &mut self.shared)
        {
            self.stack.close(conn);
        }
    }

    /// Flushes a connection's queue pair and drops what waits.
    fn end(&mut self, conn: ConnId) {
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let at = state.running_at;
        if let Some(counters) = state.finish(conn, tcp, &mut self.shared) {
            self.stop_running(at, &counters);
        }
    }

    pub(crate) fn pump_stack_events(&mut self) {
        while let Some((conn, event)) = self.stack.poll_event() {
            let reason = match event {
                StackEvent::Accepted { local, remote } => {
                    self.shared.events.push_back(Event::Accepted { conn, local, remote });
                    continue;
                }
                StackEvent::Conn(ConnEvent::Connected) => {
                    if let Some(local) = self.stack.local_addr(conn) {
                        self.shared.events.push_back(Event::Connected { conn, local });
                    }
                    continue;
                }
                StackEvent::Conn(ConnEvent::PeerClosed) => {
                    if let Some((_, state)) = self.stack.get_mut(conn)
                        && let in_fpdu = state.held.has_ready()
                        && let Some(qp) = state.qp()
                    {
                        // What has not made a whole FPDU never will.
                        qp.handle_peer_closed(in_fpdu);
                        self.drain_qp(conn);
                    }
                    self.shared.events.push_back(Event::PeerClosed { conn });
                    continue;
                }
                StackEvent::Conn(ConnEvent::Closed) => CloseReason::Orderly,
                StackEvent::Conn(ConnEvent::Reset) => CloseReason::Reset,
                StackEvent::Conn(ConnEvent::Refused) => CloseReason::Refused,
                StackEvent::Conn(ConnEvent::TimedOut) => CloseReason::TimedOut,
                StackEvent::Conn(ConnEvent::WindowShut) => CloseReason::WindowShut,
                StackEvent::Conn(ConnEvent::Aborted) => {
                    match self.stack.user(conn).map(|state| &state.mode) {
                        Some(Mode::Dead(Some(reason))) => *reason,
                        _ => CloseReason::Aborted,
                    }
                }
                StackEvent::Unreachable => CloseReason::Unreachable,
                StackEvent::Withdrawn => CloseReason::Withdrawn,
                // The connection goes on. TCP has counted the notice, shows it as its hindrance to whoever
                // looks, and ends the connection if it gets no further: its limits take back what
                // requests hold.
                StackEvent::Conn(ConnEvent::Stalled | ConnEvent::Unresponsive) => continue,
                // The stack has counted it.
                _ => continue,
            };
            self.end(conn);
            self.shared.events.push_back(Event::Closed { conn, reason });
        }
    }
}
