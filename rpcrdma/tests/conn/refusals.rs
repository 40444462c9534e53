//! What an end does that is refused something, or can go on no longer.

use heddle_rpcrdma::conn::{CallError, CloseReason, Event, Speaks};
use heddle_rpcrdma::header::{Answer, Refusal};
use heddle_rpcrdma::{Limits, Xid, credit, v1, v2};

use crate::model::{End, execute, settle};
use crate::negotiation::{null_call, pair, serve};
use crate::scene::{
    CREDIT, NOW, answer, big_call, ended, established, give, long_call, met, reply, take_sent,
};

const XID: u32 = 7;

fn refuse(end: &mut End, xid: u32, version: u32, refusal: Refusal) {
    let mut out = [0; Answer::MAX_LEN];
    let len = Answer { xid: Xid(xid), version, refusal }.encode(CREDIT, &mut out).unwrap();
    end.conn.handle_receive(NOW, &out[..len], None, &mut end.mem);
}

/// As many as can be told apart from what was taken back, and one more.
#[test]
fn test_announcement_of_2_to_the_31_less_1_messages_closes() {
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
fn test_refusal_of_a_code_that_is_not_known_is_passed_over() {
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

/// A peer that was spoken to in version 2, and says that it does not take that.
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
    // One that names this version among others has not said so.
    let (mut c, _) = met(Speaks::V2, Limits::DEFAULT);
    refuse(&mut c, 1, 2, Refusal::V2(versions(1, 2)));
    null_call(&mut c, 1);
    assert_eq!(take_sent(&mut c).len(), 1);
}

/// A header type that the peer does not take is not sent again; calls go by others as far as they can.
#[test]
fn test_header_type_that_was_refused_is_not_sent_again() {
    let (mut c, _) = established(Speaks::V2, |config| config.parts_max = 1);
    let refused = Refusal::V2(v2::Refusal::InvalHtype);
    let mut kinds = |xid, octets| {
        let call = long_call(&mut c, xid, octets);
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

/// The rest of a call in parts is not sent once its first part was refused by its type.
#[test]
fn test_parts_of_a_type_that_was_refused_stop() {
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

/// Memory that cannot be taken back from the peer ends the connection before the call ends.
#[test]
fn test_invalidation_that_fails_closes_before_the_call_ends() {
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

/// A reply or an error that cannot be sent is told by the end of the connection.
#[test]
fn test_reply_or_error_that_cannot_be_sent_closes() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let (mut c, mut s) = met(speaks, Limits::DEFAULT);
        null_call(&mut c, 1);
        settle(&mut c, &mut s, NOW);
        serve(&mut s);
        s.pump(64);
        s.fail_first();
        assert_eq!(ended(&mut s), [Event::Close(CloseReason::Completion)]);
    }
    // Errors without end, to a peer that takes none.
    let (_, mut s) = established(Speaks::V2, |config| config.credits = 1000);
    for _ in 0..64 {
        give(&mut s, &[XID, 2, CREDIT, 99]);
    }
    assert_eq!(ended(&mut s), []);
    give(&mut s, &[XID, 2, CREDIT, 99]);
    assert_eq!(ended(&mut s), [Event::Close(CloseReason::Errors)]);
}
