//! Flow control: closed and shrunk windows of the peer, probes, and our own window.

use super::*;

fn shut() -> Bench {
    let mut b = Bench::established();
    b.window = 0;
    b.ack(0);
    b
}

/// Returns a bench with a shut window and SACK, after data has flowed.
fn shut_with_sack() -> Bench {
    let mut b = Bench::established_with(&ConnConfig { sack: true, ..plain() });
    b.queue(10_000);
    b.sent();
    b.now = b.now + MS;
    b.ack(10_000);
    b.window = 0;
    b.ack(10_000);
    b
}

/// Each probe's answer, an ACK with nothing new, leaves the backoff unchanged.
#[test]
fn test_zero_window_probes_back_off_with_sack() {
    for len in [5000, 0] {
        let mut b = shut_with_sack();
        b.queue(len);
        if len == 0 {
            b.c.close();
        }
        b.sent();
        let (start, mut at) = (b.now, Vec::new());
        while b.now - start < Duration::from_secs(10) {
            b.now = b.c.poll_timeout().unwrap();
            b.c.handle_timeout(b.now);
            for s in b.sent() {
                assert!(s.contains(" 10000"), "{s}");
                at.push((b.now - start).as_millis());
                b.now = b.now + MS;
                b.ack(10_000);
                assert_eq!(b.sent(), strings(&[]));
            }
        }
        assert!(at.len() < 16, "{} probes in 10 s: {at:?}", at.len());
        assert!(at.windows(3).all(|w| w[2] - w[1] + 10 >= 2 * (w[1] - w[0])), "{at:?}");
        assert_eq!(b.c.state().closing(), len == 0);
    }
}

/// RFC 9293 section 3.10.7.4, first check: the peer drops an ACK beyond its window. The ACK goes
/// out at the highest number that the peer accepts.
#[test]
fn test_ack_goes_out_inside_a_window_that_shut_or_shrank() {
    for sack in [false, true] {
        for (window, at) in [(0, 1000), (300, 1300), (9000, 10_000), (60_000, 10_000)] {
            let mut b = Bench::established_with(&ConnConfig { sack, ..plain() });
            b.queue(10_000);
            b.sent();
            b.window = window;
            b.ack(1000);
            b.sent();
            b.data(0, 1000);
            b.data(1000, 1000);
            assert_eq!(b.sent(), [format!(". {at} ack 2000")], "sack {sack}, window {window}");
            // The same holds for an ACK that reports a gap.
            b.data(3000, 100);
            let blocks = if sack { " sack 3000-3100" } else { "" };
            assert_eq!(b.sent(), [format!(". {at} ack 2000{blocks}")]);
            // The same holds for a reset, which the peer would drop too.
            b.c.abort();
            assert_eq!(b.sent(), [format!("R. {at} ack 2000")]);
        }
    }
}

/// A probe that was sent into a shut window has a number that the peer did not take.
#[test]
fn test_ack_after_a_window_probe_is_where_the_peer_stands() {
    let mut b = shut();
    b.queue(5000);
    b.sent();
    assert_eq!(b.wait(200 * MS).len(), 1);
    assert_eq!(b.c.snd_max(), StreamPos(1));
    b.data(0, 1000);
    b.data(1000, 1000);
    assert_eq!(b.sent(), [". 0 ack 2000"]);
}

/// RFC 9293 section 3.8.6.1: MUST-36, MUST-37, SHLD-29, SHLD-30.
#[test]
fn test_zero_window_is_probed_with_backoff_and_stays_open() {
    let mut b = shut();
    b.queue(5000);
    assert_eq!(b.sent(), strings(&[]));
    let mut at = Vec::new();
    for _ in 0..400 {
        for (t, s) in b.wait(1000 * MS) {
            assert!(s.starts_with(". 0+1 ack 0"), "{s}");
            at.push((b.now - Instant::from_millis(1_001_000)).as_millis() + t);
        }
        b.ack(0);
    }
    assert_eq!(at[..6], [200, 600, 1400, 3000, 6200, 12_600]);
    assert!(at.windows(2).all(|w| w[1] - w[0] <= 60_000));
    assert_eq!(b.c.state(), State::Established);
    assert_eq!(b.events(), [ConnEvent::Stalled]);
}

#[test]
fn test_zero_window_without_answers_times_out() {
    let mut b = shut();
    b.queue(5000);
    b.sent();
    b.wait(Duration::from_secs(119));
    assert_eq!(b.c.state(), State::Established);
    b.wait(Duration::from_secs(120));
    assert_eq!(b.events(), [ConnEvent::TimedOut]);
}

#[test]
fn test_zero_window_opens_and_the_whole_record_goes() {
    let mut b = shut();
    b.queue(3000);
    b.sent();
    b.wait(200 * MS);
    b.window = 2000;
    b.ack(0);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again", ". 1000+1000 ack 0"]);
    b.ack(2000);
    assert_eq!(b.sent(), ["P. 2000+1000 ack 0"]);
    b.ack(3000);
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_zero_window_probe_byte_may_be_taken() {
    let mut b = shut();
    b.queue(3000);
    b.sent();
    b.wait(200 * MS);
    assert_eq!(b.ack(1).acked, Some(StreamPos(1)));
    assert_eq!(b.sent(), strings(&[]));
    let again = b.wait(10_000 * MS);
    assert_eq!(again[0].1, ". 1+1 ack 0");
}

#[test]
fn test_zero_window_fin_is_the_probe_when_nothing_else_waits() {
    let mut b = shut();
    b.c.close();
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.wait(200 * MS), [(200, "F. 0 ack 0".to_string())]);
    b.window = 100;
    b.ack(0);
    assert_eq!(b.sent(), ["F. 0 ack 0 again"]);
    b.ack(1);
    assert_eq!(b.c.state(), State::FinWait2);
}

#[test]
fn test_no_probe_when_nothing_is_queued() {
    let mut b = shut();
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.c.poll_timeout(), None);
}

/// RFC 9293 section 3.8.6: MUST-34, MUST-35, SHLD-15, SHLD-16, SHLD-17.
#[test]
fn test_shrunk_window_stops_new_data_and_repeats_what_fits() {
    let mut b = Bench::established();
    b.queue(20_000);
    assert_eq!(b.sent().len(), 10);
    b.window = 2000;
    b.ack(1000);
    assert_eq!(b.sent(), strings(&[]), "the usable window is negative");
    let out: Vec<_> = b.wait(200 * MS).into_iter().map(|(_, s)| s).collect();
    assert_eq!(out, [". 1000+1000 ack 0 again"]);
    b.ack(2000);
    assert_eq!(b.sent(), [". 2000+1000 ack 0 again", ". 3000+1000 ack 0 again"]);
}

#[test]
fn test_window_shrunk_to_zero_is_probed_and_never_times_out() {
    let mut b = Bench::established();
    b.queue(20_000);
    b.sent();
    b.window = 0;
    b.ack(1000);
    for _ in 0..300 {
        let out = b.wait(1000 * MS);
        assert!(out.iter().all(|(_, s)| s == ". 1000+1 ack 0 again"), "{out:?}");
        b.ack(1000);
    }
    assert_eq!(b.c.state(), State::Established);
    assert_eq!(b.c.stats().counters.timeouts, 0);
    b.window = 10_000;
    b.ack(1000);
    assert_eq!(b.sent().len(), 10);
}

#[test]
fn test_window_zero_and_open_again_keeps_the_timer() {
    let mut b = Bench::established();
    b.queue(5000);
    b.sent();
    b.window = 0;
    b.ack(1000);
    b.window = 5000;
    b.ack(1000);
    assert_eq!(b.c.poll_timeout(), Some(b.now + b.c.stats().rto));
}

/// The override of RFC 9293 section 3.8.6.2.1: the connection uses a small window in the end.
#[test]
fn test_small_window_is_used_after_a_while() {
    let mut b = Bench::established();
    b.window = 100;
    b.ack(0);
    b.queue(1000);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.wait(200 * MS), [(200, ". 0+100 ack 0".to_string())]);
    b.ack(100);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.wait(1000 * MS).len(), 1);
}

#[test]
fn test_old_window_is_ignored() {
    let mut b = Bench::established();
    b.data(0, 100);
    b.queue(100);
    b.sent();
    b.ack(100);
    b.window = 5;
    // The peer sends an older acknowledgment with the same sequence number.
    let s = b.seg(100, 50);
    b.recv(&s);
    assert_eq!(b.c.stats().snd_wnd, 65_535);
    b.ack(100);
    assert_eq!(b.c.stats().snd_wnd, 5);
}

/// RFC 9293 MUST-1: a window with the top bit set is large, not negative.
#[test]
fn test_large_window_is_not_negative() {
    let cfg = ConnConfig { timestamps: false, ..ethernet() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.recv(&Segment { window_scale: Some(14), ..b.seg(-1, 0).with(SYN_ACK) });
    b.ack(0);
    assert_eq!(b.c.stats().snd_wnd, 65_535 << 14);
    assert!(b.c.send_room(StreamPos(0)) > 0);
}

#[test]
fn test_own_window_closes_as_bytes_arrive_and_edge_stays() {
    let mut b = Bench::established();
    b.c.set_recv_window(0);
    assert_eq!(b.sent(), strings(&[]));
    for i in 0..10 {
        assert_eq!(b.data(i * 1000, 1000).unwrap().len, 1000);
        if let Some(tx) = b.tx() {
            assert_eq!(u64::from(tx.window), 10_000 - b.c.rcv_nxt().0);
        }
    }
    b.wait(50 * MS);
    // The window is shut: a probe gets an ACK and leaves nothing, though its ACK field counts.
    b.queue(10);
    b.sent();
    let probe = Segment { len: 1, ..b.seg(10_000, 10) };
    let out = b.recv(&probe);
    assert_eq!((out.payload, out.acked), (None, Some(StreamPos(10))));
    let tx = b.tx().unwrap();
    assert_eq!((tx.window, show(&tx)), (0, ". 10 ack 10000".to_string()));
}

/// RFC 9293 MUST-39: the window opens by a segment or half of it, not by tiny steps.
#[test]
fn test_own_window_opens_in_steps() {
    let closed = || {
        let mut b = Bench::established();
        b.c.set_recv_window(0);
        for i in 0..10 {
            b.data(i * 1000, 1000);
        }
        b.sent();
        b
    };
    let mut b = closed();
    b.c.set_recv_window(1);
    assert_eq!(b.tx().map(|t| t.window), Some(1), "half of a tiny window is a byte");
    let mut b = closed();
    b.c.set_recv_window(10_000);
    assert_eq!(b.tx().map(|t| t.window), Some(10_000));
    // If the window is already open, less than half of it is not worth a segment of its own.
    let mut b = Bench::established();
    b.c.set_recv_window(10_999);
    assert_eq!(b.tx(), None);
    b.c.set_recv_window(30_000);
    assert_eq!(b.tx().map(|t| t.window), Some(30_000));
}

#[test]
fn test_own_window_moves_only_by_a_segment() {
    let mut b = Bench::established();
    b.data(0, 999);
    b.wait(50 * MS);
    let mut b2 = Bench { c: b.c.clone(), q: ByteQueue::default(), ..b };
    b.data(999, 0);
    b.queue(1);
    assert_eq!(b.tx().unwrap().window, 10_000 - 999);
    b2.data(999, 1);
    b2.q.push(b"x");
    assert_eq!(b2.tx().unwrap().window, 10_000);
}

/// RFC 7323 section 2.4: the edge never moves left through rounding by the scale.
#[test]
fn test_own_edge_never_moves_left_whatever_the_owner_does() {
    let cfg = ConnConfig { recv_window: 1 << 22, timestamps: false, ..ethernet() };
    let mut b = Bench::connecting(&cfg);
    let shift = b.tx().unwrap().window_scale.unwrap();
    b.recv(&Segment { window_scale: Some(0), ..b.seg(-1, 0).with(SYN_ACK) });
    let mut edge = 0;
    let mut r = heddle_base::Random::new(&heddle_base::Seed::from_u64(3));
    let mut seq = 0i32;
    for _ in 0..5000 {
        match r.below(4) {
            0 => b.c.set_recv_window(u32::try_from(r.below(1 << 23)).unwrap()),
            1 => b.c.set_recv_window(u32::try_from(r.below(300)).unwrap()),
            _ => {
                if let Some(p) = b.data(seq, u32::try_from(r.below(1400)).unwrap()) {
                    seq += i32::try_from(p.len).unwrap();
                }
            }
        }
        b.now = b.now + 20 * MS;
        b.c.handle_timeout(b.now);
        while let Some(t) = b.tx() {
            let e = b.c.rcv_nxt().0 + (u64::from(t.window) << shift);
            assert!(e >= edge, "{e} < {edge}");
            edge = e;
        }
    }
    assert!(seq > 0);
}
