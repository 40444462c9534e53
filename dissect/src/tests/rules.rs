//! Each broken rule has the verdict of that rule, and no other.

use heddle_rpcrdma::Handle;
use heddle_rpcrdma::v1::{self, Chunks};
use heddle_rpcrdma::v2;

use super::*;
use crate::testing::{Wire, call, reply};

const MSG: v1::Body<'static> = v1::Body::Msg(Chunks::NONE);

/// Returns the verdicts of a connection that begins with a READ of handle 5 with XID 7, and a WRITE
/// of handle 6 and a Reply chunk of handle 8 with XID 8, for which the server has granted credits.
fn of(f: impl FnOnce(&mut Wire)) -> Vec<Rule> {
    let mut w = Wire::new(true, false);
    w.v1(0, 1, 2, MSG, &call(1, 0));
    w.v1(1, 1, 2, MSG, &reply(1, 0)[..24]);
    with_chunks([0, 5, 0], 4, |c| w.v1(0, 7, 2, v1::Body::Msg(c), &call(7, 6)));
    with_chunks([6, 0, 8], 40, |c| w.v1(0, 8, 2, v1::Body::Msg(c), &call(8, 7)));
    f(&mut w);
    verdicts(&w.decode().0)
}

#[test]
fn test_decoder_faults_memory_access_outside_the_offered_chunks() {
    assert_eq!(of(|_| {}), []);
    assert_eq!(of(|w| w.write(1, 5, at(5), &[0; 1000])), []);
    assert_eq!(of(|w| w.write(1, 5, at(5), &[0; 1001])), [Rule::Memory]);
    assert_eq!(of(|w| w.write(1, 5, at(5) - 1, &[0; 10])), [Rule::Memory]);
    assert_eq!(of(|w| w.write(1, 9, at(9), &[0; 10])), [Rule::Memory]);
    assert_eq!(of(|w| w.write(1, 9, at(9), &[])), [], "it reaches nothing");
    assert_eq!(of(|w| w.write(1, 6, at(6), &[0; 10])), [Rule::Memory], "it is to be read");
    assert_eq!(of(|w| w.write(0, 5, at(5), &[0; 10])), [Rule::Memory], "its own");
    assert_eq!(of(|w| w.read(1, 6, at(6) + 999, 1)), []);
    assert_eq!(of(|w| w.read(1, 6, at(6) + 999, 2)), [Rule::Memory]);
    assert_eq!(of(|w| w.read(1, 5, at(5), 1)), [Rule::Memory], "it is to be written");
    let late = of(|w| {
        w.v1(1, 7, 2, MSG, &reply(7, 5));
        w.write(1, 5, at(5), &[0; 10]);
    });
    assert_eq!(late, [Rule::Memory]);
}

#[test]
fn test_decoder_faults_read_response_that_does_not_match_its_request() {
    let read = |w: &mut Wire| w.read(1, 6, at(6), 100);
    assert_eq!(of(|w| (read(w), w.respond(0, &[0; 100])).1), []);
    assert_eq!(of(|w| (read(w), w.respond(0, &[0; 99])).1), [Rule::Read]);
    assert_eq!(of(|w| w.respond(0, &[0; 100])), [Rule::Read]);
}

#[test]
fn test_decoder_faults_reply_without_call_or_with_wrong_chunks() {
    let results = |handle, bytes| {
        move |w: &mut Wire| {
            w.write(1, 5, at(5), &[0; 500]);
            returned(handle, bytes, |writes| {
                let chunks = Chunks { writes, ..Chunks::NONE };
                w.v1(1, 7, 2, v1::Body::Msg(chunks), &reply(7, 0));
            });
        }
    };
    assert_eq!(of(results(5, 500)), []);
    assert_eq!(of(results(5, 501)), [Rule::Chunks], "more than was written");
    assert_eq!(of(results(6, 500)), [Rule::Chunks], "another chunk");
    assert_eq!(of(|w| w.v1(1, 99, 2, MSG, &reply(99, 0))), [Rule::Xid]);
    assert_eq!(of(|w| w.v1(1, 99, 2, v1::Body::Error(v1::Refusal::Chunk), &[])), [Rule::Xid]);
    assert_eq!(of(|w| w.v1(1, 8, 2, v1::Body::Error(v1::Refusal::Chunk), &[])), []);
    let again = of(|w| {
        w.v1(1, 8, 2, MSG, &reply(8, 5));
        w.v1(0, 7, 2, MSG, &call(7, 6));
    });
    assert_eq!(again, [Rule::Xid]);
}

#[test]
fn test_decoder_faults_call_beyond_credits_of_version_1() {
    let one_more = |w: &mut Wire| w.v1(0, 9, 2, MSG, &call(9, 0));
    assert_eq!(of(one_more), [Rule::Credits]);
    assert_eq!(of(|w| (w.v1(1, 8, 2, MSG, &reply(8, 5)), one_more(w)).1), []);
    assert_eq!(of(|w| w.v1(1, 8, 0, MSG, &reply(8, 5))), [Rule::Credits]);
    // Calls of the other direction have an account of their own, with one credit at first.
    let back = |w: &mut Wire, xid| w.v1(1, xid, 2, MSG, &call(xid, 0));
    assert_eq!(of(|w| back(w, 7)), []);
    assert_eq!(of(|w| (back(w, 7), back(w, 8)).1), [Rule::Credits]);
}

#[test]
fn test_decoder_faults_malformed_headers_and_oversized_sends() {
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
    assert_eq!(of(|w| w.send(1, None, &bytes(&[1, 1, 2, 9]))), [Rule::Header]);
    assert_eq!(of(|w| w.send(1, None, &bytes(&[1, 3, 2, 0]))), [Rule::Header]);
    assert_eq!(of(|w| w.send(1, None, b"short")), [Rule::Header]);
    let sized = |len: usize| [reply(8, 0), vec![0; len - 28 - 28]].concat();
    assert_eq!(of(|w| w.v1(1, 8, 2, MSG, &sized(1024))), []);
    assert_eq!(of(|w| w.v1(1, 8, 2, MSG, &sized(1028))), [Rule::Inline]);
    assert_eq!(of(|w| w.v1(1, 8, 2, MSG, &bytes(&[8, 2]))), [Rule::Rpc]);
    assert_eq!(of(|w| w.v1(1, 8, 2, MSG, &bytes(&[8, 1, 5]))), [Rule::Rpc]);
    let other = v2::Body::ReplyInline { writes: Chunks::NONE.writes };
    let other = of(|w| w.v2(1, None, (8, 2), other, &reply(8, 0)));
    assert_eq!(other, [Rule::Version]);
}

/// Returns the verdicts as [`of`] does, for version 2: a call with XID 7 whose reply may invalidate
/// handle 5.
fn of_2(f: impl FnOnce(&mut Wire)) -> Vec<Rule> {
    let mut w = Wire::new(true, false);
    with_chunks([6, 5, 0], 40, |chunks| {
        let body = v2::Body::CallInline { invalidate: Handle(5), chunks };
        w.v2(0, None, (7, 4), body, &call(7, 6));
    });
    f(&mut w);
    verdicts(&w.decode().0)
}

#[test]
fn test_decoder_faults_invalidation_of_handle_not_offered_for_it() {
    let reply = |handle| {
        move |w: &mut Wire| {
            let body = v2::Body::ReplyInline { writes: Chunks::NONE.writes };
            w.v2(1, handle, (7, 4), body, &reply(7, 5));
        }
    };
    assert_eq!(of_2(reply(None)), []);
    assert_eq!(of_2(reply(Some(5))), []);
    assert_eq!(of_2(reply(Some(6))), [Rule::Memory]);
    let foreign = of_2(|w| {
        w.v2(1, None, (0, 4), v2::Body::Grant, &[]);
        with_chunks([0, 5, 0], 4, |chunks| {
            let body = v2::Body::CallInline { invalidate: Handle(99), chunks };
            w.v2(0, None, (8, 4), body, &call(8, 6));
        });
    });
    assert_eq!(foreign, [Rule::Memory]);
}

#[test]
fn test_decoder_faults_wrong_credits_and_sequences_of_version_2() {
    let grant = |w: &mut Wire, side, credits| w.v2(side, None, (0, credits), v2::Body::Grant, &[]);
    // A sender may always send one GRANT beyond the credits that were announced.
    assert_eq!(of_2(|w| grant(w, 0, 4)), []);
    assert_eq!(of_2(|w| (grant(w, 0, 4), grant(w, 0, 4)).1), [Rule::Credits]);
    assert_eq!(of_2(|w| (grant(w, 1, 9), grant(w, 0, 4), grant(w, 0, 4)).2), []);
    assert_eq!(of_2(|w| grant(w, 1, 1 << 31)), [Rule::Credits]);
    let middle = |w: &mut Wire, xid, remaining| {
        w.v2(1, None, (xid, 9), v2::Body::ReplyMiddle { remaining }, &reply(xid, 0));
    };
    let last = |w: &mut Wire, len: usize| {
        let body = v2::Body::ReplyInline { writes: Chunks::NONE.writes };
        w.v2(1, None, (7, 9), body, &vec![0; len]);
    };
    assert_eq!(of_2(|w| (middle(w, 7, 8), last(w, 8)).1), []);
    assert_eq!(of_2(|w| (middle(w, 7, 8), last(w, 12)).1), [Rule::Sequence]);
    assert_eq!(of_2(|w| (middle(w, 7, 8), middle(w, 9, 8)).1), [Rule::Sequence]);
}
