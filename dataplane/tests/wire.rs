//! Two workers, and between them a tap that looks at every mbuf on its way.
//!
//! The tests compare the counters of copies with the frames that leave a port. With CRC off,
//! payload must lie in the sender's registered memory, at the address that the work request named,
//! and everything else in a frame must be headers, pads and CRCs, to the byte. With CRC on, each
//! frame must be one piece of the port's own.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "../../ctl/tests/allocations/counting/alloc.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared")]
mod alloc;
#[path = "it/common.rs"]
mod common;
#[path = "it/side.rs"]
mod side;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use common::*;
use heddle_base::Seed;
use heddle_dataplane::*;
use heddle_iwarp::{QpConfig, Role};
use heddle_rings::worker::WorkerQp;
use heddle_rnic::{Event, FpduMode, Order, Report, Rnic, RnicConfig};
use heddle_tcp::{Cidr, StackConfig};
use heddle_types::{ConnId, ListenAt};
use heddle_verbs::{Access, Cqe, Data, Mr, RecvWr, SendOp, SendWr, Sge, Stag};

const PORT: u16 = 7174;

/// Registered memory of each side: a part to send from or read into, a part for writes and reads of
/// the peer, and a part for receive buffers; each has a slot for every message.
const MEMORY: usize = 24 << 20;
const SLOT: usize = 96 << 10;
const FAR: usize = 8 << 20;
const BUFFERS: usize = 16 << 20;

/// A frame does not refer to payload shorter than this.
const SHORT: usize = 256;

/// Payload of the largest tagged and untagged segment at an MTU of 1500, with TCP timestamps.
const TAGGED: usize = 1428;
const UNTAGGED: usize = 1424;

const SIZES: [usize; 17] =
    [0, 1, 31, 33, 255, 256, 257, 1001, 1423, 1424, 1425, 1427, 1428, 1429, 4097, 16_385, 65_536];

/// A run of bytes of a memory region: offset and length.
type Run = (usize, usize);

/// The content of the frames of one direction, beside their Ethernet, IP and TCP headers.
#[derive(Default)]
struct Seen {
    /// TCP payload that lies in registered memory, in the order of the wire.
    referenced: Vec<Run>,
    /// Bytes of TCP payload that lie in mbufs.
    direct: usize,
    /// Frames of more than one piece.
    chained: usize,
}

/// A side, whose memory the tap knows.
struct Side(side::Side<Rnic<RxMbuf>>);

impl Deref for Side {
    type Target = side::Side<Rnic<RxMbuf>>;

    fn deref(&self) -> &side::Side<Rnic<RxMbuf>> {
        &self.0
    }
}

impl DerefMut for Side {
    fn deref_mut(&mut self) -> &mut side::Side<Rnic<RxMbuf>> {
        &mut self.0
    }
}

impl Side {
    fn new(n: u8, port: Port, pool: Mempool, clock: &Clock) -> Side {
        let seed = Seed::from_u64(n.into());
        let addr = Cidr::new([10, 0, 0, n].into(), 24).unwrap();
        let stack =
            StackConfig { max_conns: 4, ..StackConfig::new(port.mac(), addr, seed.clone()) };
        let access = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let objects = side::Objects { memory: MEMORY, access, depth: 64 };
        let engine = RnicConfig::new(stack, 1024, 1 << 22);
        Side(side::Side::new(engine, port, pool, clock, &seed, objects))
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        self.mr.sge(at, len)
    }

    /// Returns the number of frames that refer to the side's memory.
    fn references(&self) -> usize {
        self.external.references(self.registry.mrs().index(self.mr.stag()))
    }

    /// Returns the next completion, which must be successful.
    fn completion(&self) -> Option<Cqe> {
        let cqe = self.cq.poll()?;
        assert!(cqe.status.is_success(), "{cqe:?}");
        Some(cqe)
    }

    fn fill(&self, at: usize, seed: u8, len: usize) -> Vec<u8> {
        let data = bytes(seed, len);
        self.mr.write(at, &data);
        data
    }

    fn content(&self, at: usize, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.mr.read(at, &mut data);
        data
    }
}

/// The two workers and the tap.
struct Net {
    sides: [Side; 2],
    /// The tap's ends of the rings.
    taps: [(RxQueue, TxQueue); 2],
    hand: ManualClock,
    /// The frames that came from each side, while the test records them.
    seen: Option<[Seen; 2]>,
}

impl Net {
    fn new(name: &str, crc: bool) -> Net {
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(1));
        let pools = [pool(4095), pool(4095)];
        let mut taps = Vec::new();
        let sides = [0, 1].map(|i| {
            let config = PortConfig::new(pools[i]);
            let name = format!("{name}{i}");
            let (port, mut tap) = Port::ring_pair(&eal(), &name, 1024, &config, &config).unwrap();
            taps.push(tap.take_queues().pop().unwrap());
            Side::new(i as u8 + 1, port, pools[i], &clock)
        });
        let b = taps.pop().unwrap();
        let mut net = Net { sides, taps: [taps.pop().unwrap(), b], hand, seen: None };
        net.connect(crc);
        net
    }

    /// Connects side 0 to side 1 without an MPA exchange.
    fn connect(&mut self, crc: bool) {
        let remote = ([10, 0, 0, 2], PORT).into();
        let listen = Order::listen(1, ListenAt::All, PORT, 4);
        self.sides[1].order(Command::Order(listen));
        self.sides[0].order(Command::Order(Order::connect(2, remote)));
        let mut conns: [Option<ConnId>; 2] = [None; 2];
        self.until("a connection", |net| {
            for (side, conn) in net.sides.iter_mut().zip(&mut conns) {
                while let Ok(report) = side.reports.recv() {
                    if let WorkerReport::Engine(Report::Event(
                        Event::Connected { conn: c, .. } | Event::Accepted { conn: c, .. },
                    )) = report
                    {
                        *conn = Some(c);
                    }
                }
            }
            conns.iter().all(Option::is_some)
        });
        let roles = [Role::Initiator, Role::Responder];
        for ((side, conn), role) in self.sides.iter().zip(conns).zip(roles) {
            let depth = 64;
            let qp = QpConfig {
                qpn: side.qp.qpn(),
                pd: side.qp.pd(),
                sq_depth: depth,
                rq_depth: depth,
                role,
                crc,
                ..QpConfig::default()
            };
            let mode = Box::new(FpduMode { startup_len: 0, reply: Vec::new(), qp });
            let (conn, app) = (conn.unwrap(), side.device.app());
            let qp = Box::new(WorkerQp::new(side.qp.ends()));
            side.order(Command::Enter { conn, mode, app, qp });
        }
    }

    fn poll(&mut self) {
        for from in 0..2 {
            self.sides[from].worker.poll();
            let mut burst = Burst::new();
            while self.taps[from].0.burst_as_sent(&mut burst) > 0 {
                for frame in &burst {
                    if let Some(seen) = &mut self.seen {
                        look(frame, &self.sides[from].mr, &mut seen[from]);
                    }
                }
                self.taps[1 - from].1.burst(&mut burst);
                assert!(burst.is_empty(), "the rings are deeper than the window");
            }
        }
        self.hand.advance(Duration::from_micros(5));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Net) -> bool) {
        for _ in 0..1_000_000 {
            if done(self) {
                return;
            }
            self.poll();
        }
        panic!("{what} did not come");
    }
}

/// Sorts the pieces of a frame. Every piece must lie either in an mbuf or in `mr`.
fn look(frame: &Mbuf, mr: &Mr, seen: &mut Seen) {
    let mut head = [0; 54];
    let n = frame.copy_at(0, &mut head);
    if head[12..14] != [8, 0] {
        return;
    }
    assert_eq!((n, head[23]), (54, 6), "TCP");
    let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
    let headers = usize::from(head[14] & 15) * 4 + usize::from(head[46] >> 4) * 4;
    let mut referenced = 0;
    let base = mr.region().ptr(mr.info().off, MEMORY).unwrap() as usize;
    for (at, len, external) in frame.pieces() {
        let at = at as usize;
        let inside = at >= base && at + len <= base + MEMORY;
        assert_eq!(inside, external, "a piece is in registered memory or is the port's own");
        if external {
            seen.referenced.push((at - base, len));
            referenced += len;
        }
    }
    seen.direct += total - headers - referenced;
    seen.chained += usize::from(frame.segments() > 1);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendInvalidate,
    Write,
    Read,
}

const KINDS: [Kind; 4] = [Kind::Send, Kind::SendInvalidate, Kind::Write, Kind::Read];

/// Returns what the sender of the payload of one message at `at` must put on the wire.
fn expected(kind: Kind, at: usize, len: usize, crc: bool) -> Seen {
    let (most, header) = match kind {
        Kind::Send | Kind::SendInvalidate => (UNTAGGED, 18),
        Kind::Write | Kind::Read => (TAGGED, 14),
    };
    let mut seen = Seen::default();
    let mut done = 0;
    loop {
        let n = most.min(len - done);
        let fpdu = (2 + header + n).next_multiple_of(4) + 4;
        // The RNIC keeps the content of a Read Response as it was when the FPDU was cut.
        if crc || n < SHORT || kind == Kind::Read {
            seen.direct += fpdu;
        } else {
            seen.referenced.push((at + done, n));
            seen.direct += fpdu - n;
        }
        done += n;
        if done == len {
            return seen;
        }
    }
}

/// Bytes of a Read Request: length, untagged header, request, CRC.
const READ_REQUEST: usize = 2 + 18 + 28 + 4;

fn op_of(kind: Kind, far: Sge, invalidate: Option<Stag>) -> SendOp {
    match kind {
        Kind::Send => SendOp::Send { solicited: false, invalidate: None },
        Kind::SendInvalidate => SendOp::Send { solicited: true, invalidate },
        Kind::Write => SendOp::Write { stag: far.stag, to: far.to },
        Kind::Read => SendOp::Read { stag: far.stag, to: far.to },
    }
}

/// Returns a region of the server that its peer may invalidate.
fn window(side: &Side) -> Stag {
    let access = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
    let mrs = side.registry.mrs();
    mrs.register_for_qp(side.qp.pd(), side.qp.qpn(), 0, 0, 64, access).unwrap().stag
}

#[test]
fn test_payload_without_crc_leaves_the_port_from_registered_memory_only() {
    check_pieces("refer", false);
}

#[test]
fn test_payload_with_crc_leaves_the_port_in_one_piece() {
    check_pieces("piece", true);
}

fn check_pieces(name: &str, crc: bool) {
    let mut net = Net::new(name, crc);
    for kind in KINDS {
        net.seen = Some(Default::default());
        let (mut data, mut windows) = (Vec::new(), Vec::new());
        let before = net.sides.each_ref().map(|s| s.worker.snapshot());
        for (i, len) in SIZES.into_iter().enumerate() {
            let [client, server] = &net.sides;
            let (near, far, buffer) = (i * SLOT, FAR + i * SLOT, BUFFERS + (i % 64) * SLOT);
            let source = if kind == Kind::Read { (server, far) } else { (client, near) };
            data.push(source.0.fill(source.1, i as u8, len));
            if matches!(kind, Kind::Send | Kind::SendInvalidate) {
                let sges = [server.sge(buffer, len)];
                server.qp.post_recv(&RecvWr { wr_id: i as u64, sges: &sges }).unwrap();
            }
            windows.push(window(server));
            let op = op_of(kind, server.sge(far, len), windows.last().copied());
            let sges = [client.sge(near, len)];
            let wr = SendWr {
                wr_id: i as u64,
                op,
                data: Data::Sges(&sges),
                signaled: true,
                fence: false,
            };
            client.qp.post_send(&wr).unwrap();
        }
        let (mut sent, mut received) = (0, 0);
        let arrivals = if matches!(kind, Kind::Write | Kind::Read) { 0 } else { SIZES.len() };
        net.until("the completions", |net| {
            while let Some(cqe) = net.sides[0].completion() {
                assert_eq!(cqe.wr_id, sent as u64);
                sent += 1;
            }
            while let Some(cqe) = net.sides[1].completion() {
                assert_eq!(cqe.wr_id, received as u64);
                let invalidated = (kind == Kind::SendInvalidate).then_some(windows[received]);
                assert_eq!((cqe.invalidated, cqe.solicited), (invalidated, invalidated.is_some()));
                received += 1;
            }
            sent == SIZES.len() && received == arrivals
        });
        for stag in windows {
            net.sides[1].registry.mrs().deregister(stag).unwrap();
        }

        // The wire must have carried each byte of payload once, from the place where it was posted.
        let seen = net.seen.take().unwrap();
        let (from, to) = if kind == Kind::Read { (1, 0) } else { (0, 1) };
        let mut want = Seen::default();
        for (i, len) in SIZES.into_iter().enumerate() {
            let at = if kind == Kind::Read { FAR } else { 0 } + i * SLOT;
            let one = expected(kind, at, len, crc);
            want.referenced.extend(one.referenced);
            want.direct += one.direct;
        }
        assert_eq!(seen[from].referenced, want.referenced, "{kind:?}");
        assert_eq!(seen[from].direct, want.direct, "{kind:?}");
        assert_eq!(seen[from].chained > 0, !crc && kind != Kind::Read, "{kind:?}");
        assert_eq!(seen[to].referenced, [], "{kind:?}");
        let requests = if kind == Kind::Read { SIZES.len() * READ_REQUEST } else { 0 };
        assert_eq!(seen[to].direct, requests, "{kind:?}");

        // The counters must agree.
        let after = net.sides.each_ref().map(|s| s.worker.snapshot());
        let payload: usize = SIZES.iter().sum();
        let referenced: usize = want.referenced.iter().map(|r| r.1).sum();
        let of = |f: fn(&WorkerSnapshot) -> u64, side: usize| {
            (f(&after[side]) - f(&before[side])) as usize
        };
        assert_eq!(of(|s| s.sink.tx_external_bytes, from), referenced);
        assert_eq!(of(|s| s.memory.mem_gathered_bytes, from), payload - referenced);
        assert_eq!(of(|s| s.memory.mem_placed_bytes, to), payload, "one copy on receive");
        assert_eq!(of(|s| s.memory.mem_placed_bytes, from), 0);
        assert_eq!(of(|s| s.engine.rnic.held_copied_bytes, to), 0);

        // The payload must be right.
        for (i, data) in data.iter().enumerate() {
            let at = match kind {
                Kind::Read => i * SLOT,
                Kind::Write => FAR + i * SLOT,
                _ => BUFFERS + i * SLOT,
            };
            assert_eq!(net.sides[to].content(at, data.len()), *data, "{kind:?} {i}");
        }
    }
    // Nothing refers to the memory any more after the last acknowledgment.
    net.until("the last ACK", |net| net.sides.iter().all(|s| s.references() == 0));
}

#[test]
fn test_send_with_invalidate_allocates_nothing() {
    // Enough bytes for the receiver to have looked at its window once: what it remembers of that look
    // is allocated then.
    const WARM_UP: usize = 2600;
    const COUNTED: usize = 1400;
    let mut net = Net::new("inval", true);
    let windows: Vec<_> = (0..WARM_UP + COUNTED).map(|_| window(&net.sides[1])).collect();
    let (mut posted, mut sent, mut buffers, mut received) = (0, 0, 0, 0);
    let mut before = alloc::Calls::NONE;
    while received < windows.len() || sent < windows.len() {
        let [client, server] = &net.sides;
        while buffers < received + 64 {
            let sges = [server.sge(BUFFERS + buffers % 64 * 64, 64)];
            server.qp.post_recv(&RecvWr { wr_id: buffers as u64, sges: &sges }).unwrap();
            buffers += 1;
        }
        while posted < windows.len() && posted < sent + 64 && posted < received + 32 {
            let op = SendOp::Send { solicited: posted % 2 == 0, invalidate: Some(windows[posted]) };
            let sges = [client.sge(posted % 64 * 64, posted % 65)];
            let wr = SendWr {
                wr_id: posted as u64,
                op,
                data: Data::Sges(&sges),
                signaled: true,
                fence: false,
            };
            client.qp.post_send(&wr).unwrap();
            posted += 1;
        }
        while client.completion().is_some() {
            sent += 1;
        }
        while let Some(cqe) = server.completion() {
            assert_eq!(cqe.invalidated, Some(windows[received]));
            received += 1;
            if received == WARM_UP {
                before = alloc::mine();
            }
        }
        net.poll();
    }
    let calls = alloc::mine().since(before);
    assert_eq!(calls, alloc::Calls::NONE, "in {COUNTED} Sends with Invalidate");
}
