//! Many connections at once: honest clients, forged SYNs, one peer that wants everything.

use core::time::Duration;

use heddle_types::ConnectError;

use super::handshakes::{C, Clients, listening, open, put};
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
    let mut b = listening(128, |c| {
        c.net = Addressing::new(vec![Cidr::new(B.into(), 8).unwrap()], vec![]).unwrap();
        c.min_backlog = 128;
    });
    let mut random = heddle_base::Random::new(&Seed::from_u64(5));
    let mut clients = Clients::new(Duration::from_micros(100));
    for i in 0..40_000u32 {
        let now = Instant::from_nanos(u64::from(i) * 50_000);
        b.handle_timeouts(now);
        let forged =
            Ipv4Addr::from_bits(0x0a01_0000 | u32::try_from(random.below(1 << 16)).unwrap());
        let port = u16::try_from(1 + random.below(60_000)).unwrap();
        put(&mut b, now, (forged, port), &syn(i), b"");
        clients.go_on(&mut b, now);
        frames(&mut b, now);
        if i % 200 == 0 {
            clients.knock(&mut b, now, Ipv4Addr::from_bits(0x0a02_0000 + i / 200));
        }
    }
    assert_eq!((clients.served, b.counters().accepted), (200, 200));
    assert_eq!(b.counters().tx_arp_requests, 0, "forged addresses are not asked for");
}

fn accept(b: &mut Stack<ByteQueue>, src: handshakes::Source) -> Option<ConnId> {
    open(b, ms(1), src, PORT)
}

fn limited(half_open: PeerLimit, conns: PeerLimit) -> Stack<ByteQueue> {
    listening(8, |c| (c.peer_half_open, c.peer_conns) = (half_open, conns))
}

#[test]
fn test_connections_of_a_peer_are_bounded_until_they_are_released() {
    let mut b = limited(PeerLimit::Unlimited, PeerLimit::AtMost(3));
    let ids: Vec<_> = (1..=3).map(|p| accept(&mut b, (A, p)).unwrap()).collect();
    assert_eq!(accept(&mut b, (A, 4)), None);
    assert_eq!((b.counters().peer_conns_limited, b.counters().tx_resets), (1, 1));
    assert!(accept(&mut b, (C, 4)).is_some(), "of another peer");
    b.listen(None, 80, 8).unwrap();
    assert_eq!(open(&mut b, ms(1), (A, 5), 80), None);
    assert_eq!(b.counters().peer_conns_limited, 2, "at another listener just so");
    b.release(ids[1]);
    frames(&mut b, ms(1));
    assert!(accept(&mut b, (A, 6)).is_some());
    assert_eq!(accept(&mut b, (A, 7)), None);
}

#[test]
fn test_half_open_connections_of_a_peer_are_bounded() {
    let mut b = limited(PeerLimit::AtMost(2), PeerLimit::Unlimited);
    for src in [(A, 1), (A, 2), (A, 3), (A, 4), (A, 5), (C, 1)] {
        put(&mut b, ms(1), src, &syn(1), b"");
    }
    assert_eq!((b.connections(), b.counters().peer_half_open_limited), (3, 3));
    assert_eq!(b.counters().half_open_evicted, 0);
    // Connections that end, in any way, make room.
    put(&mut b, ms(1), (A, 1), &segment(2, 0, Flags::RST), b"");
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
        put(&mut b, ms(1), (A, port), &syn(1), b"");
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
    let all = (1000u16..1100).zip((5000..5010).cycle());
    let taken = all.filter(|&(from, at)| open(&mut b, ms(1), (A, from), at).is_some()).count();
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
    let mut b = listening(128, |c| {
        c.net = Addressing::new(vec![Cidr::new(B.into(), 8).unwrap()], vec![]).unwrap();
        (c.min_backlog, c.syn_cookies, c.max_conns) = (2048, SynCookies::Auto, 4096);
        (c.peer_half_open, c.peer_conns) = (PeerLimit::Share, PeerLimit::Share);
    });
    let (id, mut mine, next) = established(&mut b, Instant::ZERO);
    let mut random = heddle_base::Random::new(&Seed::from_u64(5));
    // A frame is made once; only its addresses, ports and numbers change. The port checks it.
    let mut flood = net::Pieces(vec![tcp_frame((A, 1), (B, PORT), &syn(0), b"")], RxChecksum::Good);
    let mut clients = Clients::new(Duration::from_millis(5));
    let mut arrived = 0;
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
        // The worker is faster than the flood, and finds nothing to do between two bursts.
        b.rest();
        // The connection has its turn: a segment comes, and one goes.
        let seg = segment(mine, next, Flags::ACK);
        let out = put(&mut b, now, (A, 1000), &seg, &[7; 100]);
        let FrameOutcome::Conn { payload: Some(p), .. } = out else { panic!("{out:?}") };
        b.accept_payload(now, id, p.pos, p.len);
        mine = mine.wrapping_add(100);
        arrived += 1;
        clients.go_on(&mut b, now);
        while b.poll_transmit(now).is_some() {}
        if i % 100_000 == 64 * 64 {
            clients.knock(&mut b, now, Ipv4Addr::from_bits(0x0aff_0000 + i / 200));
        }
    }
    let c = b.counters();
    let hosts = clients.served;
    assert!(hosts > 3 && c.accepted == hosts + 1, "{hosts} hosts");
    assert_eq!(arrived, SYNS.div_ceil(64));
    assert!(b.connections() <= 2 + 2048, "{} connections", b.connections());
    assert_eq!((c.tx_arp_requests, c.half_open_evicted, c.time_wait_evicted), (0, 0, 0));
    assert!(c.syn_cookies_sent > u64::from(SYNS) * 9 / 10, "{c:?}");
}

/// Forged SYNs of random addresses, in bursts as a worker takes them.
struct Flood {
    random: heddle_base::Random,
    burst: Vec<Option<net::Pieces>>,
    sent: u64,
}

impl Flood {
    const BURST: usize = 64;

    fn new(frame: &[u8]) -> Flood {
        let frame = || Some(net::Pieces(vec![frame.to_vec()], RxChecksum::Good));
        let burst = core::iter::repeat_with(frame).take(Flood::BURST).collect();
        Flood { random: heddle_base::Random::new(&Seed::from_u64(5)), burst, sent: 0 }
    }

    /// Hands over a burst, and in it the frame of another sender, if one waits, wherever it came.
    fn burst(&mut self, b: &mut Stack<ByteQueue>, now: Instant, other: Option<Vec<u8>>) {
        for frame in &mut self.burst {
            let bytes = self.random.next_u64().to_be_bytes();
            let frame = &mut frame.as_mut().unwrap().0[0];
            frame[27..30].copy_from_slice(&[bytes[0] | 1, bytes[1], bytes[2].clamp(1, 250)]);
            frame[34..36].copy_from_slice(&[bytes[3] | 1, bytes[4]]);
            frame[38..41].copy_from_slice(&bytes[5..]);
        }
        self.sent += Flood::BURST as u64;
        let before = usize::try_from(self.random.below(Flood::BURST as u64)).unwrap();
        let mut at = 0;
        while at < Flood::BURST {
            if at == before
                && let Some(frame) = &other
            {
                b.handle_frame(now, &frame[..]);
            }
            at += b.handle_frames(now, &mut self.burst[at..]).frames as usize;
        }
    }
}

fn wide_b() -> StackConfig {
    let mut cfg = config_b();
    cfg.net = Addressing::new(vec![Cidr::new(B.into(), 8).unwrap()], vec![]).unwrap();
    (cfg.min_backlog, cfg.syn_cookies, cfg.max_conns) = (2048, SynCookies::Auto, 4096);
    (cfg.peer_half_open, cfg.peer_conns) = (PeerLimit::Share, PeerLimit::Share);
    cfg
}

/// A client that asks again until the stack has answered, and then completes its handshake.
#[derive(Clone, Copy)]
struct Client {
    host: Ipv4Addr,
    next_try: Instant,
    tries: u32,
    answered: bool,
}

/// A connection keeps the worker busy in every turn, beside twice as many SYNs as a busy worker handles. It
/// loses nothing, and neither do ends of handshakes; fifty new clients connect within a few of their
/// SYNs.
#[test]
fn test_new_clients_connect_beside_flood_that_exceeds_share_of_busy_worker() {
    const CLIENTS: u32 = 50;
    let mut b: Stack<ByteQueue> = Stack::new(wide_b());
    b.listen(None, PORT, 128).unwrap();
    introduce_a(&mut b, Instant::ZERO);
    let (id, mut mine, next) = established(&mut b, Instant::ZERO);
    let mut flood = Flood::new(&tcp_frame((A, 1), (B, PORT), &syn(0), b""));
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|n| Client {
            host: Ipv4Addr::from_bits(0x0aff_0001 + n),
            next_try: ms(40 + u64::from(n)),
            tries: 0,
            answered: false,
        })
        .collect();
    let every = Duration::from_nanos(1_000_000_000 * 64 / u64::from(share::A_SECOND / 4 * 5));
    let (mut now, mut accepted, mut arrived) = (ms(1), 0, 0u32);
    while accepted < CLIENTS as usize {
        now = now + every;
        assert!(now < ms(1000), "{accepted} clients have connected");
        b.handle_timeouts(now);
        let client = clients.iter_mut().find(|c| !c.answered && c.next_try <= now);
        let asks = client.map(|c| {
            (c.tries, c.next_try) = (c.tries + 1, now + Duration::from_millis(20));
            tcp_frame((c.host, 1000), (B, PORT), &syn(100), b"")
        });
        flood.burst(&mut b, now, asks);
        let seg = segment(mine, next, Flags::ACK);
        let out = b.handle_frame(now, &tcp_frame((A, 1000), (B, PORT), &seg, &[7; 100])[..]);
        let FrameOutcome::Conn { payload: Some(p), .. } = out else { panic!("{out:?}") };
        b.accept_payload(now, id, p.pos, p.len);
        mine = mine.wrapping_add(100);
        arrived += 1;
        for frame in frames(&mut b, now) {
            let (h, s) = read_tcp(&frame);
            let to = Ipv4Addr::from_bits(u32::from_be_bytes(*frame[30..].first_chunk().unwrap()));
            let client = clients.iter_mut().find(|c| (c.host, 1000) == (to, h.dst_port));
            let Some(client) = client else { continue };
            client.answered = true;
            let ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
            b.handle_frame(now, &tcp_frame((to, 1000), (B, PORT), &ack, b"")[..]);
        }
        accepted += events(&mut b).len();
    }
    let tries = clients.iter().map(|c| c.tries);
    assert!(tries.clone().max().unwrap() <= 10, "{:?}", tries.clone().collect::<Vec<_>>());
    assert!(tries.sum::<u32>() < 3 * CLIENTS, "every other SYN finds room");
    let c = b.counters();
    assert_eq!(c.segments_over_share, 0, "ends of handshakes have room of their own");
    assert!(c.syns_over_share > flood.sent / 4, "{} of {}", c.syns_over_share, flood.sent);
    assert_eq!(c.accepted, u64::from(CLIENTS) + 1);
    assert!(arrived > 100 && b.conn(id).is_some());
}

/// The same flood finds a worker that has nothing else to do: every SYN gets its answer.
#[test]
fn test_worker_that_rests_takes_every_syn() {
    let mut b: Stack<ByteQueue> = Stack::new(wide_b());
    b.listen(None, PORT, 128).unwrap();
    let mut flood = Flood::new(&tcp_frame((A, 1), (B, PORT), &syn(0), b""));
    for turn in 0..1000 {
        b.rest();
        let now = Instant::from_nanos(1_000_000 + turn * 6400);
        flood.burst(&mut b, now, None);
        frames(&mut b, now);
    }
    let c = b.counters();
    assert_eq!((c.syns_over_share, c.syn_acks_limited), (0, 0));
    assert_eq!(c.tx_syn_acks, flood.sent);
}

/// A SYN counts as one however its headers look, and even if it is for a connection.
#[test]
fn test_every_shape_of_syn_has_its_place_in_the_share() {
    let unusual = {
        let plain = tcp_frame((A, 9), (B, PORT), &syn(0), b"");
        // The same packet with four bytes of IPv4 options.
        let mut ip = plain[14..34].to_vec();
        ip[0] = 0x46;
        ip[3] += 4;
        ip.extend([1; 4]);
        ip[10..12].fill(0);
        let sum = Sum::of(&ip).complement();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        [&plain[..14], &ip, &plain[34..]].concat()
    };
    let late = tcp_frame((A, 1000), (B, PORT), &syn(500), b"");
    for frame in [tcp_frame((A, 9), (B, PORT), &syn(0), b""), unusual, late] {
        let mut b = listening_b(8);
        let (id, ..) = established(&mut b, ms(1));
        for _ in 0..5000 {
            b.handle_frame(ms(2), &frame[..]);
        }
        let c = b.counters();
        assert!(c.syns_over_share > 2000, "{c:?}");
        assert_eq!((c.segments_over_share, c.rx_bad_ip_checksum), (0, 0));
        assert!(b.conn(id).is_some());
    }
}

/// A flood beside the VLANs takes nothing from a client in one of them, and SYNs of VLANs that the port
/// does not have take nothing at all.
#[test]
fn test_flood_on_one_link_leaves_the_share_of_others() {
    use net::Received;
    let seven = Vid::new(7).unwrap();
    let own = Addressing::new(vec!["10.0.7.2/24".parse().unwrap()], vec![]).unwrap();
    let mut cfg = config_b();
    cfg.net = cfg.net.with_vlans(vec![Vlan::new(seven, own)]).unwrap();
    let mut b: Stack<ByteQueue> = Stack::new(cfg);
    b.listen(None, PORT, 8).unwrap();
    let forged = tcp_frame((A, 9), (B, PORT), &syn(0), b"");
    let mut tagged = |vid: u16, n: u32| {
        let host = Ipv4Addr::from_bits(0x0a00_0700 | n);
        let bytes = tcp_frame((host, 9), (Ipv4Addr::new(10, 0, 7, 2), PORT), &syn(0), b"");
        let tag = Some(Tag::new(Vid::new(vid).unwrap(), 0));
        b.handle_frame(ms(1), &mut Received { bytes, tag });
        *b.counters()
    };
    for n in 0..10_000u32 {
        let c = tagged(1000 + u16::try_from(n % 100).unwrap(), 9);
        assert_eq!((c.rx_unknown_vlan, c.syns_over_share), (u64::from(n) + 1, 0));
    }
    for _ in 0..10_000 {
        b.handle_frame(ms(1), &forged[..]);
    }
    assert!(b.counters().syns_over_share > 7000);
    let (before, opened) = (b.counters().syns_over_share, b.counters().half_opened);
    for n in 0..20 {
        let host = Ipv4Addr::from_bits(0x0a00_0710 | n);
        let bytes = tcp_frame((host, 9), (Ipv4Addr::new(10, 0, 7, 2), PORT), &syn(0), b"");
        b.handle_frame(ms(1), &mut Received { bytes, tag: Some(Tag::new(seven, 0)) });
    }
    let c = b.counters();
    assert_eq!((c.syns_over_share, c.half_opened - opened), (before, 20));
}

/// Strays and ICMP have a share as well; address resolution and segments of connections need none.
#[test]
fn test_strays_and_icmp_have_a_share_and_connections_and_arp_need_none() {
    let mut b = listening_b(8);
    let (id, mut mine, next) = established(&mut b, ms(1));
    let stray = |n: u16, timestamps| {
        let seg = TxSegment { timestamps, ..segment(5, 6, Flags::ACK) };
        tcp_frame((A, n), (B, PORT), &seg, b"")
    };
    let mut echo = vec![8, 0, 0, 0, 1, 2, 3, 4];
    let sum = Sum::of(&echo).complement();
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let stamps = Some(crate::Timestamps { val: 1, ecr: 2 });
    for n in 0..5000 {
        b.handle_frame(ms(2), &stray(2000 + n, None)[..]);
        b.handle_frame(ms(2), &stray(2000 + n, stamps)[..]);
        b.handle_frame(ms(2), &ip_frame(A, B, 1, &echo)[..]);
    }
    let c = *b.counters();
    assert!(c.segments_over_share > 7000 && c.icmp_over_share > 3000, "{c:?}");
    let asked = c.tx_arp_replies;
    for n in 0..20 {
        let host = Ipv4Addr::new(10, 0, 0, 100 + n);
        let question = arp_frame(wire_arp::Operation::Request, host, MAC_A, B, [0; 6]);
        b.handle_frame(ms(2), &question[..]);
    }
    assert_eq!(b.counters().tx_arp_replies - asked, 20);
    for _ in 0..5000 {
        let seg = segment(mine, next, Flags::ACK);
        let out = b.handle_frame(ms(2), &tcp_frame((A, 1000), (B, PORT), &seg, &[7; 10])[..]);
        let FrameOutcome::Conn { payload: Some(p), .. } = out else { panic!("{out:?}") };
        b.accept_payload(ms(2), id, p.pos, p.len);
        mine = mine.wrapping_add(10);
    }
    assert_eq!(b.counters().segments_over_share, c.segments_over_share);
}
