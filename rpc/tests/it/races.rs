//! Actions of one end while the other end is in the middle of something else.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_rpc::binding::{Entry, Reply, ReplySize, Table};
use heddle_rpc::client::{ConnectionFailure, PendingCall};
use heddle_rpc::{
    Body, CallError, Client, ClientConfig, Procedure, Request, Server, ServerConfig, Speaks,
};

fn later(client: &Client, timeout: Duration) -> PendingCall {
    client.call(LATER).timeout(timeout).send().unwrap()
}

fn polls(w: &mut World) {
    (0..2000).for_each(|_| w.poll());
}

#[test]
fn test_client_that_is_closed_while_it_connects_leaves_no_connection() {
    // The client closes when it has begun to connect, when the server has got the request, and when
    // the server has accepted.
    for stage in 0..3 {
        let mut w = World::new(Speaks::BOTH);
        w.deaf = stage < 2;
        let call = later(&w.client, Duration::from_secs(600));
        w.paused = true;
        match stage {
            0 => {}
            1 => w.until("a request", |w| (!w.server.arm()).then_some(())),
            _ => w.until("a connection", |w| (w.server.connections() == 1).then_some(())),
        }
        w.client.close();
        (w.paused, w.deaf) = (false, false);
        assert_eq!(w.outcome(call).unwrap_err(), CallError::Closed);
        polls(&mut w);
        assert_eq!((stage, w.server.connections()), (stage, 0));
        assert_eq!((w.server.counters().calls, w.client.version()), (0, None));
    }
}

#[test]
fn test_client_that_is_dropped_while_it_connects_leaves_no_connection() {
    let mut w = World::new(Speaks::BOTH);
    let other = w.another(ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() });
    let call = later(&other, Duration::from_secs(600));
    w.until("a connection", |w| (w.server.connections() == 1).then_some(()));
    drop((call, other));
    w.until("its end", |w| (w.server.connections() == 0).then_some(()));
}

#[test]
fn test_dropped_server_rejects_connection_requests_that_are_pending() {
    let mut w = World::new(Speaks::BOTH);
    w.deaf = true;
    let call = later(&w.client, Duration::from_secs(600));
    w.until("a request", |w| (!w.server.arm()).then_some(()));
    let elsewhere = "10.0.0.2:7".parse().unwrap();
    let device = w.server_device();
    w.server = Server::new(&device, elsewhere, ServerConfig::default()).unwrap();
    let failure = w.until("an answer", |w| w.client.last_failure());
    assert_eq!(failure, ConnectionFailure::Rejected);
    drop(call);
}

#[test]
fn test_call_repeated_before_its_first_reply_blocks_no_other_call() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        w.echo(0, 10, false, false);
        let first = later(&w.client, Duration::from_millis(200));
        let xid = first.xid();
        w.until("the call", |w| (w.held.lock().unwrap().len() == 1).then_some(()));
        assert_eq!(w.outcome(first).unwrap_err(), CallError::TimedOut { sent: true });
        let again = w.client.call(LATER).again(xid).timeout(Duration::from_secs(600));
        let again = again.send().unwrap();
        for number in 1..=3 {
            w.echo(number, 10, false, false);
        }
        let mut results = Body::new();
        results.u32(7).unwrap();
        w.held.lock().unwrap().pop().unwrap().reply(Ok(results));
        assert_eq!(w.outcome(again).unwrap().reader().u32(), Ok(7));
        let counters = w.server.counters();
        assert_eq!((counters.calls, counters.calls_repeated), (5, 1), "it was executed once");
    }
}

#[test]
fn test_wait_on_call_with_taken_results_returns_closed() {
    let mut w = World::new(Speaks::BOTH);
    let mut call = echo(&w.client, 1, 10, false, false).unwrap();
    let results = w.until("results", |_| call.try_take()).unwrap();
    check_echo(&results, 1, 10);
    assert!(call.try_take().is_none());
    assert_eq!(call.wait().unwrap_err(), CallError::Closed);
}

#[test]
fn test_call_with_huge_results_limit_fails_for_lack_of_memory() {
    let mut w = World::new(Speaks::BOTH);
    for most in [u32::MAX, u32::MAX - 1, u32::MAX - 35, 1 << 31] {
        let call = w.client.call(PLAIN).results_max(most).send().unwrap();
        let error = w.outcome(call).unwrap_err();
        assert!(matches!(error, CallError::NoMemory(_)), "{most}: {error:?}");
    }
    w.echo(1, 10, false, false);
}

#[test]
fn test_calls_sent_just_before_client_closes_are_executed() {
    let mut w = World::new(Speaks::V2);
    w.echo(0, 10, false, false);
    let before = w.server.counters().calls;
    w.deaf = true;
    for number in 1..=3 {
        let mut arguments = Body::new();
        arguments.u32(number).unwrap().opaque(&pattern(number, 5)).unwrap();
        let call = w.client.call(STORE).arguments(arguments).one_way().send().unwrap();
        w.outcome(call).unwrap();
    }
    w.client.close();
    polls(&mut w);
    w.deaf = false;
    w.until("the end of the connection", |w| (w.server.connections() == 0).then_some(()));
    assert_eq!(w.server.counters().calls, before + 3);
    assert_eq!(w.server.memory().available(), w.server.memory().len());
}

/// Each end decides for itself whether data is in separate memory: the server's result within its
/// bytes goes to the room that the client has for it.
#[test]
fn test_short_inline_result_goes_to_the_room_of_its_item() {
    const GET: Procedure = Procedure { program: PROGRAM + 7, version: 1, procedure: 1 };
    const TABLE: Table<'static> = Table(&[Entry {
        procedure: GET,
        arguments: None,
        results: Some(|s| s.item()),
        reply: Reply::Of(|_| Ok(ReplySize { stream: 4, item: MAX })),
    }]);
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            client.binding = Box::new(TABLE);
        });
        let get = |request: Request| {
            let mut results = Body::new();
            results.opaque(&pattern(1, 100)).unwrap();
            request.reply(Ok(results));
        };
        w.server.register(GET.program, 1..=1, TABLE, get).unwrap();
        for room in [100, 70_000] {
            let call = w.client.call(GET).room(w.client.buffer(room).unwrap()).send().unwrap();
            let results = w.outcome(call).unwrap();
            assert!(results.reader().opaque(MAX).unwrap().to_vec() == pattern(1, 100));
        }
        assert_eq!(w.client.counters().connections, 1);
    }
}
