//! Routers, multicast groups, and other hosts with an address of ours.

use crate::wire::icmpv6::{Prefix, RouterAdvert};
use crate::wire::{Vid, mld};

use super::*;

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Returns B, which hears routers.
fn hears() -> Stack<ByteQueue> {
    Stack::new(StackConfig { hears_routers: true, ..config6(MAC_B, B6) })
}

/// Returns an advertisement with an MTU and a prefix.
fn advert() -> Vec<u8> {
    let mut m = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    m.extend([5, 1, 0, 0, 0, 0, 0x05, 0x78]);
    m.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x07, 0x08, 0, 0, 0, 0]);
    m.extend(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0).octets());
    m
}

fn sealed(mut m: Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    m[2..4].fill(0);
    let len = u32::try_from(m.len()).unwrap();
    let sum = ipv6::pseudo_header(ipv6::ICMP, src, dst, len).plus(Sum::of(&m)).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    m
}

pub(super) fn tells(src: Ipv6Addr, dst: Ipv6Addr, hops: u8) -> Vec<u8> {
    frame6(src, dst, ipv6::ICMP, hops, &sealed(advert(), src, dst))
}

#[test]
fn test_owner_hears_what_a_router_tells() {
    let mut b = hears();
    b.handle_frame(ms(1), &tells(ROUTER, ipv6::ALL_NODES, 255)[..]);
    assert!(b.has_news());
    let prefix = Prefix {
        addr: Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0),
        len: 64,
        on_link: true,
        autonomous: true,
        valid: 3600,
        preferred: 1800,
    };
    let mut told =
        RouterAdvert { hop_limit: 64, lifetime: 1800, mtu: Some(1400), ..RouterAdvert::default() };
    told.prefixes.push(prefix);
    let router = LinkNews::Router { vid: Vid::NONE, from: ROUTER, advert: Box::new(told) };
    assert_eq!(b.poll_news(), Some(router));
    assert_eq!((b.poll_news(), b.has_news(), b.counters().rx_router_adverts), (None, false, 1));
}

#[test]
fn test_no_news_from_beyond_the_link_or_from_hosts_that_are_no_routers() {
    let mut b = hears();
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 9);
    for frame in [
        tells(ROUTER, ipv6::ALL_NODES, 254),
        tells(global, ipv6::ALL_NODES, 255),
        tells(ROUTER, ipv6::ALL_ROUTERS, 255),
    ] {
        b.handle_frame(ms(1), &frame[..]);
    }
    assert!(!b.has_news());
    assert_eq!((b.counters().nd_malformed, b.counters().nd_ignored), (2, 1));
    let mut deaf = host_b();
    deaf.handle_frame(ms(1), &tells(ROUTER, ipv6::ALL_NODES, 255)[..]);
    assert_eq!((deaf.has_news(), deaf.counters().nd_ignored), (false, 1));
}

#[test]
fn test_flood_of_advertisements_leaves_a_bounded_queue() {
    let mut b = hears();
    for n in 0..1000 {
        b.handle_frame(ms(n / 100), &tells(ROUTER, ipv6::ALL_NODES, 255)[..]);
    }
    let news = core::iter::from_fn(|| b.poll_news()).count();
    assert_eq!((news, b.counters().nd_ignored), (16, 984));
}

#[test]
fn test_routers_are_asked_from_the_link_local_address() {
    let mut b = hears();
    b.solicit_routers(Vid::NONE);
    let out = frames(&mut b, ms(0));
    let (ip, payload) = read6(&out[0]);
    assert!(ip.src.is_unicast_link_local());
    assert_eq!((ip.dst, ip.hop_limit, payload[0]), (ipv6::ALL_ROUTERS, 255, 133));
    assert_eq!(payload[4..], [&[0, 0, 0, 0, 1, 1][..], &MAC_B].concat(), "and nothing reserved");
}

/// A host hears neither what hosts ask routers nor redirects, which could lead its traffic anywhere.
#[test]
fn test_messages_for_routers_and_redirects_are_dropped() {
    let mut b = hears();
    let question = icmpv6::router_solicit(A6, ipv6::ALL_ROUTERS, MacAddr(MAC_A));
    let mut redirect = vec![137, 0, 0, 0, 0, 0, 0, 0];
    redirect.extend(A6.octets());
    redirect.extend(A6.octets());
    redirect.extend([2, 1]);
    redirect.extend(MAC_A);
    for (m, src, dst) in [(question, A6, ipv6::ALL_ROUTERS), (redirect, ROUTER, B6)] {
        b.handle_frame(ms(1), &frame6(src, dst, ipv6::ICMP, 255, &sealed(m, src, dst))[..]);
    }
    assert_eq!((b.counters().nd_ignored, b.neighbors.len(), b.has_news()), (2, 0, false));
    assert_eq!(frames(&mut b, ms(1)).len(), 0);
}

/// A port is no router, whatever it hears and announces.
#[test]
fn test_port_sends_no_message_that_routers_send() {
    let mut b = hears();
    b.announce();
    b.solicit_routers(Vid::NONE);
    let question = icmpv6::router_solicit(A6, ipv6::ALL_ROUTERS, MacAddr(MAC_A));
    let asked = icmpv6::neighbor_solicit(A6, B6, B6, MacAddr(MAC_A));
    for (m, dst) in [(question, ipv6::ALL_ROUTERS), (asked, B6)] {
        b.handle_frame(ms(1), &frame6(A6, dst, ipv6::ICMP, 255, &m)[..]);
    }
    let _ = b.connect(ms(1), (A6, PORT).into(), None);
    let mut kinds = Vec::new();
    for s in 0..10 {
        b.handle_timeouts(ms(1000 * s));
        for frame in frames(&mut b, ms(1000 * s)) {
            let (ip, payload) = read6(&frame);
            if ip.next_header == ipv6::ICMP {
                kinds.push(payload[0]);
            }
        }
    }
    assert!(kinds.contains(&133) && kinds.contains(&135) && kinds.contains(&136), "{kinds:?}");
    assert!(!kinds.contains(&134) && !kinds.contains(&137), "{kinds:?}");
}

/// RFC 4861 sections 7.1.1 and 7.1.2.
#[test]
fn test_targets_that_are_groups_are_malformed() {
    let mut b = hears();
    let group = ipv6::ALL_NODES;
    let question = icmpv6::neighbor_solicit(A6, group, group, MacAddr(MAC_A));
    let answer = icmpv6::neighbor_advert(A6, group, group, MacAddr(MAC_A), false);
    for m in [question, answer] {
        b.handle_frame(ms(1), &frame6(A6, group, ipv6::ICMP, 255, &m)[..]);
    }
    assert_eq!((b.counters().nd_malformed, frames(&mut b, ms(1)).len()), (2, 0));
}

/// RFC 4861 section 7.2.5.
#[test]
fn test_answer_without_a_station_says_nothing_about_an_unknown_neighbor() {
    let mut b = hears();
    b.connect(ms(0), (A6, PORT).into(), None).unwrap();
    assert_eq!(frames(&mut b, ms(0)).len(), 1, "the question");
    let mut m = icmpv6::neighbor_advert(A6, B6, A6, MacAddr(MAC_A), true);
    m.truncate(24);
    b.handle_frame(ms(1), &frame6(A6, B6, ipv6::ICMP, 255, &sealed(m, A6, B6))[..]);
    assert_eq!((b.counters().nd_ignored, frames(&mut b, ms(1)).len()), (1, 0));
}

#[test]
fn test_mtu_of_the_link_bounds_new_connections_over_ipv6() {
    let mut b = hears();
    b.listen(None, PORT, 8).unwrap();
    introduce(&mut b, ms(0));
    b.set_addressing(ms(0), b.cfg.net.clone().with_ipv6_mtu(Some(1400)));
    b.handle_frame(ms(1), &tcp6((A6, 1000), (B6, PORT), &syn(100), b"")[..]);
    let answer = frames(&mut b, ms(1));
    let (_, tcp) = read6(answer.last().unwrap());
    let seg = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
    assert_eq!(seg.mss, Some(1340));
}

#[test]
fn test_owner_hears_of_a_conflict_only_while_the_address_is_new() {
    let mut b = hears();
    let claim = |b: &mut Stack<ByteQueue>, now| {
        let all = ipv6::ALL_NODES;
        let told = icmpv6::neighbor_advert(A6, all, B6, MacAddr(MAC_A), false);
        b.handle_frame(now, &frame6(A6, all, ipv6::ICMP, 255, &told)[..]);
        b.poll_news()
    };
    assert_eq!(claim(&mut b, ms(0)), None, "not announced yet");
    b.announce();
    for n in 0..3 {
        b.handle_timeouts(ms(20 * n));
    }
    assert_eq!(claim(&mut b, ms(500)), Some(LinkNews::Conflict { vid: Vid::NONE, addr: B6 }));
    for n in 0..3 {
        b.handle_timeouts(ms(2100 + 20 * n));
    }
    assert_eq!(claim(&mut b, ms(3000)), None, "a claim, and no more");
    assert_eq!(b.counters().nd_conflicts, 3);
}

/// Returns a query that has to be answered within a second.
fn query(group: Ipv6Addr, rest: &[u8], hops: u8) -> Vec<u8> {
    let all = ipv6::ALL_NODES;
    let m = [&[130, 0, 0, 0, 0x03, 0xe8, 0, 0][..], &group.octets(), rest].concat();
    let payload = [&mld::ROUTER_ALERT[..], &sealed(m, ROUTER, all)].concat();
    frame6(ROUTER, all, ipv6::HOP_BY_HOP, hops, &payload)
}

const V2: &[u8] = &[2, 125, 0, 0];

/// Returns the reports that go out within a second of `now`: their destinations and types.
fn reports(b: &mut Stack<ByteQueue>, now: u64) -> Vec<(Ipv6Addr, u8, usize)> {
    let due = b.poll_timeout().unwrap();
    assert!(due >= ms(now) && due < ms(now + 1000), "{due:?}");
    b.handle_timeouts(due);
    let out = frames(b, due);
    let read = |frame: &Vec<u8>| {
        let (ip, payload) = read6(frame);
        assert_eq!((ip.next_header, ip.hop_limit), (ipv6::HOP_BY_HOP, 1));
        assert!(ip.src.is_unicast_link_local() && payload[..8] == mld::ROUTER_ALERT);
        (ip.dst, payload[8], payload.len())
    };
    out.iter().map(read).collect()
}

#[test]
fn test_query_for_groups_draws_one_answer_in_its_time() {
    let mut b = host_b();
    let any = Ipv6Addr::UNSPECIFIED;
    for _ in 0..100 {
        b.handle_frame(ms(5), &query(any, V2, 1)[..]);
    }
    // B's address and its link-local address have one group.
    let answer = reports(&mut b, 5);
    assert_eq!(answer, [(mld::ALL_V2_ROUTERS, 143, 8 + 8 + 20)]);
    assert_eq!((b.counters().rx_mld_queries, b.counters().tx_mld_reports), (100, 1));
    let group = ipv6::solicited_node(B6);
    b.handle_frame(ms(2000), &query(group, V2, 1)[..]);
    assert_eq!(reports(&mut b, 2000), [(mld::ALL_V2_ROUTERS, 143, 8 + 8 + 20)]);
    b.handle_frame(ms(4000), &query(group, &[], 1)[..]);
    assert_eq!(reports(&mut b, 4000), [(group, 131, 8 + 24)]);
}

#[test]
fn test_queries_from_beyond_the_link_and_other_options_are_dropped() {
    let mut b = host_b();
    b.handle_frame(ms(5), &query(Ipv6Addr::UNSPECIFIED, V2, 2)[..]);
    let mut other = query(Ipv6Addr::UNSPECIFIED, V2, 1);
    other[54] = ipv6::TCP;
    b.handle_frame(ms(5), &other[..]);
    let long = [&mld::ROUTER_ALERT[..], &[0; 1000]].concat();
    b.handle_frame(ms(5), &frame6(ROUTER, ipv6::ALL_NODES, ipv6::HOP_BY_HOP, 1, &long)[..]);
    assert_eq!((b.counters().rx_extension_header, b.counters().rx_mld_queries), (3, 0));
}
