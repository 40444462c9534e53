//! ARP as the wire sees it.

use super::*;
use wire_arp::{Arp, Operation};

const C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const MAC_C: [u8; 6] = [2, 0, 0, 0, 0, 0xc];

#[test]
fn test_question_for_us_is_answered() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.handle_frame(Instant::ZERO, &arp_frame(Operation::Request, A, MAC_A, B, [0; 6])[..]);
    let out = frames(&mut b, Instant::ZERO);
    assert_eq!(out.len(), 1);
    let arp = Arp::parse(&out[0][14..]).unwrap();
    assert_eq!(
        arp,
        Arp {
            operation: Operation::Reply,
            sender_mac: MacAddr(MAC_B),
            sender_ip: B,
            target_mac: MacAddr(MAC_A),
            target_ip: A,
        }
    );
    assert_eq!(out[0][..6], MAC_A);
}

#[test]
fn test_probe_is_answered_and_teaches_nothing() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    let probe = arp_frame(Operation::Request, Ipv4Addr::UNSPECIFIED, MAC_A, B, [0; 6]);
    b.handle_frame(Instant::ZERO, &probe[..]);
    assert_eq!((frames(&mut b, Instant::ZERO).len(), b.neighbors.len()), (1, 0));
}

#[test]
fn test_arp_packets_that_teach_nothing_are_counted() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    let t = Instant::ZERO;
    // Unasked answer; gratuitous; question for another; off-link; group address; our address.
    b.handle_frame(t, &arp_frame(Operation::Reply, A, MAC_A, B, MAC_B)[..]);
    b.handle_frame(t, &arp_frame(Operation::Reply, A, MAC_A, A, MacAddr::BROADCAST.0)[..]);
    b.handle_frame(t, &arp_frame(Operation::Request, A, MAC_A, C, [0; 6])[..]);
    assert_eq!(b.counters().arp_ignored, 3);
    let off = arp_frame(Operation::Request, Ipv4Addr::new(192, 0, 2, 1), MAC_A, B, [0; 6]);
    b.handle_frame(t, &off[..]);
    b.handle_frame(t, &arp_frame(Operation::Request, A, [3, 0, 0, 0, 0, 1], B, [0; 6])[..]);
    b.handle_frame(t, &arp_frame(Operation::Request, A, MAC_A, B, [0; 6])[..41]);
    assert_eq!(b.counters().arp_malformed, 3);
    b.handle_frame(t, &arp_frame(Operation::Request, B, MAC_A, B, [0; 6])[..]);
    assert_eq!(b.counters().arp_conflicts, 1);
    assert_eq!((b.neighbors.len(), frames(&mut b, t).len()), (0, 0));
}

/// Returns the station that each of B's frames goes to, and whether the frame is ARP.
fn sent(b: &mut Stack<ByteQueue>, t: Instant) -> Vec<([u8; 6], bool)> {
    frames(b, t).iter().map(|f| (f[..6].try_into().unwrap(), f[12..14] == *b"\x08\x06")).collect()
}

#[test]
fn test_new_station_address_of_a_peer_is_used_when_the_old_one_is_silent() {
    let mut b = listening_b(4);
    let (id, ..) = established(&mut b, ms(10));
    let moved = arp_frame(Operation::Request, A, MAC_C, B, [0; 6]);
    b.handle_frame(ms(20), &moved[..]);
    // B asks the old station, and only it; the new station gets its answer.
    assert_eq!(sent(&mut b, ms(20)), [(MAC_A, true), (MAC_C, true)]);
    // A connection opened meanwhile waits; an existing connection continues as before.
    b.handle_frame(ms(21), &tcp_frame((A, 2), (B, PORT), &syn(1), b"")[..]);
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    assert_eq!(sent(&mut b, ms(21)), [(MAC_A, false)]);
    for t in [120, 220] {
        b.handle_timeouts(ms(t));
    }
    assert_eq!(b.counters().neighbor_changes, 1);
    let out = sent(&mut b, ms(220));
    assert_eq!(out, [(MAC_A, true), (MAC_C, true), (MAC_C, false)], "the last is the SYN-ACK");
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    assert_eq!(sent(&mut b, ms(221)), [(MAC_C, false)]);
}

#[test]
fn test_forged_arp_claims_change_nothing_and_cause_one_request_a_second() {
    let mut b = listening_b(4);
    let (id, ..) = established(&mut b, ms(10));
    let mut asked = 0;
    for t in 0..3000 {
        let forged = arp_frame(Operation::Reply, A, MAC_C, B, MAC_B);
        b.handle_frame(ms(20 + t), &forged[..]);
        b.handle_timeouts(ms(20 + t));
        for (to, arp) in sent(&mut b, ms(20 + t)) {
            assert_eq!((to, arp), (MAC_A, true));
            asked += 1;
            let answer = arp_frame(Operation::Reply, A, MAC_A, B, MAC_B);
            b.handle_frame(ms(20 + t), &answer[..]);
        }
    }
    assert_eq!((asked, b.counters().neighbor_changes), (3, 0));
    assert_eq!(b.counters().arp_change_refused, 3000);
    b.handle_frame(ms(4000), &tcp_frame((A, 2), (B, PORT), &syn(1), b"")[..]);
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    assert_eq!(sent(&mut b, ms(4000)), [(MAC_A, false), (MAC_A, false)]);
}

#[test]
fn test_connection_goes_on_while_its_neighbor_does_not_answer() {
    let mut b = listening_b(4);
    let (id, ..) = established(&mut b, ms(10));
    let mut asked = 0;
    for s in 60..70 {
        b.handle_timeouts(ms(s * 1000));
        asked += frames(&mut b, ms(s * 1000)).iter().filter(|f| f[12..14] == *b"\x08\x06").count();
    }
    assert_eq!((asked, b.counters().neighbor_unconfirmed), (6, 1));
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    assert_eq!(frames(&mut b, ms(70_000)).len(), 1);
}

#[test]
fn test_arp_storm_is_bounded() {
    let mut cfg = config_b();
    cfg.max_neighbors = 16;
    cfg.net = Addressing::new(vec!["10.0.0.2/8".parse().unwrap()], vec![]).unwrap();
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    for i in 0..2000u32 {
        let ip = Ipv4Addr::from_bits(0x0a01_0000 + i);
        b.handle_frame(ms(1), &arp_frame(Operation::Request, ip, MAC_A, B, [0; 6])[..]);
    }
    assert_eq!((b.neighbors.len(), b.counters().neighbor_evictions), (16, 1984));
    assert_eq!(frames(&mut b, ms(1)).len(), 32, "half of the queue");
    assert_eq!((b.counters().questions_limited, b.counters().tx_control_full), (1968, 0));
}
