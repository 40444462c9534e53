//! Calls that find no memory, and wait for it.

use heddle_rpcrdma::conn::{CallError, Event, Speaks};
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::{Limits, v1, v2};

use crate::conn::exchange::message;
use crate::conn::model::{End, settle};
use crate::conn::negotiation::null_call;
use crate::conn::scene::{NOW, big_call, ended, long_call, met, reply};

const VERSIONS: [Speaks; 2] = [Speaks::V1, Speaks::V2];
const MIB: u32 = 1 << 20;

/// Returns two ends; the server's calls may take `room` bytes of memory at a time.
fn ends(speaks: Speaks, room: u32) -> (End, End) {
    let (c, mut s) = met(speaks, Limits::DEFAULT);
    s.mem.room = Some(room);
    (c, s)
}

/// Answers the calls that have come up, and returns their XIDs.
fn served(s: &mut End) -> Vec<u32> {
    s.take_events();
    let mut xids = Vec::new();
    for event in std::mem::take(&mut s.events) {
        if let Event::Call(call) = event {
            let got = s.mem.taken(call.buffer, call.length);
            assert_eq!(got[..4], call.xid.0.to_be_bytes());
            let with = reply(call.xid.0, 0, 0);
            let stream = [s.mem.sge(with.bytes)];
            s.conn.reply(call.id, &stream, &with.items).unwrap();
            xids.push(call.xid.0);
        }
    }
    xids
}

/// Serves all calls that the memory allows. Returns their XIDs in the order in which the calls came
/// up.
fn drain(c: &mut End, s: &mut End) -> Vec<u32> {
    let mut xids = Vec::new();
    loop {
        settle(c, s, NOW);
        let now = served(s);
        if now.is_empty() && !s.conn.memory_returned(&mut s.mem) {
            return xids;
        }
        xids.extend(now);
    }
}

#[test]
fn test_calls_that_find_no_memory_are_served_in_order_when_it_comes_back() {
    for speaks in VERSIONS {
        let (mut c, mut s) = ends(speaks, MIB + 100);
        for xid in 1..=5 {
            big_call(&mut c, xid, MIB, 0);
        }
        // A call without chunks does not overtake the others, though there is room for it.
        null_call(&mut c, 6);
        settle(&mut c, &mut s, NOW);
        assert_eq!((s.conn.waiting(), s.conn.counters().memory_waits), (5, 5));
        assert!(!s.conn.memory_returned(&mut s.mem), "the first call has it still");
        assert_eq!(served(&mut s), [1]);
        // The sixth call resumes together with the fifth and has nothing to read, so it comes up
        // first.
        assert_eq!(drain(&mut c, &mut s), [2, 3, 4, 6, 5]);
        let ended = ended(&mut c);
        assert!(ended.iter().all(|e| matches!(e, Event::Reply { .. })), "{ended:?}");
        assert_eq!((ended.len(), s.conn.waiting()), (6, 0));
        assert_eq!((s.conn.counters().overloads, s.mem.lent.len()), (0, 0));
    }
}

/// A call that has waited is complete, whether its stream is in the Send, in Read chunks, or in a
/// Call chunk.
#[test]
fn test_call_that_waited_for_memory_is_complete() {
    let (speaks, bytes) = (VERSIONS, [0, 1, 5001, 70_000]);
    for (speaks, argument) in speaks.into_iter().flat_map(|s| bytes.map(|o| (s, o))) {
        let (mut c, mut s) = ends(speaks, 2 * MIB);
        s.mem.refuse = 1;
        big_call(&mut c, 7, argument, 0);
        settle(&mut c, &mut s, NOW);
        assert_eq!(s.conn.waiting(), 1);
        assert!(s.conn.memory_returned(&mut s.mem));
        settle(&mut c, &mut s, NOW);
        let mut random = heddle_base::Random::new(&heddle_base::Seed::from_u64(7));
        let of = message(heddle_rpcrdma::Xid(7), 0, &[argument], 0, &mut random);
        s.take_events();
        let call =
            s.events.iter().find_map(|e| if let Event::Call(c) = e { Some(*c) } else { None });
        let call = call.expect("a call");
        assert!(s.mem.taken(call.buffer, call.length) == of.bytes, "{speaks:?} {argument}");
        s.events.clear();
        // The whole call is in a Call chunk.
        s.mem.refuse = 1;
        long_call(&mut c, 8, 60_000);
        settle(&mut c, &mut s, NOW);
        assert_eq!(s.conn.waiting(), 1);
        assert_eq!(drain(&mut c, &mut s), [8]);
    }
}

#[test]
fn test_call_longer_than_all_memory_is_refused_at_once_and_others_wait() {
    for (speaks, told) in [
        (Speaks::V1, Refusal::V1(v1::Refusal::Chunk)),
        (Speaks::V2, Refusal::V2(v2::Refusal::System)),
    ] {
        // The call takes all memory exactly: 44 bytes precede the item.
        let (mut c, mut s) = ends(speaks, 60_044);
        big_call(&mut c, 1, 60_000, 0);
        big_call(&mut c, 2, 60_000, 0);
        let longer = big_call(&mut c, 3, 60_004, 0);
        settle(&mut c, &mut s, NOW);
        let error = CallError::Refused(told);
        assert_eq!(ended(&mut c), [Event::Failed { call: longer, error }]);
        assert_eq!((s.conn.waiting(), s.conn.counters().overloads), (1, 1));
        assert_eq!(drain(&mut c, &mut s), [1, 2]);
    }
}

#[test]
fn test_lost_connection_drops_its_waiting_calls() {
    for speaks in VERSIONS {
        let (mut c, mut s) = ends(speaks, 70_000);
        for xid in 1..=4 {
            big_call(&mut c, xid, 60_000, 0);
        }
        // The first call is being read.
        for _ in 0..20 {
            c.pump(64);
            while crate::conn::model::execute(&mut c, &mut s) {}
            while s.receive(NOW) {}
        }
        assert_eq!((s.conn.waiting(), s.mem.lent.len()), (3, 1));
        s.disconnect();
        assert_eq!((s.conn.waiting(), s.mem.lent.len()), (0, 0));
        assert!(!s.conn.memory_returned(&mut s.mem));
        assert!(served(&mut s).is_empty() && s.events.is_empty(), "none has come up");
    }
}

/// A repetition that comes while the first call waits is the same call.
#[test]
fn test_repeated_call_that_waits_for_memory_waits_once() {
    let (mut c, mut s) = ends(Speaks::V2, 70_000);
    s.mem.refuse = 1;
    big_call(&mut c, 1, 60_000, 0);
    settle(&mut c, &mut s, NOW);
    let again = c.sent.last().unwrap().clone();
    s.conn.handle_receive(NOW, &again, None, &mut s.mem);
    assert_eq!((s.conn.waiting(), s.conn.counters().duplicate_calls), (1, 1));
    assert_eq!(drain(&mut c, &mut s), [1]);
}

/// When a peer exceeds its credits, no more calls wait than there are rows.
#[test]
fn test_number_of_waiting_calls_is_bounded() {
    for speaks in VERSIONS {
        let (mut c, mut s) = ends(speaks, 70_000);
        s.mem.refuse = u32::MAX;
        for xid in 1..=60 {
            big_call(&mut c, xid, 60_000, 0);
        }
        settle(&mut c, &mut s, NOW);
        let granted = usize::from(s.conn.config().served);
        assert!((40..=granted).contains(&s.conn.waiting()), "{}", s.conn.waiting());
        let call = c.sent.last().unwrap().clone();
        for xid in 1000..1400u32 {
            let mut bytes = call.clone();
            for word in bytes.chunks_exact_mut(4).filter(|word| **word == call[..4]) {
                word.copy_from_slice(&xid.to_be_bytes());
            }
            s.conn.handle_receive(NOW, &bytes, None, &mut s.mem);
        }
        assert!(s.conn.waiting() <= s.conn.config().served_slots().into());
        assert!(s.mem.lent.is_empty());
    }
}

/// A call in several Sends cannot wait, because there is no place to keep its parts.
#[test]
fn test_call_in_parts_that_finds_no_memory_is_refused() {
    let (mut c, mut s) = ends(Speaks::V2, MIB);
    s.mem.refuse = 1;
    let call = long_call(&mut c, 1, 9000);
    settle(&mut c, &mut s, NOW);
    let error = CallError::Refused(Refusal::V2(v2::Refusal::System));
    assert_eq!(ended(&mut c), [Event::Failed { call, error }]);
    assert_eq!((s.conn.waiting(), s.conn.counters().overloads), (0, 1));
}
