//! Pacing: what leaves when, on paths with long round trips and with short ones.

use super::*;
use crate::stack::Train;

const RTT: Duration = Duration::from_millis(40);

/// Returns a bench with a round trip of `rtt` and a window of 20 segments, all of which may go.
fn twenty_segments(cfg: &ConnConfig, rtt: Duration) -> Bench {
    let mut b = Bench::connecting(cfg);
    b.sent();
    b.now = b.now + rtt;
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    b.sent();
    b.events();
    b.queue(40_000);
    assert_eq!(b.sent().len(), 10, "the initial window goes at once");
    b.now = b.now + rtt;
    b.ack(10_000);
    assert_eq!(b.c.stats().cwnd, 20_000);
    b
}

/// In slow start two windows pass in a round trip, two segments at a time.
#[test]
fn test_new_data_are_spread_over_a_long_round_trip() {
    let mut b = twenty_segments(&plain(), RTT);
    assert_eq!(b.sent().len(), 2);
    assert_eq!(b.sent(), [""; 0], "not before its time");
    let rest = b.wait(RTT);
    assert_eq!(rest.len(), 18);
    for (n, (at, _)) in rest.iter().enumerate() {
        assert_eq!(*at, 2 * (n as u128 / 2 + 1), "{rest:?}");
    }
}

#[test]
fn test_nothing_waits_where_round_trips_are_short_or_pacing_is_off() {
    let off = ConnConfig { pacing: Pacing::Off, ..plain() };
    for (cfg, rtt) in [(plain(), MS), (off, RTT)] {
        let mut b = twenty_segments(&cfg, rtt);
        assert_eq!(b.sent().len(), 20, "{rtt:?}");
    }
}

/// Retransmissions, ACKs and a lone FIN do not wait.
#[test]
fn test_only_new_data_wait_for_their_pace() {
    let mut b = twenty_segments(&ConnConfig { sack: false, ..plain() }, RTT);
    assert_eq!(b.sent().len(), 2);
    for _ in 0..3 {
        b.ack(10_000);
    }
    b.data(0, 1000);
    b.data(1000, 1000);
    assert_eq!(b.sent(), [". 10000+1000 ack 2000 again"], "a retransmission, with the ACK");
    b.data(2000, 1000);
    b.data(3000, 1000);
    assert_eq!(b.sent(), [". 12000 ack 4000"], "an ACK");
}

/// A train has no more bytes than the pace allows at once.
#[test]
fn test_train_is_cut_to_the_pace() {
    let mut b = twenty_segments(&plain(), RTT);
    let mut first = b.tx().unwrap();
    let train = Train { segments: 32, by_port: false };
    let (segments, bytes) = b.c.extend(&b.q, &mut first, train);
    assert_eq!((segments, bytes), (2, 2000));
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.wait(2 * MS).len(), 2);
}

/// A connection that sent nothing for a while has saved up no more than a burst.
#[test]
fn test_idle_time_saves_up_one_burst() {
    let mut b = twenty_segments(&plain(), RTT);
    b.sent();
    b.wait(RTT);
    b.ack(30_000);
    b.now = b.now + 150 * MS;
    b.queue(40_000);
    assert!(b.sent().len() <= 3);
}
