//! A connection manager for InfiniBand, with peers that send anything in any order, including the
//! names that the manager has told them; and an application that does what it likes.
//!
//! The input is a list of operations of four bytes: the kind, and three numbers. Rules: the manager
//! answers a datagram with at most one; its state is bounded; each connection has one beginning and
//! one end; after the application has gone and time has passed, no state is left.

use std::collections::BTreeMap;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_base::{Instant, Seed};
use heddle_cm::{CmConfig, CmGauges, ConnectionManager, IbConfig, IbPort, Ports};
use heddle_ib::cm::{Mad, Message, Req};
use heddle_ib::ip_cm::{Header, Service};
use heddle_ib::roce::UdRepr;
use heddle_ib::{CommId, Gid, Qpn as IbQpn, TimeCode};
use heddle_rnic::{Order, Report};
use heddle_tcp::{Addressing, Cidr};
use heddle_types::{
    AcceptTerms, AppId, CmId, ConnectTerms, Event, ListenParams, ListenerId, Pd, Protocol, QpSpec,
    Qpn, Request, WorkerId,
};

use crate::Seeds;

const APP: AppId = AppId(1);
const W: WorkerId = WorkerId(0);
const PORT: u16 = 7174;
const MOST: usize = 12;

/// The kinds of operations.
mod op {
    pub(super) const REQ: u8 = 0;
    pub(super) const MESSAGE: u8 = 1;
    pub(super) const ACCEPT: u8 = 2;
    pub(super) const REJECT: u8 = 3;
    pub(super) const DISCONNECT: u8 = 4;
    pub(super) const CONNECT: u8 = 5;
    pub(super) const TIME: u8 = 6;
    pub(super) const KINDS: u8 = 7;
}

fn ours() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn peer(n: u8) -> IpAddr {
    [10, 0, 1, n & 3].into()
}

struct World {
    cm: ConnectionManager,
    now: Instant,
    /// Attributes and names in sent datagrams, which peers can know.
    heard: Vec<(u64, CommId)>,
    /// The connections that the application knows; true if a connection is established.
    open: BTreeMap<CmId, bool>,
    asked: Vec<CmId>,
    next: u64,
    told: bool,
}

impl World {
    fn new() -> World {
        let link = Cidr::new(ours(), 8).expect("a prefix");
        let net = Addressing::new(vec![link], Vec::new()).expect("an address");
        let mut cm = ConnectionManager::new(CmConfig::new(Ports::one(1, net)));
        let ports = vec![IbPort { addr: ours(), worker: W }];
        let mut config = IbConfig::new(Seed::from_u64(1), 1, ports);
        (config.max_conns, config.max_startups) = (MOST, 6);
        cm.enable_infiniband(config);
        let now = Instant::from_millis(1000);
        let (id, addr) = (ListenerId(1), SocketAddr::new(ours(), PORT));
        let params = ListenParams { infiniband: true, ..ListenParams::default() };
        cm.handle_request(now, APP, Request::Listen { id, addr, params }).expect("it is free");
        while let Some((worker, order)) = cm.poll_order() {
            let Order::Listen { token, .. } = order else { panic!("{order:?}") };
            cm.handle_report(now, worker, Report::Listening { token, result: Ok(()) });
        }
        let (heard, open, asked) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut world = World { cm, now, heard, open, asked, next: 1, told: false };
        world.collect(0);
        world
    }

    /// Takes the manager's output, with at most `most` datagrams.
    fn collect(&mut self, most: usize) {
        let mut sent = 0;
        while let Some((worker, datagram)) = self.cm.poll_datagram() {
            assert_eq!((worker, datagram.local.ip()), (W, ours()));
            let mad = datagram.payload.get(20..276).expect("headers, and a CRC behind it");
            let mad = Mad::parse(mad).expect("what we send is what we take");
            let name = match &mad.message {
                Message::Req(m) => m.local_comm_id,
                Message::Rep(m) => m.local_comm_id,
                Message::Mra(m) => m.local_comm_id,
                _ => CommId(0),
            };
            if self.heard.len() < 64 {
                self.heard.push((mad.tid, name));
            }
            sent += 1;
        }
        assert!(sent <= most, "{sent} datagrams");
        while let Some((_, event)) = self.cm.poll_event() {
            self.told = true;
            self.note(&event);
            let taken = Request::EventsTaken { count: 1 };
            self.cm.handle_request(self.now, APP, taken).expect("it was one");
        }
        while self.cm.poll_notice().is_some() {}
        assert!(self.cm.poll_order().is_none(), "there is no TCP here");
        assert!(self.cm.gauges().conns <= MOST);
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::ConnectRequest { id, private_data, .. } => {
                assert_eq!(private_data.len(), 56);
                assert_eq!(self.open.insert(*id, false), None);
                self.asked.push(*id);
            }
            Event::Established { id, agreed, .. } => {
                assert!(!agreed.transport.carries_data());
                assert_eq!(self.open.insert(*id, true), Some(false));
            }
            Event::Disconnected { id, .. } => assert_eq!(self.open.remove(id), Some(true)),
            Event::ConnectError { id, .. } | Event::Rejected { id, .. } => {
                assert_eq!(self.open.remove(id), Some(false));
            }
            Event::Listening { .. } | Event::ListenFailed { .. } => {}
        }
    }

    fn deliver(&mut self, from: IpAddr, tid: u64, message: Message) {
        let mad = Mad::new(tid, message).emit();
        let packet = UdRepr::gsi(from, ours(), 0xc000).emit(&mad).expect("it is short");
        self.cm.handle_datagram(self.now, W, &packet);
        self.collect(1);
    }

    fn req(&self, from: IpAddr, [a, b, c]: [u8; 3]) -> Req {
        let header = Header { src: from, src_port: 50000, dst: ours() };
        let mut req = Req::parse(&[0; 232]);
        req.local_comm_id = CommId(u32::from(a) + 1);
        req.local_qpn = IbQpn::new(u32::from(b & 15) + 2);
        req.local_ca_guid = 9;
        req.service_id = Service::tcp(PORT).id();
        req.primary.remote_gid = Gid::from(if c & 0x40 == 0 { ours() } else { from });
        req.remote_cm_response_timeout = TimeCode::new(b >> 3);
        req.local_cm_response_timeout = TimeCode::new(b >> 3);
        req.max_cm_retries = b & 15;
        req.private_data = header.emit(&[a]).expect("of one version");
        req
    }

    /// Delivers a message of any kind, with the names of a known datagram or with others.
    fn message(&mut self, [kind, names, c]: [u8; 3]) {
        let heard = self.heard.get(usize::from(names) % self.heard.len().max(1)).copied();
        let (tid, ours) = heard.unwrap_or((0, CommId(u32::from(names))));
        let mut data = [c; 232];
        data[..4].copy_from_slice(&(u32::from(c) + 1).to_be_bytes());
        data[4..8].copy_from_slice(&ours.0.to_be_bytes());
        let mut mad = Mad::new(tid ^ u64::from(c >> 7), Message::GetClassPortInfo).emit();
        (mad[3], mad[17]) = (3, 0x10 + kind % 11);
        mad[24..].copy_from_slice(&data);
        let packet = UdRepr::gsi(peer(kind >> 5), self::ours(), 1).emit(&mad).expect("it is short");
        self.cm.handle_datagram(self.now, W, &packet);
        self.collect(1);
    }

    /// Hands the manager an answer of the application, or its end.
    fn ask(&mut self, request: Request) {
        let _ = self.cm.handle_request(self.now, APP, request);
        self.collect(1);
    }

    fn qp(&mut self) -> QpSpec {
        self.next += 1;
        let n = u32::try_from(self.next).unwrap_or(0);
        QpSpec { qpn: Qpn(n), pd: Pd(1), sq_depth: 1, rq_depth: 1 }
    }

    fn run_op(&mut self, what: u8, numbers: [u8; 3]) {
        let [a, b, c] = numbers;
        match what % op::KINDS {
            op::REQ => {
                let from = peer(c);
                let req = self.req(from, numbers);
                self.deliver(from, u64::from(c >> 2), Message::Req(Box::new(req)));
            }
            op::MESSAGE => self.message(numbers),
            op::ACCEPT => {
                let Some(id) = self.asked.pop() else { return };
                let params = AcceptTerms::new(self.qp());
                self.ask(Request::Accept { id, params });
            }
            op::REJECT => {
                let Some(id) = self.asked.pop() else { return };
                let private_data = vec![a; usize::from(b)];
                self.ask(Request::Reject { id, private_data, needs_ord: None });
                // An accepted rejection ends the connection, and no event follows.
                if b <= 148 && self.open.get(&id) == Some(&false) {
                    self.open.remove(&id);
                }
            }
            op::DISCONNECT => {
                let Some(id) = self.open.keys().nth(usize::from(a)).copied() else { return };
                self.ask(Request::Disconnect { id });
            }
            op::CONNECT => {
                let mut params = ConnectTerms::new(self.qp());
                (params.protocol, params.ird) = (Protocol::InfiniBand, u16::from(a));
                let id = CmId(self.next);
                let remote = SocketAddr::new(peer(b), PORT);
                let connect = Request::Connect { id, remote, params };
                if self.cm.handle_request(self.now, APP, connect).is_ok() {
                    self.open.insert(id, false);
                }
                self.collect(1);
            }
            _ => {
                self.now = self.now + Duration::from_millis(u64::from(a) * (u64::from(b) + 1));
                self.cm.handle_timeout(self.now);
                assert!(self.cm.poll_timeout().is_none_or(|t| t > self.now));
                // Each connection sends at most one datagram at a time.
                self.collect(MOST);
            }
        }
    }
}

pub fn run(data: &[u8]) -> bool {
    let mut world = World::new();
    world.told = false;
    for op in data.chunks_exact(4).take(512) {
        world.run_op(op[0], [op[1], op[2], op[3]]);
    }
    let told = world.told;
    world.cm.handle_request(world.now, APP, Request::AppGone).expect("it may go");
    while world.cm.poll_order().is_some() {}
    world.open.clear();
    world.collect(MOST);
    let mut rounds = 0;
    while let Some(at) = world.cm.poll_timeout() {
        world.now = at;
        world.cm.handle_timeout(at);
        world.collect(MOST);
        rounds += 1;
        assert!(rounds < 10_000, "it never ends");
    }
    assert_eq!(world.cm.gauges(), CmGauges::default());
    told
}

pub fn seeds() -> Seeds {
    // Known names are in the order in which the manager sent them: 0 is the first.
    let rtu = 4;
    let dreq = 5;
    let rep = 3;
    let lists: [(&str, &[[u8; 4]]); 5] = [
        ("accepted", &[[op::REQ, 0, 2, 0], [op::ACCEPT, 0, 0, 0], [op::MESSAGE, rtu, 0, 0]]),
        ("rejected", &[[op::REQ, 0, 2, 0], [op::REJECT, 1, 9, 0], [op::REQ, 0, 2, 0]]),
        (
            "closed",
            &[
                [op::REQ, 0, 2, 0],
                [op::ACCEPT, 0, 0, 0],
                [op::MESSAGE, rtu, 0, 0],
                [op::DISCONNECT, 0, 0, 0],
                [op::TIME, 200, 10, 0],
                [op::MESSAGE, dreq, 0, 0],
            ],
        ),
        (
            "connect",
            &[
                [op::CONNECT, 16, 0, 0],
                [op::MESSAGE, rep, 0, 5],
                [op::MESSAGE, rep, 0, 5],
                [op::TIME, 255, 100, 0],
            ],
        ),
        (
            "flood",
            &[
                [op::REQ, 0, 0, 0],
                [op::REQ, 1, 1, 1],
                [op::REQ, 2, 2, 2],
                [op::REQ, 3, 3, 3],
                [op::REQ, 4, 4, 0],
                [op::REQ, 5, 5, 1],
                [op::REQ, 6, 6, 2],
                [op::TIME, 255, 255, 0],
            ],
        ),
    ];
    lists.iter().map(|(name, ops)| ((*name).into(), ops.concat())).collect()
}
