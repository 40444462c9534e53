//! The RNIC: connections, queue pairs, and the orders of the control plane.

use std::collections::VecDeque;
use std::sync::Arc;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_base::{Histogram, Instant};
use heddle_engine::{Completions, Retired, Shares};
use heddle_iwarp::{QpConfig, QpContext};
use heddle_mr::{Memory, MrTable, Pins};
use heddle_tcp::{
    Addressing, ConnEvent, LinkNews, RxDatagram, Stack, StackConfig, StackCounters, StackEvent,
    TxFrame,
};
use heddle_types::{
    CloseReason, ConnId, ConnectError, Cqe, ListenAt, ListenError, RecvWr, RnicError, SendWr,
    TcpTerms,
};

use crate::conn::{ConnState, Mode};
use crate::counters::RnicCounters;
use crate::event::{Event, FpduMode};
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

/// Configuration of an RNIC.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// Addresses, limits and seed of the TCP stack.
    pub stack: StackConfig,
    /// Buffers that waiting bytes of all connections together may take: received frames that the
    /// RNIC keeps, and buffers of 2 KiB for copies of bytes beyond a gap. A connection may hold as
    /// many buffers as are still free, so that a few connections cannot take all buffers from the
    /// others.
    pub max_held_frames: usize,
    /// Bytes of Read Responses that the RNIC may keep until the peers acknowledge them. A
    /// connection may keep as many bytes as all connections together leave free, and always one
    /// FPDU.
    pub max_snapshot_bytes: usize,
    /// Bytes that unfinished FPDUs (begun and not yet whole) of all connections together may take,
    /// each FPDU counted with its full length. The connections of one peer address may together
    /// take as much as is still free. At least 512 KiB.
    pub max_unfinished_bytes: usize,
    /// How long a peer may leave an FPDU unfinished, or a gap open, while its stream advances by
    /// less than 4 KiB: after this time the connection ends with [`CloseReason::Unfinished`]. The
    /// RNIC allows an eighth of this time while another connection of the same address waits for
    /// the room that the FPDU takes.
    pub fpdu_stall: Duration,
    /// How long a message of the peer that finds no receive waits for one before the message ends
    /// the stream (RFC 5041 section 7.1), as with InfiniBand's "receiver not ready". With zero, the
    /// message ends the stream at once.
    pub rnr_wait: Duration,
    /// Whether queue pairs of this RNIC that are connected to each other hand FPDUs over, by one
    /// copy of the payload from region to region. If false, such queue pairs send frames to each
    /// other, as to any peer.
    pub hand_over: bool,
}

impl RnicConfig {
    /// Default of [`max_unfinished_bytes`](Self::max_unfinished_bytes): a thousand of the longest
    /// FPDUs.
    pub const FPDU_MEMORY: usize = 64 << 20;

    /// Default of [`fpdu_stall`](Self::fpdu_stall): as long as TCP bears with a silent peer,
    /// because the cause can be the same.
    pub const FPDU_STALL: Duration = Duration::from_secs(120);

    /// Returns a configuration with [`FPDU_MEMORY`](Self::FPDU_MEMORY) and
    /// [`FPDU_STALL`](Self::FPDU_STALL) for unfinished FPDUs.
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

/// How long an RNIC bears with peers that keep its connections from making progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// TCP's limits; see [`Stack::set_patience`].
    pub tcp: heddle_tcp::Patience,
    /// See [`RnicConfig::fpdu_stall`].
    pub fpdu_stall: Duration,
}

/// A software RNIC on one port queue; see the crate's documentation for the calling order.
///
/// An RNIC belongs to one thread. `F` is a received frame: an mbuf in a worker, a byte vector in a
/// test.
pub struct Rnic<F> {
    pub(crate) stack: Stack<ConnState<F>>,
    pub(crate) shared: Shared<F>,
    pub(crate) running: Running,
    /// See [`Rnic::wants_crc`].
    pub(crate) wants_crc: bool,
    /// The frame that the RNIC is sending, kept here so that the stack fills it in place.
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
    /// Heap bytes of a connection with a queue pair while nothing is posted or in flight, including
    /// its places in all tables.
    pub const CONN_BYTES: usize =
        Stack::<ConnState<F>>::CONN_BYTES + size_of::<QpContext>() + 3 * size_of::<ConnId>();

    /// Returns an RNIC with no connections, over the regions of `mrs`.
    pub fn new(config: RnicConfig, mrs: Arc<MrTable>) -> Rnic<F> {
        let conns = config.stack.max_conns;
        let kept = Snapshots::new(
            Arc::new(Pins::new(mrs.capacity())),
            config.max_snapshot_bytes,
            !config.stack.tx_tcp_csum,
        );
        Rnic {
            stack: Stack::new(config.stack),
            shared: Shared {
                mrs,
                counters: RnicCounters::default(),
                events: VecDeque::with_capacity(64),
                completed: VecDeque::with_capacity(conns),
                left: VecDeque::new(),
                ready: VecDeque::with_capacity(conns),
                shares: Shares::default(),
                fair: Box::default(),
                handed: Handed::new(config.hand_over),
                kept,
                owing: Vec::with_capacity(64),
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

    /// Accepts TCP connections to `port` at the addresses `at`.
    pub fn listen(
        &mut self,
        at: impl Into<ListenAt>,
        port: u16,
        backlog: usize,
    ) -> Result<(), ListenError> {
        self.stack.listen(at, port, backlog)
    }

    /// Like [`listen`](Self::listen), but with the settings of TCP that `tcp` names.
    pub fn listen_with(
        &mut self,
        at: impl Into<ListenAt>,
        port: u16,
        backlog: usize,
        tcp: TcpTerms,
    ) -> Result<(), ListenError> {
        self.stack.listen_with(at, port, backlog, tcp)
    }

    /// Stops the listener that [`listen`](Self::listen) started with the same addresses and port;
    /// established connections go on.
    pub fn unlisten(&mut self, now: Instant, at: impl Into<ListenAt>, port: u16) {
        self.stack.unlisten(now, at, port);
    }

    /// Starts a TCP connection; [`Event::Connected`] or [`Event::Closed`] follows.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<ConnId, ConnectError> {
        self.connect_from(now, None, remote)
    }

    /// Like [`connect`](Self::connect), but from `local`, an address of ours.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) -> Result<ConnId, ConnectError> {
        self.stack.connect_from(now, local, remote, None)
    }

    /// Like [`connect_from`](Self::connect_from), but with the settings of TCP that `tcp` names.
    pub fn connect_with(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
        tcp: TcpTerms,
    ) -> Result<ConnId, ConnectError> {
        self.stack.connect_with(now, (local, None), remote, tcp)
    }

    /// Uses these addresses and routes from now on; see [`Stack::set_addressing`]. The stack resets
    /// connections that cannot go on, and these end with [`CloseReason::Withdrawn`]. This call
    /// looks at every connection.
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

    /// Ends the start-up: sends the rest of the start-up bytes and makes the queue pair. The caller
    /// calls [`start`](Self::start) after it has posted the queue pair's first receives.
    pub fn enter_fpdu_mode(&mut self, conn: ConnId, mode: FpduMode) -> Result<(), RnicError> {
        self.send_startup(conn, &mode.reply)?;
        let (_, state) = self.stack.get_mut(conn).ok_or(RnicError::NoConnection)?;
        let qp = QpConfig { rnr_wait: !self.shared.rnr.wait.is_zero(), ..mode.qp };
        state.enter_fpdu(mode.startup_len, qp, &mut self.shared.pool);
        state.running_at = self.running.add(conn);
        self.shared.looks.wake_rounds();
        Ok(())
    }

    /// Hands a new queue pair the bytes that came after the start-up.
    pub fn start<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        self.advance_held(Sink { mem, posted: None }, conn);
        if let Some((_, state)) = self.stack.get_mut(conn)
            && state.held.has_ready()
            && let Some(peer) = self.stack.remote_addr(conn)
            && let Some((_, state)) = self.stack.get_mut(conn)
            && !state.charge_fpdu(peer.ip(), &mut self.shared)
        {
            // The RNIC took these bytes during the start-up, when it did not know that they belong
            // to an FPDU. Peers that follow the rules send no FPDU so early.
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
        // `make_fpdus` finds out in the connection's turn whether it can send now.
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

    /// Calls `f` with the queue pair of a connection, so that `f` can post any number of requests.
    /// This call looks up the queue pair once, and collects the results of the posts once for all
    /// of them.
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

    /// Returns the queue pair of a connection, for its counters, its state and the peer's
    /// Terminate.
    pub fn qp(&self, conn: ConnId) -> Option<&QpContext> {
        match &self.stack.user(conn)?.mode {
            Mode::Fpdu(qp) => Some(qp),
            _ => None,
        }
    }

    /// Ends a connection in order: the RNIC sends all posted requests, waits for the peer to
    /// acknowledge them, then sends a FIN. The connection ends with [`CloseReason::TimedOut`] if it
    /// makes no progress for [`ConnConfig::close_stall`](heddle_tcp::ConnConfig::close_stall).
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) {
        self.stack.bound_close(now, conn);
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let over = match state.qp() {
            Some(qp) => {
                // TCP closes when the send queue has drained.
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

    /// Frees a connection whose [`Event::Closed`] the caller has seen; resets a connection that is
    /// still open.
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
        self.wake_shares(now);
    }

    /// Returns when the owner has to call [`handle_timeouts`](Self::handle_timeouts) next.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let other = self.stack.poll_timeout();
        self.shared.looks.poll_timeout(other)
    }

    /// Returns true if [`handle_timeouts`](Self::handle_timeouts) has something to do, that is, if
    /// the time of [`poll_timeout`](Self::poll_timeout) has come. An owner sleeps by `poll_timeout`
    /// and acts by this function, so both ask the same parts. This call costs a few loads in every
    /// turn of a worker.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.shared.looks.is_due(now) || self.stack.is_due(now)
    }

    /// Returns true if the RNIC has nothing to do until a frame, an order or a work request comes,
    /// or time passes: no timer is due, and no frame, event or completion waits.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        // `Stack::is_idle` includes the stack's part of `is_due`.
        !self.shared.looks.is_due(now)
            && self.stack.is_idle(now)
            && self.shared.ready.is_empty()
            && !self.has_handed()
            && !self.has_completions()
            && self.shared.events.is_empty()
    }

    /// Returns true if [`poll_event`](Self::poll_event) may return an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.shared.events.is_empty() || self.stack.has_events()
    }

    /// Returns true if the [`payload_crc`](RnicFrame::payload_crc) of the next frame is likely to
    /// be used, judging by the last two frames.
    #[inline]
    pub fn wants_crc(&self) -> bool {
        self.wants_crc
    }

    /// Returns the next event for the control plane. The number of waiting events is bounded,
    /// however long the control plane leaves them: a connection has a few events, each at most
    /// once, and stays until the control plane releases it.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.shared.events.is_empty() {
            // The RNIC takes TCP's events after frames and timers. An order, a post or a frame to
            // send can cause one too, and no frame or timer may follow.
            self.pump_stack_events();
        }
        while let Some(event) = self.shared.events.pop_front() {
            tracing::trace!(?event, "connection event");
            let Event::StartupBytes { conn, .. } = event else { return Some(event) };
            let Some((_, state)) = self.stack.get_mut(conn) else { continue };
            if let Some(bytes) = state.take_startup() {
                return Some(Event::StartupBytes { conn, bytes });
            }
        }
        None
    }

    /// Returns true if [`poll_datagram`](Self::poll_datagram) would return a datagram.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        self.stack.has_datagrams()
    }

    /// Returns the next UDP datagram for the control plane. The stack keeps few and drops the rest.
    pub fn poll_datagram(&mut self) -> Option<RxDatagram> {
        self.stack.poll_datagram()
    }

    /// Returns true if [`poll_news`](Self::poll_news) would return news.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.stack.has_news()
    }

    /// Returns the next news about the links, for the control plane.
    pub fn poll_news(&mut self) -> Option<LinkNews> {
        self.stack.poll_news()
    }

    /// Returns true if [`take_completions`](Self::take_completions) may have completions to pass
    /// on.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.shared.completed.is_empty() || !self.shared.left.is_empty()
    }

    /// Calls `f` with all completions of one queue pair, and their connection; returns `None` when
    /// no queue pair has any. The completions stay where the queue pair made them, so a queue pair
    /// that completes much is looked up once for all of them. `f` also gets the running counts of
    /// requests whose places in the queues are free again, unless the connection is over: an
    /// application that sees the completions may count on these places.
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

    /// Returns the next completion, and the connection of its queue pair. This function returns one
    /// at a time the completions that [`take_completions`](Self::take_completions) passes on
    /// together.
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

    /// Returns the counters of the joint between TCP and iWARP.
    pub fn counters(&self) -> &RnicCounters {
        &self.shared.counters
    }

    /// Returns the counters of the TCP/IP stack.
    pub fn stack_counters(&self) -> &StackCounters {
        self.stack.counters()
    }

    /// Returns the round trips that TCP measured ([`Stack::round_trips`]).
    pub fn round_trips(&self) -> &Histogram {
        self.stack.round_trips()
    }

    /// Returns a TCP connection, for inspection.
    pub fn connection(&self, conn: ConnId) -> Option<&heddle_tcp::Connection> {
        self.stack.conn(conn)
    }

    /// Returns, for each region, the count of FPDUs in send queues that refer to the region.
    pub fn pins(&self) -> Arc<Pins> {
        self.shared.kept.pins.clone()
    }

    /// Returns the number of FPDUs that refer to the region in slot `mr`, counted anew by a walk
    /// through all send queues: the number that [`pins`](Self::pins) should give. For tests.
    pub fn count_references(&self, mr: u32) -> u32 {
        self.running
            .list
            .iter()
            .filter_map(|conn| self.stack.user(*conn))
            .map(|state| state.queue.references(mr))
            .sum()
    }

    /// Returns the bytes of Read Responses that the send queues keep at this moment.
    pub fn snapshot_bytes(&self) -> usize {
        self.shared.kept.snapshots()
    }

    /// Returns the buffers that waiting bytes take at this moment; see
    /// [`RnicConfig::max_held_frames`].
    pub fn held_frames(&self) -> usize {
        self.shared.pool.used()
    }

    /// Returns the bytes charged to unfinished FPDUs at this moment; see
    /// [`RnicConfig::max_unfinished_bytes`].
    pub fn unfinished_bytes(&self) -> usize {
        self.shared.pool.unfinished()
    }

    /// Sets how long the RNIC bears with peers from now on, for established connections as well.
    pub fn set_patience(&mut self, patience: Patience) {
        self.stack.set_patience(patience.tcp);
        self.shared.fpdu_stall = patience.fpdu_stall;
    }

    /// Takes events out of a queue pair, and puts the connection on the lists that apply to it.
    #[inline]
    pub(crate) fn drain_qp(&mut self, conn: ConnId) {
        if let Some((tcp, state)) = self.stack.get_mut(conn)
            && state.drain(conn, tcp, &mut self.shared)
        {
            self.stack.close(conn);
        }
    }

    /// Flushes a connection's queue pair and drops the bytes that wait.
    fn end(&mut self, conn: ConnId) {
        let Some((tcp, state)) = self.stack.get_mut(conn) else { return };
        let at = state.running_at;
        if let Some(counters) = state.finish(conn, tcp, &mut self.shared) {
            self.stop_running(at, &counters);
            self.shared.shares.leave(conn.index());
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
                        // Bytes that make no whole FPDU yet never will.
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
                // The connection goes on. TCP has counted the notice, shows it as the connection's
                // hindrance to observers, and ends the connection if it makes no further progress;
                // TCP's limits then free the resources that requests hold.
                StackEvent::Conn(ConnEvent::Stalled | ConnEvent::Unresponsive) => continue,
                // The stack has counted the event.
                _ => continue,
            };
            self.end(conn);
            self.shared.events.push_back(Event::Closed { conn, reason });
        }
    }
}
