//! Peers that stand still while the server keeps memory for them: other clients wait for that
//! memory, but no longer than the limit of a transfer.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::common::raw::{Raw, rpc};
use crate::common::*;
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Client, ServerConfig, Speaks};
use heddle_rpcrdma::v2;

const LIMIT: Duration = Duration::from_secs(1);
/// Length in bytes of a call that leaves no room for another.
const LONG: usize = 40_000;

/// Returns a server that has memory for one long call.
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

/// Asserts that the honest client's call waits until the connection that holds the memory is
/// closed, and is then executed.
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

/// Waits until the server's memory is taken, except the part that no call may have.
fn taken(w: &mut World, raw: &mut Raw) {
    let memory = w.server.memory().clone();
    raw.until(w, "a call", |_| (memory.available() <= memory.len() - LONG).then_some(()));
}

#[test]
fn test_unfinished_message_in_parts_delays_others_only_until_timeout() {
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

/// The result is in the server's memory, and the client gives no credits for the reply.
#[test]
fn test_reply_without_credits_delays_others_only_until_timeout() {
    let mut w = world(Speaks::V2);
    w.echo(1, 10, false, false);
    let begun = Instant::now();
    let mut raw = Raw::new(&mut w, v2::VERSION);
    let chunk = raw.lend(&vec![9; LONG], heddle_verbs::Access::REMOTE_READ);
    // The client gives one credit, which the server's properties use up. KEEP's argument is a Read
    // chunk.
    let mut call = raw.header(7, 1, v2::htype::CALL_INLINE);
    call.extend([1, 48]);
    call.extend(crate::common::raw::words_of(chunk));
    call.extend([0, 0, 0]);
    call.extend(rpc(7, 5, &[1, LONG as u32]));
    raw.send(&call);
    w.until("the call", |w| (w.held.lock().unwrap().len() == 1).then_some(()));
    let request = w.held.lock().unwrap().pop().unwrap();
    // While the program keeps the memory of the call, no limit applies; the reply begins a
    // transfer, which has one.
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

/// The client neither answers Reads nor acknowledges anything, and then comes back.
#[test]
fn test_stalled_client_has_its_call_executed_when_it_resumes() {
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

/// Executes calls of LATER. Each has `len` bytes of results in separate memory, and waits for room
/// for them.
fn answer_later(w: &mut World, len: usize) -> Vec<SocketAddr> {
    let memory = w.server.memory().clone();
    let mut answered = Vec::new();
    for mut request in std::mem::take(&mut *w.held.lock().unwrap()) {
        let room = match request.waited() {
            Some(room) => room.expect("nobody has waited for too long"),
            None => match request.take_room(&memory, len) {
                Ok(room) => room,
                Err(_) => {
                    request.wait_for_room(len, Duration::from_secs(600));
                    continue;
                }
            },
        };
        answered.push(request.peer);
        let mut results = Body::new();
        results.item(room).unwrap();
        request.reply(Ok(results));
    }
    answered
}

/// Clients of two addresses make as many calls as they may and give no credits for the replies, so
/// they hold the memory of the replies. A third client is served meanwhile, and no connection has
/// to be closed for that.
#[test]
fn test_addresses_that_hold_result_memory_leave_some_to_another() {
    const LEN: usize = 8 << 10;
    let mut w = World::with(|client, server| {
        (client.transport.speaks, server.transport.speaks) = (Speaks::V2, Speaks::V2);
        server.transport.transfer_timeout = Duration::from_secs(3600);
        *server = ServerConfig { memory: 160 << 10, ..std::mem::take(server) };
    });
    w.echo(1, 10, false, false);
    let (mut silent, mut xids) = (Vec::new(), 1..);
    for host in OTHERS {
        for _ in 0..2 {
            let mut raw = Raw::of_host(&mut w, v2::VERSION, host);
            for (sent, xid) in (0..8).zip(&mut xids) {
                raw.until(&mut w, "credits", |raw| (raw.granted() > sent).then_some(()));
                // The client gives one credit, which the server's properties use up.
                let mut call = raw.header(xid, 1, v2::htype::CALL_INLINE);
                call.extend([0, 0, 0]);
                call.extend(rpc(xid, 3, &[]));
                raw.send(&call);
            }
            silent.push(raw);
        }
    }
    let mut answered = Vec::new();
    w.until("all calls", |w| {
        answered.extend(answer_later(w, LEN));
        (w.server.counters().calls == 1 + 32).then_some(())
    });
    for _ in 0..1000 {
        w.poll();
        answered.extend(answer_later(&mut w, LEN));
    }
    assert!(w.server.counters().memory_waits > 0, "they have used up their shares");
    for number in 2..12 {
        let mut call = w.client.call(LATER).timeout(Duration::from_secs(600));
        call = call.results_max(2 * LEN as u32);
        let mut call = call.send().unwrap();
        let results = w.until("a reply", |w| {
            answered.extend(answer_later(w, LEN));
            call.try_take()
        });
        assert_eq!(results.unwrap().len() as usize, LEN + 4, "{number}");
    }
    for host in OTHERS {
        let of = answered.iter().filter(|peer| peer.ip() == IpAddr::from([10, 0, 0, host])).count();
        assert!((1..16).contains(&of), "host {host} has {of} replies");
    }
    let counters = w.server.counters();
    assert_eq!((counters.transfer_timeouts, counters.connections_dropped), (0, 0));
    drop(silent);
    w.server.disconnect_all();
    let memory = w.server.memory().clone();
    w.until("the memory", |w| {
        answer_later(w, LEN);
        (memory.available() == memory.len()).then_some(())
    });
}
