//! Calls of a server to its client in version 1 (RFC 8167): the credits of two directions, and
//! chunks.

use heddle_rpcrdma::conn::{Event, Side, Speaks};
use heddle_rpcrdma::property::{Properties, ReverseSupport};
use heddle_rpcrdma::{Limits, v1};

use crate::conn::model::{End, settle};
use crate::conn::negotiation::{null_call, serve};
use crate::conn::scene::{NOW, ended, established, give, met, take_sent, words};

const XID: u32 = 7;

/// Returns a client that serves calls of `reverse` and grants three of them, and its server, which
/// grants nine.
fn calling(reverse: ReverseSupport) -> (End, End) {
    let properties = Properties { reverse, ..Properties::DEFAULT };
    let (mut c, mut s) = established(Speaks::V1, |config| {
        config.properties = properties;
        config.calls = 20;
        config.served = if config.side == Side::Client { 3 } else { 9 };
    });
    // A server learns the version of its client from a call.
    null_call(&mut c, 900);
    settle(&mut c, &mut s, NOW);
    assert_eq!(serve(&mut s), 1);
    settle(&mut c, &mut s, NOW);
    ended(&mut c);
    (c.sent, s.sent) = (Vec::new(), Vec::new());
    (c, s)
}

/// Returns how many calls of `end` have had their replies; the calls that `end` has to serve stay.
fn take_replies(end: &mut End) -> usize {
    end.take_events();
    let all = end.events.len();
    end.events.retain(|e| !matches!(e, Event::Reply { .. }));
    all - end.events.len()
}

/// Each direction has its own credits, and the numbers may differ (sections 2 and 4.1).
#[test]
fn test_each_direction_has_credits_of_its_own() {
    let (mut c, mut s) = calling(ReverseSupport::Simple);
    for xid in 1..=20 {
        null_call(&mut s, xid);
        null_call(&mut c, xid);
    }
    settle(&mut c, &mut s, NOW);
    assert_eq!((s.sent.len(), c.sent.len()), (1, 9), "one back until the client has granted more");
    assert_eq!(serve(&mut c), 1);
    settle(&mut c, &mut s, NOW);
    assert_eq!(s.sent.len(), 4, "the client grants three, whatever its server grants");
    assert_eq!(words(c.sent.last().unwrap())[2], 3, "its reply says so");
    // Each end asks for its own number of calls in its own calls.
    assert!(s.sent.iter().chain(&c.sent[..9]).all(|bytes| words(bytes)[2] == 20));
    let mut replies = [0; 2];
    for _ in 0..20 {
        for (n, end) in [&mut c, &mut s].into_iter().enumerate() {
            replies[n] += take_replies(end);
            serve(end);
        }
        settle(&mut c, &mut s, NOW);
    }
    assert_eq!(replies, [20, 20], "the same XIDs both ways");
}

/// The credit field of a message without a recognisable direction is neither a request nor a grant
/// (section 4.1): it changes nothing for either end.
#[test]
fn test_credits_of_a_message_of_no_direction_are_ignored() {
    // A message type that is neither call nor reply; a payload without a direction; RDMA_DONE.
    for message in [
        &[XID, 1, 1, 0, 0, 0, 0, XID, 2][..],
        &[XID, 1, 1, 0, 0, 0, 0, XID],
        &[XID, 1, 1, 3, 0, 0, 0],
    ] {
        let (mut c, mut s) = calling(ReverseSupport::Simple);
        give(&mut c, message);
        give(&mut s, message);
        assert_eq!((ended(&mut c), ended(&mut s)), (vec![], vec![]), "{message:?}");
        (c.sent, s.sent) = (Vec::new(), Vec::new());
        for xid in 1..=20 {
            null_call(&mut c, xid);
        }
        let sent = take_sent(&mut c);
        assert_eq!(sent.len(), 9, "{message:?}: as many as were granted before");
        assert_eq!(s.conn.counters().overloads, 0);
    }
}

/// A client that takes no chunks from its server answers each kind of chunk with ERR_CHUNK (section
/// 5.3), and goes on.
#[test]
fn test_chunks_of_a_reverse_call_are_refused_with_err_chunk() {
    let call = |lists: &[u32]| [&[XID, 1, 1, 0], lists, &[XID, 0], &[0; 8]].concat();
    for message in [
        // A Read chunk after the RPC header, a Write chunk, a Reply chunk, and a Call chunk.
        call(&[1, 40, 1, 8, 0, 0, 0, 0, 0]),
        call(&[0, 1, 1, 4, 8, 0, 0, 0, 0]),
        call(&[0, 0, 1, 1, 4, 8, 0, 0]),
        vec![XID, 1, 1, 1, 1, 0, 1, 80, 0, 0, 0, 0, 0],
    ] {
        let (mut c, mut s) = calling(ReverseSupport::Simple);
        give(&mut c, &message);
        let sent = take_sent(&mut c);
        assert_eq!(sent.len(), 1, "{message:?}");
        let error = [XID, v1::VERSION, 4, 2];
        assert_eq!([&sent[0][..2], &sent[0][3..]].concat(), error, "{message:?}");
        assert!(!c.events.iter().any(|e| matches!(e, Event::Call(_))), "{message:?}");
        c.sent.clear();
        null_call(&mut s, 8);
        settle(&mut c, &mut s, NOW);
        assert_eq!(serve(&mut c), 1, "the next one is served");
    }
    // Control: a server takes the same message from its client, so the message itself is valid.
    let (_, mut s) = met(Speaks::V1, Limits::DEFAULT);
    give(&mut s, &call(&[1, 40, 1, 8, 0, 0, 0, 0, 0]));
    assert_eq!((take_sent(&mut s), s.posted[1]), (vec![], 1));
}
