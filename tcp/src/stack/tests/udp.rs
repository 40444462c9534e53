//! UDP datagrams as the wire sees them.

use super::*;
use crate::stack::udp::{MAX_RECEIVED, MAX_WAITING, MAX_WAITING_EACH, PER_SECOND};
use crate::wire::udp as wire_udp;

const CM: u16 = 4791;

/// UDP from A's port 50000.
fn datagram_to(dst: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut h = [0; 8];
    wire_udp::UdpHeader { src_port: 50000, dst_port: port, len: 8 + payload.len() }.emit(&mut h);
    ip_frame(A, dst, 17, &[&h, payload].concat())
}

fn open_b() -> Stack<ByteQueue> {
    let mut b = Stack::new(config_b());
    introduce_a(&mut b, Instant::ZERO);
    b.bind_udp(CM);
    b
}

fn to(remote: Ipv4Addr, payload: &[u8]) -> TxDatagram {
    let (local, remote) = ((B, 49152).into(), (remote, CM).into());
    TxDatagram { local, remote, payload: payload.to_vec() }
}

fn received(b: &mut Stack<ByteQueue>) -> Vec<RxDatagram> {
    core::iter::from_fn(|| b.poll_datagram()).collect()
}

#[test]
fn test_a_datagram_comes_whole() {
    let mut b = open_b();
    let frame = datagram_to(B, CM, b"a request");
    // Padding of the frame is not part of it.
    b.handle_frame(ms(1), &[&frame[..], &[0xee; 20]].concat()[..]);
    assert!(b.has_datagrams());
    let [d] = &received(&mut b)[..] else { panic!("one") };
    assert_eq!((d.remote, d.local), ((A, 50000).into(), (B, CM).into()));
    assert_eq!((d.payload(), &d.bytes[..]), (&b"a request"[..], &frame[14..]));
    assert!(!b.has_datagrams() && b.counters().rx_datagrams == 1);
    assert_eq!(frames(&mut b, ms(1)).len(), 0, "no answer of the stack's own");
}

/// Ends of the datagram behind what UDP counts are not its.
#[test]
fn test_octets_behind_the_datagram_are_left_out() {
    let mut b = open_b();
    let mut h = [0; 8];
    wire_udp::UdpHeader { src_port: 1, dst_port: CM, len: 10 }.emit(&mut h);
    b.handle_frame(ms(1), &ip_frame(A, B, 17, &[&h[..], b"inout"].concat())[..]);
    assert_eq!(received(&mut b)[0].payload(), b"in");
}

#[test]
fn test_nothing_is_taken_before_the_port_is_open_or_after() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.handle_frame(ms(1), &datagram_to(B, CM, b"x")[..]);
    assert_eq!((b.has_datagrams(), b.counters().rx_unknown_protocol), (false, 1));
    b.bind_udp(CM);
    b.handle_frame(ms(1), &datagram_to(B, CM + 1, b"x")[..]);
    assert_eq!((b.has_datagrams(), b.counters().rx_unknown_protocol), (false, 2));
    b.handle_frame(ms(1), &datagram_to(B, CM, b"x")[..]);
    assert!(b.has_datagrams());
    b.unbind_udp();
    b.handle_frame(ms(1), &datagram_to(B, CM, b"x")[..]);
    assert_eq!((b.has_datagrams(), b.counters().rx_unknown_protocol), (false, 3));
    assert_eq!(b.counters().rx_datagrams, 1);
}

#[test]
fn test_to_or_from_many_is_dropped() {
    let mut b = open_b();
    let all = Ipv4Addr::new(10, 0, 0, 255);
    for dst in [all, Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 9)] {
        b.handle_frame(ms(1), &datagram_to(dst, CM, b"x")[..]);
    }
    let mut group = datagram_to(B, CM, b"x");
    group[..6].fill(0xff);
    b.handle_frame(ms(1), &group[..]);
    assert_eq!(b.counters().rx_other_host, 4);
    for src in [all, B, Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
        let mut h = [0; 8];
        wire_udp::UdpHeader { src_port: 1, dst_port: CM, len: 8 }.emit(&mut h);
        b.handle_frame(ms(1), &ip_frame(src, B, 17, &h)[..]);
    }
    assert_eq!((b.counters().rx_bad_source, received(&mut b).len()), (4, 0));
}

#[test]
fn test_a_checksum_is_verified_where_there_is_one() {
    let mut b = open_b();
    let mut frame = datagram_to(B, CM, b"summed");
    let sum = crate::wire::ipv4::pseudo_header(A, B, 14).plus(Sum::of_numbers(17 - 6));
    let sum = sum.plus(Sum::of(&frame[34..])).complement();
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    b.handle_frame(ms(1), &frame[..]);
    assert_eq!(received(&mut b).len(), 1);
    frame[44] ^= 1;
    b.handle_frame(ms(1), &frame[..]);
    let mut long = datagram_to(B, CM, b"x");
    long[39] += 1;
    b.handle_frame(ms(1), &long[..]);
    let mut short = datagram_to(B, CM, b"x");
    short[39] = 7;
    b.handle_frame(ms(1), &short[..]);
    b.handle_frame(ms(1), &ip_frame(A, B, 17, &[0; 7])[..]);
    assert_eq!((received(&mut b).len(), b.counters().udp_malformed), (0, 4));
}

#[test]
fn test_a_flood_is_bounded_in_number_and_rate() {
    let mut b = open_b();
    let frame = datagram_to(B, CM, &[0; 280]);
    for _ in 0..1000 {
        b.handle_frame(ms(1), &frame[..]);
    }
    assert_eq!(received(&mut b).len(), MAX_RECEIVED);
    assert_eq!(b.counters().udp_limited, 1000 - MAX_RECEIVED as u64);
    // Taken as they come: the burst, and then the rate.
    let mut taken = MAX_RECEIVED;
    for _ in 0..2 * PER_SECOND {
        b.handle_frame(ms(1), &frame[..]);
        taken += received(&mut b).len();
    }
    assert_eq!(taken, PER_SECOND as usize);
    for _ in 0..100 {
        b.handle_frame(ms(2), &frame[..]);
        taken += received(&mut b).len();
    }
    assert_eq!(taken, PER_SECOND as usize + PER_SECOND as usize / 1000);
}

#[test]
fn test_a_datagram_to_a_known_neighbor_goes_at_once() {
    let mut b = Stack::new(StackConfig { dscp: 26, ttl: 33, ..config_b() });
    introduce_a(&mut b, Instant::ZERO);
    b.send_datagram(ms(1), &to(A, b"an answer"));
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][..6], &out[0][6..12]), (1, &MAC_A[..], &MAC_B[..]));
    let ip = Ipv4Header::parse(&out[0][14..], out[0].len() - 14).unwrap();
    assert!(ip.checksum_valid(&out[0][14..]));
    assert_eq!((ip.src, ip.dst, ip.protocol), (B, A, 17));
    assert_eq!((ip.ttl, ip.traffic_class, ip.total_len), (33, 26 << 2, 20 + 8 + 9));
    // What an invariant CRC counts on: no options, identification 0, Don't Fragment.
    assert_eq!((out[0][14], &out[0][18..22]), (0x45, &[0, 0, 0x40, 0][..]));
    let udp = wire_udp::UdpHeader::parse(&out[0][34..], 17).unwrap();
    assert_eq!((udp.src_port, udp.dst_port, udp.len), (49152, CM, 17));
    assert_eq!((&out[0][40..42], &out[0][42..]), (&[0, 0][..], &b"an answer"[..]));
    assert_eq!(b.counters().tx_datagrams, 1);
}

#[test]
fn test_a_datagram_waits_for_its_next_hop() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.send_datagram(ms(1), &to(A, b"one"));
    b.send_datagram(ms(1), &to(A, b"two"));
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][12..14]), (1, &[8, 6][..]), "one question");
    b.handle_frame(ms(5), &arp_frame(wire_arp::Operation::Reply, A, MAC_A, B, MAC_B)[..]);
    let out = frames(&mut b, ms(5));
    assert_eq!(out.iter().map(|f| &f[42..]).collect::<Vec<_>>(), [b"one", b"two"]);
    assert!(out.iter().all(|f| f[..6] == MAC_A));
    b.send_datagram(ms(6), &to(A, b"three"));
    assert_eq!(frames(&mut b, ms(6)).len(), 1);
}

/// Each that waits is a user of its neighbor, and lets go of it whichever way it ends.
#[test]
fn test_neighbors_that_never_answer_are_let_go() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    for _ in 0..3 {
        b.send_datagram(ms(1), &to(A, b"lost"));
    }
    let mut now = ms(1);
    while let Some(at) = b.poll_timeout() {
        now = now.max(at);
        b.handle_timeouts(now);
        while b.poll_transmit(now).is_some() {}
        assert!(now < ms(120_000), "for ever");
    }
    assert_eq!((b.counters().tx_datagrams, b.counters().tx_datagrams_unreachable), (0, 3));
    assert_eq!(b.neighbors.len(), 0);
}

#[test]
fn test_those_that_wait_are_bounded() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    for _ in 0..MAX_WAITING_EACH + 5 {
        b.send_datagram(ms(1), &to(A, b"x"));
    }
    assert_eq!(b.counters().tx_datagrams_full, 5);
    for host in 10..200 {
        b.send_datagram(ms(1), &to(Ipv4Addr::new(10, 0, 0, host), b"x"));
    }
    let waiting = MAX_WAITING - MAX_WAITING_EACH;
    assert_eq!(b.counters().tx_datagrams_full, 5 + 190 - waiting as u64);
    // The one that answers gets its own.
    b.handle_frame(ms(5), &arp_frame(wire_arp::Operation::Reply, A, MAC_A, B, MAC_B)[..]);
    let to_a = |f: &Vec<u8>| f[..6] == MAC_A && f[12..14] == [8, 0];
    assert_eq!(frames(&mut b, ms(5)).iter().filter(|f| to_a(f)).count(), MAX_WAITING_EACH);
    // A port that takes nothing is a bound as well.
    let before = b.counters().tx_datagrams_full;
    for _ in 0..control::MAX_EACH + 7 {
        b.send_datagram(ms(6), &to(A, b"x"));
    }
    assert_eq!(b.counters().tx_datagrams_full, before + 7);
}

#[test]
fn test_what_cannot_be_sent_is_counted() {
    let mut b = open_b();
    let mut refused = |d: TxDatagram| {
        let before = b.counters().tx_datagrams_refused;
        b.send_datagram(ms(1), &d);
        assert_eq!(b.counters().tx_datagrams_refused, before + 1, "{d:?}");
    };
    refused(TxDatagram { local: (A, 1).into(), ..to(A, b"x") });
    refused(TxDatagram { remote: (A, 0).into(), ..to(A, b"x") });
    refused(TxDatagram { remote: "[fd00::1]:4791".parse().unwrap(), ..to(A, b"x") });
    refused(to(B, b"x"));
    refused(to(Ipv4Addr::new(10, 0, 0, 255), b"x"));
    refused(to(Ipv4Addr::new(192, 0, 2, 1), b"x"));
    refused(to(A, &[0; 1473]));
    b.send_datagram(ms(1), &to(A, &[0; 1472]));
    assert_eq!((b.counters().tx_datagrams, frames(&mut b, ms(1)).len()), (1, 1));
}

/// A flood of datagrams in both directions costs a connection none of its segments.
#[test]
fn test_a_connection_goes_on_beside_a_flood() {
    let mut b = listening_b(4);
    b.bind_udp(CM);
    let (id, seq, ack) = established(&mut b, ms(1));
    for i in 0..500_u32 {
        b.handle_frame(ms(2), &datagram_to(B, CM, &[0; 1000])[..]);
        b.send_datagram(ms(2), &to(A, &[0; 1000]));
        let seg = segment(seq + i, ack, Flags::ACK);
        let data = tcp_frame((A, 1000), (B, PORT), &seg, b"d");
        let FrameOutcome::Conn { payload: Some(p), .. } = b.handle_frame(ms(2), &data[..]) else {
            panic!("segment {i}")
        };
        b.accept_payload(ms(2), id, p.pos, p.len);
    }
    let out = frames(&mut b, ms(2));
    let (tcp, udp) = (out.iter().filter(|f| f[23] == 6), out.iter().filter(|f| f[23] == 17));
    assert_eq!((tcp.count(), udp.count()), (1, control::MAX_EACH), "an ACK behind at most so many");
}
