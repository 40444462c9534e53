//! Calls for whose data a server has no memory: they wait, and each is executed once.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Buffer, Client, ClientConfig, Memory, Procedure, ServerConfig, Speaks};

const MIB: usize = 1 << 20;

/// Returns a server that has memory for one call of 1 MiB, results and replies.
fn world(speaks: Speaks) -> World {
    World::with(|client, server| {
        (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
        client.memory = 4 * MIB;
        *server = ServerConfig { memory: 3 * MIB / 2, ..std::mem::take(server) };
    })
}

fn another(w: &World, speaks: Speaks) -> Client {
    let mut config = ClientConfig { memory: 4 * MIB, ..ClientConfig::default() };
    config.binding = Box::new(BINDING);
    config.transport.speaks = speaks;
    w.another(config)
}

fn send(client: &Client, procedure: Procedure, number: u32, len: usize) -> PendingCall {
    let buffer = client.buffer(len).unwrap();
    buffer.write(0, &pattern(number, len)).unwrap();
    let mut arguments = Body::new();
    arguments.u32(number).unwrap().item(buffer).unwrap();
    let call = client.call(procedure).arguments(arguments);
    call.timeout(Duration::from_secs(600)).send().unwrap()
}

fn step(clients: &[Client]) {
    for client in clients {
        client.step();
    }
}

/// Waits until `count` requests are held.
fn held(w: &mut World, others: &[Client], count: usize) {
    w.until("requests", |w| {
        step(others);
        (w.held.lock().unwrap().len() == count).then_some(())
    });
}

/// Answers the request that is held.
fn answer(w: &World) {
    let request = w.held.lock().unwrap().pop().unwrap();
    request.reply(Ok(Body::of(vec![0; 4]).unwrap()));
}

fn waits(w: &mut World, others: &[Client], count: u64) {
    w.until("calls that wait", |w| {
        step(others);
        (w.server.counters().memory_waits == count).then_some(())
    });
}

#[test]
fn test_calls_of_many_clients_with_memory_for_one_are_each_carried_out_once() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = world(speaks);
        let clients: Vec<_> = (0..4).map(|_| another(&w, speaks)).collect();
        let all = clients.iter().chain([&w.client]);
        let mut calls: Vec<_> = (0..15u32)
            .zip(all.cycle())
            .map(|(number, client)| (number, Some(send(client, STORE, number, MIB))))
            .collect();
        w.until("all replies", |_| {
            step(&clients);
            for (number, call) in &mut calls {
                if let Some(outcome) = call.as_mut().and_then(PendingCall::try_take) {
                    assert_eq!(outcome.unwrap().reader().u32(), Ok(*number));
                    *call = None;
                }
            }
            calls.iter().all(|(_, call)| call.is_none()).then_some(())
        });
        let counters = w.server.counters();
        assert_eq!((counters.calls, counters.calls_repeated), (15, 0));
        assert!(counters.memory_waits >= 4, "{counters:?}");
        let memory = w.server.memory().clone();
        w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
    }
}

/// Takes all the memory that a region can give.
fn all_of(memory: &Memory) -> Vec<Buffer> {
    let lengths = [MIB, 4096, 64].into_iter();
    lengths.flat_map(|len| std::iter::from_fn(move || memory.take(len).ok())).collect()
}

/// Calls and replies that go in one Send, without items, take no memory from the region for items.
#[test]
fn test_short_calls_are_carried_out_when_all_memory_is_taken() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = world(speaks);
        let taken = [all_of(w.client.memory()), all_of(w.server.memory())];
        assert_eq!(w.client.memory().available(), 0);
        for len in [0, 1, 400, 512] {
            let data = pattern(len, len as usize);
            let mut arguments = Body::new();
            arguments.opaque(&data).unwrap();
            let call = w.client.call(PLAIN).arguments(arguments).results_max(len + 8);
            let results = w.outcome(call.send().unwrap()).unwrap();
            assert_eq!(results.reader().opaque(MAX).unwrap().to_vec(), data);
        }
        assert_eq!(w.server.counters().memory_waits, 0);
        drop(taken);
    }
}

/// A program returns its arguments on another thread, when the server has nothing else to do.
#[test]
fn test_memory_that_comes_back_on_another_thread_wakes_the_server() {
    let mut w = world(Speaks::BOTH);
    let first = send(&w.client, KEEP, 1, MIB);
    held(&mut w, &[], 1);
    let arguments = w.held.lock().unwrap()[0].arguments.clone();
    answer(&w);
    w.outcome(first).unwrap();
    let second = send(&w.client, STORE, 2, MIB);
    waits(&mut w, &[], 1);
    for _ in 0..50 {
        w.poll();
    }
    w.server.clear();
    assert!(w.server.arm(), "there is nothing to do");
    std::thread::spawn(move || drop(arguments)).join().unwrap();
    assert!(!w.server.arm());
    let results = w.outcome(second).unwrap();
    assert_eq!(results.reader().u32(), Ok(2));
}

#[test]
fn test_call_that_waits_ends_with_its_connection_and_others_have_their_turn() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = world(speaks);
        let _first = send(&w.client, KEEP, 1, MIB);
        held(&mut w, &[], 1);
        let others = [another(&w, speaks), another(&w, speaks)];
        let _lost = send(&others[0], STORE, 2, MIB);
        waits(&mut w, &others, 1);
        let mut last = send(&others[1], STORE, 3, MIB);
        waits(&mut w, &others, 2);
        others[0].close();
        w.until("the end of a connection", |w| {
            step(&others);
            (w.server.connections() == 2).then_some(())
        });
        answer(&w);
        let results = w.until("the last", |_| {
            others[1].step();
            last.try_take()
        });
        assert_eq!(results.unwrap().reader().u32(), Ok(3));
        assert_eq!(w.server.counters().calls, 2, "what was lost is not carried out");
    }
}

/// The first waiting call is lost while there is memory, which no other return of memory would
/// report. All calls come from one address, whose share allows the short call beside its present
/// memory, but not the long call.
#[test]
fn test_short_call_waits_behind_a_long_call_until_that_is_lost() {
    let mut w = World::with(|client, server| {
        client.memory = 4 * MIB;
        *server = ServerConfig { memory: 7 * MIB / 4, ..std::mem::take(server) };
    });
    let _first = send(&w.client, KEEP, 1, MIB);
    held(&mut w, &[], 1);
    let others = [another(&w, Speaks::BOTH), another(&w, Speaks::BOTH)];
    let _long = send(&others[0], STORE, 2, MIB);
    waits(&mut w, &others, 1);
    let mut short = send(&others[1], STORE, 3, 5000);
    waits(&mut w, &others, 2);
    others[0].close();
    let results = w.until("the short one", |_| {
        step(&others);
        short.try_take()
    });
    assert_eq!(results.unwrap().reader().u32(), Ok(3));
    answer(&w);
}

/// Replies find no memory except the part that is kept for replies, and each takes most of that
/// part.
#[test]
fn test_call_has_its_reply_however_much_memory_others_have() {
    const RESULTS: usize = 60_000;
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = world(speaks);
        let memory = w.server.memory().clone();
        // In version 1 there is one credit until the first reply.
        w.echo(1, 10, false, false);
        let mut calls: Vec<_> = (0..4u32)
            .map(|number| {
                let mut arguments = Body::new();
                arguments.u32(number).unwrap().opaque(b"within").unwrap();
                let call = w.client.call(KEEP).arguments(arguments).results_max(RESULTS as u32);
                (number, call.send().unwrap())
            })
            .collect();
        held(&mut w, &[], 4);
        let (mut taken, mut len) = (Vec::new(), memory.len());
        while len >= 64 {
            match memory.take(len) {
                Ok(buffer) => taken.push(buffer),
                Err(_) => len /= 2,
            }
        }
        assert!(memory.available() < 2 * RESULTS, "for one at a time");
        for request in std::mem::take(&mut *w.held.lock().unwrap()) {
            let number = request.arguments.reader().u32().unwrap();
            request.reply(Ok(Body::of(pattern(number, RESULTS)).unwrap()));
        }
        w.until("the replies", |_| {
            calls.retain_mut(|(number, call)| {
                let Some(outcome) = call.try_take() else { return true };
                assert!(outcome.unwrap().to_vec() == pattern(*number, RESULTS));
                false
            });
            calls.is_empty().then_some(())
        });
    }
}
