//! A router of the link, made by hand: what it tells reaches the stack and the control plane, and
//! ends when the router says so.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::common::*;
use heddle_dataplane::Eal;
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::wire::icmpv6::{Message, neighbor_advert, neighbor_solicit};
use heddle_tcp::wire::{EtherType, EthernetHeader, Ipv6Header, MacAddr, ipv6};

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 8]);

/// The RNIC, at a link with a router at its end.
struct Routed {
    link: Link,
    /// The packets that the RNIC has sent since the last look: source, destination, bytes.
    seen: Vec<(Ipv6Header, Vec<u8>)>,
    /// The stations to which the RNIC has sent TCP segments since the last look.
    ways: Vec<MacAddr>,
}

impl Routed {
    fn new(eal: &Eal, router_adverts: RouterAdverts) -> Routed {
        let link = Link::open(eal, |c| c.router_adverts = router_adverts);
        let mut routed = Routed { link, seen: Vec::new(), ways: Vec::new() };
        routed.settle();
        routed
    }

    fn settle(&mut self) {
        for b in self.link.settle() {
            if b[12..14] == [0x86, 0xdd]
                && let Ok(ip) = Ipv6Header::parse(&b[14..], b.len() - 14)
            {
                if ip.next_header == ipv6::TCP {
                    self.ways.push(MacAddr(b[..6].try_into().unwrap()));
                }
                self.seen.push((ip, b[54..54 + ip.payload_len].to_vec()));
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.link.hand.advance(time);
        self.settle();
    }

    fn say(&mut self, src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) {
        self.say_from(ROUTER_MAC, src, dst, message);
    }

    fn say_from(&mut self, station: MacAddr, src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) {
        let to = if dst.is_multicast() { MacAddr::of_group(dst) } else { MacAddr(self.link.mac) };
        let mut eth = [0; 14];
        EthernetHeader { dst: to, src: station, ethertype: EtherType::IPV6 }.emit(&mut eth);
        let mut ip = [0; 40];
        Ipv6Header {
            src,
            dst,
            next_header: ipv6::ICMP,
            hop_limit: 255,
            traffic_class: 0,
            flow_label: 0,
            payload_len: message.len(),
        }
        .emit(&mut ip);
        self.link.put(&[&eth[..], &ip, message].concat());
        self.settle();
    }

    /// Makes the router tell of itself for `lifetime` seconds, and of a prefix.
    fn tell(&mut self, lifetime: u16) {
        self.tell_as((ROUTER, ROUTER_MAC), lifetime);
    }

    fn tell_as(&mut self, (router, station): (Ipv6Addr, MacAddr), lifetime: u16) {
        let [a, b] = lifetime.to_be_bytes();
        let mut m = vec![134, 0, 0, 0, 64, 0, a, b, 0, 0, 0, 0, 0, 0, 0, 0];
        m.extend([3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
        m.extend(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0).octets());
        let len = u32::try_from(m.len()).unwrap();
        let sum = ipv6::pseudo_header(ipv6::ICMP, router, ipv6::ALL_NODES, len)
            .plus(heddle_base::Sum::of(&m))
            .complement();
        m[2..4].copy_from_slice(&sum.to_be_bytes());
        self.say_from(station, router, ipv6::ALL_NODES, &m);
    }

    /// Returns the address that the RNIC makes of a network.
    fn made(&self, [a, b]: [u16; 2]) -> Ipv6Addr {
        let [m0, m1, m2, m3, m4, m5] = self.link.mac;
        let word = |high, low| u16::from_be_bytes([high, low]);
        Ipv6Addr::new(a, b, 0, 0, word(m0 ^ 2, m1), word(m2, 0xff), word(0xfe, m3), word(m4, m5))
    }

    /// Returns true if the RNIC answers for the address.
    fn answers(&mut self, ip: Ipv6Addr) -> bool {
        self.seen.clear();
        self.say(ROUTER, ip, &neighbor_solicit(ROUTER, ip, ip, ROUTER_MAC));
        let is_answer = |(h, m): &(Ipv6Header, Vec<u8>)| {
            let message = Message::parse(m, h.src, h.dst);
            matches!(message, Some(Message::NeighborAdvert { target, solicited: true, .. })
                if target == ip)
        };
        self.seen.iter().any(is_answer)
    }

    fn solicits(&mut self) -> usize {
        let seen = std::mem::take(&mut self.seen);
        seen.iter().filter(|(ip, m)| ip.dst == ipv6::ALL_ROUTERS && m[0] == 133).count()
    }
}

#[test]
fn test_port_has_the_addresses_that_its_router_tells() {
    let (eal, _turn) = eal();
    let mut router = Routed::new(&eal, RouterAdverts::Addresses);
    assert_eq!(router.solicits(), 1);
    router.pass(Duration::from_secs(5));
    assert_eq!(router.solicits(), 1, "and once more, for no router answered");
    let made = router.made([0xfd00, 1]);
    assert!(!router.answers(made));
    router.tell(1800);
    assert!(router.answers(made));
    let has = |router: &Routed| {
        let addrs = router.link.us.device().addresses().unwrap();
        addrs.iter().any(|a| a.addr == made && a.prefix == 64)
    };
    assert!(has(&router));
    router.pass(Duration::from_secs(30));
    assert_eq!(router.solicits(), 0, "a router has answered");
    assert!(router.answers(made));
    // The prefix is valid for a day.
    router.pass(Duration::from_secs(86_400));
    assert!(!router.answers(made));
    assert!(!has(&router));
}

#[test]
fn test_connections_go_through_the_router_while_it_serves() {
    let (eal, _turn) = eal();
    let mut router = Routed::new(&eal, RouterAdverts::Addresses);
    router.tell(1800);
    let events = heddle_verbs::EventQueue::new(None);
    let end = End::new(&router.link.us);
    let far = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), PORT).into();
    let connect = |router: &mut Routed| {
        let params = heddle_verbs::ConnectParams::new(end.qp.clone());
        router.link.us.device().connect(far, params, &events).unwrap();
        router.settle();
    };
    connect(&mut router);
    let told = neighbor_advert(ROUTER, router.made([0xfe80, 0]), ROUTER, ROUTER_MAC, true);
    let local = router.made([0xfe80, 0]);
    router.say(ROUTER, local, &told);
    let made = router.made([0xfd00, 1]);
    let syns = |router: &Routed| {
        let to_far =
            |(ip, _): &&(Ipv6Header, Vec<u8>)| (ip.src, ip.next_header) == (made, ipv6::TCP);
        router.seen.iter().filter(to_far).count()
    };
    assert!(syns(&router) > 0, "by the address that the router told");
    router.tell(0);
    let ended = events.poll();
    assert!(
        matches!(ended, Some(heddle_verbs::CmEvent::ConnectError { .. })),
        "no route is left: {ended:?}"
    );
}

/// The first of two routers stops answering: what is to be sent goes through the other.
#[test]
fn test_connections_move_to_another_router_when_theirs_is_silent() {
    let (eal, _turn) = eal();
    let mut router = Routed::new(&eal, RouterAdverts::Addresses);
    router.tell(1800);
    router.tell_as((OTHER, OTHER_MAC), 1800);
    let events = heddle_verbs::EventQueue::new(None);
    let end = End::new(&router.link.us);
    let far = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), PORT).into();
    let mut params = heddle_verbs::ConnectParams::new(end.qp.clone());
    params.timeout = Duration::from_secs(300);
    router.link.us.device().connect(far, params, &events).unwrap();
    router.settle();
    let local = router.made([0xfe80, 0]);
    let told = neighbor_advert(ROUTER, local, ROUTER, ROUTER_MAC, true);
    router.say(ROUTER, local, &told);
    assert_eq!(std::mem::take(&mut router.ways), [ROUTER_MAC]);
    let mut moved = None;
    for second in 0..130 {
        router.pass(Duration::from_secs(1));
        let asks = |(ip, m): &(Ipv6Header, Vec<u8>)| {
            let message = Message::parse(m, ip.src, ip.dst);
            matches!(message, Some(Message::NeighborSolicit { target, .. }) if target == OTHER)
        };
        if router.seen.drain(..).filter(|(ip, _)| ip.next_header == ipv6::ICMP).any(|s| asks(&s)) {
            let told = neighbor_advert(OTHER, local, OTHER, OTHER_MAC, true);
            router.say_from(OTHER_MAC, OTHER, local, &told);
        }
        for way in std::mem::take(&mut router.ways) {
            if way == OTHER_MAC {
                moved.get_or_insert(second);
            }
            assert_eq!(way, if moved.is_some() { OTHER_MAC } else { ROUTER_MAC });
        }
    }
    // The router is asked for after a minute; six seconds later the other one is. The SYN goes again
    // at two minutes.
    assert_eq!(moved.map(|at| (100..130).contains(&at)), Some(true), "{moved:?}");
    assert!(events.poll().is_none());
    drop(end);
}

#[test]
fn test_port_that_ignores_routers_stays_as_it_is() {
    let (eal, _turn) = eal();
    let mut router = Routed::new(&eal, RouterAdverts::Ignore);
    assert_eq!(router.solicits(), 0);
    router.tell(1800);
    let made = router.made([0xfd00, 1]);
    assert!(!router.answers(made));
}
