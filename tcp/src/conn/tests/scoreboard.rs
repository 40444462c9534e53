//! Delicate cases of the scoreboard: reports that contradict themselves, and round trips of bytes
//! that were sent more than once, or merged with others.

use super::super::scoreboard::{Delivered, Scoreboard};
use super::rack::{RTT, ten_out};
use super::*;

/// RFC 2018 section 8: after a timeout the sender sends the segment at the left edge again although
/// the peer reported it, and the connection never waits without a timer.
#[test]
fn test_timeout_retransmits_left_edge_although_it_was_sacked() {
    for blocks in [&[(0, 10_000)][..], &[(0, 1000)], &[(0, 4000), (5000, 10_000)]] {
        let mut b = ten_out(0);
        b.now = b.now + RTT;
        b.sack(0, blocks);
        assert_eq!(b.count().bad_sacks, 1, "it contradicts the acknowledgment beside it");
        while b.count().timeouts == 0 {
            let out = b.fire();
            assert!(b.c.poll_timeout().is_some(), "{blocks:?}: silence after {out:?}");
        }
        b.sack(0, blocks);
        let again = b.wait(Duration::from_secs(1));
        assert!(again.iter().any(|(_, s)| s.starts_with(". 0+1000")), "{blocks:?}: {again:?}");
        b.sack(10_000, &[]);
        assert_eq!((b.c.snd_una(), b.c.poll_timeout()), (StreamPos(10_000), None));
    }
    // If the peer continues like that, the connection reports the timeout to the owner.
    let mut b = ten_out(0);
    b.sack(0, &[(0, 10_000)]);
    b.wait(Duration::from_secs(300));
    assert_eq!(b.events().last(), Some(&ConnEvent::TimedOut));
}

/// However many bursts are in flight in a round trip, no measured round trip is too short.
#[test]
fn test_round_trips_are_not_shortened_by_merged_bursts() {
    let rtt = 100 * MS;
    let mut b = Bench::connecting(&ConnConfig { sack: true, ..plain() });
    b.sent();
    b.now = b.now + rtt;
    b.recv(&Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) });
    let (mut sent, mut acked) = (Vec::new(), 0i32);
    for n in 0..4000 {
        // Every 100 us ten bytes go out, and the peer reports the bytes of a round trip ago.
        b.now = b.now + MS / 10;
        b.queue(10);
        b.sent();
        sent.push(b.now);
        while sent.get(usize::try_from(acked).unwrap()).is_some_and(|&at| b.now - at >= rtt) {
            acked += 1;
            // The peer reports every other burst by a SACK, ahead of a gap that closes with the
            // next.
            if acked % 2 == 0 {
                b.sack(10 * acked, &[]);
            } else {
                let next = 10 * (acked - 1);
                b.sack(next, &[(next + 1, next + 10)]);
            }
        }
        let s = b.c.stats();
        if n > 2000 {
            assert!(s.srtt >= Some(rtt * 97 / 100), "{n}: {s:?}");
            assert!(s.srtt <= Some(rtt * 105 / 100), "{n}: {s:?}");
        }
    }
}

/// Karn's rule for a timeout in the middle of a recovery: bytes that were sent twice, but by the
/// lists only once, measure nothing.
#[test]
fn test_sender_takes_no_rtt_sample_after_timeout_in_recovery() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(3000, 10_000)]);
    assert_eq!(b.sent().len(), 3, "holes go again");
    while b.count().timeouts == 0 {
        b.fire();
    }
    let srtt = b.c.stats().srtt;
    // The transmission before the timeout arrives, only for bytes that were not sent a third time.
    b.now = b.now + 300 * MS;
    b.sack(0, &[(1000, 10_000)]);
    assert_eq!(b.c.stats().srtt, srtt);
    b.sack(10_000, &[]);
    assert_eq!(b.c.stats().srtt, srtt);
}

/// Karn's rule when the connection sends everything anew: the ACK answers the first transmission,
/// and the connection does not measure it from the second.
#[test]
fn test_sender_takes_no_rtt_sample_after_resending_everything() {
    let mut b = ten_out(0);
    let srtt = b.c.stats().srtt;
    b.now = b.now + RTT;
    b.c.limit_emss(b.now, 900);
    assert!(!b.sent().is_empty());
    b.now = b.now + RTT / 1000;
    b.sack(0, &[(900, 1800)]);
    b.sack(10_000, &[]);
    assert_eq!(b.c.stats().srtt, srtt);
}

/// The scoreboard also finds a loss among many bursts no later than about a round trip and the
/// reordering window after the bytes were sent.
#[test]
fn test_a_loss_among_a_thousand_bursts_is_found_in_time() {
    let rtt = 100 * MS;
    let mut b = Bench::connecting(&ConnConfig { sack: true, ..plain() });
    b.sent();
    b.now = b.now + rtt;
    b.recv(&Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) });
    b.sent();
    let start = b.now;
    for _ in 0..1000 {
        b.queue(10);
        assert_eq!(b.sent().len(), 1);
        b.now = b.now + MS / 10;
    }
    // The first ten bytes are lost.
    let mut again = None;
    for n in 1..1000 {
        b.now = b.now + MS / 10;
        b.sack(0, &[(10, 10 * (n + 1))]);
        b.c.handle_timeout(b.now);
        if b.sent().iter().any(|s| s.starts_with(". 0+")) {
            again = Some(b.now - start);
            break;
        }
    }
    assert!(again < Some(rtt * 129 / 100) && again > Some(rtt), "{again:?}");
}

/// There are more bursts than the scoreboard remembers, each far from the last. The scoreboard
/// merges the oldest bursts, which then measure no round trip, because the result would be too
/// short.
#[test]
fn test_bursts_beyond_those_remembered_are_merged_and_not_measured() {
    let (mut board, start) = (Scoreboard::default(), Instant::from_millis(1000));
    let at = |n: u32| start + MS * n;
    let pos = |n: u32| StreamPos(u64::from(n) * 10);
    for n in 0..300 {
        board.on_burst(StreamPos::START, pos(n), at(n), 0);
        board.check(StreamPos::START, pos(n + 1));
    }
    let acked = |from: u32, to: u32| {
        let mut d = Delivered::default();
        board.clone().acked(at(400), pos(from), pos(to), MS, &mut d);
        (d.bytes, d.sent_once)
    };
    // The scoreboard remembers 256 bursts; the first entry stands for 45.
    for n in [0, 1, 20, 44] {
        assert_eq!(acked(n, n + 1), (10, None), "burst {n}");
    }
    for n in [45, 46, 100, 299] {
        assert_eq!(acked(n, n + 1), (10, Some(at(n))), "burst {n}");
    }
}
