//! Two hosts on a wire that may lose frames. Host 0 has a manager or is a peer driven by hand; host
//! 1 has a manager.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_base::{Instant, Random, Seed};
use heddle_cm::{CmConfig, ConnectionManager, Notice, Ports};
use heddle_engine::{Offload, TxSink};
use heddle_iwarp::mpa::frame::{Frame as MpaFrame, Kind};
use heddle_mr::{MemRange, Memory, testing::TestMemory};
use heddle_rnic::{Event as RnicEvent, Order, Report, Rnic};
use heddle_tcp::{Addressing, Cidr};
use heddle_types::{
    AppId, CmId, ConnId, ConnectTerms, Event, ListenParams, ListenerId, Request, RequestError,
    RnicError, WorkerId, mpa::Revision,
};

use super::{Frame, rnic};

pub const APP: AppId = AppId(1);
pub const PORT: u16 = 7174;
pub const US: ([u8; 4], u16) = ([10, 0, 0, 2], PORT);
const W: WorkerId = WorkerId(0);

/// Returns the port of host `n` as its manager knows it.
fn one_port(n: u8) -> Ports {
    let addr = Cidr::new([10, 0, 0, n].into(), 24).unwrap();
    Ports::one(1, Addressing::new(vec![addr], vec![]).unwrap())
}

struct VecSink<'a> {
    mem: &'a TestMemory,
    frame: Vec<u8>,
    done: Option<Vec<u8>>,
}

impl TxSink for VecSink<'_> {
    fn room(&mut self) -> u32 {
        1
    }

    fn begin(&mut self, len: usize) {
        self.frame = Vec::with_capacity(len);
    }

    fn whole(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn piece(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.frame.len();
        self.frame.resize(at + len, 0xdd);
        self.frame.get_mut(at..)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.frame.extend_from_slice(bytes);
    }

    fn memory(&mut self, range: MemRange) {
        let at = self.frame.len();
        self.frame.resize(at + range.len() as usize, 0);
        self.mem.gather(range, &mut self.frame[at..]);
    }

    fn end(&mut self, _: Offload) {
        self.done = Some(std::mem::take(&mut self.frame));
    }
}

pub struct Host {
    pub rnic: Rnic<Frame>,
    pub mem: TestMemory,
    pub cm: Option<ConnectionManager>,
    pub events: Vec<Event>,
    pub notices: Vec<Notice>,
    /// Events of a host without a manager.
    pub raw: Vec<RnicEvent>,
    /// Connections that the manager has heard of and not released.
    pub open: BTreeSet<ConnId>,
    /// Whether the host's worker refuses every order to enter FPDU mode.
    pub refuses_fpdu_mode: bool,
    /// Connections of a host with a manager that the test drives by hand.
    pub by_hand: BTreeSet<ConnId>,
}

impl Host {
    pub fn cm(&mut self) -> &mut ConnectionManager {
        self.cm.as_mut().unwrap()
    }

    /// Passes orders to the RNIC and reports back, until there are none.
    fn settle(&mut self, now: Instant) {
        if self.rnic.is_due(now) {
            self.rnic.handle_timeouts(now);
        }
        if let Some(cm) = &mut self.cm
            && cm.poll_timeout().is_some_and(|t| t <= now)
        {
            cm.handle_timeout(now);
        }
        loop {
            let mut busy = false;
            while let Some(event) = self.rnic.poll_event() {
                busy = true;
                self.event(now, event);
            }
            while self.rnic.poll_completion().is_some() {}
            while let Some((_, order)) = self.cm.as_mut().and_then(ConnectionManager::poll_order) {
                busy = true;
                self.order(now, order);
            }
            if !busy {
                break;
            }
        }
        if let Some(cm) = &mut self.cm {
            let taken = std::iter::from_fn(|| cm.poll_event()).map(|(app, e)| {
                assert_eq!(app, APP);
                e
            });
            let taken: Vec<_> = taken.collect();
            let count = taken.len();
            cm.handle_request(now, APP, Request::EventsTaken { count }).unwrap();
            self.events.extend(taken);
            self.notices.extend(std::iter::from_fn(|| cm.poll_notice()));
        }
    }

    fn event(&mut self, now: Instant, event: RnicEvent) {
        let Some(cm) = &mut self.cm else { return self.raw.push(event) };
        if let RnicEvent::Accepted { conn, .. } = event {
            assert!(self.open.insert(conn));
        }
        cm.handle_report(now, W, Report::Event(event));
    }

    fn order(&mut self, now: Instant, order: Order) {
        let entered = match &order {
            Order::EnterFpduMode { conn, .. } => Some(*conn),
            _ => None,
        };
        match &order {
            Order::Listen { .. }
            | Order::Unlisten { .. }
            | Order::Connect { .. }
            | Order::SetAddressing { .. }
            | Order::SetKeepalive { .. }
            | Order::SetPatience { .. }
            | Order::Announce
            | Order::SolicitRouters { .. } => {}
            Order::Release { conn } => assert!(self.open.remove(conn), "released once"),
            Order::SendStartup { conn, .. }
            | Order::EnterFpduMode { conn, .. }
            | Order::Disconnect { conn }
            | Order::Abort { conn } => assert!(self.open.contains(conn), "{order:?}"),
            Order::BindUdp { .. } | Order::UnbindUdp | Order::SendDatagram(_) => {
                panic!("no service of datagrams was asked for: {order:?}")
            }
        }
        if let (Some(conn), true) = (entered, self.refuses_fpdu_mode) {
            let result = Err(RnicError::NoQueuePair);
            return self.cm().handle_report(now, W, Report::Entered { conn, result });
        }
        let mut report = self.rnic.handle_order(now, order);
        if let Some(Report::Connecting { result: Ok(conn), .. }) = report {
            assert!(self.open.insert(conn));
        }
        if let (Some(conn), None) = (entered, &report) {
            self.rnic.start(&self.mem, conn);
            report = Some(Report::Entered { conn, result: Ok(()) });
        }
        if let (Some(report), Some(cm)) = (report, &mut self.cm) {
            cm.handle_report(now, W, report);
        }
    }
}

pub struct Net {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub loss: f64,
    pub random: Random,
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
}

impl Net {
    pub fn new(seed: u64, both: bool, loss: f64) -> Net {
        let host = |n: u8| {
            let (rnic, _) = rnic(n, seed);
            let cm = (both || n == 2).then(|| ConnectionManager::new(CmConfig::new(one_port(n))));
            Host {
                rnic,
                mem: TestMemory::new(64, 0),
                cm,
                events: vec![],
                notices: vec![],
                raw: vec![],
                open: BTreeSet::new(),
                refuses_fpdu_mode: false,
                by_hand: BTreeSet::new(),
            }
        };
        Net {
            now: Instant::from_millis(1000),
            hosts: [host(1), host(2)],
            loss,
            random: Random::new(&Seed::from_u64(seed ^ 0x5eed)),
            wire: BTreeMap::new(),
            sent: 0,
        }
    }

    pub fn ask(&mut self, host: usize, request: Request) {
        let now = self.now;
        self.hosts[host].cm().handle_request(now, APP, request).unwrap();
    }

    /// Makes a request that earlier events may have made impossible; returns true if it succeeds.
    pub fn try_ask(&mut self, host: usize, request: Request) -> bool {
        let now = self.now;
        let result = self.hosts[host].cm().handle_request(now, APP, request);
        assert!(matches!(result, Ok(()) | Err(RequestError::NoConnection)), "{result:?}");
        result.is_ok()
    }

    pub fn listen(&mut self, host: usize, params: ListenParams) {
        let addr = ([10, 0, 0, host as u8 + 1], PORT).into();
        let id = ListenerId(host as u64);
        self.ask(host, Request::Listen { id, addr, params });
        self.settle();
        assert_eq!(self.hosts[host].events.pop(), Some(Event::Listening { id }));
    }

    /// Carries out everything that takes no time.
    pub fn settle(&mut self) {
        loop {
            let before = self.sent;
            for side in 0..2 {
                let now = self.now;
                self.hosts[side].settle(now);
                self.transmit(side);
            }
            if self.sent == before {
                break;
            }
        }
    }

    fn transmit(&mut self, side: usize) {
        loop {
            let h = &mut self.hosts[side];
            let mut sink = VecSink { mem: &h.mem, frame: Vec::new(), done: None };
            if h.rnic.poll_transmit(self.now, &h.mem, &mut sink) == 0 {
                return;
            }
            let frame = sink.done.unwrap();
            self.sent += 1;
            if !self.random.chance(self.loss) {
                let at = self.now + Duration::from_micros(20);
                self.wire.insert((at, self.sent), (1 - side, frame));
            }
        }
    }

    /// Goes on to the next frame or time-out, but not beyond `until`. Returns false if there is
    /// none.
    pub fn step(&mut self, until: Instant) -> bool {
        self.settle();
        let timers = self.hosts.iter().flat_map(|h| {
            let cm = h.cm.as_ref().and_then(ConnectionManager::poll_timeout);
            [h.rnic.poll_timeout(), cm].into_iter().flatten()
        });
        let next = self.wire.keys().next().map(|k| k.0).into_iter().chain(timers).min();
        let Some(next) = next.filter(|t| *t <= until) else {
            self.now = until;
            self.settle();
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, frame) = entry.remove();
            let h = &mut self.hosts[to];
            h.rnic.handle_frame(self.now, &h.mem, Frame(frame));
        }
        self.settle();
        true
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Steps until `f` returns a value.
    pub fn until<T>(&mut self, what: &str, mut f: impl FnMut(&mut Net) -> Option<T>) -> T {
        let end = self.now + Duration::from_secs(200);
        loop {
            if let Some(found) = f(self) {
                return found;
            }
            assert!(self.step(end), "no {what}");
        }
    }

    /// Returns the next event of the manager on host 1.
    pub fn event(&mut self) -> Event {
        self.until("event", |n| {
            let events = &mut n.hosts[1].events;
            (!events.is_empty()).then(|| events.remove(0))
        })
    }

    /// Opens a TCP connection of the peer that is driven by hand to our listener.
    pub fn tcp(&mut self) -> ConnId {
        let now = self.now;
        let conn = self.hosts[0].rnic.connect(now, US.into()).unwrap();
        self.until("TCP connection", |n| {
            let up =
                |e: &RnicEvent| matches!(e, RnicEvent::Connected { conn: c, .. } if *c == conn);
            n.hosts[0].raw.iter().any(up).then_some(())
        });
        self.pass(Duration::from_millis(1));
        conn
    }

    /// Opens a connection of ours to the peer that is driven by hand and listens at port 99;
    /// returns its name at the peer and our Request.
    pub fn asked(&mut self, id: CmId, params: ConnectTerms) -> (ConnId, Vec<u8>) {
        let remote = ([10, 0, 0, 1], 99).into();
        self.hosts[0].raw.clear();
        self.ask(1, Request::Connect { id, remote, params });
        self.next_asked()
    }

    /// Returns the next of our connections to that peer, with our Request.
    pub fn next_asked(&mut self) -> (ConnId, Vec<u8>) {
        let conn = self.until("connection", |n| {
            n.hosts[0].raw.iter().find_map(|e| match e {
                RnicEvent::Accepted { conn, .. } => Some(*conn),
                _ => None,
            })
        });
        let request = self.until("Request", |n| {
            let got = n.got(conn);
            let whole = MpaFrame::parse(Kind::Request, Revision::V2, &got).ok()?.is_some();
            whole.then_some(got)
        });
        (conn, request)
    }

    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.hosts[0].rnic.send_startup(conn, bytes).unwrap();
        self.pass(Duration::from_millis(1));
    }

    /// Returns the bytes that the peer has received on a connection.
    pub fn got(&self, conn: ConnId) -> Vec<u8> {
        let bytes = self.hosts[0].raw.iter().filter_map(|e| match e {
            RnicEvent::StartupBytes { conn: c, bytes } if *c == conn => Some(&bytes[..]),
            _ => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }

    /// Returns the peer's first event that shows that we have ended a connection.
    pub fn end_of(&self, conn: ConnId) -> Option<RnicEvent> {
        let end = self.hosts[0].raw.iter().find(|e| {
            matches!(e, RnicEvent::PeerClosed { conn: c } | RnicEvent::Closed { conn: c, .. }
                if *c == conn)
        });
        end.cloned()
    }
}
