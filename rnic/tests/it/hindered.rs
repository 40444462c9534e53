//! Peers that hold requests and memory of ours: they answer but take nothing, or answer nothing.
//! TCP's limits end the connection after a notice, and all resources come back.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE, pattern};
use heddle_iwarp::QpConfig;
use heddle_rnic::Event;
use heddle_tcp::Hindrance;
use heddle_types::{Access, CloseReason, ConnId, CqeStatus, RecvWr, SendWr, Sge};

const LIMIT: Duration = Duration::from_secs(20);
const LEN: usize = 100_000;

/// Connects two ends and lets a message go over the connection.
fn pair() -> (Pair, [ConnId; 2]) {
    let mut p = Pair::with_config(11, LinkConfig::default(), 4 * LEN, |c| {
        let tcp = &mut c.stack.conn;
        (tcp.zero_window, tcp.user_timeout) = (LIMIT, LIMIT);
        tcp.rto_max = Duration::from_secs(1);
    });
    let ends = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    p.hosts[1].post_recv(ends[1], &RecvWr::new(1, &[])).unwrap();
    p.hosts[0].post_send(ends[0], &SendWr::send(1, &[])).unwrap();
    p.run(Duration::from_secs(1), |p| p.hosts.iter().all(|h| h.completions.len() == 1));
    p.hosts.iter_mut().for_each(|h| h.completions.clear());
    (p, ends)
}

/// Side 1 asks for a Read, which side 0 answers with a snapshot; side 0 posts Writes, which refer
/// to its memory.
fn load(p: &mut Pair, [a, b]: [ConnId; 2]) {
    let source = p.register(0, 0, LEN, Access::REMOTE_READ.with(Access::LOCAL_WRITE));
    let sink = p.register(1, 0, LEN, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE));
    p.hosts[0].mem.write(0, &pattern(1, LEN));
    let len = LEN as u32;
    let sges = [Sge { stag: sink.stag, to: TO_BASE, len }];
    p.hosts[1].post_send(b, &SendWr::read(9, &sges, source.stag, TO_BASE)).unwrap();
    p.step();
    let sges = [Sge { stag: source.stag, to: TO_BASE, len }];
    for i in 0..4 {
        p.hosts[0].post_send(a, &SendWr::write(i, &sges, sink.stag, TO_BASE)).unwrap();
    }
}

fn end_of(p: &Pair) -> Option<CloseReason> {
    p.hosts[0].events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

fn hindrance(p: &Pair, a: ConnId) -> Option<Hindrance> {
    p.hosts[0].rnic.connection(a).unwrap().hindrance()
}

/// Returns the bytes of snapshots and the references to memory that side 0 holds.
fn holds(p: &Pair) -> (usize, u32) {
    (p.hosts[0].rnic.snapshot_bytes(), p.pinned(0))
}

#[test]
fn test_memory_of_peer_that_only_answers_probes_is_freed_at_the_limit() {
    let (mut p, ends) = pair();
    p.shut[1] = true;
    load(&mut p, ends);
    p.pass(LIMIT / 4);
    let counters = |p: &Pair| p.hosts[0].rnic.conn_counters();
    assert_ne!(holds(&p), (0, 0));
    assert_eq!((hindrance(&p, ends[0]), counters(&p).window_stalls), (None, 0), "not yet");
    p.pass(LIMIT / 2);
    assert_eq!(hindrance(&p, ends[0]), Some(Hindrance::WindowShut));
    assert_eq!((counters(&p).window_stalls, end_of(&p)), (1, None), "before the end");
    p.pass(LIMIT / 2);
    assert_eq!(end_of(&p), Some(CloseReason::WindowShut));
    assert_eq!((holds(&p), p.hosts[0].rnic.held_frames()), ((0, 0), 0));
    let done: Vec<_> = p.hosts[0].completions.iter().map(|(_, c)| c.status).collect();
    assert_eq!(done, [CqeStatus::Flushed; 4]);
    p.check_pins();
}

/// The window opens just before the limit: all that waited arrives, and TCP withdraws the notice.
#[test]
fn test_window_that_opens_just_before_the_limit_lets_everything_through() {
    let (mut p, ends) = pair();
    p.shut[1] = true;
    load(&mut p, ends);
    p.pass(LIMIT * 9 / 10);
    assert_eq!(hindrance(&p, ends[0]), Some(Hindrance::WindowShut));
    p.shut[1] = false;
    p.run(LIMIT / 10, |p| p.hosts[0].completions.len() == 4 && p.hosts[1].completions.len() == 1);
    let all = p.hosts.iter().flat_map(|h| &h.completions);
    assert!(all.into_iter().all(|(_, c)| c.status == CqeStatus::Success));
    p.pass(LIMIT);
    assert_eq!((hindrance(&p, ends[0]), end_of(&p), holds(&p)), (None, None, (0, 0)));
}

#[test]
fn test_memory_of_peer_that_answers_nothing_is_freed_at_the_limit() {
    let (mut p, ends) = pair();
    load(&mut p, ends);
    p.cut[1] = true;
    p.pass(LIMIT / 2);
    assert_eq!((hindrance(&p, ends[0]), end_of(&p)), (Some(Hindrance::Silent), None));
    assert_eq!(p.hosts[0].rnic.conn_counters().unresponsive, 1);
    assert_ne!(holds(&p), (0, 0));
    p.pass(LIMIT);
    assert_eq!((end_of(&p), holds(&p)), (Some(CloseReason::TimedOut), (0, 0)));
    assert!(p.hosts[0].completions.iter().all(|(_, c)| c.status == CqeStatus::Flushed));
    assert_eq!(p.hosts[0].completions.len(), 4);
}
