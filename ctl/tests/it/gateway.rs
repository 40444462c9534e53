//! A gateway with two ports, an asker on one and a target on the other. The gateway forwards
//! connections between InfiniBand's connection management and iWARP, in both directions, through
//! workers and control planes.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use heddle_ctl::{Asker, Endpoint, EndpointConfig, OpenPort, Question, Reply};
use heddle_dataplane::{Clock, Eal, ManualClock};
use heddle_gateway::{Gateway, GatewayError, Rule, RuleError};
use heddle_tcp::{Addressing, Cidr};
use heddle_types::TcpTerms;
use heddle_verbs::{
    AcceptParams, AppId, CmEvent, CmId, ConnectFailure, ConnectParams, DisconnectReason,
    EventQueue, IbRefusal, ListenParams, ListenerId, Protocol, Qp, QpInit, Transport,
};

use crate::common::*;

const ASKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const VIA: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 1, 0, 1)];
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const FROM_IB: Transport = Transport::InfiniBand;
const FROM_IWARP: Transport = Transport::Iwarp;
/// Both directions of gateway.
const WAYS: [Transport; 2] = [FROM_IB, FROM_IWARP];

/// Returns the call by which a gateway refuses a request with a reason.
fn refuse(asker: Asker) -> impl Fn(AppId, CmId, u16) + Send {
    move |app, id, reason| drop(asker.ask(Question::Refuse { app, id, reason }))
}

fn speaks(ip: Ipv4Addr, clock: &Clock) -> EndpointConfig {
    // Each test opens new pools, which are never freed, so they are small.
    EndpointConfig { infiniband: true, frames: 255, ..config(ip, clock) }
}

/// An RNIC and its application, which makes or accepts connections.
struct Peer {
    rnic: Endpoint,
    events: EventQueue,
    qps: Vec<Qp>,
}

impl Peer {
    fn new(rnic: Endpoint) -> Peer {
        Peer { rnic, events: EventQueue::new(None), qps: Vec::new() }
    }

    fn qp(&mut self) -> Qp {
        let device = self.rnic.device();
        let cq = device.create_cq(8, None).unwrap();
        let qp =
            device.create_qp(device.alloc_pd().unwrap(), QpInit::new(cq).depths(4, 4)).unwrap();
        self.qps.push(qp.clone());
        qp
    }

    fn ask(&mut self, over: Transport, private_data: &[u8]) -> CmId {
        let protocol = protocol(over);
        let private_data = private_data.to_vec();
        let timeout = Duration::from_secs(60);
        let params = ConnectParams::new(self.qp()).reads(7, 2);
        let params = ConnectParams { protocol, private_data, timeout, ..params };
        self.rnic.device().connect((VIA[0], PORT).into(), params, &self.events).unwrap()
    }

    fn accept(&mut self, id: CmId, private_data: &[u8]) {
        let private_data = private_data.to_vec();
        let params = AcceptParams { private_data, ..AcceptParams::new(self.qp()).reads(3, 5) };
        self.rnic.device().accept(id, params).unwrap();
    }
}

fn protocol(over: Transport) -> Protocol {
    if over == FROM_IB { Protocol::InfiniBand } else { Protocol::default() }
}

fn other(transport: Transport) -> Transport {
    if transport == FROM_IB { FROM_IWARP } else { FROM_IB }
}

struct World {
    asker: Peer,
    target: Peer,
    via: Endpoint,
    gateway: Gateway,
    hand: ManualClock,
}

impl World {
    /// Makes a world with room for `most` connections, and one rule: connections that come over
    /// `from` go on over the other transport.
    fn new(eal: &Eal, from: Transport, most: usize) -> (World, ListenerId) {
        let (clock, hand) = Clock::manual();
        let configs = [ASKER, VIA[0], VIA[1], TARGET].map(|ip| speaks(ip, &clock));
        let [asker, via, second, target] = &configs;
        let (a, va) = OpenPort::ring_pair(eal, &name(), &asker.port(), &via.port()).unwrap();
        let (vb, b) = OpenPort::ring_pair(eal, &name(), &second.port(), &target.port()).unwrap();
        let rnic = |ports, c: &EndpointConfig| Endpoint::assemble(eal, ports, &c.rnic()).unwrap();
        let (asker, via) = (rnic(vec![a], asker), rnic(vec![va, vb], via));
        let target = rnic(vec![b], target);
        let ours = VIA.map(IpAddr::from).to_vec();
        let hub = via.hub().clone();
        let gateway = Gateway::new(&hub, refuse(via.asker()), ours, most, None).unwrap();
        let (asker, target) = (Peer::new(asker), Peer::new(target));
        let mut w = World { asker, target, via, gateway, hand };
        let params = ListenParams { infiniband: true, ..ListenParams::default() };
        let device = w.target.rnic.device();
        device.listen((TARGET, PORT).into(), params, &w.target.events).unwrap();
        assert!(matches!(w.event(Side::Target), CmEvent::Listening { .. }));
        let listener = w.gateway.add(&rule(from)).unwrap();
        w.until("it listens", |w| w.gateway.is_listening(listener).unwrap().then_some(()));
        (w, listener)
    }

    fn poll(&mut self) {
        for _ in 0..40 {
            self.asker.rnic.poll();
            self.via.poll();
            self.target.rnic.poll();
            self.gateway.step();
        }
    }

    /// Polls until `found` returns a value, within two minutes of virtual time.
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut World) -> Option<T>) -> T {
        for _ in 0..12_000 {
            self.poll();
            if let Some(found) = found(self) {
                return found;
            }
            self.hand.advance(10 * MS);
        }
        panic!("not in two minutes: {what}")
    }

    fn pass(&mut self, time: Duration) {
        let until = self.hand.now() + time;
        while self.hand.now() < until {
            self.poll();
            self.hand.advance(10 * MS);
        }
    }

    fn event(&mut self, side: Side) -> CmEvent {
        self.until("an event", |w| w.peer(side).events.poll())
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        match side {
            Side::Asker => &mut self.asker,
            Side::Target => &mut self.target,
        }
    }

    fn request(&mut self) -> CmId {
        match self.event(Side::Target) {
            CmEvent::ConnectRequest { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Establishes a connection; returns the asker's and the target's name of it.
    fn establish(&mut self, from: Transport) -> [CmId; 2] {
        let asker = self.asker.ask(from, b"");
        let target = self.request();
        self.target.accept(target, b"");
        for side in [Side::Asker, Side::Target] {
            assert!(matches!(self.event(side), CmEvent::Established { .. }));
        }
        // The asker's RTU, or its first message, may still be under way.
        self.until("both", |w| (w.gateway.counters().established > 0).then_some(()));
        [asker, target]
    }

    fn disconnected(&mut self, side: Side) -> DisconnectReason {
        match self.event(side) {
            CmEvent::Disconnected { reason, .. } => reason,
            other => panic!("{side:?}: {other:?}"),
        }
    }

    /// Asserts that nothing is left of the forwarded connections, neither here nor in the RNIC.
    fn assert_over(&mut self) {
        self.until("the end", |w| w.gateway.is_empty().then_some(()));
        self.pass(Duration::from_secs(1));
        let gauges = self.via.snapshot().ctl.gauges;
        assert_eq!((gauges.conns, gauges.claims), (0, 0), "{gauges:?}");
        assert_eq!(self.gateway.pairs().count(), 0);
    }

    fn readdress(&mut self, nets: [&str; 2]) {
        let net = |a: &str| Addressing::new(vec![a.parse::<Cidr>().unwrap()], Vec::new()).unwrap();
        let nets = nets.map(net).to_vec();
        let reply = Reply::new(|done: Result<(), _>| done.unwrap());
        self.via.asker().ask(Question::SetAddressing { nets, reply }).unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Asker,
    Target,
}

fn rule(from: Transport) -> Rule {
    Rule {
        addr: (VIA[0], PORT).into(),
        params: ListenParams::default(),
        from,
        target: (TARGET, PORT).into(),
        protocol: protocol(other(from)),
        timeout: Duration::from_secs(5),
        most: 4,
        tcp: TcpTerms::default(),
    }
}

/// Returns true if the event is the refusal that an asker gets: InfiniBand carries a reason, iWARP
/// a rejection without private data.
fn refused(event: &CmEvent, from: Transport, reason: u16) -> bool {
    match event {
        CmEvent::ConnectError { error, .. } => {
            from == FROM_IB && *error == ConnectFailure::InfiniBand(IbRefusal::Reason(reason))
        }
        CmEvent::Rejected { private_data, .. } => from == FROM_IWARP && private_data.is_empty(),
        _ => false,
    }
}

#[test]
fn test_gateway_forwards_connections_repeatedly_with_same_queue_pairs() {
    let (eal, _turn) = eal();
    for from in WAYS {
        // The queue pairs suffice for one connection, and have to serve all connections in turn.
        let (mut w, _) = World::new(&eal, from, 1);
        for n in 1..=3 {
            let asker = w.asker.ask(from, b"question");
            let CmEvent::ConnectRequest { id, remote, transport, private_data, peer, .. } =
                w.event(Side::Target)
            else {
                panic!("a request")
            };
            assert_eq!((transport, remote.ip()), (other(from), VIA[1].into()));
            assert!(private_data.starts_with(b"question"), "{private_data:?}");
            let depths = peer.map(|d| (d.ird.get(), d.ord.get()));
            assert_eq!(depths, Some((Some(7), Some(2))));
            w.target.accept(id, b"answer");
            let CmEvent::Established { private_data, agreed, .. } = w.event(Side::Asker) else {
                panic!("established")
            };
            assert!(private_data.starts_with(b"answer"), "{private_data:?}");
            assert_eq!((agreed.transport, agreed.ird, agreed.ord), (from, 7, 2));
            assert!(matches!(w.event(Side::Target), CmEvent::Established { .. }));
            w.until("both", |w| (w.gateway.counters().established == n).then_some(()));
            assert_eq!(w.gateway.pairs().count(), 1);
            let (first, second, name) = if n == 2 {
                (Side::Target, Side::Asker, id)
            } else {
                (Side::Asker, Side::Target, asker)
            };
            w.peer(first).rnic.device().disconnect(name).unwrap();
            assert_eq!(w.disconnected(second), DisconnectReason::Orderly, "{from:?}");
            assert_eq!(w.disconnected(first), DisconnectReason::Orderly, "{from:?}");
            w.assert_over();
        }
        let c = w.gateway.counters();
        assert_eq!((c.forwarded, c.established, c.failed, c.refused_full), (3, 3, 0, 0));
    }
}

/// Both connections of a pair are listed, together with the pair itself.
#[test]
fn test_gateway_reports_which_two_connections_form_a_pair() {
    let (eal, _turn) = eal();
    let (mut w, _) = World::new(&eal, FROM_IB, 4);
    w.establish(FROM_IB);
    let (to, from) = std::sync::mpsc::channel();
    let reply = Reply::new(move |page| to.send(page).unwrap());
    w.via.asker().ask(Question::Conns { after: None, without: Vec::new(), reply }).unwrap();
    let page = w.until("an answer", |_| from.try_recv().ok());
    let seen: Vec<_> = page.conns.iter().map(|c| (c.view.transport, c.view.remote.ip())).collect();
    assert_eq!(seen, [(FROM_IWARP, TARGET.into()), (FROM_IB, ASKER.into())]);
    assert!(page.conns.iter().all(|c| c.view.app == w.gateway.device().app()));
    let pair = (page.conns[1].view.id, page.conns[0].view.id);
    assert_eq!(w.gateway.pairs().collect::<Vec<_>>(), [pair]);
    // A watching program ends one end of a pair, and the other end follows.
    let (id, how) = (pair.1, heddle_ctl::Kill::Reset);
    w.via
        .asker()
        .ask(Question::Kill { id, how, reply: Reply::new(|known: bool| assert!(known)) })
        .unwrap();
    w.disconnected(Side::Asker);
    w.disconnected(Side::Target);
    w.assert_over();
}

/// An iWARP listener resets a peer that sends nothing, but a forwarded connection may stay silent.
#[test]
fn test_gateway_keeps_connection_that_sends_nothing() {
    let (eal, _turn) = eal();
    let (mut w, _) = World::new(&eal, FROM_IWARP, 4);
    w.establish(FROM_IWARP);
    w.pass(Duration::from_secs(90));
    assert!(w.asker.events.is_empty() && w.target.events.is_empty());
    assert_eq!(w.gateway.len(), 1);
}

#[test]
fn test_gateway_tells_asker_that_target_rejects_or_is_absent() {
    let (eal, _turn) = eal();
    for from in WAYS {
        let (mut w, listener) = World::new(&eal, from, 4);
        w.asker.ask(from, b"");
        let id = w.request();
        w.target.rnic.device().reject(id, b"not today".to_vec()).unwrap();
        let CmEvent::Rejected { private_data, .. } = w.event(Side::Asker) else { panic!() };
        assert!(private_data.starts_with(b"not today"), "{private_data:?}");
        w.assert_over();
        // The target has no listener at this port.
        w.gateway.remove(listener);
        let target = SocketAddr::from((TARGET, PORT + 1));
        w.gateway.add(&Rule { target, ..rule(from) }).unwrap();
        w.pass(MS);
        w.asker.ask(from, b"");
        let event = w.event(Side::Asker);
        assert!(refused(&event, from, 8), "{event:?}");
        w.assert_over();
        let c = w.gateway.counters();
        assert_eq!((c.rejected, c.failed), (1, 1));
    }
}

/// The target's application does not answer: the rule's time passes, and both ends hear of it.
#[test]
fn test_gateway_gives_up_target_that_does_not_answer() {
    let (eal, _turn) = eal();
    for from in WAYS {
        let (mut w, _) = World::new(&eal, from, 4);
        w.asker.ask(from, b"");
        w.request();
        let start = w.hand.now();
        let event = w.event(Side::Asker);
        assert!(refused(&event, from, 4), "{event:?}");
        let took = w.hand.now().since(start);
        assert!((4..6).contains(&took.as_secs()), "{took:?}");
        assert!(matches!(w.event(Side::Target), CmEvent::ConnectError { .. }));
        w.assert_over();
        assert_eq!(w.gateway.counters().failed, 1);
    }
}

#[test]
fn test_target_is_told_when_asker_gives_up() {
    let (eal, _turn) = eal();
    for from in WAYS {
        let (mut w, _) = World::new(&eal, from, 4);
        let asker = w.asker.ask(from, b"");
        let id = w.request();
        w.asker.rnic.device().disconnect(asker).unwrap();
        assert!(matches!(w.event(Side::Asker), CmEvent::ConnectError { .. }));
        assert!(matches!(w.event(Side::Target), CmEvent::ConnectError { .. }));
        w.assert_over();
        assert_eq!(w.gateway.counters().abandoned, 1);
        // The asker gives up at the very moment at which the target accepts.
        let asker = w.asker.ask(from, b"");
        let _ = id;
        let id = w.request();
        w.target.accept(id, b"");
        w.asker.rnic.device().disconnect(asker).unwrap();
        w.assert_over();
    }
}

#[test]
fn test_gateway_refuses_private_data_that_do_not_fit() {
    let (eal, _turn) = eal();
    let (mut w, _) = World::new(&eal, FROM_IWARP, 4);
    w.asker.ask(FROM_IWARP, &[1; 57]);
    let event = w.event(Side::Asker);
    assert!(refused(&event, FROM_IWARP, 5), "{event:?}");
    w.asker.ask(FROM_IWARP, &[1; 56]);
    let id = w.request();
    w.target.accept(id, b"");
    assert!(matches!(w.event(Side::Asker), CmEvent::Established { .. }));
    let (mut w, _) = World::new(&eal, FROM_IB, 4);
    w.asker.ask(FROM_IB, b"");
    let id = w.request();
    w.target.accept(id, &[1; 197]);
    let event = w.event(Side::Asker);
    assert!(refused(&event, FROM_IB, 5), "{event:?}");
    assert!(matches!(w.event(Side::Target), CmEvent::Established { .. }));
    w.disconnected(Side::Target);
    w.assert_over();
    // A rejection stays a rejection without its private data.
    w.asker.ask(FROM_IB, b"");
    let id = w.request();
    w.target.rnic.device().reject(id, vec![1; 149]).unwrap();
    let CmEvent::Rejected { private_data, .. } = w.event(Side::Asker) else { panic!() };
    assert_eq!(private_data, [0; 148]);
    assert_eq!(w.gateway.counters().private_data_too_long, 2);
    w.assert_over();
}

/// Earlier requests go on after the rule is removed, whether their connections are established or
/// not.
#[test]
fn test_removed_rule_refuses_new_requests_and_keeps_old_connections() {
    let (eal, _turn) = eal();
    for from in WAYS {
        let (mut w, listener) = World::new(&eal, from, 4);
        let [up, _] = w.establish(from);
        w.asker.ask(from, b"");
        let half = w.request();
        w.gateway.remove(listener);
        w.asker.ask(from, b"");
        let event = w.event(Side::Asker);
        let absent = ConnectFailure::Tcp(heddle_types::CloseReason::Refused);
        let nobody = refused(&event, from, 8)
            || matches!(&event, CmEvent::ConnectError { error, .. } if *error == absent);
        assert!(nobody, "{event:?}");
        w.target.accept(half, b"");
        for side in [Side::Asker, Side::Target] {
            assert!(matches!(w.event(side), CmEvent::Established { .. }));
        }
        assert_eq!(w.gateway.len(), 2);
        w.asker.rnic.device().disconnect(up).unwrap();
        w.disconnected(Side::Asker);
        w.disconnected(Side::Target);
        assert!(w.gateway.is_listening(listener).is_err());
        // Another rule for the same address takes over.
        let again = w.gateway.add(&rule(from)).unwrap();
        w.until("it listens", |w| w.gateway.is_listening(again).unwrap().then_some(()));
        w.establish(from);
    }
}

/// The address of one leg is removed: the RNIC ends that leg, and the gateway the other.
#[test]
fn test_gateway_ends_both_legs_when_address_of_one_is_removed() {
    let (eal, _turn) = eal();
    for from in WAYS {
        for nets in [["10.0.0.77/24", "10.1.0.1/24"], ["10.0.0.1/24", "10.1.0.77/24"]] {
            let (mut w, _) = World::new(&eal, from, 4);
            w.establish(from);
            w.readdress(nets);
            w.disconnected(Side::Asker);
            w.disconnected(Side::Target);
            w.assert_over();
            // The address is removed while the target is being asked.
            let (mut w, _) = World::new(&eal, from, 4);
            w.asker.ask(from, b"");
            w.request();
            w.readdress(nets);
            let event = w.event(Side::Target);
            assert!(matches!(event, CmEvent::ConnectError { .. }), "{event:?}");
            let event = w.event(Side::Asker);
            let over = matches!(event, CmEvent::ConnectError { .. } | CmEvent::Rejected { .. });
            assert!(over, "{event:?}");
            w.assert_over();
        }
    }
}

#[test]
fn test_requests_beyond_the_limit_of_the_rule_or_of_the_pool_are_refused() {
    let (eal, _turn) = eal();
    for from in WAYS {
        for (most, pool) in [(2, 64), (64, 2)] {
            let (mut w, listener) = World::new(&eal, from, pool);
            w.gateway.remove(listener);
            w.gateway.add(&Rule { most, ..rule(from) }).unwrap();
            w.pass(MS);
            for _ in 0..8 {
                w.asker.ask(from, b"");
            }
            let told: Vec<_> = (0..6).map(|_| w.event(Side::Asker)).collect();
            assert!(told.iter().all(|e| refused(e, from, 3)), "{told:?}");
            assert_eq!((w.gateway.len(), w.gateway.counters().refused_full), (2, 6));
            // Connections that have a place are not touched, and make room when they are over.
            for _ in 0..2 {
                let id = w.request();
                w.target.rnic.device().reject(id, Vec::new()).unwrap();
                assert!(matches!(w.event(Side::Asker), CmEvent::Rejected { .. }));
            }
            w.establish(from);
        }
    }
}

#[test]
fn test_rule_that_makes_a_loop_is_refused_before_it_listens() {
    let (eal, _turn) = eal();
    let (mut w, _) = World::new(&eal, FROM_IB, 4);
    let listeners = w.via.snapshot().ctl.gauges.listeners;
    let (addr, target) = ((VIA[1], PORT).into(), (VIA[0], PORT).into());
    w.gateway.add(&Rule { addr, target, ..rule(FROM_IB) }).unwrap();
    let (addr, target) = ((TARGET, PORT).into(), (VIA[1], PORT).into());
    let back = w.gateway.add(&Rule { addr, target, ..rule(FROM_IWARP) });
    assert!(matches!(back, Err(GatewayError::Rule(RuleError::Loop))), "{back:?}");
    w.pass(MS);
    assert_eq!(w.via.snapshot().ctl.gauges.listeners, listeners + 1);
}

/// The end of the gateway: both ends of every connection hear of it, in order.
#[test]
fn test_gateway_shutdown_tells_both_ends_of_every_connection() {
    let (eal, _turn) = eal();
    for from in WAYS {
        let (mut w, _) = World::new(&eal, from, 4);
        w.establish(from);
        w.asker.ask(from, b"");
        w.request();
        w.gateway.end();
        let told: Vec<_> = (0..2).map(|_| w.event(Side::Asker)).collect();
        let orderly = |e: &CmEvent| {
            let reason = DisconnectReason::Orderly;
            matches!(e, CmEvent::Disconnected { reason: r, .. } if *r == reason)
        };
        assert!(told.iter().any(orderly) && told.iter().any(|e| refused(e, from, 3)), "{told:?}");
        let told: Vec<_> = (0..2).map(|_| w.event(Side::Target)).collect();
        assert!(told.iter().any(orderly), "{told:?}");
        w.assert_over();
    }
}

/// Two gateways, each of which sends to the other: a loop that no single gateway's rules can show
/// comes to an end.
struct Facing {
    ends: [Endpoint; 2],
    gateways: Vec<Gateway>,
    asker: Peer,
    hand: ManualClock,
}

impl Facing {
    /// Makes the two gateways. `A` has a network of its own for askers. Both have two addresses on
    /// their common network, and each sends to the other's address in `to`. Askers come over
    /// InfiniBand.
    fn new(eal: &Eal, to: [Ipv4Addr; 2]) -> Facing {
        let (clock, hand) = Clock::manual();
        let pair = |a: u8| [Ipv4Addr::new(10, 1, 0, a), Ipv4Addr::new(10, 1, 0, a + 10)];
        let with = |ips: &[Ipv4Addr]| EndpointConfig {
            addrs: ips.iter().map(|ip| Cidr::new((*ip).into(), 24).unwrap()).collect(),
            ..speaks(ips[0], &clock)
        };
        let outer = [with(&[ASKER]), with(&[VIA[0]])];
        let inner = [with(&pair(1)), with(&pair(2))];
        let (p, pa) =
            OpenPort::ring_pair(eal, &name(), &outer[0].port(), &outer[1].port()).unwrap();
        let (qa, qb) =
            OpenPort::ring_pair(eal, &name(), &inner[0].port(), &inner[1].port()).unwrap();
        let rnic = |ports, c: &EndpointConfig| Endpoint::assemble(eal, ports, &c.rnic()).unwrap();
        let asker = Peer::new(rnic(vec![p], &outer[0]));
        let ends = [rnic(vec![pa, qa], &outer[1]), rnic(vec![qb], &inner[1])];
        let mut gateways = Vec::new();
        let ways = [(FROM_IB, to[0]), (FROM_IWARP, to[1])];
        for (n, (end, (from, to))) in ends.iter().zip(ways).enumerate() {
            let mut ours = pair(n as u8 + 1).map(IpAddr::from).to_vec();
            ours.push(VIA[0].into());
            let hub = end.hub().clone();
            let mut f = Gateway::new(&hub, refuse(end.asker()), ours, 16, None).unwrap();
            let (addr, target) = ((Ipv4Addr::UNSPECIFIED, PORT).into(), (to, PORT).into());
            f.add(&Rule { addr, target, most: 3, ..rule(from) }).unwrap();
            gateways.push(f);
        }
        let mut w = Facing { ends, gateways, asker, hand };
        w.pass(10 * MS);
        w
    }

    fn pass(&mut self, time: Duration) {
        let until = self.hand.now() + time;
        while self.hand.now() < until {
            for _ in 0..40 {
                self.asker.rnic.poll();
                for (end, f) in self.ends.iter_mut().zip(&mut self.gateways) {
                    end.poll();
                    f.step();
                }
            }
            self.hand.advance(10 * MS);
        }
    }
}

#[test]
fn test_gateways_that_forward_to_each_other_refuse_and_unwind() {
    let (eal, _turn) = eal();
    let (a, b) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
    // The request goes back to the host that it came from, which the gateway sees at once.
    let mut w = Facing::new(&eal, [b, a]);
    w.asker.ask(FROM_IB, b"round");
    w.pass(Duration::from_secs(1));
    let event = w.asker.events.poll().expect("it is told");
    assert!(matches!(event, CmEvent::ConnectError { .. } | CmEvent::Rejected { .. }), "{event:?}");
    assert_eq!(w.gateways[1].counters().refused_loop, 1);
    assert_eq!((w.gateways[0].counters().forwarded, w.gateways[1].counters().forwarded), (1, 0));
    // The request goes back by another address of the same host, which the gateway cannot see: the
    // loop ends when a rule is full.
    let [a, b] = [11, 12].map(|n| Ipv4Addr::new(10, 1, 0, n));
    let mut w = Facing::new(&eal, [b, a]);
    w.asker.ask(FROM_IB, b"round");
    w.pass(Duration::from_secs(2));
    let event = w.asker.events.poll().expect("it is told");
    assert!(matches!(event, CmEvent::ConnectError { .. } | CmEvent::Rejected { .. }), "{event:?}");
    let c: Vec<_> = w.gateways.iter().map(|f| *f.counters()).collect();
    assert_eq!((c[0].forwarded, c[1].forwarded), (3, 3));
    assert_eq!((c[0].refused_full, c[1].refused_full), (1, 0));
    assert!(w.gateways.iter().all(Gateway::is_empty), "all of it is over");
    for end in &w.ends {
        let gauges = end.snapshot().ctl.gauges;
        assert_eq!((gauges.conns, gauges.claims), (0, 0));
    }
}
