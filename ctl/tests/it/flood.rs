//! Floods of SYNs, and of datagrams on RoCEv2's port, through port, worker and control plane: an existing
//! connection goes on, and a newcomer is accepted.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::common::*;
use heddle_base::Sum;
use heddle_ctl::Snapshot;
use heddle_dataplane::Eal;
use heddle_ib::cm::{Mad, Message, Req};
use heddle_ib::roce::{BTH_LEN, UdPacket, icrc};
use heddle_ib::testing::{Peer, dreq, rtu};
use heddle_ib::{CommId, Qpn, TimeCode};
use heddle_tcp::Cidr;
use heddle_verbs::{AcceptParams, CmEvent, DisconnectReason, EventQueue, ListenParams, QpInit};

/// Frames of a flood in a millisecond: twice the budget of strangers.
const FLOOD: u32 = 20;
/// Silence after which the RNIC probes a peer; it sends four probes, 67 ms apart.
const KEEPALIVE: Duration = Duration::from_millis(150);
const OLD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NEW: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const BAD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// An honest peer, made by hand.
#[derive(Debug, Default)]
struct Host {
    /// The RNIC's communication id of the connection, once a REP has brought it.
    theirs: Option<CommId>,
    qpn: Qpn,
    /// Number of REPs that came; the host answers each.
    reps: u32,
    /// The RNIC's application has accepted a connection of the host.
    taken: bool,
    ended: bool,
}

/// The RNIC, and a wire with all other hosts at its end.
struct Wire {
    link: Link,
    events: EventQueue,
    hosts: BTreeMap<Ipv4Addr, Host>,
    /// Reasons for the ends of connections that the RNIC's application has heard.
    ends: Vec<DisconnectReason>,
}

impl Wire {
    fn new(eal: &Eal) -> Wire {
        let link = Link::open(eal, |config| {
            config.addrs = vec![Cidr::new(US.into(), 8).unwrap()];
            config.infiniband = true;
            config.ib_keepalive = Some(KEEPALIVE);
        });
        let events = EventQueue::new(None);
        let params = ListenParams { infiniband: true, ..ListenParams::default() };
        link.us.device().listen((US, PORT).into(), params, &events).unwrap();
        let (hosts, ends) = (BTreeMap::new(), Vec::new());
        let mut wire = Wire { link, events, hosts, ends };
        wire.settle();
        wire
    }

    fn frame(&mut self, ethertype: u16, body: &[u8]) {
        let frame = [&self.link.mac[..], &MAC, &ethertype.to_be_bytes(), body].concat();
        self.link.put(&frame);
    }

    fn say(&mut self, from: Ipv4Addr, message: Message) {
        self.frame(0x0800, &packet(from, message));
    }

    /// Does all work that waits now, without passing time.
    fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 2 {
            let mut busy = self.take();
            for _ in 0..33 {
                busy |= self.link.us.poll();
            }
            while let Some(event) = self.events.poll() {
                busy = true;
                self.heard(event);
            }
            quiet = if busy { 0 } else { quiet + 1 };
        }
    }

    /// Lets the RNIC's application accept one connection of each honest host and no others.
    fn heard(&mut self, event: CmEvent) {
        let device = self.link.us.device();
        match event {
            CmEvent::ConnectRequest { id, remote, .. } => {
                let mut hosts = self.hosts.iter_mut();
                let host = hosts.find(|(h, host)| remote.ip() == **h && !host.taken);
                if let Some((_, host)) = host {
                    host.taken = true;
                    let cq = device.create_cq(8, None).unwrap();
                    let init = QpInit::new(cq).depths(4, 4);
                    let qp = device.create_qp(device.alloc_pd().unwrap(), init).unwrap();
                    device.accept(id, AcceptParams::new(qp)).unwrap();
                } else {
                    device.reject(id, Vec::new()).unwrap();
                }
            }
            CmEvent::Disconnected { reason, .. } => self.ends.push(reason),
            _ => {}
        }
    }

    /// Takes the frames that the RNIC has sent; hosts answer ARP and REPs, as Linux does. Returns
    /// true if there were frames.
    fn take(&mut self) -> bool {
        let frames = self.link.burst();
        let busy = !frames.is_empty();
        for b in frames {
            if b[12..14] == [8, 6] {
                let asked = Ipv4Addr::new(b[38], b[39], b[40], b[41]);
                if self.hosts.contains_key(&asked) {
                    let head = [0, 1, 8, 0, 6, 4, 0, 2];
                    let to = [&b[22..28], &b[28..32]].concat();
                    let reply = [&head[..], &MAC, &asked.octets(), &to].concat();
                    self.frame(0x0806, &reply);
                }
                continue;
            }
            let Ok(ud) = UdPacket::parse_gsi(&b[14..]) else { continue };
            let std::net::IpAddr::V4(to) = ud.repr.dst else { continue };
            let message = Mad::parse(ud.payload).unwrap().message;
            let Some(host) = self.hosts.get_mut(&to) else { continue };
            match message {
                Message::Rep(rep) => {
                    host.theirs = Some(rep.local_comm_id);
                    host.qpn = rep.local_qpn;
                    host.reps += 1;
                    self.say(to, rtu(comm(to), rep.local_comm_id));
                }
                Message::Drep(_) => host.ended = true,
                _ => {}
            }
        }
        busy
    }

    /// Passes time, a millisecond at a time. In each, the frames of `flood` come first.
    fn run(&mut self, time: Duration, mut flood: impl FnMut(&mut Wire, u32)) {
        let mut n = 0;
        for _ in 0..time.as_millis() {
            for _ in 0..FLOOD {
                flood(self, n);
                n += 1;
            }
            self.settle();
            self.link.hand.advance(MS);
        }
    }

    /// Adds a host, which like any host asks for the RNIC's hardware address before it sends
    /// anything else.
    fn arrive(&mut self, host: Ipv4Addr) {
        self.hosts.insert(host, Host::default());
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        let (from, to) =
            ([&MAC[..], &host.octets()].concat(), [&[0; 6][..], &US.octets()].concat());
        self.frame(0x0806, &[&head[..], &from, &to].concat());
    }

    fn join(&mut self, host: Ipv4Addr) {
        self.arrive(host);
        self.say(host, req(host, comm(host)));
    }

    /// Runs a flood, before and during the life of an old connection and the arrival of a new one,
    /// and asserts that it harms neither.
    fn assert_harmless(
        &mut self,
        newcomer: bool,
        mut flood: impl FnMut(&mut Wire, u32),
    ) -> Snapshot {
        self.join(OLD);
        self.settle();
        assert!(self.hosts[&OLD].theirs.is_some(), "a connection before the flood");
        self.run(Duration::from_secs(3), &mut flood);
        assert_eq!(self.ends, [], "the connection stands");
        let asked = self.hosts[&OLD].reps;
        assert!((10..30).contains(&asked), "asked {asked} times, and heard at once");
        assert_eq!(self.link.us.snapshot().ctl.ib.keepalive_timeouts, 0);
        if newcomer {
            self.arrive(NEW);
            // The host asks again, as often as Linux does.
            for _ in 0..4 {
                self.run(Duration::from_millis(100), |w, n| {
                    flood(w, n);
                    if n % 2000 == 1999 && w.hosts[&NEW].theirs.is_none() {
                        w.say(NEW, req(NEW, comm(NEW)));
                    }
                });
            }
            assert!(self.hosts[&NEW].theirs.is_some(), "a newcomer gets in");
        }
        // The end of the connection is also heard in the midst of the flood.
        let Host { theirs, qpn, .. } = self.hosts[&OLD];
        let mut said = false;
        self.run(Duration::from_millis(100), |w, n| {
            flood(w, n);
            if n == 500 && !core::mem::replace(&mut said, true) {
                w.say(OLD, dreq(comm(OLD), theirs.unwrap(), qpn));
            }
        });
        assert!(self.hosts[&OLD].ended, "a DREP");
        assert_eq!(self.ends, [DisconnectReason::Orderly]);
        let s = self.link.us.snapshot();
        assert_eq!(s.worker.worker.datagrams_dropped, 0);
        s
    }
}

fn comm(host: Ipv4Addr) -> CommId {
    CommId(host.to_bits())
}

fn peer(from: Ipv4Addr) -> Peer {
    Peer { addr: from.into(), to: US.into() }
}

fn packet(from: Ipv4Addr, message: Message) -> Vec<u8> {
    peer(from).packet(7, message)
}

fn req(from: Ipv4Addr, name: CommId) -> Message {
    let req = peer(from).req(PORT, name, TimeCode::new(14));
    Message::Req(Box::new(Req { max_cm_retries: 3, ..req }))
}

/// Returns one of ten thousand addresses.
fn forged(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + n % 10_000)
}

#[test]
fn test_flood_of_datagrams_with_bad_crc_is_dropped_without_harm() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    let sent = std::cell::Cell::new(0);
    let s = w.assert_harmless(true, |w, n| {
        let mut bytes = packet(forged(n), req(forged(n), CommId(n)));
        *bytes.last_mut().unwrap() ^= 1;
        w.frame(0x0800, &bytes);
        sent.set(sent.get() + 1);
    });
    assert_eq!(s.worker.engine.stack.udp_bad_crc, sent.get());
    assert_eq!(
        (s.worker.engine.stack.udp_source_limited, s.worker.engine.stack.udp_limited),
        (0, 0)
    );
    assert!(s.ctl.ib.rx_datagrams < 100, "the control plane sees none of them");
}

/// Returns a congestion notification (CNP) with a right CRC.
fn cnp(from: Ipv4Addr) -> Vec<u8> {
    const HEADERS: usize = 20 + 8;
    let mut p = packet(from, req(from, CommId(1)));
    p.truncate(HEADERS + BTH_LEN);
    p[HEADERS] = 0x81;
    p.resize(p.len() + 16, 0);
    let len = u16::try_from(p.len() + 4).unwrap();
    p[2..4].copy_from_slice(&len.to_be_bytes());
    p[10..12].fill(0);
    let sum = Sum::of(&p[..20]).complement();
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    p[26..28].fill(0);
    let crc = icrc(&p).unwrap();
    p.extend(crc);
    p
}

/// A notification says to slow down. No transport is here that would.
#[test]
fn test_flood_of_congestion_notifications_is_dropped_without_harm() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    let sent = std::cell::Cell::new(0);
    let s = w.assert_harmless(true, |w, n| {
        // In the name of strangers, and of the peer itself.
        w.frame(0x0800, &cnp(if n % 2 == 0 { forged(n) } else { OLD }));
        sent.set(sent.get() + 1);
    });
    let c = &s.worker.engine.stack;
    assert_eq!(c.udp_bad_packet + c.udp_bad_endpoint, sent.get());
    assert_eq!((c.udp_source_limited, c.udp_limited, c.udp_conn_limited), (0, 0, 0));
}

#[test]
fn test_request_flood_from_one_address_shuts_out_no_old_or_new_peer() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    let s = w.assert_harmless(true, |w, n| w.say(BAD, req(BAD, CommId(n + 1))));
    assert!(s.worker.engine.stack.udp_source_limited > 50_000, "{:?}", s.worker.engine.stack);
    assert_eq!((s.worker.engine.stack.udp_limited, s.worker.engine.stack.udp_conn_limited), (0, 0));
    assert!(s.ctl.ib.rx_datagrams > 2_500, "its own share is served");
}

/// A flood in the name of the peer itself: a stranger's messages still count as a stranger's.
#[test]
fn test_flood_of_requests_in_the_name_of_the_peer_ends_no_connection() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    w.assert_harmless(true, |w, n| w.say(OLD, req(OLD, CommId(n + 1))));
}

#[test]
fn test_flood_of_requests_from_ten_thousand_addresses_ends_no_connection() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    let s = w.assert_harmless(false, |w, n| w.say(forged(n), req(forged(n), CommId(n + 1))));
    assert!(s.worker.engine.stack.udp_limited > 10_000, "{:?}", s.worker.engine.stack);
    assert_eq!(s.worker.engine.stack.udp_conn_limited, 0);
    assert!(s.worker.engine.stack.tx_datagrams_full > 1_000, "answers to strangers make room");
    // After the flood a newcomer is accepted.
    w.link.hand.advance(Duration::from_secs(1));
    w.join(NEW);
    w.run(Duration::from_millis(100), |_, _| {});
    let s = w.link.us.snapshot();
    assert!(
        w.hosts[&NEW].theirs.is_some(),
        "{:?} {:?} {:?}",
        s.worker.engine.stack,
        s.ctl.ib,
        s.ctl.cm
    );
}

/// A peer that abuses its own connection uses up its own budget, and costs another peer nothing.
#[test]
fn test_flood_on_one_connection_does_not_affect_others() {
    let (eal, _turn) = eal();
    let mut w = Wire::new(&eal);
    w.join(BAD);
    w.settle();
    let theirs = w.hosts[&BAD].theirs.unwrap();
    let s = w.assert_harmless(true, |w, _| w.say(BAD, rtu(comm(BAD), theirs)));
    assert!(s.worker.engine.stack.udp_conn_limited > 60_000, "{:?}", s.worker.engine.stack);
    assert!(s.ctl.ib.rx_datagrams < 300);
}

/// Returns a SYN to the listener, without options, from one of many addresses.
fn syn(to: [u8; 6], n: u32) -> Vec<u8> {
    let mut tcp = Vec::from(1000u16.to_be_bytes());
    tcp.extend(PORT.to_be_bytes());
    tcp.extend(n.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let (src, dst) = (forged(n).octets(), US.octets());
    let pseudo = [&src[..], &dst, &[0, 6, 0, 20]].concat();
    let sum = Sum::of(&pseudo).plus(Sum::of(&tcp)).complement();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = [&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0][..], &src, &dst].concat();
    let sum = Sum::of(&ip).complement();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&to[..], &MAC, &[8, 0], &ip, &tcp].concat()
}

/// A worker that finds SYNs in every turn handles as many as strangers may have. A turn without any work
/// shows that it keeps up, and it takes some more.
#[test]
fn test_worker_takes_more_syns_of_a_flood_after_a_turn_without_work() {
    const TURN: u32 = 32;
    let (eal, _turn) = eal();
    let mut link = Link::open(&eal, |config| {
        config.addrs = vec![Cidr::new(US.into(), 8).unwrap()];
    });
    let events = EventQueue::new(None);
    let params = ListenParams::default();
    link.us.device().listen((US, PORT).into(), params, &events).unwrap();
    link.settle();
    let mut n = 0;
    // Returns how many SYNs of these turns, in which the clock stands still, the stack drops.
    let mut turns = |link: &mut Link, count: u32| {
        let over = |link: &Link| link.us.snapshot().worker.engine.stack.syns_over_share;
        let before = over(link);
        for _ in 0..count {
            for _ in 0..TURN {
                n += 1;
                let frame = syn(link.mac, n);
                link.put(&frame);
            }
            link.us.poll();
            while !link.burst().is_empty() {}
        }
        over(link) - before
    };
    assert!(turns(&mut link, 100) > 0, "more than there is room for");
    assert_eq!(turns(&mut link, 4), u64::from(4 * TURN), "no room is left");
    // The last of these turns finds nothing.
    link.settle();
    assert_eq!(turns(&mut link, 256 / TURN), 0, "room for 256 more");
    assert_eq!(turns(&mut link, 4), u64::from(4 * TURN));
    // A worker that rests between all turns takes everything.
    for _ in 0..100 {
        link.settle();
        assert_eq!(turns(&mut link, 1), 0);
    }
    let stack = link.us.snapshot().worker.engine.stack;
    assert_eq!(stack.tx_syn_acks + stack.syns_over_share, u64::from(n));
}
