//! VLANs of a port: messages in them, what routers of a VLAN tell, and changes while the RNIC runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heddle_ctl::{EndpointConfig, Node, OpenError, PortSetup, Question, Reply};
use heddle_dataplane::{Eal, FaultConfig, Offloads};
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::wire::arp::{Arp, Operation, PACKET_LEN};
use heddle_tcp::wire::{EtherType, EthernetHeader, Ipv6Header, MacAddr, Tag, ipv6};
use heddle_tcp::{Addressing, Cidr, Priority, Vid, Vlan};

use crate::common::*;
use crate::trains::run_over;

fn vlan(id: u16, addrs: &[&str]) -> Vlan {
    let addrs = addrs.iter().map(|a| a.parse::<Cidr>().unwrap()).collect();
    Vlan::new(Vid::new(id).unwrap(), Addressing::new(addrs, Vec::new()).unwrap())
}

/// Moves the addresses of a configuration into VLAN 10.
fn into_vlan(c: &mut EndpointConfig) {
    let net = Addressing::new(std::mem::take(&mut c.addrs), Vec::new()).unwrap();
    let vid = Vid::new(10).unwrap();
    c.vlans = vec![Vlan { priority: Priority::Fixed(3), ..Vlan::new(vid, net) }];
}

#[test]
fn test_long_messages_pass_in_a_vlan() {
    let uncut = |c: &mut EndpointConfig| {
        into_vlan(c);
        c.offloads = Offloads { rings: true, ..Offloads::default() };
    };
    let (trains, ..) = run_over(Node::ring_pair, "vlan", false, into_vlan);
    assert_eq!(trains, 0);
    let (trains, ..) = run_over(Node::ring_pair, "vlan-uncut", true, uncut);
    assert!(trains > 0);
    let (.., again) = run_over(Node::ring_pair, "vlan-loss", true, |c| {
        into_vlan(c);
        c.fault = FaultConfig { drop: 0.02, ..FaultConfig::default() };
    });
    assert!(again > 0);
}

/// Three workers share one pair of queues, and look at each frame; or each has its own.
#[test]
fn test_workers_hand_on_tagged_frames() {
    for (name, workers) in [("vlan-shared", [3, 1]), ("vlan-steered", [2, 3])] {
        let sides = std::cell::Cell::new(0);
        run_over(Node::ring_pair, name, true, |c| {
            into_vlan(c);
            c.workers = workers[sides.replace(1 - sides.get())];
        });
    }
}

/// Both drivers take tags out by themselves.
#[test]
fn test_long_messages_pass_a_vhost_pair_that_takes_tags_out() {
    let (trains, ..) = run_over(Node::vhost_pair, "vhost-vlan", true, into_vlan);
    assert!(trains > 0);
    run_over(Node::vhost_pair, "vhost-vlan-jumbo", false, |c| {
        into_vlan(c);
        c.mtu = 9000;
    });
}

/// The RNIC, at a wire in the hands of the test.
struct Wire(Link);

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

impl Wire {
    fn new(eal: &Eal, vlans: Vec<Vlan>) -> Wire {
        let mut link = Link::open(eal, |c| c.vlans = vlans);
        link.settle();
        Wire(link)
    }

    /// Puts a frame on the wire, with a tag unless `id` is 0; returns the frames that follow.
    fn say(&mut self, id: u16, frame: &[u8]) -> Vec<Vec<u8>> {
        let tag = Vid::new(id).map(|vid| Tag::new(vid, 0).bytes().to_vec()).unwrap_or_default();
        self.0.say(&[&frame[..12], &tag, &frame[12..]].concat())
    }

    /// Returns true if the RNIC answers for the address in this VLAN, and says so there.
    fn answers(&mut self, id: u16, ip: &str) -> bool {
        let IpAddr::V4(ip) = ip.parse().unwrap() else { panic!() };
        let [a, b, c, _] = ip.octets();
        let mut header = [0; 14];
        let src = MacAddr([2, 0, 0, 0, 0, 9]);
        EthernetHeader { dst: MacAddr::BROADCAST, src, ethertype: EtherType::ARP }
            .emit(&mut header);
        let mut packet = [0; PACKET_LEN];
        Arp {
            operation: Operation::Request,
            sender_mac: src,
            sender_ip: Ipv4Addr::new(a, b, c, 99),
            target_mac: MacAddr::default(),
            target_ip: ip,
        }
        .emit(&mut packet);
        let seen = self.say(id, &[&header[..], &packet].concat());
        let answer = seen.iter().find(|f| f[..6] == src.0);
        let tag = answer.map(|f| Tag::of(f).map_or(0, |t| t.vid().get()));
        assert!(tag.is_none_or(|tag| tag == id), "{tag:?}");
        tag.is_some()
    }

    /// Makes a router of a VLAN tell of itself and of a prefix.
    fn tell(&mut self, id: u16, prefix: u16) {
        let all = ipv6::ALL_NODES;
        let mut m = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
        m.extend([3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
        m.extend(Ipv6Addr::new(0xfd00, prefix, 0, 0, 0, 0, 0, 0).octets());
        let len = u32::try_from(m.len()).unwrap();
        let sum = ipv6::pseudo_header(ipv6::ICMP, ROUTER, all, len);
        let sum = sum.plus(heddle_base::Sum::of(&m)).complement();
        m[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut eth = [0; 14];
        let (dst, src) = (MacAddr::of_group(all), MacAddr([2, 0, 0, 0, 0, 9]));
        EthernetHeader { dst, src, ethertype: EtherType::IPV6 }.emit(&mut eth);
        let mut ip = [0; 40];
        Ipv6Header {
            src: ROUTER,
            dst: all,
            next_header: ipv6::ICMP,
            hop_limit: 255,
            traffic_class: 0,
            flow_label: 0,
            payload_len: m.len(),
        }
        .emit(&mut ip);
        self.say(id, &[&eth[..], &ip, &m].concat());
    }

    /// Returns how many links of the port have the address that is made of this prefix.
    fn has(&self, prefix: u16) -> usize {
        let [m0, m1, m2, m3, m4, m5] = self.0.mac;
        let word = |high, low| u16::from_be_bytes([high, low]);
        let made = Ipv6Addr::new(
            0xfd00,
            prefix,
            0,
            0,
            word(m0 ^ 2, m1),
            word(m2, 0xff),
            word(0xfe, m3),
            word(m4, m5),
        );
        let all = self.0.us.device().addresses().unwrap();
        all.iter().filter(|a| a.addr == IpAddr::V6(made)).count()
    }

    fn set(&mut self, net: Addressing) {
        let reply = Reply::new(|done: Result<(), _>| done.unwrap());
        let nets = vec![net];
        self.0.us.asker().ask(Question::SetAddressing { nets, reply }).unwrap();
        self.0.settle();
    }
}

fn own() -> Addressing {
    Addressing::new(vec![Cidr::new(US.into(), 24).unwrap()], Vec::new()).unwrap()
}

#[test]
fn test_vlans_come_and_go_while_the_rnic_runs() {
    let (eal, _turn) = eal();
    let mut wire = Wire::new(&eal, Vec::new());
    assert!(wire.answers(0, "10.0.0.1") && !wire.answers(10, "10.0.10.1"));
    let vlans = vec![vlan(10, &["10.0.10.1/24"]), vlan(20, &["10.0.20.1/24"])];
    wire.set(own().with_vlans(vlans).unwrap());
    for (id, ip, ours) in [
        (0, "10.0.0.1", true),
        (10, "10.0.10.1", true),
        (20, "10.0.20.1", true),
        (0, "10.0.10.1", false),
        (20, "10.0.10.1", false),
        (10, "10.0.0.1", false),
        (30, "10.0.10.1", false),
    ] {
        assert_eq!(wire.answers(id, ip), ours, "{ip} in VLAN {id}");
    }
    let addrs = wire.0.us.device().addresses().unwrap();
    assert_eq!(addrs.len(), 3);
    wire.set(own().with_vlans(vec![vlan(20, &["10.0.20.1/24"])]).unwrap());
    assert!(!wire.answers(10, "10.0.10.1") && wire.answers(20, "10.0.20.1"));
    let counters = wire.0.us.snapshot().worker.engine.stack;
    assert_eq!(counters.rx_unknown_vlan, 3);
}

#[test]
fn test_a_router_gives_addresses_to_its_vlan_alone_and_takes_none_from_others() {
    let (eal, _turn) = eal();
    let hears = |id, addr: &str| {
        let router_adverts = RouterAdverts::Addresses;
        Vlan { router_adverts, ..vlan(id, &[addr]) }
    };
    let vlans = vec![hears(10, "fd10::1/64"), hears(20, "fd20::1/64"), vlan(30, &["fd30::1/64"])];
    let mut wire = Wire::new(&eal, vlans);
    for deaf in [0, 30, 40] {
        wire.tell(deaf, 1);
    }
    assert_eq!(wire.has(1), 0);
    wire.tell(20, 1);
    assert_eq!(wire.has(1), 1);
    // VLAN 20 keeps the address, although a router of VLAN 10 tells the prefix too.
    wire.tell(10, 1);
    assert_eq!(wire.has(1), 1);
    wire.tell(10, 2);
    assert_eq!((wire.has(1), wire.has(2)), (1, 1));
    // A VLAN that goes takes what its router told with it.
    let vlans = vec![hears(10, "fd10::1/64")];
    wire.set(own().with_vlans(vlans).unwrap());
    assert_eq!((wire.has(1), wire.has(2)), (0, 1));
}

#[test]
fn test_ports_refuse_vlans_without_an_address() {
    let vid = Vid::new(10).unwrap();
    let with = |v: Vlan| PortSetup { vlans: vec![v], ..PortSetup::new(Vec::new()) }.check();
    let none = Vlan::new(vid, Addressing::default());
    assert!(matches!(with(none.clone()), Err(OpenError::NoVlanAddress(v)) if v == vid));
    assert!(with(Vlan { router_adverts: RouterAdverts::Addresses, ..none }).is_ok());
    assert!(with(vlan(10, &["10.0.0.1/24"])).is_ok(), "no address beside the VLAN");
}
