//! Keepalives: RFC 1122 section 4.2.3.6, RFC 9293 section 3.8.4.

use super::*;
use crate::Keepalive;

const IDLE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(5);

fn probing() -> ConnConfig {
    let keepalive = Some(Keepalive { idle: IDLE, interval: INTERVAL, count: 3 });
    ConnConfig { keepalive, ..plain() }
}

#[test]
fn test_keepalives_are_off_by_default() {
    assert_eq!(ConnConfig::default().keepalive, None);
    assert!(Keepalive::default().idle >= Duration::from_secs(2 * 3600));
    let mut b = Bench::established();
    assert_eq!(b.c.poll_timeout(), None);
    assert_eq!(b.wait(Duration::from_secs(100_000)), []);
    assert_eq!(b.c.state(), State::Established);
}

/// A probe has no data and the number before the next; several probes go unanswered before the end.
#[test]
fn test_vanished_peer_is_reported_as_timed_out() {
    for state in [State::Established, State::CloseWait] {
        let mut b = Bench::in_state_with(&probing(), state);
        let seen = i32::from(state == State::CloseWait);
        let out = b.wait(IDLE + INTERVAL * 3 - MS);
        let probe = format!(". -1 ack {seen}");
        assert_eq!(out, [60_000, 65_000, 70_000].map(|t| (t, probe.clone())));
        assert_eq!((b.c.state(), b.events()), (state, vec![]));
        assert_eq!(b.wait(MS), [(1, format!("R. 0 ack {seen}"))]);
        assert_eq!((b.c.state(), b.events()), (State::Closed, vec![ConnEvent::TimedOut]));
        assert_eq!((b.c.poll_timeout(), b.c.stats().counters.keepalives), (None, 3));
    }
}

#[test]
fn test_connection_survives_while_peer_answers_keepalives() {
    let mut b = Bench::established_with(&probing());
    for _ in 0..10 {
        // Two probes are lost each time.
        assert_eq!(b.wait(IDLE + INTERVAL * 2).len(), 3);
        b.ack(0);
    }
    assert_eq!((b.c.state(), b.events()), (State::Established, vec![]));
}

/// Any acceptable segment is a sign of life, data or ACK; silence counts from the last segment.
#[test]
fn test_keepalive_idle_time_counts_from_last_acceptable_segment() {
    let mut b = Bench::established_with(&probing());
    assert_eq!(b.wait(IDLE - MS), []);
    b.data(0, 1000);
    assert_eq!(b.wait(40 * MS).len(), 1);
    assert_eq!(b.wait(IDLE - 41 * MS), []);
    b.ack(0);
    assert_eq!(b.wait(IDLE - MS), []);
    assert_eq!(b.wait(MS), [(1, ". -1 ack 1000".into())]);
    // An unacceptable segment proves nothing.
    b.recv(&b.seg(100_000, 0));
    b.sent();
    assert_eq!(b.wait(INTERVAL * 3).last().unwrap().1, "R. 0 ack 1000");
}

/// Bytes that are outstanding, or wait for a window, have timers of their own.
#[test]
fn test_keepalives_are_not_sent_while_data_is_outstanding_or_queued() {
    let cfg = ConnConfig { user_timeout: Duration::from_secs(1000), ..probing() };
    let mut b = Bench::established_with(&cfg);
    b.queue(500);
    b.sent();
    assert!(b.wait(IDLE * 5).iter().all(|(_, s)| s.contains("0+500")));
    assert_eq!(b.c.state(), State::Established);
    let mut b = Bench::established_with(&cfg);
    b.window = 0;
    b.ack(0);
    b.queue(500);
    b.sent();
    assert!(b.wait(IDLE * 5).iter().all(|(_, s)| s.contains("0+1")));
    assert_eq!(b.c.stats().counters.keepalives, 0);
}

#[test]
fn test_keepalives_are_switched_per_connection() {
    let mut b = Bench::established_with(&probing());
    b.wait(IDLE / 2);
    b.c.set_keepalive(b.now, None);
    assert_eq!(b.wait(IDLE * 10), []);
    assert_eq!(b.c.poll_timeout(), None);
    let mut b = Bench::established();
    b.wait(IDLE / 2);
    b.c.set_keepalive(b.now, probing().keepalive);
    assert_eq!(b.wait(IDLE / 2), [(30_000, ". -1 ack 0".into())]);
    // The state after the last FIN has a timer of its own.
    let mut b = Bench::in_state_with(&probing(), State::TimeWait);
    b.c.set_keepalive(b.now, probing().keepalive);
    b.wait(1000 * MS);
    assert_eq!(b.c.state(), State::Closed);
}

/// A connection of the same kind answers the probes, over and over.
#[test]
fn test_two_ends_keep_each_other_alive() {
    let mut p = pair::Pair::new([&probing(), &probing()], pair::Link::default(), 1);
    let end = p.now + IDLE * 20;
    while p.now < end {
        assert!(p.step());
    }
    for e in &p.ends {
        assert_eq!(e.events, [ConnEvent::Connected]);
        assert!(e.c.counters().keepalives >= 9, "{:?}", e.c.counters());
    }
    p.lose_everything();
    p.run(IDLE * 2);
    for e in &p.ends {
        assert_eq!(e.events, [ConnEvent::Connected, ConnEvent::TimedOut]);
    }
}
