//! Many connections at once: honest clients, forged SYNs, one peer that wants everything.

use core::time::Duration;

use heddle_types::ConnectError;

use super::*;

/// A thousand clients of one host start together, as a job does. Their SYNs come in one burst, and
/// no SYN may cost another its place, because each such client would wait a second.
#[test]
fn test_a_thousand_connections_at_once_wait_for_no_timer() {
    let cfg = |mac, ip| {
        let defaults = StackConfig::new(mac, Cidr::new(ip, 24).unwrap(), Seed::from_u64(7));
        StackConfig { max_conns: 1024, ..defaults }
    };
    let (a, b) = (Host::new(cfg(MAC_A, A.into())), Host::new(cfg(MAC_B, B.into())));
    let mut n = Net::new(a, b, 1);
    n.b.stack.listen(None, PORT, 128).unwrap();
    for _ in 0..1000 {
        n.a.stack.connect(n.now, b_addr(), None).unwrap();
    }
    n.run("connect", Duration::from_millis(10), |n| n.b.stack.counters().accepted == 1000);
    let timeouts = |h: &Host| h.stack.conn_counters().timeouts;
    assert_eq!((timeouts(&n.a), timeouts(&n.b)), (0, 0));
    assert_eq!(n.b.stack.counters().half_open_evicted, 0);
}

/// B receives 20,000 forged SYNs a second, from every address of the link. Every 10 ms an unknown
/// host connects, 100 us away. B answers this host at once, and accepts its connection.
#[test]
fn test_new_hosts_get_their_answer_in_a_flood_of_forged_syns() {
    let mut cfg = config_b();
    cfg.net = Addressing::new(vec![Cidr::new(B.into(), 8).unwrap()], vec![]).unwrap();
    cfg.min_backlog = 128;
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    b.listen(None, PORT, 128).unwrap();
    let mut random = heddle_base::Random::new(&Seed::from_u64(5));
    let mut waiting: Option<(Ipv4Addr, u32, Instant)> = None;
    let mut hosts = 0;
    for i in 0..40_000u32 {
        let now = Instant::from_nanos(u64::from(i) * 50_000);
        b.handle_timeouts(now);
        let forged =
            Ipv4Addr::from_bits(0x0a01_0000 | u32::try_from(random.below(1 << 16)).unwrap());
        let port = u16::try_from(1 + random.below(60_000)).unwrap();
        b.handle_frame(now, &tcp_frame((forged, port), (B, PORT), &syn(i), b"")[..]);
        if let Some((host, next, at)) = waiting
            && now >= at
        {
            let ack = segment(101, next, Flags::ACK);
            b.handle_frame(now, &tcp_frame((host, 1000), (B, PORT), &ack, b"")[..]);
            let [(id, StackEvent::Accepted { .. })] = events(&mut b)[..] else {
                panic!("host {hosts} was not accepted")
            };
            b.abort(id);
            b.release(id);
            waiting = None;
            hosts += 1;
        }
        if i % 200 == 0 {
            frames(&mut b, now);
            let host = Ipv4Addr::from_bits(0x0a02_0000 + i / 200);
            b.handle_frame(now, &tcp_frame((host, 1000), (B, PORT), &syn(100), b"")[..]);
            let out = frames(&mut b, now);
            let (h, s) = read_tcp(out.last().expect("an answer at once"));
            assert_eq!((h.dst_port, s.flags), (1000, Flags::SYN.with(Flags::ACK)));
            waiting = Some((host, s.seq.0.wrapping_add(1), now + Duration::from_micros(100)));
        } else {
            frames(&mut b, now);
        }
    }
    assert_eq!((hosts, b.counters().accepted), (200, 200));
    assert_eq!(b.counters().tx_arp_requests, 0, "forged addresses are not asked for");
}

/// Opens one more connection of `src` to B, which the owner holds.
fn accept(b: &mut Stack<ByteQueue>, src: (Ipv4Addr, u16)) -> Option<ConnId> {
    b.handle_frame(ms(1), &tcp_frame(src, (B, PORT), &syn(100), b"")[..]);
    let out = frames(b, ms(1));
    let (_, s) = read_tcp(out.first()?);
    if s.flags.has(Flags::RST) {
        return None;
    }
    let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(1), &tcp_frame(src, (B, PORT), &ack, b"")[..]);
    events(b).first().map(|e| e.0)
}

fn limited(half_open: PeerLimit, conns: PeerLimit) -> Stack<ByteQueue> {
    let mut cfg = config_b();
    (cfg.peer_half_open, cfg.peer_conns) = (half_open, conns);
    let mut b = Stack::new(cfg);
    b.listen(None, PORT, 8).unwrap();
    b
}

const C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

#[test]
fn test_connections_of_a_peer_are_bounded_until_they_are_released() {
    let mut b = limited(PeerLimit::Unlimited, PeerLimit::AtMost(3));
    let ids: Vec<_> = (1..=3).map(|p| accept(&mut b, (A, p)).unwrap()).collect();
    assert_eq!(accept(&mut b, (A, 4)), None);
    assert_eq!((b.counters().peer_conns_limited, b.counters().tx_resets), (1, 1));
    assert!(accept(&mut b, (C, 4)).is_some(), "of another peer");
    b.listen(None, 80, 8).unwrap();
    b.handle_frame(ms(1), &tcp_frame((A, 5), (B, 80), &syn(1), b"")[..]);
    frames(&mut b, ms(1));
    assert_eq!(b.counters().peer_conns_limited, 2, "at another listener just so");
    b.release(ids[1]);
    frames(&mut b, ms(1));
    assert!(accept(&mut b, (A, 6)).is_some());
    assert_eq!(accept(&mut b, (A, 7)), None);
}

#[test]
fn test_half_open_connections_of_a_peer_are_bounded() {
    let mut b = limited(PeerLimit::AtMost(2), PeerLimit::Unlimited);
    let mut open = |src| b.handle_frame(ms(1), &tcp_frame(src, (B, PORT), &syn(1), b"")[..]);
    for port in 1..=5 {
        open((A, port));
    }
    open((C, 1));
    assert_eq!((b.connections(), b.counters().peer_half_open_limited), (3, 3));
    assert_eq!(b.counters().half_open_evicted, 0);
    // Connections that end, in any way, make room.
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B, PORT), &segment(2, 0, Flags::RST), b"")[..]);
    frames(&mut b, ms(1));
    assert!(accept(&mut b, (A, 6)).is_some());
    assert!(accept(&mut b, (A, 7)).is_some());
    b.unlisten(ms(1), None, PORT);
    frames(&mut b, ms(1));
    assert_eq!((b.connections(), b.peers.len()), (2, 1));
}

#[test]
fn test_peer_shares_leave_room_for_other_peers() {
    let mut b = limited(PeerLimit::Share, PeerLimit::Share);
    for port in 1..=5 {
        b.handle_frame(ms(1), &tcp_frame((A, port), (B, PORT), &syn(1), b"")[..]);
    }
    assert_eq!((b.connections(), b.counters().peer_half_open_limited), (4, 1));
    b.unlisten(ms(1), None, PORT);
    frames(&mut b, ms(1));
    b.listen(None, PORT, 8).unwrap();
    let all = (1..=100).filter(|&p| accept(&mut b, (A, p)).is_some()).count();
    assert_eq!((all, b.connections()), (32, 32), "half of them");
    // Another peer that wants all gets half of the rest, and so does the next.
    let of = |b: &mut Stack<ByteQueue>, src| {
        (1..=100).filter(|&p| accept(b, (src, p)).is_some()).count()
    };
    assert_eq!(of(&mut b, C), 16);
    assert_eq!(of(&mut b, Ipv4Addr::new(10, 0, 0, 4)), 8);
    assert_eq!(b.counters().conns_full, 0);
}

/// Shares are of the stack: a peer does not get one at each listener.
#[test]
fn test_share_of_a_peer_is_counted_over_all_listeners() {
    let mut b = limited(PeerLimit::Unlimited, PeerLimit::Share);
    for port in 5000..5010 {
        b.listen(None, port, 64).unwrap();
    }
    let mut taken = 0;
    for (i, at) in (0u16..100).zip((5000..5010).cycle()) {
        b.handle_frame(ms(1), &tcp_frame((A, 1000 + i), (B, at), &syn(100), b"")[..]);
        let out = frames(&mut b, ms(1));
        let Some((_, s)) = out.first().map(|f| read_tcp(f)) else { continue };
        if s.flags.has(Flags::RST) {
            continue;
        }
        let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
        b.handle_frame(ms(1), &tcp_frame((A, 1000 + i), (B, at), &ack, b"")[..]);
        taken += events(&mut b).len();
    }
    assert_eq!((taken, b.counters().peer_conns_limited), (32, 68));
    assert!(accept(&mut b, (C, 1)).is_some(), "another host finds room");
}

/// Half-open connections of forged addresses make room, and so count as free.
#[test]
fn test_forged_syns_use_no_share_of_a_peer() {
    let mut b = limited(PeerLimit::Unlimited, PeerLimit::Share);
    b.listen(None, 80, 1000).unwrap();
    for i in 0..200u8 {
        let forged = Ipv4Addr::new(10, 0, 0, 10 + i);
        b.handle_frame(ms(1), &tcp_frame((forged, 1), (B, 80), &syn(1), b"")[..]);
    }
    frames(&mut b, ms(1));
    assert_eq!(b.connections(), 64);
    let all = (1..=100).filter(|&p| accept(&mut b, (A, p)).is_some()).count();
    assert_eq!(all, 32);
}

#[test]
fn test_port_choice_near_exhaustion_is_bounded_and_goes_on_where_it_stopped() {
    let mut cfg = config_b();
    cfg.max_conns = 1 << 15;
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    introduce_a(&mut b, ms(1));
    let free = [50_000, 60_000];
    for port in 49_152..=u16::MAX {
        if !free.contains(&port) {
            b.connect(ms(1), (A, 80).into(), Some(port)).unwrap();
        }
    }
    let (mut found, mut tries) = (Vec::new(), 0);
    while found.len() < 2 {
        tries += 1;
        assert!(tries <= 2 * 16_384 / 256 + 2);
        match b.connect(ms(1), (A, 80).into(), None) {
            Ok(id) => found.push(b.local_addr(id).unwrap().port()),
            Err(e) => assert_eq!(e, ConnectError::PortInUse),
        }
    }
    found.sort_unstable();
    assert_eq!(found, free);
    assert!(tries > 2, "one call does not look at all");
}

#[test]
fn test_echoes_and_resets_do_not_keep_address_resolution_waiting() {
    let mut b = listening_b(4);
    for i in 0..150u16 {
        let mut m = vec![8, 0, 0, 0, 1, 2, 3, 4];
        let sum = Sum::of(&m).complement();
        m[2..4].copy_from_slice(&sum.to_be_bytes());
        // The test takes many turns, in none of which the port has room.
        let now = Instant::from_nanos(1_000_000 + u64::from(i));
        b.handle_frame(now, &ip_frame(A, B, 1, &m)[..]);
        b.handle_frame(now, &tcp_frame((A, 1000 + i), (B, 9), &syn(1), b"")[..]);
    }
    assert!(b.counters().tx_control_full > 0);
    let question = arp_frame(wire_arp::Operation::Request, C, MAC_A, B, [0; 6]);
    b.handle_frame(ms(1), &question[..]);
    let out = frames(&mut b, ms(1));
    assert_eq!(out[0][12..14], *b"\x08\x06", "first of all, and not dropped");
    assert_eq!(out.len(), 1 + 2 * control::MAX_EACH);
}

/// A million SYNs from random addresses and ports, at ten million a second. Meanwhile a connection
/// sends in both directions, and loses nothing; and every 10 ms a host connects, 5 ms away, which is
/// longer than any table of half-open connections holds.
#[test]
fn test_connections_and_new_clients_live_through_a_million_syns() {
    const SYNS: u32 = 1_000_000;
    let mut cfg = config_b();
    cfg.net = Addressing::new(vec![Cidr::new(B.into(), 8).unwrap()], vec![]).unwrap();
    (cfg.min_backlog, cfg.syn_cookies, cfg.max_conns) = (2048, SynCookies::Auto, 4096);
    (cfg.peer_half_open, cfg.peer_conns) = (PeerLimit::Share, PeerLimit::Share);
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    b.listen(None, PORT, 128).unwrap();
    introduce_a(&mut b, Instant::ZERO);
    let (id, mut mine, next) = established(&mut b, Instant::ZERO);
    let mut random = heddle_base::Random::new(&Seed::from_u64(5));
    // A frame is made once; only its addresses, ports and numbers change. The port checks it.
    let mut flood = net::Pieces(vec![tcp_frame((A, 1), (B, PORT), &syn(0), b"")], RxChecksum::Good);
    let (mut hosts, mut arrived) = (0, 0);
    let mut waiting: Option<(Ipv4Addr, u32, Instant)> = None;
    for i in 0..SYNS {
        let now = Instant::from_nanos(1_000_000 + u64::from(i) * 100);
        let bytes = random.next_u64().to_be_bytes();
        let frame = &mut flood.0[0];
        frame[27..30].copy_from_slice(&[bytes[0] | 1, bytes[1], bytes[2].clamp(1, 250)]);
        frame[34..36].copy_from_slice(&[bytes[3] | 1, bytes[4]]);
        frame[38..41].copy_from_slice(&bytes[5..]);
        b.handle_frame(now, &flood);
        if i % 64 != 0 {
            continue;
        }
        b.handle_timeouts(now);
        // The connection has its turn: a segment comes, and one goes.
        let seg = segment(mine, next, Flags::ACK);
        let out = b.handle_frame(now, &tcp_frame((A, 1000), (B, PORT), &seg, &[7; 100])[..]);
        let FrameOutcome::Conn { payload: Some(p), .. } = out else { panic!("{out:?}") };
        b.accept_payload(now, id, p.pos, p.len);
        mine = mine.wrapping_add(100);
        arrived += 1;
        if let Some((host, next, at)) = waiting
            && now >= at
        {
            let ack = segment(101, next, Flags::ACK);
            b.handle_frame(now, &tcp_frame((host, 1000), (B, PORT), &ack, b"")[..]);
            let [(id, StackEvent::Accepted { .. })] = events(&mut b)[..] else {
                panic!("host {hosts} was not accepted")
            };
            b.abort(id);
            b.release(id);
            waiting = None;
            hosts += 1;
        }
        while b.poll_transmit(now).is_some() {}
        if i % 100_000 == 64 * 64 {
            let host = Ipv4Addr::from_bits(0x0aff_0000 + i / 200);
            b.handle_frame(now, &tcp_frame((host, 1000), (B, PORT), &syn(100), b"")[..]);
            let out = frames(&mut b, now);
            let (h, s) = read_tcp(out.last().expect("an answer at once"));
            assert_eq!((h.dst_port, s.flags), (1000, Flags::SYN.with(Flags::ACK)));
            waiting = Some((host, s.seq.0.wrapping_add(1), now + Duration::from_millis(5)));
        }
    }
    let c = b.counters();
    assert!(hosts > 3 && c.accepted == hosts + 1, "{hosts} hosts");
    assert_eq!(arrived, SYNS.div_ceil(64));
    assert!(b.connections() <= 2 + 2048, "{} connections", b.connections());
    assert_eq!((c.tx_arp_requests, c.half_open_evicted, c.time_wait_evicted), (0, 0, 0));
    assert!(c.syn_cookies_sent > u64::from(SYNS) * 9 / 10, "{c:?}");
}
