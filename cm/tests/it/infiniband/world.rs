use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use heddle_base::{Instant, Random, Seed};
use heddle_cm::*;
use heddle_ib::cm::{Mad, Message};
use heddle_ib::roce::{UdPacket, UdRepr};
use heddle_tcp::{Addressing, Cidr};
use heddle_types::{
    AcceptTerms, AppId, CmId, ConnectTerms, Event, ListenParams, ListenerId, Pd, Protocol, QpSpec,
    Qpn, Request, RequestError, WorkerId,
};

pub(crate) const APP: AppId = AppId(1);
pub(crate) const W: WorkerId = WorkerId(0);
pub(crate) const PORT: u16 = 7174;

pub(crate) fn qp(n: u32) -> QpSpec {
    QpSpec { qpn: Qpn(n), pd: Pd(1), sq_depth: 1, rq_depth: 1 }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn addr(n: usize) -> IpAddr {
    [10, 0, 0, n as u8 + 1].into()
}

pub(crate) fn server() -> SocketAddr {
    SocketAddr::new(addr(0), PORT)
}

/// A node of the network: a manager and its application.
pub(crate) struct Node {
    pub(crate) cm: ConnectionManager,
    pub(crate) events: VecDeque<Event>,
}

/// The faults of the wire.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weather {
    pub(crate) loss: f64,
    pub(crate) duplicates: f64,
    /// Greatest latency in milliseconds; the least is one.
    pub(crate) latency: u64,
}

/// Returns true if a packet is lost on the wire, by its sender and its message.
type Filter = Box<dyn FnMut(usize, &Message) -> bool>;

pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    pub(crate) weather: Weather,
    pub(crate) random: Random,
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    pub(crate) drop: Filter,
    /// Every packet sent: its sender, and its bytes.
    pub(crate) log: Vec<(usize, Vec<u8>)>,
}

/// Returns a configuration of one port, whose link reaches all nodes.
pub(crate) fn manager_config(workers: usize, n: usize) -> CmConfig {
    let link = Cidr::new(addr(n), 24).unwrap();
    CmConfig::new(Ports::one(workers, Addressing::new(vec![link], Vec::new()).unwrap()))
}

pub(crate) fn config(n: usize, seed: u64) -> IbConfig {
    let seed = Seed::from_u64(seed.wrapping_mul(8) + n as u64);
    IbConfig::new(seed, 0x0200_00ff_fe00_0000 + n as u64, vec![IbPort { addr: addr(n), worker: W }])
}

impl Net {
    pub(crate) fn new(seed: u64) -> Net {
        Net::with(seed, |_, _| {})
    }

    /// Makes a network: a server at node 0 that listens, a client at node 1, and node 2.
    pub(crate) fn with(seed: u64, change: impl Fn(usize, &mut IbConfig)) -> Net {
        let node = |n| {
            let mut cm = ConnectionManager::new(manager_config(1, n));
            let mut config = config(n, seed);
            change(n, &mut config);
            cm.enable_infiniband(config);
            Node { cm, events: VecDeque::new() }
        };
        let mut net = Net {
            now: Instant::from_millis(1000),
            nodes: vec![node(0), node(1), node(2)],
            weather: Weather { loss: 0.0, duplicates: 0.0, latency: 1 },
            random: Random::new(&Seed::from_u64(seed ^ 0xabcd)),
            wire: BTreeMap::new(),
            sent: 0,
            drop: Box::new(|_, _| false),
            log: Vec::new(),
        };
        net.listen(ListenParams { infiniband: true, ..ListenParams::default() });
        net
    }

    pub(crate) fn listen(&mut self, params: ListenParams) {
        self.listen_at(0, server(), params);
    }

    pub(crate) fn listen_at(&mut self, node: usize, addr: SocketAddr, params: ListenParams) {
        let id = ListenerId(1);
        let listen = Request::Listen { id, addr, params };
        self.nodes[node].cm.handle_request(self.now, APP, listen).unwrap();
        // The test answers the order as the worker would.
        let node = &mut self.nodes[node];
        while let Some((worker, order)) = node.cm.poll_order() {
            if let heddle_rnic::Order::Listen { token, .. } = order {
                let report = heddle_rnic::Report::Listening { token, result: Ok(()) };
                node.cm.handle_report(self.now, worker, report);
            }
        }
        while let Some((_, event)) = node.cm.poll_event() {
            assert!(matches!(event, Event::Listening { .. }), "{event:?}");
        }
        let taken = Request::EventsTaken { count: 1 };
        node.cm.handle_request(self.now, APP, taken).unwrap();
    }

    pub(crate) fn ask(&mut self, node: usize, request: Request) -> Result<(), RequestError> {
        let result = self.nodes[node].cm.handle_request(self.now, APP, request);
        self.collect();
        result
    }

    pub(crate) fn connect(&mut self, id: u64, change: impl FnOnce(&mut ConnectTerms)) {
        let mut params = ConnectTerms::new(qp(id as u32));
        params.protocol = Protocol::InfiniBand;
        change(&mut params);
        let (id, remote) = (CmId(id), server());
        self.ask(1, Request::Connect { id, remote, params }).unwrap();
    }

    pub(crate) fn accept(&mut self, id: CmId, n: u32) {
        self.ask(0, Request::Accept { id, params: AcceptTerms::new(qp(n)) }).unwrap();
    }

    /// Puts the managers' datagrams onto the wire, and passes their events to the applications.
    pub(crate) fn collect(&mut self) {
        for n in 0..self.nodes.len() {
            while let Some((worker, datagram)) = self.nodes[n].cm.poll_datagram() {
                assert_eq!((worker, datagram.local.ip()), (W, addr(n)));
                assert_eq!(datagram.remote.port(), 4791);
                let packet = packet(&datagram);
                let ud = UdPacket::parse_gsi(&packet).expect("what we send is what we take");
                let mad = Mad::parse(ud.payload).expect("and so is this");
                self.log.push((n, packet.clone()));
                if (self.drop)(n, &mad.message) || self.random.chance(self.weather.loss) {
                    continue;
                }
                // The last byte of the destination address gives the node.
                let to = usize::from(packet[19] - 1);
                let copies = 1 + u64::from(self.random.chance(self.weather.duplicates));
                for _ in 0..copies {
                    self.sent += 1;
                    let late = ms(1 + self.random.below(self.weather.latency));
                    self.wire.insert((self.now + late, self.sent), (to, packet.clone()));
                }
            }
            let node = &mut self.nodes[n];
            while let Some((app, event)) = node.cm.poll_event() {
                assert_eq!(app, APP);
                node.events.push_back(event);
                node.cm.handle_request(self.now, APP, Request::EventsTaken { count: 1 }).unwrap();
            }
            while node.cm.poll_notice().is_some() {}
        }
    }

    /// Delivers a packet to a node.
    pub(crate) fn deliver(&mut self, node: usize, packet: &[u8]) {
        self.nodes[node].cm.handle_datagram(self.now, W, packet);
        self.collect();
    }

    /// Carries out the next arrival or time-out; returns false if there is none up to `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        let wire = self.wire.first_key_value().map(|((t, _), _)| *t);
        let timers = self.nodes.iter().filter_map(|n| n.cm.poll_timeout());
        let Some(next) = wire.into_iter().chain(timers).min().filter(|t| *t <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        if wire == Some(next) {
            let (_, (node, packet)) = self.wire.pop_first().unwrap();
            self.deliver(node, &packet);
        } else {
            for node in &mut self.nodes {
                if node.cm.poll_timeout().is_some_and(|t| t <= self.now) {
                    node.cm.handle_timeout(self.now);
                }
            }
            self.collect();
        }
        true
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Returns the next event of a node; the event has to come within ten minutes.
    pub(crate) fn event(&mut self, node: usize) -> Event {
        let until = self.now + ms(600_000);
        loop {
            if let Some(event) = self.nodes[node].events.pop_front() {
                return event;
            }
            assert!(self.step(until), "node {node} is told nothing");
        }
    }

    pub(crate) fn request(&mut self) -> CmId {
        match self.event(0) {
            Event::ConnectRequest { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Establishes a connection at both ends; returns the server's name of the connection.
    pub(crate) fn establish(&mut self, id: u64) -> CmId {
        self.connect(id, |_| {});
        let server = self.request();
        self.accept(server, 100 + id as u32);
        assert!(matches!(self.event(1), Event::Established { .. }));
        assert!(matches!(self.event(0), Event::Established { .. }));
        server
    }

    /// Asserts that nothing is left after the last copies are answered, and that no application
    /// gets another event.
    pub(crate) fn assert_nothing_left(&mut self) {
        self.run(ms(600_000));
        for (n, node) in self.nodes.iter_mut().enumerate() {
            let told: Vec<_> = node.events.drain(..).collect();
            assert!(told.is_empty(), "node {n}: {told:?}");
            let gauges = node.cm.gauges();
            assert_eq!((gauges.conns, gauges.timers, gauges.events), (0, 0, 0), "node {n}");
        }
        assert!(self.wire.is_empty());
    }

    pub(crate) fn counters(&self, node: usize) -> IbCounters {
        *self.nodes[node].cm.ib_counters().unwrap()
    }

    /// Returns the kinds of the messages that a node has sent, from their `Debug` text.
    pub(crate) fn said(&self, node: usize) -> Vec<String> {
        let name = |m: Message| format!("{m:?}").split('(').next().unwrap().to_owned();
        let its = self.log.iter().filter(|(n, _)| *n == node);
        its.map(|(_, p)| name(message(p).1)).collect()
    }
}

/// Returns the IP packet of a datagram, as a port would make it: with the port's own time to live
/// and type of service.
pub(crate) fn packet(datagram: &IbDatagram) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (datagram.local.ip(), datagram.remote.ip()) else {
        panic!("IPv4")
    };
    let udp_len = 8 + datagram.payload.len() as u16;
    let mut p = vec![0x45, 0x28, 0, 0, 0, 0, 0x40, 0, 33, 17, 0xab, 0xcd];
    p[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
    p.extend(from.octets());
    p.extend(to.octets());
    p.extend(datagram.local.port().to_be_bytes());
    p.extend(datagram.remote.port().to_be_bytes());
    p.extend(udp_len.to_be_bytes());
    p.extend([0x12, 0x34]);
    p.extend(&datagram.payload);
    p
}

/// Returns transaction id and message of a packet.
pub(crate) fn message(packet: &[u8]) -> (u64, Message) {
    let mad = Mad::parse(UdPacket::parse_gsi(packet).unwrap().payload).unwrap();
    (mad.tid, mad.message)
}

/// Returns a packet with a message from any address.
pub(crate) fn forged(from: IpAddr, tid: u64, message: Message) -> Vec<u8> {
    UdRepr::gsi(from, addr(0), 0xc000).emit(&Mad::new(tid, message).emit()).unwrap()
}
