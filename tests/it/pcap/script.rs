//! The operations that two queue pairs perform on each other, and the messages that RFC 5040 and
//! 7306 define for them.

use heddle::queue::{AtomicOp, CqeOp, QpInit};
use heddle::{Access, Cq, Device, Endpoint, Mr, Qp, RecvWr, SendWr, Sge, Stag};

use crate::pcap::decode::{Message, Place, be32};

pub(crate) const WRITE: u8 = 0;
pub(crate) const READ_REQUEST: u8 = 1;
pub(crate) const READ_RESPONSE: u8 = 2;
pub(crate) const SEND: u8 = 3;
pub(crate) const SEND_INV: u8 = 4;
pub(crate) const SEND_SE: u8 = 5;
pub(crate) const SEND_SE_INV: u8 = 6;
pub(crate) const TERMINATE: u8 = 7;
pub(crate) const IMMEDIATE: u8 = 8;
pub(crate) const IMMEDIATE_SE: u8 = 9;
pub(crate) const ATOMIC_REQUEST: u8 = 10;
pub(crate) const ATOMIC_RESPONSE: u8 = 11;

/// Parts of a side's region: the data that it sends and that others read, the sinks of its Reads,
/// the part that others write, the words of atomic operations.
const SOURCE: usize = 0;
const SINK: usize = 16 << 10;
const TARGET: usize = 32 << 10;
const WORDS: usize = 64 << 10;
const REGION: usize = 68 << 10;

/// The number of receives, and the bytes of each.
const RECVS: u32 = 64;
const RECV: usize = 4096;

/// The initial values of the words.
const FIRST: [u64; 3] = [10, 0xffff_ffff, 0xaabb_ccdd_1122_3344];

/// The queue pair and memory of one side.
pub(crate) struct Side {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    recvs: Mr,
    /// Regions for the peer to invalidate.
    offered: [Mr; 2],
}

impl Side {
    pub(crate) fn new(end: &Endpoint, number: u8) -> Side {
        let device: &Device = end.device();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024, None).expect("a completion queue");
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(128, RECVS)).expect("a QP");
        let rights = Access::LOCAL_WRITE
            .with(Access::REMOTE_READ)
            .with(Access::REMOTE_WRITE)
            .with(Access::REMOTE_ATOMIC);
        let mr = device.alloc_mr(pd, REGION, rights).expect("memory");
        mr.write(SOURCE, &pattern(number, 0, SINK));
        for (i, word) in FIRST.iter().enumerate() {
            mr.write(WORDS + 8 * i, &word.to_ne_bytes());
        }
        let recvs =
            device.alloc_mr(pd, RECVS as usize * RECV, Access::LOCAL_WRITE).expect("memory");
        for i in 0..RECVS as usize {
            let sges = [recvs.sge(i * RECV, RECV)];
            qp.post_recv(&RecvWr::new(i as u64, &sges)).expect("room for it");
        }
        let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
        let offered = [(); 2].map(|()| device.alloc_mr_for(&qp, 64, rights).expect("memory"));
        Side { cq, qp, mr, recvs, offered }
    }

    fn to(&self, off: usize) -> u64 {
        self.mr.to() + off as u64
    }
}

/// Returns the bytes at `at` in the source of a side.
fn pattern(number: u8, at: usize, len: usize) -> Vec<u8> {
    // The period divides neither the length of a segment nor that of a region.
    (at..at + len).map(|i| u8::try_from(i % 251).expect("small") ^ number << 7).collect()
}

fn untagged(opcode: u8, qn: u32, msn: u32, invalidate: u32, payload: Vec<u8>) -> Message {
    Message { opcode, place: Place::Untagged { invalidate, qn, msn, mo: 0 }, payload }
}

fn tagged(opcode: u8, stag: Stag, to: u64, payload: Vec<u8>) -> Message {
    Message { opcode, place: Place::Tagged { stag: stag.0, to }, payload }
}

/// Returns the message with 0 as its mark: a requester chooses the mark of an atomic operation
/// freely.
pub(crate) fn without_mark(m: &Message) -> Message {
    let mut m = m.clone();
    match m.opcode {
        ATOMIC_REQUEST => m.payload[4..8].fill(0),
        ATOMIC_RESPONSE => m.payload[..4].fill(0),
        _ => {}
    }
    m
}

/// Returns the marks of atomic requests or responses.
pub(crate) fn marks(messages: &[Message], opcode: u8) -> Vec<u32> {
    let at = if opcode == ATOMIC_REQUEST { 4 } else { 0 };
    messages.iter().filter(|m| m.opcode == opcode).map(|m| be32(&m.payload, at)).collect()
}

/// Posts operations, and records the messages that must follow. Requests go out in the order of
/// posting, and answers in the order of the requests. Between requests and answers there is no
/// order.
pub(crate) struct Script<'a> {
    us: &'a Side,
    peer: &'a Side,
    number: u8,
    /// The messages that our side must send for it, and the peer's answers.
    pub(crate) requests: Vec<Message>,
    pub(crate) answers: Vec<Message>,
    /// The expected completions.
    pub(crate) posted: Vec<CqeOp>,
    msns: [u32; 4],
}

impl Script<'_> {
    fn post(&mut self, wr: &SendWr<'_>, op: CqeOp) {
        let wr = SendWr { wr_id: self.posted.len() as u64, ..*wr };
        self.us.qp.post_send(&wr).expect("room for it");
        self.posted.push(op);
    }

    fn msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msns[qn as usize];
        *msn += 1;
        *msn
    }

    fn source(&self, at: usize, len: usize) -> ([Sge; 1], Vec<u8>) {
        ([self.us.mr.sge(SOURCE + at, len)], pattern(self.number, at, len))
    }

    fn send(&mut self, opcode: u8, at: usize, len: usize) {
        let (sges, payload) = self.source(at, len);
        let mut wr = SendWr::send(0, &sges);
        if matches!(opcode, SEND_SE | SEND_SE_INV) {
            wr = wr.solicited();
        }
        let mut invalidate = 0;
        if let SEND_INV | SEND_SE_INV = opcode {
            let stag = self.peer.offered[usize::from(opcode == SEND_SE_INV)].stag();
            wr = wr.invalidating(stag);
            invalidate = stag.0;
        }
        self.post(&wr, CqeOp::Send);
        let msn = self.msn(0);
        self.requests.push(untagged(opcode, 0, msn, invalidate, payload));
    }

    fn write(&mut self, at: usize, len: usize) {
        let (sges, payload) = self.source(at, len);
        let (stag, to) = (self.peer.mr.stag(), self.peer.to(TARGET + at));
        self.post(&SendWr::write(0, &sges, stag, to), CqeOp::Write);
        self.requests.push(tagged(WRITE, stag, to, payload));
    }

    fn read(&mut self, at: usize, len: usize) {
        let sink = self.us.mr.sge(SINK + at, len);
        let (stag, to) = (self.peer.mr.stag(), self.peer.to(SOURCE + at));
        self.post(&SendWr::read(0, &[sink], stag, to), CqeOp::Read);
        let mut header = sink.stag.0.to_be_bytes().to_vec();
        header.extend(sink.to.to_be_bytes());
        header.extend(sink.len.to_be_bytes());
        header.extend(stag.0.to_be_bytes());
        header.extend(to.to_be_bytes());
        let msn = self.msn(1);
        self.requests.push(untagged(READ_REQUEST, 1, msn, 0, header));
        let bytes = pattern(1 - self.number, at, len);
        self.answers.push(tagged(READ_RESPONSE, sink.stag, sink.to, bytes));
    }

    /// Posts an atomic operation on the peer's word `at`, which holds `found` at that time.
    fn atomic(&mut self, at: usize, op: AtomicOp, found: u64) {
        let sink = self.us.mr.sge(SINK, 8);
        let (stag, to) = (self.peer.mr.stag(), self.peer.to(WORDS + 8 * at));
        self.post(&SendWr::atomic(0, &[sink], stag, to, op), op.into());
        // RFC 7306 section 5.2.1: the fields that FetchAdd does not use are 0, and all ones for the
        // mask.
        let (code, words) = match op {
            AtomicOp::FetchAdd { add, mask } => (0u32, [add, mask, 0, u64::MAX]),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (2, [swap, swap_mask, compare, compare_mask])
            }
        };
        let mut header = code.to_be_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(stag.0.to_be_bytes());
        header.extend(to.to_be_bytes());
        header.extend(words.iter().flat_map(|w| w.to_be_bytes()));
        let msn = self.msn(1);
        self.requests.push(untagged(ATOMIC_REQUEST, 1, msn, 0, header));
        let mut payload = vec![0; 4];
        payload.extend(found.to_be_bytes());
        let msn = self.msn(3);
        self.answers.push(untagged(ATOMIC_RESPONSE, 3, msn, 0, payload));
    }

    fn immediate(&mut self, data: u64, solicited: bool) {
        let wr = SendWr::immediate(0, data);
        self.post(&if solicited { wr.solicited() } else { wr }, CqeOp::Immediate);
        self.told(data, solicited);
    }

    fn write_immediate(&mut self, at: usize, len: usize, data: u64) {
        let (sges, payload) = self.source(at, len);
        let (stag, to) = (self.peer.mr.stag(), self.peer.to(TARGET + at));
        self.post(&SendWr::write_immediate(0, &sges, stag, to, data), CqeOp::Write);
        self.requests.push(tagged(WRITE, stag, to, payload));
        self.told(data, false);
    }

    fn told(&mut self, data: u64, solicited: bool) {
        let opcode = if solicited { IMMEDIATE_SE } else { IMMEDIATE };
        let msn = self.msn(0);
        self.requests.push(untagged(opcode, 0, msn, 0, data.to_be_bytes().to_vec()));
    }
}

/// Has side `number` perform every operation.
pub(crate) fn run(sides: &[Side; 2], number: u8) -> Script<'_> {
    let (us, peer) = (&sides[usize::from(number)], &sides[usize::from(1 - number)]);
    let (requests, answers, posted) = (Vec::new(), Vec::new(), Vec::new());
    let mut s = Script { us, peer, number, requests, answers, posted, msns: [0; 4] };
    // A single segment with each length of padding, then several segments, then none.
    for (i, len) in [5, 6, 7, 8, 4000, 0].into_iter().enumerate() {
        s.write(100 * i, len);
    }
    for opcode in [SEND, SEND_SE, SEND_INV, SEND_SE_INV] {
        s.send(opcode, 7, 33);
    }
    s.send(SEND, 11, 3001);
    s.send(SEND_SE, 0, 0);
    for (at, len) in [(0, 1), (0, 4000), (64, 0)] {
        s.read(at, len);
    }
    let add = |add, mask| AtomicOp::FetchAdd { add, mask };
    s.atomic(0, add(5, 0), FIRST[0]);
    s.atomic(0, add(u64::MAX, 0), FIRST[0] + 5);
    // The mask makes two fields of 32 bits, without a carry between them.
    s.atomic(1, add(1, 1 << 31), FIRST[1]);
    let swap = |compare, swap| {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask }
    };
    s.atomic(1, swap(0, 7), 0);
    s.atomic(1, swap(0, 8), 7);
    let masked =
        AtomicOp::CmpSwap { compare: 0x44, compare_mask: 0xff, swap: u64::MAX, swap_mask: 0xff00 };
    s.atomic(2, masked, FIRST[2]);
    s.atomic(2, AtomicOp::swap(1), 0xaabb_ccdd_1122_ff44);
    s.immediate(0x0102_0304_0506_0708, false);
    s.immediate(u64::MAX, true);
    s.write_immediate(4100, 1000, 0x8000_0000_0000_0001);
    // Several FPDUs fit into a segment.
    for i in 0..12 {
        s.write(6000 + 20 * i, 20);
    }
    for i in 0..12 {
        s.send(SEND, 20 * i, 20 + i);
    }
    s
}

/// Checks the contents of memory after both sides have finished.
pub(crate) fn check_memory(side: &Side, number: u8) {
    let read = |mr: &Mr, at, len| {
        let mut bytes = vec![0; len];
        mr.read(at, &mut bytes);
        bytes
    };
    let theirs = |at, len| pattern(1 - number, at, len);
    assert_eq!(read(&side.mr, TARGET + 400, 4000), theirs(400, 4000));
    assert_eq!(read(&side.mr, TARGET + 4100 + 300, 700), theirs(4400, 700));
    assert_eq!(read(&side.mr, SINK + 8, 3992), theirs(8, 3992));
    assert_eq!(read(&side.recvs, 4 * RECV, 3001), theirs(11, 3001));
    let words: Vec<u8> = [14u64, 7, 1].iter().flat_map(|w| w.to_ne_bytes()).collect();
    assert_eq!(read(&side.mr, WORDS, 24), words);
}
