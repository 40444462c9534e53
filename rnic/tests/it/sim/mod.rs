//! Two RNICs in virtual time, joined by a link that loses, duplicates and reorders frames.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_base::{Chunks, Instant, Random, Seed};
use heddle_iwarp::testing::TestMemory;
use heddle_iwarp::{Access, Cqe, MemRange, Memory, MrAttr, MrTable, Pd, QpConfig, Role};
use heddle_rnic::{Event, FpduMode, Offload, Rnic, RnicConfig, RnicFrame, TxSink};
use heddle_tcp::{Cidr, ConnId, RxFrame, StackConfig};

/// A received frame.
#[derive(Debug)]
pub struct Frame(pub Vec<u8>);

impl Chunks for Frame {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        // Cut where nothing is aligned, so that every reader meets pieces.
        let end = if off < 301 { 301.min(self.0.len()) } else { self.0.len() };
        self.0.get(off..end).unwrap_or(&[])
    }
}

impl RxFrame for Frame {}

impl RnicFrame for Frame {}

/// Collects frames as bytes.
pub struct VecSink<'a> {
    pub mem: &'a TestMemory,
    pub frame: Vec<u8>,
    pub done: Option<Vec<u8>>,
    /// Whether there is a buffer that takes a frame as a whole.
    pub has_buffer: bool,
}

impl TxSink for VecSink<'_> {
    fn has_room(&mut self) -> bool {
        true
    }

    fn begin(&mut self, len: usize) {
        self.frame = Vec::with_capacity(len);
    }

    fn whole(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(if self.has_buffer { len } else { 0 }, 0xdd);
        self.has_buffer.then_some(self.frame.as_mut_slice())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.frame.extend_from_slice(bytes);
    }

    fn memory(&mut self, range: MemRange) {
        let at = self.frame.len();
        self.frame.resize(at + range.len() as usize, 0);
        self.mem.gather(range, &mut self.frame[at..]);
    }

    fn end(&mut self, offload: Offload) {
        assert_eq!(
            offload,
            Offload {
                l2_len: offload.l2_len,
                l3_len: offload.l3_len,
                l4_len: offload.l4_len,
                ..Offload::default()
            }
        );
        self.done = Some(std::mem::take(&mut self.frame));
    }
}

/// One end.
pub struct Host {
    pub rnic: Rnic<Frame>,
    pub mem: TestMemory,
    pub mrs: Arc<MrTable>,
    pub events: Vec<Event>,
    pub completions: Vec<(ConnId, Cqe)>,
}

/// What the link does to frames.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    pub delay: Duration,
    /// Time a full frame takes on the wire.
    pub frame_time: Duration,
    pub loss: f64,
    pub reorder: f64,
    pub duplicate: f64,
    /// One bit behind the Ethernet header is another.
    pub corrupt: f64,
    /// One bit of a TCP payload is another, and the checksum says so too.
    pub damage: f64,
    pub mtu: u16,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            delay: Duration::from_micros(20),
            frame_time: Duration::from_nanos(1200),
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            damage: 0.0,
            mtu: 1500,
        }
    }
}

/// Is shown the sender and the octets of a frame.
pub type Tap = Box<dyn FnMut(usize, &[u8])>;

/// Two hosts and what is between them.
pub struct Pair {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub link: LinkConfig,
    random: Random,
    /// Frames on their way, by arrival.
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    wire_free: [Instant; 2],
    sent: u64,
    pub frames: [u64; 2],
    pub lost: u64,
    /// Sides whose frames are lost, all of them.
    pub cut: [bool; 2],
    /// Ports of connections of which every frame is lost.
    pub blocked: Vec<u16>,
    pub corrupted: u64,
    /// Ports of connections that had a payload damaged.
    pub damaged: Vec<u16>,
    /// How often a port has no buffer for a whole frame.
    pub no_buffer: f64,
    /// Looks at each frame that a side sends, lost or not.
    pub tap: Option<Tap>,
}

pub const PD: Pd = Pd(1);
pub const PORT: u16 = 7174;

impl Pair {
    pub fn new(seed: u64, link: LinkConfig, memory: usize) -> Pair {
        Pair::with_snapshots(seed, link, memory, 1 << 20)
    }

    /// As [`Pair::new`], with so much room for Read Responses that are not acknowledged.
    pub fn with_snapshots(
        seed: u64,
        link: LinkConfig,
        memory: usize,
        max_snapshot_bytes: usize,
    ) -> Pair {
        let host = |n: u8| {
            let seed = Seed::from_u64(seed.wrapping_mul(2).wrapping_add(u64::from(n)));
            let addr = Cidr::new([10, 0, 0, n].into(), 24).unwrap();
            let mrs = Arc::new(MrTable::new(&seed, 64));
            let stack =
                StackConfig { mtu: link.mtu, ..StackConfig::new([2, 0, 0, 0, 0, n], addr, seed) };
            let config = RnicConfig { stack, max_held_frames: 4096, max_snapshot_bytes };
            Host {
                rnic: Rnic::new(config, mrs.clone()),
                mem: TestMemory::new(memory, 0xee),
                mrs,
                events: Vec::new(),
                completions: Vec::new(),
            }
        };
        Pair {
            now: Instant::from_millis(1000),
            hosts: [host(1), host(2)],
            link,
            random: Random::new(&Seed::from_u64(seed ^ 0x5eed)),
            wire: BTreeMap::new(),
            wire_free: [Instant::ZERO; 2],
            sent: 0,
            frames: [0; 2],
            lost: 0,
            cut: [false; 2],
            blocked: Vec::new(),
            corrupted: 0,
            damaged: Vec::new(),
            no_buffer: 0.0,
            tap: None,
        }
    }

    /// Registers `[addr, addr + len)` of a host's memory; its tagged offsets start at `addr` plus
    /// a number that is not 0.
    pub fn register(&self, host: usize, addr: usize, len: usize, access: Access) -> MrAttr {
        let h = &self.hosts[host];
        h.mrs.register(PD, addr as u64, addr as u64 + TO_BASE, len as u64, access).unwrap()
    }

    /// Connects host 0 to host 1 and puts both ends into FPDU mode, without an MPA exchange.
    pub fn connect(&mut self, qp: &QpConfig) -> [ConnId; 2] {
        self.connect_to(PORT, [qp, qp])
    }

    /// As [`Pair::connect`], to a port nobody else uses, with a configuration for each end.
    pub fn connect_to(&mut self, port: u16, qps: [&QpConfig; 2]) -> [ConnId; 2] {
        let now = self.now;
        self.hosts[1].rnic.listen(None, port, 8).unwrap();
        let a = self.hosts[0].rnic.connect(now, ([10, 0, 0, 2], port).into()).unwrap();
        let (mut up, mut b) = (false, None);
        for _ in 0..100_000 {
            self.step();
            up |= self.hosts[0].events.drain(..).any(|e| matches!(e, Event::Connected { .. }));
            for e in self.hosts[1].events.drain(..) {
                if let Event::Accepted { conn, .. } = e {
                    b = Some(conn);
                }
            }
            if let (true, Some(b)) = (up, b) {
                for (host, conn, role) in [(0, a, Role::Initiator), (1, b, Role::Responder)] {
                    let qp = QpConfig { role, ..qps[host].clone() };
                    let h = &mut self.hosts[host];
                    h.rnic
                        .enter_fpdu_mode(conn, FpduMode { startup_len: 0, reply: Vec::new(), qp })
                        .unwrap();
                    h.rnic.start(&h.mem, conn);
                }
                return [a, b];
            }
        }
        panic!("no connection");
    }

    /// Sends everything there is to send, then jumps to the next thing that happens. False when
    /// nothing ever will.
    pub fn step(&mut self) -> bool {
        for side in 0..2 {
            self.transmit(side);
        }
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            self.frames[to] += 1;
            let h = &mut self.hosts[to];
            h.rnic.handle_frame(self.now, &h.mem, Frame(frame));
            Self::collect(h);
        }
        for h in &mut self.hosts {
            // As a worker asks.
            if h.rnic.is_due(self.now) {
                h.rnic.handle_timeouts(self.now);
            }
            Self::collect(h);
        }
        true
    }

    fn collect(h: &mut Host) {
        h.events.extend(std::iter::from_fn(|| h.rnic.poll_event()));
        h.completions.extend(std::iter::from_fn(|| h.rnic.poll_completion()));
    }

    /// When something happens next, if nothing is sent before.
    pub fn next(&self) -> Option<Instant> {
        let next_frame = self.wire.keys().next().map(|k| k.0);
        let timers = self.hosts.iter().filter_map(|h| h.rnic.poll_timeout());
        next_frame.into_iter().chain(timers).min()
    }

    /// Takes in what orders have brought about.
    pub fn collect_all(&mut self) {
        self.hosts.iter_mut().for_each(Self::collect);
    }

    fn transmit(&mut self, side: usize) {
        loop {
            let h = &mut self.hosts[side];
            let has_buffer = !self.random.chance(self.no_buffer);
            let mut sink = VecSink { mem: &h.mem, frame: Vec::new(), done: None, has_buffer };
            if !h.rnic.poll_transmit(self.now, &h.mem, &mut sink) {
                break;
            }
            let frame = sink.done.expect("a frame that was begun is ended");
            assert!(frame.len() <= usize::from(self.link.mtu) + 14);
            self.send(side, frame);
            Self::collect(&mut self.hosts[side]);
        }
    }

    /// Puts a frame of `side` on the wire.
    pub fn send(&mut self, side: usize, mut frame: Vec<u8>) {
        let start = self.now.max(self.wire_free[side]);
        self.wire_free[side] = start + self.link.frame_time;
        if let Some(tap) = &mut self.tap {
            tap(side, &frame);
        }
        let blocked = self.blocked.iter().any(|port| has_port(&frame, *port));
        if self.cut[side] || blocked || self.random.chance(self.link.loss) {
            self.lost += 1;
            return;
        }
        // ARP has no checksum.
        if self.random.chance(self.link.corrupt) && frame[12..14] == [8, 0] {
            let bit = self.random.below((frame.len() as u64 - 14) * 8) as usize;
            frame[14 + bit / 8] ^= 1 << (bit % 8);
            self.corrupted += 1;
        }
        if self.random.chance(self.link.damage)
            && let Some(body) = tcp_payload(&frame)
        {
            let bit = self.random.below(body.len() as u64 * 8) as usize;
            frame[body.start + bit / 8] ^= 1 << (bit % 8);
            mend_checksum(&mut frame);
            let end = if side == 1 { 34 } else { 36 };
            self.damaged.push(u16::from_be_bytes([frame[end], frame[end + 1]]));
        }
        let mut at = self.wire_free[side] + self.link.delay;
        if self.random.chance(self.link.reorder) {
            at = at + self.link.frame_time * (1 + self.random.below(12) as u32);
        }
        if self.random.chance(self.link.duplicate) {
            self.sent += 1;
            self.wire.insert((at + self.link.frame_time * 3, self.sent), (1 - side, frame.clone()));
        }
        self.sent += 1;
        self.wire.insert((at, self.sent), (1 - side, frame));
    }

    /// What the RNICs count of references to memory is what their send queues hold.
    pub fn check_pins(&self) {
        for h in &self.hosts {
            let pins = h.rnic.pins();
            for mr in 0..h.mrs.capacity() as u32 {
                assert_eq!(pins.count(mr), h.rnic.count_references(mr), "region {mr}");
            }
        }
    }

    /// References to memory in all send queues of a host.
    pub fn pinned(&self, host: usize) -> u32 {
        let pins = self.hosts[host].rnic.pins();
        (0..self.hosts[host].mrs.capacity() as u32).map(|mr| pins.count(mr)).sum()
    }

    /// Steps until `done`, for at most `limit` of virtual time.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            assert!(self.now < end, "not done after {limit:?} of virtual time");
            assert!(self.step(), "nothing left that could happen");
        }
    }
}

/// Whether a TCP segment (IPv4 without options, as the stack makes it) goes to or comes from a port.
fn has_port(frame: &[u8], port: u16) -> bool {
    let port = port.to_be_bytes();
    frame.len() >= 38 && frame[23] == 6 && (frame[34..36] == port || frame[36..38] == port)
}

/// Where the payload of a TCP segment is, if it has some.
fn tcp_payload(frame: &[u8]) -> Option<std::ops::Range<usize>> {
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != 6 {
        return None;
    }
    let from = 34 + 4 * usize::from(frame[46] >> 4);
    let upto = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    (from < upto).then_some(from..upto)
}

/// Computes the TCP checksum of a segment anew (RFC 9293 section 3.1).
fn mend_checksum(frame: &mut [u8]) {
    let upto = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    frame[50..52].fill(0);
    let words = frame[26..upto].chunks(2);
    let words = words.map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum::<u64>() + 6 + (upto as u64 - 34);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[50..52].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// What tagged offsets are ahead of addresses.
pub const TO_BASE: u64 = 0x7000_0000_0000;

/// Byte `i` of the payload that `seed` stands for.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}
