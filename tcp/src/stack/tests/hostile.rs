//! Frames that no honest peer sends: nothing panics, nothing grows, other connections continue.

use proptest::prelude::*;

use super::net::Station;
use super::transfer::pattern;
use super::*;
use crate::fuzz;

/// Checks that everything in B that frames could make grow is within its bounds.
fn check_bounds(b: &Stack<ByteQueue>) {
    let max = b.cfg.max_conns;
    assert!(b.conns.len() <= max && b.timers.len() <= max && b.ready.len() <= max);
    check_timers(b);
    assert!(b.eventful.len() <= max && b.half_opens.len() <= max && b.peers.len() <= 2 * max);
    assert!(b.control.len() <= 6 * control::MAX_EACH && b.neighbors.len() <= b.cfg.max_neighbors);
}

/// Checks that a good connection next to the bad ones works: A:1000 sends B 10 bytes and B takes
/// them.
fn check_alive(b: &mut Stack<ByteQueue>, id: ConnId, mine: &mut u32, next: u32, now: Instant) {
    let seg = segment(*mine, next, Flags::ACK);
    let out = b.handle_frame(now, &tcp_frame((A, 1000), (B, PORT), &seg, &[7; 10])[..]);
    let FrameOutcome::Conn { conn, payload: Some(p), .. } = out else { panic!("{out:?}") };
    assert_eq!((conn, p.len, p.in_order), (id, 10, true));
    b.accept_payload(now, conn, p.pos, p.len);
    *mine = mine.wrapping_add(10);
}

/// Returns good frames of other connections and of no connection, for the test to corrupt.
fn templates() -> Vec<Vec<u8>> {
    let mut m = vec![8, 0, 0, 0, 1, 2, 3, 4, 5];
    let sum = Sum::of(&m).complement();
    m[2..4].copy_from_slice(&sum.to_be_bytes());
    let (fin, rst) = (Flags::FIN.with(Flags::ACK), Flags::RST);
    let mut all = vec![
        arp_frame(wire_arp::Operation::Request, A, MAC_A, B, [0; 6]),
        arp_frame(wire_arp::Operation::Reply, A, MAC_A, B, MAC_B),
        ip_frame(A, B, 1, &m),
    ];
    for port in [2000, 2001] {
        let put = |seg, data: &[u8]| tcp_frame((A, port), (B, PORT), &seg, data);
        all.push(put(syn(99), b""));
        all.push(put(segment(100, 1, Flags::ACK), b"data"));
        all.push(put(segment(100, 1, fin), b""));
        all.push(put(segment(100, 1, rst), b""));
    }
    all
}

/// Corrects the checksums of a frame, so that the change gets through to TCP.
fn reseal(f: &mut [u8]) {
    if f.len() < 54 || f[12..14] != *b"\x08\x00" || f[14] != 0x45 || f[23] != 6 {
        return;
    }
    f[24..26].fill(0);
    let sum = Sum::of(&f[14..34]).complement();
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    let total = usize::from(u16::from_be_bytes([f[16], f[17]]));
    if !(40..=f.len() - 14).contains(&total) {
        return;
    }
    let src = Ipv4Addr::new(f[26], f[27], f[28], f[29]);
    let dst = Ipv4Addr::new(f[30], f[31], f[32], f[33]);
    f[50..52].fill(0);
    let len = u16::try_from(total - 20).unwrap();
    let sum = crate::wire::ipv4::pseudo_header(src, dst, len).plus(Sum::of(&f[34..14 + total]));
    f[50..52].copy_from_slice(&sum.complement().to_be_bytes());
}

fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (0..templates().len(), edits, any::<bool>(), any::<Option<prop::sample::Index>>()).prop_map(
        |(which, edits, seal, cut)| {
            let mut f = templates().swap_remove(which);
            for (at, v) in edits {
                // Keep the station address, or nearly no frame would get in. Keep the port of the
                // good connection too.
                let at = 6 + at.index(f.len() - 6);
                f[at] = v;
            }
            if let Some(cut) = cut {
                f.truncate(cut.index(f.len()));
            }
            if seal {
                reseal(&mut f);
            }
            f
        },
    )
}

/// Returns true if the frame claims to be of the good connection.
fn is_of_the_good_one(f: &[u8]) -> bool {
    f.len() >= 38 && f[34..36] == 1000u16.to_be_bytes() || f.get(14).is_some_and(|v| *v != 0x45)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn test_corrupted_frames_do_not_affect_a_good_connection(bad in proptest::collection::vec(spoilt(), 1..60)) {
        let mut b = listening_b(8);
        let (id, mut mine, next) = established(&mut b, ms(1));
        let mut now = ms(2);
        for f in bad.iter().filter(|f| !is_of_the_good_one(f)) {
            if let FrameOutcome::Conn { conn, payload: Some(p), .. } = b.handle_frame(now, &f[..]) {
                prop_assert!(conn != id);
                prop_assert!(p.len > 0 && p.frame_off + p.len as usize <= f.len());
                b.accept_payload(now, conn, p.pos, p.len);
            }
            check_bounds(&b);
            frames(&mut b, now);
            now = now + core::time::Duration::from_millis(3);
            b.handle_timeouts(now);
            events(&mut b);
        }
        check_alive(&mut b, id, &mut mine, next, now);
        check_alive(&mut b, id, &mut mine, next, now);
    }

    #[test]
    fn test_random_bytes_do_not_affect_a_good_connection(
        bad in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..40),
    ) {
        let mut b = listening_b(8);
        let (id, mut mine, next) = established(&mut b, ms(1));
        for mut f in bad {
            b.handle_frame(ms(2), &f[..]);
            if f.len() > 14 {
                f[..6].copy_from_slice(&MAC_B);
                f[12..14].copy_from_slice(b"\x08\x00");
                b.handle_frame(ms(2), &f[..]);
            }
            check_bounds(&b);
        }
        check_alive(&mut b, id, &mut mine, next, ms(2));
    }

    #[test]
    fn test_fuzz_entry_accepts_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
        fuzz::stack(&data);
    }

    /// Segments of the good connection itself have any numbers. A right segment may reset the
    /// connection, but nothing panics, and the reported payload lies in the frame.
    #[test]
    fn test_hostile_peer_of_a_connection_causes_no_panic(
        segs in proptest::collection::vec(
            (-70_000i64..70_000, -3000i64..3000, any::<u8>(), any::<u16>(), 0usize..1461),
            1..60,
        ),
        send in 0usize..50_000,
    ) {
        let mut b = listening_b(8);
        let (id, mine, next) = established(&mut b, ms(1));
        b.user_mut(id).unwrap().push(&pattern(send, 1));
        b.notify_send(id);
        let mut now = ms(2);
        for (seq, ack, flags, window, len) in segs {
            let near = |base: u32, d: i64| base.wrapping_add(u32::try_from(d.rem_euclid(1 << 32)).unwrap());
            let seg = TxSegment { window, ..segment(near(mine, seq), near(next, ack), Flags(flags.into())) };
            let f = tcp_frame((A, 1000), (B, PORT), &seg, &pattern(len, 2));
            if let FrameOutcome::Conn { conn, acked, payload } = b.handle_frame(now, &f[..]) {
                if let Some(upto) = acked {
                    prop_assert!(upto <= b.user(conn).unwrap().end());
                    b.user_mut(conn).unwrap().release(upto);
                }
                if let Some(p) = payload {
                    prop_assert!(p.len > 0 && p.frame_off >= 54 && p.frame_off + p.len as usize <= f.len());
                    b.accept_payload(now, conn, p.pos, p.len);
                }
            }
            check_bounds(&b);
            frames(&mut b, now);
            now = b.poll_timeout().map_or(now, |t| now.max(t.min(now + core::time::Duration::from_millis(5))));
            b.handle_timeouts(now);
            events(&mut b);
        }
    }
}

#[test]
fn test_syn_flood_leaves_other_connections_alone() {
    let mut b = listening_b(8);
    let (id, mut mine, next) = established(&mut b, ms(1));
    for i in 0..20_000u32 {
        let src = Ipv4Addr::from_bits(0x0a00_0003 + i % 200);
        let port = u16::try_from(1 + i % 60_000).unwrap();
        b.handle_frame(ms(2), &tcp_frame((src, port), (B, PORT), &syn(i), b"")[..]);
        if i % 50 == 0 {
            frames(&mut b, ms(2));
        }
        check_bounds(&b);
    }
    assert_eq!(b.connections(), 9);
    check_alive(&mut b, id, &mut mine, next, ms(3));
}

#[test]
fn test_corrupted_transfer_is_repaired() {
    let mut a = Host::new(config_a());
    let mut b = Host::new(config_b());
    b.stack.listen(None, PORT, 4).unwrap();
    let id = a.stack.connect(Instant::ZERO, b_addr(), None).unwrap();
    let data = pattern(100_000, 5);
    a.send(id, &data);
    let mut random = heddle_base::Random::new(&Seed::from_u64(3));
    let mut now = Instant::ZERO;
    while b.accepted().is_none_or(|c| b.got(c).len() < data.len()) {
        let mut spoil = |f: &mut Vec<u8>| {
            if random.chance(0.05) {
                let bit = random.below(f.len() as u64 * 8);
                f[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
            }
        };
        let mut quiet = true;
        while let Some(mut f) = a.transmit(now) {
            spoil(&mut f);
            b.handle(now, &f);
            quiet = false;
        }
        while let Some(mut f) = b.transmit(now) {
            spoil(&mut f);
            a.handle(now, &f);
            quiet = false;
        }
        if quiet {
            now =
                now.max(a.next_timeout(now).into_iter().chain(b.next_timeout(now)).min().unwrap());
        }
        assert!(now < ms(3_000_000));
        a.tick(now);
        b.tick(now);
    }
    assert!(b.got(b.accepted().unwrap()) == data);
    assert!(b.stack.counters().rx_bad_tcp_checksum > 0);
}
