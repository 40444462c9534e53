//! Receives that an application has posted and that no turn of the RNIC's owner has taken yet: the
//! peer may use all of them, in whatever way it has learned of them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::time::Duration;

use crate::sim::{LinkConfig, PD, PORT, Pace, Pair, TO_BASE, pattern};
use heddle_engine::POST_TURN;
use heddle_iwarp::QpConfig;
use heddle_types::{Access, ConnId, ConnectedState, CqeStatus, RecvWr, SendWr, Sge};

/// Bytes of a receive and of the message for it.
const LEN: usize = 16;

/// Connects two streams between two hosts. The owner of host 1's RNIC is slower than the link: a
/// message and the answers to it pass between two of its turns.
fn pair(count: usize, pace: Pace, link: LinkConfig) -> (Pair, [[ConnId; 2]; 2]) {
    let mut p = Pair::new(5, link, 2 * count * LEN);
    let qp = QpConfig { pd: PD, sq_depth: 1024, rq_depth: 1024, ..QpConfig::default() };
    let streams = [0, 1].map(|n| p.connect_to(PORT + n, [&qp, &qp]));
    // A responder may send after the initiator's first message.
    for [a, _] in streams {
        p.hosts[0].post_send(a, &SendWr::write_inline(0, &[], heddle_types::Stag(1), 0)).unwrap();
    }
    p.run(Duration::from_secs(1), |p| p.hosts[0].completions.len() == 2);
    p.hosts[0].completions.clear();
    p.pace[1] = pace;
    (p, streams)
}

/// Host 1 posts `count` receives to the first stream and announces them by a Send of the second,
/// which host 0 answers at once with a message for each.
fn use_all(count: usize, pace: Pace, link: LinkConfig) {
    let (mut p, [[a, b], [a2, b2]]) = pair(count, pace, link);
    let source = p.register(0, 0, count * LEN, Access::LOCAL_WRITE);
    let sink = p.register(1, 0, count * LEN, Access::LOCAL_WRITE);
    let data = pattern(3, count * LEN);
    p.hosts[0].mem.write(0, &data);
    p.hosts[0].post_recv(a2, &RecvWr::new(0, &[])).unwrap();
    let at = |mr: heddle_types::Stag, n: usize| {
        [Sge { stag: mr, to: TO_BASE + (n * LEN) as u64, len: LEN as u32 }]
    };
    for n in 0..count {
        p.hosts[1].post_recv(b, &RecvWr::new(n as u64, &at(sink.stag, n))).unwrap();
    }
    p.hosts[1].post_send(b2, &SendWr::send(0, &[])).unwrap();
    p.run(Duration::from_secs(10), |p| p.hosts[0].completions.iter().any(|(conn, _)| *conn == a2));
    for n in 0..count {
        p.hosts[0].post_send(a, &SendWr::send(n as u64, &at(source.stag, n))).unwrap();
    }
    let received = |p: &Pair| p.hosts[1].completions.iter().filter(|(conn, _)| *conn == b).count();
    p.run(Duration::from_secs(10), |p| received(p) == count);
    let done = p.hosts[1].completions.iter().filter(|(conn, _)| *conn == b);
    assert!(
        done.enumerate().all(|(n, (_, c))| (c.wr_id, c.status) == (n as u64, CqeStatus::Success))
    );
    assert!(p.hosts[1].mem.read(0, count * LEN) == data);
    assert_eq!(p.hosts[1].rnic.qp(b).unwrap().state(), ConnectedState::Rts);
    // A message for a receive that was never posted still finds none.
    p.hosts[0].post_send(a, &SendWr::send(0, &[])).unwrap();
    p.run(Duration::from_secs(10), |p| {
        p.hosts[1].rnic.qp(b).is_none_or(|qp| qp.state() != ConnectedState::Rts)
    });
    assert_eq!(p.hosts[1].rnic.qp_counters().err_no_buffer, 1);
}

#[test]
fn test_messages_use_receives_that_no_turn_has_fetched() {
    let turn = Duration::from_micros(200);
    let link = LinkConfig { delay: Duration::from_micros(1), ..LinkConfig::default() };
    // Use the worker's own limits.
    use_all(1000, Pace { turn, ..Pace::default() }, link);
    use_all(POST_TURN + 1, Pace { turn, posts: 1, ..Pace::default() }, link);
}

/// A gap holds the messages back, and the RNIC handles all of them at once when the gap closes.
#[test]
fn test_messages_behind_a_gap_use_receives_that_no_turn_has_fetched() {
    let turn = Duration::from_micros(50);
    let link = LinkConfig { loss: 0.05, reorder: 0.05, ..LinkConfig::default() };
    use_all(500, Pace { turn, posts: 1, ..Pace::default() }, link);
}
