//! Two connections in virtual time over a link that delays, loses, repeats and reorders.

use super::*;
use heddle_base::{Random, Seed};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A direction of the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) latency: Duration,
    /// Bytes per second.
    pub(super) rate: u64,
    /// Full frames' worth of bytes that the bottleneck holds; it loses frames beyond that.
    pub(super) queue: usize,
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    /// Chance that the link holds a frame back by up to twice the latency.
    pub(super) reorder: f64,
    /// How many of a thousand frames that are capable of ECN the link marks.
    pub(super) marks: u64,
    /// How long a receiver lets segments gather, 64 at most, before it handles them and answers: it
    /// acknowledges once for each such burst.
    pub(super) gather: Duration,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            latency: MS,
            rate: 125_000_000,
            queue: 1000,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            marks: 0,
            gather: Duration::ZERO,
        }
    }
}

/// Returns the byte at a position, the same on both sides.
fn pattern(side: usize, pos: u64) -> u8 {
    let x = pos.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (side as u64);
    (x >> 56).to_le_bytes()[0] ^ x.to_le_bytes()[0]
}

/// An end of the pair: the connection, the bytes it still has to send, and the bytes it received.
pub(super) struct End {
    pub(super) c: Connection,
    pub(super) q: ByteQueue,
    /// Bytes to send in all.
    pub(super) total: u64,
    /// Bytes accepted ahead of a gap, by their start.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// Bytes received in order and found right.
    pub(super) received: u64,
    pub(super) events: Vec<ConnEvent>,
    /// True if the end closes when everything is sent.
    pub(super) closes: bool,
    closed: bool,
    /// Chance that the end refuses payload.
    pub(super) refuse: f64,
    /// When the link is free again.
    free: Instant,
    edge: u64,
    /// From this sequence number on, this end gets reports of everything as SACKed and of nothing
    /// as acknowledged.
    pub(super) acks_end_at: Option<SeqNumber>,
    /// The number of instants at which this end sent data.
    pub(super) sends: u64,
}

struct Flight {
    seg: Segment,
    sack: SackBlocks,
    options: RareOptions,
    bytes: Vec<u8>,
}

pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) ends: [End; 2],
    link: Link,
    /// (arrival, order, destination) of the frames in flight.
    arrivals: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    flights: BTreeMap<u64, Flight>,
    order: u64,
    random: Random,
    pub(super) frames: u64,
    /// Frames that the link has marked, by the side that sent them.
    pub(super) marked: [u64; 2],
    pub(super) seed: u64,
}

impl Pair {
    pub(super) fn new(cfg: [&ConnConfig; 2], link: Link, seed: u64) -> Pair {
        let now = Instant::from_millis(100);
        let mut random = Random::new(&Seed::from_u64(seed));
        let iss = SeqNumber(0u32.wrapping_sub(u32::try_from(random.below(200_000)).unwrap()));
        let client = Connection::connect(cfg[0], now, iss, random.next_u32());
        // The test makes the passive end when the SYN comes; until then a closed connection stands
        // in.
        let mut server = Connection::connect(cfg[1], now, iss, 0);
        server.abort();
        let _ = server.poll_event();
        let end = |c| End {
            c,
            q: ByteQueue::default(),
            total: 0,
            ahead: BTreeMap::new(),
            received: 0,
            events: Vec::new(),
            closes: false,
            closed: false,
            refuse: 0.0,
            free: now,
            edge: 0,
            acks_end_at: None,
            sends: 0,
        };
        let mut p = Pair {
            now,
            ends: [end(client), end(server)],
            link,
            arrivals: BinaryHeap::new(),
            flights: BTreeMap::new(),
            order: 0,
            random,
            frames: 0,
            marked: [0; 2],
            seed,
        };
        p.pump(0);
        // The link may lose the SYN: let the timer send it again.
        for _ in 0..100 {
            if p.open(cfg[1]) {
                return p;
            }
        }
        panic!("seed {seed}: no SYN arrived");
    }

    fn open(&mut self, cfg: &ConnConfig) -> bool {
        if let Some(Reverse((at, order, 1))) = self.arrivals.pop() {
            self.now = at;
            let f = self.flights.remove(&order).unwrap();
            let iss = SeqNumber(self.random.next_u32());
            self.ends[1].c = Connection::accept(cfg, at, iss, self.random.next_u32(), &f.seg);
            self.pump(1);
            return true;
        }
        self.now = self.ends[0].c.poll_timeout().unwrap();
        self.ends[0].c.handle_timeout(self.now);
        self.pump(0);
        false
    }

    /// Sends all segments that `side` has to send.
    pub(super) fn pump(&mut self, side: usize) {
        let (now, link, seed) = (self.now, self.link, self.seed);
        let end = &mut self.ends[side];
        // Queue enough bytes to keep the connection busy.
        while end.q.end().0 < end.total && end.q.end() - end.c.snd_una() < 2 << 20 {
            let at = end.q.end().0;
            let n = (end.total - at).min(65_536);
            let bytes: Vec<_> = (at..at + n).map(|p| pattern(side, p)).collect();
            end.q.push(&bytes);
        }
        if end.closes
            && !end.closed
            && end.q.end().0 == end.total
            && !matches!(end.c.state(), State::SynSent)
        {
            end.closed = true;
            end.c.close();
        }
        let mut sent = false;
        while let Some(tx) = end.c.poll_transmit(now, &end.q) {
            self.frames += 1;
            sent |= tx.len > 0;
            let una = end.c.snd_una();
            let mut bytes = Vec::new();
            if tx.len > 0 {
                assert!(tx.pos >= una, "seed {seed}: sent what is acknowledged");
                let largest = end.c.emss().max(end.c.probe_len());
                assert!(tx.len <= largest, "seed {seed}: beyond the MSS");
                end.q.copy(tx.pos, tx.len, &mut bytes);
                let s = end.c.stats();
                let beyond = (tx.pos + u64::from(tx.len)) - (una + u64::from(s.snd_wnd));
                assert!(beyond == 0 || tx.len == 1, "seed {seed}: beyond the window by {beyond}");
            }
            let sack = if tx.sack > 0 { *end.c.sack_blocks() } else { SackBlocks::default() };
            let start = end.free.max(now);
            let wire = 66 + u64::from(tx.len);
            let took = wire * 1_000_000_000 / link.rate;
            let full = 1_500_000_000_000 / link.rate;
            let waiting = (start - now).as_nanos() / u128::from(full);
            let syn = tx.flags.has(Flags::SYN) && tx.retransmit;
            if waiting > link.queue as u128 || (!syn && self.random.chance(link.loss)) {
                continue;
            }
            end.free = start + Duration::from_nanos(took);
            let (mut seg, options) = (opening::arrived(&tx), options_of(&tx));
            if tx.ect && self.frames.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x3ff < link.marks
            {
                seg.ecn = Codepoint::CE;
                self.marked[side] += 1;
            }
            let copies = 1 + u64::from(self.random.chance(link.duplicate));
            for _ in 0..copies {
                let mut at = end.free + link.latency;
                if self.random.chance(link.reorder) {
                    let most = u64::try_from(link.latency.as_nanos()).unwrap() * 2;
                    at = at + Duration::from_nanos(self.random.below(most));
                }
                self.order += 1;
                let f = Flight { seg, sack, options, bytes: bytes.clone() };
                self.flights.insert(self.order, f);
                self.arrivals.push(Reverse((at, self.order, 1 - side)));
            }
        }
        end.sends += u64::from(sent);
        end.c.check_invariants(end.q.end());
        while let Some(e) = end.c.poll_event() {
            end.events.push(e);
        }
    }

    /// Advances to the next event. Returns false when there will be none.
    pub(super) fn step(&mut self) -> bool {
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        let timer = |e: &End| e.c.poll_timeout();
        let timers = [timer(&self.ends[0]), timer(&self.ends[1])];
        let next = [arrival, timers[0], timers[1]].into_iter().flatten().min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let to = self.arrivals.peek().map_or(0, |Reverse((_, _, to))| *to);
            self.now = self.now + self.link.gather;
            let mut others = Vec::new();
            let mut burst = 0;
            while burst < 64
                && let Some(Reverse((at, order, end))) = self.arrivals.pop()
            {
                if end != to || (at > self.now && burst > 0) {
                    others.push(Reverse((at, order, end)));
                    if at > self.now {
                        break;
                    }
                } else if let Some(f) = self.flights.remove(&order) {
                    burst += 1;
                    self.arrive(to, &f);
                }
                if self.link.gather.is_zero() {
                    break;
                }
            }
            self.arrivals.extend(others);
            self.pump(to);
        } else {
            for (side, timer) in timers.into_iter().enumerate() {
                if timer.is_some_and(|t| t <= self.now) {
                    self.ends[side].c.handle_timeout(self.now);
                    self.pump(side);
                }
            }
        }
        true
    }

    fn arrive(&mut self, to: usize, f: &Flight) {
        let (now, seed) = (self.now, self.seed);
        let end = &mut self.ends[to];
        let (mut seg, mut sack) = (f.seg, f.sack);
        if let Some(una) = end.acks_end_at
            && seg.ack.after(una)
        {
            let reported = SackBlock { start: una, end: seg.ack };
            sack = SackBlocks::default();
            sack.push(reported);
            f.sack.as_slice().iter().filter(|b| b.start.after(una)).for_each(|&b| sack.push(b));
            seg.ack = una;
        }
        let out = handle(&mut end.c, now, &seg, &sack, f.options);
        if let Some(upto) = out.acked {
            assert!(upto <= end.c.snd_max(), "seed {seed}");
            end.q.release(upto);
        }
        let before = end.c.rcv_nxt();
        assert_eq!(before.0, end.received, "seed {seed}: moved without acceptance");
        let Some(p) = out.payload else { return };
        assert_eq!(p.in_order, p.pos == before, "seed {seed}");
        if self.random.chance(end.refuse) {
            return;
        }
        let skip = usize::try_from(p.skip).unwrap();
        let bytes = &f.bytes[skip..skip + usize::try_from(p.len).unwrap()];
        for (pos, b) in (p.pos.0..).zip(bytes) {
            assert_eq!(*b, pattern(1 - to, pos), "seed {seed}: wrong byte at {pos}");
        }
        assert!(end.ahead.insert(p.pos.0, bytes.to_vec()).is_none(), "seed {seed}: given twice");
        end.c.accept_payload(now, p.pos, p.len);
        while let Some(b) = end.ahead.remove(&end.received) {
            end.received += b.len() as u64;
        }
        assert_eq!(end.c.rcv_nxt().0, end.received, "seed {seed}: rcv_nxt astray");
        let edge = end.c.rcv_nxt().0;
        assert!(edge >= end.edge, "seed {seed}");
        end.edge = edge;
    }

    /// Sets the chance that the link loses a frame from now on.
    pub(super) fn set_loss(&mut self, loss: f64) {
        self.link.loss = loss;
    }

    /// Loses every frame in flight and every later frame.
    pub(super) fn lose_everything(&mut self) {
        self.link.loss = 1.0;
        self.arrivals.clear();
        self.flights.clear();
    }

    /// Returns true if each end has had all its bytes acknowledged, or reported to its owner that
    /// it gave up.
    pub(super) fn settled(&self) -> bool {
        self.ends.iter().all(|e| {
            let failed = [ConnEvent::TimedOut, ConnEvent::Reset];
            e.c.snd_una().0 == e.total || e.events.iter().any(|e| failed.contains(e))
        })
    }

    pub(super) fn done(&self) -> bool {
        self.ends.iter().all(|e| matches!(e.c.state(), State::Closed | State::TimeWait))
    }

    /// Runs until both ends are done. Returns how long that took.
    pub(super) fn run(&mut self, limit: Duration) -> Duration {
        let start = self.now;
        while !self.done() {
            let alive = self.step();
            let [a, z] = &self.ends;
            assert!(
                alive && self.now - start < limit,
                "seed {}: stuck at {:?}; {:?} {}/{} {:?}; {:?} {}/{} {:?}",
                self.seed,
                self.now,
                a.c.state(),
                a.received,
                z.total,
                a.c.stats(),
                z.c.state(),
                z.received,
                a.total,
                z.c.stats()
            );
        }
        assert!(self.settled(), "seed {}: ended in silence", self.seed);
        self.now - start
    }

    /// Makes each end close once all its bytes are queued.
    pub(super) fn close_when_sent(&mut self) {
        for side in 0..2 {
            self.ends[side].closes = true;
            self.pump(side);
        }
    }

    /// Runs to the end and checks that all bytes arrived and both ends closed in order.
    pub(super) fn run_orderly(&mut self, limit: Duration) -> Duration {
        self.close_when_sent();
        let took = self.run(limit);
        let [a, z] = &self.ends;
        assert_eq!((a.received, z.received), (z.total, a.total), "seed {}", self.seed);
        for e in [a, z] {
            let told: Vec<_> = e.events.iter().filter(|&&e| e != ConnEvent::Unresponsive).collect();
            assert_eq!(
                told,
                [&ConnEvent::Connected, &ConnEvent::PeerClosed, &ConnEvent::Closed],
                "seed {}",
                self.seed
            );
        }
        took
    }
}
