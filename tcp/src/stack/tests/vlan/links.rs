//! Each link has neighbors, routers, link-local addresses and budgets of its own.

use super::*;

pub(super) const PEER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);

fn arp(
    op: wire_arp::Operation,
    from: Ipv4Addr,
    mac: [u8; 6],
    to: Ipv4Addr,
    dst: [u8; 6],
) -> Vec<u8> {
    arp_frame(op, from, mac, to, dst)
}

/// VLANs 10 and 20 have the same network, and both have a host 10.0.0.9.
fn alike() -> Stack<ByteQueue> {
    let vlans = vec![vlan_of(10, &["10.0.0.1/24"]), vlan_of(20, &["10.0.0.2/24"])];
    Stack::new(stack(MAC_B, net(&[], vlans)))
}

#[test]
fn test_hosts_of_the_same_address_in_two_vlans_are_two_neighbors() {
    let mut b = alike();
    let remote = SocketAddr::new(ip("10.0.0.9"), PORT);
    let ours = [("10.0.0.1", 10, MAC_A), ("10.0.0.2", 20, MAC_C)];
    for (local, id, _) in ours {
        b.connect_from(ms(1), Some(ip(local)), remote, Some(4000)).unwrap();
        let out = frames(&mut b, ms(1));
        assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(id))));
    }
    // An answer in one VLAN says nothing about the other, and none about no VLAN.
    let reply = |mac, local: &str| {
        let IpAddr::V4(local) = ip(local) else { panic!() };
        arp(wire_arp::Operation::Reply, addr(0, 9), mac, local, MAC_B)
    };
    handle(&mut b, ms(2), &reply(MAC_A, "10.0.0.1"));
    handle(&mut b, ms(2), &tagged(20, &reply(MAC_A, "10.0.0.1")));
    handle(&mut b, ms(2), &tagged(11, &reply(MAC_A, "10.0.0.1")));
    assert_eq!(frames(&mut b, ms(2)).len(), 0);
    for (local, id, mac) in ours {
        handle(&mut b, ms(3), &tagged(id, &reply(mac, local)));
        let out = frames(&mut b, ms(3));
        let (tag, syn) = split(&out[0]);
        assert_eq!((out.len(), tag.map(Tag::vid)), (1, Some(vid(id))));
        assert_eq!((&syn[..6], read_tcp(&syn).1.flags), (&mac[..], Flags::SYN));
    }
    assert_eq!(b.neighbors.len(), 2);
    // A claim in one VLAN that the host has moved is tested there alone.
    handle(&mut b, ms(4), &tagged(20, &reply([2, 0, 0, 0, 0, 0x77], "10.0.0.2")));
    let out = frames(&mut b, ms(4));
    let (tag, test) = split(&out[0]);
    assert_eq!((out.len(), tag.map(Tag::vid), &test[..6]), (1, Some(vid(20)), &MAC_C[..]));
}

#[test]
fn test_an_address_names_its_link_and_prefixes_choose_among_links() {
    let mut ten = vlan_of(10, &["10.0.10.2/24"]);
    let via = Route { dest: cidr("192.0.2.0/24"), via: ip("10.0.10.254") };
    ten.net = Addressing::new(ten.net.addrs().to_vec(), vec![via]).unwrap();
    let vlans = vec![ten, vlan_of(20, &["10.0.0.3/16"])];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    let to = |text: &str| SocketAddr::new(ip(text), PORT);
    for (remote, local, id) in [
        ("10.0.0.9", "10.0.0.2", 0),
        ("10.0.10.9", "10.0.10.2", 10),
        ("10.0.99.9", "10.0.0.3", 20),
        ("192.0.2.9", "10.0.10.2", 10),
    ] {
        let conn = b.connect(ms(1), to(remote), None).unwrap();
        assert_eq!(b.local_addr(conn).unwrap().ip(), ip(local), "{remote}");
        let out = frames(&mut b, ms(1));
        assert_eq!(split(&out[0]).0.map_or(0, |t| t.vid().get()), id, "{remote}");
    }
    let from = |b: &mut Stack<ByteQueue>, local: &str, remote| {
        b.connect_from(ms(1), Some(ip(local)), to(remote), None).map(drop)
    };
    assert_eq!(from(&mut b, "10.0.0.2", "192.0.2.9"), Err(ConnectError::NoRoute), "another link");
    assert_eq!(from(&mut b, "10.0.0.3", "10.0.0.9"), Ok(()), "although another prefix is longer");
    assert_eq!(split(frames(&mut b, ms(1)).last().unwrap()).0.map(Tag::vid), Some(vid(20)));
    assert_eq!(from(&mut b, "10.0.0.7", "10.0.0.9"), Err(ConnectError::NotOurs));
}

/// Our link-local address is the same in all VLANs, and so may be that of a peer.
#[test]
fn test_link_local_addresses_count_in_each_vlan_by_itself() {
    let vlans = vec![vlan_of(10, &["fd00:10::2/64"]), vlan_of(20, &["fd00:20::2/64"])];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    let remote = |id: u32| SocketAddr::V6(SocketAddrV6::new(PEER, PORT, 0, id << 16 | 1));
    let no = b.connect(ms(1), remote(11), Some(4000));
    assert_eq!(no, Err(ConnectError::NoRoute), "a VLAN that the port has not");
    assert_eq!(
        b.connect(ms(1), remote(0), Some(4000)),
        Err(ConnectError::NoRoute),
        "no IPv6 there"
    );
    let ids = [10u16, 20].map(|id| (id, b.connect(ms(1), remote(id.into()), Some(4000)).unwrap()));
    let asked: Vec<_> = frames(&mut b, ms(1)).iter().map(|f| split(f).0.unwrap().vid()).collect();
    assert_eq!(asked, [vid(10), vid(20)]);
    let Some(IpAddr::V6(ours)) = b.local_addr(ids[0].1).map(|a| a.ip()) else { panic!() };
    assert!(ours.is_unicast_link_local());
    for ((id, conn), mac) in ids.into_iter().zip([MAC_A, MAC_C]) {
        let answer = neighbor_advert(PEER, ours, PEER, MacAddr(mac), true);
        handle(&mut b, ms(2), &tagged(id, &frame6(PEER, ours, &answer)));
        let out = frames(&mut b, ms(2));
        let (tag, syn) = split(&out[0]);
        assert_eq!((out.len(), tag.map(Tag::vid), &syn[..6]), (1, Some(vid(id)), &mac[..]));
        let seg = TcpHeader::parse(&syn[54..], syn.len() - 54).unwrap().segment;
        // The reset of one connection does not end the other, whose ends are the same.
        let refusal = TxSegment {
            ack: seg.seq.advance(1),
            flags: Flags::RST.with(Flags::ACK),
            ..TxSegment::default()
        };
        let flow = FlowKey::new((PEER.into(), PORT), (ours.into(), 4000)).unwrap();
        let common =
            template::Common { mac: MacAddr(mac), ttl: 64, dscp: 0, tag: Tag::new(vid(id), 0) };
        let t = template::HeaderTemplate::new(common, &flow.on(vid(id)), 0);
        let off = Offloads { tcp: false, ip: false };
        let sack = crate::SackBlocks::default();
        let reset = t.frame(MacAddr(MAC_B), &refusal, &sack, TxBody::None, off);
        handle(&mut b, ms(2), &reset.header[..]);
        assert_eq!(events(&mut b), [(conn, StackEvent::Conn(ConnEvent::Refused))]);
        b.release(conn);
    }
}

/// Returns a message of ICMPv6 in its frame.
pub(super) fn frame6(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let to = if dst.is_multicast() { MacAddr::of_group(dst) } else { MacAddr(MAC_B) };
    let mut eth = [0; 14];
    EthernetHeader { dst: to, src: MacAddr(MAC_A), ethertype: EtherType::IPV6 }.emit(&mut eth);
    let mut header = [0; 40];
    Ipv6Header {
        src,
        dst,
        next_header: ipv6::ICMP,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len(),
    }
    .emit(&mut header);
    [&eth[..], &header, message].concat()
}

/// Returns what a router tells: its lifetime, and no more.
fn advert() -> Vec<u8> {
    let mut m = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let all = ipv6::ALL_NODES;
    let sum = ipv6::pseudo_header(ipv6::ICMP, PEER, all, 16).plus(Sum::of(&m)).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    frame6(PEER, all, &m)
}

#[test]
fn test_routers_are_heard_and_asked_on_the_links_that_hear_them() {
    let mut ten = vlan_of(10, &["fd00:10::2/64"]);
    ten.router_adverts = RouterAdverts::Routes;
    let vlans = vec![ten, vlan_of(20, &["fd00:20::2/64"])];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    for frame in [advert(), tagged(20, &advert())] {
        handle(&mut b, ms(1), &frame);
        assert!(!b.has_news());
    }
    handle(&mut b, ms(1), &tagged(10, &advert()));
    let Some(LinkNews::Router { vid: from, .. }) = b.poll_news() else { panic!("news") };
    assert_eq!(from, vid(10));
    b.solicit_routers(vid(10));
    let out = frames(&mut b, ms(1));
    let (tag, question) = split(&out[0]);
    assert_eq!((tag.map(Tag::vid), question[54]), (Some(vid(10)), 133));
    b.solicit_routers(Vid::NONE);
    b.solicit_routers(vid(11));
    assert_eq!(frames(&mut b, ms(1)).len(), 0, "no IPv6 there");
}

#[test]
fn test_a_flood_on_one_vlan_leaves_the_budgets_of_others() {
    let hear = |mut v: Vlan| {
        v.router_adverts = RouterAdverts::Routes;
        v
    };
    let vlans = vec![
        hear(vlan_of(10, &["10.0.10.2/24", "fd00:10::2/64"])),
        hear(vlan_of(20, &["10.0.20.2/24", "fd00:20::2/64"])),
    ];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    let question = |third: u8, n: u64| {
        // Each host asks once, before it has an address.
        let [.., a, b] = n.to_be_bytes();
        let op = wire_arp::Operation::Request;
        let from = Ipv4Addr::UNSPECIFIED;
        tagged(third.into(), &arp(op, from, [2, 0, 0, 1, a, b], addr(third, 2), [0; 6]))
    };
    let mut answers = 0;
    for n in 0..2000 {
        handle(&mut b, ms(n / 10), &question(20, n));
        handle(&mut b, ms(n / 10), &tagged(20, &advert()));
        answers += frames(&mut b, ms(n / 10)).len();
    }
    assert!((500..650).contains(&answers), "{answers}");
    handle(&mut b, ms(200), &question(10, 1));
    let out = frames(&mut b, ms(200));
    assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(10))));
    handle(&mut b, ms(200), &tagged(10, &advert()));
    let news: Vec<_> = core::iter::from_fn(|| b.poll_news()).collect();
    let of = |id| {
        let its = |n: &&LinkNews| matches!(n, LinkNews::Router { vid: v, .. } if v.get() == id);
        news.iter().filter(its).count()
    };
    assert_eq!((of(20), of(10)), (16, 1));
}

#[test]
fn test_each_address_is_announced_on_its_link() {
    let vlans = vec![vlan_of(10, &["10.0.10.2/24", "fd00:10::2/64"])];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    b.announce();
    let mut said = Vec::new();
    for n in 0..10 {
        b.handle_timeouts(ms(20 * n));
        said.extend(frames(&mut b, ms(20 * n)).iter().map(|f| {
            let (tag, f) = split(f);
            (tag.map_or(0, |t| t.vid().get()), u16::from_be_bytes([f[12], f[13]]))
        }));
    }
    assert_eq!(said[..2], [(0, 0x0806), (10, 0x0806)]);
    assert!(said.len() > 4 && said[2..].iter().all(|s| *s == (10, 0x86dd)), "{said:?}");
    // A VLAN that comes later is announced, and what stays is not announced again.
    let vlans =
        vec![vlan_of(10, &["10.0.10.2/24", "fd00:10::2/64"]), vlan_of(20, &["10.0.20.2/24"])];
    let mut fresh = Stack::<ByteQueue>::new(stack(MAC_B, b.config().net.clone()));
    fresh.set_addressing(ms(0), net(&["10.0.0.2/24"], vlans));
    fresh.handle_timeouts(ms(1));
    fresh.handle_timeouts(ms(40));
    let out = frames(&mut fresh, ms(40));
    assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(20))));
}

#[test]
fn test_questions_for_an_address_are_answered_on_its_link_alone() {
    let vlans =
        vec![vlan_of(10, &["10.0.10.2/24", "fd00:10::2/64"]), vlan_of(20, &["10.0.20.2/24"])];
    let mut b = Stack::<ByteQueue>::new(stack(MAC_B, net(&["10.0.0.2/24"], vlans)));
    let (ours, peer) = (
        Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 2),
        Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1),
    );
    let group = ipv6::solicited_node(ours);
    let six = frame6(peer, group, &neighbor_solicit(peer, group, ours, MacAddr(MAC_A)));
    let four = arp(wire_arp::Operation::Request, addr(10, 1), MAC_A, addr(10, 2), [0; 6]);
    for question in [six, four] {
        for frame in [question.clone(), tagged(20, &question)] {
            handle(&mut b, ms(1), &frame);
            assert_eq!((frames(&mut b, ms(1)).len(), b.neighbors.len()), (0, 0));
        }
        handle(&mut b, ms(1), &tagged(10, &question));
        let out = frames(&mut b, ms(1));
        assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(10))));
        assert_eq!(b.neighbors.len(), 1);
        b = Stack::new(b.config().clone());
    }
}

/// An echo is answered on its link. An error counts only on the link of the segment that it quotes.
#[test]
fn test_icmp_counts_on_its_link() {
    let mut b = host_b();
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let ping = |third| ip_frame(addr(third, 1), addr(third, 2), 1, &echo);
    handle(&mut b, ms(1), &tagged(10, &ping(10)));
    handle(&mut b, ms(1), &tagged(20, &ping(10)));
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(10))));
    let id = b.connect(ms(2), (addr(10, 1), PORT).into(), Some(4000)).unwrap();
    let reply = arp(wire_arp::Operation::Reply, addr(10, 1), MAC_A, addr(10, 2), MAC_B);
    handle(&mut b, ms(2), &tagged(10, &reply));
    let syn = frames(&mut b, ms(2)).iter().map(|f| split(f).1).find(|f| f[13] == 0).unwrap();
    let mut told = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &syn[14..42]].concat();
    let sum = Sum::of(&told).complement();
    told[2..4].copy_from_slice(&sum.to_be_bytes());
    let error = |third| ip_frame(addr(third, 1), addr(third, 2), 1, &told);
    handle(&mut b, ms(3), &tagged(20, &error(20)));
    assert_eq!((b.counters().icmp_unmatched, b.soft_error(id)), (1, None));
    handle(&mut b, ms(3), &tagged(10, &error(10)));
    assert_eq!(b.soft_error(id), Some(IcmpError::Unreachable(1)));
}

#[test]
fn test_datagrams_come_and_go_on_the_link_of_their_address() {
    let mut b = host_b();
    b.bind_udp(4791, std::sync::Arc::new(()));
    let payload = b"message!";
    let mut udp = vec![0x12, 0x34, 0x12, 0xb7, 0, 16, 0, 0];
    udp.extend(payload);
    let frame = ip_frame(addr(10, 1), addr(10, 2), 17, &udp);
    for wrong in [frame.clone(), tagged(20, &frame)] {
        handle(&mut b, ms(1), &wrong);
        assert!(!b.has_datagrams());
    }
    handle(&mut b, ms(1), &tagged(10, &frame));
    let d = b.poll_datagram().unwrap();
    let (local, remote) = (d.local, d.remote);
    let answer = TxDatagram { local, remote, payload: payload.to_vec(), to_stranger: true };
    b.send_datagram(ms(2), &answer);
    let out = frames(&mut b, ms(2));
    assert_eq!((out.len(), split(&out[0]).0.map(Tag::vid)), (1, Some(vid(10))), "a question first");
    let reply = arp(wire_arp::Operation::Reply, addr(10, 1), MAC_A, addr(10, 2), MAC_B);
    handle(&mut b, ms(3), &tagged(10, &reply));
    let out = frames(&mut b, ms(3));
    let (tag, inner) = split(&out[0]);
    assert_eq!((tag.map(Tag::vid), &inner[..6], inner[23]), (Some(vid(10)), &MAC_A[..], 17));
}

#[test]
fn test_addresses_of_vlans_are_checked() {
    let own = || Addressing::new(vec![cidr("10.0.0.1/24")], Vec::new()).unwrap();
    let with = |vlans| own().with_vlans(vlans).map(drop);
    assert_eq!(with(vec![vlan_of(10, &["10.0.0.2/24"])]), Ok(()), "the same network");
    let twice = with(vec![vlan_of(10, &["10.0.0.1/24"])]);
    assert_eq!(twice, Err(AddrError::Twice(ip("10.0.0.1"))));
    let twice = with(vec![vlan_of(10, &["fd00::1/64"]), vlan_of(20, &["fd00::1/64"])]);
    assert_eq!(twice, Err(AddrError::Twice(ip("fd00::1"))));
    assert_eq!(with(vec![vlan_of(10, &["fe80::1/64"]), vlan_of(20, &["fe80::1/64"])]), Ok(()));
    let same = with(vec![vlan_of(10, &[]), vlan_of(10, &[])]);
    assert_eq!(same, Err(AddrError::VlanTwice(vid(10))));
    let many: Vec<_> = (1..=65).map(|n| vlan_of(n, &[])).collect();
    assert_eq!(with(many[..64].to_vec()), Ok(()));
    assert_eq!(with(many), Err(AddrError::TooManyVlans(65)));
    // Each link with IPv6 gets a link-local address, and no other does.
    let all =
        net(&["10.0.0.1/24"], vec![vlan_of(10, &["fd00::1/64"]), vlan_of(20, &["10.0.2.1/24"])]);
    let all = all.with_station(MAC_A);
    let links: Vec<_> = all.links().map(|(vid, net)| (vid.get(), net.addrs().len())).collect();
    assert_eq!(links, [(0, 1), (10, 2), (20, 1)]);
    assert_eq!(all.on(vid(30)).addrs().len(), 0);
    assert_eq!(vlan::TAG_AT, 12);
}
