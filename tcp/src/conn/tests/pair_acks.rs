//! Runs of the [`Pair`](super::pair::Pair) with receivers that acknowledge seldom, late or not at
//! all.

use super::pair::{Link, Pair};
use super::pair_runs::{HOUR, fabric, pair};
use super::*;

/// The sender sends a megabyte after a pause to a receiver that acknowledges once per burst. A
/// window that had grown survives the pause, and a window that begins anew doubles with each round
/// trip.
#[test]
fn test_pair_keeps_its_rate_with_stretch_acks() {
    for gather in [5u32, 20, 50] {
        let link = Link { gather: gather * MS / 1000, queue: 4000, ..fabric(0.0) };
        let mut p = pair(link, 7);
        p.ends[0].total = 1 << 20;
        let start = p.now;
        while p.ends[0].c.snd_una().0 < 1 << 20 {
            assert!(p.step());
        }
        let rtt = MS / 10 + 2 * link.gather;
        // 10 segments, doubled: 7 round trips make 1,270. Add the time on the wire.
        assert!(p.now - start < rtt * 9 + MS, "{:?}, {gather}", p.now - start);
        // Twenty milliseconds of silence follow.
        while p.now - start < 20 * MS {
            if !p.step() {
                p.now = start + 20 * MS;
            }
        }
        p.ends[0].total = 2 << 20;
        let again = p.now;
        p.pump(0);
        while p.ends[0].c.snd_una().0 < 2 << 20 {
            assert!(p.step());
        }
        assert!(p.now - again < rtt * 4 + MS, "{:?}, {gather}", p.now - again);
        p.run_orderly(HOUR);
    }
}

#[test]
fn test_pair_stretch_acks_under_loss() {
    for seed in 0..20 {
        let link = Link { gather: 30 * MS / 1000, reorder: 0.01, ..fabric(0.01) };
        let mut p = pair(link, 7000 + seed);
        p.ends[0].total = 2_000_000;
        p.ends[1].total = 500_000;
        p.run_orderly(HOUR);
    }
}

/// With long round trips more bursts are in flight than the scoreboard has entries for. The merged
/// bursts may neither shorten a measured round trip nor hide a loss for long.
#[test]
fn test_pair_hundreds_of_bursts_in_a_round_trip() {
    let cfg = ConnConfig { recv_window: 8 << 20, ..ethernet() };
    for (loss, seed) in [(0.0, 0), (0.0005, 1), (0.0005, 2), (0.005, 3)] {
        let link = Link { latency: 5 * MS, rate: 1_250_000_000, loss, queue: 9000, ..fabric(0.0) };
        let mut p = Pair::new([&cfg, &cfg], link, 8000 + seed);
        p.ends[0].total = 20_000_000;
        p.close_when_sent();
        let (mut most, mut last, mut next) = (0, 0, p.now);
        while !p.done() {
            assert!(p.step());
            if p.now >= next {
                most = most.max(p.ends[0].sends - last);
                (last, next) = (p.ends[0].sends, p.now + 10 * MS);
            }
            let s = p.ends[0].c.stats();
            if s.srtt.is_some() {
                assert!(s.srtt >= Some(10 * MS), "{s:?}");
                assert!(s.rto >= 10 * MS, "{s:?}");
            }
        }
        assert!(loss > 0.001 || most > 256, "{most} bursts at most");
        let s = p.ends[0].c.stats();
        assert_eq!(s.counters.spurious_timeouts, 0, "{s:?}");
        p.run_orderly(HOUR);
    }
}

/// A peer reports everything as SACKed and acknowledges nothing (RFC 2018 section 8). The sender
/// sends the left edge again, and if that does not help it reports this to the owner.
#[test]
fn test_pair_retransmits_when_all_is_sacked_and_nothing_acknowledged() {
    for (seed, relents) in (0..8).zip([true, false].into_iter().cycle()) {
        let loss = if seed < 4 { 0.0 } else { 0.02 };
        let mut p = pair(fabric(loss), 9000 + seed);
        p.ends[0].total = 100_000;
        while p.ends[0].c.snd_una().0 < 20_000 {
            assert!(p.step());
        }
        let una = p.ends[0].c.snd_una();
        p.ends[0].acks_end_at = Some(p.ends[0].c.snd_seq(una));
        let start = p.now;
        while p.now - start < 2000 * MS {
            assert!(p.step(), "seed {seed}: silence");
        }
        assert!(p.ends[0].c.counters().bad_sacks > 0);
        assert_eq!(p.ends[0].c.snd_una(), una);
        if relents {
            p.ends[0].acks_end_at = None;
            p.run_orderly(HOUR);
        } else {
            while p.ends[0].c.state() != State::Closed {
                assert!(p.step(), "seed {seed}: silence");
            }
            assert_eq!(p.ends[0].events.last(), Some(&ConnEvent::TimedOut));
        }
    }
}

/// Lone messages go to and fro, as in a ping-pong. Once the sender knows that the peer answers at
/// once, a lost message costs a few milliseconds, and not the longest delay of an ACK.
#[test]
fn test_pair_lone_messages_are_repaired_fast_once_the_peer_is_known() {
    let mut p = pair(fabric(0.0), 11);
    while p.ends[1].c.state() != State::Established {
        p.step();
    }
    let exchange = |p: &mut Pair| {
        let start = p.now;
        for side in 0..2 {
            p.ends[side].total += 64;
            p.pump(side);
            while p.ends[1 - side].received < p.ends[side].total {
                assert!(p.step());
            }
        }
        p.now - start
    };
    for _ in 0..40 {
        assert!(exchange(&mut p) < MS);
    }
    p.set_loss(0.02);
    let mut slowest = Duration::ZERO;
    for _ in 0..1000 {
        slowest = slowest.max(exchange(&mut p));
    }
    assert!(p.ends[0].c.counters().retransmits > 10);
    assert!(slowest < 40 * MS, "{slowest:?}");
    p.set_loss(0.0);
    p.run_orderly(HOUR);
}

/// A peer holds back the ACK of a lone segment for 40 ms, as Linux does: a short connection sends
/// nothing twice.
#[test]
fn test_pair_short_connections_to_a_slow_acker_send_nothing_twice() {
    let linux = ConnConfig { delayed_ack: 40 * MS, ..ethernet() };
    for seed in 0..50 {
        let mut p = Pair::new([&ethernet(), &linux], fabric(0.0), 10_000 + seed);
        p.ends[0].total = 20 + seed * 40;
        while p.ends[0].c.snd_una().0 < p.ends[0].total {
            assert!(p.step());
        }
        p.ends[0].total += 64;
        p.pump(0);
        p.run_orderly(HOUR);
        assert_eq!(p.ends[0].c.counters().retransmits, 0, "{seed}");
    }
}
