//! Tests that each cover a single rule.

use heddle_base::{Random, Seed};
use heddle_rpcrdma::chunk::{ReadList, ZeroPosition};
use heddle_rpcrdma::conn::{
    Call, CallError, CallRefused, CloseReason, Event, ReplyRefused, ReplyStream, ServeError, Side,
    Speaks,
};
use heddle_rpcrdma::credit;
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::{Properties, ReverseSupport};
use heddle_rpcrdma::v1::Chunks;
use heddle_rpcrdma::{Handle, ReadSegment, Segment, Xid, v2};

use crate::conn::exchange::message;
use crate::conn::model::settle;
use crate::conn::negotiation::{null_call, pair, serve};
use crate::conn::scene::{NOW, answer, big_call, ended, established, reply, take_call};

/// Counts the Sends, Reads, Writes and invalidations of each end for a READ and a WRITE of 64 KiB.
#[test]
fn test_large_call_takes_expected_operations_in_each_version() {
    let told = PrivateData::new(true, 4096, 4096).unwrap();
    for (speaks, private, local) in
        [(Speaks::V1, None, 1), (Speaks::V1, Some(told), 0), (Speaks::V2, None, 0)]
    {
        let (mut c, mut s) = established(speaks, |config| {
            config.private_data = private.unwrap_or_default();
            config.peers_private_data = private;
        });
        big_call(&mut c, 1, 0, 65536);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(1, 65536, 0));
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]));
        assert_eq!((c.posted, s.posted), ([1, 0, 0, local], [1, 0, 1, 0]), "{speaks:?}");
        assert_eq!(c.conn.counters().remote_invalidations, 1 - local as u64);

        (c.posted, s.posted) = ([0; 4], [0; 4]);
        big_call(&mut c, 2, 65536, 0);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(2, 0, 0));
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]));
        assert_eq!((c.posted, s.posted), ([1, 0, 0, local], [1, 1, 0, 0]), "{speaks:?}");
    }
}

/// A call that fits into a Send has no chunks, whatever items may be placed.
#[test]
fn test_short_items_go_inline() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) = established(speaks, |_| {});
        big_call(&mut c, 1, 100, 100);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(1, 100, 0));
        settle(&mut c, &mut s, NOW);
        let [Event::Reply { reply, .. }] = ended(&mut c)[..] else { panic!("no reply") };
        assert_eq!(reply.filled.as_slice(), []);
        assert!(matches!(reply.stream, ReplyStream::Buffer { length: 144, .. }));
        assert_eq!((c.posted, s.posted), ([1, 0, 0, 0], [1, 0, 0, 0]));
    }
}

#[test]
fn test_result_longer_than_its_chunk_is_refused_with_the_needed_length() {
    for (speaks, told) in [
        (Speaks::V1, Refusal::V1(heddle_rpcrdma::v1::Refusal::Chunk)),
        (Speaks::V2, Refusal::V2(v2::Refusal::WriteResource { chunk: 1, needed: 9001 })),
    ] {
        let (mut c, mut s) = established(speaks, |_| {});
        let call = big_call(&mut c, 1, 0, 9000);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(1, 9001, 0));
        settle(&mut c, &mut s, NOW);
        let error = CallError::Refused(told);
        assert_eq!(ended(&mut c), [Event::Failed { call, error }]);
        let served = s.events.iter().any(
            |e| matches!(e, Event::Served { result: Err(ServeError::Refused(by)), .. } if *by == told),
        );
        assert!(served);
    }
}

/// The reply has a Write chunk in its header, or none.
#[test]
fn test_only_reply_up_to_the_inline_limit_goes_in_one_send() {
    for (speaks, result) in
        [(Speaks::V1, 9000), (Speaks::V1, 0), (Speaks::V2, 9000), (Speaks::V2, 0)]
    {
        for more in [0, 4] {
            let (mut c, mut s) = established(speaks, |_| {});
            let call = big_call(&mut c, 1, 0, result);
            settle(&mut c, &mut s, NOW);
            let served = take_call(&mut s);
            let max = s.conn.reply_inline_max(served, &[]) / 4 * 4;
            assert!(max > 900, "{speaks:?} {result}");
            let mut bytes = message(Xid(1), 1, &[], 0, &mut Random::new(&Seed::from_u64(1))).bytes;
            bytes.resize((max + more) as usize, 0);
            let stream = [s.mem.sge(bytes)];
            s.conn.reply(served, &stream, &[]).unwrap();
            settle(&mut c, &mut s, NOW);
            assert_eq!(s.conn.reply_inline_max(served, &[]), 0, "it is over");
            match (&ended(&mut c)[..], speaks, more) {
                ([Event::Reply { call: of, .. }], _, 0) => assert_eq!(*of, call),
                ([Event::Reply { call: of, .. }], Speaks { v2: true, .. }, _) => {
                    assert_eq!((*of, s.posted[0]), (call, 2));
                }
                ([Event::Failed { .. }], Speaks { v2: false, .. }, 4) => {}
                (events, ..) => panic!("{speaks:?} {result} {more}: {events:?}"),
            }
            assert!(more > 0 || s.posted[0] == 1, "{speaks:?} {result}");
        }
    }
}

/// A reply without room for it becomes an error in version 1, and goes in several Sends in version
/// 2.
#[test]
fn test_long_reply_without_reply_chunk_fails_or_goes_in_parts() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) = established(speaks, |_| {});
        let call = big_call(&mut c, 1, 0, 0);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(1, 0, 5000));
        settle(&mut c, &mut s, NOW);
        match (speaks, &ended(&mut c)[..]) {
            (Speaks::V1, [Event::Failed { error: CallError::Refused(_), .. }]) => {}
            (Speaks::V2, [Event::Reply { call: of, reply }]) => {
                assert_eq!(*of, call);
                assert!(matches!(reply.stream, ReplyStream::Buffer { length: 20_044, .. }));
                assert_eq!(s.posted[0], 5);
            }
            (_, events) => panic!("{events:?}"),
        }
    }
}

#[test]
fn test_cancelled_call_ends_when_its_memory_is_safe_and_holds_its_slot() {
    let (mut c, mut s) = established(Speaks::V2, |config| config.calls = 2);
    let short = null_call(&mut c, 1);
    let long = big_call(&mut c, 2, 65536, 0);
    settle(&mut c, &mut s, NOW);
    c.conn.cancel(short);
    c.conn.cancel(long);
    settle(&mut c, &mut s, NOW);
    // The second call does not end yet, because the server may still read its argument.
    assert_eq!(ended(&mut c), [Event::Failed { call: short, error: CallError::Cancelled }]);
    let stream = [c.mem.sge(vec![0; 40])];
    let again = Call { xid: Xid(3), stream: &stream, items: &[], reply: None, deadline: None };
    assert_eq!(c.conn.call(&again), Err(CallRefused::Busy));
    let same = Call { xid: Xid(1), ..again };
    assert_eq!(c.conn.call(&same), Err(CallRefused::Xid));
    assert_eq!(serve(&mut s), 2);
    settle(&mut c, &mut s, NOW);
    assert_eq!(ended(&mut c), [Event::Failed { call: long, error: CallError::Cancelled }]);
    assert!(c.conn.call(&again).is_ok());
}

/// The server of Linux invalidates although it has not announced that (RFC 8797 section 4.1). The
/// client accepts an invalidation if the client has announced support, and if the handle belongs to
/// the answered call.
#[test]
fn test_reply_may_invalidate_only_if_client_announced_support() {
    let says = |invalidate| PrivateData::new(invalidate, 4096, 4096).unwrap();
    for (client, server) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut c, mut s) = established(Speaks::V1, |config| {
            let is_client = config.side == Side::Client;
            let (ours, peers) = if is_client { (client, server) } else { (true, true) };
            config.private_data = says(ours);
            config.peers_private_data = Some(says(peers));
        });
        big_call(&mut c, 1, 0, 65536);
        settle(&mut c, &mut s, NOW);
        answer(&mut s, &reply(1, 65536, 0));
        settle(&mut c, &mut s, NOW);
        if client {
            assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]), "server {server}");
            assert_eq!((c.conn.counters().remote_invalidations, c.posted[3]), (1, 0));
        } else {
            assert_eq!(ended(&mut c), [Event::Close(CloseReason::WrongInvalidate)]);
        }
    }
}

#[test]
fn test_invalidation_of_another_calls_handle_closes_the_connection() {
    let (mut c, mut s) = established(Speaks::V2, |_| {});
    big_call(&mut c, 1, 65536, 0);
    null_call(&mut c, 2);
    settle(&mut c, &mut s, NOW);
    serve(&mut s);
    s.pump(64);
    // The reply to the second call invalidates the handle of the first.
    let body = v2::Body::ReplyInline { writes: heddle_rpcrdma::chunk::WriteList::EMPTY };
    let mut out = [0; 100];
    let len = v2::Header { xid: Xid(2), credit: 64, body }.encode(&mut out).unwrap();
    let bytes = [&out[..len], &2u32.to_be_bytes(), &[0, 0, 0, 1]].concat();
    c.conn.handle_receive(NOW, &bytes, Some(Handle(1)), &mut c.mem);
    assert_eq!(ended(&mut c), [Event::Close(CloseReason::WrongInvalidate)]);
}

#[test]
fn test_peer_that_exceeds_its_credits_is_disconnected() {
    let (_, mut s) = established(Speaks::V2, |config| config.credits = 2);
    let grant = v2::Header { xid: Xid(0), credit: 64, body: v2::Body::Grant };
    let mut out = [0; 100];
    let len = grant.encode(&mut out).unwrap();
    for _ in 0..8 {
        s.conn.handle_receive(NOW, &out[..len], None, &mut s.mem);
    }
    let overrun = CloseReason::CreditsV2(credit::v2::Violation::Overrun);
    assert_eq!(ended(&mut s), [Event::Close(overrun)]);
}

/// A peer begins messages and never ends them, and one message claims an enormous length.
#[test]
fn test_unfinished_messages_hold_at_most_one_buffer() {
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    for xid in 1..1000u32 {
        let remaining = if xid % 2 == 0 { 1 << 20 } else { u32::MAX };
        let header =
            v2::Header { xid: Xid(xid), credit: 5000, body: v2::Body::CallMiddle { remaining } };
        let mut out = [0; 100];
        let len = header.encode(&mut out).unwrap();
        let bytes = [&out[..len], &xid.to_be_bytes(), &[0; 4]].concat();
        s.conn.handle_receive(NOW, &bytes, None, &mut s.mem);
        assert!(s.mem.lent.len() <= 1);
        s.pump(64);
        s.absorb();
    }
    assert_eq!(ended(&mut s), [], "each is answered, and the connection goes on");
    let counters = s.conn.counters();
    assert_eq!((counters.broken_sequences, counters.errors_sent), (500, 500));
    s.disconnect();
    assert!(s.mem.lent.is_empty());
}

#[test]
fn test_call_above_the_length_limit_causes_no_reads() {
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    let target = Segment { handle: Handle(1), length: u32::MAX, offset: 0 };
    let reads = [ReadSegment { position: 0, target }];
    let call = ReadList::new(&reads, ZeroPosition::Only).unwrap();
    let body = v2::Body::CallExternal { invalidate: Handle(1), call, chunks: Chunks::NONE };
    let mut out = [0; 100];
    let len = v2::Header { xid: Xid(1), credit: 9, body }.encode(&mut out).unwrap();
    s.conn.handle_receive(NOW, &out[..len], None, &mut s.mem);
    s.pump(64);
    assert!(s.mem.lent.is_empty());
    assert_eq!((s.posted[1], s.conn.counters().errors_sent), (0, 1));
}

/// The server serves only the first copy of the call, and sends a single reply.
#[test]
fn test_call_that_arrives_twice_is_served_once() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) = established(speaks, |_| {});
        null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        serve(&mut s);
        settle(&mut c, &mut s, NOW);
        null_call(&mut c, 5);
        c.pump(64);
        crate::conn::model::execute(&mut c, &mut s);
        let (bytes, _) = s.inbox[0].clone();
        s.receive(NOW);
        s.conn.handle_receive(NOW, &bytes, None, &mut s.mem);
        s.take_events();
        assert_eq!((serve(&mut s), s.conn.counters().duplicate_calls), (1, 1));
        settle(&mut c, &mut s, NOW);
        assert_eq!(s.conn.counters().replies_sent, 2);
        assert!(!s.events.iter().any(|e| matches!(e, Event::Close(_))));
    }
}

#[test]
fn test_server_sends_reverse_calls_only_as_client_supports_them() {
    for (reverse, argument, expected) in [
        (ReverseSupport::None, 0, Err(CallError::NoReverse)),
        (ReverseSupport::Simple, 100, Ok(1)),
        (ReverseSupport::Simple, 9000, Err(CallError::TooLong { threshold: 4096 })),
        (ReverseSupport::Continued, 9000, Ok(3)),
        (ReverseSupport::General, 90_000, Ok(1)),
    ] {
        let properties = Properties { reverse, ..Properties::DEFAULT };
        let (mut c, mut s) = established(Speaks::V2, |config| config.properties = properties);
        let call = big_call(&mut s, 1, argument, 0);
        settle(&mut c, &mut s, NOW);
        match expected {
            Err(error) => assert_eq!(ended(&mut s), [Event::Failed { call, error }]),
            Ok(sends) => {
                assert_eq!(s.posted[0], sends, "{reverse:?}");
                assert_eq!(serve(&mut c), 1);
                settle(&mut c, &mut s, NOW);
                assert!(matches!(ended(&mut s)[..], [Event::Reply { .. }]));
            }
        }
    }
}

/// In version 1 a client that takes no reverse-direction calls answers them with an error.
#[test]
fn test_reverse_call_of_version_1_is_served_only_with_support() {
    for reverse in [ReverseSupport::None, ReverseSupport::Simple] {
        let properties = Properties { reverse, ..Properties::DEFAULT };
        let (mut c, mut s) = established(Speaks::V1, |config| config.properties = properties);
        // A server learns the version of its client from a call.
        null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        serve(&mut s);
        settle(&mut c, &mut s, NOW);
        ended(&mut c);
        null_call(&mut s, 1);
        settle(&mut c, &mut s, NOW);
        assert_eq!(serve(&mut c), usize::from(reverse == ReverseSupport::Simple));
        settle(&mut c, &mut s, NOW);
        match (reverse, &ended(&mut s)[..]) {
            (ReverseSupport::None, [Event::Failed { error: CallError::Refused(_), .. }]) => {}
            (ReverseSupport::Simple, [Event::Reply { .. }]) => {}
            (_, events) => panic!("{events:?}"),
        }
    }
}

/// For calls without replies, only GRANTs come back.
#[test]
fn test_calls_without_replies_get_only_grants_back() {
    let (mut c, mut s) = established(Speaks::V2, |config| config.credits = 4);
    for xid in 1..30u32 {
        let of = message(Xid(xid), 0, &[5000], 0, &mut Random::new(&Seed::from_u64(1)));
        let stream = [c.mem.sge(of.bytes)];
        let call =
            Call { xid: Xid(xid), stream: &stream, items: &of.items, reply: None, deadline: None };
        let call = c.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        assert_eq!(ended(&mut c), [Event::Sent { call }]);
        let served = take_call(&mut s);
        assert_eq!(s.conn.dismiss(served), Ok(()));
        assert_eq!(s.conn.dismiss(served), Err(ReplyRefused::NoCall));
    }
    assert_eq!(
        (s.posted[0] as u64, c.conn.counters().registrations),
        (s.conn.counters().grants_sent, 0)
    );
    let (mut c, mut s) = established(Speaks::V1, |_| {});
    let stream = [c.mem.sge(vec![0; 40])];
    let call = Call { xid: Xid(0), stream: &stream, items: &[], reply: None, deadline: None };
    let call = c.conn.call(&call).unwrap();
    settle(&mut c, &mut s, NOW);
    assert_eq!(ended(&mut c), [Event::Failed { call, error: CallError::CallOnly }]);
}

/// An end that serves one call at a time is never overrun by a peer with a thousand calls to make.
#[test]
fn test_calls_wait_while_the_call_table_of_the_server_is_full() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) =
            established(speaks, |config| (config.calls, config.served) = (1000, 1));
        for xid in 1..=500 {
            null_call(&mut c, xid);
        }
        let mut served = 0;
        for _ in 0..500 {
            settle(&mut c, &mut s, NOW);
            served += serve(&mut s);
        }
        settle(&mut c, &mut s, NOW);
        assert_eq!((served, s.conn.counters().overloads), (500, 0), "{speaks:?}");
        assert_eq!(ended(&mut c).len(), 500);
    }
}

#[test]
fn test_malformed_call_or_reply_stream_is_refused() {
    let (mut c, mut s) = established(Speaks::V2, |_| {});
    let short = [c.mem.sge(vec![0; 4])];
    let odd = [c.mem.sge(vec![0; 41])];
    for stream in [&short[..], &odd, &[]] {
        let call = Call { xid: Xid(1), stream, items: &[], reply: None, deadline: None };
        assert_eq!(c.conn.call(&call), Err(CallRefused::Stream));
    }
    null_call(&mut c, 1);
    settle(&mut c, &mut s, NOW);
    let served = take_call(&mut s);
    assert_eq!(s.conn.reply(served, &short, &[]), Err(ReplyRefused::Stream));
    assert!(s.conn.refuse(served, v2::Refusal::BadXdr).is_ok());
    assert_eq!(s.conn.reply(served, &odd, &[]), Err(ReplyRefused::NoCall));
    c.disconnect();
    let good = [c.mem.sge(vec![0; 40])];
    let call = Call { xid: Xid(1), stream: &good, items: &[], reply: None, deadline: None };
    assert_eq!(c.conn.call(&call), Err(CallRefused::Closed));
}
