//! The behaviour of an end that gets a refusal, or that cannot go on.

use heddle_rpcrdma::conn::{CallError, CloseReason, Event, Speaks};
use heddle_rpcrdma::header::{Answer, Refusal};
use heddle_rpcrdma::{Limits, Xid, credit, v1, v2};

use crate::conn::model::{End, execute, settle};
use crate::conn::negotiation::{null_call, pair, serve};
use crate::conn::scene::{
    CREDIT, NOW, answer, big_call, ended, established, give, long_call, met, reply, take_sent,
};

const XID: u32 = 7;

fn refuse(end: &mut End, xid: u32, version: u32, refusal: Refusal) {
    let mut out = [0; Answer::MAX_LEN];
    let len = Answer { xid: Xid(xid), version, refusal }.encode(CREDIT, &mut out).unwrap();
    end.conn.handle_receive(NOW, &out[..len], None, &mut end.mem);
}

/// The largest announcement that can be told apart from credits taken back is taken; one more is
/// not.
#[test]
fn test_announcement_of_too_many_credits_closes_the_connection() {
    let (_, mut s) = pair(Speaks::V2, Speaks::V2);
    give(&mut s, &[0, 2, 0x7fff_fffe, 5]);
    assert_eq!(ended(&mut s), []);
    let (_, mut s) = pair(Speaks::V2, Speaks::V2);
    give(&mut s, &[0, 2, 0x7fff_ffff, 5]);
    let violation = credit::v2::Violation::Announcement;
    assert_eq!(ended(&mut s), [Event::Close(CloseReason::CreditsV2(violation))]);
}

#[test]
fn test_each_refusal_ends_its_call_and_no_other() {
    let (max, needed) = (3, 9000);
    let second = [
        v2::Refusal::BadXdr,
        v2::Refusal::BadPropval,
        v2::Refusal::InvalHtype,
        v2::Refusal::InvalCont,
        v2::Refusal::ReadChunks { max },
        v2::Refusal::WriteChunks { max },
        v2::Refusal::Segments { max },
        v2::Refusal::WriteResource { chunk: 1, needed },
        v2::Refusal::WriteResource { chunk: 0, needed: 0 },
        v2::Refusal::ReplyResource { needed },
        v2::Refusal::ReplyResource { needed: 0 },
        v2::Refusal::System,
    ];
    let second = second.map(|refusal| (Speaks::V2, 2, Refusal::V2(refusal)));
    let versions = v1::Refusal::Versions { low: 2, high: 2 };
    let first = [v1::Refusal::Chunk, versions].map(|r| (Speaks::V1, 1, Refusal::V1(r)));
    for (speaks, version, refusal) in second.into_iter().chain(first) {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        let [a, b] = [1, 2].map(|xid| null_call(&mut c, xid));
        settle(&mut c, &mut s, NOW);
        refuse(&mut c, 1, version, refusal);
        let error = CallError::Refused(refusal);
        assert_eq!(ended(&mut c), [Event::Failed { call: a, error }], "{refusal:?}");
        assert_eq!(serve(&mut s), 2);
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut c)[..], [Event::Reply { call, .. }] if call == b));
    }
}

#[test]
fn test_refusal_with_unknown_code_is_ignored() {
    for code in [0, 12, 99, 101, u32::MAX] {
        let (mut c, mut s) = met(Speaks::V2, Limits::DEFAULT);
        null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        refuse(&mut c, 1, 2, Refusal::V2(v2::Refusal::Unknown(code)));
        assert_eq!(ended(&mut c), []);
        serve(&mut s);
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut c)[..], [Event::Reply { .. }]));
    }
}

/// A peer that gets a message of version 2 reports that it does not take that version.
#[test]
fn test_peer_that_does_not_take_the_version_is_sent_nothing_more() {
    let versions = |low, high| v2::Refusal::Versions { low, high };
    for (refusal, next) in [
        (versions(1, 1), None),
        (versions(3, 9), None),
        (v2::Refusal::VersMismatch, Some(Speaks::V2)),
    ] {
        let refusal = Refusal::V2(refusal);
        let (mut c, mut s) = met(Speaks::V2, Limits::DEFAULT);
        let call = null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        null_call(&mut c, 2);
        c.sent.clear();
        refuse(&mut c, 1, 2, refusal);
        assert_eq!(take_sent(&mut c), [[]; 0]);
        assert_eq!(
            ended(&mut c)[..],
            [
                Event::Failed { call, error: CallError::Refused(refusal) },
                Event::Close(CloseReason::NoVersion),
            ]
        );
        assert_eq!(c.conn.next_speaks(), next);
    }
    // A refusal whose range includes this version does not deny the version.
    let (mut c, _) = met(Speaks::V2, Limits::DEFAULT);
    refuse(&mut c, 1, 2, Refusal::V2(versions(1, 2)));
    null_call(&mut c, 1);
    assert_eq!(take_sent(&mut c).len(), 1);
}

/// This end does not send a refused header type again; calls use other types as far as they can.
#[test]
fn test_header_type_that_was_refused_is_not_sent_again() {
    let (mut c, _) = established(Speaks::V2, |config| config.parts_max = 1);
    let refused = Refusal::V2(v2::Refusal::InvalHtype);
    let mut kinds = |xid, bytes| {
        let call = long_call(&mut c, xid, bytes);
        let kinds: Vec<_> = take_sent(&mut c).iter().map(|words| words[3]).collect();
        if !kinds.is_empty() {
            refuse(&mut c, xid, 2, refused);
        }
        drop(take_sent(&mut c));
        let [Event::Failed { call: of, error }] = ended(&mut c)[..] else { panic!("{xid}") };
        assert_eq!(of, call);
        (kinds, error)
    };
    let error = CallError::Refused(refused);
    assert_eq!(kinds(1, 9000), (vec![8], error));
    assert_eq!(kinds(2, 9000), (vec![9, 9, 10], error), "in parts, however many");
    assert_eq!(kinds(3, 9000), (vec![], CallError::TooLong { threshold: 4096 }));
    assert_eq!(kinds(4, 400), (vec![10], error));
    assert_eq!(kinds(5, 400), (vec![], error));
}

/// This end stops a call in parts when the peer refuses the header type of the first part.
#[test]
fn test_client_stops_sending_parts_of_a_refused_header_type() {
    let (mut c, _) = established(Speaks::V2, |config| config.credits = 2);
    let call = long_call(&mut c, 1, 16_000);
    let sent = take_sent(&mut c);
    assert!(!sent.is_empty() && sent.iter().all(|words| words[3] == 9), "{sent:?}");
    let refusal = Refusal::V2(v2::Refusal::InvalHtype);
    refuse(&mut c, 1, 2, refusal);
    let rest = take_sent(&mut c);
    assert!(rest.iter().all(|words| words[3] == 5), "GRANTs alone: {rest:?}");
    assert_eq!(ended(&mut c), [Event::Failed { call, error: CallError::Refused(refusal) }]);
    null_call(&mut c, 2);
    assert_eq!(take_sent(&mut c)[0][3], 10);
}

/// If memory cannot be taken back from the peer, the connection ends before the call does.
#[test]
fn test_failed_invalidation_closes_connection_before_its_call_ends() {
    let (mut c, mut s) = established(Speaks::V1, |_| {});
    let call = big_call(&mut c, 1, 65_536, 0);
    settle(&mut c, &mut s, NOW);
    answer(&mut s, &reply(1, 0, 0));
    s.pump(64);
    while execute(&mut s, &mut c) {}
    assert!(c.receive(NOW));
    c.pump(64);
    assert_eq!(c.posted[3], 1, "the invalidation");
    c.fail_first();
    assert_eq!(ended(&mut c), [Event::Close(CloseReason::Completion)]);
    c.disconnect();
    assert!(matches!(ended(&mut c)[..], [Event::Reply { call: of, .. }] if of == call));
}

/// An end that cannot send a reply or an error closes the connection.
#[test]
fn test_reply_or_error_that_cannot_be_sent_closes_the_connection() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        serve(&mut s);
        s.pump(64);
        s.fail_first();
        assert_eq!(ended(&mut s), [Event::Close(CloseReason::Completion)]);
    }
    // Errors pile up for a peer that takes none.
    let (_, mut s) = established(Speaks::V2, |config| config.credits = 1000);
    for _ in 0..64 {
        give(&mut s, &[XID, 2, CREDIT, 99]);
    }
    assert_eq!(ended(&mut s), []);
    give(&mut s, &[XID, 2, CREDIT, 99]);
    assert_eq!(ended(&mut s), [Event::Close(CloseReason::Errors)]);
}

/// The server cannot decode the last part of a message, or the part has too many chunks. The
/// message ends with that part, and the server takes what follows.
#[test]
fn test_last_part_that_cannot_be_read_ends_its_message_only() {
    let (_, mut s) = established(Speaks::V2, |_| {});
    let rpc = [9, 0, 2, 0x2000_0001, 1, 0, 0, 0, 0, 0];
    let many = [&[1, 40, 1, 4, 0, 0].repeat(5)[..], &[0, 0, 0]].concat();
    for (last, told) in [
        (&[2, 0, 0][..], [2].as_slice()),
        (&many, &[6, 4]),
        // No bytes after the header's first words.
        (&[], &[2]),
    ] {
        give(&mut s, &[&[9, 2, CREDIT, v2::htype::CALL_MIDDLE, 4][..], &rpc].concat());
        assert_eq!(s.mem.lent.len(), 1);
        // Give the five chunks of the lists five positions.
        let mut last = last.to_vec();
        last.chunks_exact_mut(6).zip((40..).step_by(4)).for_each(|(entry, at)| entry[1] = at);
        give(&mut s, &[&[9, 2, CREDIT, v2::htype::CALL_INLINE, 0][..], &last].concat());
        assert_eq!(take_sent(&mut s)[0][3..], [&[v2::htype::ERROR], told].concat());
        assert!(s.mem.lent.is_empty());
        give(&mut s, &[&[9, 2, CREDIT, v2::htype::CALL_INLINE, 0, 0, 0, 0][..], &rpc].concat());
        s.take_events();
        assert_eq!(serve(&mut s), 1);
        take_sent(&mut s);
    }
    assert_eq!(s.conn.counters().broken_sequences, 3);
}

/// The last part of a reply cannot be decoded: its call fails, and the next call does not.
#[test]
fn test_last_part_of_a_reply_that_cannot_be_read_fails_its_call_only() {
    let (mut c, _) = established(Speaks::V2, |_| {});
    let calls = [9, 10].map(|xid| null_call(&mut c, xid));
    give(&mut c, &[0, 2, CREDIT, v2::htype::GRANT]);
    take_sent(&mut c);
    give(&mut c, &[9, 2, CREDIT, v2::htype::REPLY_MIDDLE, 4, 9, 1, 0, 0, 0]);
    give(&mut c, &[9, 2, CREDIT, v2::htype::REPLY_INLINE, 2, 0]);
    assert!(c.mem.lent.is_empty());
    give(&mut c, &[10, 2, CREDIT, v2::htype::REPLY_INLINE, 0, 10, 1, 0, 0, 0, 0]);
    let of = |event: &Event| match event {
        Event::Failed { call, error: CallError::BadReply(_) } => Some((*call, false)),
        Event::Reply { call, .. } => Some((*call, true)),
        _ => None,
    };
    let ended: Vec<_> = ended(&mut c).iter().map(of).collect();
    assert_eq!(ended, [Some((calls[0], false)), Some((calls[1], true))]);
}

/// A part before the last cannot be decoded: the server sends a single error and ignores the
/// remaining parts.
#[test]
fn test_rest_of_message_with_an_unreadable_part_is_discarded() {
    for begun in [false, true] {
        let (_, mut s) = established(Speaks::V2, |_| {});
        let part = [9, 2, CREDIT, v2::htype::CALL_MIDDLE, 100, 9, 0, 2];
        if begun {
            give(&mut s, &part);
        }
        give(&mut s, &part[..4]);
        let sent = take_sent(&mut s);
        assert_eq!((sent.len(), &sent[0][3..]), (1, &[v2::htype::ERROR, 2][..]));
        assert!(s.mem.lent.is_empty());
        give(&mut s, &part);
        give(&mut s, &part[..4]);
        give(&mut s, &[9, 2, CREDIT, v2::htype::CALL_INLINE, 7]);
        assert!(take_sent(&mut s).iter().all(|sent| sent[3] == v2::htype::GRANT));
        give(
            &mut s,
            &[8, 2, CREDIT, v2::htype::CALL_INLINE, 0, 0, 0, 0, 8, 0, 2, 3, 1, 0, 0, 0, 0, 0],
        );
        s.take_events();
        assert_eq!(serve(&mut s), 1);
    }
}
