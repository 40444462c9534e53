//! Calls without a reply (draft section 4.7), on real queue pairs.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::*;
use heddle_rpc::binding::{Entry, Reply, Table};
use heddle_rpc::{Body, CallError, ClientConfig, Procedure, Request, Speaks};
use heddle_rpcrdma::conn;

const NOTES: u32 = 0x2000_0009;
/// The argument is data that may be placed if the call has a reply, but this procedure has none.
const NOTE: Procedure = Procedure { program: NOTES, version: 1, procedure: 1 };
const BINDING: Table<'static> = Table(&[Entry {
    procedure: NOTE,
    arguments: Some(|s| s.item()),
    results: None,
    reply: Reply::None,
}]);

type Heard = Arc<Mutex<Vec<Request>>>;

/// Returns a world whose server receives notes and keeps them until the test drops them.
fn world(speaks: Speaks, calls: u16) -> (World, Heard) {
    let mut w = World::with(|client, server| {
        (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
        server.transport.calls = calls;
    });
    let heard = Heard::default();
    let to = heard.clone();
    let hear = move |request: Request| to.lock().unwrap().push(request);
    w.server.register(NOTES, 1..=1, BINDING, hear).unwrap();
    (w, heard)
}

fn note(w: &World, number: u32, len: usize) -> Body {
    let mut arguments = Body::new();
    let data = w.client.memory().take_copy(&pattern(number, len)).unwrap();
    arguments.item(data).unwrap();
    arguments
}

#[test]
fn test_call_without_reply_ends_when_it_was_sent_and_has_no_chunks() {
    let (mut w, heard) = world(Speaks::V2, 16);
    for (number, len) in [(0, 0), (1, 100), (2, 3000), (3, 9000)] {
        let call = w.client.call(NOTE).arguments(note(&w, number, len)).one_way().send().unwrap();
        assert!(w.outcome(call).unwrap().bytes().is_empty());
        w.until("the note", |_| (heard.lock().unwrap().len() == 1).then_some(()));
        let request = heard.lock().unwrap().pop().unwrap();
        assert!(!request.has_reply());
        assert!(request.arguments.items().is_empty(), "not by RDMA Read");
        assert!(request.arguments.reader().opaque(MAX).unwrap().to_vec() == pattern(number, len));
    }
    let counters = w.client.transport_counters().unwrap();
    assert_eq!((counters.registrations, counters.stray_replies), (0, 0), "{counters:?}");
    w.echo(4, 9000, true, true);
}

#[test]
fn test_calls_without_reply_wait_until_programs_are_done_with_those_before() {
    const CALLS: u16 = 4;
    let (mut w, heard) = world(Speaks::V2, CALLS);
    let mut calls: Vec<_> = (0..40)
        .map(|n| Some(w.client.call(NOTE).arguments(note(&w, n, 64)).one_way().send().unwrap()))
        .collect();
    let count = |heard: &Heard| heard.lock().unwrap().len();
    w.until("as many as are served", |_| (count(&heard) >= usize::from(CALLS)).then_some(()));
    for _ in 0..2000 {
        w.poll();
    }
    let most = count(&heard);
    assert!(most <= 2 * usize::from(CALLS) + 3, "{most} calls are held");
    let mut all = 0;
    w.until("all", |_| {
        let done = std::mem::take(&mut *heard.lock().unwrap());
        all += done.len();
        // The client does not notice whether the program answers or drops the request.
        for request in done {
            request.reply(Ok(Body::new()));
        }
        for call in &mut calls {
            if let Some(outcome) = call.as_mut().and_then(|call| call.try_take()) {
                outcome.unwrap();
                *call = None;
            }
        }
        (all == 40 && calls.iter().all(Option::is_none)).then_some(())
    });
    w.echo(1, 100, false, false);
    let counters = w.client.transport_counters().unwrap();
    assert_eq!(counters.stray_replies, 0, "{counters:?}");
}

#[test]
fn test_version_1_has_no_calls_without_reply() {
    let (mut w, heard) = world(Speaks::V1, 16);
    let call = w.client.call(NOTE).arguments(note(&w, 1, 64)).one_way().send().unwrap();
    assert_eq!(w.outcome(call).unwrap_err(), CallError::Transport(conn::CallError::CallOnly));
    // The binding, too, makes a call one without a reply.
    let mut config = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
    config.transport.speaks = Speaks::V1;
    let other = w.another(config);
    let mut call = other.call(NOTE).send().unwrap();
    let outcome = w.until("its end", |_| {
        other.step();
        call.try_take()
    });
    assert_eq!(outcome.unwrap_err(), CallError::Transport(conn::CallError::CallOnly));
    assert!(heard.lock().unwrap().is_empty());
    w.echo(1, 100, false, false);
}

/// The binding of this end does not know that the procedure has no reply.
#[test]
fn test_call_that_expects_a_reply_in_version_1_gets_empty_results() {
    let (mut w, heard) = world(Speaks::V1, 16);
    let mut config = ClientConfig::default();
    config.transport.speaks = Speaks::V1;
    let other = w.another(config);
    let mut arguments = Body::new();
    arguments.opaque(b"note").unwrap();
    let mut call = other.call(NOTE).arguments(arguments).send().unwrap();
    w.until("the note", |_| {
        other.step();
        (heard.lock().unwrap().len() == 1).then_some(())
    });
    heard.lock().unwrap().clear();
    let outcome = w.until("its end", |_| {
        other.step();
        call.try_take()
    });
    assert!(outcome.unwrap().bytes().is_empty());
}

#[test]
fn test_repeated_call_without_reply_is_not_executed_again() {
    let (mut w, heard) = world(Speaks::V2, 16);
    let mut sent = 0;
    // Some of the connections are lost between a call and the completion of its Send.
    for round in 0..30 {
        let call = w.client.call(NOTE).arguments(note(&w, round, 64)).one_way().send().unwrap();
        for _ in 0..round % 7 {
            w.poll();
        }
        w.server.disconnect_all();
        w.outcome(call).unwrap();
        sent += 1;
    }
    w.echo(1, 100, false, false);
    let mut numbers: Vec<_> = heard
        .lock()
        .unwrap()
        .iter()
        .map(|r| r.arguments.reader().opaque(MAX).unwrap().to_vec())
        .collect();
    let all = numbers.len();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), all, "one was executed twice");
    assert!(all <= sent);
}

#[test]
fn test_dropped_call_without_reply_is_still_delivered() {
    let (mut w, heard) = world(Speaks::V2, 32);
    for n in 0..20 {
        // The first calls are dropped before there is a connection.
        drop(w.client.call(NOTE).arguments(note(&w, n, 64)).one_way().send().unwrap());
        for _ in 0..n {
            w.poll();
        }
    }
    w.until("all", |_| (heard.lock().unwrap().len() == 20).then_some(()));
    w.until("their end", |w| (w.client.outstanding() == 0).then_some(()));
    let memory = w.client.memory().clone();
    w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
}

#[test]
fn test_reply_to_a_call_without_reply_is_ignored() {
    let mut w = World::new(Speaks::V2);
    let mut arguments = Body::new();
    arguments.opaque(b"never mind").unwrap();
    // By its binding this procedure has a reply, and the server sends one.
    let call = w.client.call(PLAIN).arguments(arguments).one_way().send().unwrap();
    assert!(w.outcome(call).unwrap().bytes().is_empty());
    let strays = |w: &World| w.client.transport_counters().map_or(0, |c| c.stray_replies);
    w.until("the reply", |w| (strays(w) == 1).then_some(()));
    w.echo(2, 9000, true, true);
}
