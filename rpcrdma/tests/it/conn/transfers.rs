//! Peers that do not do their part while this end keeps memory for them.

use std::time::Duration;

use heddle_base::Instant;
use heddle_rpcrdma::conn::{CloseReason, Config, Event, Side, Speaks};
use heddle_rpcrdma::{Limits, v2};

use crate::conn::model::{End, execute, settle};
use crate::conn::negotiation::{null_call, serve};
use crate::conn::scene::{
    CREDIT, NOW, answer, big_call, established, give, long_call, met, reply, take_call,
};

const VERSIONS: [Speaks; 2] = [Speaks::V1, Speaks::V2];

fn limit(end: &End) -> Duration {
    end.conn.config().transfer_timeout
}

/// Lets time pass without any other event. Returns when and why the end closed its connection, if
/// it did.
fn pass(end: &mut End, from: Instant, time: Duration) -> Option<(Duration, CloseReason)> {
    while let Some(at) = end.conn.poll_timeout().filter(|at| *at <= from + time) {
        let at = at.max(from);
        end.conn.handle_timeout(at);
        end.take_events();
        let close = |event: &Event| match event {
            Event::Close(reason) => Some(*reason),
            _ => None,
        };
        if let Some(reason) = end.events.iter().find_map(close) {
            return Some((at.since(from), reason));
        }
    }
    None
}

/// Asserts that the end closes the connection in time, and gets memory back, if the peer does
/// nothing from `from` on.
fn assert_ends(end: &mut End, from: Instant) {
    let limit = limit(end);
    let (after, reason) = pass(end, from, 10 * limit).expect("the connection is closed");
    assert_eq!(reason, CloseReason::TransferTimeout);
    assert!((limit..=limit + limit / 4).contains(&after), "{after:?}");
    assert_eq!((end.conn.counters().transfer_timeouts, end.conn.poll_timeout()), (1, None));
    end.disconnect();
    assert!(end.mem.lent.is_empty());
}

/// Carries out all posted work of both ends, except Reads; nothing completes.
fn exchange(c: &mut End, s: &mut End, now: Instant) {
    for _ in 0..20 {
        c.pump(64);
        s.pump(64);
        while execute(c, s) || execute(s, c) {}
        while s.receive(now) || c.receive(now) {}
    }
}

#[test]
fn test_reads_that_are_not_answered_end_the_connection() {
    for speaks in VERSIONS {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        big_call(&mut c, 1, 60_000, 0);
        exchange(&mut c, &mut s, NOW);
        assert_eq!((s.posted[1], s.mem.lent.len()), (1, 1));
        assert_ends(&mut s, NOW);
    }
}

#[test]
fn test_reads_that_are_answered_just_in_time_end_nothing() {
    for speaks in VERSIONS {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        big_call(&mut c, 1, 60_000, 0);
        exchange(&mut c, &mut s, NOW);
        let in_time = limit(&s) - Duration::from_nanos(1);
        assert_eq!(pass(&mut s, NOW, in_time), None);
        settle(&mut c, &mut s, NOW + in_time);
        // The time of the reply begins anew.
        answer(&mut s, &reply(1, 0, 0));
        exchange(&mut c, &mut s, NOW + in_time);
        assert_eq!(pass(&mut s, NOW + in_time, in_time), None);
        settle(&mut c, &mut s, NOW + 2 * in_time);
        assert!(c.events.iter().any(|e| matches!(e, Event::Reply { .. })));
        assert_eq!(s.conn.counters().transfer_timeouts, 0);
    }
}

#[test]
fn test_reply_that_is_not_taken_ends_the_connection() {
    for (speaks, result) in VERSIONS.into_iter().flat_map(|s| [(s, 0), (s, 60_000)]) {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        big_call(&mut c, 1, 100, result);
        settle(&mut c, &mut s, NOW);
        // The upper layer may take any time.
        let hour = Duration::from_secs(3600);
        assert_eq!(pass(&mut s, NOW, hour), None);
        answer(&mut s, &reply(1, result, 0));
        exchange(&mut c, &mut s, NOW + hour);
        assert_eq!(s.posted[2], usize::from(result > 0), "a Write");
        assert_ends(&mut s, NOW + hour);
        assert!(s.events.iter().any(|e| matches!(e, Event::Served { result: Err(_), .. })));
    }
}

/// A peer of version 2 makes calls and gives no credits for replies.
#[test]
fn test_reply_for_which_there_are_no_credits_ends_the_connection() {
    let mut s = End::new(Config { speaks: Speaks::V2, ..Config::new(Side::Server) });
    give(&mut s, &call_inline(7, 1));
    let id = take_call(&mut s);
    s.pump(64);
    assert_eq!(s.posted[0], 1, "its properties, which are all that it may send");
    s.absorb();
    let with = reply(7, 0, 0);
    let stream = [s.mem.sge(with.bytes)];
    s.conn.reply(id, &stream, &[]).unwrap();
    s.pump(64);
    assert_eq!(s.posted[0], 1);
    assert_ends(&mut s, NOW);
}

#[test]
fn test_message_in_parts_that_does_not_end_ends_the_connection() {
    let (_, mut s) = established(Speaks::V2, |_| {});
    let middle = |remaining| {
        let mut message = vec![9, 2, CREDIT, v2::htype::CALL_MIDDLE, remaining];
        message.extend([9, 0, 2, 0x2000_0001]);
        message
    };
    give(&mut s, &middle(4000));
    assert_eq!(s.mem.lent.len(), 1);
    // Another part does not extend the time.
    let half = limit(&s) / 2;
    assert_eq!(pass(&mut s, NOW, half), None);
    let bytes: Vec<u8> = middle(3984).iter().flat_map(|w| w.to_be_bytes()).collect();
    s.conn.handle_receive(NOW + half, &bytes, None, &mut s.mem);
    assert_eq!((s.mem.lent.len(), s.conn.counters().broken_sequences), (1, 0));
    assert_ends(&mut s, NOW);
}

/// A client gets a reply in parts that does not end.
#[test]
fn test_reply_in_parts_that_does_not_end_ends_the_connection() {
    let (mut c, _) = established(Speaks::V2, |_| {});
    null_call(&mut c, 9);
    c.pump(64);
    c.absorb();
    give(&mut c, &[9, 2, CREDIT, v2::htype::REPLY_MIDDLE, 4000, 9, 1, 0, 0, 0, 0]);
    assert_eq!(c.mem.lent.len(), 1);
    assert_ends(&mut c, NOW);
}

/// A waiting call holds no memory.
#[test]
fn test_call_that_waits_for_memory_has_no_time_limit() {
    for speaks in VERSIONS {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        s.mem.refuse = 1;
        big_call(&mut c, 1, 60_000, 0);
        settle(&mut c, &mut s, NOW);
        assert_eq!(s.conn.waiting(), 1);
        let hour = Duration::from_secs(3600);
        assert_eq!(pass(&mut s, NOW, hour), None);
        assert!(s.conn.memory_returned(&mut s.mem));
        exchange(&mut c, &mut s, NOW + hour);
        assert_ends(&mut s, NOW + hour);
    }
}

#[test]
fn test_idle_connection_has_no_time_limit() {
    for speaks in VERSIONS {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        for xid in 1..=3 {
            long_call(&mut c, xid, 9000);
        }
        settle(&mut c, &mut s, NOW);
        assert_eq!(serve(&mut s), 3);
        settle(&mut c, &mut s, NOW);
        let time = limit(&s);
        assert_eq!(pass(&mut s, NOW, time), None);
        assert_eq!((s.conn.poll_timeout(), c.conn.poll_timeout()), (None, None));
    }
}

/// A client sends no message in a version that the server speaks.
#[test]
fn test_silent_client_is_disconnected_after_negotiation_timeout() {
    for speaks in [Speaks::V1, Speaks::V2, Speaks::BOTH] {
        let mut s = End::new(Config { speaks, ..Config::new(Side::Server) });
        let time = s.conn.config().negotiation_timeout;
        // A message that the server refuses does not count.
        give(&mut s, &[1, 77, 1, 0, 0, 0, 0]);
        s.absorb();
        let closed = pass(&mut s, NOW, 10 * time);
        assert_eq!(closed, Some((time, CloseReason::NegotiationTimeout)));
        // A client that does send such a message keeps its connection for ever.
        let (_, mut s) = met(speaks, Limits::DEFAULT);
        assert_eq!(pass(&mut s, NOW, 10 * time), None);
    }
}

/// Builds a call without arguments in one Send of version 2, with this credit field.
fn call_inline(xid: u32, credit: u32) -> Vec<u32> {
    let header = [xid, 2, credit, v2::htype::CALL_INLINE, 0, 0, 0, 0];
    let rpc = [xid, 0, 2, 0x2000_0001, 1, 0, 0, 0, 0, 0];
    [&header[..], &rpc].concat()
}
