//! IPv6: connections, neighbor discovery, ICMPv6, and what the stack refuses.

use core::net::Ipv6Addr;
use core::time::Duration;

use heddle_types::{ListenAt, ListenError};

use super::net::Faults;
use super::transfer::pattern;
use super::*;
use crate::wire::icmpv6::{self, Message};
use crate::wire::{Ipv6Header, ipv6};

mod link;
mod spares;

const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0xa);
const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0xb);
const MINUTES: Duration = Duration::from_secs(600);

fn config6(mac: [u8; 6], ip: Ipv6Addr) -> StackConfig {
    let mut c = config(mac, A);
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(mac[5]));
    let addrs = [Cidr::new(ip.into(), 64), Cidr::new(link_local.into(), 64)];
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into();
    let routes = vec![Route::default_via(router)];
    c.net = Addressing::new(addrs.into_iter().flatten().collect(), routes).unwrap();
    c
}

fn host_b() -> Stack<ByteQueue> {
    let mut b = Stack::new(config6(MAC_B, B6));
    b.listen(None, PORT, 8).unwrap();
    b
}

/// Returns an IPv6 frame from A's station to B's.
fn frame6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut eth = [0; 14];
    let to = if dst.is_multicast() { MacAddr::of_group(dst) } else { MacAddr(MAC_B) };
    EthernetHeader { dst: to, src: MacAddr(MAC_A), ethertype: EtherType::IPV6 }.emit(&mut eth);
    let mut ip = [0; 40];
    Ipv6Header {
        src,
        dst,
        next_header: next,
        hop_limit: hops,
        traffic_class: 0,
        flow_label: 7,
        payload_len: payload.len(),
    }
    .emit(&mut ip);
    [&eth[..], &ip, payload].concat()
}

fn tcp6(src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16), seg: &TxSegment, data: &[u8]) -> Vec<u8> {
    let flow = FlowKey::new((src.0.into(), src.1), (dst.0.into(), dst.1)).unwrap();
    let seg = TxSegment { len: u32::try_from(data.len()).unwrap(), ..*seg };
    let common = template::Common { mac: MacAddr(MAC_A), ttl: 64, dscp: 0, tag: Tag(0) };
    let t = template::HeaderTemplate::new(common, &flow, 9);
    let off = Offloads { tcp: false, ip: false };
    let mut f = t.frame(MacAddr(MAC_B), &seg, &crate::SackBlocks::default(), TxBody::None, off);
    f.finish_tcp_checksum(Sum::of(data));
    [&f.header[..], data].concat()
}

/// Returns the header and the payload of an IPv6 frame.
fn read6(frame: &[u8]) -> (Ipv6Header, &[u8]) {
    assert_eq!(frame[12..14], [0x86, 0xdd]);
    let ip = Ipv6Header::parse(&frame[14..], frame.len() - 14).unwrap();
    (ip, &frame[54..54 + ip.payload_len])
}

fn icmp_of(frame: &[u8]) -> (Ipv6Header, Message<'_>) {
    let (ip, payload) = read6(frame);
    assert_eq!(ip.next_header, ipv6::ICMP);
    (ip, Message::parse(payload, ip.src, ip.dst).expect("a right message"))
}

/// Makes A ask for B, so that B knows A.
fn introduce(b: &mut Stack<ByteQueue>, now: Instant) {
    let group = ipv6::solicited_node(B6);
    let question = icmpv6::neighbor_solicit(A6, group, B6, MacAddr(MAC_A));
    b.handle_frame(now, &frame6(A6, group, ipv6::ICMP, 255, &question)[..]);
    while b.poll_transmit(now).is_some() {}
}

/// Completes the handshake of a connection from A:1000 to B. Returns its key, and the next sequence
/// numbers of A and of B.
fn established6(b: &mut Stack<ByteQueue>, now: Instant) -> (ConnId, u32, u32) {
    introduce(b, now);
    b.handle_frame(now, &tcp6((A6, 1000), (B6, PORT), &syn(100), b"")[..]);
    let answer = frames(b, now);
    let (ip, tcp) = read6(&answer[0]);
    assert_eq!((ip.src, ip.dst), (B6, A6));
    assert_ne!(ip.flow_label, 0);
    let seg = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
    assert_eq!((seg.flags, seg.ack.0), (Flags::SYN.with(Flags::ACK), 101));
    assert_eq!(seg.mss, Some(1440), "an IPv6 header takes 20 bytes more");
    let next = seg.seq.0.wrapping_add(1);
    let ack = segment(101, next, Flags::ACK);
    b.handle_frame(now, &tcp6((A6, 1000), (B6, PORT), &ack, b"")[..]);
    let [(id, StackEvent::Accepted { local, remote })] = events(b)[..] else { panic!("accepted") };
    assert_eq!((local, remote), ((B6, PORT).into(), (A6, 1000).into()));
    (id, 101, next)
}

#[test]
fn test_connections_over_ipv6_carry_everything_whatever_is_lost() {
    for (seed, loss) in [(1, 0.0), (2, 0.02), (3, 0.1)] {
        let (a, b) = (Host::new(config6(MAC_A, A6)), Host::new(config6(MAC_B, B6)));
        let mut n = Net::new(a, b, seed);
        n.faults = Faults { loss, reorder: loss, duplicate: loss };
        n.b.stack.listen(None, PORT, 8).unwrap();
        let a = n.a.stack.connect(n.now, (B6, PORT).into(), None).unwrap();
        n.run("connect", MINUTES, |n| n.a.says(a, ConnEvent::Connected));
        n.run("accept", MINUTES, |n| n.b.accepted().is_some());
        let b = n.b.accepted().unwrap();
        assert_eq!(n.a.stack.local_addr(a).unwrap().ip(), IpAddr::V6(A6));
        let (to_b, to_a) = (pattern(200_000, 1), pattern(200_000, 2));
        n.a.send(a, &to_b);
        n.b.send(b, &to_a);
        n.run("transfer", MINUTES, |n| n.b.got(b).len() == 200_000 && n.a.got(a).len() == 200_000);
        assert!(n.b.got(b) == to_b && n.a.got(a) == to_a, "seed {seed}: wrong bytes");
        n.a.stack.close(a);
        n.b.stack.close(b);
        n.run("close", MINUTES, |n| {
            n.a.says(a, ConnEvent::Closed) && n.b.says(b, ConnEvent::Closed)
        });
    }
}

/// Returns a stack that has an address of each family.
fn of_both_families() -> Stack<ByteQueue> {
    let mut c = config6(MAC_B, B6);
    let mut addrs = c.net.addrs().to_vec();
    addrs.push(Cidr::new(B.into(), 24).unwrap());
    c.net = Addressing::new(addrs, c.net.routes().to_vec()).unwrap();
    let mut b = Stack::new(c);
    introduce_a(&mut b, ms(0));
    b
}

#[test]
fn test_a_listener_at_all_addresses_serves_both_families() {
    let mut b = of_both_families();
    b.listen(None, PORT, 8).unwrap();
    let (four, ..) = established(&mut b, ms(1));
    let (six, ..) = established6(&mut b, ms(2));
    assert_ne!(four, six);
    assert_eq!(b.remote_addr(four), Some((A, 1000).into()));
    assert_eq!(b.remote_addr(six), Some((A6, 1000).into()));
}

#[test]
fn test_a_listener_at_all_addresses_of_ipv4_refuses_ipv6() {
    let mut b = of_both_families();
    b.listen(ListenAt::Ipv4, PORT, 8).unwrap();
    introduce(&mut b, ms(1));
    b.handle_frame(ms(1), &tcp6((A6, 999), (B6, PORT), &syn(100), b"")[..]);
    let refusal = frames(&mut b, ms(1));
    let (_, tcp) = read6(&refusal[0]);
    let seg = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
    assert_eq!(seg.flags, Flags::RST.with(Flags::ACK));
    assert_eq!(b.listen(ListenAt::All, PORT, 8), Err(ListenError::InUse));
    b.listen(ListenAt::Ipv6, PORT, 8).unwrap();
    established(&mut b, ms(2));
    established6(&mut b, ms(3));
}

/// Settings that change while the stack runs hold for connections of both families.
#[test]
fn test_changed_keepalive_holds_for_new_connections_over_ipv6() {
    let mut b = host_b();
    let keepalive =
        crate::Keepalive { idle: Duration::from_secs(5), ..crate::Keepalive::default() };
    b.set_keepalive(ms(0), Some(keepalive));
    let (id, ..) = established6(&mut b, ms(1));
    b.handle_timeouts(ms(5002));
    let probe = frames(&mut b, ms(5002));
    assert_eq!(probe.len(), 1, "{:?}", b.conn(id).map(|c| c.poll_timeout()));
    assert_eq!(read6(&probe[0]).0.next_header, ipv6::TCP);
}

#[test]
fn test_a_question_goes_to_the_group_of_the_neighbor_and_its_answer_releases_the_syn() {
    let mut a: Stack<ByteQueue> = Stack::new(config6(MAC_A, A6));
    let id = a.connect(ms(0), (B6, PORT).into(), None).unwrap();
    let out = frames(&mut a, ms(0));
    let [question] = &out[..] else { panic!("{} frames", out.len()) };
    let (ip, message) = icmp_of(question);
    let group = ipv6::solicited_node(B6);
    assert_eq!((ip.src, ip.dst, ip.hop_limit), (A6, group, 255));
    assert_eq!(question[..6], MacAddr::of_group(group).0);
    let want = Message::NeighborSolicit { target: B6, source: Some(MacAddr(MAC_A)) };
    assert_eq!(message, want);
    // No answer comes for a second: A asks again.
    a.handle_timeouts(ms(1000));
    assert_eq!(frames(&mut a, ms(1000)).len(), 1);
    let answer = icmpv6::neighbor_advert(B6, A6, B6, MacAddr(MAC_B), true);
    let mut far = frame6(B6, A6, ipv6::ICMP, 254, &answer);
    far[..6].copy_from_slice(&MAC_A);
    far[6..12].copy_from_slice(&MAC_B);
    a.handle_frame(ms(1001), &far[..]);
    assert_eq!(frames(&mut a, ms(1001)).len(), 0, "from beyond the link");
    assert_eq!(a.counters().nd_malformed, 1);
    far[14 + 7] = 255;
    a.handle_frame(ms(1002), &far[..]);
    let syn = frames(&mut a, ms(1002));
    assert_eq!((syn.len(), &syn[0][..6]), (1, &MAC_B[..]));
    assert_eq!(read6(&syn[0]).0.next_header, ipv6::TCP);
    assert!(a.conn(id).is_some());
}

#[test]
fn test_an_unknown_neighbor_ends_the_connection_after_three_questions() {
    let mut a: Stack<ByteQueue> = Stack::new(config6(MAC_A, A6));
    let id = a.connect(ms(0), (B6, PORT).into(), None).unwrap();
    let mut asked = frames(&mut a, ms(0)).len();
    for s in 1..=3 {
        a.handle_timeouts(ms(1000 * s));
        asked += frames(&mut a, ms(1000 * s)).len();
    }
    assert_eq!((asked, a.counters().tx_neighbor_solicits), (3, 3));
    assert_eq!(events(&mut a), [(id, StackEvent::Unreachable)]);
}

#[test]
fn test_hosts_beyond_the_link_are_reached_through_the_router_from_a_global_address() {
    let mut a: Stack<ByteQueue> = Stack::new(config6(MAC_A, A6));
    let far = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1);
    let id = a.connect(ms(0), (far, PORT).into(), None).unwrap();
    assert_eq!(a.local_addr(id).unwrap().ip(), IpAddr::V6(A6), "not the link-local one");
    let out = frames(&mut a, ms(0));
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let (_, message) = icmp_of(&out[0]);
    let want = Message::NeighborSolicit { target: router, source: Some(MacAddr(MAC_A)) };
    assert_eq!(message, want);
    let near = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
    let id = a.connect(ms(1), (near, PORT).into(), None).unwrap();
    let IpAddr::V6(local) = a.local_addr(id).unwrap().ip() else { panic!() };
    assert!(local.is_unicast_link_local());
}

#[test]
fn test_questions_for_our_address_are_answered_and_introduce_their_sender() {
    let mut b = host_b();
    for (dst, known) in [(ipv6::solicited_node(B6), false), (B6, true)] {
        let question = icmpv6::neighbor_solicit(A6, dst, B6, MacAddr(MAC_A));
        assert_eq!(
            b.neighbors.known(neighbor::LinkAddr::new(Vid::NONE, A6.into())).is_some(),
            known
        );
        b.handle_frame(ms(1), &frame6(A6, dst, ipv6::ICMP, 255, &question)[..]);
        let out = frames(&mut b, ms(1));
        let (ip, message) = icmp_of(&out[0]);
        assert_eq!((ip.src, ip.dst, &out[0][..6]), (B6, A6, &MAC_A[..]));
        let want = Message::NeighborAdvert {
            target: B6,
            station: Some(MacAddr(MAC_B)),
            router: false,
            solicited: true,
            overrides: true,
        };
        assert_eq!(message, want);
    }
    assert_eq!(
        b.neighbors.known(neighbor::LinkAddr::new(Vid::NONE, A6.into())),
        Some(MacAddr(MAC_A))
    );
    assert_eq!(b.counters().tx_neighbor_adverts, 2);
}

#[test]
fn test_a_host_that_probes_our_address_is_told_with_all_others() {
    let mut b = host_b();
    let (none, group) = (Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(B6));
    let probe = icmpv6::neighbor_solicit(none, group, B6, MacAddr(MAC_A));
    b.handle_frame(ms(1), &frame6(none, group, ipv6::ICMP, 255, &probe)[..]);
    let out = frames(&mut b, ms(1));
    let (ip, message) = icmp_of(&out[0]);
    assert_eq!((ip.dst, &out[0][..2]), (ipv6::ALL_NODES, &[0x33, 0x33][..]));
    assert!(matches!(message, Message::NeighborAdvert { solicited: false, overrides: true, .. }));
    // A probe that tells a station, or comes to the address itself, is no probe.
    let told = icmpv6::neighbor_solicit(A6, group, B6, MacAddr(MAC_A));
    let mut forged = told.clone();
    forged[2..4].fill(0);
    let len = u32::try_from(forged.len()).unwrap();
    let sum = ipv6::pseudo_header(ipv6::ICMP, none, group, len).plus(Sum::of(&forged));
    forged[2..4].copy_from_slice(&sum.complement().to_be_bytes());
    b.handle_frame(ms(2), &frame6(none, group, ipv6::ICMP, 255, &forged)[..]);
    let direct = icmpv6::neighbor_solicit(none, B6, B6, MacAddr(MAC_A));
    b.handle_frame(ms(2), &frame6(none, B6, ipv6::ICMP, 255, &direct)[..]);
    assert_eq!((b.counters().nd_malformed, frames(&mut b, ms(2)).len()), (2, 0));
}

#[test]
fn test_unsolicited_advertisements_teach_nothing_and_conflicts_are_counted() {
    let mut b = host_b();
    let all = ipv6::ALL_NODES;
    let unasked = icmpv6::neighbor_advert(A6, all, A6, MacAddr(MAC_A), false);
    b.handle_frame(ms(1), &frame6(A6, all, ipv6::ICMP, 255, &unasked)[..]);
    let answer = icmpv6::neighbor_advert(A6, B6, A6, MacAddr(MAC_A), true);
    b.handle_frame(ms(1), &frame6(A6, B6, ipv6::ICMP, 255, &answer)[..]);
    assert_eq!((b.neighbors.len(), b.counters().nd_ignored), (0, 2));
    let ours = icmpv6::neighbor_advert(B6, all, B6, MacAddr(MAC_A), false);
    b.handle_frame(ms(2), &frame6(B6, all, ipv6::ICMP, 255, &ours)[..]);
    assert_eq!(b.counters().nd_conflicts, 1);
    let solicited_group = icmpv6::neighbor_advert(A6, all, A6, MacAddr(MAC_A), true);
    b.handle_frame(ms(3), &frame6(A6, all, ipv6::ICMP, 255, &solicited_group)[..]);
    assert_eq!(b.counters().nd_malformed, 1, "an answer to many");
}

#[test]
fn test_a_claim_of_another_station_is_tested_first() {
    let mut b = host_b();
    let (id, ..) = established6(&mut b, ms(1));
    let thief = MacAddr([2, 0, 0, 0, 0, 0xee]);
    let claim = icmpv6::neighbor_advert(A6, B6, A6, thief, true);
    b.handle_frame(ms(2), &frame6(A6, B6, ipv6::ICMP, 255, &claim)[..]);
    let out = frames(&mut b, ms(2));
    let (ip, message) = icmp_of(&out[0]);
    assert_eq!((ip.dst, &out[0][..6]), (A6, &MAC_A[..]), "the known station is asked");
    assert_eq!(message, Message::NeighborSolicit { target: A6, source: Some(MacAddr(MAC_B)) });
    let defence = icmpv6::neighbor_advert(A6, B6, A6, MacAddr(MAC_A), true);
    b.handle_frame(ms(3), &frame6(A6, B6, ipv6::ICMP, 255, &defence)[..]);
    assert_eq!(b.counters().arp_change_refused, 1);
    b.user_mut(id).unwrap().push(b"text");
    b.notify_send(id);
    assert_eq!(frames(&mut b, ms(4))[0][..6], MAC_A);
}

#[test]
fn test_addresses_are_announced_and_probed() {
    let mut b = host_b();
    b.announce();
    b.handle_timeouts(ms(0));
    let out = frames(&mut b, ms(0));
    let (ip, report) = read6(&out[0]);
    assert_eq!((ip.next_header, report[8]), (ipv6::HOP_BY_HOP, 143), "the group, to switches");
    let (ip, probe) = icmp_of(&out[1]);
    assert_eq!((ip.src, ip.dst), (Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(B6)));
    assert_eq!(probe, Message::NeighborSolicit { target: B6, source: None });
    let (ip, told) = icmp_of(&out[2]);
    assert_eq!((ip.src, ip.dst, ip.hop_limit), (B6, ipv6::ALL_NODES, 255));
    let host =
        matches!(told, Message::NeighborAdvert { target: B6, router: false, solicited: false, .. });
    assert!(host, "{told:?}");
}

#[test]
fn test_echo_is_answered_within_a_budget_and_never_to_many() {
    let mut b = host_b();
    let request = |dst| {
        let mut m = icmpv6::echo_reply(A6, dst, 7, 9, b"data");
        m[0] = icmpv6::ECHO_REQUEST;
        m[2..4].fill(0);
        let len = u32::try_from(m.len()).unwrap();
        let sum = ipv6::pseudo_header(ipv6::ICMP, A6, dst, len).plus(Sum::of(&m)).complement();
        m[2..4].copy_from_slice(&sum.to_be_bytes());
        frame6(A6, dst, ipv6::ICMP, 64, &m)
    };
    b.handle_frame(ms(1), &request(B6)[..]);
    let out = frames(&mut b, ms(1));
    let (ip, payload) = read6(&out[0]);
    assert_eq!((ip.src, ip.dst), (B6, A6));
    assert_eq!(payload, icmpv6::echo_reply(B6, A6, 7, 9, b"data"));
    b.handle_frame(ms(1), &request(ipv6::ALL_NODES)[..]);
    assert_eq!((frames(&mut b, ms(1)).len(), b.counters().rx_other_host), (0, 1));
    for _ in 0..500 {
        b.handle_frame(ms(1), &request(B6)[..]);
        let _ = b.poll_transmit(ms(1));
    }
    assert!(b.counters().icmp_echo_limited > 300);
}

/// Returns the report of a router with a next link of `mtu` bytes about a frame of B's.
fn too_big(frame: &[u8], mtu: u32) -> Vec<u8> {
    let mut m = vec![2, 0, 0, 0];
    m.extend(mtu.to_be_bytes());
    m.extend(&frame[14..14 + 48]);
    let router = Ipv6Addr::new(0x2001, 0xdb8, 9, 9, 0, 0, 0, 1);
    let len = u32::try_from(m.len()).unwrap();
    let sum = ipv6::pseudo_header(ipv6::ICMP, router, B6, len).plus(Sum::of(&m)).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    frame6(router, B6, ipv6::ICMP, 60, &m)
}

#[test]
fn test_packet_too_big_lowers_the_segment_size_to_the_least_mtu_at_most() {
    for (mtu, emss) in [(1400, 1340), (1280, 1220), (600, 1220), (0, 1220), (1500, 1440)] {
        let mut b = host_b();
        let (id, ..) = established6(&mut b, ms(1));
        b.user_mut(id).unwrap().push(&vec![7; 4000]);
        b.notify_send(id);
        let first = frames(&mut b, ms(1))[0].clone();
        b.handle_frame(ms(2), &too_big(&first, mtu)[..]);
        assert_eq!(b.conn(id).unwrap().emss(), emss, "MTU {mtu}");
        let mut other = first.clone();
        other[54 + 4..54 + 8].copy_from_slice(&[0; 4]);
        b.handle_frame(ms(3), &too_big(&other, 1280)[..]);
        assert_eq!(b.counters().icmp_unmatched, 1, "no such segment is in flight");
    }
}

#[test]
fn test_unreachable_and_time_exceeded_are_soft_errors() {
    let mut b = host_b();
    let (id, ..) = established6(&mut b, ms(1));
    b.user_mut(id).unwrap().push(&[7; 100]);
    b.notify_send(id);
    let first = frames(&mut b, ms(1))[0].clone();
    for (kind, want) in [(1, IcmpError::Unreachable(3)), (3, IcmpError::TimeExceeded)] {
        let mut f = too_big(&first, 0);
        (f[54], f[55]) = (kind, 3);
        f[56..58].fill(0);
        let (ip, payload) = read6(&f);
        let len = u32::try_from(payload.len()).unwrap();
        let sum = ipv6::pseudo_header(ipv6::ICMP, ip.src, ip.dst, len).plus(Sum::of(payload));
        f[56..58].copy_from_slice(&sum.complement().to_be_bytes());
        b.handle_frame(ms(2), &f[..]);
        assert_eq!(events(&mut b), [(id, StackEvent::SoftError(want))]);
    }
}

#[test]
fn test_extension_headers_and_fragments_are_dropped() {
    let mut b = host_b();
    introduce(&mut b, ms(0));
    for next in [0, 43, 50, 51, 60, 135, 139, 140] {
        b.handle_frame(ms(1), &frame6(A6, B6, next, 64, &[6, 0, 0, 0, 0, 0, 0, 0])[..]);
    }
    b.handle_frame(ms(1), &frame6(A6, B6, 44, 64, &[6, 0, 0, 0, 0, 0, 0, 0])[..]);
    b.handle_frame(ms(1), &frame6(A6, B6, 59, 64, &[])[..]);
    let c = b.counters();
    assert_eq!((c.rx_extension_header, c.rx_fragments, c.rx_unknown_protocol), (8, 1, 1));
    assert_eq!(frames(&mut b, ms(1)).len(), 0);
}

#[test]
fn test_segments_from_no_single_host_open_nothing() {
    let mut b = host_b();
    introduce(&mut b, ms(0));
    let mapped = A.to_ipv6_mapped();
    let bad = [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, ipv6::ALL_NODES, mapped, B6];
    for src in bad {
        b.handle_frame(ms(1), &tcp6((src, 1000), (B6, PORT), &syn(1), b"")[..]);
    }
    assert_eq!(b.counters().rx_bad_source, bad.len() as u64);
    let elsewhere = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0xc);
    b.handle_frame(ms(1), &tcp6((A6, 1000), (elsewhere, PORT), &syn(1), b"")[..]);
    assert_eq!((b.counters().rx_other_host, b.connections()), (1, 0));
    let mut broken = tcp6((A6, 1000), (B6, PORT), &syn(1), b"");
    broken[54 + 16] ^= 1;
    b.handle_frame(ms(1), &broken[..]);
    assert_eq!((b.counters().rx_bad_tcp_checksum, b.connections()), (1, 0));
}

#[test]
fn test_all_addresses_of_a_network_beyond_the_link_count_as_one_peer() {
    let mut c = config6(MAC_B, B6);
    c.peer_conns = PeerLimit::AtMost(3);
    let mut b: Stack<ByteQueue> = Stack::new(c);
    b.listen(None, PORT, 32).unwrap();
    let from = |n: u16, beyond: bool| {
        let net = if beyond { 0xff } else { 1 };
        let src = Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 9, n);
        tcp6((src, 1000), (B6, PORT), &syn(1), b"")
    };
    for n in 0..8 {
        b.handle_frame(ms(1), &from(n, true)[..]);
    }
    assert_eq!((b.connections(), b.counters().peer_conns_limited), (3, 5));
    for n in 0..8 {
        b.handle_frame(ms(2), &from(n, false)[..]);
    }
    assert_eq!(b.connections(), 11, "neighbors are hosts of their own");
    // The network becomes a link of ours: its hosts count for themselves from now on.
    let net = b.cfg.net.clone();
    let mut addrs = net.addrs().to_vec();
    addrs.push(Cidr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0xff, 0, 0, 0, 1).into(), 64).unwrap());
    b.set_addressing(ms(3), Addressing::new(addrs, net.routes().to_vec()).unwrap());
    b.handle_frame(ms(4), &from(9, true)[..]);
    assert_eq!((b.connections(), b.counters().peer_conns_limited), (12, 5));
    b.set_addressing(ms(5), net);
    b.handle_frame(ms(6), &from(10, true)[..]);
    assert_eq!(b.counters().peer_conns_limited, 6, "and as one again");
}

#[test]
fn test_frames_that_continue_each_other_are_one_segment_over_ipv6_too() {
    let mut b = host_b();
    introduce(&mut b, ms(0));
    let ts = |val| Some(crate::Timestamps { val, ecr: 0 });
    let open = TxSegment { timestamps: ts(1), ..syn(100) };
    b.handle_frame(ms(1), &tcp6((A6, 1000), (B6, PORT), &open, b"")[..]);
    let answer = frames(&mut b, ms(1));
    let (_, tcp) = read6(&answer[0]);
    let theirs = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
    let ecr = theirs.timestamps.unwrap().val;
    let ack = theirs.seq.0.wrapping_add(1);
    let stamp = Some(crate::Timestamps { val: 2, ecr });
    let data = |seq, bytes: &[u8]| {
        let seg = TxSegment { timestamps: stamp, ..segment(seq, ack, Flags::ACK) };
        tcp6((A6, 1000), (B6, PORT), &seg, bytes)
    };
    b.handle_frame(ms(1), &data(101, b"")[..]);
    assert_eq!(events(&mut b).len(), 1);
    let burst = [data(101, &[1; 100]), data(201, &[2; 100]), data(301, &[3; 50])];
    let mut frames = burst.iter().map(|f| Some(&f[..])).collect::<Vec<_>>();
    let run = b.handle_frames(ms(2), &mut frames);
    assert_eq!((run.frames, run.last, b.counters().rx_merged), (3, 50, 2));
    let FrameOutcome::Conn { payload: Some(p), .. } = run.outcome else { panic!("{run:?}") };
    assert_eq!((p.frame_off, p.len), (86, 100));
}

/// RFC 3168 in the headers: the SYN-ACK agrees, data have ECT(0), a mark is echoed, and marked frames
/// make no run with others.
#[test]
fn test_marks_of_frames_are_echoed_and_split_runs() {
    for (marked, runs) in [(0, vec![3]), (1, vec![1, 1, 1]), (2, vec![2, 1])] {
        let mut b = host_b();
        introduce(&mut b, ms(0));
        let both = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
        let ts = |val| Some(crate::Timestamps { val, ecr: 0 });
        let open = TxSegment { timestamps: ts(1), flags: both, ..syn(100) };
        b.handle_frame(ms(1), &tcp6((A6, 1000), (B6, PORT), &open, b"")[..]);
        let answer = frames(&mut b, ms(1));
        let (ip, tcp) = read6(&answer[0]);
        let theirs = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
        assert_eq!(theirs.flags, Flags::SYN.with(Flags::ACK).with(Flags::ECE));
        assert_eq!(ip.traffic_class & 3, 0, "no SYN is capable of ECN");
        let stamp = crate::Timestamps { val: 2, ecr: theirs.timestamps.unwrap().val };
        let ack = theirs.seq.0.wrapping_add(1);
        let data = |seq, bytes: &[u8], ce: bool| {
            let seg = TxSegment { timestamps: Some(stamp), ..segment(seq, ack, Flags::ACK) };
            let mut f = tcp6((A6, 1000), (B6, PORT), &seg, bytes);
            f[15] |= if ce { 0x30 } else { 0 };
            f
        };
        b.handle_frame(ms(1), &data(101, b"", false)[..]);
        let id = events(&mut b)[0].0;
        let burst = [101, 201, 301]
            .map(|seq| data(seq, &[1; 100], marked > 0 && seq == 101 + 100 * marked));
        let mut left = burst.iter().map(|f| Some(&f[..])).collect::<Vec<_>>();
        let mut found = Vec::new();
        while !left.is_empty() {
            let run = b.handle_frames(ms(2), &mut left);
            let FrameOutcome::Conn { payload: Some(p), .. } = run.outcome else {
                panic!("{run:?}")
            };
            let len = p.len * (run.frames - 1) + run.last;
            b.accept_payload(ms(2), id, p.pos, len);
            found.push(run.frames);
            left.drain(..run.frames as usize);
        }
        assert_eq!(found, runs, "{marked}");
        b.user_mut(id).unwrap().push(b"data");
        b.notify_send(id);
        let sent = frames(&mut b, ms(2));
        let (ip, tcp) = read6(sent.last().unwrap());
        let seg = TcpHeader::parse(tcp, tcp.len()).unwrap().segment;
        assert_eq!((seg.len, ip.traffic_class & 3), (4, 2), "ECT(0)");
        assert_eq!(seg.flags.has(Flags::ECE), marked > 0);
    }
}

#[test]
fn test_connection_over_ipv6_gets_out_of_a_black_hole() {
    for mtu in [1280, 1400] {
        let (a, b) = (Host::new(config6(MAC_A, A6)), Host::new(config6(MAC_B, B6)));
        let mut n = Net::new(a, b, 1);
        (n.path_mtu, n.silent) = (Some(mtu), true);
        n.b.stack.listen(None, PORT, 8).unwrap();
        let a = n.a.stack.connect(n.now, (B6, PORT).into(), None).unwrap();
        n.run("accept", MINUTES, |n| n.b.accepted().is_some());
        let b = n.b.accepted().unwrap();
        let data = pattern(1_000_000, 1);
        n.a.send(a, &data);
        n.run("transfer", MINUTES, |n| n.b.got(b).len() == data.len());
        assert!(n.b.got(b) == data);
        let (emss, most) = (n.a.stack.conn(a).unwrap().emss(), u32::from(mtu) - 72);
        assert!(emss <= most && most - emss <= 16, "{mtu}: {emss}");
    }
}
