//! VLANs together with the rest: cookies, initial numbers, paths, TIME-WAIT and windows. The hosts of
//! two VLANs have the same link-local addresses, so only the VLAN tells their connections apart.

use super::links::{PEER, frame6};
use super::*;
use crate::{ConnConfig, TxSegment};

const BOTH: [u16; 2] = [10, 20];
const KIB: u32 = 1024;

/// Returns the addresses of a port with IPv6 in VLANs 10 and 20.
fn two_links(last: u8) -> Addressing {
    let addr = |id: u16| format!("fd00:{id}::{last}/64");
    let own = format!("10.0.0.{last}/24");
    net(&[&own], BOTH.map(|id| vlan_of(id, &[&addr(id)])).into())
}

/// Returns B with a listener in both VLANs.
fn both(cookies: SynCookies) -> Stack<ByteQueue> {
    let mut b = Stack::new(StackConfig { syn_cookies: cookies, ..stack(MAC_B, two_links(2)) });
    b.listen(None, PORT, 2).unwrap();
    b
}

/// Returns our link-local address, which is the same in each VLAN.
fn link_local(s: &Stack<ByteQueue>) -> Ipv6Addr {
    let addrs = BOTH.map(|id| {
        let all = s.config().net.on(vid(id)).addrs().iter().map(|c| c.addr());
        let found = all.into_iter().find_map(|ip| match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        });
        found.unwrap()
    });
    assert_eq!(addrs[0], addrs[1]);
    addrs[0]
}

/// Returns a segment from `PEER:port` to B's link-local address in a VLAN.
fn segment6(b: &Stack<ByteQueue>, (id, port): (u16, u16), seg: &TxSegment, data: &[u8]) -> Vec<u8> {
    let flow = FlowKey::new((PEER.into(), port), (link_local(b).into(), PORT)).unwrap();
    let common =
        template::Common { mac: MacAddr(MAC_A), ttl: 64, dscp: 0, tag: Tag::new(vid(id), 0) };
    let seg = TxSegment { len: u32::try_from(data.len()).unwrap(), ..*seg };
    let sack = crate::SackBlocks::default();
    let off = Offloads { tcp: false, ip: false };
    let t = template::HeaderTemplate::new(common, &flow.on(vid(id)), 0);
    let mut f = t.frame(MacAddr(MAC_B), &seg, &sack, TxBody::None, off);
    f.finish_tcp_checksum(Sum::of(data));
    [&f.header[..], data].concat()
}

/// Returns the VLAN and the segment of each frame that B sends.
fn sent(b: &mut Stack<ByteQueue>, now: Instant) -> Vec<(u16, TcpHeader)> {
    frames(b, now)
        .iter()
        .map(|f| {
            let (tag, f) = split(f);
            (tag.unwrap().vid().get(), TcpHeader::parse(&f[54..], f.len() - 54).unwrap())
        })
        .collect()
}

/// Returns the answer to the SYN of `PEER:port` in a VLAN.
fn ask(b: &mut Stack<ByteQueue>, now: Instant, at: (u16, u16)) -> Segment {
    let frame = segment6(b, at, &syn(100), b"");
    handle(b, now, &frame);
    let out = sent(b, now);
    assert_eq!((out.len(), out[0].0, out[0].1.dst_port), (1, at.0, at.1));
    assert_eq!(out[0].1.segment.flags, Flags::SYN.with(Flags::ACK));
    out[0].1.segment
}

fn ack_of(s: &Segment) -> TxSegment {
    segment(s.ack.0, s.seq.0.wrapping_add(1), Flags::ACK)
}

/// Completes a handshake in a VLAN.
fn complete(b: &mut Stack<ByteQueue>, now: Instant, at: (u16, u16), s: &Segment) -> ConnId {
    let frame = segment6(b, at, &ack_of(s), b"");
    handle(b, now, &frame);
    let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
    id
}

#[test]
fn test_a_cookie_is_good_in_the_vlan_of_its_syn_alone() {
    let mut b = both(SynCookies::Always);
    let answers = BOTH.map(|id| (id, ask(&mut b, ms(1), (id, 1000))));
    assert_ne!(answers[0].1.seq, answers[1].1.seq, "the same SYN in another VLAN");
    assert_eq!(b.connections(), 0);
    for (at, (of, s)) in [(20, answers[0]), (10, answers[1])] {
        let stray = segment6(&b, (at, 1000), &ack_of(&s), b"");
        handle(&mut b, ms(2), &stray);
        let out = sent(&mut b, ms(2));
        assert_eq!((out.len(), out[0].0, out[0].1.segment.flags), (1, at, Flags::RST), "of {of}");
        assert_eq!((events(&mut b), b.connections()), (vec![], 0));
    }
    assert_eq!(b.counters().syn_cookies_failed, 2);
    for (n, (id, s)) in answers.iter().enumerate() {
        let conn = complete(&mut b, ms(3), (*id, 1000), s);
        b.user_mut(conn).unwrap().push(&[7; 100]);
        b.notify_send(conn);
        let out = sent(&mut b, ms(3));
        assert!(!out.is_empty() && out.iter().all(|o| o.0 == *id), "{out:?}");
        assert_eq!(b.connections(), n + 1);
    }
}

/// A flood of SYNs in VLAN 10 draws cookies. No answer leaves in another VLAN or without a tag, and a
/// client in VLAN 20 connects.
#[test]
fn test_a_flood_of_syns_draws_answers_in_its_vlan_alone() {
    let mut b = both(SynCookies::Auto);
    let mut clients = 0;
    for n in 0..3000u16 {
        let now = ms(1 + u64::from(n));
        b.handle_timeouts(now);
        let frame = segment6(&b, (10, 2000 + n), &syn(u32::from(n)), b"");
        handle(&mut b, now, &frame);
        for (id, answer) in sent(&mut b, now) {
            assert_eq!(id, 10);
            assert!((2000..5000).contains(&answer.dst_port), "{answer:?}");
        }
        if n % 100 == 0 {
            let s = ask(&mut b, now, (20, 1000 + n / 100));
            let conn = complete(&mut b, now, (20, 1000 + n / 100), &s);
            b.abort(conn);
            b.release(conn);
            sent(&mut b, now);
            clients += 1;
        }
    }
    assert_eq!((clients, b.counters().accepted), (30, 30));
    assert!(b.counters().syn_cookies_sent > 2500, "{:?}", b.counters());
}

/// Returns a router's report on the link of a VLAN about a frame of B, which has lost its tag.
fn too_big(id: u16, frame: &[u8], mtu: u32) -> Vec<u8> {
    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
    let mut m = vec![2, 0, 0, 0];
    m.extend(mtu.to_be_bytes());
    m.extend(&frame[14..frame.len().min(14 + 1232)]);
    let to = <[u8; 16]>::try_from(&frame[22..38]).unwrap().into();
    let len = u32::try_from(m.len()).unwrap();
    let sum = ipv6::pseudo_header(ipv6::ICMP, ROUTER, to, len).plus(Sum::of(&m)).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    tagged(id, &frame6(ROUTER, to, &m))
}

/// Two connections of the same addresses and ports, begun in the same millisecond, send at the same
/// time. A report about one says nothing about the other, on whichever link it comes.
#[test]
fn test_what_is_known_of_a_path_counts_in_its_vlan() {
    let mut b = both(SynCookies::Off);
    let open = |b: &mut Stack<ByteQueue>, now, port| {
        BOTH.map(|id| {
            let s = ask(b, now, (id, port));
            (complete(b, now, (id, port), &s), s.seq)
        })
    };
    let ids = open(&mut b, ms(1), 1000);
    assert_ne!(ids[0].1, ids[1].1, "numbers differ by VLAN");
    let ids = ids.map(|(id, _)| id);
    let first = ids.map(|id| {
        b.user_mut(id).unwrap().push(&[7; 5000]);
        b.notify_send(id);
        split(&frames(&mut b, ms(1))[0]).1
    });
    let emss = |b: &Stack<ByteQueue>, ids: [ConnId; 2]| ids.map(|id| b.conn(id).unwrap().emss());
    assert_eq!(emss(&b, ids), [1440; 2]);
    // A report about the segment of one VLAN, on the link of the other and on none.
    handle(&mut b, ms(2), &too_big(20, &first[0], 1300));
    handle(&mut b, ms(2), &too_big(10, &first[1], 1300));
    let untagged = split(&too_big(10, &first[0], 1300)).1;
    handle(&mut b, ms(2), &untagged);
    let c = b.counters();
    assert_eq!((c.icmp_unmatched, c.rx_other_host, c.icmp_frag_needed), (2, 1, 0));
    assert_eq!((emss(&b, ids), b.paths.len()), ([1440; 2], 0));
    handle(&mut b, ms(3), &too_big(10, &first[0], 1300));
    assert_eq!((emss(&b, ids), b.paths.len()), ([1240, 1440], 1));
    sent(&mut b, ms(3));
    let later = open(&mut b, ms(4), 1001).map(|(id, _)| id);
    assert_eq!(emss(&b, later), [1240, 1440], "those that follow");
    handle(&mut b, ms(5), &too_big(20, &first[1], 1400));
    assert_eq!((emss(&b, ids), b.paths.len()), ([1240, 1340], 2));
    sent(&mut b, ms(5));
    let later = open(&mut b, ms(6), 1002).map(|(id, _)| id);
    assert_eq!(emss(&b, later), [1240, 1340]);
}

#[test]
fn test_time_wait_in_one_vlan_holds_no_place_in_another() {
    for cookies in [SynCookies::Off, SynCookies::Always] {
        let mut b = both(cookies);
        let s = ask(&mut b, ms(1), (10, 1000));
        let id = complete(&mut b, ms(1), (10, 1000), &s);
        b.close(id);
        assert_eq!(sent(&mut b, ms(1)).len(), 1, "FIN");
        let fin = segment(101, s.seq.0.wrapping_add(2), Flags::ACK.with(Flags::FIN));
        let fin = segment6(&b, (10, 1000), &fin, b"");
        handle(&mut b, ms(1), &fin);
        b.release(id);
        sent(&mut b, ms(1));
        events(&mut b);
        assert_eq!(b.time_wait.len(), 1);
        // The number is not beyond that of the connection that is over, whose VLAN would refuse it.
        let t = ask(&mut b, ms(2), (20, 1000));
        complete(&mut b, ms(2), (20, 1000), &t);
        assert_eq!((b.time_wait.len(), b.counters().time_wait_reused), (1, 0), "{cookies:?}");
        // The repeated FIN reaches the connection that is over, and not the other.
        handle(&mut b, ms(3), &fin);
        let out = sent(&mut b, ms(3));
        assert_eq!((out.len(), out[0].0, out[0].1.segment.flags), (1, 10, Flags::ACK));
        assert_eq!(events(&mut b), []);
    }
}

/// Hosts of the same address in two VLANs are two hosts for the budget of windows too.
#[test]
fn test_a_host_in_another_vlan_gets_its_share_of_windows() {
    let conn =
        ConnConfig { recv_window: 64 * KIB, recv_window_max: 4096 * KIB, ..ConnConfig::default() };
    let a = stack(MAC_A, two_links(1));
    let budget = u64::from(1024 * KIB);
    let b = StackConfig {
        conn,
        recv_window_budget: budget,
        min_backlog: 8,
        ..stack(MAC_B, two_links(2))
    };
    let mut n = Net::new(Host::new(a), Host::new(b), 7);
    n.latency = Duration::from_millis(10);
    n.b.stack.listen(None, PORT, 8).unwrap();
    let to = link_local(&n.b.stack);
    let mut grow = |id: u32| {
        let remote = SocketAddr::V6(SocketAddrV6::new(to, PORT, 0, id << 16 | 1));
        let before = n.b.accepted();
        let a = n.a.stack.connect(n.now, remote, None).unwrap();
        n.run("connect", MINUTE, |n| n.a.says(a, ConnEvent::Connected) && n.b.accepted() != before);
        let b = n.b.accepted().unwrap();
        n.a.send(a, &transfer::pattern(4_000_000, 1));
        n.run("transfer", MINUTE, |n| n.b.got(b).len() == 4_000_000);
        n.run("ACK", MINUTE, |n| n.a.stack.conn(a).unwrap().stats().in_flight == 0);
        n.b.stack.conn(b).unwrap().receive_window() - 64 * KIB
    };
    let greedy: u32 = (0..4).map(|_| grow(10)).sum();
    assert!((256 * KIB..=512 * KIB).contains(&greedy), "{greedy}");
    let other = grow(20);
    assert!(other >= 128 * KIB, "{other} beside {greedy}");
    assert!(n.b.stack.recv_windows_grown() <= budget);
}

/// The routers of one VLAN announce a smaller MTU while connections of both VLANs are probing.
#[test]
fn test_the_mtu_of_one_link_falls_while_connections_of_both_probe() {
    for early in [true, false] {
        let conn = ConnConfig { path_mtu: crate::PathMtu::On, ..ConnConfig::default() };
        let a = StackConfig { conn, ..stack(MAC_A, two_links(1)) };
        let mut n = Net::new(Host::new(a), Host::new(stack(MAC_B, two_links(2))), 3);
        n.b.stack.listen(None, PORT, 8).unwrap();
        let to = link_local(&n.b.stack);
        let ends = BOTH.map(|id| {
            let remote = SocketAddr::V6(SocketAddrV6::new(to, PORT, 0, u32::from(id) << 16 | 1));
            let before = n.b.accepted();
            let a = n.a.stack.connect(n.now, remote, None).unwrap();
            n.run("connect", MINUTE, |n| {
                n.a.says(a, ConnEvent::Connected) && n.b.accepted() != before
            });
            (a, n.b.accepted().unwrap())
        });
        let data = transfer::pattern(400_000, 1);
        ends.iter().for_each(|(a, _)| n.a.send(*a, &data));
        let probes =
            |n: &Net<Host, Host>, at: usize| n.a.stack.conn(ends[at].0).unwrap().probe_len();
        if early {
            n.run("probes", MINUTE, |n| probes(n, 0) > 0);
        } else {
            n.run("sizes", MINUTE, |n| n.a.stack.conn(ends[0].0).unwrap().emss() == 1428);
        }
        let mut net = two_links(1);
        let vlans = BOTH.map(|id| {
            let mut v = vlan_of(id, &[&format!("fd00:{id}::1/64")]);
            v.net = v.net.with_ipv6_mtu((id == 10).then_some(1300));
            v
        });
        net = net.with_vlans(vlans.into()).unwrap();
        n.a.stack.set_addressing(n.now, net);
        assert_eq!(probes(&n, 0), 0, "nothing may raise the size");
        for _ in 0..3 {
            ends.iter().for_each(|(a, _)| n.a.send(*a, &data));
            let got = |n: &Net<Host, Host>, at: usize| n.b.got(ends[at].1).len();
            let all = got(&n, 0).max(got(&n, 1)).div_ceil(data.len()) * data.len();
            n.run("transfer", 10 * MINUTE, |n| got(n, 0) >= all && got(n, 1) >= all);
            let sizes = ends.map(|(a, _)| n.a.stack.conn(a).unwrap().emss());
            assert!(sizes[0] <= 1300 - 72, "{sizes:?}");
            n.now = n.now + Duration::from_secs(601);
        }
        ends.iter().for_each(|(a, _)| n.a.send(*a, &data));
        n.run("ACK", 10 * MINUTE, |n| {
            ends.iter().all(|(a, _)| n.a.stack.conn(*a).unwrap().stats().in_flight == 0)
        });
        let sizes = ends.map(|(a, _)| n.a.stack.conn(a).unwrap().emss());
        assert_eq!(sizes[1], 1428, "the other link is as it was");
    }
}
