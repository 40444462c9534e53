//! RNICs of two ports, each on a network of its own: objects that both ports share, and objects of
//! one port alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::eal;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, OpenPort, PortSetup, Question, Reply, RnicSetup};
use heddle_tcp::{Addressing, Cidr, ConnConfig, Route};
use heddle_types::{CloseReason, ConnectError};
use heddle_verbs::{
    CmEvent, CmId, ConnectFailure, ConnectParams, CqeStatus, DisconnectReason, EventQueue,
    ListenFailure, Qp, RecvWr, SendWr,
};

use super::rig::*;
use super::shared::{self, CONNS};

const PORT: u16 = 7174;
/// Workers of each side's two ports: the first ports are joined queue by queue, and the second
/// ports share one queue.
const WORKERS: [[usize; 2]; 2] = [[2, 2], [2, 1]];

/// Returns side `n`'s address on network `net`; port 0 is on network 0 and port 1 on network 1.
fn ip(net: u8, n: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, net, n as u8 + 1).into()
}

fn at(net: u8, n: usize) -> SocketAddr {
    (ip(net, n), PORT).into()
}

/// An address of side 1 that side 0 reaches by its second port.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Returns addresses and routes of port `port` of side `n`; `more` are further networks of the
/// port.
fn net(port: u8, n: usize, more: &[u8]) -> (Vec<Cidr>, Vec<Route>) {
    let on = |net| Cidr::new(ip(net, n), 24).unwrap();
    let mut addrs = vec![on(port)];
    addrs.extend(more.iter().copied().map(on));
    let mut routes = Vec::new();
    match (port, n) {
        (1, 0) => routes.push(Route { dest: "192.0.2.0/24".parse().unwrap(), via: ip(1, 1) }),
        (1, 1) => addrs.push(Cidr::new(FAR, 32).unwrap()),
        _ => {}
    }
    (addrs, routes)
}

/// Makes both RNICs; `more` are further networks of the second ports.
fn rig(name: &str, threads: bool, more: &[u8]) -> Rig {
    let (eal, turn) = eal();
    let setup = |port: u8, n: usize| {
        let (addrs, routes) = net(port, n, if port == 1 { more } else { &[] });
        let workers = WORKERS[n][usize::from(port)];
        PortSetup { workers, routes, frames: 2047, ..PortSetup::new(addrs) }
    };
    let pair = |port: u8| {
        let (a, b) = (setup(port, 0), setup(port, 1));
        OpenPort::ring_pair(&eal, &format!("{name}{port}"), &a, &b).unwrap()
    };
    let ((a0, b0), (a1, b1)) = (pair(0), pair(1));
    let rnic = |n| RnicSetup {
        memory: 8 << 20,
        queues: 64 << 20,
        max_conns: 256,
        tcp: ConnConfig {
            rto_min: Duration::from_millis(200),
            time_wait: Duration::from_millis(10),
            ..ConnConfig::default()
        },
        ..RnicSetup::with_seed(Seed::from_u64(n))
    };
    let a = Endpoint::assemble(&eal, vec![a0, a1], &rnic(1)).unwrap();
    let b = Endpoint::assemble(&eal, vec![b0, b1], &rnic(2)).unwrap();
    if threads { Rig::threads(&eal, a, b, turn) } else { Rig::inline(a, b, turn) }
}

/// Adds up the numbers of each worker for each port of a side.
fn by_port(side: usize, each: &[u64]) -> [u64; 2] {
    let (first, second) = each.split_at(WORKERS[side][0]);
    [first.iter().sum(), second.iter().sum()]
}

/// Returns the number of frames that each port of a side has sent.
fn sent(rig: &Rig, side: usize) -> [u64; 2] {
    let ports = rig.sides[side].snapshot().ports;
    [0, 1].map(|p: usize| ports[p].stats.tx_frames)
}

/// Makes one Send from side 0, and checks its arrival.
fn ping(rig: &mut Rig, apps: &[App; 2], from: &Qp, mark: u8) {
    apps[0].mr.write(0, &[mark; SLOT]);
    let sges = [apps[1].mr.sge(SLOT, SLOT)];
    apps[1].srq.post_recv(&RecvWr { wr_id: 7, sges: &sges }).unwrap();
    from.post_send(&SendWr::send(8, &[apps[0].mr.sge(0, SLOT)])).unwrap();
    for (app, wr_id) in [(&apps[1], 7), (&apps[0], 8)] {
        let cqe = rig.until("a completion", |_| app.cq.poll());
        assert_eq!((cqe.wr_id, cqe.status), (wr_id, CqeStatus::Success));
    }
    let mut got = [0; SLOT];
    apps[1].mr.read(SLOT, &mut got);
    assert_eq!(got, [mark; SLOT]);
}

/// Runs 64 connections over two ports and all their workers, with one of everything else on each
/// side.
fn use_both(threads: bool) {
    let mut rig = rig(if threads { "portsa" } else { "portsb" }, threads, &[]);
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let qps = [0, 1].map(|n: usize| apps[n].qps(CONNS));
    // Each side has one listener for all its addresses.
    let any = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let listeners = [0, 1].map(|n| rig.listen_at(n, any));
    let quarter = CONNS / 4;
    let part = |n: usize| n * quarter..(n + 1) * quarter;
    for (turn, (net, from)) in [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().enumerate() {
        let device = apps[from].device.clone();
        let (to, these) = (1 - from, part(turn));
        let (mine, theirs) = (&qps[from][these.clone()], &qps[to][these]);
        rig.connect_at(&device, (to, at(net, to)), &listeners[to], mine, theirs);
    }
    for side in 0..2 {
        let spread = rig.spread(side);
        let half = CONNS as u64 / 2;
        assert_eq!(by_port(side, &spread), [half; 2], "{spread:?}");
        // Among the workers of a port, chance decides, or the least number of connections.
        for (port, of_port) in [&spread[..2], &spread[2..]].into_iter().enumerate() {
            let workers = WORKERS[side][port] as u64;
            assert_eq!(of_port.len() as u64, workers);
            assert!(of_port.iter().all(|n| is_fair(half, workers, *n)), "{spread:?}");
        }
    }
    let before = [0, 1].map(|side| sent(&rig, side));
    shared::use_connections(&mut rig, &apps, &qps);
    for side in 0..2 {
        let after = sent(&rig, side);
        for port in 0..2 {
            // Each connection sends more than this many messages.
            let frames = after[port] - before[side][port];
            assert!(frames > 8 * CONNS as u64 / 2, "side {side}, port {port}: {frames} frames");
        }
    }
}

#[test]
fn test_inline_workers_carry_64_connections_over_two_ports() {
    use_both(false);
}

#[test]
fn test_worker_threads_carry_64_connections_over_two_ports() {
    use_both(true);
}

/// The destination address selects the port of outgoing connections and of incoming ones.
#[test]
fn test_connection_uses_port_that_routes_to_its_peer() {
    let mut rig = rig("portsc", false, &[]);
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let listener = rig.listen_at(1, (Ipv4Addr::UNSPECIFIED, PORT).into());
    let device = apps[0].device.clone();
    let mut qps: [Vec<Qp>; 2] = Default::default();
    // The last address is reached by a route, and not by the link.
    for (n, (remote, port)) in [(ip(0, 1), 0), (ip(1, 1), 1), (FAR, 1)].into_iter().enumerate() {
        let (mine, theirs) = (apps[0].qps(1), apps[1].qps(1));
        let before = [0, 1].map(|side| (by_port(side, &rig.spread(side)), sent(&rig, side)));
        rig.connect_at(&device, (1, (remote, PORT).into()), &listener, &mine, &theirs);
        ping(&mut rig, &apps, &mine[0], n as u8 + 1);
        for side in 0..2 {
            let (conns, frames) = (by_port(side, &rig.spread(side)), sent(&rig, side));
            let (conns_before, frames_before) = before[side];
            let told = format!("to {remote}: {conns:?}, {frames:?} after {:?}", before[side]);
            assert_eq!(conns[port], conns_before[port] + 1, "{told}");
            assert_eq!(conns[1 - port], conns_before[1 - port], "{told}");
            assert!(frames[port] > frames_before[port], "{told}");
            assert_eq!(frames[1 - port], frames_before[1 - port], "{told}");
        }
        qps[0].extend(mine);
        qps[1].extend(theirs);
    }
    // The requested source address selects the port too, and this port has no route there.
    let qp = apps[0].qps(1).remove(0);
    let events = EventQueue::new(None);
    let params = ConnectParams::new(qp).from(ip(0, 0));
    device.connect((FAR, PORT).into(), params, &events).unwrap();
    let refused = ConnectFailure::Open(ConnectError::NoRoute);
    match rig.until("an answer", |_| events.poll()) {
        CmEvent::ConnectError { error, .. } => assert_eq!(error, refused),
        other => panic!("{other:?}"),
    }
    for (n, qp) in qps[0].iter().enumerate() {
        ping(&mut rig, &apps, qp, n as u8 + 10);
    }
}

/// Gives the ports of a side other networks, and waits until the change is made.
fn readdress(rig: &Rig, side: usize, more: [&[u8]; 2]) {
    let nets = [0, 1].map(|port: u8| {
        let (addrs, routes) = net(port, side, more[usize::from(port)]);
        Addressing::new(addrs, routes).unwrap()
    });
    let (to, done) = channel();
    let reply = Reply::new(move |answer| to.send(answer).unwrap());
    let Rnic::Threads(node) = &rig.sides[side] else { panic!("it has threads") };
    node.asker().ask(Question::SetAddressing { nets: nets.into(), reply }).unwrap();
    assert_eq!(done.recv_timeout(PATIENCE).unwrap(), Ok(()));
}

/// Returns the reason of a connection's end.
fn end_of(rig: &mut Rig, events: &EventQueue, id: CmId) -> DisconnectReason {
    rig.until("an end", |_| match events.poll()? {
        CmEvent::Disconnected { id: ended, reason, .. } => {
            assert_eq!(ended, id);
            Some(reason)
        }
        event => panic!("{event:?}"),
    })
}

/// A network moves from the second ports to the first, while connections on both run.
#[test]
fn test_addresses_move_from_one_port_to_another_while_connections_run() {
    const MOVED: u8 = 7;
    let mut rig = rig("portsd", true, &[MOVED]);
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let device = apps[0].device.clone();
    let any = rig.listen_at(1, (Ipv4Addr::UNSPECIFIED, PORT).into());
    let there = rig.listen_at(1, (ip(MOVED, 1), PORT + 1).into());
    let [mut mine, mut theirs] = [0, 1].map(|n: usize| apps[n].qps(3));
    let mut ids = Vec::new();
    for (n, net) in [0, 1, MOVED].into_iter().enumerate() {
        let (mine, theirs) = (&mine[n..=n], &theirs[n..=n]);
        ids.extend(rig.connect_at(&device, (1, at(net, 1)), &any, mine, theirs));
        ping(&mut rig, &apps, &mine[0], n as u8);
    }
    assert_eq!(by_port(1, &rig.spread(1)), [1, 2]);

    // The listening side changes first: when the other side changes, its connection's far end has
    // already ended.
    readdress(&rig, 1, [&[MOVED], &[]]);
    let withdrawn = DisconnectReason::Tcp(CloseReason::Withdrawn);
    assert_eq!(end_of(&mut rig, &any, ids[2][1]), withdrawn);
    readdress(&rig, 0, [&[MOVED], &[]]);
    rig.until("the other end", |_| mine[2].is_dead().then_some(()));
    // The listener at the moved address hears that the address was removed.
    let gone = rig.until("the listener's end", |_| there.poll());
    let removed = ListenFailure::AddressRemoved;
    assert!(matches!(gone, CmEvent::ListenFailed { error, .. } if error == removed), "{gone:?}");
    // The other connections are not affected.
    for n in 0..2 {
        ping(&mut rig, &apps, &mine[n], n as u8 + 20);
    }
    // At its new place the address is reached by the first ports, and the listener for all
    // addresses already covers it.
    mine.extend(apps[0].qps(1));
    theirs.extend(apps[1].qps(1));
    let before = by_port(1, &rig.spread(1));
    rig.connect_at(&device, (1, at(MOVED, 1)), &any, &mine[3..], &theirs[3..]);
    ping(&mut rig, &apps, &mine[3], 30);
    assert_eq!(by_port(1, &rig.spread(1)), [before[0] + 1, before[1]]);
    let again = rig.listen_at(1, (ip(MOVED, 1), PORT + 1).into());
    let [new, new_there] = [0, 1].map(|n: usize| apps[n].qps(1));
    let remote = (ip(MOVED, 1), PORT + 1).into();
    rig.connect_at(&device, (1, remote), &again, &new, &new_there);
    ping(&mut rig, &apps, &new[0], 31);
}
