//! UDP datagrams as the wire sees them.

use super::*;
use std::sync::Arc;

use crate::stack::admit::{OF_A_CONNECTION, OF_A_CONNECTION_AT_ONCE, OF_A_SOURCE, STRANGERS};
use crate::stack::udp::{MAX_DATAGRAM, MAX_RECEIVED, MAX_WAITING, MAX_WAITING_EACH};
use crate::wire::udp as wire_udp;
use crate::{DatagramClass, DatagramFault, DatagramFilter};

const CM: u16 = 4791;

/// Returns a UDP datagram from A's port 50000.
fn datagram_to(dst: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut h = [0; 8];
    wire_udp::UdpHeader { src_port: 50000, dst_port: port, len: 8 + payload.len() }.emit(&mut h);
    ip_frame(A, dst, 17, &[&h, payload].concat())
}

fn open_b() -> Stack<ByteQueue> {
    let mut b = Stack::new(config_b());
    introduce_a(&mut b, Instant::ZERO);
    b.bind_udp(CM, Arc::new(()));
    b
}

fn to(remote: Ipv4Addr, payload: &[u8]) -> TxDatagram {
    let (local, remote) = ((B, 49152).into(), (remote, CM).into());
    TxDatagram { local, remote, payload: payload.to_vec(), to_stranger: false }
}

fn received(b: &mut Stack<ByteQueue>) -> Vec<RxDatagram> {
    core::iter::from_fn(|| b.poll_datagram()).collect()
}

#[test]
fn test_datagram_is_received_without_frame_padding() {
    let mut b = open_b();
    let frame = datagram_to(B, CM, b"a request");
    // Padding of the frame is not part of the datagram.
    b.handle_frame(ms(1), &[&frame[..], &[0xee; 20]].concat()[..]);
    assert!(b.has_datagrams());
    let [d] = &received(&mut b)[..] else { panic!("one") };
    assert_eq!((d.remote, d.local), ((A, 50000).into(), (B, CM).into()));
    assert_eq!((d.payload(), &d.bytes[..]), (&b"a request"[..], &frame[14..]));
    assert!(!d.known, "the filter knows no connection");
    assert!(!b.has_datagrams() && b.counters().rx_datagrams == 1);
    assert_eq!(frames(&mut b, ms(1)).len(), 0, "no answer of the stack's own");
}

/// Bytes after the length that UDP states do not belong to the datagram.
#[test]
fn test_bytes_after_the_udp_length_are_ignored() {
    let mut b = open_b();
    let mut h = [0; 8];
    wire_udp::UdpHeader { src_port: 1, dst_port: CM, len: 10 }.emit(&mut h);
    b.handle_frame(ms(1), &ip_frame(A, B, 17, &[&h[..], b"inout"].concat())[..]);
    assert_eq!(received(&mut b)[0].payload(), b"in");
}

#[test]
fn test_datagrams_are_received_only_while_port_is_bound() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.handle_frame(ms(1), &datagram_to(B, CM, b"x")[..]);
    assert_eq!((b.has_datagrams(), b.counters().rx_unknown_protocol), (false, 1));
    b.bind_udp(CM, Arc::new(()));
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
fn test_datagram_to_or_from_multicast_or_broadcast_is_dropped() {
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
fn test_udp_checksum_is_verified_when_present() {
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

/// Classifies each datagram as the first byte of its payload asks; the second byte is a connection.
#[derive(Debug)]
struct Told;

impl DatagramFilter for Told {
    fn classify(&self, packet: &[u8]) -> Result<DatagramClass, DatagramFault> {
        match packet[28] {
            b'k' => Ok(DatagramClass::Known(packet[29].into())),
            b's' => Ok(DatagramClass::Stranger),
            b'c' => Err(DatagramFault::Crc),
            b'e' => Err(DatagramFault::Endpoint),
            b'm' => Err(DatagramFault::Message),
            _ => Err(DatagramFault::Packet),
        }
    }

    fn connections(&self) -> usize {
        2
    }
}

fn told_b() -> Stack<ByteQueue> {
    let mut b = Stack::new(config_b());
    introduce_a(&mut b, Instant::ZERO);
    b.bind_udp(CM, Arc::new(Told));
    b
}

/// Sends `count` datagrams from `src` at `now`. Returns how many the stack takes; the owner takes
/// each at once.
fn flood(b: &mut Stack<ByteQueue>, now: Instant, src: Ipv4Addr, what: &[u8], count: u32) -> u32 {
    let mut h = [0; 8];
    wire_udp::UdpHeader { src_port: 1, dst_port: CM, len: 8 + what.len() }.emit(&mut h);
    let frame = ip_frame(src, B, 17, &[&h, what].concat());
    let taken = (0..count).map(|_| {
        // The worker has nothing else to do.
        b.rest();
        b.handle_frame(now, &frame[..]);
        received(b).len()
    });
    u32::try_from(taken.sum::<usize>()).unwrap()
}

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

#[test]
fn test_strangers_leave_half_of_the_receive_queue_to_connections() {
    let mut b = told_b();
    for n in 0..100 {
        b.handle_frame(ms(1), &datagram_to(B, CM, b"s")[..]);
        assert_eq!(b.counters().rx_datagrams, (n + 1).min(MAX_RECEIVED as u64 / 2));
    }
    assert_eq!(b.counters().udp_full, 100 - MAX_RECEIVED as u64 / 2);
    for n in 0..MAX_RECEIVED {
        b.handle_frame(ms(1), &datagram_to(B, CM, &[b'k', u8::from(n % 2 == 1)])[..]);
    }
    let all = received(&mut b);
    assert_eq!(
        (all.len(), all.iter().filter(|d| d.known).count()),
        (MAX_RECEIVED, MAX_RECEIVED / 2)
    );
}

/// Datagrams that are no messages exhaust no budget.
#[test]
fn test_datagrams_dropped_by_the_filter_use_no_budget() {
    let mut b = told_b();
    for what in [b"c", b"e", b"m", b"?"] {
        assert_eq!(flood(&mut b, ms(1), A, what, 2 * STRANGERS), 0);
    }
    assert_eq!(flood(&mut b, ms(1), A, &[0; MAX_DATAGRAM - 27], 3), 0, "too long for any message");
    let (c, n) = (*b.counters(), u64::from(2 * STRANGERS));
    assert_eq!((c.udp_bad_crc, c.udp_bad_endpoint, c.udp_bad_message), (n, n, n));
    assert_eq!(c.udp_bad_packet, n + 3);
    assert_eq!(flood(&mut b, ms(1), A, b"s", OF_A_SOURCE), OF_A_SOURCE, "all of it is there");
}

#[test]
fn test_longest_datagram_is_received() {
    let mut b = open_b();
    assert_eq!(flood(&mut b, ms(1), A, &[0; MAX_DATAGRAM - 28], 1), 1);
    assert_eq!(flood(&mut b, ms(1), A, &[0; MAX_DATAGRAM - 27], 1), 0);
}

#[test]
fn test_source_has_a_quarter_of_what_strangers_may_send() {
    let mut b = told_b();
    assert_eq!(flood(&mut b, ms(1), host(20), b"s", 3 * STRANGERS), OF_A_SOURCE);
    assert_eq!(b.counters().udp_source_limited, u64::from(3 * STRANGERS - OF_A_SOURCE));
    assert_eq!(flood(&mut b, ms(1), host(30), b"s", 10), 10, "another has its own");
    // A tenth of a second passes.
    assert_eq!(flood(&mut b, ms(101), host(20), b"s", STRANGERS), OF_A_SOURCE / 10);
    // Many sources meet the common budget.
    let taken: u32 = (0..100).map(|n| flood(&mut b, ms(101), host(100 + n), b"s", 200)).sum();
    assert_eq!(taken, STRANGERS - OF_A_SOURCE - OF_A_SOURCE / 10 - 10 + STRANGERS / 10);
    assert!(b.counters().udp_limited > 0);
}

/// Strangers from everywhere cost a connection nothing, and one connection costs another nothing.
#[test]
fn test_connection_has_a_budget_of_its_own() {
    let mut b = told_b();
    for n in 3..200 {
        flood(&mut b, ms(1), host(n), b"s", 200);
    }
    assert_eq!(flood(&mut b, ms(1), host(40), b"s", 1), 0, "nothing is left to strangers");
    assert_eq!(flood(&mut b, ms(1), A, b"k\0", 1000), OF_A_CONNECTION_AT_ONCE);
    assert_eq!(b.counters().udp_conn_limited, u64::from(1000 - OF_A_CONNECTION_AT_ONCE));
    assert_eq!(flood(&mut b, ms(1), A, b"k\x01", 10), 10);
    assert_eq!(flood(&mut b, ms(1001), A, b"k\0", 1000), OF_A_CONNECTION);
    // A message about a connection that the filter does not have counts as a stranger's.
    assert_eq!(flood(&mut b, ms(60_000), A, b"k\x02", 1), 1);
    b.handle_frame(ms(60_000), &datagram_to(B, CM, b"k\x02")[..]);
    assert!(!received(&mut b)[0].known);
}

/// Answers to strangers ask for few next hops, and take neither the room of answers to peers nor
/// the table of neighbors from connections.
#[test]
fn test_answers_to_strangers_leave_room_to_peers() {
    let mut b = told_b();
    let stranger = |n| TxDatagram { to_stranger: true, ..to(host(n), b"REJ") };
    for n in 10..250 {
        b.send_datagram(ms(1), &stranger(n));
    }
    let refused = 240 - MAX_WAITING as u64 / 2;
    assert_eq!(b.counters().tx_datagrams_full, refused);
    assert_eq!(b.neighbors.len(), MAX_WAITING / 2 + 1, "A, and those that are asked for");
    for _ in 0..2 * control::MAX_EACH {
        b.send_datagram(ms(1), &TxDatagram { to_stranger: true, ..to(A, b"REJ") });
    }
    assert_eq!(b.counters().tx_datagrams_full, refused + control::MAX_EACH as u64);
    b.send_datagram(ms(1), &to(A, b"REP"));
    // The stack has forgotten the next hop of this datagram.
    b.send_datagram(ms(1), &to(host(250), b"DREQ"));
    assert_eq!(b.counters().tx_datagrams_full, refused + control::MAX_EACH as u64);
    let out = frames(&mut b, ms(1));
    let udp = |f: &&Vec<u8>| f[12..14] == [8, 0] && f[23] == 17;
    assert_eq!(&out.iter().find(udp).unwrap()[42..], b"REP", "peers come first");
    let question = |f: &Vec<u8>| f[12..14] == [8, 6] && f[38..42] == host(250).octets();
    assert!(out.iter().any(question), "it is asked for");
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
    // An invariant CRC relies on these values: no options, identification 0, Don't Fragment.
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

/// Each waiting datagram is a user of its neighbor, and releases the neighbor however it ends.
#[test]
fn test_neighbors_that_never_answer_are_released() {
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
fn test_waiting_datagrams_are_limited() {
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
    // The neighbor that answers gets its own datagrams.
    b.handle_frame(ms(5), &arp_frame(wire_arp::Operation::Reply, A, MAC_A, B, MAC_B)[..]);
    let to_a = |f: &Vec<u8>| f[..6] == MAC_A && f[12..14] == [8, 0];
    assert_eq!(frames(&mut b, ms(5)).iter().filter(|f| to_a(f)).count(), MAX_WAITING_EACH);
    // A port that takes no frames is a bound too.
    let before = b.counters().tx_datagrams_full;
    for _ in 0..control::MAX_EACH + 7 {
        b.send_datagram(ms(6), &to(A, b"x"));
    }
    assert_eq!(b.counters().tx_datagrams_full, before + 7);
}

#[test]
fn test_refused_outgoing_datagrams_are_counted() {
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
fn test_connection_survives_a_flood_of_datagrams() {
    let mut b = listening_b(4);
    b.bind_udp(CM, Arc::new(()));
    let (id, seq, ack) = established(&mut b, ms(1));
    for i in 0..500_u32 {
        b.handle_frame(ms(2), &datagram_to(B, CM, &[0; 280])[..]);
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
