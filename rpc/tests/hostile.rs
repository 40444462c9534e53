//! A server that invalidates what is not its to invalidate.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::hand::*;
use heddle_rpc::client::ConnectionFailure;
use heddle_rpcrdma::Handle;
use heddle_rpcrdma::conn::CloseReason;

#[test]
fn test_reply_may_invalidate_memory_of_its_own_call() {
    let mut scene = Scene::new();
    let ([mut first, _second], calls) = scene.two();
    scene.hand.reply(calls[0].xid, Some(calls[0].reads[0].handle));
    let outcome = scene.until("the reply", |_| first.try_take());
    // Its results are cut off, which is another matter.
    assert!(outcome.is_err());
    assert_eq!((scene.hand.connections, scene.client.last_failure()), (1, None));
    let counters = scene.client.transport_counters().unwrap();
    // Its room for the reply is invalidated by the client; the other call has both of its own.
    assert_eq!((counters.remote_invalidations, counters.invalidations), (1, 1));
    assert_eq!(counters.registrations, 4);
}

#[test]
fn test_reply_that_invalidates_memory_of_another_call_ends_the_connection() {
    let mut scene = Scene::new();
    let (_pending, calls) = scene.two();
    scene.hand.reply(calls[0].xid, Some(calls[1].reads[0].handle));
    scene.made_again(calls[0].xid);
    let why = ConnectionFailure::Closed(CloseReason::WrongInvalidate);
    assert_eq!(scene.client.last_failure(), Some(why));
}

#[test]
fn test_reply_that_invalidates_what_there_is_not_ends_the_connection() {
    let mut scene = Scene::new();
    let (_pending, calls) = scene.two();
    // Another key: of a call that is over.
    let Handle(bits) = calls[0].reads[0].handle;
    scene.hand.reply(calls[0].xid, Some(Handle(bits ^ 0xff)));
    scene.made_again(calls[0].xid);
}
