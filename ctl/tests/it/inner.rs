//! An RNIC that connects to itself by its inner port: between applications, at any worker, with a
//! port to other hosts beside it and without such a port.

use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::time::Duration;

use heddle_base::Seed;

use heddle_ctl::{
    Endpoint, InnerSetup, Lcores, Node, OpenError, OpenPort, PortSetup, Question, Reply, RnicSetup,
};
use heddle_dataplane::eal::allowed_cpus;
use heddle_dataplane::{Clock, Eal, IdlePolicy, ManualClock, Naps};
use heddle_hub::DeviceConfig;
use heddle_tcp::{Addressing, Cidr};
use heddle_types::{CloseReason, ConnectError, ListenError, mpa::CrcPolicy};
use heddle_verbs::{
    AcceptParams, CmEvent, CmId, ConnectFailure, ConnectParams, CqeStatus, Device,
    DisconnectReason, EventQueue, ListenFailure, ListenParams, MpaOptions, RecvWr, SendWr,
};

use crate::common::{End, MS, eal, name};

/// Longer than anything takes here, in virtual time.
const LIMIT: Duration = Duration::from_secs(300);

const NO_ROUTE: ConnectFailure = ConnectFailure::Open(ConnectError::NoRoute);

fn at(addr: &str) -> SocketAddr {
    addr.parse().unwrap()
}

fn setup(inner: InnerSetup) -> RnicSetup {
    RnicSetup {
        memory: 1 << 20,
        max_conns: 64,
        inner: Some(InnerSetup { frames: 2047, mtu: 4096, ..inner }),
        ..RnicSetup::with_seed(Seed::from_u64(7))
    }
}

fn app(rnic: &Endpoint) -> Device {
    let config = DeviceConfig { memory: 1 << 20, queues: 4 << 20, ..DeviceConfig::default() };
    rnic.hub().open(&config).unwrap()
}

/// An RNIC on the test's thread and in its time, and two applications.
struct Own {
    rnic: Endpoint,
    apps: [Device; 2],
    hand: ManualClock,
    _turn: MutexGuard<'static, ()>,
}

impl Own {
    /// Makes an RNIC without a port to other hosts.
    fn private(workers: usize) -> Own {
        Own::with(InnerSetup { workers, ..InnerSetup::loopback() }, |_| Vec::new())
    }

    fn with(inner: InnerSetup, ports: impl FnOnce(&Eal) -> Vec<OpenPort>) -> Own {
        let (eal, turn) = eal();
        let (clock, hand) = Clock::manual();
        let setup = RnicSetup { clock: Some(clock), ..setup(inner) };
        let rnic = Endpoint::assemble(&eal, ports(&eal), &setup).unwrap();
        let apps = [app(&rnic), app(&rnic)];
        Own { rnic, apps, hand, _turn: turn }
    }

    /// Lets the RNIC do all work that waits now.
    fn settle(&mut self) {
        let mut quiet = 0;
        // The control plane has a turn in every 32 polls.
        while quiet < 66 {
            quiet = if self.rnic.poll() { 0 } else { quiet + 1 };
        }
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let end = self.hand.now() + LIMIT;
        loop {
            self.settle();
            if let Some(t) = found() {
                return t;
            }
            assert!(self.hand.now() < end, "{what} did not come");
            self.hand.advance(MS);
        }
    }

    fn event(&mut self, events: &EventQueue) -> CmEvent {
        self.until("an event", || events.poll())
    }

    fn listen(&mut self, app: usize, addr: &str, params: ListenParams) -> EventQueue {
        let events = EventQueue::new(None);
        let id = self.apps[app].listen(at(addr), params, &events).unwrap();
        assert_eq!(self.event(&events), CmEvent::Listening { id });
        events
    }

    fn connect(&self, app: usize, to: &str, end: &End, events: &EventQueue) -> CmId {
        self.connect_by(MpaOptions::new(), app, to, end, events)
    }

    fn connect_by(
        &self,
        options: MpaOptions,
        app: usize,
        to: &str,
        end: &End,
        events: &EventQueue,
    ) -> CmId {
        let params = ConnectParams::new(end.qp.clone()).mpa(options);
        self.apps[app].connect(at(to), params, events).unwrap()
    }

    /// Connects application `from` to a listener of application `to`; returns the ends, names and
    /// events, the active side's first.
    fn pair(&mut self, fromto: (usize, usize), addr: &str, listener: &EventQueue) -> [Side; 2] {
        self.pair_by(MpaOptions::new(), fromto, addr, listener)
    }

    fn pair_by(
        &mut self,
        options: MpaOptions,
        (from, to): (usize, usize),
        addr: &str,
        listener: &EventQueue,
    ) -> [Side; 2] {
        let ends = [from, to].map(|app| End::on(&self.apps[app], 64));
        let events = [EventQueue::new(None), EventQueue::new(None)];
        let id = self.connect_by(options, from, addr, &ends[0], &events[0]);
        let CmEvent::ConnectRequest { id: asked, remote, .. } = self.event(listener) else {
            panic!("a request")
        };
        assert_eq!(remote.ip(), at(addr).ip(), "its source is the address it leads to");
        let params = AcceptParams::new(ends[1].qp.clone());
        self.apps[to].accept_on(asked, params, &events[1]).unwrap();
        for events in &events {
            let event = self.event(events);
            assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        }
        let mut sides = ends.into_iter().zip(events).zip([id, asked]);
        std::array::from_fn(|_| {
            let ((end, events), id) = sides.next().unwrap();
            Side { end, events, id }
        })
    }

    /// Makes each operation once in each direction, and compares every byte.
    fn exchange(&mut self, sides: &[Side; 2], mark: u8) {
        const LEN: usize = 3000;
        for (mark, [a, b]) in [(mark, [0, 1]), (!mark, [1, 0])] {
            let (a, b) = (&sides[a].end, &sides[b].end);
            a.mr.write(0, &[mark; LEN]);
            b.mr.write(4096, &[mark ^ 0x55; LEN]);
            b.post_recv(1, 0, LEN);
            let (stag, to) = (b.mr.stag(), b.mr.to());
            let sges = [a.mr.sge(0, LEN)];
            a.qp.post_send(&SendWr::write(2, &sges, stag, to.wrapping_add(1000))).unwrap();
            a.qp.post_send(&SendWr::send(3, &sges)).unwrap();
            let sink = a.mr.sge(4096, LEN);
            a.qp.post_send(&SendWr::read(4, &[sink], stag, to.wrapping_add(4096))).unwrap();
            let mut done = Vec::new();
            self.until("all completions", || {
                done.extend(a.completions());
                (done.len() == 3).then_some(())
            });
            assert!(done.iter().all(|c| c.status.is_success()), "{done:?}");
            assert!(done.iter().map(|c| c.wr_id).eq(2..=4), "{done:?}");
            let [received] = b.completions()[..] else { panic!("one receive") };
            assert!(received.status.is_success() && received.len as usize == LEN);
            let mut got = vec![0; 4000];
            b.mr.read(0, &mut got);
            assert!(got.iter().all(|&b| b == mark), "what was sent and written");
            let mut got = vec![0; LEN];
            a.mr.read(4096, &mut got);
            assert!(got.iter().all(|&b| b == mark ^ 0x55), "what was read");
        }
    }
}

/// An end of a connection.
struct Side {
    end: End,
    events: EventQueue,
    id: CmId,
}

#[test]
fn test_two_applications_of_an_rnic_without_a_port_connect_at_every_worker() {
    let mut own = Own::private(2);
    let listener = own.listen(1, "127.0.0.1:7174", ListenParams::default());
    let conns: Vec<_> = (0..4).map(|_| own.pair((0, 1), "127.0.0.1:7174", &listener)).collect();
    for (sides, mark) in conns.iter().zip(1..) {
        own.exchange(sides, mark);
    }
    let snapshot = own.rnic.snapshot();
    for worker in &snapshot.workers {
        let c = worker.counters.as_ref().unwrap();
        assert_eq!(
            (c.engine.stack.opened, c.engine.stack.accepted),
            (2, 2),
            "each worker has both ends of two"
        );
        assert_eq!((c.engine.stack.tx_arp_requests, c.engine.stack.tx_arp_announcements), (0, 0));
    }
    drop(conns);
}

/// Without CRCs the RNIC hands FPDUs over directly. If either side asks for CRCs inside, both have
/// CRCs, over frames.
#[test]
fn test_inner_connection_uses_crc_only_if_either_side_asks_for_it() {
    let usual = MpaOptions::new();
    let asking = usual.crc_inside(CrcPolicy::Required);
    let outside = usual.crc(CrcPolicy::Off);
    for (connects, listens, crc) in [
        (usual, usual, false),
        (outside, outside, false),
        (asking, usual, true),
        (usual, asking, true),
        (asking, asking, true),
    ] {
        let mut own = Own::private(1);
        let listener = own.listen(1, "127.0.0.1:7174", ListenParams::default().mpa(listens));
        let sides = own.pair_by(connects, (0, 1), "127.0.0.1:7174", &listener);
        own.exchange(&sides, 5);
        let workers = own.rnic.snapshot().workers;
        let c = workers[0].counters.as_ref().unwrap();
        let (handed, sent) = (c.engine.rnic.handed_fpdus, c.engine.rnic.tx_fpdus);
        assert_eq!((handed == 0, sent == 0), (crc, !crc), "{connects:?} {listens:?}");
    }
}

#[test]
fn test_application_connects_to_itself_from_an_address_it_chooses() {
    let mut own = Own::private(1);
    let listener = own.listen(0, "127.0.0.1:7174", ListenParams::default());
    let sides = own.pair((0, 0), "127.0.0.1:7174", &listener);
    own.exchange(&sides, 9);
    let (end, events) = (End::on(&own.apps[0], 64), EventQueue::new(None));
    let mut params = ConnectParams::new(end.qp.clone());
    params.local = Some(at("127.9.9.9:0").ip());
    own.apps[1].listen(at("0.0.0.0:9"), ListenParams::default(), &events).unwrap();
    assert!(matches!(own.event(&events), CmEvent::Listening { .. }));
    let theirs = EventQueue::new(None);
    own.apps[0].connect(at("127.0.0.7:9"), params, &theirs).unwrap();
    let CmEvent::ConnectRequest { remote, local, .. } = own.event(&events) else { panic!() };
    assert_eq!((remote.ip(), local), (at("127.9.9.9:0").ip(), at("127.0.0.7:9")));
}

#[test]
fn test_wildcard_listener_takes_connections_of_its_families_alone() {
    let mut own = Own::private(1);
    let six_alone = ListenParams { v6_only: true, ..ListenParams::default() };
    let four = own.listen(0, "0.0.0.0:80", ListenParams::default());
    let events = EventQueue::new(None);
    let both = own.apps[0].listen(at("[::]:80"), ListenParams::default(), &events).unwrap();
    let error = ListenFailure::Worker(ListenError::InUse);
    assert_eq!(own.event(&events), CmEvent::ListenFailed { id: both, error });
    // No worker takes IPv6 for a listener of IPv4, and no IPv4-mapped address leads to it.
    for (to, want) in [
        ("[::1]:80", ConnectFailure::Tcp(CloseReason::Refused)),
        ("[::ffff:127.0.0.1]:80", NO_ROUTE),
    ] {
        let (end, events) = (End::on(&own.apps[0], 64), EventQueue::new(None));
        own.connect(0, to, &end, &events);
        let CmEvent::ConnectError { error, .. } = own.event(&events) else { panic!() };
        assert_eq!(error, want, "{to}");
    }
    let six = own.listen(0, "[::]:80", six_alone);
    let both = own.listen(0, "[::]:81", ListenParams::default());
    for (to, listener) in
        [("127.0.0.1:80", &four), ("[::1]:80", &six), ("127.0.0.1:81", &both), ("[::1]:81", &both)]
    {
        let sides = own.pair((0, 0), to, listener);
        own.exchange(&sides, 3);
    }
}

#[test]
fn test_inner_connection_reports_refusals_and_ends_as_over_a_wire() {
    let mut own = Own::private(2);
    let listener = own.listen(1, "127.0.0.1:7174", ListenParams::default());
    // The address is taken.
    let events = EventQueue::new(None);
    let id = own.apps[0].listen(at("127.0.0.1:7174"), ListenParams::default(), &events).unwrap();
    let error = ListenFailure::Worker(ListenError::InUse);
    assert_eq!(own.event(&events), CmEvent::ListenFailed { id, error });
    // There is no listener.
    let (end, events) = (End::on(&own.apps[0], 64), EventQueue::new(None));
    own.connect(0, "127.0.0.1:7175", &end, &events);
    let CmEvent::ConnectError { error, .. } = own.event(&events) else { panic!() };
    assert_eq!(error, ConnectFailure::Tcp(CloseReason::Refused));
    // The address is not one of the RNIC's.
    own.connect(0, "10.0.0.1:7174", &end, &events);
    let CmEvent::ConnectError { error, .. } = own.event(&events) else { panic!() };
    assert_eq!(error, NO_ROUTE);
    // The connection is rejected, with private data.
    own.connect(0, "127.0.0.1:7174", &end, &events);
    let CmEvent::ConnectRequest { id, .. } = own.event(&listener) else { panic!() };
    own.apps[1].reject(id, b"not now".to_vec()).unwrap();
    let CmEvent::Rejected { private_data, .. } = own.event(&events) else { panic!() };
    assert_eq!(private_data, b"not now");
    // The connection ends in order.
    let [a, b] = own.pair((0, 1), "127.0.0.1:7174", &listener);
    b.end.post_recv(1, 0, 64);
    own.apps[0].disconnect(a.id).unwrap();
    for side in [&a, &b] {
        let CmEvent::Disconnected { id, .. } = own.event(&side.events) else { panic!() };
        assert_eq!(id, side.id);
    }
    let [flushed] = b.end.completions()[..] else { panic!("the receive") };
    assert_eq!(flushed.status, CqeStatus::Flushed);
    // The other application ends: a reset.
    let [a, _b] = own.pair((0, 1), "127.0.0.1:7174", &listener);
    own.apps[1].close().unwrap();
    let CmEvent::Disconnected { reason, .. } = own.event(&a.events) else { panic!() };
    assert_eq!(reason, DisconnectReason::Tcp(CloseReason::Reset));
}

#[test]
fn test_failed_end_of_inner_connection_sends_terminate_to_other_end() {
    let mut own = Own::private(1);
    let listener = own.listen(1, "127.0.0.1:7174", ListenParams::default());
    let [a, b] = own.pair((0, 1), "127.0.0.1:7174", &listener);
    // The peer's region does not exist.
    let (stag, sges) = (b.end.mr.stag(), [a.end.mr.sge(0, 8)]);
    let wrong = heddle_types::Stag(stag.0 ^ 0x1000);
    a.end.qp.post_send(&SendWr::write(1, &sges, wrong, 0)).unwrap();
    let CmEvent::Disconnected { .. } = own.event(&a.events) else { panic!() };
    let CmEvent::Disconnected { .. } = own.event(&b.events) else { panic!() };
    let workers = own.rnic.snapshot().workers;
    let qp = &workers[0].counters.as_ref().unwrap().engine.qps;
    assert_eq!((qp.tx_terminates, qp.rx_terminates), (1, 1));
    b.end.assert_untouched("a Write to nowhere");
}

#[test]
fn test_unanswered_request_ends_after_its_time_at_both_ends() {
    let mut own = Own::private(1);
    let listener = own.listen(1, "127.0.0.1:7174", ListenParams::default());
    let (end, events) = (End::on(&own.apps[0], 64), EventQueue::new(None));
    let mut params = ConnectParams::new(end.qp.clone());
    params.timeout = Duration::from_secs(2);
    own.apps[0].connect(at("127.0.0.1:7174"), params, &events).unwrap();
    let CmEvent::ConnectRequest { .. } = own.event(&listener) else { panic!() };
    let CmEvent::ConnectError { error, .. } = own.event(&events) else { panic!() };
    assert!(matches!(error, ConnectFailure::TimedOut(_)), "{error:?}");
    let CmEvent::ConnectError { .. } = own.event(&listener) else { panic!("its peer is gone") };
}

/// Both applications connect to each other at once, many times over, and every connection has its
/// own pair of ends.
#[test]
fn test_simultaneous_connects_of_two_applications_all_succeed() {
    const EACH: usize = 8;
    let mut own = Own::private(2);
    let listeners = [0, 1]
        .map(|app| own.listen(app, &format!("127.0.0.1:{}", 7000 + app), ListenParams::default()));
    let mut sides = Vec::new();
    for n in 0..2 * EACH {
        let (from, to) = (n % 2, 1 - n % 2);
        let (end, events) = (End::on(&own.apps[from], 64), EventQueue::new(None));
        own.connect(from, &format!("127.0.0.1:{}", 7000 + to), &end, &events);
        sides.push((end, events));
    }
    let mut accepted = Vec::new();
    for (app, listener) in listeners.iter().enumerate() {
        for _ in 0..EACH {
            let CmEvent::ConnectRequest { id, .. } = own.event(listener) else { panic!() };
            let end = End::on(&own.apps[app], 64);
            own.apps[app].accept(id, AcceptParams::new(end.qp.clone())).unwrap();
            accepted.push(end);
        }
    }
    for (_, events) in &sides {
        assert!(matches!(own.event(events), CmEvent::Established { .. }));
    }
}

/// Makes an RNIC with a port whose other end has no RNIC.
fn ported(inner: InnerSetup, addrs: &[&str]) -> Own {
    let port = |addrs: &[&str]| {
        let cidrs: Vec<Cidr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
        PortSetup { frames: 511, ..PortSetup::new(cidrs) }
    };
    let (a, b) = (port(addrs), port(&["10.0.0.99/24"]));
    Own::with(inner, |eal| vec![OpenPort::ring_pair(eal, &name(), &a, &b).unwrap().0])
}

#[test]
fn test_rnic_connects_to_its_own_addresses_without_frames_at_the_port() {
    let mut own = ported(InnerSetup::default(), &["10.0.0.1/24", "10.5.0.1/24"]);
    let one = own.listen(1, "10.0.0.1:7174", ListenParams::default());
    let any = own.listen(1, "0.0.0.0:7175", ListenParams::default());
    for (addr, listener) in
        [("10.0.0.1:7174", &one), ("10.0.0.1:7175", &any), ("10.5.0.1:7175", &any)]
    {
        let sides = own.pair((0, 1), addr, listener);
        own.exchange(&sides, 3);
    }
    let snapshot = own.rnic.snapshot();
    let workers: Vec<_> = snapshot.workers.iter().map(|w| w.counters.as_ref().unwrap()).collect();
    assert_eq!((workers[0].engine.stack.opened, workers[1].engine.stack.opened), (0, 3));
    assert_eq!(snapshot.ports[0].stats.tx_frames, 0);
    // 127.0.0.0/8 does not belong to this RNIC.
    let (end, events) = (End::on(&own.apps[0], 64), EventQueue::new(None));
    own.connect(0, "127.0.0.1:7175", &end, &events);
    let CmEvent::ConnectError { error, .. } = own.event(&events) else { panic!() };
    assert_eq!(error, NO_ROUTE);
    let events = EventQueue::new(None);
    own.apps[0].listen(at("127.0.0.1:1"), ListenParams::default(), &events).unwrap();
    assert!(matches!(own.event(&events), CmEvent::ListenFailed { .. }));
}

#[test]
fn test_applications_see_and_bind_to_inner_port_if_there_is_no_other() {
    let own = Own::private(2);
    let [port] = &own.apps[0].ports().unwrap()[..] else { panic!("one port") };
    assert!(port.link.up);
    let [v4, v6] = &port.addresses[..] else { panic!("{:?}", port.addresses) };
    assert_eq!((v4.addr, v4.prefix), (at("127.0.0.1:0").ip(), 8));
    assert_eq!((v6.addr, v6.prefix), (at("[::1]:0").ip(), 128));
    for addr in ["127.0.0.1:0", "127.200.0.9:0", "0.0.0.0:0", "[::1]:0"] {
        assert!(own.apps[0].reserve_addr(at(addr)).is_ok(), "{addr}");
    }
    assert!(own.apps[0].reserve_addr(at("10.0.0.1:0")).is_err());
    drop(own);
    let own = ported(InnerSetup::default(), &["10.0.0.1/24"]);
    let [port] = &own.apps[0].ports().unwrap()[..] else { panic!("one port") };
    let addrs: Vec<_> = port.addresses.iter().map(|a| (a.addr, a.prefix)).collect();
    assert_eq!(addrs, [(at("10.0.0.1:0").ip(), 24)], "that to other hosts");
}

#[test]
fn test_inner_port_follows_the_addresses_of_the_others() {
    let mut own = ported(InnerSetup::default(), &["10.0.0.1/24", "10.5.0.1/24"]);
    let any = own.listen(1, "0.0.0.0:7175", ListenParams::default());
    let [goes, _g] = own.pair((0, 1), "10.5.0.1:7175", &any);
    let stays = own.pair((0, 1), "10.0.0.1:7175", &any);
    let cidrs = ["10.0.0.1/24", "10.6.0.1/24"].map(|a| a.parse().unwrap());
    let nets = vec![Addressing::new(cidrs.to_vec(), Vec::new()).unwrap()];
    let (to, from) = std::sync::mpsc::channel();
    let reply = Reply::new(move |answer| to.send(answer).unwrap());
    own.rnic.asker().ask(Question::SetAddressing { nets, reply }).map_err(|_| ()).unwrap();
    own.until("the answer", || from.try_recv().ok()).unwrap();
    let CmEvent::Disconnected { reason, .. } = own.event(&goes.events) else { panic!() };
    assert_eq!(reason, DisconnectReason::Tcp(CloseReason::Withdrawn));
    own.exchange(&stays, 5);
    let new = own.pair((0, 1), "10.6.0.1:7175", &any);
    own.exchange(&new, 6);
}

#[test]
fn test_rnic_without_any_port_or_with_invalid_inner_port_is_refused() {
    let (eal, _turn) = eal();
    let none = RnicSetup { inner: None, ..setup(InnerSetup::default()) };
    assert!(matches!(Endpoint::assemble(&eal, Vec::new(), &none), Err(OpenError::NoPort)));
    let with = |inner: InnerSetup| {
        let setup = RnicSetup { inner: Some(inner), ..setup(InnerSetup::default()) };
        Endpoint::assemble(&eal, Vec::new(), &setup).err()
    };
    let usual = InnerSetup { frames: 255, ..InnerSetup::default() };
    for mtu in [575, 65_001] {
        assert!(
            matches!(with(InnerSetup { mtu, ..usual.clone() }), Some(OpenError::InnerMtu(m)) if m == mtu)
        );
    }
    for workers in [0, 17] {
        let refused = with(InnerSetup { workers, ..usual.clone() });
        assert!(matches!(refused, Some(OpenError::InnerWorkers(w)) if w == workers));
    }
    for mtu in [576, 65_000] {
        assert!(with(InnerSetup { mtu, ..usual.clone() }).is_none(), "{mtu}");
    }
}

/// A thread that polls only an inner port sleeps until there is work for it, and every kind of work
/// wakes it. The thread does not nap.
#[test]
fn test_thread_of_rnic_without_ports_sleeps_until_doorbell() {
    let (eal, _turn) = eal();
    let inner = InnerSetup::loopback();
    let rnic = Endpoint::assemble(&eal, Vec::new(), &setup(inner)).unwrap();
    let apps = [app(&rnic), app(&rnic)];
    let naps = Naps { after: Duration::from_micros(100), ..Naps::default() };
    let idle = IdlePolicy::Backoff(naps);
    let lcores = Lcores { idle, among_programs: true, ..Lcores::new([allowed_cpus()[0]]) };
    let node = Node::start_with(&eal, rnic, &lcores).unwrap();
    let listener = apps[1].bind("127.0.0.1:7174").unwrap();
    let dialing = apps[0].dial("127.0.0.1:7174").unwrap();
    let (server, client) = (listener.accept().unwrap(), dialing.wait().unwrap());
    let sleeps = || node.lcores().next().unwrap().rest.rest_sleeps;
    let patience = Duration::from_secs(60);
    for round in 0..3 {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(400));
        // Naps would make 800 sleeps and more; a busy machine makes fewer.
        assert!(sleeps() - before < 50, "{} sleeps in round {round}", sleeps() - before);
        server.post_recv(&RecvWr::new(1, &[])).unwrap();
        client.post_send(&SendWr::send_inline(2, &[])).unwrap();
        assert!(server.wait(patience).unwrap().status.is_success());
        assert!(client.wait(patience).unwrap().status.is_success());
    }
}
