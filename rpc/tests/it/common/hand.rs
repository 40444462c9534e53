//! A hand-made server of either version: it does with a client's memory whatever a test asks for.

use std::collections::VecDeque;

use heddle_rpc::client::PendingCall;
use heddle_rpc::{Body, Client, ClientConfig, Speaks};
use heddle_rpcrdma::chunk::{WriteChunk, WriteList};
use heddle_rpcrdma::header::{self, Header, Versions};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::rpc::{Reply, Status};
use heddle_rpcrdma::{Handle, Limits, Segment, Xid, v1, v2};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, Cq, Device, EventQueue, ListenParams, Mr, Qp, QpInit, Queue,
    RecvWr, SendWr, Stag,
};

use super::*;

const PORT: &str = "10.0.0.2:20050";
const ROOM: usize = 4096;
/// Number of rooms for data that is read and written, after 8 Receives and a Send.
const DATA: usize = 4;
const SEND: u64 = 100;
const READ: u64 = 101;
const WRITE: u64 = 102;

/// A call as the server received it.
pub struct Call {
    pub xid: Xid,
    /// Segments of the Read chunks.
    pub reads: Vec<Segment>,
    /// Segments of the Write chunks and the Reply chunk.
    pub room: Vec<Segment>,
    /// Segments of each Write chunk.
    pub writes: Vec<Vec<Segment>>,
}

/// The hand-made server. It has one connection at a time, each with a queue pair of its own.
pub struct Hand {
    device: Device,
    versions: Versions,
    events: EventQueue,
    ends: Option<(Qp, Cq, Mr)>,
    pub calls: VecDeque<Call>,
    /// Number of connections made; `ended` counts those that are over.
    pub connections: u32,
    pub ended: u32,
    /// Bytes that completed Reads have fetched.
    pub read: VecDeque<Vec<u8>>,
}

impl Hand {
    fn new(device: &Device, versions: Versions) -> Hand {
        let events = EventQueue::new(None);
        device.listen(PORT.parse().unwrap(), ListenParams::default(), &events).unwrap();
        let (device, calls, read) = (device.clone(), VecDeque::new(), VecDeque::new());
        Hand { device, versions, events, ends: None, calls, connections: 0, ended: 0, read }
    }

    fn step(&mut self) {
        while let Some(event) = self.events.poll() {
            match event {
                CmEvent::ConnectRequest { id, .. } => {
                    let pd = self.device.alloc_pd().unwrap();
                    let cq = self.device.create_cq(64, None).unwrap();
                    let qp = self.device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
                    let mr =
                        self.device.alloc_mr(pd, (9 + DATA) * ROOM, Access::LOCAL_WRITE).unwrap();
                    for i in 0..8 {
                        let sges = [mr.sge(i * ROOM, ROOM)];
                        qp.post_recv(&RecvWr::new(i as u64, &sges)).unwrap();
                    }
                    // Like the server of Linux, announce that this end does not invalidate.
                    let private_data = PrivateData::new(false, 4096, 4096).unwrap();
                    let private_data = private_data.emit().to_vec();
                    let params = AcceptParams { private_data, ..AcceptParams::new(qp.clone()) };
                    let params = params.reads(4, 4);
                    self.device.accept_on(id, params, &self.events).unwrap();
                    self.ends = Some((qp, cq, mr));
                    self.connections += 1;
                }
                CmEvent::Disconnected { .. } => {
                    self.calls.clear();
                    self.ended += 1;
                }
                _ => {}
            }
        }
        let Some((_, cq, mr)) = &self.ends else { return };
        let mut greeted = false;
        while let Some(cqe) = cq.poll() {
            if !cqe.status.is_success() {
                continue;
            }
            if cqe.queue == Queue::Sq {
                if cqe.wr_id >> 32 == READ {
                    let mut bytes = vec![0; (cqe.wr_id & 0xffff_ffff) as usize];
                    mr.read(9 * ROOM, &mut bytes);
                    self.read.push_back(bytes);
                }
                continue;
            }
            let mut bytes = vec![0; cqe.len as usize];
            mr.read(cqe.wr_id as usize * ROOM, &mut bytes);
            let message = header::decode(&bytes, self.versions, &Limits::DEFAULT).unwrap();
            let (xid, chunks) = match message.header {
                Header::V1(v1::Header { xid, body: v1::Body::Msg(chunks), .. })
                | Header::V2(v2::Header {
                    xid, body: v2::Body::CallInline { chunks, .. }, ..
                }) => (xid, chunks),
                // A client of version 2 begins with its properties; the GRANT below admits these
                // and a call.
                Header::V2(v2::Header { body: v2::Body::ConnProp { .. }, .. }) => {
                    greeted = true;
                    continue;
                }
                Header::V2(v2::Header { body: v2::Body::Grant, .. }) => continue,
                header => panic!("{header:?}"),
            };
            let reads = chunks.reads.segments().map(|s| s.target).collect();
            let room = chunks.writes.chunks().chain(chunks.reply).flat_map(|c| c.segments());
            let room = room.collect();
            let writes = chunks.writes.chunks().map(|c| c.segments().collect()).collect();
            self.calls.push_back(Call { xid, reads, room, writes });
        }
        if greeted {
            let grant = v2::Header { xid: Xid(0), credit: 2, body: v2::Body::Grant };
            self.post(None, |bytes| grant.encode(bytes).unwrap());
        }
    }

    /// Answers a call with a result of 0, and invalidates `handle` by the reply.
    pub fn reply(&self, xid: Xid, handle: Option<Handle>) {
        self.send(xid, handle, &[], &[0; 4]);
    }

    /// Answers a call with these results in the message, and `filled` bytes in each segment of its
    /// Write chunks.
    pub fn reply_with(&self, call: &Call, filled: u32, results: &[u8]) {
        let back = |s: &Segment| Segment { length: filled, ..*s };
        let writes: Vec<Vec<_>> =
            call.writes.iter().map(|chunk| chunk.iter().map(back).collect()).collect();
        self.send(call.xid, None, &writes, results);
    }

    fn send(&self, xid: Xid, handle: Option<Handle>, writes: &[Vec<Segment>], results: &[u8]) {
        let writes: Vec<_> = writes.iter().map(|chunk| WriteChunk::new(chunk).unwrap()).collect();
        let writes = WriteList::new(&writes);
        self.post(handle, |bytes| {
            let at = if self.versions == Versions::V2 {
                let body = v2::Body::ReplyInline { writes };
                v2::Header { xid, credit: 500, body }.encode(bytes).unwrap()
            } else {
                let body = v1::Body::Msg(v1::Chunks { writes, ..v1::Chunks::NONE });
                v1::Header { xid, credit: 8, body }.encode(bytes).unwrap()
            };
            let at = at + Reply::accepted(xid, Status::Success).encode(&mut bytes[at..]).unwrap();
            let end = at + results.len();
            bytes[at..end].copy_from_slice(results);
            end
        });
    }

    /// Sends the bytes that `write` writes; `write` returns their number.
    fn post(&self, handle: Option<Handle>, write: impl FnOnce(&mut [u8]) -> usize) {
        let (qp, _, mr) = self.ends.as_ref().unwrap();
        let mut bytes = vec![0; ROOM];
        let end = write(&mut bytes);
        mr.write(8 * ROOM, &bytes[..end]);
        let sges = [mr.sge(8 * ROOM, end)];
        let send = SendWr::send(SEND, &sges);
        qp.post_send(&handle.map_or(send, |h| send.invalidating(Stag(h.0)))).unwrap();
    }

    /// Reads memory of the client.
    pub fn read(&self, from: Segment) {
        let (qp, _, mr) = self.ends.as_ref().unwrap();
        let sink = [mr.sge(9 * ROOM, from.length as usize)];
        let id = READ << 32 | u64::from(from.length);
        qp.post_send(&SendWr::read(id, &sink, Stag(from.handle.0), from.offset)).unwrap();
    }

    /// Writes to memory of the client.
    pub fn write(&self, to: Segment, bytes: &[u8]) {
        let (qp, _, mr) = self.ends.as_ref().unwrap();
        mr.write(9 * ROOM, bytes);
        let source = [mr.sge(9 * ROOM, bytes.len())];
        qp.post_send(&SendWr::write(WRITE, &source, Stag(to.handle.0), to.offset)).unwrap();
    }
}

/// A client with a hand-made server. The world's own client and server have nothing to do here.
pub struct Scene {
    pub w: World,
    pub hand: Hand,
    pub client: Client,
}

impl Scene {
    /// Creates a scene with a connection of this version, and credits for several calls.
    pub fn new(speaks: Speaks) -> Scene {
        let w = World::new(speaks);
        let mut config = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
        config.transport.speaks = speaks;
        let client = Client::new(&w.client_device(), PORT.parse().unwrap(), config).unwrap();
        let versions = if speaks == Speaks::V1 { Versions::V1 } else { Versions::V2 };
        let hand = Hand::new(&w.server_device(), versions);
        let mut scene = Scene { w, hand, client };
        let mut arguments = Body::new();
        arguments.opaque(&[]).unwrap();
        let mut call = scene.client.call(PLAIN).arguments(arguments).send().unwrap();
        let first = scene.calls(1).pop().unwrap();
        scene.hand.reply(first.xid, None);
        scene.until("its reply", |_| call.try_take()).unwrap();
        scene
    }

    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Scene) -> Option<T>) -> T {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
        loop {
            self.w.poll();
            self.hand.step();
            self.client.step();
            if let Some(t) = found(self) {
                return t;
            }
            let late = std::time::Instant::now() >= end;
            assert!(!late, "{what} did not come: {:?}", self.client.counters());
        }
    }

    /// Waits for `count` calls, and returns them.
    pub fn calls(&mut self, count: usize) -> Vec<Call> {
        self.until("calls", |s| {
            (s.hand.calls.len() == count).then(|| s.hand.calls.drain(..).collect())
        })
    }

    /// Makes two calls, each with a Read chunk, and waits until both are under way.
    pub fn two(&mut self) -> ([PendingCall; 2], Vec<Call>) {
        let pending = [1, 2].map(|n| echo(&self.client, n, 8000, true, false).unwrap());
        let calls = self.calls(2);
        assert!(calls.iter().all(|call| call.reads.len() == 1), "a Read chunk of one segment each");
        (pending, calls)
    }

    /// Asserts that the connection was lost and both calls are made again on the next: one after
    /// the other, as a new connection begins with one credit. Returns the first.
    pub fn made_again(&mut self, first: Xid) -> Call {
        let again = self.calls(1).pop().unwrap();
        assert_eq!((again.xid, self.hand.connections), (first, 2));
        assert_eq!(self.client.outstanding(), 2);
        assert_eq!(self.client.counters().retransmissions, 2);
        again
    }
}
