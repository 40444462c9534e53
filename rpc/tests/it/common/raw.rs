//! A hand-made client: a queue pair, and messages that the test composes word by word.

use std::collections::VecDeque;

use heddle_rpcrdma::{Handle, Segment, v1, v2};
use heddle_verbs::{
    Access, CmEvent, ConnectParams, Cq, Device, DisconnectReason, EventQueue, Mr, Pd, Qp, QpInit,
    Queue, RecvWr, SendWr, Stag,
};

use super::{PROGRAM, World, addr};

const ROOM: usize = 4096;
const RECEIVES: usize = 32;
/// Offset at which its own messages are composed, in turn, after the Receives.
const OUT: usize = RECEIVES * ROOM;
const SENDS: usize = 16;
/// Offset of the data that is read and written.
const DATA: usize = OUT + SENDS * ROOM;
const END: usize = DATA + ROOM;
const READ: u64 = 1 << 32;

/// See [the module](self).
pub struct Raw {
    pub version: u32,
    device: Device,
    events: EventQueue,
    pd: Pd,
    qp: Qp,
    cq: Cq,
    mr: Mr,
    lent: Vec<Mr>,
    sent: usize,
    is_up: bool,
    /// Messages that have arrived.
    pub received: VecDeque<Vec<u32>>,
    /// Bytes that Reads have fetched.
    pub read: VecDeque<Vec<u8>>,
    /// The reason why the connection has ended, if it has.
    pub ended: Option<DisconnectReason>,
}

impl Raw {
    /// Connects to the world's server, on the RNIC of the world's client.
    pub fn new(w: &mut World, version: u32) -> Raw {
        Raw::of_host(w, version, 1)
    }

    /// Connects from another address ([`OTHERS`](super::OTHERS)).
    pub fn of_host(w: &mut World, version: u32, host: u8) -> Raw {
        let device = w.client_device();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let init = QpInit::new(cq.clone()).depths(64, RECEIVES as u32);
        let qp = device.create_qp(pd, init).unwrap();
        let mr = device.alloc_mr(pd, END, Access::LOCAL_WRITE).unwrap();
        for i in 0..RECEIVES {
            qp.post_recv(&RecvWr::new(i as u64, &[mr.sge(i * ROOM, ROOM)])).unwrap();
        }
        let events = EventQueue::new(None);
        let params = ConnectParams::new(qp.clone()).from([10, 0, 0, host].into());
        device.connect(addr(), params, &events).unwrap();
        let (received, read, lent) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let (is_up, ended) = (false, None);
        let mut raw = Raw {
            version,
            device,
            events,
            pd,
            qp,
            cq,
            mr,
            lent,
            sent: 0,
            is_up,
            received,
            read,
            ended,
        };
        raw.until(w, "a connection", |raw| raw.is_up.then_some(()));
        raw
    }

    pub fn step(&mut self) {
        while let Some(event) = self.events.poll() {
            match event {
                CmEvent::Established { .. } => self.is_up = true,
                CmEvent::ConnectError { error, .. } => panic!("{error:?}"),
                CmEvent::Disconnected { reason, .. } => self.ended = Some(reason),
                _ => {}
            }
        }
        while let Some(cqe) = self.cq.poll() {
            if !cqe.status.is_success() {
                continue;
            }
            let mut bytes = vec![0; cqe.len as usize];
            if cqe.queue == Queue::Rq {
                let at = cqe.wr_id as usize * ROOM;
                self.mr.read(at, &mut bytes);
                let words = bytes.chunks_exact(4);
                let words = words.map(|w| u32::from_be_bytes(w.try_into().unwrap()));
                self.received.push_back(words.collect());
                let sges = [self.mr.sge(at, ROOM)];
                let _ = self.qp.post_recv(&RecvWr::new(cqe.wr_id, &sges));
            } else if cqe.wr_id & READ != 0 {
                bytes.resize((cqe.wr_id & 0xffff_ffff) as usize, 0);
                self.mr.read(DATA, &mut bytes);
                self.read.push_back(bytes);
            }
        }
    }

    pub fn until<T>(
        &mut self,
        w: &mut World,
        what: &str,
        mut found: impl FnMut(&mut Raw) -> Option<T>,
    ) -> T {
        w.until(what, |_| {
            self.step();
            found(self)
        })
    }

    /// Sends a message of these words.
    pub fn send(&mut self, words: &[u32]) {
        self.post(words, None);
    }

    /// Sends a message with an STag for the server to invalidate.
    pub fn send_invalidating(&mut self, words: &[u32], stag: Stag) {
        self.post(words, Some(stag));
    }

    fn post(&mut self, words: &[u32], invalidate: Option<Stag>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let at = OUT + self.sent % SENDS * ROOM;
        self.sent += 1;
        self.mr.write(at, &bytes);
        let sges = [self.mr.sge(at, bytes.len())];
        let send = SendWr::send(0, &sges);
        // An error is fine: on an ended connection nothing is sent.
        let _ = self.qp.post_send(&invalidate.map_or(send, |stag| send.invalidating(stag)));
    }

    /// Reads memory of the server.
    pub fn read(&self, stag: Stag, to: u64, len: usize) {
        let sink = [self.mr.sge(DATA, len)];
        self.qp.post_send(&SendWr::read(READ | len as u64, &sink, stag, to)).unwrap();
    }

    /// Writes to memory of the server.
    pub fn write(&self, stag: Stag, to: u64, bytes: &[u8]) {
        self.mr.write(DATA, bytes);
        let source = [self.mr.sge(DATA, bytes.len())];
        self.qp.post_send(&SendWr::write(0, &source, stag, to)).unwrap();
    }

    /// Registers memory with these bytes that the server may access.
    pub fn lend(&mut self, bytes: &[u8], access: Access) -> Segment {
        let mr = self.device.alloc_mr(self.pd, bytes.len(), access).unwrap();
        mr.write(0, bytes);
        let handle = Handle(mr.stag().0);
        let segment = Segment { handle, length: bytes.len() as u32, offset: mr.to() };
        self.lent.push(mr);
        segment
    }

    /// Returns the contents of the memory that was lent last.
    pub fn lent(&self) -> Vec<u8> {
        let mr = self.lent.last().unwrap();
        let mut bytes = vec![0; mr.len()];
        mr.read(0, &mut bytes);
        bytes
    }

    /// Returns a call that fits into a Send: a header with these chunk lists, in words, and the RPC
    /// message.
    pub fn call(&self, xid: u32, procedure: u32, lists: &[u32], arguments: &[u32]) -> Vec<u32> {
        let mut words = self.header(xid, CREDIT, self.inline());
        words.extend(lists);
        words.extend(rpc(xid, procedure, arguments));
        words
    }

    /// Returns the first words of a header. In version 2, the header of a call also names the
    /// handle to be invalidated: none.
    pub fn header(&self, xid: u32, credit: u32, kind: u32) -> Vec<u32> {
        let mut words = vec![xid, self.version, credit, kind];
        let with_handle = [v2::htype::CALL_INLINE, v2::htype::CALL_EXTERNAL].contains(&kind);
        words.extend((self.version == v2::VERSION && with_handle).then_some(0));
        words
    }

    /// Returns the number of messages that a version 2 server lets this client send in total, by
    /// the messages in `received`.
    pub fn granted(&self) -> u32 {
        self.received.iter().map(|words| words[2]).max().unwrap_or(1)
    }

    /// Returns the header type of a call in a Send.
    pub fn inline(&self) -> u32 {
        if self.version == v2::VERSION { v2::htype::CALL_INLINE } else { v1::procedure::MSG }
    }

    /// Returns the next message that is not a control message of version 2.
    pub fn answer(&mut self, w: &mut World) -> Vec<u32> {
        let control = [v2::htype::GRANT, v2::htype::CONNPROP_MIDDLE, v2::htype::CONNPROP_FINAL];
        let is_v2 = self.version == v2::VERSION;
        self.until(w, "an answer", |raw| {
            let words = raw.received.pop_front()?;
            (!is_v2 || !control.contains(&words[3])).then_some(words)
        })
    }

    /// Waits for the end of the connection, and returns the reason.
    pub fn end(&mut self, w: &mut World) -> DisconnectReason {
        self.until(w, "the end of the connection", |raw| raw.ended)
    }
}

/// The credits that the client asks for, or gives: enough for all messages of a test.
pub const CREDIT: u32 = 500;

/// Returns an RPC call of the test's program, in words.
pub fn rpc(xid: u32, procedure: u32, arguments: &[u32]) -> Vec<u32> {
    let mut words = vec![xid, 0, 2, PROGRAM, 1, procedure, 0, 0, 0, 0];
    words.extend(arguments);
    words
}

/// Returns a segment in words.
pub fn words_of(segment: Segment) -> [u32; 4] {
    let Segment { handle, length, offset } = segment;
    [handle.0, length, (offset >> 32) as u32, offset as u32]
}
