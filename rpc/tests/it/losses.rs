//! Lost connections, servers that come back, and calls that are executed only once nevertheless.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use crate::common::*;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, CallError, Client, ClientConfig, Refusal, Speaks};

fn later(w: &World) -> PendingCall {
    w.client.call(LATER).timeout(Duration::from_secs(600)).send().unwrap()
}

fn held(w: &mut World, count: usize) {
    w.until("requests", |w| (w.held.lock().unwrap().len() == count).then_some(()));
}

fn answer(w: &World, word: u32) {
    let mut results = Body::new();
    results.u32(word).unwrap();
    let request = w.held.lock().unwrap().pop().unwrap();
    request.reply(Ok(results));
}

fn disconnect(w: &mut World) {
    w.server.disconnect_all();
    w.until("the end of the connection", |w| (w.server.connections() == 0).then_some(()));
}

#[test]
fn test_call_under_way_when_its_connection_is_lost_is_executed_once() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        let call = later(&w);
        held(&mut w, 1);
        w.server.disconnect_all();
        w.until("the call again", |w| (w.server.counters().calls_repeated == 1).then_some(()));
        assert_eq!(w.held.lock().unwrap().len(), 1, "it is not begun again");
        answer(&w, 5);
        let results = w.outcome(call).unwrap();
        assert_eq!(results.reader().u32(), Ok(5));
        let counters = w.client.counters();
        assert_eq!((counters.connections, counters.retransmissions), (2, 1));
        assert_eq!(w.server.counters().calls, 1);
    }
}

#[test]
fn test_call_executed_without_a_connection_gets_its_cached_reply() {
    let mut w = World::new(Speaks::BOTH);
    let call = later(&w);
    held(&mut w, 1);
    w.paused = true;
    disconnect(&mut w);
    answer(&w, 6);
    w.poll();
    assert_eq!(w.server.counters().calls_repeated, 0);
    w.paused = false;
    let results = w.outcome(call).unwrap();
    assert_eq!(results.reader().u32(), Ok(6));
    assert_eq!((w.server.counters().calls, w.server.counters().calls_repeated), (1, 1));
}

/// A call that is not idempotent, with an argument in a Read chunk or in the message, comes again
/// while it is executed, and after that.
#[test]
fn test_call_with_data_is_executed_once_though_its_connection_is_lost_twice() {
    for (speaks, apart) in
        [Speaks::V1, Speaks::V2].into_iter().flat_map(|s| [(s, true), (s, false)])
    {
        let mut w = World::new(speaks);
        let (mut arguments, data) = (Body::new(), pattern(8, 7001));
        arguments.u32(8).unwrap();
        if apart {
            let buffer = w.client.buffer(data.len()).unwrap();
            buffer.write(0, &data).unwrap();
            arguments.item(buffer).unwrap();
        } else {
            arguments.opaque(&data).unwrap();
        }
        let call = w.client.call(KEEP).arguments(arguments).timeout(Duration::from_secs(600));
        let call = call.results_max(100).send().unwrap();
        held(&mut w, 1);
        w.server.disconnect_all();
        w.until("the call again", |w| (w.server.counters().calls_repeated == 1).then_some(()));
        // The call is executed while there is no connection, so the server keeps the reply.
        w.paused = true;
        disconnect(&mut w);
        answer(&w, 9);
        w.poll();
        w.paused = false;
        assert_eq!(w.outcome(call).unwrap().reader().u32(), Ok(9));
        assert!(w.held.lock().unwrap().is_empty(), "it is not begun again");
        let (server, client) = (w.server.counters(), w.client.counters());
        assert_eq!((server.calls, server.calls_repeated), (1, 2), "{speaks:?} {apart}");
        assert_eq!((client.connections, client.retransmissions), (3, 2));
    }
}

#[test]
fn test_repeated_connection_losses_lose_no_call_and_no_memory() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        for round in 0..5u32 {
            let mut calls: Vec<_> = (0..12u32)
                .map(|n| (n, Some(echo(&w.client, n, 9000, n % 2 == 0, n % 3 == 0).unwrap())))
                .collect();
            for _ in 0..=7 * round {
                w.poll();
            }
            w.server.disconnect_all();
            w.until("all replies", |_| {
                for (n, call) in &mut calls {
                    if let Some(outcome) = call.as_mut().and_then(|c| c.try_take()) {
                        check_echo(&outcome.unwrap(), *n, 9000);
                        *call = None;
                    }
                }
                calls.iter().all(|(_, call)| call.is_none()).then_some(())
            });
        }
        assert_eq!(w.server.counters().calls, 60, "each is executed once");
        let (client, server) = (w.client.memory().clone(), w.server.memory().clone());
        w.until("the memory", |_| {
            let free = |m: &heddle_rpc::Memory| m.available() == m.len();
            (free(&client) && free(&server)).then_some(())
        });
    }
}

/// The server replies to the calls that programs have before the connection ends, and begins no
/// call that arrives after them.
#[test]
fn test_drained_connection_ends_with_its_replies_and_takes_no_more_calls() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = World::new(speaks);
        // Before its first reply, version 1 allows a single call at a time.
        let before = later(&w);
        held(&mut w, 1);
        answer(&w, 0);
        w.outcome(before).unwrap();
        let (first, second) = (later(&w), later(&w));
        held(&mut w, 2);
        w.server.stop_listening();
        w.server.drain();
        let behind = later(&w);
        (0..200).for_each(|_| w.poll());
        assert_eq!((w.held.lock().unwrap().len(), w.server.connections()), (2, 1));
        answer(&w, 2);
        (0..200).for_each(|_| w.poll());
        assert_eq!(w.server.connections(), 1, "one is not replied to");
        answer(&w, 1);
        for (call, word) in [(first, 1), (second, 2)] {
            assert_eq!(w.outcome(call).unwrap().reader().u32(), Ok(word));
        }
        w.until("the end of the connection", |w| (w.server.connections() == 0).then_some(()));
        // Only the call that was not begun is to be made again.
        w.until("the end of it", |w| (w.client.counters().retransmissions > 0).then_some(()));
        assert_eq!((w.server.counters().calls, w.client.counters().retransmissions), (3, 1));
        assert_eq!(w.server.memory().available(), w.server.memory().len());
        drop(behind);
    }
}

#[test]
fn test_call_to_absent_server_waits_until_its_timeout() {
    let mut w = World::new(Speaks::BOTH);
    let elsewhere = "10.0.0.2:7".parse().unwrap();
    let device = w.client_device();
    let other = heddle_rpc::Client::new(&device, elsewhere, ClientConfig::default()).unwrap();
    let mut call = other.call(PLAIN).timeout(Duration::from_secs(2)).send().unwrap();
    let outcome = w.until("the end of its time", |_| {
        other.step();
        call.try_take()
    });
    assert_eq!(outcome.unwrap_err(), CallError::TimedOut { sent: false });
    assert!(other.counters().attempts > 1, "{:?}", other.counters());
}

#[test]
fn test_client_that_is_closed_ends_its_calls_and_makes_no_more() {
    let mut w = World::new(Speaks::BOTH);
    let call = later(&w);
    held(&mut w, 1);
    w.client.close();
    assert_eq!(w.outcome(call).unwrap_err(), CallError::Closed);
    assert_eq!(w.client.call(PLAIN).send().unwrap_err(), CallError::Closed);
    w.until("the end of the connection", |w| (w.server.connections() == 0).then_some(()));
    // No client waits for the reply.
    w.held.lock().unwrap().pop().unwrap().reply(Err(Refusal::SystemErr));
    w.poll();
}

#[test]
fn test_call_is_a_future_that_is_woken_when_it_is_ready() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut w = World::new(Speaks::BOTH);
    let count = Arc::new(Count::default());
    let waker = count.clone().into();
    let mut context = Context::from_waker(&waker);
    let mut call = pin!(echo(&w.client, 3, 7000, true, true).unwrap());
    assert!(call.as_mut().poll(&mut context).is_pending());
    w.until("the wake-up", |_| (count.0.load(Ordering::Relaxed) == 1).then_some(()));
    match call.as_mut().poll(&mut context) {
        Poll::Ready(outcome) => check_echo(&outcome.unwrap(), 3, 7000),
        Poll::Pending => panic!("woken too early"),
    }
}

#[test]
fn test_waker_may_use_its_client() {
    struct Uses(Client, AtomicUsize);
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            self.0.step();
            self.1.store(self.0.outstanding(), Ordering::Relaxed);
        }
    }
    for closes in [false, true] {
        let mut w = World::new(Speaks::BOTH);
        let uses = Arc::new(Uses(w.client.clone(), AtomicUsize::new(0)));
        let waker = uses.clone().into();
        let mut call = pin!(later(&w));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        held(&mut w, 1);
        if closes {
            w.client.close();
        } else {
            answer(&w, 7);
        }
        w.until("the wake-up", |_| (uses.1.load(Ordering::Relaxed) == 1).then_some(()));
        let request = w.held.lock().unwrap().pop();
        drop(request);
    }
}

#[test]
fn test_peers_beyond_the_limit_are_rejected_and_others_are_served() {
    let mut w = World::with(|_, server| server.peer_connections = 1);
    w.echo(1, 100, false, false);
    let other = w.another(ClientConfig::default());
    let mut call = other.call(PLAIN).timeout(Duration::from_secs(600)).send().unwrap();
    w.until("a refusal", |w| {
        other.step();
        (w.server.counters().connections_refused > 0).then_some(())
    });
    w.echo(2, 100, false, false);
    w.client.close();
    // The first client's place is free.
    let outcome = w.until("the other's outcome", |_| {
        other.step();
        call.try_take()
    });
    assert_eq!(outcome.unwrap_err(), CallError::GarbageArgs);
}
