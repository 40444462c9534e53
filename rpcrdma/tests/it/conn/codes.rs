//! The answers of an end to messages that it cannot take: their codes, or silence.

use heddle_rpcrdma::conn::{BadReply, Call, CallError, CallRefused, Event, ReplyRoom, Speaks};
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::property::{Properties, ReverseSupport, Thresholds};
use heddle_rpcrdma::{Limits, Xid, v2};

use crate::conn::model::settle;
use crate::conn::negotiation::{null_call, pair, serve};
use crate::conn::scene::{CREDIT, NOW, answer, ended, established, give, met, reply, take_sent};

const XID: u32 = 7;

const READ_40: [u32; 6] = [1, 40, 1, 8, 0, 0];
const READ_48: [u32; 6] = [1, 48, 2, 8, 0, 0];
const READ_56: [u32; 6] = [1, 56, 3, 8, 0, 0];
const WRITE: [u32; 6] = [1, 1, 4, 8, 0, 0];

/// Builds a call of version 2 with these lists, and a stream that ends where the first chunk
/// begins.
fn inline(lists: &[u32]) -> Vec<u32> {
    [&[XID, 2, CREDIT, 10, 0], lists, &[XID, 0], &[0; 8]].concat()
}

/// Returns the messages that a server sends in answer to `message`, without their credit fields.
/// Asserts that the upper layer gets no event, and that the server goes on and serves the next
/// call.
fn answers(speaks: Speaks, message: &[u32]) -> Vec<Vec<u32>> {
    let (mut c, mut s) = met(speaks, Limits { read_chunks: 2, write_chunks: 1, segments: 1 });
    give(&mut s, message);
    let sent = take_sent(&mut s);
    let silent = !s.events.iter().any(|e| matches!(e, Event::Call(_) | Event::Close(_)));
    assert!(silent && s.mem.lent.is_empty(), "{message:?}: {:?}", s.events);
    null_call(&mut c, 901);
    settle(&mut c, &mut s, NOW);
    assert_eq!(serve(&mut s), 1, "{message:?}");
    let without = |words: &Vec<u32>| [&words[..2], &words[3..]].concat();
    sent.iter().map(without).collect()
}

#[test]
fn test_server_answers_invalid_version_2_messages_with_their_codes() {
    let inner = [XID, 2, CREDIT, 10, 0, 0, 0, 0, XID + 1, 0];
    let at = |position| inline(&[1, position, 1, 8, 0, 0, 0, 0, 0]);
    let props = |rest: &[u32]| [&[XID, 2, CREDIT, 7], rest].concat();
    for (message, version, want) in [
        // Another version, whatever the rest is.
        (vec![XID, 3, 1, 0, 0, 0, 0], 3, &[1, 2, 2][..]),
        (vec![XID, 1, 1, 0, 0, 0, 0, XID], 1, &[1, 2, 2]),
        // An unknown header type.
        (vec![XID, 2, CREDIT, 14], 2, &[4]),
        (vec![XID, 2, CREDIT, 0, 0, 0, 0, XID], 2, &[4]),
        // Not XDR: an invalid flag; an early end; another XID in the payload.
        (inline(&[2, 0, 0]), 2, &[2]),
        (vec![XID, 2, CREDIT, 10, 0, 1], 2, &[2]),
        (inner.to_vec(), 2, &[2]),
        (vec![XID, 2, CREDIT, 8, 0, 0, 0, 0, 0], 2, &[2]),
        // Positions: not a multiple of a unit; of a body; not in order.
        (at(42), 2, &[2]),
        (at(0), 2, &[2]),
        (inline(&[&READ_48[..], &READ_40, &[0, 0, 0]].concat()), 2, &[2]),
        // Chunks that overlap; a chunk longer than any item; a segment that wraps around the
        // address space.
        (inline(&[1, 40, 1, 9, 0, 0, 1, 48, 2, 8, 0, 0, 0, 0, 0]), 2, &[2]),
        (inline(&[1, 40, 1, u32::MAX, 0, 0, 0, 0, 0]), 2, &[2]),
        (inline(&[1, 40, 1, 8, u32::MAX, u32::MAX, 0, 0, 0]), 2, &[2]),
        // False counts: of segments, of properties.
        (inline(&[0, 1, u32::MAX]), 2, &[8, 1]),
        (props(&[u32::MAX, 1, 4, 4096]), 2, &[2]),
        // More chunks or segments than the server takes.
        (inline(&[&READ_40[..], &READ_48, &READ_56, &[0, 0, 0]].concat()), 2, &[6, 2]),
        (inline(&[&[0], &WRITE[..], &WRITE, &[0, 0]].concat()), 2, &[7, 1]),
        (inline(&[&READ_40[..], &READ_40, &[0, 0, 0]].concat()), 2, &[8, 1]),
        // Properties: a value of the wrong length; a second set after the last.
        (props(&[1, 1, 8, 0, 0]), 2, &[3]),
        (props(&[0]), 2, &[5]),
    ] {
        let error = [&[XID, version, 4], want].concat();
        assert_eq!(answers(Speaks::V2, &message), [error], "{message:?}");
    }
    // Control: in the right order the same two chunks are valid, and the server reads both.
    let (_, mut s) = met(Speaks::V2, Limits { read_chunks: 2, write_chunks: 1, segments: 1 });
    give(&mut s, &inline(&[&READ_40[..], &READ_48, &[0, 0, 0]].concat()));
    assert_eq!((take_sent(&mut s), s.posted[1]), (vec![], 2));
    // No message at all, or a message that is itself an answer.
    for silent in [&[XID, 2, CREDIT][..], &[XID, 2, CREDIT, 4, 2], &[XID, 2, CREDIT, 4]] {
        assert_eq!(answers(Speaks::V2, silent), [[]; 0], "{silent:?}");
    }
}

#[test]
fn test_server_answers_invalid_version_1_messages_with_their_codes() {
    // The stream ends where the first chunk begins, so that the lists are the only fault.
    let msg = |lists: &[u32]| [&[XID, 1, 1, 0], lists, &[XID, 0], &[0; 8]].concat();
    for (message, version, want) in [
        (vec![XID, 3, 1, 0, 0, 0, 0], 3, &[1, 1, 1][..]),
        (vec![XID, 2, 1, 10, 0, 0, 0, 0, XID], 2, &[11]),
        (msg(&[2, 0, 0]), 1, &[2]),
        (vec![XID, 1, 1, 0, 0, 0, 0], 1, &[2]),
        (vec![XID, 1, 1, 0, 0, 0, 0, XID + 1, 0], 1, &[2]),
        (vec![XID, 1, 1, 1, 0, 0, 0], 1, &[2]),
        (msg(&[1, 42, 1, 8, 0, 0, 0, 0, 0]), 1, &[2]),
        // Chunks that overlap; a segment that wraps around the address space; a false count.
        (msg(&[1, 40, 1, 9, 0, 0, 1, 48, 2, 8, 0, 0, 0, 0, 0]), 1, &[2]),
        (msg(&[1, 40, 1, 8, u32::MAX, u32::MAX, 0, 0, 0]), 1, &[2]),
        (msg(&[0, 1, u32::MAX, 0]), 1, &[2]),
        // RDMA_MSGP.
        (vec![XID, 1, 1, 2, 0, 0, 0, 0, 0, XID], 1, &[2]),
    ] {
        let error = [&[XID, version, 4], want].concat();
        assert_eq!(answers(Speaks::V1, &message), [error], "{message:?}");
    }
    for silent in [
        // Below 28 bytes, the XID cannot be trusted.
        &[XID, 1, 1, 0, 2, 0][..],
        &[XID, 3, 1, 0],
        // RDMA_DONE.
        &[XID, 1, 1, 3],
        &[XID, 1, 1, 3, 0, 0, 0],
        // RDMA_ERROR, with a known code and with an unknown code.
        &[XID, 1, 1, 4, 2, 0, 0],
        &[XID, 1, 1, 4, 9, 0, 0],
    ] {
        assert_eq!(answers(Speaks::V1, silent), [[]; 0], "{silent:?}");
    }
}

/// A server that does not speak version 2 reports its versions to a client that begins with version
/// 2.
#[test]
fn test_server_of_version_1_answers_version_2_with_its_versions() {
    let (_, mut s) = pair(Speaks::V1, Speaks::V1);
    give(&mut s, &[XID, 2, 64, 7, 1, 1, 4, 4096]);
    let sent = take_sent(&mut s);
    assert_eq!((sent.len(), &sent[0][..2], &sent[0][3..]), (1, &[XID, 2][..], &[4, 1, 1, 1][..]));
    assert_eq!((s.conn.version(), s.events.len()), (None, 0));
}

/// A client receives messages that it cannot decode or should not get: it sends no answer, and its
/// call goes on waiting.
#[test]
fn test_client_of_version_1_answers_nothing_that_is_no_call() {
    for message in [
        &[XID, 1, 1, 0, 2, 0, 0, XID][..],
        &[XID, 1, 1, 2, 0, 0, 0, 0, 0, XID],
        &[XID, 1, 1, 3, 0, 0, 0],
        &[XID, 1, 1, 4, 9, 0, 0],
        // A reply with a Read chunk, and a reply without any list: neither belongs to a call.
        &[XID + 9, 1, 1, 0, 1, 40, 1, 8, 0, 0, 0, 0, 0, XID + 9, 1],
        &[XID + 9, 1, 1, 0, 2, 0, 0, XID + 9, 1],
    ] {
        let (mut c, mut s) = met(Speaks::V1, Limits::DEFAULT);
        let call = null_call(&mut c, XID);
        settle(&mut c, &mut s, NOW);
        c.sent.clear();
        give(&mut c, message);
        assert_eq!(take_sent(&mut c), [[]; 0], "{message:?}");
        assert_eq!(ended(&mut c), [], "{message:?}");
        serve(&mut s);
        settle(&mut c, &mut s, NOW);
        assert!(matches!(ended(&mut c)[..], [Event::Reply { call: of, .. }] if of == call));
    }
    // If the faulty reply belongs to a call, the call fails, since no better reply will come.
    let (mut c, _) = met(Speaks::V1, Limits::DEFAULT);
    let call = null_call(&mut c, XID);
    drop(take_sent(&mut c));
    give(&mut c, &[XID, 1, 1, 0, 1, 40, 1, 8, 0, 0, 0, 0, 0, XID, 1]);
    assert_eq!(take_sent(&mut c), [[]; 0]);
    let error = CallError::BadReply(BadReply::Header);
    assert_eq!(ended(&mut c), [Event::Failed { call, error }]);
}

/// Another message interrupts a message in parts.
#[test]
fn test_message_that_interrupts_one_in_parts_is_refused() {
    let invalid = |xid| vec![xid, 2, 4, 5];
    let error_of = |sent: Vec<Vec<u32>>| {
        let [words] = &sent[..] else { panic!("{sent:?}") };
        [&words[..2], &words[3..]].concat()
    };
    let call = [XID, 2, CREDIT, 9, 100, XID, 0];
    let part = [XID + 1, 2, CREDIT, 9, 4, XID + 1, 0];
    for next in [&inline(&[0, 0, 0])[..], &part, &[XID, 2, CREDIT, 7, 0]] {
        let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
        give(&mut s, &call);
        assert_eq!(s.mem.lent.len(), 1);
        s.sent.clear();
        drop(take_sent(&mut s));
        give(&mut s, next);
        assert_eq!(error_of(take_sent(&mut s)), invalid(next[0]), "{next:?}");
        assert!(s.mem.lent.is_empty() && ended(&mut s).is_empty());
    }
    // The same with a set of properties, and with a reply.
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    give(&mut s, &[0, 2, CREDIT, 6, 0]);
    drop(take_sent(&mut s));
    give(&mut s, &inline(&[0, 0, 0]));
    assert_eq!(error_of(take_sent(&mut s)), invalid(XID));
    let (mut c, _) = established(Speaks::V2, |_| {});
    let mine = null_call(&mut c, XID);
    drop(take_sent(&mut c));
    give(&mut c, &[XID, 2, CREDIT, 12, 100, XID, 1]);
    give(&mut c, &inline(&[0, 0, 0]));
    assert_eq!(error_of(take_sent(&mut c)), invalid(XID));
    let error = CallError::BadReply(BadReply::Header);
    assert_eq!(ended(&mut c), [Event::Failed { call: mine, error }]);
}

/// A set with a bad value sets no property; the valid set that follows does.
#[test]
fn test_properties_with_a_bad_value_set_nothing() {
    let (_, mut s) = pair(Speaks::BOTH, Speaks::BOTH);
    let (receives, bad) = ([2, 4, 2048], [5, 8, 0, 0]);
    give(&mut s, &[&[0, 2, CREDIT, 7, 2][..], &receives, &bad].concat());
    let sent = take_sent(&mut s);
    assert!(sent.iter().any(|words| words[3..] == [4, 3]), "{sent:?}");
    assert_eq!(s.conn.thresholds(), Thresholds::DEFAULT);
    // The receiver skips the unknown property.
    give(&mut s, &[&[0, 2, CREDIT, 7, 2, 99, 8, 1, 2][..], &receives].concat());
    assert_eq!(s.conn.thresholds(), Thresholds { send: 2048, ..Thresholds::DEFAULT });
    assert!(take_sent(&mut s).iter().all(|words| words[3] != 4));
}

/// A client refuses reverse-direction calls with features that it does not support, with the codes
/// for chunks.
#[test]
fn test_client_refuses_reverse_chunks_that_it_does_not_support() {
    let reads = inline(&[&READ_40[..], &[0, 0, 0]].concat());
    let writes = inline(&[&[0], &WRITE[..], &[0, 0]].concat());
    let body = [XID, 2, CREDIT, 8, 0, 1, 0, 1, 80, 0, 0, 0, 0, 0, 0];
    for (reverse, message, want) in [
        (ReverseSupport::Simple, &reads[..], &[4, 6, 0][..]),
        (ReverseSupport::Simple, &body, &[4, 6, 0]),
        (ReverseSupport::Simple, &writes, &[4, 10, 0]),
        (ReverseSupport::Continued, &reads, &[4, 6, 0]),
        (ReverseSupport::Continued, &writes, &[4, 7, 0]),
        (ReverseSupport::None, &inline(&[0, 0, 0]), &[4, 100]),
    ] {
        let properties = Properties { reverse, ..Properties::DEFAULT };
        let (mut c, _) = established(Speaks::V2, |config| config.properties = properties);
        give(&mut c, message);
        let sent = take_sent(&mut c);
        assert_eq!((sent.len(), &sent[0][3..]), (1, want), "{reverse:?}");
        assert!(!c.events.iter().any(|e| matches!(e, Event::Call(_))));
    }
}

/// A reverse-direction reply goes in parts only if the client has announced support for that.
#[test]
fn test_reverse_reply_goes_in_parts_only_if_client_supports_them() {
    for reverse in [ReverseSupport::Simple, ReverseSupport::Continued] {
        let properties = Properties { reverse, ..Properties::DEFAULT };
        let (mut c, mut s) = established(Speaks::V2, |config| config.properties = properties);
        let stream = [s.mem.sge([&5u32.to_be_bytes()[..], &[0; 36]].concat())];
        let reply_room = Some(ReplyRoom::default());
        let call =
            Call { xid: Xid(5), stream: &stream, items: &[], reply: reply_room, deadline: None };
        let call = s.conn.call(&call).unwrap();
        settle(&mut c, &mut s, NOW);
        answer(&mut c, &reply(5, 0, 2000));
        settle(&mut c, &mut s, NOW);
        let needed = 8044;
        let refusal = Refusal::V2(v2::Refusal::ReplyResource { needed });
        match (reverse, &ended(&mut s)[..]) {
            (ReverseSupport::Simple, events) => {
                let error = CallError::Refused(refusal);
                assert_eq!(events, [Event::Failed { call, error }]);
            }
            (_, [Event::Reply { call: of, .. }]) => assert_eq!(*of, call),
            (_, events) => panic!("{events:?}"),
        }
        // The connection stays usable.
        let same =
            Call { xid: Xid(5), stream: &stream, items: &[], reply: reply_room, deadline: None };
        assert_ne!(s.conn.call(&same), Err(CallRefused::Closed));
    }
}
