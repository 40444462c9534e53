//! An RNIC in virtual time with a peer whose iWARP is made by hand: TCP is `heddle-tcp`'s, every
//! byte above it the test's.
#![allow(unreachable_pub, dead_code, reason = "each test file that has this module uses a part")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arrayvec::ArrayVec;
use heddle_base::{Chunks, Instant, Seed, StreamPos, Sum};
use heddle_ctl::{CtlCounters, Endpoint, EndpointConfig};
use heddle_dataplane::{
    Clock, Eal, EalConfig, Hugepages, ManualClock, Mbuf, Mempool, MempoolConfig, Port, PortConfig,
    RxQueue, TxQueue, WorkerSnapshot,
};
use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::mpa::fpdu;
use heddle_iwarp::mpa::frame::{Frame, Kind, Revision};
use heddle_iwarp::rdmap::{Control, Opcode, Terminate};
use heddle_tcp::{
    ByteQueue, Cidr, ConnEvent, ConnId, FrameOutcome, Stack, StackConfig, StackEvent, TxBody,
};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, Cqe, Device, EventQueue, ListenParams,
    Mr, Pd, Qp, QpInit, RecvWr, SendWr,
};

pub const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PORT: u16 = 7174;
pub const MS: Duration = Duration::from_millis(1);

/// DPDK, started once in this process; one test at a time.
pub fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 512, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}

/// A name for a pair of rings.
pub fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("ctl{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub fn us(port: u16) -> SocketAddr {
    (US, port).into()
}

pub fn config(ip: Ipv4Addr, clock: &Clock) -> EndpointConfig {
    EndpointConfig {
        memory: 1 << 20,
        frames: 2047,
        max_conns: 64,
        clock: Some(clock.clone()),
        ..EndpointConfig::with_seed(
            vec![Cidr::new(ip.into(), 24).unwrap()],
            Seed::from_u64(ip.octets()[3].into()),
        )
    }
}

/// A station whose frames are on a port, with a TCP of its own.
pub struct Peer {
    pub stack: Stack<ByteQueue>,
    pub events: Vec<(ConnId, StackEvent)>,
    /// Frames that come are not looked at.
    pub deaf: bool,
    got: HashMap<ConnId, Vec<u8>>,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    _port: Port,
}

impl Peer {
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut frames: ArrayVec<Mbuf, 32> = ArrayVec::new();
        let mut busy = self.rx.burst(&mut frames) > 0;
        for f in frames.drain(..) {
            let mut bytes = vec![0; f.len()];
            f.copy_at(0, &mut bytes);
            if !self.deaf {
                self.take(now, &bytes);
            }
        }
        self.stack.handle_timeouts(now);
        while let Some(mut frame) = self.stack.poll_transmit(now) {
            busy = true;
            let mut body = Vec::new();
            match &frame.body {
                TxBody::None => {}
                TxBody::Owned(b) => body.extend(b),
                TxBody::Stream { conn, pos, len, .. } => {
                    self.stack.user(*conn).unwrap().copy(*pos, *len, &mut body);
                }
            }
            frame.finish_tcp_checksum(Sum::of(&body));
            self.put(&[&frame.header[..], &body].concat());
        }
        while let Some(e) = self.stack.poll_event() {
            self.events.push(e);
        }
        busy
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        let FrameOutcome::Conn { conn, acked, payload } = self.stack.handle_frame(now, frame)
        else {
            return;
        };
        if let Some(upto) = acked {
            self.stack.user_mut(conn).unwrap().release(upto);
            self.stack.notify_send(conn);
        }
        if let Some(p) = payload {
            assert_eq!(p.pos.since(StreamPos::START), self.got(conn).len() as u64, "in order");
            let bytes = &frame[p.frame_off..p.frame_off + p.len as usize];
            self.got.entry(conn).or_default().extend(bytes);
            self.stack.accept_payload(now, conn, p.pos, p.len);
        }
    }

    /// Puts a frame on the wire.
    pub fn put(&mut self, frame: &[u8]) {
        let mut m = self.pool.alloc().unwrap();
        m.append(frame.len()).unwrap().copy_from_slice(frame);
        let mut one: ArrayVec<Mbuf, 1> = ArrayVec::new();
        one.push(m);
        assert_eq!(self.tx.burst(&mut one), 1, "the ring has room");
    }

    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.stack.user_mut(conn).unwrap().push(bytes);
        self.stack.notify_send(conn);
    }

    /// Every byte that came on a connection.
    pub fn got(&self, conn: ConnId) -> &[u8] {
        self.got.get(&conn).map_or(&[], |v| v)
    }

    pub fn says(&self, conn: ConnId, event: ConnEvent) -> bool {
        self.events.contains(&(conn, StackEvent::Conn(event)))
    }

    /// How a connection ended for it, when it did.
    pub fn end_of(&self, conn: ConnId) -> Option<ConnEvent> {
        [ConnEvent::Reset, ConnEvent::PeerClosed, ConnEvent::Refused, ConnEvent::TimedOut]
            .into_iter()
            .find(|e| self.says(conn, *e))
    }

    /// The connections that came to it.
    pub fn accepted(&self) -> Vec<ConnId> {
        let accepted = |e: &&(ConnId, StackEvent)| matches!(e.1, StackEvent::Accepted { .. });
        self.events.iter().filter(accepted).map(|e| e.0).collect()
    }
}

/// The RNIC under test and its peer.
pub struct Net {
    pub us: Endpoint,
    pub peer: Peer,
    hand: ManualClock,
}

impl Net {
    pub fn new(eal: &Eal) -> Net {
        Net::with(eal, |_| {})
    }

    pub fn with(eal: &Eal, change: impl FnOnce(&mut EndpointConfig)) -> Net {
        let (clock, hand) = Clock::manual();
        let mut config = config(US, &clock);
        change(&mut config);
        let pool = || Mempool::new(eal, &MempoolConfig::for_mtu(2047, 1500)).unwrap();
        let pools = (pool(), pool());
        let ports = (PortConfig::new(pools.0), PortConfig::new(pools.1));
        let (port, mut far) = Port::ring_pair(eal, &name(), 1024, &ports.0, &ports.1).unwrap();
        let us = Endpoint::on_port(eal, port, pools.0, &config).unwrap();
        let (rx, tx) = far.take_queues().pop().unwrap();
        let addr = Cidr::new(PEER.into(), 24).unwrap();
        let stack = StackConfig {
            max_conns: 8192,
            ..StackConfig::new(far.mac(), addr, Seed::from_u64(99))
        };
        let peer = Peer {
            stack: Stack::new(stack),
            events: Vec::new(),
            deaf: false,
            got: HashMap::new(),
            rx,
            tx,
            pool: pools.1,
            _port: far,
        };
        Net { us, peer, hand }
    }

    pub fn now(&self) -> Instant {
        self.hand.now()
    }

    /// Lets both ends do what there is to do now; time stands still.
    pub fn settle(&mut self) {
        let now = self.now();
        let mut quiet = 0;
        while quiet < 2 {
            let mut busy = self.peer.poll(now);
            // The control plane of an idle endpoint has its turn now and then only.
            for _ in 0..33 {
                busy |= self.us.poll();
            }
            quiet = if busy { 0 } else { quiet + 1 };
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        self.settle();
        while self.now() < end {
            self.hand.advance(MS);
            self.settle();
        }
    }

    /// Lets time pass until `found` finds something, for at most five minutes.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Net) -> Option<T>) -> T {
        let end = self.now() + Duration::from_secs(300);
        loop {
            self.settle();
            if let Some(t) = found(self) {
                return t;
            }
            assert!(self.now() < end, "{what} did not come");
            self.hand.advance(MS);
        }
    }

    pub fn event(&mut self, events: &EventQueue) -> CmEvent {
        self.until("an event", |_| events.poll())
    }

    /// A TCP connection of the peer to our `port`.
    pub fn tcp(&mut self, port: u16) -> ConnId {
        let now = self.now();
        let conn = self.peer.stack.connect(now, us(port), None).unwrap();
        self.until("a TCP connection", |n| n.peer.says(conn, ConnEvent::Connected).then_some(()));
        conn
    }

    pub fn ctl(&self) -> CtlCounters {
        self.us.snapshot().ctl
    }

    pub fn worker(&self) -> WorkerSnapshot {
        self.us.snapshot().worker
    }
}

/// An application's queue pair with a region, every byte of which is `FILL`.
pub struct End {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

pub const FILL: u8 = 0xee;
pub const REGION: usize = 8192;

impl End {
    pub fn new(us: &Endpoint) -> End {
        End::on(us.device(), 64)
    }

    /// One of any device, with a completion queue of this depth.
    pub fn on(device: &Device, depth: u32) -> End {
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let pd = device.alloc_pd();
        let cq = device.create_cq(depth, None).unwrap();
        let qp = device.create_qp(pd, QpInit::new(cq.clone()).depths(16, 16)).unwrap();
        End { pd, cq, qp, mr: region_on(device, pd, all) }
    }

    pub fn post_recv(&self, wr_id: u64, off: usize, len: usize) {
        let sges = [self.mr.sge(off, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    pub fn post_send(&self, wr_id: u64, off: usize, len: usize) {
        let sges = [self.mr.sge(off, len)];
        self.qp.post_send(&SendWr::send(wr_id, &sges)).unwrap();
    }

    pub fn completions(&self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    pub fn connect(&self, us: &Endpoint, port: u16, events: &EventQueue) -> CmId {
        self.connect_with(us, port, events, |_| {})
    }

    pub fn connect_with(
        &self,
        us: &Endpoint,
        port: u16,
        events: &EventQueue,
        change: impl FnOnce(&mut ConnectParams),
    ) -> CmId {
        let mut params = ConnectParams::new(self.qp.clone());
        change(&mut params);
        us.device().connect((PEER, port).into(), params, events).unwrap()
    }

    /// Nothing was written outside of `written`.
    pub fn assert_untouched(&self, what: &str) {
        assert_untouched(&self.mr, what);
    }
}

/// A region filled with `FILL`.
pub fn region(us: &Endpoint, pd: Pd, access: Access) -> Mr {
    region_on(us.device(), pd, access)
}

pub fn region_on(device: &Device, pd: Pd, access: Access) -> Mr {
    let mr = device.alloc_mr(pd, REGION, access).unwrap();
    mr.write(0, &[FILL; REGION]);
    mr
}

pub fn assert_untouched(mr: &Mr, what: &str) {
    let mut all = vec![0; REGION];
    mr.read(0, &mut all);
    assert!(all.iter().all(|b| *b == FILL), "{what}: memory was written");
}

/// An MPA Request of revision 1 with CRC.
pub fn request(private_data: &[u8]) -> Vec<u8> {
    frame(Kind::Request, false, private_data)
}

/// An MPA Reply of revision 1 with CRC.
pub fn reply(reject: bool, private_data: &[u8]) -> Vec<u8> {
    frame(Kind::Reply, reject, private_data)
}

fn frame(kind: Kind, reject: bool, private_data: &[u8]) -> Vec<u8> {
    Frame {
        kind,
        markers: false,
        crc: true,
        reject,
        revision: Revision::V1,
        enhanced: None,
        private_data,
    }
    .emit()
    .unwrap()
}

/// An FPDU with its CRC.
pub fn fpdu(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; header.len()];
    header.emit(&mut ulpdu);
    ulpdu.extend(payload);
    let mut out = Vec::new();
    fpdu::append(&ulpdu, true, &mut out).unwrap();
    out
}

/// The header of a Send of one segment.
pub fn send_header(msn: u32) -> DdpHeader {
    untagged(Opcode::SEND, Qn::SEND, msn, 0)
}

pub fn untagged(opcode: Opcode, qn: Qn, msn: u32, mo: u32) -> DdpHeader {
    let rsvd_ulp = Control::new(opcode).to_byte();
    DdpHeader::Untagged { last: true, rsvd_ulp, rsvd_ulp32: 0, qn, msn: Msn(msn), mo }
}

/// The FPDUs in `stream`, whose CRCs must be right: header and payload of each.
pub fn fpdus(mut stream: &[u8]) -> Vec<(DdpHeader, Vec<u8>)> {
    let mut all = Vec::new();
    while stream.len() >= 2 {
        let ulpdu = u16::from_be_bytes([stream[0], stream[1]]);
        let len = fpdu::fpdu_len(ulpdu);
        if stream.len() < len {
            break;
        }
        let (body, crc) = stream[..len].split_at(len - 4);
        assert_eq!(fpdu::crc_to_wire(fpdu::crc(0, body)), crc, "CRC");
        let (header, at) = DdpHeader::parse(&body[2..2 + usize::from(ulpdu)]).unwrap();
        all.push((header, body[2 + at..2 + usize::from(ulpdu)].to_vec()));
        stream = &stream[len..];
    }
    assert!(stream.is_empty(), "whole FPDUs");
    all
}

/// The Terminate that ends a stream of FPDUs, and how many came before it.
pub fn terminate_in(stream: &[u8]) -> Option<(usize, Terminate)> {
    let all = fpdus(stream);
    let (DdpHeader::Untagged { qn: Qn::TERMINATE, .. }, body) = all.last()? else { return None };
    Some((all.len() - 1, Terminate::parse(body).unwrap()))
}

/// Listens on `port`.
pub fn listen(net: &mut Net, port: u16, change: impl FnOnce(&mut ListenParams)) -> EventQueue {
    let device = net.us.device().clone();
    listen_on(net, &device, port, change)
}

/// The same on any device.
pub fn listen_on(
    net: &mut Net,
    device: &Device,
    port: u16,
    change: impl FnOnce(&mut ListenParams),
) -> EventQueue {
    let mut params = ListenParams::default();
    change(&mut params);
    let events = EventQueue::new(None);
    let id = device.listen(us(port), params, &events).unwrap();
    assert_eq!(net.event(&events), CmEvent::Listening { id });
    events
}

/// A connection of the peer to us, both ends of which keep to the rules.
pub struct Honest {
    pub conn: ConnId,
    pub id: CmId,
    pub end: End,
    /// Bytes of the start-up in what the peer got.
    pub startup: usize,
    rounds: u32,
    /// Messages that came beside those of the rounds.
    received: u32,
}

impl Honest {
    /// Connects to a listener whose events are `events`.
    pub fn new(net: &mut Net, port: u16, events: &EventQueue) -> Honest {
        let end = End::new(&net.us);
        Honest::with(net, port, events, end)
    }

    /// The same with this queue pair on our side.
    pub fn with(net: &mut Net, port: u16, events: &EventQueue, end: End) -> Honest {
        let device = net.us.device().clone();
        Honest::on(net, &device, port, events, end)
    }

    /// The same with a queue pair and a listener of this device.
    pub fn on(net: &mut Net, device: &Device, port: u16, events: &EventQueue, end: End) -> Honest {
        let conn = net.tcp(port);
        net.peer.send(conn, &request(b"hello"));
        let CmEvent::ConnectRequest { id, private_data, .. } = net.event(events) else {
            panic!("a request");
        };
        assert_eq!(private_data, b"hello");
        device.accept(id, AcceptParams::new(end.qp.clone())).unwrap();
        assert!(matches!(net.event(events), CmEvent::Established { .. }));
        net.settle();
        let startup = reply(false, b"").len();
        assert_eq!(net.peer.got(conn), reply(false, b""));
        Honest { conn, id, end, startup, rounds: 0, received: 0 }
    }

    /// The peer has sent so many messages without [`exchange`](Honest::exchange).
    pub fn had(&mut self, messages: u32) {
        self.received += messages;
    }

    /// One Send each way, with every byte compared.
    pub fn exchange(&mut self, net: &mut Net) {
        self.rounds += 1;
        let n = self.rounds;
        let data: Vec<u8> = (0..100 + n % 50).map(|i| (i * 7 + n) as u8).collect();
        self.end.post_recv(1, 0, 256);
        net.peer.send(self.conn, &fpdu(send_header(n + self.received), &data));
        net.settle();
        let [cqe] = self.end.completions()[..] else { panic!("a receive, round {n}") };
        assert!(cqe.status.is_success() && cqe.len as usize == data.len(), "{cqe:?}");
        let mut got = vec![0; data.len()];
        self.end.mr.read(0, &mut got);
        assert!(got == data);
        self.end.post_send(2, 0, data.len());
        net.settle();
        // The acknowledgment may be a delayed one.
        net.pass(50 * MS);
        let [cqe] = self.end.completions()[..] else { panic!("a send, round {n}") };
        assert!(cqe.status.is_success(), "{cqe:?}");
        let all = fpdus(&net.peer.got(self.conn)[self.startup..]);
        assert_eq!(all.len(), n as usize);
        assert!(all[n as usize - 1].1 == data);
    }
}
