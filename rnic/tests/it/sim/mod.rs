//! Two RNICs in virtual time, joined by a link that loses, duplicates and reorders frames.
//!
//! Each RNIC has an owner that drives it as a worker of the product does: turn by turn, with the
//! worker's questions and limits. In a turn, the owner takes frames from the port, then the posts
//! of applications (by the worker's own [`take_turn`]), and handles the frames after that; it runs
//! timers if `is_due` says so, delivers, and sends. With a [`Pace`] of its own a turn takes time,
//! in which frames and posts gather, and the owner takes another turn only if there is something to
//! do: an owner that is not woken sleeps until `poll_timeout`. If a timer is due and no turn
//! handles it, the test fails.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use frames::{ETHERNET, has_port, is_arp, mark, mend_checksum, tcp_at, tcp_payload};
use heddle_base::{Chunks, Fetch, Instant, Random, Seed};
use heddle_engine::{Engine, POST_TURN, Retired, Step, Untaken, take_turn};
use heddle_iwarp::{QpConfig, Role};
use heddle_mr::{MrAttr, MrTable};
use heddle_rnic::{Event, FpduMode, Rnic, RnicConfig, RnicFrame};
use heddle_tcp::{Addressing, Cidr, PeerLimit, RxFrame, StackConfig};
use heddle_types::{Access, CloseReason, ConnId, Cqe, Pd, PostError, RecvWr, SendWr};
use memory::HostMemory;
pub use port::VecSink;
use rings::{NotTaken, Rings};
use router::router_report;

mod frames;
pub mod memory;
mod port;
mod rings;
mod router;

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

/// An end of the link: an RNIC, its memory and its owner.
pub struct Host {
    pub rnic: Rnic<Frame>,
    pub mem: HostMemory,
    pub mrs: Arc<MrTable>,
    /// The protection domain of all its objects.
    pub pd: Pd,
    pub events: Vec<Event>,
    pub completions: Vec<(ConnId, Cqe)>,
    /// Frames at the port.
    inbox: VecDeque<Frame>,
    /// Posts of applications, and the queue pairs that the next turn looks at.
    rings: BTreeMap<ConnId, Rings>,
    ready: VecDeque<ConnId>,
    /// The next turn is not before this time.
    awake: Instant,
    /// The last turn found something to do.
    busy: bool,
}

/// How an owner takes its turns.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time from one turn to the next; at once if 0.
    pub turn: Duration,
    /// Requests of a queue pair that one turn takes, frames that it takes, and frames that it
    /// sends.
    pub posts: usize,
    pub frames: usize,
    /// The owner looks ahead at each burst, as a worker with many connections does.
    pub looks: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { turn: Duration::ZERO, posts: POST_TURN, frames: 64, looks: false }
    }
}

/// Takes the names of memory and fetches nothing.
#[derive(Clone, Copy)]
struct Nowhere;

impl Fetch for Nowhere {
    fn bytes(self, at: *const u8, _len: usize) {
        assert!(!at.is_null());
    }
}

/// Takes all steps of a look ahead at a burst.
fn look_ahead(rnic: &mut Rnic<Frame>, frames: &[Option<Frame>]) {
    rnic.look_ahead(frames, Nowhere);
    for step in Step::ALL {
        for at in 0..frames.len() {
            if let Some(index) = rnic.seen_ahead(at) {
                rnic.fetch(index, step, Nowhere);
            }
        }
    }
}

impl Host {
    /// Posts as an application does: to a queue that the RNIC's owner takes from in its turn.
    pub fn post_send(&mut self, conn: ConnId, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post(conn, |rings| rings.post_send(wr))
    }

    /// Like [`Host::post_send`], but to the receive queue.
    pub fn post_recv(&mut self, conn: ConnId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post(conn, |rings| rings.post_recv(wr))
    }

    fn post(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut Rings) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let rings = self.rings.get_mut(&conn).ok_or(PostError::Ended)?;
        let posted = f(rings);
        // An application rings the doorbell for a full queue as well: see `Qp::post_send`.
        if !std::mem::replace(&mut rings.rung, true) {
            self.ready.push_back(conn);
        }
        posted
    }

    /// Ends a connection in order: posted requests go first, as with a worker.
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) {
        while self.take_from(conn, POST_TURN) {}
        self.rnic.disconnect(now, conn);
    }

    /// Ends the start-up of a connection: the first receives are in place before its first bytes.
    fn enter(&mut self, conn: ConnId, qp: QpConfig) {
        self.rings.insert(conn, Rings::new(&qp));
        let mode = FpduMode { startup_len: 0, reply: Vec::new(), qp };
        self.rnic.enter_fpdu_mode(conn, mode).unwrap();
        self.rnic.start(&self.mem, conn);
    }

    /// Takes a turn's posts of a queue pair; returns true if there may be more.
    fn take_from(&mut self, conn: ConnId, most: usize) -> bool {
        let Some(rings) = self.rings.get_mut(&conn) else { return false };
        let taken = self.rnic.post_with(conn, |qp| {
            rings.retire(Retired { sq: qp.sq_retired(), rq: qp.rq_retired() });
            take_turn(qp, rings, most)
        });
        matches!(taken, Ok(Ok(true)))
    }

    fn take_posts(&mut self, most: usize) -> bool {
        let rung = self.ready.len();
        for _ in 0..rung {
            let Some(conn) = self.ready.pop_front() else { break };
            let more = self.take_from(conn, most);
            if let Some(rings) = self.rings.get_mut(&conn) {
                rings.rung = more;
                if more {
                    self.ready.push_back(conn);
                }
            }
        }
        rung > 0
    }

    /// Does the first part of a turn, up to the frames to send. Returns true if there was something
    /// to do.
    fn take(&mut self, now: Instant, pace: Pace) -> bool {
        let taken = self.inbox.drain(..self.inbox.len().min(pace.frames));
        let mut frames: Vec<_> = taken.map(Some).collect();
        let mut busy = !frames.is_empty();
        busy |= self.take_posts(pace.posts);
        if !busy && self.rnic.is_idle(now) {
            return false;
        }
        if pace.looks {
            look_ahead(&mut self.rnic, &frames);
        }
        let Host { rnic, mem, rings, .. } = self;
        let posted = NotTaken::new(rings);
        let posted = Untaken::new(&posted);
        rnic.handle_frames(now, mem, &posted, &mut frames);
        if self.rnic.is_due(now) {
            self.rnic.handle_timeouts(now);
            busy = true;
        }
        if self.rnic.has_handed() {
            let posted = NotTaken::new(&mut self.rings);
            self.rnic.hand_over_with(now, &self.mem, &Untaken::new(&posted));
            busy = true;
        }
        busy | self.deliver()
    }

    /// Gives completions and events to their applications; returns true if there were any.
    fn deliver(&mut self) -> bool {
        let mut busy = self.complete();
        while let Some(event) = self.rnic.poll_event() {
            busy = true;
            if let Event::Closed { conn, .. } = event {
                self.complete();
                if let Some(rings) = self.rings.remove(&conn) {
                    self.completions.extend(rings.flush().into_iter().map(|cqe| (conn, cqe)));
                }
            }
            self.events.push(event);
        }
        busy
    }

    fn complete(&mut self) -> bool {
        let mut busy = false;
        while self.rnic.has_completions() {
            let Host { rnic, rings, completions, .. } = self;
            let taken = rnic.take_completions(|conn, all, retired| {
                if let (Some(rings), Some(retired)) = (rings.get_mut(&conn), retired) {
                    rings.retire(retired);
                }
                completions.extend(all.iter().map(|cqe| (conn, *cqe)));
            });
            if taken.is_none() {
                break;
            }
            busy = true;
        }
        busy
    }

    /// Returns true if the owner takes a turn without waiting for a frame or a timer.
    fn is_awake(&self, now: Instant) -> bool {
        self.busy || !self.inbox.is_empty() || !self.ready.is_empty() || !self.rnic.is_idle(now)
    }
}

/// How the link treats frames.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    pub delay: Duration,
    /// Time that a full frame takes on the wire.
    pub frame_time: Duration,
    pub loss: f64,
    pub reorder: f64,
    pub duplicate: f64,
    /// How often one bit after the Ethernet header changes.
    pub corrupt: f64,
    /// How often a switch marks a packet of a transport that takes part in ECN.
    pub mark: f64,
    /// How often one bit of a TCP payload changes, and the checksum with it.
    pub damage: f64,
    pub mtu: u16,
    /// The most segments of a train that the ports cut; 1 if they cut none and compute nothing.
    pub cuts: u32,
    /// Whether the hosts have addresses of IPv6, and no others.
    pub ipv6: bool,
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
            mark: 0.0,
            damage: 0.0,
            mtu: 1500,
            cuts: 1,
            ipv6: false,
        }
    }
}

/// A function that sees the sender and the bytes of each frame.
pub type Tap = Box<dyn FnMut(usize, &[u8])>;

/// Two hosts, and the link between them.
pub struct Pair {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub link: LinkConfig,
    random: Random,
    /// The random source of marks alone, so that a link without marks behaves as it always has.
    marks: Random,
    /// Packets that a switch has marked.
    pub marked: u64,
    /// Frames on their way, by arrival.
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    wire_free: [Instant; 2],
    sent: u64,
    pub frames: [u64; 2],
    pub lost: u64,
    /// Sides whose frames are all lost.
    pub cut: [bool; 2],
    /// Sides whose segments report a shut window, whatever their TCP says.
    pub shut: [bool; 2],
    /// Ports of connections of which every frame is lost.
    pub blocked: Vec<u16>,
    /// The largest IP datagram that a router between the hosts forwards.
    pub path_mtu: Option<u16>,
    /// The router reports the datagrams that it does not forward.
    pub told: bool,
    pub corrupted: u64,
    /// Ports of connections that had a payload damaged.
    pub damaged: Vec<u16>,
    /// How often a port has no buffer for a whole frame.
    pub no_buffer: f64,
    /// Sees each frame that a side sends, lost or not.
    pub tap: Option<Tap>,
    /// How the owners take their turns.
    pub pace: [Pace; 2],
    /// Ports of connections of which the next frame of side 0 with a payload is lost.
    pub lose_first: Vec<u16>,
    /// Steps in a row in which there was something to do and no turn found it.
    stalled: u32,
    /// If both hosts share the first host's RNIC, the connections of the second host.
    one: Option<BTreeSet<ConnId>>,
}

pub const PD: Pd = Pd(1);
pub const PORT: u16 = 7174;
/// How long a client waits for its connection.
const PATIENCE: Duration = Duration::from_secs(60);

impl Pair {
    pub fn new(seed: u64, link: LinkConfig, memory: usize) -> Pair {
        Pair::with_snapshots(seed, link, memory, 1 << 20)
    }

    /// Like [`Pair::new`], but with `max_snapshot_bytes` of room for unacknowledged Read Responses.
    pub fn with_snapshots(
        seed: u64,
        link: LinkConfig,
        memory: usize,
        max_snapshot_bytes: usize,
    ) -> Pair {
        Pair::with_config(seed, link, memory, |c| c.max_snapshot_bytes = max_snapshot_bytes)
    }

    /// Like [`Pair::new`], but with another configuration of both RNICs.
    pub fn with_config(
        seed: u64,
        link: LinkConfig,
        memory: usize,
        change: impl Fn(&mut RnicConfig),
    ) -> Pair {
        let mems = [0, 1].map(|_| HostMemory::of(1, memory).remove(0));
        let mrs = [1, 2].map(|n| Arc::new(MrTable::new(&host_seed(seed, n), 64)));
        let net = |n: u8| Addressing::new(vec![link.addr(n)], Vec::new()).unwrap();
        Pair::of(seed, link, (mems, mrs, [PD; 2]), net, change)
    }

    /// Returns two applications of one RNIC, whose frames come back to it: the hosts have their own
    /// memory and protection domain, and share all else, which belongs to the first host.
    pub fn inside(
        seed: u64,
        link: LinkConfig,
        memory: usize,
        change: impl Fn(&mut RnicConfig),
    ) -> Pair {
        let [a, b]: [HostMemory; 2] = HostMemory::of(2, memory).try_into().unwrap();
        let mrs = Arc::new(MrTable::new(&host_seed(seed, 1), 128));
        let net = |n: u8| Addressing::inside([link.addr(n).addr()], false);
        let pds = [PD, Pd(PD.0 + 1)];
        let pair = Pair::of(seed, link, ([a, b], [mrs.clone(), mrs], pds), net, change);
        Pair { one: Some(BTreeSet::new()), ..pair }
    }

    fn of(
        seed: u64,
        link: LinkConfig,
        (mems, mrs, pds): ([HostMemory; 2], [Arc<MrTable>; 2], [Pd; 2]),
        net: impl Fn(u8) -> Addressing,
        change: impl Fn(&mut RnicConfig),
    ) -> Pair {
        let host = |i: usize| {
            let n = i as u8 + 1;
            let stack = StackConfig {
                net: net(n),
                mtu: link.mtu,
                // The stack has a single peer, for which a share would be half of all connections.
                peer_conns: PeerLimit::Unlimited,
                tx_tcp_csum: link.cuts > 1,
                tx_ip_csum: link.cuts > 1,
                ..StackConfig::new([2, 0, 0, 0, 0, n], link.addr(n), host_seed(seed, n))
            };
            let mut config = RnicConfig::new(stack, 4096, 1 << 20);
            change(&mut config);
            Host {
                rnic: Rnic::new(config, mrs[i].clone()),
                mem: mems[i].clone(),
                mrs: mrs[i].clone(),
                pd: pds[i],
                events: Vec::new(),
                completions: Vec::new(),
                inbox: VecDeque::new(),
                rings: BTreeMap::new(),
                ready: VecDeque::new(),
                awake: Instant::ZERO,
                busy: false,
            }
        };
        Pair {
            now: Instant::from_millis(1000),
            hosts: [host(0), host(1)],
            link,
            random: Random::new(&Seed::from_u64(seed ^ 0x5eed)),
            marks: Random::new(&Seed::from_u64(seed ^ 0xec)),
            marked: 0,
            wire: BTreeMap::new(),
            wire_free: [Instant::ZERO; 2],
            sent: 0,
            frames: [0; 2],
            lost: 0,
            cut: [false; 2],
            shut: [false; 2],
            blocked: Vec::new(),
            path_mtu: None,
            told: false,
            corrupted: 0,
            damaged: Vec::new(),
            no_buffer: 0.0,
            tap: None,
            pace: [Pace::default(); 2],
            lose_first: Vec::new(),
            stalled: 0,
            one: None,
        }
    }

    /// Registers `[addr, addr + len)` of a host's memory; its tagged offsets start at `addr` plus a
    /// number that is not 0.
    pub fn register(&self, host: usize, addr: usize, len: usize, access: Access) -> MrAttr {
        let h = &self.hosts[host];
        h.mrs
            .register(h.pd, (h.mem.base + addr) as u64, addr as u64 + TO_BASE, len as u64, access)
            .unwrap()
    }

    /// Connects host 0 to host 1 and puts both ends into FPDU mode, without an MPA exchange.
    pub fn connect(&mut self, qp: &QpConfig) -> [ConnId; 2] {
        self.connect_to(PORT, [qp, qp])
    }

    /// Like [`Pair::connect`], but to a port without other users, with a configuration for each
    /// end.
    pub fn connect_to(&mut self, port: u16, qps: [&QpConfig; 2]) -> [ConnId; 2] {
        let ids = self.establish(port);
        self.enter(ids, qps);
        ids
    }

    /// Returns the RNIC of a host, with its owner.
    pub fn driver(&mut self, host: usize) -> &mut Host {
        let at = if self.one.is_some() { 0 } else { host };
        &mut self.hosts[at]
    }

    /// Returns the RNIC of a host.
    pub fn rnic(&self, host: usize) -> &Rnic<Frame> {
        &self.hosts[if self.one.is_some() { 0 } else { host }].rnic
    }

    /// Gives each application its own events, if one RNIC has reported those of both.
    fn sort_out(&mut self) {
        let Some(seconds) = &mut self.one else { return };
        let [a, b] = &mut self.hosts;
        for event in std::mem::take(&mut a.events) {
            let (Event::Accepted { conn, .. }
            | Event::Connected { conn, .. }
            | Event::StartupBytes { conn, .. }
            | Event::Qp { conn, .. }
            | Event::PeerTerminate { conn, .. }
            | Event::PeerClosed { conn }
            | Event::Closed { conn, .. }) = &event;
            if let Event::Accepted { .. } = event {
                seconds.insert(*conn);
            }
            let to = if seconds.contains(conn) { &mut *b } else { &mut *a };
            to.events.push(event);
        }
        for (conn, cqe) in std::mem::take(&mut a.completions) {
            let to = if seconds.contains(&conn) { &mut *b } else { &mut *a };
            to.completions.push((conn, cqe));
        }
    }

    /// Makes a TCP connection from host 0 to a port of host 1 without other users.
    pub fn establish(&mut self, port: u16) -> [ConnId; 2] {
        let now = self.now;
        let server = if self.one.is_some() { 1 } else { 2 };
        self.driver(1).rnic.listen(None, port, 8).unwrap();
        let to = (self.link.addr(server).addr(), port).into();
        let mut a = self.hosts[0].rnic.connect(now, to).unwrap();
        let (mut up, mut b) = (false, None);
        let mut patience = now + PATIENCE;
        for _ in 0..100_000 {
            self.step();
            // If all SYN-ACKs or their ACKs are lost, the server gives up, but its client, which
            // sends nothing yet, does not learn of it.
            if b.is_none() && self.now > patience {
                self.hosts[0].rnic.abort(a);
                a = self.hosts[0].rnic.connect(self.now, to).unwrap();
                (up, patience) = (false, self.now + PATIENCE);
            }
            for e in self.hosts[0].events.drain(..) {
                up |= matches!(e, Event::Connected { .. });
                // A bad link may lose every request for the peer's station, or every answer.
                if matches!(e, Event::Closed { reason: CloseReason::Unreachable, .. }) {
                    a = self.hosts[0].rnic.connect(self.now, to).unwrap();
                }
            }
            for e in self.hosts[1].events.drain(..) {
                if let Event::Accepted { conn, .. } = e {
                    b = Some(conn);
                }
            }
            if let (true, Some(b)) = (up, b) {
                return [a, b];
            }
        }
        panic!("no connection");
    }

    /// Puts both ends of a connection into FPDU mode.
    pub fn enter(&mut self, ids: [ConnId; 2], qps: [&QpConfig; 2]) {
        for (host, role) in [(0, Role::Initiator), (1, Role::Responder)] {
            self.driver(host).enter(ids[host], QpConfig { role, ..qps[host].clone() });
        }
    }

    /// Lets both owners do their work, then jumps to the next event. Returns false if nothing will
    /// ever happen again.
    pub fn step(&mut self) -> bool {
        let more = self.take_step();
        self.sort_out();
        more
    }

    fn take_step(&mut self) -> bool {
        let mut busy = false;
        for side in 0..2 {
            // If turns take no time, take turns until there is nothing left to do.
            let mut turns = 0;
            while self.turn(side) {
                (busy, turns) = (true, turns + 1);
                if !self.pace[side].turn.is_zero() {
                    break;
                }
                assert!(turns < 1_000_000, "the owner never comes to rest");
            }
        }
        let Some(next) = self.next() else { return busy };
        // A turn that sends nothing can still start a timer, for the next turn.
        let waits = next <= self.now && !busy && self.wire.keys().next().is_none_or(|k| k.0 > next);
        self.stalled = if waits { self.stalled + 1 } else { 0 };
        assert!(self.stalled < 4, "a timer is due that no turn handles: {next:?}");
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            self.frames[to] += 1;
            self.hosts[to].inbox.push_back(Frame(frame));
        }
        for (h, pace) in self.hosts.iter_mut().zip(self.pace) {
            // The orders of a test between two steps come before the frames that are sent.
            while pace.turn.is_zero() && h.take(self.now, pace) && !h.inbox.is_empty() {}
        }
        true
    }

    /// Lets time pass. This function also sends the frames of a timer that runs at the end of a
    /// step, instead of leaving them to the next step, which may be much later.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            for side in 0..2 {
                while self.turn(side) && self.pace[side].turn.is_zero() {}
            }
            self.sort_out();
            if self.next().is_none_or(|at| at > until) {
                break;
            }
            self.step();
        }
        self.now = until;
    }

    /// Takes a turn of an owner, if it is time for one. Returns true if the turn found something to
    /// do.
    fn turn(&mut self, side: usize) -> bool {
        let (now, pace) = (self.now, self.pace[side]);
        let h = &mut self.hosts[side];
        if h.awake > now {
            return false;
        }
        let mut busy = h.take(now, pace);
        busy |= self.transmit(side);
        let h = &mut self.hosts[side];
        h.busy = busy && !pace.turn.is_zero();
        h.awake = now + if busy { pace.turn } else { Duration::ZERO };
        busy
    }

    /// Returns the time of the next event, if nothing is sent before.
    pub fn next(&self) -> Option<Instant> {
        let next_frame = self.wire.keys().next().map(|k| k.0);
        let turns = self.hosts.iter().zip(self.pace).filter_map(|(h, pace)| {
            let timer = h.rnic.poll_timeout();
            let awake = (!pace.turn.is_zero() && h.is_awake(self.now)).then_some(self.now);
            awake.or(timer).map(|at| at.max(h.awake))
        });
        next_frame.into_iter().chain(turns).min()
    }

    /// Takes in the results of orders.
    pub fn collect_all(&mut self) {
        for h in &mut self.hosts {
            h.deliver();
        }
        self.sort_out();
    }

    fn transmit(&mut self, side: usize) -> bool {
        let sent = self.transmit_some(side);
        let h = &mut self.hosts[side];
        h.rnic.end_transmit(&h.mem);
        sent
    }

    fn transmit_some(&mut self, side: usize) -> bool {
        let most = self.pace[side].frames;
        let mut sent = 0;
        while sent < most {
            let h = &mut self.hosts[side];
            let mut sink = VecSink::new(&h.mem);
            sink.has_buffer = !self.random.chance(self.no_buffer);
            sink.room = u32::try_from(most - sent).unwrap_or(u32::MAX);
            sink.cuts = self.link.cuts;
            let segments = h.rnic.poll_transmit(self.now, &h.mem, &mut sink);
            if segments == 0 {
                return sent > 0;
            }
            let frames = sink.done;
            assert_eq!(frames.len(), segments as usize, "frames on the wire");
            sent += frames.len();
            for frame in frames {
                assert!(frame.len() <= usize::from(self.link.mtu) + ETHERNET);
                self.send(side, frame);
            }
        }
        true
    }

    /// Puts a frame of `side` on the wire.
    pub fn send(&mut self, side: usize, mut frame: Vec<u8>) {
        let start = self.now.max(self.wire_free[side]);
        self.wire_free[side] = start + self.link.frame_time;
        if let (true, Some(tcp)) = (self.shut[side], tcp_at(&frame)) {
            frame[tcp + 14..tcp + 16].fill(0);
            mend_checksum(&mut frame);
        }
        if let Some(tap) = &mut self.tap {
            tap(side, &frame);
        }
        if let Some(mtu) = self.path_mtu.filter(|&m| frame.len() > ETHERNET + usize::from(m)) {
            self.lost += 1;
            if self.told {
                self.sent += 1;
                let at = self.wire_free[side] + self.link.delay;
                self.wire.insert((at, self.sent), (side, router_report(&frame, mtu)));
            }
            return;
        }
        let mut blocked = self.blocked.iter().any(|port| has_port(&frame, *port));
        if side == 0
            && let Some(i) = self.lose_first.iter().position(|port| has_port(&frame, *port))
            && tcp_payload(&frame).is_some()
        {
            self.lose_first.swap_remove(i);
            blocked = true;
        }
        if self.cut[side] || blocked || self.random.chance(self.link.loss) {
            self.lost += 1;
            return;
        }
        if self.marks.chance(self.link.mark) && mark(&mut frame) {
            self.marked += 1;
        }
        if self.random.chance(self.link.corrupt) && !is_arp(&frame) {
            let bit = self.random.below((frame.len() - ETHERNET) as u64 * 8) as usize;
            frame[ETHERNET + bit / 8] ^= 1 << (bit % 8);
            self.corrupted += 1;
        }
        if self.random.chance(self.link.damage)
            && let (Some(tcp), Some(body)) = (tcp_at(&frame), tcp_payload(&frame))
        {
            let bit = self.random.below(body.len() as u64 * 8) as usize;
            frame[body.start + bit / 8] ^= 1 << (bit % 8);
            mend_checksum(&mut frame);
            let end = if side == 1 { tcp } else { tcp + 2 };
            self.damaged.push(u16::from_be_bytes([frame[end], frame[end + 1]]));
        }
        let to = if self.one.is_some() { side } else { 1 - side };
        let mut at = self.wire_free[side] + self.link.delay;
        if self.random.chance(self.link.reorder) {
            at = at + self.link.frame_time * (1 + self.random.below(12) as u32);
        }
        if self.random.chance(self.link.duplicate) {
            self.sent += 1;
            self.wire.insert((at + self.link.frame_time * 3, self.sent), (to, frame.clone()));
        }
        self.sent += 1;
        self.wire.insert((at, self.sent), (to, frame));
    }

    /// Checks that the RNICs' counts of references to memory match the content of their send
    /// queues.
    pub fn check_pins(&self) {
        for (i, h) in self.hosts.iter().enumerate() {
            let pins = self.rnic(i).pins();
            for mr in 0..h.mrs.capacity() as u32 {
                assert_eq!(pins.count(mr), self.rnic(i).count_references(mr), "region {mr}");
            }
        }
    }

    /// Returns the number of references to memory in all send queues of a host.
    pub fn pinned(&self, host: usize) -> u32 {
        let pins = self.rnic(host).pins();
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

fn host_seed(seed: u64, n: u8) -> Seed {
    Seed::from_u64(seed.wrapping_mul(2).wrapping_add(u64::from(n)))
}

impl LinkConfig {
    /// Returns the address of a host.
    fn addr(&self, n: u8) -> Cidr {
        let addr = if self.ipv6 {
            [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into()
        } else {
            [10, 0, 0, n].into()
        };
        Cidr::new(addr, if self.ipv6 { 64 } else { 24 }).unwrap()
    }
}

/// The difference between tagged offsets and addresses.
pub const TO_BASE: u64 = 0x7000_0000_0000;

/// Returns `len` bytes of the payload that `seed` stands for.
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
