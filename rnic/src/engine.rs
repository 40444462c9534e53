//! The engine for iWARP over TCP: [`Rnic`] behind the trait by which a worker knows it.

use std::sync::Arc;

use heddle_base::{Fetch, Histogram, Instant, StreamPos};
use heddle_engine::{
    Change, Completions, Counters, Engine, Retired, Share, Step, Subject, TxSink, Untaken,
};
use heddle_iwarp::{QpContext, QpCounters};
use heddle_mr::{Memory, MrTable, Pins};
use heddle_tcp::{ConnCounters, ConnStats, Hindrance, StackConfig, StackCounters, State};
use heddle_types::{ConnId, RnicError};

use crate::conn::Mode;
use crate::counters::RnicCounters;
use crate::event::{Event, FpduMode};
use crate::frame::RnicFrame;
use crate::order::{Arrival, Order, Report};
use crate::rnic::{Rnic, RnicConfig};

/// All counters of an RNIC: its own, and the sums of those of its connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct RnicSums {
    /// Counters of the joint of TCP and iWARP.
    pub rnic: RnicCounters,
    /// Counters of the TCP/IP stack.
    pub stack: StackCounters,
    /// Counters of all TCP connections together.
    pub tcp: ConnCounters,
    /// Counters of all queue pairs together.
    pub qps: QpCounters,
}

impl Counters for RnicSums {
    fn for_each(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        self.rnic.for_each(|n, h, v| f("rnic", n, h, v));
        self.stack.for_each(|n, h, v| f("stack", n, h, v));
        self.tcp.for_each(|n, h, v| f("tcp", n, h, v));
        self.qps.for_each(|n, h, v| f("qp", n, h, v));
    }

    fn add(&mut self, other: &RnicSums) {
        let RnicSums { rnic, stack, tcp, qps } = other;
        self.rnic.add(rnic);
        self.stack.add(stack);
        self.tcp.add(tcp);
        self.qps.add(qps);
    }
}

/// The state of a connection, for people who look.
#[derive(Clone, Debug)]
pub struct RnicFacts {
    /// TCP's state.
    pub state: State,
    /// Bytes of payload in a full segment.
    pub emss: u32,
    /// Round-trip time, windows, retransmissions.
    pub tcp: ConnStats,
    /// The reason why the connection makes no progress, if there is one.
    pub hindrance: Option<Hindrance>,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes that came from the peer, in order.
    pub received: u64,
    /// The counters of the queue pair, while there is one.
    pub qp: Option<QpCounters>,
}

impl<F: RnicFrame> Rnic<F> {
    fn sums(&self, tcp: ConnCounters, qps: QpCounters) -> RnicSums {
        RnicSums { rnic: self.shared.counters, stack: *self.stack.counters(), tcp, qps }
    }
}

impl<F: RnicFrame> Engine for Rnic<F> {
    type Config = RnicConfig;
    type Frame = F;
    type Qp = QpContext;
    type Mode = FpduMode;
    type Order = Order;
    type Report = Report;
    type Datagram = Arrival;
    type Counters = RnicSums;
    type Facts = RnicFacts;

    fn new(mut config: RnicConfig, mrs: Arc<MrTable>, frames_only: bool) -> Rnic<F> {
        config.hand_over &= !frames_only;
        Rnic::new(config, mrs)
    }

    fn closed(config: &RnicConfig) -> Rnic<F> {
        let stack = StackConfig { max_conns: 1, ..config.stack.clone() };
        let mrs = Arc::new(MrTable::new(&stack.seed, 1));
        Rnic::new(RnicConfig { stack, ..*config }, mrs)
    }

    fn max_conns(config: &RnicConfig) -> usize {
        config.stack.max_conns
    }

    fn pins(&self) -> Arc<Pins> {
        Rnic::pins(self)
    }

    #[inline]
    fn is_idle(&self, now: Instant) -> bool {
        Rnic::is_idle(self, now)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        Rnic::poll_timeout(self)
    }

    #[inline]
    fn is_due(&self, now: Instant) -> bool {
        Rnic::is_due(self, now)
    }

    fn handle_timeouts(&mut self, now: Instant) {
        Rnic::handle_timeouts(self, now);
    }

    #[inline]
    fn wants_digest(&self) -> bool {
        self.wants_crc()
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.stack.is_wide()
    }

    fn look_ahead(&mut self, frames: &[Option<F>], fetch: impl Fetch) {
        self.stack.look_ahead(frames, fetch);
    }

    fn seen_ahead(&mut self, at: usize) -> Option<usize> {
        self.stack.seen_ahead(at).map(|index| index as usize)
    }

    #[inline]
    fn fetch(&self, index: usize, step: Step, fetch: impl Fetch) {
        let Ok(index) = u32::try_from(index) else { return };
        if step == Step::Conn {
            return self.stack.fetch(index, fetch);
        }
        let Some(state) = self.stack.user_at(index) else { return };
        let Mode::Fpdu(qp) = &state.mode else { return };
        if step == Step::Qp {
            qp.fetch_state(fetch);
            state.queue.fetch(fetch);
        } else {
            qp.fetch(fetch);
        }
    }

    #[inline]
    fn rest(&mut self) {
        self.stack.rest();
    }

    #[inline(always)]
    fn handle_frames<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        posted: &Untaken<'_, QpContext>,
        frames: &mut [Option<F>],
    ) {
        Rnic::handle_frames(self, now, mem, posted, frames);
    }

    #[inline]
    fn has_handed(&self) -> bool {
        Rnic::has_handed(self)
    }

    fn hand_over<M: Memory>(&mut self, now: Instant, mem: &M, posted: &Untaken<'_, QpContext>) {
        self.hand_over_with(now, mem, posted);
    }

    #[inline(always)]
    fn poll_transmit<M: Memory, S: TxSink>(&mut self, now: Instant, mem: &M, sink: &mut S) -> u32 {
        Rnic::poll_transmit(self, now, mem, sink)
    }

    #[inline]
    fn wants_transmit(&self) -> bool {
        Rnic::wants_transmit(self)
    }

    #[inline]
    fn end_transmit<M: Memory>(&mut self, mem: &M) {
        Rnic::end_transmit(self, mem);
    }

    #[inline(always)]
    fn post_with<R>(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut QpContext) -> R,
    ) -> Result<R, RnicError> {
        Rnic::post_with(self, conn, f)
    }

    #[inline]
    fn qp(&self, conn: ConnId) -> Option<&QpContext> {
        Rnic::qp(self, conn)
    }

    #[inline]
    fn has_completions(&self) -> bool {
        Rnic::has_completions(self)
    }

    #[inline]
    fn completed_ahead(&self, after: usize) -> Option<usize> {
        self.shared.completed.get(after).map(|conn| conn.index())
    }

    #[inline(always)]
    fn take_completions<R>(
        &mut self,
        f: impl FnOnce(ConnId, &Completions, Option<Retired>) -> R,
    ) -> Option<(ConnId, R)> {
        Rnic::take_completions(self, f)
    }

    fn subject(order: &Order) -> Subject {
        match *order {
            Order::Disconnect { conn } => Subject::Disconnect(conn),
            Order::Release { conn } => Subject::Release(conn),
            _ => Subject::Other,
        }
    }

    fn handle_order(&mut self, now: Instant, order: Order) -> Option<Report> {
        Rnic::handle_order(self, now, order)
    }

    fn enter(&mut self, conn: ConnId, mode: FpduMode) -> Result<(), RnicError> {
        self.enter_fpdu_mode(conn, mode)
    }

    fn assign(&mut self, conn: ConnId, share: &Arc<Share>) {
        Rnic::assign(self, conn, share);
    }

    fn start<M: Memory>(&mut self, mem: &M, conn: ConnId) {
        Rnic::start(self, mem, conn);
    }

    fn abort(&mut self, conn: ConnId) {
        Rnic::abort(self, conn);
    }

    #[inline]
    fn has_events(&self) -> bool {
        Rnic::has_events(self)
    }

    fn poll_event(&mut self) -> Option<(Change, Report)> {
        let event = Rnic::poll_event(self)?;
        let change = match event {
            Event::Qp { conn, .. } => Change::State(conn),
            Event::Closed { conn, .. } => Change::Closed(conn),
            _ => Change::None,
        };
        Some((change, Report::Event(event)))
    }

    fn entered(conn: ConnId, result: Result<(), RnicError>) -> Report {
        Report::Entered { conn, result }
    }

    #[inline]
    fn has_datagrams(&self) -> bool {
        Rnic::has_datagrams(self) || self.has_news()
    }

    fn poll_datagram(&mut self) -> Option<Arrival> {
        let datagram = Rnic::poll_datagram(self).map(Arrival::Datagram);
        datagram.or_else(|| self.poll_news().map(Arrival::News))
    }

    fn is_known(arrival: &Arrival) -> bool {
        matches!(arrival, Arrival::Datagram(d) if d.known)
    }

    fn brought(arrival: Arrival) -> Report {
        match arrival {
            Arrival::Datagram(d) => Report::Datagram(Box::new(d)),
            Arrival::News(news) => Report::Link(Box::new(news)),
        }
    }

    fn round_trips(&self) -> &Histogram {
        Rnic::round_trips(self)
    }

    fn poll_counters(&mut self, most: usize) -> Option<RnicSums> {
        let tcp = match self.running.tcp.take() {
            Some(tcp) => tcp,
            None => self.poll_conn_counters(most)?,
        };
        match self.poll_qp_counters(most) {
            Some(qps) => Some(self.sums(tcp, qps)),
            None => {
                self.running.tcp = Some(tcp);
                None
            }
        }
    }

    fn counters(&self) -> RnicSums {
        self.sums(self.conn_counters(), self.qp_counters())
    }

    fn inspect(&self, conn: ConnId) -> Option<RnicFacts> {
        let tcp = self.connection(conn)?;
        Some(RnicFacts {
            state: tcp.state(),
            emss: tcp.emss(),
            tcp: tcp.stats(),
            hindrance: tcp.hindrance(),
            acked: tcp.snd_una().since(StreamPos::START),
            received: tcp.rcv_nxt().since(StreamPos::START),
            qp: Rnic::qp(self, conn).map(QpContext::counters),
        })
    }
}
