//! Segments of no connection, and the opening of passive connections.

use heddle_types::ConnectError;

use super::*;

fn one_answer(seg: &TxSegment, data: &[u8]) -> Option<Segment> {
    let mut b = listening_b(4);
    b.handle_frame(ms(1), &tcp_frame((A, 1000), (B, 9), seg, data)[..]);
    assert_eq!(b.connections(), 0);
    let out = frames(&mut b, ms(1));
    assert!(out.len() <= 1);
    out.first().map(|f| {
        let (h, s) = read_tcp(f);
        assert_eq!((h.src_port, h.dst_port, &f[..6]), (9, 1000, &MAC_A[..]));
        s
    })
}

#[test]
fn test_closed_port_answers_with_an_acceptable_reset() {
    let s = one_answer(&segment(500, 7000, Flags::ACK), b"abc").unwrap();
    assert_eq!((s.seq.0, s.flags), (7000, Flags::RST));
    let s = one_answer(&syn(500), b"").unwrap();
    assert_eq!((s.seq.0, s.ack.0, s.flags), (0, 501, Flags::RST.with(Flags::ACK)));
    let s = one_answer(&segment(u32::MAX, 0, Flags::FIN), b"abc").unwrap();
    assert_eq!((s.seq.0, s.ack.0, s.flags), (0, 3, Flags::RST.with(Flags::ACK)));
}

#[test]
fn test_closed_does_not_answer_a_reset() {
    assert_eq!(one_answer(&segment(1, 2, Flags::RST), b""), None);
    assert_eq!(one_answer(&segment(1, 2, Flags::RST.with(Flags::ACK)), b"data"), None);
}

#[test]
fn test_resets_are_rate_limited() {
    let mut b = listening_b(4);
    let mut n = 0;
    for port in 1..4000 {
        let now = Instant::from_nanos(1_000_000 + u64::from(port));
        let src = Ipv4Addr::new(10, 0, 0, 3 + u8::try_from(port % 16).unwrap());
        b.rest();
        b.handle_frame(now, &tcp_frame((src, port), (B, 9), &syn(1), b"")[..]);
        n += frames(&mut b, now).len();
    }
    assert_eq!((n, b.counters().tx_resets, b.counters().tx_resets_limited), (2000, 2000, 1999));
}

#[test]
fn test_listener_ignores_segments_that_open_no_connection() {
    let mut b = listening_b(4);
    let mut put = |flags| {
        b.handle_frame(ms(1), &tcp_frame((A, 1000), (B, PORT), &segment(5, 9, flags), b"")[..]);
        (b.connections(), frames(&mut b, ms(1)))
    };
    assert_eq!(put(Flags::RST), (0, vec![]));
    assert_eq!(put(Flags::FIN), (0, vec![]));
    assert_eq!(put(Flags(0)), (0, vec![]));
    assert_eq!(put(Flags::SYN.with(Flags::FIN)), (0, vec![]));
    assert_eq!(put(Flags::SYN.with(Flags::RST)), (0, vec![]));
    let (conns, out) = put(Flags::ACK);
    assert_eq!(conns, 0);
    let (_, s) = read_tcp(&out[0]);
    assert_eq!((s.flags, s.seq.0), (Flags::RST, 9));
    let (_, out) = put(Flags::SYN.with(Flags::ACK));
    assert_eq!(read_tcp(&out[0]).1.flags, Flags::RST);
    assert_eq!(b.counters().rx_bad_flags, 3);
    assert_eq!(b.counters().rx_rst_unknown, 2);
}

#[test]
fn test_syn_from_or_to_multicast_or_broadcast_is_dropped() {
    let mut b = listening_b(4);
    let all = Ipv4Addr::new(10, 0, 0, 255);
    let multi = Ipv4Addr::new(224, 0, 0, 1);
    for (src, dst) in [
        (all, B),
        (multi, B),
        (B, B),
        (Ipv4Addr::BROADCAST, B),
        (Ipv4Addr::UNSPECIFIED, B),
        (A, all),
        (A, multi),
        (A, Ipv4Addr::BROADCAST),
    ] {
        for port in [PORT, 9] {
            b.handle_frame(ms(1), &tcp_frame((src, 1000), (dst, port), &syn(1), b"")[..]);
        }
    }
    assert_eq!((b.connections(), frames(&mut b, ms(1)).len()), (0, 0));
    assert_eq!((b.counters().rx_bad_source, b.counters().rx_tcp_group), (10, 6));
    b.handle_frame(ms(1), &tcp_frame((A, 1), (Ipv4Addr::new(10, 0, 0, 9), PORT), &syn(1), b"")[..]);
    assert_eq!(b.counters().rx_other_host, 1);
}

#[test]
fn test_half_open_connections_are_bounded_per_listener() {
    let mut b = listening_b(3);
    b.listen(None, 80, 1).unwrap();
    b.listen(None, 81, 0).unwrap();
    for port in 1..=10 {
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &syn(1), b"")[..]);
    }
    assert_eq!((b.connections(), b.counters().half_open_evicted), (3, 7));
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, 80), &syn(1), b"")[..]);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, 81), &syn(1), b"")[..]);
    assert_eq!((b.connections(), b.counters().half_opened), (4, 11));
    assert_eq!(b.counters().listen_overflow, 1);
    // Evicted connections send nothing; the stack answers the three newest and the one at port 80.
    let mut answered: Vec<_> =
        frames(&mut b, ms(1)).iter().map(|f| read_tcp(f).0.dst_port).collect();
    answered.sort_unstable();
    assert_eq!(answered, [1, 8, 9, 10]);
    // A reset makes room.
    b.handle_frame(ms(1), &tcp_frame((A, 9), (B, PORT), &segment(2, 0, Flags::RST), b"")[..]);
    frames(&mut b, ms(1));
    assert_eq!((b.connections(), b.counters().half_open_failed), (3, 1));
    b.handle_frame(ms(1), &tcp_frame((A, 99), (B, PORT), &syn(1), b"")[..]);
    assert_eq!((b.connections(), b.counters().half_open_evicted), (4, 7));
    assert_eq!(events(&mut b), []);
}

#[test]
fn test_handshake_gets_through_a_flood_of_syns() {
    let mut b = listening_b(8);
    let flood = |b: &mut Stack<ByteQueue>, n: u16| {
        for port in 0..n {
            b.handle_frame(ms(1), &tcp_frame((A, 5000 + port), (B, PORT), &syn(1), b"")[..]);
            frames(b, ms(1));
        }
    };
    flood(&mut b, 1000);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &syn(100), b"")[..]);
    let (_, s) = read_tcp(&frames(&mut b, ms(1))[0]);
    flood(&mut b, 7);
    let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &ack, b"")[..]);
    assert!(matches!(events(&mut b)[..], [(_, StackEvent::Accepted { .. })]));
    // The accepted connection is not half-open any more and stays.
    flood(&mut b, 1000);
    assert_eq!((b.connections(), b.counters().accepted), (9, 1));
    assert_eq!(b.listeners.find(B.into(), PORT).unwrap().half_open, 8);
    // Before the ACK comes, one more SYN arrives than there are places: the half-open connection is
    // evicted.
    b.handle_frame(ms(1), &tcp_frame((A, 2), (B, PORT), &syn(100), b"")[..]);
    let (_, s) = read_tcp(&frames(&mut b, ms(1))[0]);
    flood(&mut b, 8);
    let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(1), &tcp_frame((A, 2), (B, PORT), &ack, b"")[..]);
    assert!(read_tcp(&frames(&mut b, ms(1))[0]).1.flags.has(Flags::RST));
}

#[test]
fn test_accepted_connection_makes_room_for_the_next() {
    let mut b = listening_b(1);
    for i in 0..3 {
        let src = (A, 2000 + i);
        b.handle_frame(ms(1), &tcp_frame(src, (B, PORT), &syn(100), b"")[..]);
        let (_, s) = read_tcp(&frames(&mut b, ms(1))[0]);
        let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
        b.handle_frame(ms(1), &tcp_frame(src, (B, PORT), &ack, b"")[..]);
        assert_eq!(events(&mut b).len(), 1);
    }
    assert_eq!((b.counters().accepted, b.counters().listen_overflow), (3, 0));
}

#[test]
fn test_half_open_connection_without_answer_ends_silently() {
    let mut b = listening_b(1);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &syn(1), b"")[..]);
    let mut now = ms(1);
    while b.connections() > 0 {
        frames(&mut b, now);
        now = b.poll_timeout().unwrap().max(now);
        assert!(now < ms(1_000_000));
        b.handle_timeouts(now);
    }
    assert_eq!((events(&mut b), b.counters().half_open_failed), (vec![], 1));
}

/// Returns the frame as it comes from the station `mac`.
fn from_station(mac: [u8; 6], mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&mac);
    frame
}

const STATION: [u8; 6] = [2, 9, 9, 9, 9, 9];

#[test]
fn test_syn_of_unknown_host_is_answered_to_its_station_and_not_learned() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.listen(None, PORT, 4).unwrap();
    let syn = tcp_frame((A, 1), (B, PORT), &syn(1), b"");
    b.handle_frame(ms(1), &from_station(STATION, syn)[..]);
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][..6], b.neighbors.len()), (1, &STATION[..], 0));
    let (_, seg) = read_tcp(&out[0]);
    assert_eq!(seg.flags, Flags::SYN.with(Flags::ACK));
    // A completed handshake does.
    let ack = segment(2, seg.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(2), &from_station(STATION, tcp_frame((A, 1), (B, PORT), &ack, b""))[..]);
    let [(id, StackEvent::Accepted { .. })] = events(&mut b)[..] else { panic!("accepted") };
    assert_eq!(b.neighbors.len(), 1);
    b.connect(ms(2), (A, 80).into(), None).unwrap();
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    let out = frames(&mut b, ms(2));
    assert!(out.len() == 2 && out.iter().all(|f| f[..6] == STATION), "neither asks");
}

#[test]
fn test_syn_of_a_known_host_is_answered_where_we_know_it() {
    let mut b = listening_b(4);
    let syn = tcp_frame((A, 1), (B, PORT), &syn(1), b"");
    b.handle_frame(ms(1), &from_station(STATION, syn)[..]);
    assert_eq!(frames(&mut b, ms(1))[0][..6], MAC_A);
}

#[test]
fn test_accepted_connection_follows_what_arp_says_of_its_peer() {
    let mut b: Stack<ByteQueue> = Stack::new(config_b());
    b.listen(None, PORT, 4).unwrap();
    let syn = tcp_frame((A, 1), (B, PORT), &syn(1), b"");
    b.handle_frame(ms(1), &from_station(STATION, syn)[..]);
    let next = read_tcp(&frames(&mut b, ms(1))[0]).1.seq.0.wrapping_add(1);
    introduce_a(&mut b, ms(1));
    let ack = tcp_frame((A, 1), (B, PORT), &segment(2, next, Flags::ACK), b"");
    b.handle_frame(ms(2), &from_station(STATION, ack)[..]);
    let [(id, _)] = events(&mut b)[..] else { panic!("accepted") };
    b.user_mut(id).unwrap().push(b"hello");
    b.notify_send(id);
    assert_eq!(frames(&mut b, ms(2))[0][..6], MAC_A);
}

/// Returns a stack B with the gateway A, and a SYN of a host beyond it.
fn beyond() -> (Stack<ByteQueue>, Vec<u8>) {
    let mut cfg = config_b();
    let b = Cidr::new(B.into(), 24).unwrap();
    cfg.net = Addressing::new(vec![b], vec![Route::default_via(A.into())]).unwrap();
    let mut b = Stack::new(cfg);
    b.listen(None, PORT, 1).unwrap();
    (b, tcp_frame((Ipv4Addr::new(192, 0, 2, 7), 1), (B, PORT), &syn(1), b""))
}

#[test]
fn test_syn_from_beyond_the_link_is_answered_by_way_of_the_gateway() {
    let (mut b, syn) = beyond();
    b.handle_frame(ms(1), &from_station(STATION, syn)[..]);
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][12..14]), (1, &b"\x08\x06"[..]));
    let reply = arp_frame(wire_arp::Operation::Reply, A, MAC_A, B, MAC_B);
    b.handle_frame(ms(1), &reply[..]);
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][..6]), (1, &MAC_A[..]));
    assert_eq!(read_tcp(&out[0]).1.flags, Flags::SYN.with(Flags::ACK));
}

#[test]
fn test_passive_open_ends_silently_when_gateway_does_not_answer() {
    let (mut b, syn) = beyond();
    b.handle_frame(ms(1), &syn[..]);
    frames(&mut b, ms(1));
    for t in 1..5 {
        b.handle_timeouts(ms(1 + t * 1000));
    }
    assert_eq!((b.connections(), b.neighbors.len(), events(&mut b)), (0, 0, vec![]));
    introduce_a(&mut b, ms(6000));
    b.handle_frame(ms(6000), &syn[..]);
    assert_eq!(frames(&mut b, ms(6000)).len(), 1);
}

#[test]
fn test_half_open_connections_are_bounded_and_take_no_room_of_connections() {
    let mut b = listening_b(1000);
    for port in 1..=100 {
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &syn(1), b"")[..]);
    }
    assert_eq!((b.connections(), b.counters().half_open_evicted), (64, 36));
    // Our own connections find all of their room.
    for n in 1..=64 {
        assert!(b.connect(ms(1), (A, 80).into(), None).is_ok(), "{n}");
    }
    assert_eq!((b.connections(), b.counters().half_open_evicted), (128, 36));
    assert_eq!(b.connect(ms(1), (A, 80).into(), None), Err(ConnectError::TooManyConnections));
    b.handle_frame(ms(1), &tcp_frame((A, 101), (B, PORT), &syn(1), b"")[..]);
    assert_eq!((b.connections(), b.counters().conns_full), (128, 1));
}

/// The last place is taken between a SYN and the end of its handshake.
#[test]
fn test_handshake_that_finds_no_room_at_its_end_is_refused() {
    let mut b = listening_b(4);
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &syn(100), b"")[..]);
    let next = read_tcp(&frames(&mut b, ms(1))[0]).1.seq.0.wrapping_add(1);
    for _ in 0..64 {
        b.connect(ms(1), (A, 80).into(), None).unwrap();
    }
    frames(&mut b, ms(1));
    let ack = segment(101, next, Flags::ACK);
    b.handle_frame(ms(2), &tcp_frame((A, 1), (B, PORT), &ack, b"")[..]);
    let (_, seg) = read_tcp(&frames(&mut b, ms(2))[0]);
    assert_eq!((seg.flags, seg.seq.0, b.counters().conns_full), (Flags::RST, next, 1));
    assert_eq!((b.connections(), b.peers.len(), events(&mut b)), (64, 0, vec![]));
}

/// Opens a connection that we close first and release, so that TIME-WAIT is ours.
fn time_wait(b: &mut Stack<ByteQueue>, port: u16, now: Instant) {
    b.handle_frame(now, &tcp_frame((A, port), (B, PORT), &syn(100), b"")[..]);
    let next = read_tcp(&frames(b, now)[0]).1.seq.0.wrapping_add(1);
    let put = |b: &mut Stack<ByteQueue>, seg| {
        b.handle_frame(now, &tcp_frame((A, port), (B, PORT), &seg, b"")[..]);
    };
    put(b, segment(101, next, Flags::ACK));
    let [(id, _)] = events(b)[..] else { panic!("accepted") };
    b.close(id);
    frames(b, now);
    put(b, segment(101, next.wrapping_add(1), Flags::FIN.with(Flags::ACK)));
    assert_eq!(b.conn(id).unwrap().state(), State::TimeWait);
    b.release(id);
    events(b);
    frames(b, now);
}

#[test]
fn test_full_table_evicts_the_oldest_in_time_wait_first() {
    let mut b = listening_b(4);
    for port in 1..=200 {
        time_wait(&mut b, port, ms(1));
    }
    assert_eq!((b.connections(), b.counters().time_wait_evicted), (64, 136));
    assert_eq!(b.time_wait.len(), 64);
    // The stack still answers a repeated FIN of the newest; a FIN of the oldest is a stranger's.
    let mut answers = |port| {
        let fin = segment(101, 1, Flags::FIN.with(Flags::ACK));
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &fin, b"")[..]);
        read_tcp(&frames(&mut b, ms(1))[0]).1.flags
    };
    assert_eq!((answers(200), answers(1)), (Flags::ACK, Flags::RST));
}

#[test]
fn test_unlisten_ends_half_open_connections_only() {
    let mut b = listening_b(4);
    let (id, ..) = established(&mut b, ms(1));
    b.handle_frame(ms(1), &tcp_frame((A, 2), (B, PORT), &syn(1), b"")[..]);
    frames(&mut b, ms(1));
    b.unlisten(ms(1), Some(B.into()), PORT);
    assert_eq!(frames(&mut b, ms(1)).len(), 0, "nobody listens at that very address");
    b.unlisten(ms(1), None, PORT);
    let out = frames(&mut b, ms(1));
    assert_eq!(out.len(), 1);
    assert!(read_tcp(&out[0]).1.flags.has(Flags::RST));
    assert_eq!((b.connections(), b.conn(id).unwrap().state()), (1, State::Established));
    b.handle_frame(ms(1), &tcp_frame((A, 3), (B, PORT), &syn(1), b"")[..]);
    assert_eq!((b.connections(), b.counters().rx_no_connection), (1, 1));
}

#[test]
fn test_syn_is_dropped_for_a_while_after_its_listener_awaited() {
    let relisten = Duration::from_secs(1);
    let mut b: Stack<ByteQueue> = Stack::new(StackConfig { relisten, ..config_b() });
    introduce_a(&mut b, Instant::ZERO);
    let ask = |b: &mut Stack<ByteQueue>, now, flags| {
        let asks = TxSegment { flags, ..syn(1) };
        b.handle_frame(now, &tcp_frame((A, 1), (B, PORT), &asks, b"")[..]);
        frames(b, now).first().map(|f| read_tcp(f).1.flags)
    };
    let refused = Some(Flags::RST.with(Flags::ACK));
    b.listen(None, PORT, 4).unwrap();
    b.unlisten(ms(1), None, PORT);
    assert_eq!((ask(&mut b, ms(2), Flags::SYN), b.counters().listener_awaited), (None, 1));
    assert_eq!(ask(&mut b, ms(2), Flags::FIN), refused, "what opens nothing");
    b.listen(None, PORT, 4).unwrap();
    assert_eq!(ask(&mut b, ms(3), Flags::SYN), Some(Flags::SYN.with(Flags::ACK)));
    b.unlisten(ms(4), None, PORT);
    frames(&mut b, ms(4));
    assert_eq!(ask(&mut b, ms(1003), Flags::SYN), None);
    assert_eq!(ask(&mut b, ms(1004), Flags::SYN), refused, "nobody came back");
    assert_eq!(b.counters().listener_awaited, 2);
}

#[test]
fn test_syn_inside_a_host_may_be_early() {
    let relisten = Duration::from_secs(1);
    let net = Addressing::inside([B.into()], false);
    let mut b: Stack<ByteQueue> = Stack::new(StackConfig { relisten, net, ..config_b() });
    let ask = |b: &mut Stack<ByteQueue>, now, from| {
        let syn = tcp_frame((B, from), (B, PORT), &syn(1), b"");
        b.handle_frame(now, &from_station(MAC_B, syn)[..]);
        frames(b, now).first().map(|f| read_tcp(f).1.flags)
    };
    assert_eq!(ask(&mut b, ms(1), 1), None);
    assert_eq!(ask(&mut b, ms(1), 2), None);
    assert_eq!(ask(&mut b, ms(1001), 1), Some(Flags::RST.with(Flags::ACK)), "nobody came");
    b.listen(None, PORT, 4).unwrap();
    assert_eq!(ask(&mut b, ms(1001), 2), Some(Flags::SYN.with(Flags::ACK)));
    assert_eq!(b.counters().listener_awaited, 2);
}

#[test]
fn test_packets_have_the_configured_dscp_and_ttl() {
    let mut cfg = config_b();
    (cfg.ttl, cfg.dscp) = (7, 10);
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    introduce_a(&mut b, Instant::ZERO);
    let id = b.connect(Instant::ZERO, (A, 80).into(), None).unwrap();
    b.set_dscp(id, 46);
    b.connect(Instant::ZERO, (A, 81).into(), None).unwrap();
    let out = frames(&mut b, Instant::ZERO);
    let read = |f: &[u8]| {
        let ip = Ipv4Header::parse(&f[14..], f.len() - 14).unwrap();
        (ip.ttl, ip.traffic_class >> 2)
    };
    assert_eq!((read(&out[0]), read(&out[1])), ((7, 46), (7, 10)));
}

#[test]
fn test_initial_sequence_numbers_follow_the_clock_and_the_flow() {
    let isn = |t: u64, port| {
        let mut b = listening_b(4);
        b.handle_frame(ms(t), &tcp_frame((A, port), (B, PORT), &syn(1), b"")[..]);
        read_tcp(&frames(&mut b, ms(t))[0]).1.seq
    };
    assert_eq!(isn(1001, 5).distance(isn(1, 5)), 250_000);
    assert_ne!(isn(1, 5), isn(1, 6));
}

/// RFC 7323 section 7.1: the timestamp clocks of two connections at one moment differ by an amount
/// that a host without the seed cannot know; each clock runs with time.
#[test]
fn test_timestamp_clocks_of_connections_begin_elsewhere() {
    let clock = |seed: u64, t: u64, port| {
        let seed = heddle_base::Seed::from_u64(seed);
        let mut b = Stack::<ByteQueue>::new(StackConfig { seed, ..config_b() });
        b.listen(None, PORT, 4).unwrap();
        introduce_a(&mut b, Instant::ZERO);
        let timestamps = Some(crate::Timestamps { val: 1, ecr: 0 });
        let syn = TxSegment { timestamps, ..syn(1) };
        b.handle_frame(ms(t), &tcp_frame((A, port), (B, PORT), &syn, b"")[..]);
        read_tcp(&frames(&mut b, ms(t))[0]).1.timestamps.unwrap().val
    };
    let first = clock(1, 1, 5);
    assert_eq!(clock(1, 1001, 5).wrapping_sub(first), 1000);
    let others = [clock(1, 1, 6), clock(1, 1, 7), clock(2, 1, 5), clock(3, 1, 5)];
    for (n, other) in others.iter().enumerate() {
        // The clock is not merely a little later.
        assert!(first.abs_diff(*other) > 1000, "{n}: {first} {other}");
        assert!(!others[..n].contains(other), "{n}");
    }
}

/// The sum made in pieces has each connection once, including connections that begin and end
/// meanwhile.
#[test]
fn test_counters_summed_in_pieces_are_those_of_all() {
    let mut b = listening_b(64);
    let open = |b: &mut Stack<ByteQueue>, port| {
        let mut put = |seg: &TxSegment| {
            b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), seg, b"")[..]);
            let out = frames(b, ms(1));
            out.first().map_or(0, |f| read_tcp(f).1.seq.0.wrapping_add(1))
        };
        let next = put(&syn(100));
        put(&segment(101, next, Flags::ACK));
        // An ACK of bytes that were never sent causes one bad ACK for each connection.
        put(&segment(101, next.wrapping_add(1), Flags::ACK));
        let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
        id
    };
    let ids: Vec<_> = (1..=20).map(|port| open(&mut b, port)).collect();
    let end = |b: &mut Stack<ByteQueue>, port: u16| {
        let reset = segment(101, 0, Flags::RST);
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &reset, b"")[..]);
        b.release(ids[usize::from(port) - 1]);
        frames(b, ms(1));
    };
    assert_eq!(b.conn_counters().bad_acks, 20);
    end(&mut b, 1);
    assert_eq!(b.poll_conn_counters(8), None);
    end(&mut b, 3); // already visited
    end(&mut b, 12); // not yet visited
    assert_eq!(b.poll_conn_counters(8), None);
    let sum = b.poll_conn_counters(8).expect("all were looked at");
    assert_eq!((sum.bad_acks, b.conn_counters().bad_acks), (20, 20));
    assert_eq!(b.poll_conn_counters(100), Some(b.conn_counters()));
}

/// RFC 7323 sections 7 and 7.1: each connection's timestamp clock has an offset of its own. A
/// stranger cannot guess it from another's, and the same addresses and ports get it again.
#[test]
fn test_timestamps_on_the_wire_have_an_offset_of_the_connection() {
    let stamp = |seed: u64, port: u16, t: u64| {
        let mut cfg = config_b();
        cfg.seed = Seed::from_u64(seed);
        let mut b: Stack<ByteQueue> = Stack::new(cfg);
        b.listen(None, PORT, 4).unwrap();
        introduce_a(&mut b, Instant::ZERO);
        let ts = Some(crate::Timestamps { val: 1, ecr: 0 });
        let syn = TxSegment { timestamps: ts, ..syn(1) };
        b.handle_frame(ms(t), &tcp_frame((A, port), (B, PORT), &syn, b"")[..]);
        let answer = read_tcp(&frames(&mut b, ms(t))[0]).1.timestamps.unwrap();
        let id = b.connect(ms(t), (A, port).into(), Some(port)).unwrap();
        assert!(b.conn(id).is_some());
        let ours = read_tcp(&frames(&mut b, ms(t))[0]).1.timestamps.unwrap();
        [answer.val, ours.val]
    };
    let all: Vec<u32> = (1..=32).flat_map(|port| stamp(1, port, 5)).collect();
    // 64 of 2^32 at random: no two within a minute of each other (by chance one time in 35).
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|w| w[1] - w[0] > 1000), "{sorted:?}");
    assert!(sorted[0] < 1 << 30 && sorted[63] > 3 << 30, "all over the range");
    assert_eq!(stamp(1, 7, 1005)[0].wrapping_sub(all[12]), 1000, "the same runs on");
    assert_ne!(stamp(2, 7, 5), stamp(1, 7, 5), "another secret, another offset");
}

/// RFC 9293 section 3.9.1.1 (MUST-43): both kinds of OPEN take a local address.
#[test]
fn test_open_uses_the_local_address_it_was_given() {
    let other = Ipv4Addr::new(10, 0, 0, 20);
    let mut cfg = config_b();
    let addrs = [B, other].map(|a| Cidr::new(a.into(), 24).unwrap()).to_vec();
    cfg.net = Addressing::new(addrs, vec![]).unwrap();
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    introduce_a(&mut b, Instant::ZERO);
    for local in [B, other] {
        let id = b.connect_from(ms(1), Some(local.into()), (A, 80).into(), None).unwrap();
        assert_eq!(b.local_addr(id).unwrap().ip(), local);
        let f = &frames(&mut b, ms(1))[0];
        assert_eq!((&f[26..30], read_tcp(f).1.flags), (&local.octets()[..], Flags::SYN));
    }
    b.listen(Some(other.into()), PORT, 4).unwrap();
    let mut answer = |to| {
        b.handle_frame(ms(1), &tcp_frame((A, 9), (to, PORT), &syn(1), b"")[..]);
        let f = &frames(&mut b, ms(1))[0];
        assert_eq!(f[26..30], to.octets());
        read_tcp(f).1.flags
    };
    assert_eq!(answer(other), Flags::SYN.with(Flags::ACK));
    assert_eq!(answer(B), Flags::RST.with(Flags::ACK), "nobody listens there");
}
