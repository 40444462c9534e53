//! SYN cookies: a stack that keeps nothing of a SYN, and connections all the same.

use core::net::Ipv6Addr;
use core::time::Duration;

use super::handshakes::{C, Source, accepted, ack_of, ask, end, full_syn, listening, put};
use super::*;
use crate::Timestamps;
use heddle_base::Random;

/// Returns a stack that listens with a backlog of 2, makes cookies, and knows A.
fn b_with(change: impl FnOnce(&mut StackConfig)) -> Stack<ByteQueue> {
    listening(2, |c| {
        c.syn_cookies = SynCookies::Always;
        change(c);
    })
}

fn always() -> Stack<ByteQueue> {
    b_with(|_| {})
}

fn stamped(seq: u32) -> TxSegment {
    TxSegment { mss: Some(1400), ..full_syn(seq) }
}

/// Returns the sole answer to a segment that is to open nothing.
fn refused(b: &mut Stack<ByteQueue>, now: Instant, src: Source, seg: &TxSegment) {
    put(b, now, src, seg, b"");
    let out = frames(b, now);
    assert_eq!((out.len(), read_tcp(&out[0]).1.flags), (1, Flags::RST));
    assert_eq!(events(b), []);
}

#[test]
fn test_cookie_connection_has_every_option_of_its_syn() {
    let mut b = always();
    let s = ask(&mut b, ms(100), (A, 1), &stamped(100));
    assert_eq!((b.connections(), b.peers.len()), (0, 0), "nothing is kept");
    assert_eq!(s.flags, Flags::SYN.with(Flags::ACK).with(Flags::ECE));
    assert_eq!((s.mss, s.sack_permitted, s.window_scale), (Some(1460), true, Some(9)));
    assert_eq!(s.timestamps.unwrap().ecr, 5000);
    put(&mut b, ms(101), (A, 1), &TxSegment { window: 100, ..ack_of(&s) }, b"");
    let id = accepted(&mut b);
    b.user_mut(id).unwrap().push(&[7; 20_000]);
    b.notify_send(id);
    let out = frames(&mut b, ms(101));
    let sent: u32 = out.iter().map(|f| read_tcp(f).1.len).sum();
    assert!(sent > 11_000, "{sent} bytes: the window is scaled");
    let (_, first) = read_tcp(&out[0]);
    assert_eq!((first.len, first.seq, out[0][15] & 3), (1388, s.seq.advance(1), 2));
    // Our clock does not run back.
    let (before, after) = (s.timestamps.unwrap().val, first.timestamps.unwrap().val);
    assert!(after.wrapping_sub(before) < 128, "{before} {after}");
    let c = b.counters();
    assert_eq!((c.syn_cookies_sent, c.syn_cookies_accepted, c.accepted), (1, 1, 1));
    assert_eq!((c.half_opened, c.tx_syn_acks), (0, 1));
}

#[test]
fn test_cookie_connection_of_a_peer_without_timestamps_does_without_the_rest() {
    let mut b = always();
    let bare = TxSegment { timestamps: None, ..stamped(100) };
    let s = ask(&mut b, ms(100), (A, 1), &bare);
    assert_eq!((s.window_scale, s.sack_permitted, s.timestamps), (None, false, None));
    assert_eq!(s.flags, Flags::SYN.with(Flags::ACK));
    put(&mut b, ms(101), (A, 1), &ack_of(&s), b"");
    let id = accepted(&mut b);
    assert_eq!(b.conn(id).unwrap().emss(), 1400);
}

#[test]
fn test_cookies_begin_where_the_backlog_ends() {
    let mut b = b_with(|c| c.syn_cookies = SynCookies::Auto);
    let answers: Vec<_> = (1..=5).map(|p| (p, ask(&mut b, ms(1), (A, p), &syn(100)))).collect();
    let c = b.counters();
    assert_eq!((c.half_opened, c.syn_cookies_sent, c.half_open_evicted), (2, 3, 0));
    assert_eq!(b.connections(), 2);
    for (port, s) in answers {
        put(&mut b, ms(2), (A, port), &ack_of(&s), b"");
        accepted(&mut b);
    }
    assert_eq!((b.counters().accepted, b.counters().syn_cookies_accepted), (5, 3));
    // There is room again.
    ask(&mut b, ms(3), (A, 9), &syn(100));
    assert_eq!(b.counters().half_opened, 3);
}

#[test]
fn test_peer_beyond_its_half_open_connections_gets_cookies() {
    let mut b = b_with(|c| {
        (c.syn_cookies, c.peer_half_open) = (SynCookies::Auto, PeerLimit::AtMost(1));
    });
    ask(&mut b, ms(1), (A, 1), &syn(100));
    let s = ask(&mut b, ms(1), (A, 2), &syn(100));
    ask(&mut b, ms(1), (C, 1), &syn(100));
    let c = b.counters();
    assert_eq!((c.half_opened, c.syn_cookies_sent, c.peer_half_open_limited), (2, 1, 0));
    put(&mut b, ms(2), (A, 2), &ack_of(&s), b"");
    accepted(&mut b);
}

#[test]
fn test_no_segment_opens_a_connection_while_no_cookie_is_out() {
    let mut b = b_with(|c| c.syn_cookies = SynCookies::Auto);
    refused(&mut b, ms(1), (A, 1), &segment(101, 7, Flags::ACK));
    put(&mut b, ms(1), (A, 1), &segment(101, 7, Flags::ACK), b"data");
    assert_eq!(frames(&mut b, ms(1)).len(), 1, "refused as usual");
    assert_eq!(b.counters().syn_cookies_failed, 0);
}

#[test]
fn test_data_and_fin_may_complete_the_handshake_of_a_cookie() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &stamped(100));
    let fin = TxSegment { flags: Flags::ACK.with(Flags::FIN), ..ack_of(&s) };
    let FrameOutcome::Conn { conn, payload: Some(p), .. } =
        put(&mut b, ms(2), (A, 1), &fin, b"hello")
    else {
        panic!("payload")
    };
    assert_eq!((p.len, p.in_order), (5, true));
    b.accept_payload(ms(2), conn, p.pos, p.len);
    let said: Vec<_> = events(&mut b).into_iter().map(|e| e.1).collect();
    assert!(matches!(
        said[..],
        [StackEvent::Accepted { .. }, StackEvent::Conn(ConnEvent::PeerClosed)]
    ));
    assert_eq!(read_tcp(&frames(&mut b, ms(2))[0]).1.ack.0, 107);
}

/// The network loses the ACK of the handshake and the first data. The next data prove nothing; a
/// reset would end the connection of an honest client.
#[test]
fn test_later_data_wait_for_the_first_that_prove_the_handshake() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &stamped(100));
    let later = TxSegment { seq: ack_of(&s).seq.advance(5), ..ack_of(&s) };
    put(&mut b, ms(2), (A, 1), &later, b"world");
    assert_eq!((frames(&mut b, ms(2)).len(), b.counters().syn_cookies_failed), (0, 1));
    put(&mut b, ms(200), (A, 1), &ack_of(&s), b"hello");
    accepted(&mut b);
    assert_eq!(b.connections(), 1);
}

#[test]
fn test_repeated_segments_of_a_cookie_belong_to_its_connection() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &stamped(100));
    let again = ask(&mut b, ms(2), (A, 1), &stamped(100));
    assert_eq!(again.seq, s.seq, "the same SYN, the same cookie");
    put(&mut b, ms(3), (A, 1), &ack_of(&s), b"");
    accepted(&mut b);
    for seg in [ack_of(&s), ack_of(&again)] {
        put(&mut b, ms(4), (A, 1), &seg, b"");
    }
    put(&mut b, ms(4), (A, 1), &stamped(100), b"");
    assert_eq!((events(&mut b), b.connections()), (vec![], 1));
    let out = frames(&mut b, ms(4));
    assert!(out.iter().all(|f| read_tcp(f).1.flags == Flags::ACK), "a challenge");
}

#[test]
fn test_old_cookie_is_refused() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &syn(100));
    ask(&mut b, ms(120_000), (A, 2), &syn(100));
    refused(&mut b, ms(128_001), (A, 1), &ack_of(&s));
    assert_eq!(b.counters().syn_cookies_failed, 1);
    let young = ask(&mut b, ms(128_002), (A, 1), &syn(100));
    put(&mut b, ms(128_002 + 63_000), (A, 1), &ack_of(&young), b"");
    accepted(&mut b);
}

#[test]
fn test_guessed_cookies_open_nothing_and_draw_resets_within_their_budget() {
    let mut b = always();
    ask(&mut b, ms(1), (A, 1), &syn(100));
    let mut random = Random::new(&Seed::from_u64(9));
    let mut number = || u32::try_from(random.next_u64() >> 32).unwrap();
    let mut out = 0;
    for i in 0..100_000u32 {
        let now = Instant::from_nanos(2_000_000 + u64::from(i) * 100);
        let seg = segment(number(), number(), Flags::ACK);
        let port = u16::try_from(1 + i % 60_000).unwrap();
        // The worker has nothing else to do, and looks at every guess.
        b.rest();
        put(&mut b, now, (A, port), &seg, b"");
        out += frames(&mut b, now).len();
    }
    assert_eq!((b.connections(), events(&mut b)), (0, vec![]));
    assert_eq!(b.counters().syn_cookies_failed, 100_000);
    assert!(out <= 250, "{out} resets");
}

#[test]
fn test_handshake_of_a_listener_that_has_ended_is_refused() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &syn(100));
    b.unlisten(ms(2), None, PORT);
    refused(&mut b, ms(3), (A, 1), &ack_of(&s));
    // Another listener there, later, is as good.
    b.listen(None, PORT, 2).unwrap();
    put(&mut b, ms(4), (A, 1), &ack_of(&s), b"");
    accepted(&mut b);
}

#[test]
fn test_limits_of_connections_hold_at_the_end_of_the_handshake() {
    let mut b = b_with(|c| (c.max_conns, c.peer_conns) = (3, PeerLimit::AtMost(2)));
    let asks =
        |b: &mut Stack<ByteQueue>, src, port| (src, port, ask(b, ms(1), (src, port), &syn(100)));
    let all: Vec<_> = (1..=3).map(|p| asks(&mut b, A, p)).collect();
    let others: Vec<_> = (1..=2).map(|p| asks(&mut b, C, p)).collect();
    for (src, port, s) in &all[..2] {
        put(&mut b, ms(2), (*src, *port), &ack_of(s), b"");
        accepted(&mut b);
    }
    refused(&mut b, ms(2), (A, 3), &ack_of(&all[2].2));
    assert_eq!(b.counters().peer_conns_limited, 1);
    put(&mut b, ms(2), (C, 1), &ack_of(&others[0].2), b"");
    let id = accepted(&mut b);
    refused(&mut b, ms(2), (C, 2), &ack_of(&others[1].2));
    assert_eq!((b.counters().conns_full, b.connections()), (1, 3));
    // A full stack answers no SYN.
    put(&mut b, ms(2), (C, 3), &syn(1), b"");
    assert_eq!((frames(&mut b, ms(2)).len(), b.counters().conns_full), (0, 2));
    end(&mut b, id);
    frames(&mut b, ms(2));
    put(&mut b, ms(3), (C, 2), &ack_of(&others[1].2), b"");
    accepted(&mut b);
    assert_eq!((b.peers.len(), b.connections()), (2, 3), "each is counted");
}

/// A SYN for the addresses of a connection in TIME-WAIT gets a half-open connection, whose numbers
/// begin beyond that connection.
#[test]
fn test_syn_that_ends_time_wait_gets_no_cookie() {
    let mut b = always();
    let s = ask(&mut b, ms(1), (A, 1), &stamped(100));
    put(&mut b, ms(1), (A, 1), &ack_of(&s), b"");
    let id = accepted(&mut b);
    b.close(id);
    frames(&mut b, ms(1));
    let fin = TxSegment { flags: Flags::ACK.with(Flags::FIN), ack: s.seq.advance(2), ..ack_of(&s) };
    put(&mut b, ms(1), (A, 1), &fin, b"");
    b.release(id);
    frames(&mut b, ms(1));
    events(&mut b);
    assert_eq!((b.time_wait.len(), b.connections()), (1, 1));
    let newer = TxSegment { timestamps: Some(Timestamps { val: 6000, ecr: 0 }), ..stamped(50) };
    let t = ask(&mut b, ms(500), (A, 1), &newer);
    assert!(t.seq.after(s.seq.advance(1)), "{:?} {:?}", t.seq, s.seq);
    assert_eq!((b.half_opens.len(), b.conns.len(), b.counters().syn_cookies_sent), (1, 0, 1));
    put(&mut b, ms(501), (A, 1), &ack_of(&t), b"");
    accepted(&mut b);
}

#[test]
fn test_cookie_for_a_host_beyond_an_unknown_gateway_waits_for_its_next_syn() {
    let mut b = b_with(|c| {
        let us = Cidr::new(B.into(), 24).unwrap();
        c.net = Addressing::new(vec![us], vec![Route::default_via(C.into())]).unwrap();
    });
    let far = (Ipv4Addr::new(192, 0, 2, 7), 1);
    put(&mut b, ms(1), far, &syn(1), b"");
    let out = frames(&mut b, ms(1));
    assert_eq!((out.len(), &out[0][12..14]), (1, &b"\x08\x06"[..]), "it asks for the gateway");
    assert_eq!(b.counters().syn_no_neighbor, 1);
    let reply = arp_frame(wire_arp::Operation::Reply, C, MAC_A, B, MAC_B);
    b.handle_frame(ms(2), &reply[..]);
    let s = ask(&mut b, ms(1001), far, &syn(1));
    put(&mut b, ms(1002), far, &ack_of(&s), b"");
    accepted(&mut b);
}

#[test]
fn test_cookies_carry_connections_between_two_stacks_over_a_bad_wire() {
    for (seed, six) in (1..=20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let net = |mac: [u8; 6], ip: Ipv4Addr, n| {
            let mut cfg = config(mac, ip);
            let ip6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
            let addrs = [Cidr::new(ip.into(), 24), Cidr::new(ip6.into(), 64)];
            cfg.net = Addressing::new(addrs.into_iter().flatten().collect(), vec![]).unwrap();
            cfg.syn_cookies = SynCookies::Always;
            Host::new(cfg)
        };
        let mut n = Net::new(net(MAC_A, A, 1), net(MAC_B, B, 2), seed);
        n.faults = net::Faults { loss: 0.1, reorder: 0.1, duplicate: 0.1 };
        n.b.stack.listen(None, PORT, 4).unwrap();
        let to =
            if six { (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), PORT).into() } else { b_addr() };
        let a = n.a.stack.connect(n.now, to, None).unwrap();
        let data = super::transfer::pattern(50_000, 3);
        n.a.send(a, &data);
        n.run("transfer", Duration::from_secs(100), |n| {
            n.a.has(a, StackEvent::Unreachable)
                || n.b.accepted().is_some_and(|b| n.b.got(b).len() == data.len())
        });
        if n.a.has(a, StackEvent::Unreachable) {
            continue; // The wire lost all questions for the address.
        }
        assert!(n.b.got(n.b.accepted().unwrap()) == data, "seed {seed}");
        assert_eq!(n.b.stack.counters().syn_cookies_accepted, 1, "seed {seed}, {six}");
        assert_eq!(n.b.stack.counters().half_opened, 0);
    }
}

/// Returns two hosts, 10 ms from each other, of which `A` keeps nothing of a SYN.
fn far(conn: crate::ConnConfig) -> Net<Host, Host> {
    let a = StackConfig { syn_cookies: SynCookies::Always, conn, ..config_a() };
    let mut n = Net::new(Host::new(a), Host::new(config_b()), 3);
    n.latency = Duration::from_millis(10);
    n.a.stack.listen(None, PORT, 4).unwrap();
    n
}

/// Connects B to A by a cookie. Returns both ends, A's first.
fn by_cookie(n: &mut Net<Host, Host>) -> (ConnId, ConnId) {
    let b = n.b.stack.connect(n.now, (A, PORT).into(), None).unwrap();
    n.run("connect", Duration::from_secs(10), |n| {
        n.b.says(b, ConnEvent::Connected) && n.a.accepted().is_some()
    });
    let c = n.a.stack.counters();
    assert_eq!((c.syn_cookies_accepted, c.half_opened), (1, 0));
    (n.a.accepted().unwrap(), b)
}

/// The window scale of the SYN-ACK allows the window to grow as that of any other connection, within
/// the budget.
#[test]
fn test_receive_window_of_a_cookie_connection_grows() {
    let conn = crate::ConnConfig {
        recv_window: 64 << 10,
        recv_window_max: 4 << 20,
        ..crate::ConnConfig::default()
    };
    for budget in [64u32 << 20, 1 << 20] {
        let mut n = far(conn);
        let a = n.a.stack.config().clone();
        n.a = Host::new(StackConfig { recv_window_budget: budget.into(), ..a });
        n.a.stack.listen(None, PORT, 4).unwrap();
        let (a, b) = by_cookie(&mut n);
        // The handshake of a cookie measures no round trip, but the answer to a request does.
        n.a.send(a, b"reply");
        let data = super::transfer::pattern(8_000_000, 3);
        n.b.send(b, &data);
        n.run("transfer", Duration::from_secs(20), |n| n.a.got(a).len() == data.len());
        let window = n.a.stack.conn(a).unwrap().receive_window();
        let most = if budget > 4 << 20 { 4 << 20 } else { (64 << 10) + budget / 2 };
        assert!(window <= most && window > most - most / 4, "{budget}: {window}");
        assert_eq!(n.a.stack.recv_windows_grown(), u64::from(window - (64 << 10)));
        n.a.stack.abort(a);
        n.run("reset", Duration::from_secs(10), |n| n.b.says(b, ConnEvent::Reset));
        assert_eq!(n.a.stack.recv_windows_grown(), 0);
    }
}

/// The path of a cookie connection, whose MSS the cookie has rounded, carries less.
#[test]
fn test_cookie_connection_finds_the_mtu_of_its_path() {
    for silent in [false, true] {
        let mut n = far(crate::ConnConfig::default());
        let (a, b) = by_cookie(&mut n);
        (n.path_mtu, n.silent) = (Some(1300), silent);
        let data = super::transfer::pattern(400_000, 3);
        n.a.send(a, &data);
        n.run("transfer", Duration::from_secs(60), |n| n.b.got(b).len() == data.len());
        assert!(n.b.got(b) == data);
        let c = n.a.stack.conn(a).unwrap();
        assert!(c.emss() <= 1300 - 52, "{}", c.emss());
        assert_eq!(c.stats().counters.mtu_black_holes, u64::from(silent));
        assert_eq!(n.a.stack.counters().icmp_frag_needed, u64::from(!silent));
    }
}

/// Returns the frame with the mark of congestion.
fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[15] |= 3;
    frame[24..26].fill(0);
    let sum = Sum::of(&frame[14..34]).complement();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A cookie keeps whether the SYN asked for ECN. The receiver echoes a mark until the sender has
/// reduced its window, and under DCTCP with the bytes that were marked alone.
#[test]
fn test_cookie_connection_echoes_marks_as_its_algorithm_does() {
    for (algorithm, later) in [(crate::Congestion::Cubic, true), (crate::Congestion::Dctcp, false)]
    {
        let mut b = b_with(|c| {
            (c.conn.congestion, c.conn.delayed_ack) = (algorithm, Duration::ZERO);
        });
        let s = ask(&mut b, ms(1), (A, 1), &stamped(100));
        put(&mut b, ms(2), (A, 1), &ack_of(&s), b"");
        let id = accepted(&mut b);
        let mut echoes = Vec::new();
        for n in 0..4u32 {
            let seg = TxSegment { seq: ack_of(&s).seq.advance(100 * n), ..ack_of(&s) };
            let frame = tcp_frame((A, 1), (B, PORT), &seg, &[7; 100]);
            let frame = if n == 1 { marked(frame) } else { frame };
            let FrameOutcome::Conn { payload: Some(p), .. } = b.handle_frame(ms(3), &frame[..])
            else {
                panic!("data")
            };
            b.accept_payload(ms(3), id, p.pos, p.len);
            let out = frames(&mut b, ms(3));
            echoes.push(out.iter().any(|f| read_tcp(f).1.flags.has(Flags::ECE)));
        }
        assert_eq!(echoes, [false, true, later, later], "{algorithm:?}");
    }
}
