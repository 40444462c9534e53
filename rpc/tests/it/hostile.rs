//! A server that invalidates memory of the answered call without having announced that, and other
//! memory; and a server that puts results where they do not belong.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::hand::*;
use crate::common::*;
use heddle_rpc::client::ConnectionFailure;
use heddle_rpc::{Body, CallError, Speaks};
use heddle_rpcrdma::conn::CloseReason;
use heddle_rpcrdma::{Handle, binding};

#[test]
fn test_reply_may_invalidate_memory_of_its_own_call_without_announcement() {
    let mut scene = Scene::new(Speaks::V1);
    let ([mut first, _second], calls) = scene.two();
    scene.hand.reply(calls[0].xid, Some(calls[0].reads[0].handle));
    let outcome = scene.until("the reply", |_| first.try_take());
    // The call fails, because its results are cut off; this test is about the invalidation only.
    assert!(outcome.is_err());
    assert_eq!((scene.hand.connections, scene.client.last_failure()), (1, None));
    let counters = scene.client.transport_counters().unwrap();
    // The client invalidates the call's room for the reply; both registrations of the other call
    // remain.
    assert_eq!((counters.remote_invalidations, counters.invalidations), (1, 1));
    assert_eq!(counters.registrations, 4);
}

#[test]
fn test_reply_that_invalidates_memory_of_another_call_ends_the_connection() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut scene = Scene::new(speaks);
        let (_pending, calls) = scene.two();
        scene.hand.reply(calls[0].xid, Some(calls[1].reads[0].handle));
        scene.made_again(calls[0].xid);
        let why = ConnectionFailure::Closed(CloseReason::WrongInvalidate);
        assert_eq!(scene.client.last_failure(), Some(why));
    }
}

#[test]
fn test_reply_that_invalidates_unknown_memory_ends_the_connection() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut scene = Scene::new(speaks);
        let (_pending, calls) = scene.two();
        // The handle has another key, so it belongs to an earlier call.
        let Handle(bits) = calls[0].reads[0].handle;
        scene.hand.reply(calls[0].xid, Some(Handle(bits ^ 0xff)));
        scene.made_again(calls[0].xid);
    }
}

/// A result that may be placed comes in the message although there is room for it: the call fails
/// for good.
#[test]
fn test_inline_result_where_a_chunk_was_offered_fails_its_call() {
    let mut scene = Scene::new(Speaks::V1);
    let mut pending = echo(&scene.client, 1, 8000, false, true).unwrap();
    let call = scene.calls(1).pop().unwrap();
    assert_eq!(call.writes.len(), 1);
    scene.hand.reply_with(&call, 0, &[0, 0, 0, 1, 0, 0, 0, 4, 9, 9, 9, 9]);
    let outcome = scene.until("the reply", |_| pending.try_take());
    assert_eq!(outcome.unwrap_err(), CallError::Misplaced);
    // An empty result has nothing to place.
    let mut pending = echo(&scene.client, 1, 8000, false, true).unwrap();
    let call = scene.calls(1).pop().unwrap();
    scene.hand.reply_with(&call, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let outcome = scene.until("the reply", |_| pending.try_take());
    assert_eq!(outcome.unwrap().reader().u32(), Ok(1));
    assert_eq!(scene.client.last_failure(), None);
}

/// A chunk holds bytes although the procedure has no result for it: the call fails for good.
#[test]
fn test_placed_result_that_procedure_does_not_have_fails_its_call() {
    let mut scene = Scene::new(Speaks::V1);
    let mut arguments = Body::new();
    arguments.opaque(b"plain").unwrap();
    let room = scene.client.buffer(8000).unwrap();
    let call = scene.client.call(PLAIN).arguments(arguments).room(room).results_max(9000);
    let mut pending = call.send().unwrap();
    let call = scene.calls(1).pop().unwrap();
    assert_eq!(call.writes.len(), 1);
    scene.hand.reply_with(&call, 8, &[0, 0, 0, 8]);
    let outcome = scene.until("the reply", |_| pending.try_take());
    let error = CallError::BadResults(binding::Error::Ineligible { position: 0 });
    assert_eq!(outcome.unwrap_err(), error);
    assert_eq!(scene.client.last_failure(), None);
}

/// RFC 8166 section 4.3: a server may have written to memory that its reply does not declare
/// filled. The results contain none of these bytes.
#[test]
fn test_bytes_written_to_undeclared_room_are_not_part_of_results() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut scene = Scene::new(speaks);
        let mut pending = echo(&scene.client, 1, 8000, false, true).unwrap();
        let call = scene.calls(1).pop().unwrap();
        scene.hand.write(call.room[0], &[0xee; 8000]);
        scene.hand.reply_with(&call, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        let results = scene.until("the reply", |_| pending.try_take()).unwrap();
        assert_eq!(results.bytes(), [0, 0, 0, 1, 0, 0, 0, 0], "{speaks:?}");
        assert!(results.items().iter().all(|item| item.data.is_empty()), "{speaks:?}");
        assert_eq!(scene.client.last_failure(), None);
    }
}
