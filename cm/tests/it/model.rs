//! Random requests and reports over several workers, which keep their side of the contract and do
//! nothing else. In every order, each request has one outcome, each queue pair is free or spent,
//! each connection is released once, and nothing is left. A failure repeats from the seed that it
//! prints.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::support::{below, conn_ids, frame, qp, spoil};
use heddle_base::{Instant, Random, Seed};
use heddle_cm::*;
use heddle_iwarp::{QpEvent, Side, mpa::frame::Kind};
use heddle_rnic::{Event as RnicEvent, Order, Report};
use heddle_tcp::{Addressing, Route};
use heddle_types::{
    AcceptTerms, AppId, CloseReason, CmId, ConnId, ConnectError, ConnectTerms, DisconnectReason,
    Event, ListenAt, ListenError, ListenFailure, ListenParams, ListenerId, QpFate, Qpn, Request,
    RequestError, RnicError, TermCode, WorkerId,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Handshake,
    Startup,
    Fpdu,
    Closed,
}

/// A worker: its orders that it has not carried out, and its reports that are on their way.
#[derive(Default)]
struct Worker {
    orders: VecDeque<Order>,
    reports: VecDeque<Report>,
    conns: BTreeMap<ConnId, Phase>,
    passive: BTreeSet<ConnId>,
    /// The places where the worker listens: an address of ours, or all.
    listening: BTreeSet<(ListenAt, u16)>,
    net: Addressing,
    /// Our end of each connection.
    local: BTreeMap<ConnId, IpAddr>,
}

impl Worker {
    /// Opens a connection from or to one of the worker's addresses: the given one, or any.
    fn open(
        &mut self,
        r: &mut Random,
        conn: ConnId,
        phase: Phase,
        asked: Option<IpAddr>,
    ) -> IpAddr {
        let any = self.net.addrs()[below(r, self.net.addrs().len())].addr();
        let local = asked.unwrap_or(any);
        self.conns.insert(conn, phase);
        self.local.insert(conn, local);
        local
    }

    /// Changes the addresses, and ends connections as a stack does.
    fn readdress(&mut self, net: Addressing) {
        self.net = net;
        let net = &self.net;
        self.listening.retain(|(at, _)| at.one().is_none_or(|a| net.is_ours(a)));
        let gone: Vec<_> =
            self.local.iter().filter(|(_, a)| !net.is_ours(**a)).map(|(c, _)| *c).collect();
        for conn in gone {
            if self.conns.contains_key(&conn) {
                self.close(conn, CloseReason::Withdrawn);
            }
        }
    }

    fn event(&mut self, event: RnicEvent) {
        self.reports.push_back(Report::Event(event));
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        let phase = self.conns.get_mut(&conn).unwrap();
        if *phase != Phase::Closed {
            *phase = Phase::Closed;
            self.event(RnicEvent::Closed { conn, reason });
        }
    }

    fn carry_out(&mut self, r: &mut Random, names: &mut impl Iterator<Item = ConnId>) {
        let Some(order) = self.orders.pop_front() else { return };
        match order {
            Order::Listen { token, at, port, .. } => {
                assert!(!self.listening.contains(&(at, port)), "one listener for each port");
                assert!(at.one().is_none_or(|a| self.net.is_ours(a)), "only at its own addresses");
                let result = if r.chance(0.1) { Err(ListenError::Full) } else { Ok(()) };
                if result.is_ok() {
                    self.listening.insert((at, port));
                }
                self.reports.push_back(Report::Listening { token, result });
            }
            Order::Unlisten { at, port } => drop(self.listening.remove(&(at, port))),
            Order::Connect { token, local, remote, .. } => {
                // A worker carries orders out in sequence, so a connect from before a change of
                // addresses comes before the change.
                assert!(local.is_none_or(|a| self.net.is_ours(a)), "from its own addresses");
                assert!(self.net.route(remote.ip()).is_some(), "where a way leads");
                let result = if r.chance(0.1) {
                    Err(ConnectError::PortInUse)
                } else {
                    let conn = names.next().unwrap();
                    self.open(r, conn, Phase::Handshake, local);
                    Ok(conn)
                };
                self.reports.push_back(Report::Connecting { token, result });
            }
            Order::SendStartup { conn, .. } => {
                if self.conns[&conn] != Phase::Startup {
                    self.reports.push_back(Report::Refused { conn, error: RnicError::NotStartup });
                }
            }
            Order::EnterFpduMode { conn, .. } => {
                let phase = self.conns.get_mut(&conn).unwrap();
                let result = match *phase {
                    Phase::Startup => {
                        *phase = Phase::Fpdu;
                        Ok(())
                    }
                    _ => Err(RnicError::NotStartup),
                };
                self.reports.push_back(Report::Entered { conn, result });
            }
            Order::Disconnect { conn } => {
                assert!(self.conns.contains_key(&conn));
                if r.chance(0.6) {
                    self.close(conn, CloseReason::Orderly);
                }
            }
            Order::Abort { conn } => self.close(conn, CloseReason::Aborted),
            Order::Release { conn } => {
                assert_eq!(self.conns.remove(&conn), Some(Phase::Closed), "released when closed");
            }
            Order::BindUdp { .. } | Order::UnbindUdp | Order::SendDatagram(_) => {
                panic!("no service of datagrams was asked for: {order:?}")
            }
            Order::SetAddressing { net } => self.readdress(*net),
            Order::SetKeepalive { .. }
            | Order::SetPatience { .. }
            | Order::Announce
            | Order::SolicitRouters { .. } => {
                panic!("the manager has no say in that: {order:?}")
            }
        }
    }

    /// Makes a peer do something at random.
    fn peer(&mut self, r: &mut Random, names: &mut impl Iterator<Item = ConnId>) {
        if r.chance(0.2) && !self.listening.is_empty() && !self.net.addrs().is_empty() {
            let (addr, port) = *self.listening.iter().nth(below(r, self.listening.len())).unwrap();
            let conn = names.next().unwrap();
            let asked = if let ListenAt::One(ip) = addr { Some(ip) } else { None };
            let local = SocketAddr::new(self.open(r, conn, Phase::Startup, asked), port);
            self.passive.insert(conn);
            let remote = ([10, 0, 1, below(r, 4) as u8], 999).into();
            return self.event(RnicEvent::Accepted { conn, local, remote });
        }
        if self.conns.is_empty() {
            return;
        }
        let (&conn, &phase) = self.conns.iter().nth(below(r, self.conns.len())).unwrap();
        match (phase, below(r, 8)) {
            (Phase::Closed, _) => {}
            (_, 0) => self.close(conn, CloseReason::Reset),
            (Phase::Handshake, _) => {
                self.conns.insert(conn, Phase::Startup);
                let local = SocketAddr::new(self.local[&conn], 5);
                self.event(RnicEvent::Connected { conn, local });
            }
            (_, 1) => self.event(RnicEvent::PeerClosed { conn }),
            (Phase::Startup, _) => {
                let asks = self.passive.contains(&conn) != r.chance(0.05);
                let kind = if asks { Kind::Request } else { Kind::Reply };
                let reject = kind == Kind::Reply && r.chance(0.3);
                let mut bytes = frame(kind, reject, b"data");
                if r.chance(0.1) {
                    spoil(r, &mut bytes);
                }
                self.event(RnicEvent::StartupBytes { conn, bytes });
            }
            (Phase::Fpdu, n) => {
                let by = if n == 2 { Side::Local } else { Side::Remote };
                let code = TermCode::MPA_CRC;
                let event =
                    if n < 4 { QpEvent::Terminated { by, code } } else { QpEvent::FirstFpdu };
                self.event(RnicEvent::Qp { conn, event });
            }
        }
    }
}

/// The application's knowledge of a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// A peer asks; the application has given no queue pair.
    Asked,
    /// The application has asked for Connect or Accept with this queue pair.
    Wanted(Qpn),
    Established(Qpn),
}

#[derive(Default)]
struct App {
    listeners: BTreeMap<ListenerId, bool>,
    conns: BTreeMap<CmId, Known>,
    spent: BTreeSet<Qpn>,
    /// Number of events that were polled and not yet reported as taken.
    taken: usize,
}

impl App {
    fn holds(&self, qpn: Qpn) -> bool {
        self.conns
            .values()
            .any(|k| matches!(k, Known::Wanted(q) | Known::Established(q) if *q == qpn))
    }

    fn is_free(&self, qpn: Qpn) -> bool {
        !self.holds(qpn) && !self.spent.contains(&qpn)
    }

    fn tell(&mut self, event: Event, counts: &mut [u64; 6]) {
        self.taken += 1;
        match event {
            Event::Listening { id } => assert_eq!(self.listeners.insert(id, true), Some(false)),
            Event::ListenFailed { id, error } => {
                let removed = error == ListenFailure::AddressRemoved;
                let listened = self.listeners.remove(&id);
                assert!(listened == Some(false) || removed && listened.is_some());
                counts[5] += u64::from(removed);
            }
            Event::ConnectRequest { id, .. } => {
                assert_eq!(self.conns.insert(id, Known::Asked), None);
            }
            Event::Established { id, qpn, .. } => {
                counts[0] += 1;
                let was = self.conns.insert(id, Known::Established(qpn));
                assert_eq!(was, Some(Known::Wanted(qpn)));
            }
            Event::Rejected { id, qpn, .. } => {
                counts[1] += 1;
                assert_eq!(self.conns.remove(&id), Some(Known::Wanted(qpn)));
            }
            Event::ConnectError { id, qp, .. } => {
                counts[2] += 1;
                let was = self.conns.remove(&id);
                match qp {
                    QpFate::NoQp => assert_eq!(was, Some(Known::Asked)),
                    QpFate::Free(qpn) => assert_eq!(was, Some(Known::Wanted(qpn))),
                    QpFate::Spent(qpn) => {
                        assert_eq!(was, Some(Known::Wanted(qpn)));
                        self.spent.insert(qpn);
                    }
                }
            }
            Event::Disconnected { id, qpn, reason, .. } => {
                counts[3] += 1;
                let withdrawn = DisconnectReason::Tcp(CloseReason::Withdrawn);
                counts[4] += u64::from(reason == withdrawn);
                assert_eq!(self.conns.remove(&id), Some(Known::Established(qpn)));
                self.spent.insert(qpn);
            }
        }
    }
}

struct Model<N> {
    r: Random,
    now: Instant,
    cm: ConnectionManager,
    workers: Vec<Worker>,
    apps: BTreeMap<AppId, App>,
    names: N,
    next: u64,
    /// The addressing of the ports: an index of [`NETS`].
    net: usize,
    /// Numbers of events: established, rejected, failed, disconnected; disconnected because the
    /// address was removed; listeners that ended with their address.
    counts: [u64; 6],
}

/// Workers of each of the two ports.
const WORKERS: [usize; 2] = [2, 1];

/// Addresses of the two ports, and whether the second port has a default route. The address
/// 10.0.0.1 can move from the first port to the second.
const NETS: [([&[&str]; 2], bool); 4] = [
    ([&["10.0.0.1/8"], &["172.16.0.1/16"]], true),
    ([&["10.0.0.1/8", "10.0.0.2/8"], &["172.16.0.1/16"]], false),
    ([&["10.0.0.2/8"], &["172.16.0.1/16", "10.0.0.1/8"]], true),
    ([&["10.0.0.1/8"], &[]], false),
];

fn nets(n: usize) -> Vec<Addressing> {
    let (addrs, everywhere) = NETS[n];
    let net = |port: usize| {
        let addrs = addrs[port].iter().map(|a| a.parse().unwrap()).collect();
        let route = Route::default_via("172.16.0.254".parse().unwrap());
        let routes = if everywhere && port == 1 { vec![route] } else { vec![] };
        Addressing::new(addrs, routes).unwrap()
    };
    vec![net(0), net(1)]
}

/// Returns an address that one of the ports may have.
fn some_addr(r: &mut Random) -> IpAddr {
    ["10.0.0.1", "10.0.0.2", "172.16.0.1"][below(r, 3)].parse().unwrap()
}

/// Number of queue pairs that an application tries; few, so that claims collide.
const QPS: u32 = 12;

impl<N: Iterator<Item = ConnId>> Model<N> {
    /// Makes a random request of a random application.
    fn ask(&mut self) {
        let r = &mut self.r;
        let n = below(r, self.apps.len());
        let (&app, a) = self.apps.iter_mut().nth(n).unwrap();
        self.next += 1;
        let qpn = Qpn(app.0 as u32 * 1000 + below(r, QPS as usize) as u32);
        let some = |r: &mut Random, a: &App| {
            let n = below(r, a.conns.len().max(1));
            a.conns.iter().nth(n).map_or((CmId(1 << 40), None), |(id, k)| (*id, Some(*k)))
        };
        let request = match below(r, 12) {
            0 | 1 => {
                let port = 1 + below(r, 4) as u16;
                let id = ListenerId(self.next);
                let params = ListenParams { backlog: 3, ..ListenParams::default() };
                let any = IpAddr::from([0; 4]);
                let addr = if r.chance(0.3) { any } else { some_addr(r) };
                Request::Listen { id, addr: SocketAddr::new(addr, port), params }
            }
            2 => {
                let id = a.listeners.keys().nth(below(r, 3)).copied();
                Request::Unlisten { id: id.unwrap_or(ListenerId(u64::MAX)) }
            }
            3..=5 => {
                let local = r.chance(0.3).then(|| some_addr(r));
                let params = ConnectTerms { local, ..ConnectTerms::new(qp(qpn.0)) };
                let remote = ["10.0.0.9:9", "172.16.0.9:9", "192.0.2.1:9"][below(r, 3)];
                Request::Connect { id: CmId(self.next), remote: remote.parse().unwrap(), params }
            }
            6..=8 => {
                let (id, _) = some(r, a);
                Request::Accept { id, params: AcceptTerms::new(qp(qpn.0)) }
            }
            9 => {
                Request::Reject { id: some(r, a).0, private_data: b"no".to_vec(), needs_ord: None }
            }
            10 => Request::Disconnect { id: some(r, a).0 },
            _ => Request::ForgetQp { qpn },
        };
        let before = self.cm.gauges();
        let result = self.cm.handle_request(self.now, app, request.clone());
        if result.is_err() {
            assert_eq!(self.cm.gauges(), before, "{request:?}: {result:?}");
        }
        let known = |a: &App, id| a.conns.get(&id).copied();
        match (request, result) {
            (Request::Listen { id, .. }, Ok(())) => drop(a.listeners.insert(id, false)),
            // A listener that waits for its workers gets a failure event instead.
            (Request::Unlisten { id }, Ok(())) if a.listeners[&id] => {
                a.listeners.remove(&id);
            }
            (Request::Connect { id, params, .. }, Ok(())) => {
                assert!(a.is_free(params.qp.qpn));
                a.conns.insert(id, Known::Wanted(params.qp.qpn));
            }
            (Request::Accept { id, params }, Ok(())) => {
                assert!(a.is_free(params.qp.qpn));
                assert_eq!(known(a, id), Some(Known::Asked));
                a.conns.insert(id, Known::Wanted(params.qp.qpn));
            }
            (Request::Reject { id, .. }, Ok(())) => {
                assert_eq!(a.conns.remove(&id), Some(Known::Asked));
            }
            (Request::ForgetQp { qpn }, Ok(())) => {
                assert!(!a.holds(qpn));
                a.spent.remove(&qpn);
            }
            (_, Err(RequestError::QpBusy(qpn))) => assert!(a.holds(qpn)),
            (_, Err(RequestError::QpSpent(qpn))) => assert!(a.spent.contains(&qpn)),
            _ => {}
        }
        self.take_events();
    }

    /// Passes all events to the applications, so that they know what the manager knows.
    fn take_events(&mut self) {
        while let Some((app, event)) = self.cm.poll_event() {
            let a = self.apps.get_mut(&app).expect("no event for one that is gone");
            a.tell(event, &mut self.counts);
        }
        for (app, a) in &mut self.apps {
            let count = std::mem::take(&mut a.taken);
            self.cm.handle_request(self.now, *app, Request::EventsTaken { count }).unwrap();
        }
        let held = self.cm.gauges();
        assert!(held.timers <= held.conns, "{held:?}");
        while let Some((w, order)) = self.cm.poll_order() {
            if let Order::EnterFpduMode { mode, .. } = &order {
                // The manager gives no queue pair to a worker while another worker still has an
                // order for it.
                let same = |o: &Order| matches!(o, Order::EnterFpduMode { mode: m, .. } if m.qp.qpn == mode.qp.qpn);
                assert!(!self.workers.iter().any(|w| w.orders.iter().any(same)));
            }
            self.workers[w.0].orders.push_back(order);
        }
    }

    fn step(&mut self) {
        let w = below(&mut self.r, self.workers.len());
        match below(&mut self.r, 20) {
            0..=4 => self.ask(),
            5..=10 => self.workers[w].carry_out(&mut self.r, &mut self.names),
            11..=13 => self.workers[w].peer(&mut self.r, &mut self.names),
            14..=18 => {
                if let Some(report) = self.workers[w].reports.pop_front() {
                    self.cm.handle_report(self.now, WorkerId(w), report);
                    self.take_events();
                }
            }
            _ => {
                let time = [1, 1000, 6000, 70_000][below(&mut self.r, 4)];
                if self.r.chance(0.2) {
                    self.pass(Duration::from_millis(time));
                }
            }
        }
        if self.r.chance(0.002) {
            self.net = below(&mut self.r, NETS.len());
            self.cm.set_addressing(self.now, nets(self.net)).unwrap();
            self.take_events();
        }
        if self.r.chance(0.0005) {
            let app = *self.apps.keys().next().unwrap();
            self.apps.remove(&app);
            self.cm.handle_request(self.now, app, Request::AppGone).unwrap();
            self.next += 1;
            self.apps.insert(AppId(self.next), App::default());
            self.take_events();
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        if self.cm.poll_timeout().is_some_and(|t| t <= self.now) {
            self.cm.handle_timeout(self.now);
        }
        self.take_events();
    }

    /// Carries out all orders and reports that wait.
    fn settle(&mut self) {
        while self.workers.iter().any(|w| !w.orders.is_empty() || !w.reports.is_empty()) {
            for w in 0..self.workers.len() {
                self.workers[w].carry_out(&mut self.r, &mut self.names);
                if let Some(report) = self.workers[w].reports.pop_front() {
                    self.cm.handle_report(self.now, WorkerId(w), report);
                }
                self.take_events();
            }
        }
    }
}

#[test]
fn test_manager_keeps_invariants_under_random_requests_and_reports() {
    let mut counts = [0; 6];
    let mut names = conn_ids();
    for seed in 0..120 {
        println!("seed {seed}");
        let given = WORKERS.into_iter().zip(nets(0));
        let workers = given
            .clone()
            .flat_map(|(n, net)| vec![net; n])
            .map(|net| Worker { net, ..Worker::default() })
            .collect();
        let ports = Ports::new(given.collect()).unwrap();
        let mut m = Model {
            r: Random::new(&Seed::from_u64(seed)),
            now: Instant::from_millis(1000),
            cm: ConnectionManager::new(CmConfig { max_startups: 8, ..CmConfig::new(ports) }),
            workers,
            apps: [1, 2].map(|n| (AppId(n), App::default())).into(),
            names: &mut names,
            next: 10,
            net: 0,
            counts: [0; 6],
        };
        for _ in 0..4000 {
            m.step();
        }
        // Every application ends what it has, and time passes.
        m.settle();
        for (app, a) in m.apps.iter().map(|(k, a)| (*k, a.listeners.clone())).collect::<Vec<_>>() {
            for id in a.keys() {
                m.cm.handle_request(m.now, app, Request::Unlisten { id: *id }).unwrap();
                m.apps.get_mut(&app).unwrap().listeners.remove(id);
            }
        }
        m.take_events();
        for _ in 0..3 {
            m.settle();
            m.pass(Duration::from_secs(100));
        }
        m.settle();
        // Only an established connection outlives the time-outs, whatever its peer does.
        for w in &mut m.workers {
            assert!(w.conns.values().all(|p| *p == Phase::Fpdu), "seed {seed}: {:?}", w.conns);
            for conn in w.conns.keys().copied().collect::<Vec<_>>() {
                w.close(conn, CloseReason::Reset);
            }
        }
        m.settle();
        let spent = m.apps.values().map(|a| a.spent.len()).sum();
        let left = CmGauges { claims: spent, ..CmGauges::default() };
        assert_eq!(m.cm.gauges(), left, "seed {seed}");
        assert_eq!(m.cm.poll_timeout(), None);
        for a in m.apps.values() {
            assert!(a.conns.is_empty(), "seed {seed}: {:?}", a.conns);
        }
        assert!(m.workers.iter().all(|w| w.conns.is_empty() && w.listening.is_empty()));
        for (sum, n) in counts.iter_mut().zip(m.counts) {
            *sum += n;
        }
    }
    // Every kind of event has to happen, and often.
    let enough = counts.iter().zip([100, 100, 100, 100, 40, 100]).all(|(n, least)| *n > least);
    assert!(enough, "{counts:?}");
}
