//! Peers that stand still while the server keeps memory for them: others wait for it, and no longer than the
//! limit of a transfer.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::raw::{Raw, rpc};
use crate::common::*;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Client, ServerConfig, Speaks};
use heddle_rpcrdma::v2;

const LIMIT: Duration = Duration::from_secs(1);
/// Octets of a call that leaves no room for another.
const LONG: usize = 40_000;

/// A server that has memory for one long call.
fn world(speaks: Speaks) -> World {
    World::with(|client, server| {
        (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
        server.transport.transfer_timeout = LIMIT;
        *server = ServerConfig { memory: 64 << 10, ..std::mem::take(server) };
    })
}

fn store(client: &Client, number: u32) -> PendingCall {
    let (mut arguments, buffer) = (Body::new(), client.buffer(LONG).unwrap());
    buffer.write(0, &pattern(number, LONG)).unwrap();
    arguments.u32(number).unwrap().item(buffer).unwrap();
    client.call(STORE).arguments(arguments).timeout(Duration::from_secs(600)).send().unwrap()
}

/// The honest client's call waits until the connection that has the memory is closed, and is carried out.
fn assert_others_go_on(w: &mut World, begun: Instant) {
    let call = store(&w.client, 2);
    w.until("a call that waits", |w| (w.server.counters().memory_waits == 1).then_some(()));
    assert_eq!(w.server.counters().transfer_timeouts, 0);
    assert_eq!(w.outcome(call).unwrap().reader().u32(), Ok(2));
    assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
    let counters = w.server.counters();
    assert_eq!((counters.transfer_timeouts, counters.connections_dropped), (1, 1));
    assert_eq!(w.client.counters().connections, 1, "the other connection stays");
    let memory = w.server.memory().clone();
    w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
}

/// The server's memory, but for what no call may have, is taken.
fn taken(w: &mut World, raw: &mut Raw) {
    let memory = w.server.memory().clone();
    raw.until(w, "a call", |_| (memory.available() <= memory.len() - LONG).then_some(()));
}

#[test]
fn test_message_in_parts_that_does_not_end_keeps_others_waiting_for_a_time_only() {
    let mut w = world(Speaks::V2);
    w.echo(1, 10, false, false);
    let begun = Instant::now();
    let mut raw = Raw::new(&mut w, v2::VERSION);
    let mut part = raw.header(7, 500, v2::htype::CALL_MIDDLE);
    part.push(LONG as u32);
    part.extend(rpc(7, 2, &[]));
    raw.send(&part);
    taken(&mut w, &mut raw);
    assert_others_go_on(&mut w, begun);
    raw.end(&mut w);
}

/// Its result is in the server's memory, and it gives no credits for the reply.
#[test]
fn test_reply_that_gets_no_credits_keeps_others_waiting_for_a_time_only() {
    let mut w = world(Speaks::V2);
    w.echo(1, 10, false, false);
    let begun = Instant::now();
    let mut raw = Raw::new(&mut w, v2::VERSION);
    let chunk = raw.lend(&vec![9; LONG], heddle_verbs::Access::REMOTE_READ);
    // One credit, which the server's properties use up. KEEP's argument is a Read chunk.
    let mut call = raw.header(7, 1, v2::htype::CALL_INLINE);
    call.extend([1, 48]);
    call.extend(crate::common::raw::words_of(chunk));
    call.extend([0, 0, 0]);
    call.extend(rpc(7, 5, &[1, LONG as u32]));
    raw.send(&call);
    w.until("the call", |w| (w.held.lock().unwrap().len() == 1).then_some(()));
    let request = w.held.lock().unwrap().pop().unwrap();
    // As long as the program keeps what is the call's, nobody has a limit; it goes with the reply.
    let (mut results, arguments) = (Body::new(), request.arguments.clone());
    let item = w.server.memory().take(10_000).unwrap();
    results.item(item).unwrap();
    request.reply(Ok(results));
    drop(arguments);
    let memory = w.server.memory().clone();
    w.until("the reply", |_| (memory.available() < memory.len()).then_some(()));
    raw.until(&mut w, "the end of the connection", |raw| raw.ended);
    assert!(begun.elapsed() >= LIMIT);
    assert_eq!(w.server.counters().transfer_timeouts, 1);
    w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
    w.echo(2, 9000, true, true);
    assert_eq!(w.client.counters().connections, 1);
}

/// Neither answers Reads nor acknowledges anything, and then comes back.
#[test]
fn test_client_that_stands_still_has_its_call_carried_out_when_it_goes_on() {
    for speaks in [Speaks::V1, Speaks::V2] {
        let mut w = world(speaks);
        w.echo(1, 10, false, false);
        let begun = Instant::now();
        let call = store(&w.client, 3);
        let memory = w.server.memory().clone();
        w.until("the call", |_| (memory.available() < memory.len()).then_some(()));
        w.frozen = true;
        w.until("the limit", |w| (w.server.counters().transfer_timeouts == 1).then_some(()));
        assert!(begun.elapsed() >= LIMIT);
        w.frozen = false;
        assert_eq!(w.outcome(call).unwrap().reader().u32(), Ok(3));
        assert_eq!((w.client.counters().connections, w.server.counters().calls), (2, 2));
        w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
    }
}
