//! A server that is made by hand, and invalidates what is its to invalidate without having said that it
//! would, and what is not.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::collections::VecDeque;

use common::*;
use heddle_rpc::client::{ConnectionFailure, PendingCall};
use heddle_rpc::{Body, Client, ClientConfig, Speaks};
use heddle_rpcrdma::conn::CloseReason;
use heddle_rpcrdma::header::{self, Header, Versions};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::rpc::{Reply, Status};
use heddle_rpcrdma::{Handle, Limits, Xid, v1};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, Cq, Device, EventQueue, ListenParams, Mr, Qp, QpInit, Queue,
    RecvWr, SendWr, Stag,
};

const PORT: &str = "10.0.0.2:20050";
const ROOM: usize = 4096;

/// A call as the server has it.
struct Call {
    xid: Xid,
    /// Handles of its Read chunks.
    reads: Vec<Handle>,
}

/// One connection at a time, each with a queue pair of its own.
struct Hand {
    device: Device,
    events: EventQueue,
    ends: Option<(Qp, Cq, Mr)>,
    calls: VecDeque<Call>,
    connections: u32,
    _memory: Vec<Mr>,
}

impl Hand {
    fn new(device: &Device) -> Hand {
        let events = EventQueue::new(None);
        device.listen(PORT.parse().unwrap(), ListenParams::default(), &events).unwrap();
        let (device, calls) = (device.clone(), VecDeque::new());
        Hand { device, events, ends: None, calls, connections: 0, _memory: Vec::new() }
    }

    fn step(&mut self) {
        while let Some(event) = self.events.poll() {
            match event {
                CmEvent::ConnectRequest { id, .. } => {
                    let pd = self.device.alloc_pd();
                    let cq = self.device.create_cq(64, None).unwrap();
                    let qp = self.device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
                    let mr = self.device.alloc_mr(pd, 9 * ROOM, Access::LOCAL_WRITE).unwrap();
                    for i in 0..8 {
                        let sges = [mr.sge(i * ROOM, ROOM)];
                        qp.post_recv(&RecvWr::new(i as u64, &sges)).unwrap();
                    }
                    // As Linux's server: it says that it does not invalidate.
                    let private_data = PrivateData::new(false, 4096, 4096).unwrap();
                    let private_data = private_data.emit().to_vec();
                    let params = AcceptParams { private_data, ..AcceptParams::new(qp.clone()) };
                    self.device.accept_on(id, params, &self.events).unwrap();
                    self.ends = Some((qp, cq, mr));
                    self.connections += 1;
                }
                CmEvent::Disconnected { .. } => self.calls.clear(),
                _ => {}
            }
        }
        let Some((_, cq, mr)) = &self.ends else { return };
        while let Some(cqe) = cq.poll() {
            if cqe.queue != Queue::Rq || !cqe.status.is_success() {
                continue;
            }
            let mut octets = vec![0; cqe.len as usize];
            mr.read(cqe.wr_id as usize * ROOM, &mut octets);
            let message = header::decode(&octets, Versions::V1, &Limits::DEFAULT).unwrap();
            let Header::V1(header) = message.header else { panic!("version 2") };
            let v1::Body::Msg(chunks) = header.body else { panic!("{header:?}") };
            let reads = chunks.reads.segments().map(|s| s.target.handle).collect();
            self.calls.push_back(Call { xid: header.xid, reads });
        }
    }

    /// Answers a call with the number of results 0, and invalidates `handle` by it.
    fn reply(&self, xid: Xid, handle: Option<Handle>) {
        let (qp, _, mr) = self.ends.as_ref().unwrap();
        let mut octets = vec![0; ROOM];
        let header = v1::Header { xid, credit: 8, body: v1::Body::Msg(v1::Chunks::NONE) };
        let at = header.encode(&mut octets).unwrap();
        let end = at + Reply::accepted(xid, Status::Success).encode(&mut octets[at..]).unwrap() + 4;
        mr.write(8 * ROOM, &octets[..end]);
        let sges = [mr.sge(8 * ROOM, end)];
        let send = SendWr::send(100, &sges);
        qp.post_send(&handle.map_or(send, |h| send.invalidating(Stag(h.0)))).unwrap();
    }
}

/// The world's own client and server have nothing to do here.
struct Scene {
    w: World,
    hand: Hand,
    client: Client,
}

impl Scene {
    /// With a connection, and credits for several calls.
    fn new() -> Scene {
        let w = World::new(Speaks::V1);
        let mut config = ClientConfig { binding: Box::new(BINDING), ..ClientConfig::default() };
        config.transport.speaks = Speaks::V1;
        let client = Client::new(&w.client_device(), PORT.parse().unwrap(), config).unwrap();
        let hand = Hand::new(&w.server_device());
        let mut scene = Scene { w, hand, client };
        let mut arguments = Body::new();
        arguments.opaque(&[]).unwrap();
        let mut call = scene.client.call(PLAIN).arguments(arguments).send().unwrap();
        let first = scene.calls(1).pop().unwrap();
        scene.hand.reply(first.xid, None);
        scene.until("its reply", |_| call.try_take()).unwrap();
        scene
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Scene) -> Option<T>) -> T {
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

    /// So many calls have come.
    fn calls(&mut self, count: usize) -> Vec<Call> {
        self.until("calls", |s| {
            (s.hand.calls.len() == count).then(|| s.hand.calls.drain(..).collect())
        })
    }

    /// Two calls with a chunk each are under way.
    fn two(&mut self) -> ([PendingCall; 2], Vec<Call>) {
        let pending = [1, 2].map(|n| echo(&self.client, n, 8000, true, false).unwrap());
        let calls = self.calls(2);
        assert!(calls.iter().all(|call| call.reads.len() == 1), "a Read chunk of one segment each");
        (pending, calls)
    }

    /// The connection is lost, and both calls are made again on the next: one after the other, as there
    /// is one credit at first.
    fn made_again(&mut self, first: Xid) {
        let again = self.calls(1);
        assert_eq!((again[0].xid, self.hand.connections), (first, 2));
        assert_eq!(self.client.outstanding(), 2);
        assert_eq!(self.client.counters().retransmissions, 2);
    }
}

#[test]
fn test_reply_may_invalidate_memory_of_its_own_call_whatever_the_server_has_said() {
    let mut scene = Scene::new();
    let ([mut first, _second], calls) = scene.two();
    scene.hand.reply(calls[0].xid, Some(calls[0].reads[0]));
    let outcome = scene.until("the reply", |_| first.try_take());
    // Its results are cut off, which is another matter.
    assert!(outcome.is_err());
    assert_eq!((scene.hand.connections, scene.client.last_failure()), (1, None));
    let counters = scene.client.transport_counters().unwrap();
    // Its room for the reply is invalidated by the client; the other call has both of its own.
    assert_eq!((counters.remote_invalidations, counters.invalidations), (1, 1));
    assert_eq!(counters.registrations, 4);
}

#[test]
fn test_reply_that_invalidates_memory_of_another_call_ends_the_connection() {
    let mut scene = Scene::new();
    let (_pending, calls) = scene.two();
    scene.hand.reply(calls[0].xid, Some(calls[1].reads[0]));
    scene.made_again(calls[0].xid);
    let why = ConnectionFailure::Closed(CloseReason::WrongInvalidate);
    assert_eq!(scene.client.last_failure(), Some(why));
}

#[test]
fn test_reply_that_invalidates_what_there_is_not_ends_the_connection() {
    let mut scene = Scene::new();
    let (_pending, calls) = scene.two();
    // Another key: of a call that is over.
    let Handle(bits) = calls[0].reads[0];
    scene.hand.reply(calls[0].xid, Some(Handle(bits ^ 0xff)));
    scene.made_again(calls[0].xid);
}
