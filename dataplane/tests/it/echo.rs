//! A second engine under the worker, the rings and the objects of applications, none of which knows
//! a protocol.
//!
//! The echo transport sends each Send in one frame, and the receiver echoes the frame's header when
//! the message is in its place. The sender keeps one Send in flight. It retransmits a Send that is
//! not echoed, and gives up after [`TRIES`]. A receiver without a receive echoes that it is not
//! ready.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use heddle_base::{Chunks as _, Histogram, Instant, Seed};
use heddle_dataplane::worker::{Command, WorkerReport};
use heddle_dataplane::*;
use heddle_engine::{
    Change, Completions, Counters, Engine, Offload, QueuePair, Retired, SharedReceives, Subject,
    TxSink, Untaken,
};
use heddle_mr::{Memory as Registered, MrTable, Pins};
use heddle_rings::worker::WorkerQp;
use heddle_types::{
    Access, ConnId, ConnectedState, Cqe, CqeOp, CqeStatus, Data, PostError, Queue, RecvWr,
    RnicError, SendOp, SendWr, Sge,
};

use crate::common::*;
use crate::side::{self, Objects};

/// Ethernet's type for experiments (IEEE 802), then kind, connection, number and length.
const TYPE: [u8; 2] = [0x88, 0xb5];
const HEADER: usize = 14 + 8;
const MOST: usize = 1024;
const TRIES: u32 = 3;
const WAIT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message = 1,
    Echo = 2,
    NotReady = 3,
}

/// A request as its queue pair keeps it.
#[derive(Debug)]
struct Posted {
    wr_id: u64,
    sges: Vec<Sge>,
    tries: u32,
}

#[derive(Debug)]
struct EchoQp {
    qp: QpInfo,
    conn: ConnId,
    state: ConnectedState,
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
    cq: Completions,
    /// Requests that have completed.
    done: Retired,
    /// The number of the next message that comes.
    next: u16,
    /// When to send the oldest Send, again or for the first time; never if it has to be echoed.
    due: Option<Instant>,
    in_flight: bool,
}

/// The numbers by which regions and completions know a queue pair.
#[derive(Clone, Copy, Debug)]
struct QpInfo {
    qpn: heddle_types::Qpn,
    pd: heddle_types::Pd,
}

impl EchoQp {
    fn complete(&mut self, queue: Queue, status: CqeStatus, len: u32) {
        let (list, count, op) = match queue {
            Queue::Sq => (&mut self.sends, &mut self.done.sq, CqeOp::Send),
            Queue::Rq => (&mut self.recvs, &mut self.done.rq, CqeOp::Recv),
        };
        let Some(Posted { wr_id, .. }) = list.pop_front() else { return };
        let (qpn, solicited, invalidated, immediate) = (self.qp.qpn, false, None, None);
        let cqe = Cqe { wr_id, qpn, queue, op, status, solicited, len, invalidated, immediate };
        self.cq.push(cqe, *count);
        *count = count.wrapping_add(1);
        self.in_flight &= queue == Queue::Rq;
    }

    fn fail(&mut self, status: CqeStatus) {
        self.complete(Queue::Sq, status, 0);
        self.state = ConnectedState::Error;
        while !self.sends.is_empty() {
            self.complete(Queue::Sq, CqeStatus::Flushed, 0);
        }
        while !self.recvs.is_empty() {
            self.complete(Queue::Rq, CqeStatus::Flushed, 0);
        }
    }

    fn post(list: &mut VecDeque<Posted>, wr_id: u64, sges: &[Sge]) {
        list.push_back(Posted { wr_id, sges: sges.to_vec(), tries: 0 });
    }
}

impl QueuePair for EchoQp {
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let (SendOp::Send { .. }, Data::Sges(sges)) = (wr.op, wr.data) else {
            return Err(PostError::Full);
        };
        EchoQp::post(&mut self.sends, wr.wr_id, sges);
        Ok(())
    }

    fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        EchoQp::post(&mut self.recvs, wr.wr_id, wr.sges);
        Ok(())
    }

    fn share_receives(&mut self, _: Box<dyn SharedReceives>) {}

    fn retired(&self) -> Retired {
        self.done
    }

    fn state(&self) -> ConnectedState {
        self.state
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    messages: u64,
}

impl Counters for Sums {
    fn for_each(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        f("echo", "messages", "Messages received.", self.messages);
    }

    fn add(&mut self, other: &Sums) {
        self.messages += other.messages;
    }
}

#[derive(Debug)]
enum Order {
    Open,
    Close(ConnId),
    Release(ConnId),
}

#[derive(Debug)]
enum Report {
    Opened(ConnId),
    Entered(ConnId, Result<(), RnicError>),
    Closed(ConnId),
}

/// The engine: connections by index, both ends of each having the same.
#[derive(Debug)]
struct Echo {
    mrs: Arc<MrTable>,
    qps: Vec<Option<EchoQp>>,
    conns: u32,
    /// Headers to send: kind, connection, number.
    answers: VecDeque<(Kind, u8, u16)>,
    events: VecDeque<(Change, Report)>,
    round_trips: Histogram,
    sums: Sums,
    now: Instant,
}

impl Echo {
    /// Returns the header of a frame; both ends of a connection know it by the same number.
    fn header(kind: Kind, conn: u8, number: u16, len: usize) -> [u8; HEADER] {
        let mut h = [0xff; HEADER];
        h[12..14].copy_from_slice(&TYPE);
        h[14..16].copy_from_slice(&[kind as u8, conn]);
        h[16..18].copy_from_slice(&number.to_be_bytes());
        h[18..20].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        h
    }

    /// Takes a message: places it in the oldest receive, and says which header answers.
    fn message<M: Registered>(
        mrs: &MrTable,
        qp: &mut EchoQp,
        mem: &M,
        posted: &Untaken<'_, EchoQp>,
        (number, payload): (u16, &[u8]),
    ) -> Option<Kind> {
        if qp.state == ConnectedState::Error || number > qp.next {
            return None;
        }
        if number < qp.next {
            // The echo was lost.
            return Some(Kind::Echo);
        }
        if qp.recvs.is_empty() {
            posted.set_of(qp.conn.index());
            posted.post_to(qp);
        }
        let Some(recv) = qp.recvs.front() else { return Some(Kind::NotReady) };
        let mut rest = payload;
        for sge in &recv.sges {
            let len = rest.len().min(sge.len as usize) as u32;
            let need = Access::LOCAL_WRITE;
            let range = mrs.check(qp.qp.pd, qp.qp.qpn, sge.stag, sge.to, len, need).ok()?;
            mem.place(range, &rest[..len as usize]);
            rest = &rest[len as usize..];
        }
        qp.next += 1;
        qp.complete(Queue::Rq, CqeStatus::Success, payload.len() as u32);
        Some(Kind::Echo)
    }
}

impl Echo {
    fn handle_frame<M: Registered>(
        &mut self,
        mem: &M,
        posted: &Untaken<'_, EchoQp>,
        frame: RxMbuf,
    ) -> Option<RxMbuf> {
        let mut h = [0; HEADER];
        if frame.copy_at(0, &mut h) < HEADER || h[12..14] != TYPE {
            return Some(frame);
        }
        let (conn, number) = (h[15], u16::from_be_bytes([h[16], h[17]]));
        let mut payload = vec![0; usize::from(u16::from_be_bytes([h[18], h[19]]))];
        let Some(Some(qp)) = self.qps.get_mut(usize::from(conn)) else { return Some(frame) };
        let sent = qp.done.sq as u16;
        match h[14] {
            1 if frame.copy_at(HEADER, &mut payload) == payload.len() => {
                let message = (number, &payload[..]);
                if let Some(kind) = Echo::message(&self.mrs, qp, mem, posted, message) {
                    self.sums.messages += u64::from(kind == Kind::Echo);
                    self.answers.push_back((kind, conn, number));
                }
            }
            2 if number == sent && qp.in_flight => {
                let len = qp.sends.front().map_or(0, |s| s.sges.iter().map(|s| s.len).sum());
                qp.complete(Queue::Sq, CqeStatus::Success, len);
                qp.due = None;
            }
            3 if number == sent && qp.sends.front().is_some_and(|s| s.tries == TRIES) => {
                qp.due = None;
                qp.fail(CqeStatus::RnrRetryExceeded);
                self.events.push_back((Change::Closed(qp.conn), Report::Closed(qp.conn)));
            }
            _ => {}
        }
        Some(frame)
    }
}

impl Engine for Echo {
    /// The most connections.
    type Config = u8;
    type Frame = RxMbuf;
    type Qp = EchoQp;
    type Mode = QpInfo;
    type Order = Order;
    type Report = Report;
    type Datagram = ();
    type Counters = Sums;
    type Facts = ();

    fn new(config: u8, mrs: Arc<MrTable>, _: bool) -> Echo {
        let qps = (0..config).map(|_| None).collect();
        let (events, answers) = (VecDeque::new(), VecDeque::new());
        let (round_trips, sums, now) = (Histogram::default(), Sums::default(), Instant::ZERO);
        Echo { mrs, qps, conns: 0, answers, events, round_trips, sums, now }
    }

    fn closed(_: &u8) -> Echo {
        Echo::new(0, Arc::new(MrTable::new(&Seed::from_u64(1), 1)), true)
    }

    fn max_conns(config: &u8) -> usize {
        usize::from(*config)
    }

    fn pins(&self) -> Arc<Pins> {
        Arc::new(Pins::new(self.mrs.capacity()))
    }

    fn is_idle(&self, now: Instant) -> bool {
        let busy = |qp: &EchoQp| !qp.cq.is_empty() || !qp.in_flight && !qp.sends.is_empty();
        !self.is_due(now)
            && !self.qps.iter().flatten().any(busy)
            && self.answers.is_empty()
            && self.events.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.qps.iter().flatten().filter_map(|qp| qp.due).min()
    }

    fn is_due(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    fn handle_timeouts(&mut self, now: Instant) {
        for qp in self.qps.iter_mut().flatten().filter(|qp| qp.due.is_some_and(|at| at <= now)) {
            qp.due = None;
            qp.in_flight = false;
            if qp.sends.front().is_some_and(|s| s.tries == TRIES) {
                qp.fail(CqeStatus::RetryExceeded);
                self.events.push_back((Change::Closed(qp.conn), Report::Closed(qp.conn)));
            }
        }
    }

    fn wants_digest(&self) -> bool {
        false
    }

    fn handle_frames<M: Registered>(
        &mut self,
        now: Instant,
        mem: &M,
        posted: &Untaken<'_, EchoQp>,
        frames: &mut [Option<RxMbuf>],
    ) {
        self.now = now;
        for frame in frames.iter_mut() {
            *frame = frame.take().and_then(|f| self.handle_frame(mem, posted, f));
        }
    }

    fn has_handed(&self) -> bool {
        false
    }

    fn hand_over<M: Registered>(&mut self, _: Instant, _: &M, _: &Untaken<'_, EchoQp>) {}

    fn poll_transmit<M: Registered, S: TxSink>(
        &mut self,
        now: Instant,
        _: &M,
        sink: &mut S,
    ) -> u32 {
        if sink.room() == 0 {
            return 0;
        }
        if let Some((kind, conn, number)) = self.answers.pop_front() {
            sink.begin(HEADER);
            sink.bytes(&Echo::header(kind, conn, number, 0));
            sink.end(Offload::default());
            return 1;
        }
        let ready = |qp: &&mut EchoQp| !qp.in_flight && !qp.sends.is_empty();
        let Some(qp) = self.qps.iter_mut().flatten().find(ready) else { return 0 };
        qp.in_flight = true;
        qp.due = Some(now + WAIT);
        let (number, conn) = (qp.done.sq as u16, qp.conn.index() as u8);
        let Some(send) = qp.sends.front_mut() else { return 0 };
        send.tries += 1;
        let QpInfo { qpn, pd } = qp.qp;
        let mrs = &self.mrs;
        let range = |s: &Sge| mrs.check(pd, qpn, s.stag, s.to, s.len, Access::NONE).unwrap();
        let ranges: Vec<_> = send.sges.iter().map(range).collect();
        let len = ranges.iter().map(|r| r.len() as usize).sum();
        sink.begin(HEADER + len);
        sink.bytes(&Echo::header(Kind::Message, conn, number, len));
        ranges.into_iter().for_each(|r| sink.memory(r));
        sink.end(Offload::default());
        1
    }

    fn post_with<R>(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut EchoQp) -> R,
    ) -> Result<R, RnicError> {
        let qp = self.qps.get_mut(conn.index()).and_then(Option::as_mut);
        let qp = qp.filter(|qp| qp.state.is_live());
        Ok(f(qp.ok_or(RnicError::NoQueuePair)?))
    }

    fn qp(&self, conn: ConnId) -> Option<&EchoQp> {
        self.qps.get(conn.index())?.as_ref()
    }

    fn has_completions(&self) -> bool {
        self.qps.iter().flatten().any(|qp| !qp.cq.is_empty())
    }

    fn take_completions<R>(
        &mut self,
        f: impl FnOnce(ConnId, &Completions, Option<Retired>) -> R,
    ) -> Option<(ConnId, R)> {
        let qp = self.qps.iter_mut().flatten().find(|qp| !qp.cq.is_empty())?;
        let result = f(qp.conn, &qp.cq, Some(qp.done));
        qp.cq.clear();
        Some((qp.conn, result))
    }

    fn subject(order: &Order) -> Subject {
        match *order {
            Order::Open => Subject::Other,
            Order::Close(conn) => Subject::Disconnect(conn),
            Order::Release(conn) => Subject::Release(conn),
        }
    }

    fn handle_order(&mut self, _: Instant, order: Order) -> Option<Report> {
        match order {
            Order::Open => {
                self.conns += 1;
                Some(Report::Opened(ConnId::new(self.conns - 1, 0)))
            }
            Order::Close(conn) => {
                self.abort(conn);
                None
            }
            Order::Release(conn) => {
                self.qps[conn.index()] = None;
                None
            }
        }
    }

    fn enter(&mut self, conn: ConnId, qp: QpInfo) -> Result<(), RnicError> {
        let (state, done) = (ConnectedState::Rts, Retired { sq: 0, rq: 0 });
        let (sends, recvs, cq) = <(VecDeque<_>, VecDeque<_>, Completions)>::default();
        let (next, due, in_flight) = (0, None, false);
        let qp = EchoQp { qp, conn, state, sends, recvs, cq, done, next, due, in_flight };
        *self.qps.get_mut(conn.index()).ok_or(RnicError::NoConnection)? = Some(qp);
        Ok(())
    }

    fn start<M: Registered>(&mut self, _: &M, _: ConnId) {}

    fn abort(&mut self, conn: ConnId) {
        if let Some(Some(qp)) = self.qps.get_mut(conn.index()) {
            qp.due = None;
            qp.fail(CqeStatus::Flushed);
            self.events.push_back((Change::Closed(conn), Report::Closed(conn)));
        }
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn poll_event(&mut self) -> Option<(Change, Report)> {
        self.events.pop_front()
    }

    fn entered(conn: ConnId, result: Result<(), RnicError>) -> Report {
        Report::Entered(conn, result)
    }

    fn has_datagrams(&self) -> bool {
        false
    }

    fn poll_datagram(&mut self) -> Option<()> {
        None
    }

    fn is_known((): &()) -> bool {
        false
    }

    fn brought((): ()) -> Report {
        unreachable!("there are no datagrams")
    }

    fn round_trips(&self) -> &Histogram {
        &self.round_trips
    }

    fn poll_counters(&mut self, _: usize) -> Option<Sums> {
        Some(self.sums)
    }

    fn counters(&self) -> Sums {
        self.sums
    }

    fn inspect(&self, conn: ConnId) -> Option<()> {
        self.qp(conn).map(|_| ())
    }
}

/// A side, and its connection.
struct Side {
    side: side::Side<Echo>,
    conn: ConnId,
}

impl Deref for Side {
    type Target = side::Side<Echo>;

    fn deref(&self) -> &side::Side<Echo> {
        &self.side
    }
}

impl DerefMut for Side {
    fn deref_mut(&mut self) -> &mut side::Side<Echo> {
        &mut self.side
    }
}

const MEMORY: usize = 64 << 10;

impl Side {
    fn new(port: Port, pool: Mempool, clock: &Clock) -> Side {
        let objects = Objects { memory: MEMORY, access: Access::LOCAL_WRITE, depth: 128 };
        let side = side::Side::new(4, port, pool, clock, &Seed::from_u64(1), objects);
        let mut side = Side { side, conn: ConnId::NONE };
        side.enter();
        side
    }

    fn report(&mut self) -> Report {
        self.worker.poll();
        match self.reports.recv() {
            Ok(WorkerReport::Engine(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    fn enter(&mut self) {
        self.order(Command::Order(Order::Open));
        let Report::Opened(conn) = self.report() else { panic!("it opens at once") };
        self.conn = conn;
        let mode = Box::new(QpInfo { qpn: self.qp.qpn(), pd: self.qp.pd() });
        let (app, qp) = (self.device.app(), Box::new(WorkerQp::new(self.qp.ends())));
        self.order(Command::Enter { conn, mode, app, qp });
        assert!(matches!(self.report(), Report::Entered(c, Ok(())) if c == conn));
    }

    fn statuses(&self) -> Vec<(u64, CqeStatus)> {
        std::iter::from_fn(|| self.cq.poll()).map(|c| (c.wr_id, c.status)).collect()
    }
}

struct Net {
    sides: [Side; 2],
    hand: ManualClock,
}

fn net(name: &str) -> Net {
    let (clock, hand) = Clock::manual();
    hand.advance(Duration::from_secs(1));
    let pools = [pool(1023), pool(1023)];
    let [a, b] = pools.map(PortConfig::new);
    let (a, b) = Port::ring_pair(&eal(), name, 256, &a, &b).unwrap();
    let sides = [Side::new(a, pools[0], &clock), Side::new(b, pools[1], &clock)];
    Net { sides, hand }
}

impl Net {
    fn turns(&mut self, n: usize) {
        for _ in 0..n {
            for side in &mut self.sides {
                side.worker.poll();
            }
            self.hand.advance(Duration::from_micros(50));
        }
    }
}

/// Posts to both ends travel through the rings, by the second engine's frames, and come back as
/// completions.
#[test]
fn test_a_second_engine_runs_under_worker_rings_and_verbs() {
    let mut net = net("echo");
    let lens: Vec<usize> = (0..100).map(|i| i * 37 % MOST).collect();
    let [a, b] = &net.sides;
    let data = bytes(7, MEMORY);
    a.mr.write(0, &data);
    for (i, len) in lens.iter().enumerate() {
        let (recv, send) = (b.mr.sge(i * 600 % 60_000, 512), b.mr.sge(61_000 + i, 1024));
        b.qp.post_recv(&RecvWr::new(i as u64, &[recv, send])).unwrap();
        // Two pieces of memory make one message.
        let pieces = [a.mr.sge(i, len / 3), a.mr.sge(2000 + i, len - len / 3)];
        a.qp.post_send(&SendWr::send(1000 + i as u64, &pieces)).unwrap();
    }
    let mut done = [0, 0];
    for _ in 0..2000 {
        net.turns(1);
        let [a, b] = &net.sides;
        while let Some(cqe) = a.cq.poll() {
            assert_eq!((cqe.wr_id, cqe.status), (1000 + done[0], CqeStatus::Success));
            done[0] += 1;
        }
        while let Some(cqe) = b.cq.poll() {
            let i = done[1] as usize;
            assert_eq!((cqe.wr_id, cqe.status), (done[1], CqeStatus::Success));
            assert_eq!(cqe.len as usize, lens[i]);
            let mut want = data[i..][..lens[i] / 3].to_vec();
            want.extend(&data[2000 + i..][..lens[i] - lens[i] / 3]);
            let mut got = vec![0; lens[i]];
            let first = lens[i].min(512);
            b.mr.read(i * 600 % 60_000, &mut got[..first]);
            b.mr.read(61_000 + i, &mut got[first..]);
            assert_eq!(got, want, "message {i}");
            done[1] += 1;
        }
    }
    assert_eq!(done, [100, 100]);
    let [a, b] = &net.sides;
    assert_eq!(b.worker.snapshot().engine.messages, 100);
    assert!(a.worker.snapshot().worker.busy_polls >= 100);
}

/// Statuses that no iWARP connection reports reach the application through the rings.
#[test]
fn test_application_learns_that_retries_of_a_second_engine_are_exceeded() {
    for (name, hears, status) in [
        ("echornr", true, CqeStatus::RnrRetryExceeded),
        ("echolost", false, CqeStatus::RetryExceeded),
    ] {
        let mut net = net(name);
        let [a, _] = &net.sides;
        for wr_id in [1, 2] {
            a.qp.post_send(&SendWr::send(wr_id, &[a.mr.sge(0, 100)])).unwrap();
        }
        a.qp.post_recv(&RecvWr::new(3, &[])).unwrap();
        if !hears {
            // Nothing takes the frames to side 1.
            for _ in 0..200 {
                net.sides[0].worker.poll();
                net.hand.advance(Duration::from_micros(50));
            }
        } else {
            net.turns(200);
        }
        let flushed = CqeStatus::Flushed;
        assert_eq!(net.sides[0].statuses(), [(1, status), (2, flushed), (3, flushed)], "{name}");
        assert!(matches!(net.sides[0].report(), Report::Closed(_)));
        // The queue pair has ended for the application as well.
        let a = &net.sides[0];
        assert_eq!(a.qp.post_send(&SendWr::send(4, &[])), Err(PostError::Ended));
    }
}

/// The worker keeps its promises to applications with any engine: an order to disconnect first
/// takes what was posted before, and the end of the worker completes everything.
#[test]
fn test_end_of_a_worker_completes_the_posts_of_a_second_engine() {
    let mut net = net("echoend");
    let [a, b] = &net.sides;
    for wr_id in 0..100 {
        a.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
        b.qp.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    let all: Vec<_> = (0..100).map(|wr_id| (wr_id, CqeStatus::Flushed)).collect();
    let conn = a.conn;
    a.order(Command::Order(Order::Close(conn)));
    assert!(matches!(net.sides[0].report(), Report::Closed(c) if c == conn));
    assert_eq!(net.sides[0].statuses(), all);
    net.sides[0].order(Command::Order(Order::Release(conn)));
    net.turns(1);
    net.sides[1].worker.end(false);
    assert_eq!(net.sides[1].statuses(), all);
    assert!(matches!(net.sides[1].reports.recv(), Err(NoReport::Ended { panicked: false })));
    net.sides[1].worker.poll_closed();
}
