//! The memory of a server that its client may reach when the server calls it, and for how long. A
//! hand-made client tries to access memory within these limits and beyond them. Only version 2 is
//! tested, because version 1 has no chunks in the reverse direction.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::raw::{CREDIT, Raw};
use crate::common::{BINDING, ECHO, World, pattern};
use heddle_rpc::client::PendingCall;
use heddle_rpc::server::{CallerEvent, CallsConfig};
use heddle_rpc::{Body, Buffer, CallError, Caller, ReverseSupport, Speaks};
use heddle_rpcrdma::chunk::WriteList;
use heddle_rpcrdma::header::{self, Header, Versions};
use heddle_rpcrdma::property::Properties;
use heddle_rpcrdma::rpc::{Reply, Status};
use heddle_rpcrdma::v2::{self, PropertySet};
use heddle_rpcrdma::{Limits, Segment, Xid};
use heddle_verbs::{DisconnectReason, Stag};

/// Too many bytes to go with a call in a Send.
const LEN: usize = 4064;

fn words(write: impl FnOnce(&mut [u8]) -> usize) -> Vec<u32> {
    let mut bytes = vec![0; 4096];
    let end = write(&mut bytes);
    let words = bytes[..end].chunks_exact(4);
    words.map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}

/// A server that makes calls, and a hand-made client that takes everything.
struct Scene {
    w: World,
    raw: Raw,
    caller: Caller,
}

/// A call of the server as its client received it.
struct Call {
    pending: PendingCall,
    xid: Xid,
    reads: Vec<Segment>,
    room: Vec<Segment>,
}

impl Scene {
    fn new() -> Scene {
        let mut w = World::with(|client, server| {
            (client.transport.speaks, server.transport.speaks) = (Speaks::V2, Speaks::V2);
            let binding = Box::new(BINDING);
            server.calls = Some(Arc::new(CallsConfig { binding, ..CallsConfig::default() }));
        });
        let callers: Arc<Mutex<Vec<Caller>>> = Arc::default();
        let to = callers.clone();
        w.server.watch(move |event| {
            if let CallerEvent::Connected(caller) = event {
                to.lock().unwrap().push(caller);
            }
        });
        let mut raw = Raw::new(&mut w, v2::VERSION);
        let ours = Properties { reverse: ReverseSupport::General, ..Properties::DEFAULT }.encoded();
        let ours = ours.properties();
        let body = v2::Body::ConnProp { last: true, props: PropertySet::new(&ours).unwrap() };
        let hello = v2::Header { xid: Xid(1), credit: CREDIT, body };
        raw.send(&words(|bytes| hello.encode(bytes).unwrap()));
        let caller = raw.until(&mut w, "a client to call", |_| callers.lock().unwrap().pop());
        assert_eq!(caller.takes(), ReverseSupport::General);
        Scene { w, raw, caller }
    }

    /// Makes a call of ECHO by the server, with an item in a Read chunk.
    fn call(&mut self, room: Option<Buffer>) -> Call {
        let item = self.caller.memory().take_copy(&pattern(1, LEN)).unwrap();
        let mut arguments = Body::new();
        arguments.u32(1).unwrap().item(item).unwrap();
        let call = self.caller.call(ECHO).arguments(arguments);
        let call = match room {
            Some(room) => call.room(room),
            None => call.results_max(64),
        };
        let pending = call.send().unwrap();
        let message = self.raw.answer(&mut self.w);
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_be_bytes()).collect();
        let message = header::decode(&bytes, Versions::V2, &Limits::DEFAULT).unwrap();
        let Header::V2(v2::Header { xid, body: v2::Body::CallInline { chunks, .. }, .. }) =
            message.header
        else {
            panic!("{message:?}")
        };
        let reads: Vec<_> = chunks.reads.segments().map(|s| s.target).collect();
        let room = chunks.writes.chunks().flat_map(|c| c.segments()).collect();
        assert_eq!(reads.iter().map(|s| s.length as usize).sum::<usize>(), LEN);
        Call { pending, xid, reads, room }
    }

    /// Replies to the call, which then ends: it fails because its results are cut off, which does
    /// not matter here.
    fn replied(&mut self, call: Call) {
        let Call { xid, pending, .. } = call;
        let body = v2::Body::ReplyInline { writes: WriteList::new(&[]) };
        let reply = v2::Header { xid, credit: CREDIT, body };
        self.raw.send(&words(|bytes| {
            let at = reply.encode(bytes).unwrap();
            at + Reply::accepted(xid, Status::Success).encode(&mut bytes[at..]).unwrap()
        }));
        let error = self.w.outcome(pending).unwrap_err();
        assert_ne!(error, CallError::Lost);
    }

    fn read(&self, segment: Segment) {
        self.raw.read(Stag(segment.handle.0), segment.offset, segment.length as usize);
    }

    fn write(&self, segment: Segment, bytes: &[u8]) {
        self.raw.write(Stag(segment.handle.0), segment.offset, bytes);
    }

    /// Asserts that the client's access ends the connection and fetches nothing, and that the
    /// server's memory comes back.
    fn assert_refused(mut self) {
        let end = self.raw.end(&mut self.w);
        assert!(matches!(end, DisconnectReason::RemoteTerminate(_)), "{end:?}");
        assert!(self.raw.read.is_empty(), "it was read");
        let caller = &self.caller;
        self.w.until("the caller's end", |_| (!caller.is_connected()).then_some(()));
    }
}

#[test]
fn test_client_can_read_chunk_of_server_until_its_call_ends() {
    let mut scene = Scene::new();
    let call = scene.call(None);
    let from = call.reads[0];
    scene.read(from);
    let bytes = scene.raw.until(&mut scene.w, "what is read", |raw| raw.read.pop_front());
    assert!(bytes == pattern(1, LEN));
    scene.replied(call);
    scene.read(from);
    scene.assert_refused();
}

#[test]
fn test_client_can_write_room_of_server_until_its_call_ends() {
    let mut scene = Scene::new();
    let room = scene.caller.buffer(LEN).unwrap();
    let call = scene.call(Some(room.clone()));
    let to = call.room[0];
    let bytes = pattern(2, LEN);
    scene.write(to, &bytes);
    scene.w.until("what is written", |_| (room.to_vec() == bytes).then_some(()));
    scene.replied(call);
    scene.write(to, &[0; LEN]);
    scene.assert_refused();
    assert!(room.to_vec() == bytes, "it was written");
}

#[test]
fn test_client_reaches_no_other_memory_of_a_calling_server() {
    type Try = fn(&Scene, &Call);
    let tries: [(&str, Try); 5] = [
        ("behind a Read chunk", |s, c| s.read(Segment { length: LEN as u32 + 1, ..c.reads[0] })),
        ("into a Read chunk", |s, c| s.write(c.reads[0], &[0; 4])),
        ("out of room", |s, c| s.read(c.room[0])),
        ("behind room", |s, c| {
            s.write(Segment { offset: c.room[0].offset + LEN as u64 - 3, ..c.room[0] }, &[0; 4]);
        }),
        ("another handle", |s, c| {
            // The index of an STag is above the 8 bits of its key.
            s.raw.read(Stag(c.reads[0].handle.0 ^ 0x1000), c.reads[0].offset, 4);
        }),
    ];
    for (what, attempt) in tries {
        let mut scene = Scene::new();
        let room = scene.caller.buffer(LEN).unwrap();
        room.write(0, &[7; LEN]).unwrap();
        let call = scene.call(Some(room.clone()));
        attempt(&scene, &call);
        let memory = scene.caller.memory().clone();
        let end = scene.raw.end(&mut scene.w);
        assert!(matches!(end, DisconnectReason::RemoteTerminate(_)), "{what}: {end:?}");
        assert!(scene.raw.read.is_empty(), "{what}");
        // The call ends exactly once, because the server cannot make it on another connection, and
        // its memory comes back.
        assert_eq!(scene.w.outcome(call.pending).unwrap_err(), CallError::Lost, "{what}");
        assert_eq!(room.to_vec(), [7; LEN], "{what}");
        drop(room);
        scene.w.until("the memory", |_| (memory.available() == memory.len()).then_some(()));
        // Another client of the server is not affected.
        scene.w.echo(2, 9000, true, true);
    }
}
