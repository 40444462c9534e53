//! The choice of workers: those of the port that has the address or the route.

use heddle_tcp::Addressing;
use heddle_types::{ConnectError, MpaOptions, Protocol};

use super::*;
use crate::ports::{Own, PortsError};

/// Returns the addressing of two ports: workers 0 and 1 have 10.0.0.1, and worker 2 has 172.16.0.1
/// and the default route.
fn nets() -> [Addressing; 2] {
    [net(&["10.0.0.1/8"], &[]), net(&["172.16.0.1/16"], &[("0.0.0.0/0", "172.16.0.254")])]
}

fn bench() -> Bench {
    let [a, b] = nets();
    Bench::new(CmConfig::new(Ports::new(vec![(2, a), (1, b)]).unwrap()))
}

impl Bench {
    /// Connects to `remote`, from `local` unless that is empty.
    fn connect_to(&mut self, id: u64, local: &str, remote: &str) -> Result<(), RequestError> {
        let local = (!local.is_empty()).then(|| local.parse().unwrap());
        let protocol = Protocol::Mpa(MpaOptions::new().fall_back(true));
        let terms = ConnectTerms::new(qp(u32::try_from(id).unwrap()));
        let params = ConnectTerms { local, protocol, ..terms };
        let remote = SocketAddr::new(remote.parse().unwrap(), 9);
        self.ask(APP, Request::Connect { id: CmId(id), remote, params })
    }

    fn listen_at(&mut self, id: u64, addr: &str) -> Result<(), RequestError> {
        let (addr, params) = (addr.parse().unwrap(), ListenParams::default());
        self.ask(APP, Request::Listen { id: ListenerId(id), addr, params })
    }

    /// Opens a peer's TCP connection at a worker.
    fn accepted_at(&mut self, worker: usize, local: SocketAddr, remote: SocketAddr) -> ConnId {
        let conn = self.names.next().unwrap();
        let event = Report::Event(RnicEvent::Accepted { conn, local, remote });
        self.cm.handle_report(self.now, WorkerId(worker), event);
        conn
    }

    fn is_known_at(&self, worker: usize, conn: ConnId) -> bool {
        self.cm.by_worker.contains_key(&(WorkerId(worker), conn))
    }

    fn set(&mut self, nets: [Addressing; 2]) -> Result<(), PortsError> {
        self.cm.set_addressing(self.now, nets.into())
    }
}

#[test]
fn test_connect_goes_to_least_busy_worker_of_port_that_routes_to_peer() {
    let mut b = bench();
    for id in 1..=4 {
        b.connect_to(id, "", "10.0.0.9").unwrap();
    }
    assert_eq!(b.orders(), ["0 Connect", "1 Connect", "0 Connect", "1 Connect"]);
    // Two connections of worker 1 end: it is chosen twice.
    for id in [2, 4] {
        let report = Report::Connecting { token: id, result: Err(ConnectError::PortInUse) };
        b.cm.handle_report(b.now, WorkerId(1), report);
    }
    for id in 5..=8 {
        b.connect_to(id, "", "10.0.0.9").unwrap();
    }
    assert_eq!(b.orders(), ["1 Connect", "1 Connect", "0 Connect", "1 Connect"]);
    // Connections that peers have made count too.
    b.listen_at(1, "10.0.0.1:7").unwrap();
    for w in 0..2 {
        let report = Report::Listening { token: 1, result: Ok(()) };
        b.cm.handle_report(b.now, WorkerId(w), report);
    }
    b.orders();
    for n in 0..3 {
        b.accepted_at(0, "10.0.0.1:7".parse().unwrap(), peer(n));
    }
    for id in 9..=11 {
        b.connect_to(id, "", "10.0.0.9").unwrap();
    }
    assert_eq!(b.orders(), ["1 Connect"; 3]);
    // For other destinations the manager chooses the other port.
    b.connect_to(20, "", "172.16.3.3").unwrap();
    b.connect_to(21, "", "192.0.2.1").unwrap();
    assert_eq!(b.orders(), ["2 Connect", "2 Connect"]);
}

#[test]
fn test_local_address_of_connect_selects_port() {
    let mut b = bench();
    // The other port is on a link with the peer, and is not chosen.
    b.connect_to(1, "172.16.0.1", "10.0.0.9").unwrap();
    let Some((WorkerId(2), Order::Connect { token: 1, local: Some(local), .. })) =
        b.cm.poll_order()
    else {
        panic!("connect from 172.16.0.1")
    };
    assert_eq!(local.to_string(), "172.16.0.1");
    b.connect_to(2, "", "10.0.0.9").unwrap();
    let order = b.cm.poll_order();
    assert!(matches!(order, Some((WorkerId(0), Order::Connect { local: None, .. }))), "{order:?}");
    let before = b.cm.gauges();
    for (local, remote, error) in [
        ("10.0.0.1", "192.0.2.1", ConnectError::NoRoute),
        ("10.0.0.2", "10.0.0.9", ConnectError::NotOurs),
        ("", "2001:db8::1", ConnectError::NoRoute),
        ("10.0.0.1", "2001:db8::1", ConnectError::Family),
    ] {
        assert_eq!(b.connect_to(3, local, remote), Err(RequestError::Connect(error)));
    }
    assert_eq!((b.orders(), b.cm.gauges()), (vec![], before));
}

/// After the peer has refused a revision, the manager asks again from the same address.
#[test]
fn test_redial_uses_same_local_address() {
    let mut b = bench();
    b.connect_to(1, "10.0.0.1", "10.0.0.9").unwrap();
    b.orders();
    let conn = b.names.next().unwrap();
    b.report(Report::Connecting { token: 1, result: Ok(conn) });
    b.event(RnicEvent::Connected { conn, local: "10.0.0.1:50000".parse().unwrap() });
    b.orders();
    b.event(RnicEvent::Closed { conn, reason: CloseReason::Reset });
    let again = std::iter::from_fn(|| b.cm.poll_order()).find_map(|(w, o)| match o {
        Order::Connect { local, .. } => Some((w, local)),
        _ => None,
    });
    assert_eq!(again, Some((W, Some("10.0.0.1".parse().unwrap()))));
}

#[test]
fn test_listener_runs_on_workers_of_port_that_has_its_address() {
    let mut b = bench();
    b.listen_at(1, "10.0.0.1:7").unwrap();
    assert_eq!(b.orders(), ["0 Listen", "1 Listen"]);
    b.listen_at(2, "172.16.0.1:7").unwrap();
    assert_eq!(b.orders(), ["2 Listen"]);
    b.listen_at(3, "0.0.0.0:7").unwrap();
    assert_eq!(b.orders(), ["0 Listen", "1 Listen", "2 Listen"]);
    let nobodys = b.listen_at(4, "10.0.0.2:7");
    assert_eq!(nobodys, Err(RequestError::Listen(ListenError::NotOurs)));
    // The listener is up when the workers of its port have answered; the orders to stop go to the
    // same workers.
    let answer = |b: &mut Bench, w, token| {
        let report = Report::Listening { token, result: Ok(()) };
        b.cm.handle_report(b.now, WorkerId(w), report);
    };
    answer(&mut b, 2, 2);
    assert_eq!(b.events(), [(APP, Event::Listening { id: ListenerId(2) })]);
    answer(&mut b, 0, 1);
    answer(&mut b, 2, 1);
    assert_eq!(b.events(), []);
    answer(&mut b, 1, 1);
    assert_eq!(b.events(), [(APP, Event::Listening { id: L })]);
    b.ask(APP, Request::Unlisten { id: L }).unwrap();
    assert_eq!(b.orders(), ["0 Unlisten", "1 Unlisten"]);
    b.ask(APP, Request::Unlisten { id: ListenerId(2) }).unwrap();
    assert_eq!(b.orders(), ["2 Unlisten"]);
}

#[test]
fn test_remaining_worker_takes_over_and_listeners_end_with_last_worker() {
    let mut b = bench();
    b.listen_at(1, "10.0.0.1:7").unwrap();
    b.listen_at(2, "172.16.0.1:7").unwrap();
    b.listen_at(3, "0.0.0.0:9").unwrap();
    for (w, token) in [(0, 1), (1, 1), (2, 2), (0, 3), (1, 3), (2, 3)] {
        let report = Report::Listening { token, result: Ok(()) };
        b.cm.handle_report(b.now, WorkerId(w), report);
    }
    assert_eq!(b.events().len(), 3);
    b.orders();
    b.cm.handle_worker_lost(b.now, W, &BTreeSet::new());
    b.connect_to(1, "", "10.0.0.9").unwrap();
    b.connect_to(2, "10.0.0.1", "10.0.0.9").unwrap();
    b.listen_at(4, "10.0.0.1:8").unwrap();
    assert_eq!(
        (b.events(), b.orders()),
        (vec![], vec!["1 Connect".into(), "1 Connect".into(), "1 Listen".into()])
    );
    // The port has no worker left. The other port has a route to the peer too, with a shorter
    // prefix.
    b.cm.handle_worker_lost(b.now, WorkerId(1), &BTreeSet::new());
    let failed =
        |id| (APP, Event::ListenFailed { id: ListenerId(id), error: ListenFailure::WorkerLost });
    let ended: Vec<_> = b.events().into_iter().filter(|(_, e)| e.cm_id().is_none()).collect();
    assert_eq!(ended, [failed(1), failed(4)]);
    b.connect_to(3, "", "10.0.0.9").unwrap();
    assert_eq!(b.orders(), ["2 Connect"]);
    assert_eq!(b.connect_to(4, "10.0.0.1", "10.0.0.9"), Err(RequestError::NoWorker));
    assert_eq!(b.listen_at(5, "10.0.0.1:8"), Err(RequestError::NoWorker));
    b.listen_at(6, "0.0.0.0:8").unwrap();
    assert_eq!(b.orders(), ["2 Listen"]);
}

/// A listener's places, and a peer's share of them, hold over all workers together: a peer gains
/// nothing by spreading connections.
#[test]
fn test_limits_of_a_listener_do_not_grow_with_its_workers() {
    let mut b = Bench::new(config(4));
    b.listen(ListenParams {
        backlog: 8,
        max_startups_per_peer: Some(3),
        max_conns_per_peer: Some(5),
        ..ListenParams::default()
    });
    let port = |n| ([10, 0, 1, 1], n).into();
    let of_one = (0..40u16).filter(|n| {
        let w = usize::from(n % 4);
        let conn = b.accepted_at(w, local(), port(n + 1));
        b.is_known_at(w, conn)
    });
    assert_eq!((of_one.count(), b.cm.counters().peer_full), (3, 37));
    // The other places are for other peers; each newcomer takes the place of the peer that waits
    // longest.
    for n in 0..20 {
        b.accepted_at(usize::from(n % 4), local(), peer(n + 2));
    }
    assert_eq!((b.cm.gauges().startups, b.cm.counters().backlog_evicted), (8, 15));
    // Established connections of one peer, each at another worker.
    b.pass(seconds(100));
    b.orders();
    b.notices();
    for n in 0..8u16 {
        let w = usize::from(n % 4);
        let conn = b.accepted_at(w, local(), port(n + 100));
        let report = |b: &mut Bench, r| b.cm.handle_report(b.now, WorkerId(w), r);
        report(&mut b, Report::Event(RnicEvent::StartupBytes { conn, bytes: request() }));
        let Some((_, Event::ConnectRequest { id, .. })) = b.events().pop() else {
            assert_eq!(n, 5, "one peer has five");
            assert_eq!(b.notices().pop(), Some(Refusal::PeerConns));
            return;
        };
        b.accept(id, u32::from(n)).unwrap();
        report(&mut b, Report::Entered { conn, result: Ok(()) });
        b.events();
    }
    panic!("one peer has as many as it likes");
}

#[test]
fn test_new_addresses_reach_workers_of_their_port_before_later_orders() {
    let mut b = bench();
    b.listen_at(1, "172.16.0.1:7").unwrap();
    b.orders();
    let [a, world] = nets();
    let more = net(&["10.0.0.1/8", "10.0.0.2/8"], &[]);
    assert_eq!(b.set([more.clone(), a.clone()]), Err(PortsError::Twice(local().ip())));
    assert_eq!((b.orders(), b.events()), (vec![], vec![]));
    b.set([more.clone(), world.clone()]).unwrap();
    b.listen_at(2, "10.0.0.2:7").unwrap();
    b.connect_to(1, "10.0.0.2", "10.0.0.9").unwrap();
    let orders = b.orders();
    assert_eq!(
        orders,
        ["0 SetAddressing", "1 SetAddressing", "0 Listen", "1 Listen", "0 Connect"],
        "the other port has nothing new"
    );
    b.set([more, world]).unwrap();
    assert_eq!(b.orders(), [""; 0], "nor has any the second time");
    // A worker that has ended gets no orders.
    b.cm.handle_worker_lost(b.now, W, &BTreeSet::new());
    let [_, world] = nets();
    b.set([a, world]).unwrap();
    assert_eq!(b.orders(), ["1 SetAddressing"]);
}

#[test]
fn test_listener_ends_with_its_address_and_connection_on_worker_report() {
    let mut b = Bench::new(CmConfig::new(
        Ports::new(vec![(1, net(&["10.0.0.1/8", "10.0.0.2/8"], &[])), (1, Addressing::default())])
            .unwrap(),
    ));
    b.listen(ListenParams::default());
    let all = "0.0.0.0:7174".parse().unwrap();
    b.listen_as(APP, ListenerId(2), all, ListenParams::default());
    let other = "10.0.0.2:7174".parse().unwrap();
    b.listen_as(OTHER, ListenerId(3), other, ListenParams::default());
    b.listen_at(4, "10.0.0.1:8").unwrap();
    let (running, id) = b.established(7);
    let silent = b.accepted(peer(2));
    b.orders();

    // The address moves to the other port.
    let nets = [net(&["10.0.0.2/8"], &[]), net(&["10.0.0.1/8"], &[])];
    b.set(nets).unwrap();
    let failed = |id| {
        let error = ListenFailure::AddressRemoved;
        (APP, Event::ListenFailed { id: ListenerId(id), error })
    };
    assert_eq!(b.events(), [failed(1), failed(4)]);
    assert_eq!(b.orders(), ["0 SetAddressing", "1 SetAddressing", "0 Abort"]);
    assert_eq!(b.cm.gauges().listeners, 2);
    // The listener had not been answered; the worker's late answer counts for nothing.
    b.report(Report::Listening { token: 4, result: Ok(()) });
    let withdrawn = |conn| RnicEvent::Closed { conn, reason: CloseReason::Withdrawn };
    b.event(withdrawn(running));
    b.event(withdrawn(silent));
    let reason = DisconnectReason::Tcp(CloseReason::Withdrawn);
    let end = Event::Disconnected { id, qpn: Qpn(7), reason, terminate: None };
    assert_eq!((b.events(), b.orders()), (vec![(APP, end)], vec!["0 Release".into(); 2]));
    assert_eq!(b.cm.gauges().conns, 0);
    // An application can listen at the address on its new port.
    b.listen_at(5, "10.0.0.1:7174").unwrap();
    assert_eq!(b.orders(), ["1 Listen"]);
}

/// A connection attempt that loses its address fails with that reason, and does not try another
/// revision from an address that was removed.
#[test]
fn test_startup_that_loses_its_address_fails_without_fallback() {
    let mut b = bench();
    b.connect_to(1, "", "10.0.0.9").unwrap();
    let conn = b.names.next().unwrap();
    b.report(Report::Connecting { token: 1, result: Ok(conn) });
    b.event(RnicEvent::Connected { conn, local: "10.0.0.1:50000".parse().unwrap() });
    b.event(RnicEvent::Closed { conn, reason: CloseReason::Withdrawn });
    let error = ConnectFailure::Tcp(CloseReason::Withdrawn);
    let end = Event::ConnectError { id: CmId(1), error, qp: QpFate::Free(Qpn(1)) };
    assert_eq!(b.events(), [(APP, end)]);
    assert_eq!(b.orders().last().map(String::as_str), Some("0 Release"));
}

#[test]
fn test_rnic_listens_at_inner_port_too_and_connects_to_itself_through_it() {
    let [a, b] = nets();
    let ports = Ports::new(vec![(2, a), (1, b)]).unwrap().with_inner(1, Own::default());
    let mut b = Bench::new(CmConfig::new(ports));
    b.listen_at(1, "10.0.0.1:7").unwrap();
    assert_eq!(b.orders(), ["0 Listen", "1 Listen", "3 Listen"]);
    b.listen_at(2, "0.0.0.0:8").unwrap();
    assert_eq!(b.orders(), ["0 Listen", "1 Listen", "2 Listen", "3 Listen"]);
    let local = "127.0.0.1:7";
    assert_eq!(b.listen_at(3, local), Err(RequestError::Listen(ListenError::NotOurs)));
    for (id, from, to) in [(1, "", "10.0.0.1"), (2, "10.0.0.1", "172.16.0.1")] {
        b.connect_to(id, from, to).unwrap();
    }
    b.connect_to(3, "", "10.0.0.9").unwrap();
    assert_eq!(b.orders(), ["3 Connect", "3 Connect", "0 Connect"]);
    b.set([net(&["10.0.0.2/8"], &[]), nets()[1].clone()]).unwrap();
    let orders = b.orders();
    let readdressed = orders.iter().filter(|o| o.ends_with("SetAddressing"));
    assert!(readdressed.eq(["0 SetAddressing", "1 SetAddressing", "3 SetAddressing"].iter()));
    b.connect_to(4, "", "10.0.0.2").unwrap();
    assert_eq!(b.orders(), ["3 Connect"]);
}
