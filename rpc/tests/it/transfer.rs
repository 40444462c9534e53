//! Calls of all sizes, in both versions, each byte compared.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_rpc::binding::{Entry, Reply, Table};
use heddle_rpc::{Body, CallError, Credential, Procedure, Speaks};
use heddle_rpcrdma::header::Refusal;
use heddle_rpcrdma::{conn, v1, v2};

const SIZES: [usize; 14] =
    [0, 1, 3, 4, 700, 724, 725, 1000, 4000, 4096, 5001, 65_536, 300_001, MAX as usize];

fn version(speaks: Speaks) -> u32 {
    if speaks.v2 { 2 } else { 1 }
}

#[test]
fn test_data_of_any_length_is_sent_by_chunk_or_inline_in_both_versions() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        for (number, len) in (0..).zip(SIZES) {
            for (apart, room) in [(true, true), (false, true), (true, false), (false, false)] {
                w.echo(number, len, apart, room);
            }
        }
        assert_eq!(w.client.version(), Some(version(speaks)));
        let counters = w.client.transport_counters().unwrap();
        assert!(counters.registrations > 0, "something went by chunks");
        assert_eq!(w.client.counters().connections, 1, "all on one connection");
        assert_eq!(w.server.counters().calls, 4 * SIZES.len() as u64);
        // All memory of both ends has come back.
        let (client, server) = (w.client.memory().clone(), w.server.memory().clone());
        w.until("the memory", |w| {
            let free = |m: &heddle_rpc::Memory| m.available() == m.len();
            (free(&client) && free(&server) && w.client.outstanding() == 0).then_some(())
        });
    }
}

#[test]
fn test_arguments_and_results_without_items_may_have_any_length() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        for (number, len) in (0..).zip(SIZES) {
            let (mut arguments, data) = (Body::new(), pattern(number, len));
            arguments.opaque(&data).unwrap();
            let call = w.client.call(PLAIN).arguments(arguments).results_max(len as u32 + 8);
            let call = call.send().unwrap();
            let results = w.outcome(call).unwrap();
            assert!(results.items().is_empty(), "nothing of it may lie apart");
            assert!(results.reader().opaque(MAX).unwrap().to_vec() == data, "{len}");
        }
    }
}

/// A short call needs no registered memory, unless the segments of its chunks leave no room for it in
/// a Send: then the server reads it.
#[test]
fn test_short_call_with_many_segments_goes_by_chunk_and_is_whole() {
    for (speaks, len, body) in [(Speaks::V1, 704, 1), (Speaks::V1, 600, 0), (Speaks::V2, 704, 0)] {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            (client.transport.private_data, server.transport.private_data) = (false, false);
            client.transport.registration_max = 4096;
        });
        let free = w.client.memory().available();
        let (mut arguments, data) = (Body::new(), pattern(1, len));
        arguments.opaque(&data).unwrap();
        let room = w.client.buffer(16 * 4096).unwrap();
        let call = w.client.call(LATER).arguments(arguments).room(room).send().unwrap();
        let request = w.until("the call", |w| w.held.lock().unwrap().pop());
        assert!(request.arguments.reader().opaque(MAX).unwrap().to_vec() == data);
        let registrations = w.client.transport_counters().unwrap().registrations;
        // Version 2 has no chunk for results that fit into a Send.
        let rooms = if speaks.v2 { 0..=16 } else { 16..=16 };
        assert!(rooms.contains(&(registrations - body)), "{speaks:?} {len}: {registrations}");
        let mut results = Body::new();
        results.u32(7).unwrap();
        request.reply(Ok(results));
        assert_eq!(w.outcome(call).unwrap().bytes(), [0, 0, 0, 7]);
        w.until("the memory", |w| (w.client.memory().available() == free).then_some(()));
    }
}

/// The Writes of a reply are signaled only now and then, and still leave room in the send queue.
#[test]
fn test_many_replies_of_many_writes_each_arrive() {
    const LEN: usize = 16 * 2048;
    let mut w = World::with(|client, server| {
        (client.transport.speaks, server.transport.speaks) = (Speaks::V1, Speaks::V1);
        client.transport.registration_max = 2048;
        client.transport.registrations = 512;
    });
    // 16 replies of 32 Writes each: twice as many as the send queue has room for.
    let data = [pattern(1, LEN), pattern(2, LEN)];
    let call = |w: &World| {
        let mut arguments = Body::new();
        for (number, data) in (0..).zip(&data) {
            let item = w.client.memory().take_copy(data).unwrap();
            arguments.u32(number).unwrap().item(item).unwrap();
        }
        let room = || w.client.buffer(LEN).unwrap();
        w.client.call(TWO).arguments(arguments).room(room()).room(room()).send().unwrap()
    };
    let calls: Vec<_> = (0..16).map(|_| call(&w)).collect();
    for call in calls {
        let results = w.outcome(call).unwrap();
        let mut r = results.reader();
        for data in data.iter().rev() {
            assert!(r.opaque(MAX).unwrap().to_vec() == *data);
        }
    }
    assert_eq!(w.client.counters().connections, 1);
    assert_eq!(w.client.transport_counters().unwrap().registrations, 16 * 64);
}

/// Version 2 conveys such results in several Sends.
#[test]
fn test_results_longer_than_announced_arrive_inline_in_version_2() {
    let mut w = World::new(Speaks::V2);
    for (number, len) in (0..).zip(SIZES) {
        let (mut arguments, data) = (Body::new(), pattern(number, len));
        arguments.opaque(&data).unwrap();
        let call = w.client.call(PLAIN).arguments(arguments).results_max(8).send().unwrap();
        let results = w.outcome(call).unwrap();
        assert!(results.reader().opaque(MAX).unwrap().to_vec() == data, "{len}");
    }
}

#[test]
fn test_two_items_of_different_lengths_keep_their_places() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        for (first, second) in [(5000, 9001), (1, 70_000), (70_000, 2), (0, 5000), (3, 0), (9, 10)]
        {
            let mut arguments = Body::new();
            for (number, len) in [(1, first), (2, second)] {
                let buffer = w.client.buffer(len).unwrap();
                buffer.write(0, &pattern(number, len)).unwrap();
                arguments.u32(number).unwrap().item(buffer).unwrap();
            }
            let call = w.client.call(TWO).arguments(arguments);
            let call = call.room(w.client.buffer(second).unwrap());
            let call = call.room(w.client.buffer(first).unwrap()).send().unwrap();
            let results = w.outcome(call).unwrap();
            let mut r = results.reader();
            assert!(r.opaque(MAX).unwrap().to_vec() == pattern(2, second), "{first} {second}");
            assert!(r.opaque(MAX).unwrap().to_vec() == pattern(1, first), "{first} {second}");
            r.finish().unwrap();
        }
    }
}

/// The chunk of a result that is empty does not serve the next result.
#[test]
fn test_empty_result_uses_up_its_chunk() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        for (first, second) in [(5000, 0), (0, 5000), (0, 0)] {
            let mut arguments = Body::new();
            for (number, len) in [(1, first), (2, second)] {
                arguments.u32(number).unwrap().opaque(&pattern(number, len)).unwrap();
            }
            let call = w.client.call(TWO).arguments(arguments);
            let call = call.room(w.client.buffer(second.max(8)).unwrap());
            let call = call.room(w.client.buffer(first.max(8)).unwrap()).send().unwrap();
            let results = w.outcome(call).unwrap();
            let mut r = results.reader();
            assert!(r.opaque(MAX).unwrap().to_vec() == pattern(2, second), "{first} {second}");
            assert!(r.opaque(MAX).unwrap().to_vec() == pattern(1, first), "{first} {second}");
            r.finish().unwrap();
        }
    }
}

#[test]
fn test_many_concurrent_calls_share_few_registrations_and_get_own_replies() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            client.transport.registrations = 3;
            client.transport.registration_max = 8192;
        });
        let mut calls: Vec<_> = (0..100u32)
            .map(|n| {
                // A call needs up to three registrations, and the client never has more at a time
                // than its pool.
                let len = 5000 + 37 * n as usize % 3000;
                (n, len, Some(echo(&w.client, n, len, n % 2 == 0, n % 3 == 0).unwrap()))
            })
            .collect();
        w.until("all replies", |_| {
            for (n, len, call) in &mut calls {
                if let Some(outcome) = call.as_mut().and_then(|c| c.try_take()) {
                    check_echo(&outcome.unwrap(), *n, *len);
                    *call = None;
                }
            }
            calls.iter().all(|(_, _, call)| call.is_none()).then_some(())
        });
        let counters = w.client.transport_counters().unwrap();
        assert!(counters.registration_waits > 0, "{counters:?}");
        // A call that needs more registrations than the pool has can never be made.
        let call = echo(&w.client, 1, 4 * 8192, true, false).unwrap();
        let error = w.outcome(call).unwrap_err();
        assert!(matches!(error, CallError::Transport(_)), "{error:?}");
        w.echo(7, 5000, true, true);
    }
}

#[test]
fn test_client_and_server_settle_on_a_version_both_speak() {
    let both = Speaks::BOTH;
    for (client, server, want) in [
        (both, both, Some(2)),
        (both, Speaks::V1, Some(1)),
        (both, Speaks::V2, Some(2)),
        (Speaks::V1, both, Some(1)),
        (Speaks::V2, both, Some(2)),
        (Speaks::V1, Speaks::V2, None),
        (Speaks::V2, Speaks::V1, None),
    ] {
        let mut w = World::with(|c, s| {
            (c.transport.speaks, s.transport.speaks) = (client, server);
        });
        let call = echo(&w.client, 1, 6000, true, true).unwrap();
        match (w.outcome(call), want) {
            (Ok(results), Some(version)) => {
                check_echo(&results, 1, 6000);
                assert_eq!(w.client.version(), Some(version), "{client:?} {server:?}");
            }
            (Err(CallError::NoVersion | CallError::Transport(_)), None) => {}
            (other, _) => panic!("{client:?} {server:?}: {other:?}"),
        }
    }
}

#[test]
fn test_refusals_reach_their_caller_and_the_connection_stays() {
    let mut w = World::new(Speaks::BOTH);
    let mut try_one = |procedure: Procedure, arguments: Body| {
        let call = w.client.call(procedure).arguments(arguments).send().unwrap();
        w.outcome(call)
    };
    let error = try_one(Procedure { program: 7, ..ECHO }, Body::new()).unwrap_err();
    assert_eq!(error, CallError::ProgUnavail);
    let error = try_one(Procedure { version: 2, ..ECHO }, Body::new()).unwrap_err();
    assert_eq!(error, CallError::ProgMismatch { low: 1, high: 1 });
    assert_eq!(try_one(procedure(99), Body::new()).unwrap_err(), CallError::ProcUnavail);
    assert_eq!(try_one(ECHO, Body::new()).unwrap_err(), CallError::GarbageArgs);
    assert!(try_one(procedure(0), Body::new()).unwrap().is_empty());
    let odd = Body::of(vec![0; 5]).unwrap();
    assert!(matches!(try_one(PLAIN, odd).unwrap_err(), CallError::Refused(_)));
    w.echo(1, 10, false, false);
    assert_eq!(w.client.counters().connections, 1);
    assert_eq!(w.server.counters().connections_dropped, 0);
}

#[test]
fn test_unanswered_call_ends_by_timeout_or_when_it_is_dropped() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        // Connect first, so that the call is sent at once.
        w.echo(0, 10, false, false);
        let later = |w: &World, time| w.client.call(LATER).timeout(time).send().unwrap();
        let call = later(&w, Duration::from_millis(500));
        assert_eq!(w.outcome(call).unwrap_err(), CallError::TimedOut { sent: true });
        drop(later(&w, Duration::from_secs(60)));
        let kept = later(&w, Duration::from_secs(60));
        w.until("three requests", |w| (w.held.lock().unwrap().len() == 3).then_some(()));
        assert_eq!(w.client.outstanding(), 1);
        // Late replies are ignored, and harm no other call.
        for (number, request) in w.held.clone().lock().unwrap().drain(..).enumerate() {
            assert_eq!(request.credential, Credential::None);
            let mut results = Body::new();
            results.u32(number as u32).unwrap();
            request.reply(Ok(results));
        }
        let results = w.outcome(kept).unwrap();
        assert_eq!(results.reader().u32(), Ok(2));
        w.echo(1, 5000, true, true);
        assert_eq!(w.client.counters().connections, 1);
    }
}

/// The client's binding lets an item be placed that the server's binding does not.
#[test]
fn test_chunk_of_data_that_may_not_be_placed_is_refused_and_not_executed() {
    const OTHER: Table<'static> = Table(&[Entry {
        procedure: PLAIN,
        arguments: Some(|s| s.item()),
        results: None,
        reply: Reply::Fixed(16_000),
    }]);
    for (speaks, told) in [
        (Speaks::V1, Refusal::V1(v1::Refusal::Chunk)),
        (Speaks::V2, Refusal::V2(v2::Refusal::BadXdr)),
    ] {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            client.binding = Box::new(OTHER);
        });
        let mut arguments = Body::new();
        arguments.opaque(&pattern(1, 9000)).unwrap();
        let call = w.client.call(PLAIN).arguments(arguments).send().unwrap();
        let error = CallError::Transport(conn::CallError::Refused(told));
        assert_eq!(w.outcome(call).unwrap_err(), error);
        let counters = w.server.counters();
        assert_eq!((counters.calls, counters.calls_refused), (0, 1));
        // An item that fits into the message needs no chunk.
        let mut arguments = Body::new();
        arguments.opaque(b"short").unwrap();
        let call = w.client.call(PLAIN).arguments(arguments).send().unwrap();
        assert!(w.outcome(call).is_ok());
        assert_eq!(w.client.counters().connections, 1);
    }
}
