//! The memory of a client that its server may reach, and of a server that its client may reach, and
//! for how long. Each peer tries to access memory within these limits and beyond them.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use crate::common::hand::*;
use crate::common::raw::Raw;
use crate::common::{ECHO, World, echo, pattern};
use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Speaks};
use heddle_rpcrdma::{Handle, Segment};
use heddle_verbs::{DisconnectReason, Stag};

const VERSIONS: [Speaks; 2] = [Speaks::V1, Speaks::V2];
const LEN: usize = 8000;

/// Makes a call with a Read chunk, and returns it with its chunk.
fn reading(scene: &mut Scene) -> (PendingCall, Call) {
    let pending = echo(&scene.client, 1, LEN, true, false).unwrap();
    let call = scene.calls(1).pop().unwrap();
    assert_eq!(call.reads[0].length as usize, LEN);
    (pending, call)
}

fn assert_readable(scene: &mut Scene, segment: Segment) {
    scene.hand.read(segment);
    let bytes = scene.until("what was read", |s| s.hand.read.pop_front());
    assert!(bytes == pattern(1, LEN));
}

/// Asserts that the server's access ends the connection, and fetches nothing.
fn assert_refused(scene: &mut Scene) {
    let before = scene.hand.ended;
    scene.until("the end of the connection", |s| (s.hand.ended > before).then_some(()));
    assert!(scene.hand.read.is_empty(), "it was read");
}

/// Replies to the call, which then ends.
fn replied(scene: &mut Scene, mut pending: PendingCall, call: &Call) {
    scene.hand.reply(call.xid, None);
    // The call fails, because its results are cut off; this test is about the memory only.
    assert!(scene.until("the reply", |_| pending.try_take()).is_err());
}

#[test]
fn test_server_can_read_a_read_chunk_until_its_call_ends() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (pending, call) = reading(&mut scene);
        assert_readable(&mut scene, call.reads[0]);
        replied(&mut scene, pending, &call);
        scene.hand.read(call.reads[0]);
        assert_refused(&mut scene);
    }
}

#[test]
fn test_server_cannot_read_beyond_a_read_chunk() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (_pending, call) = reading(&mut scene);
        let [segment] = call.reads[..] else { panic!("one segment") };
        scene.hand.read(Segment { length: segment.length + 1, ..segment });
        assert_refused(&mut scene);
    }
}

#[test]
fn test_server_cannot_write_to_a_read_chunk() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (_pending, call) = reading(&mut scene);
        scene.hand.write(call.reads[0], &[0; 4]);
        assert_refused(&mut scene);
    }
}

#[test]
fn test_handle_that_no_call_has_announced_reaches_no_memory() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (_pending, call) = reading(&mut scene);
        let [segment] = call.reads[..] else { panic!("one segment") };
        // The client's next STag: the index of an STag is above the 8 bits of its key.
        scene.hand.read(Segment { handle: Handle(segment.handle.0 ^ 0x100), ..segment });
        assert_refused(&mut scene);
    }
}

#[test]
fn test_server_can_write_result_room_until_its_call_ends() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let room = scene.client.buffer(LEN).unwrap();
        let mut arguments = Body::new();
        arguments.u32(1).unwrap().opaque(&[]).unwrap();
        let call = scene.client.call(ECHO).arguments(arguments).room(room.clone());
        let pending = call.send().unwrap();
        let call = scene.calls(1).pop().unwrap();
        assert_eq!((call.reads.len(), call.room[0].length as usize), (0, LEN));
        let bytes = pattern(2, LEN);
        scene.hand.write(call.room[0], &bytes);
        scene.until("what was written", |_| (room.to_vec() == bytes).then_some(()));
        replied(&mut scene, pending, &call);
        scene.hand.write(call.room[0], &[0; LEN]);
        assert_refused(&mut scene);
        assert!(room.to_vec() == bytes, "it was written");
    }
}

#[test]
fn test_server_cannot_read_result_room() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let _pending = echo(&scene.client, 1, LEN, false, true).unwrap();
        let call = scene.calls(1).pop().unwrap();
        scene.hand.read(*call.room.first().unwrap());
        assert_refused(&mut scene);
    }
}

#[test]
fn test_call_that_is_given_up_keeps_its_memory_until_its_reply() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let free = scene.client.memory().available();
        let (pending, call) = reading(&mut scene);
        drop(pending);
        scene.until("nothing more", |s| (s.client.outstanding() == 0).then_some(()));
        assert_readable(&mut scene, call.reads[0]);
        assert!(scene.client.memory().available() < free, "it is lent");
        scene.hand.reply(call.xid, None);
        scene.until("the memory", |s| (s.client.memory().available() == free).then_some(()));
        scene.hand.read(call.reads[0]);
        assert_refused(&mut scene);
    }
}

#[test]
fn test_call_that_is_given_up_gives_its_memory_back_with_the_connection() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let free = scene.client.memory().available();
        let (pending, call) = reading(&mut scene);
        drop(pending);
        scene.hand.write(call.reads[0], &[0; 4]);
        assert_refused(&mut scene);
        scene.until("the memory", |s| (s.client.memory().available() == free).then_some(()));
    }
}

#[test]
fn test_handle_of_a_lost_connection_reaches_nothing_on_the_next() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (_pending, call) = reading(&mut scene);
        scene.hand.write(call.reads[0], &[0; 4]);
        assert_refused(&mut scene);
        let again = scene.calls(1).pop().unwrap();
        assert_eq!((again.xid, scene.hand.connections), (call.xid, 2));
        assert_readable(&mut scene, again.reads[0]);
        assert_ne!(again.reads[0].handle, call.reads[0].handle);
        scene.hand.read(call.reads[0]);
        assert_refused(&mut scene);
    }
}

#[test]
fn test_queued_call_exposes_no_memory() {
    for speaks in VERSIONS {
        let mut scene = Scene::new(speaks);
        let (_pending, calls) = scene.two();
        // A new connection has one credit.
        scene.hand.write(calls[0].reads[0], &[0; 4]);
        assert_refused(&mut scene);
        scene.made_again(calls[0].xid);
        let counters = scene.client.transport_counters().unwrap();
        assert_eq!(counters.registrations, 2, "a Read chunk and room of the first alone");
    }
}

/// An access by an STag that is not the client's own.
#[derive(Clone, Copy, Debug)]
enum Try {
    Read,
    Write,
    Invalidate,
}

/// The client knows each STag of its server's RNIC, and all offsets: of the memory from which calls
/// have been served, of Receives, of the buffers of Sends. A client learns the STag for the sink of
/// a Read from the Read Request.
#[test]
fn test_client_cannot_reach_any_server_memory() {
    for (speaks, version) in [(Speaks::V1, 1), (Speaks::V2, 2)] {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (speaks, speaks);
            server.memory = 1 << 20;
        });
        // The server has served a call with chunks of all kinds.
        w.echo(1, 9000, true, true);
        let memory = w.server.memory().clone();
        let free = memory.available();
        let (secret, pattern) = (memory.take(600_000).unwrap(), pattern(3, 600_000));
        secret.write(0, &pattern).unwrap();
        let (mut nth, mut tried) = (0, 0);
        loop {
            let known = w.server_stags().len();
            if nth >= known {
                break;
            }
            for what in [Try::Read, Try::Write, Try::Invalidate] {
                for other in [0, 1, 0x100] {
                    let mut raw = Raw::new(&mut w, version);
                    // The STags of this connection are the last.
                    let stags = w.server_stags();
                    let (stag, to) = *stags.get(nth).unwrap_or(stags.last().unwrap());
                    let stag = Stag(stag.0 ^ other);
                    match what {
                        Try::Read => raw.read(stag, to, 4),
                        Try::Write => raw.write(stag, to, &[0xee; 64]),
                        Try::Invalidate => {
                            raw.send_invalidating(&[1, version, 1, 99, 0, 0, 0], stag)
                        }
                    }
                    let end = raw.end(&mut w);
                    let refused = matches!(end, DisconnectReason::RemoteTerminate(_));
                    assert!(refused, "{what:?} {stag:?}: {end:?}");
                    assert!(raw.read.is_empty(), "it was read");
                    tried += 1;
                }
            }
            w.echo(2, 9000, true, true);
            nth += 1;
        }
        // At least the memory, and the Receives and headers of the honest client's connection were
        // tried.
        assert!(tried >= 3 * 9, "{tried}");
        assert!(secret.to_vec() == pattern, "it was written");
        drop(secret);
        w.until("the memory", |_| (memory.available() == free).then_some(()));
        assert_eq!(w.client.counters().connections, 1);
        assert_eq!(w.server.connections(), 1);
    }
}
