//! Streams that end in order: each half closes by itself, and both sides learn of it (RFC 5041
//! section 6.2.1, RFC 5044 section 7.2).

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE};
use heddle_iwarp::QpConfig;
use heddle_rnic::Event;
use heddle_tcp::ConnConfig;
use heddle_types::{Access, CloseReason, ConnId, CqeStatus, RecvWr, SendWr, Sge};

fn pair(loss: f64) -> (Pair, [ConnId; 2]) {
    let mut p = Pair::new(5, LinkConfig::default(), 1 << 12);
    let conns = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    p.link.loss = loss;
    (p, conns)
}

fn told(p: &Pair, host: usize, f: impl Fn(&Event) -> bool) -> bool {
    p.hosts[host].events.iter().any(f)
}

fn is_peer_closed(e: &Event) -> bool {
    matches!(e, Event::PeerClosed { .. })
}

fn is_closed(e: &Event) -> bool {
    matches!(e, Event::Closed { .. })
}

/// Lets time pass while only timers run.
fn sleep(p: &mut Pair, time: Duration) {
    let until = p.now + time;
    while p.next().is_some_and(|at| at <= until) {
        p.step();
    }
    p.now = until;
}

fn is_orderly(e: &Event) -> bool {
    matches!(e, Event::Closed { reason: CloseReason::Orderly, .. })
}

/// Side 0 is done: its posted requests arrive before its FIN does, and side 1 gets an event for the
/// FIN. The half of side 1 goes on until side 1 closes it; only then the connection is over, for
/// both sides.
#[test]
fn test_each_half_closes_by_itself_and_is_reported_to_both_sides() {
    for loss in [0.0, 0.1] {
        let (mut p, [a, b]) = pair(loss);
        let target = p.register(0, 0, 1 << 12, Access::REMOTE_WRITE).stag;
        p.hosts[1].rnic.post_recv(b, &RecvWr::new(1, &[])).unwrap();
        p.hosts[0].rnic.post_send(a, &SendWr::send(2, &[])).unwrap();
        p.hosts[0].rnic.disconnect(p.now, a);
        p.run(Duration::from_secs(60), |p| told(p, 1, is_peer_closed));
        let received: Vec<_> =
            p.hosts[1].completions.drain(..).map(|(_, c)| (c.wr_id, c.status)).collect();
        assert_eq!(received, [(1, CqeStatus::Success)], "before the FIN was told");
        // The half that is open still carries messages, and side 0 takes them.
        for i in 0..3 {
            let wr = SendWr::write_inline(i, &[7; 40], target, TO_BASE + 40 * i);
            p.hosts[1].rnic.post_send(b, &wr).unwrap();
        }
        p.run(Duration::from_secs(60), |p| p.hosts[1].completions.len() == 3);
        assert!(p.hosts[1].completions.iter().all(|(_, c)| c.status == CqeStatus::Success));
        assert_eq!(p.hosts[0].mem.read(0, 120), [7; 120]);
        assert!(!(0..2).any(|host| told(&p, host, is_orderly)), "not over yet");
        assert!(!told(&p, 0, is_peer_closed));
        p.hosts[1].rnic.disconnect(p.now, b);
        p.run(Duration::from_secs(300), |p| (0..2).all(|host| told(p, host, is_orderly)));
        assert!(told(&p, 0, is_peer_closed));
    }
}

/// Side 0 has closed its half and side 1 keeps the other open. Each message of side 1 gives the
/// close more time; when side 1 falls silent, side 0 resets the connection and gets the
/// connection's place back.
#[test]
fn test_close_outlasts_limit_while_peer_sends_and_is_reset_in_silence() {
    let limit = ConnConfig::default().close_stall;
    let (mut p, [a, b]) = pair(0.0);
    let target = p.register(0, 0, 1 << 12, Access::REMOTE_WRITE).stag;
    // A responder sends only after the first FPDU of its peer (RFC 5044 section 7.1.2).
    p.hosts[1].post_recv(b, &RecvWr::new(1, &[])).unwrap();
    p.hosts[0].post_send(a, &SendWr::send(2, &[])).unwrap();
    p.hosts[0].disconnect(p.now, a);
    p.run(Duration::from_secs(1), |p| told(p, 1, is_peer_closed));
    p.hosts[1].completions.clear();
    for i in 0..4 {
        sleep(&mut p, limit * 3 / 4);
        assert!(!told(&p, 0, is_closed), "after {i} messages");
        p.hosts[1].post_send(b, &SendWr::write_inline(i, &[7; 40], target, TO_BASE)).unwrap();
        p.run(Duration::from_secs(1), |p| p.hosts[1].completions.len() > i as usize);
    }
    let last = p.now;
    p.run(limit * 2, |p| (0..2).all(|host| told(p, host, is_closed)));
    let waited = p.now - last;
    assert!(waited >= limit && waited <= limit * 5 / 4 + Duration::from_secs(1), "{waited:?}");
    let ended = |host: usize| p.hosts[host].events.iter().find(|e| is_closed(e)).cloned();
    assert_eq!(ended(0), Some(Event::Closed { conn: a, reason: CloseReason::TimedOut }));
    assert_eq!(ended(1), Some(Event::Closed { conn: b, reason: CloseReason::Reset }));
}

/// The peer closes with a Read of ours unanswered: the RNIC flushes the Read and closes our half
/// too, in which nothing can be sent any more, whether the application asks for the close or not.
#[test]
fn test_end_of_the_peer_with_a_read_unanswered_ends_the_connection() {
    for disconnects in [false, true] {
        let (mut p, [a, b]) = pair(0.0);
        let source = p.register(1, 0, 1 << 12, Access::REMOTE_READ).stag;
        let sink = p.register(0, 0, 1 << 12, Access::LOCAL_WRITE).stag;
        let sges = [Sge { stag: sink, to: TO_BASE, len: 100 }];
        p.hosts[1].rnic.disconnect(p.now, b);
        p.hosts[0].rnic.post_send(a, &SendWr::read(1, &sges, source, TO_BASE)).unwrap();
        p.run(Duration::from_secs(60), |p| told(p, 0, is_peer_closed));
        if disconnects {
            p.hosts[0].rnic.disconnect(p.now, a);
        }
        p.run(Duration::from_secs(120), |p| (0..2).all(|host| told(p, host, is_orderly)));
        let read: Vec<_> = p.hosts[0].completions.iter().map(|c| (c.1.wr_id, c.1.status)).collect();
        assert_eq!(read, [(1, CqeStatus::Flushed)]);
    }
}
