//! Runs a program: two hosts, their streams, and the observations.

use std::collections::VecDeque;
use std::time::Duration;

use heddle_base::{Random, Seed};
use heddle_rnic::RnicConfig;
use heddle_tcp::ConnConfig;
use heddle_types::{CqeOp, SendWr};

use crate::programs::derived::Derived;
use crate::programs::memory::History;
use crate::programs::outcome::Outcome;
use crate::programs::program::{Place, Plan, Program, pick};
use crate::programs::regions::{Regions, connect, enter, share};
use crate::programs::shared::Queue;
use crate::programs::stream::{Bad, Effect, End, LOCAL, Request, Stream};
use crate::programs::tenants::Tenants;
use crate::programs::words::Word;
use crate::sim::{Host, LinkConfig, Pair, TO_BASE, pattern};

/// Memory that all streams of a host share, words for atomic operations after it, and memory of
/// which each byte is used once.
pub const SHARED: usize = 8192;
pub const WORDS_AT: usize = SHARED;
pub const WORDS: usize = 4;
const ARENA: usize = WORDS_AT + 8 * WORDS;
pub const MEMORY: usize = 1 << 19;

/// The byte between two pieces of the arena.
pub const GUARD: u8 = 0xee;

/// The longest delay of a receive.
const RNR_WAIT: Duration = Duration::from_secs(10);

pub struct World {
    pub pair: Pair,
    /// A clock that counts posts and looks.
    pub now: u64,
    pub streams: Vec<Stream>,
    pub stores: [History; 2],
    pub words: [Vec<Word>; 2],
    pub regions: [Regions; 2],
    /// Windows and fast registrations.
    pub derived: [Vec<Derived>; 2],
    /// Receive buffers of the streams that share them.
    pub shared: [Queue; 2],
    /// The random source for the times of late receives, and the lengths of these receives, by
    /// stream and host.
    pub late: Option<Random>,
    pub owed: Vec<[VecDeque<usize>; 2]>,
    pub free: [usize; 2],
    /// Memory that the application has written to since it got it back, and the byte written.
    pub back: [Vec<(usize, usize, u8)>; 2],
    /// Bytes posted, of all requests.
    pub bytes: u64,
    tenants: Tenants,
    pub random: Random,
    pub outcome: Outcome,
}

/// Runs a program to its end; a difference from the model panics.
pub fn run(program: &Program) -> Outcome {
    let mut world = World::new(program);
    for op in &program.ops {
        if op.stream < world.streams.len() {
            world.carry_out(op);
        }
        for _ in 0..op.pause {
            world.step();
        }
    }
    world.finish();
    world.outcome
}

impl World {
    fn new(program: &Program) -> World {
        let plan = &program.plan;
        let Plan { delay, mtu, cuts, ipv6, .. } = *plan;
        let link = LinkConfig { delay, mtu, cuts, ipv6, ..LinkConfig::default() };
        let change = |c: &mut RnicConfig| {
            c.max_snapshot_bytes = plan.snapshots;
            (c.stack.conn.congestion, c.stack.conn.ecn) = plan.ecn;
            c.hand_over = plan.place == Place::Handed;
            c.rnr_wait = if plan.late { RNR_WAIT } else { Duration::ZERO };
        };
        let mut pair = if plan.place == Place::Apart {
            Pair::with_config(program.seed, link, MEMORY, change)
        } else {
            Pair::inside(program.seed, link, MEMORY, change)
        };
        let mut random = Random::new(&Seed::from_u64(program.seed ^ 0x77));
        let streams: Vec<_> =
            (0..plan.streams.len()).map(|s| connect(&mut pair, plan, s, &mut random)).collect();
        let shared = [0, 1].map(|_| Queue::default());
        pair.pace = plan.pace;
        pair.link = LinkConfig {
            loss: plan.loss,
            reorder: plan.reorder,
            duplicate: plan.duplicate,
            corrupt: plan.corrupt,
            mark: plan.mark,
            damage: plan.damage,
            ..link
        };
        pair.no_buffer = plan.no_buffer;
        for (s, stream) in streams.iter().enumerate() {
            enter(&mut pair, plan, s, stream);
            let handing = stream.ids.map(|id| pair.rnic(0).is_handing(id));
            assert!(plan.place == Place::Apart || handing == [plan.place == Place::Handed; 2]);
        }
        share(&mut pair, &streams, &shared);
        let tenants = Tenants::new(program, &mut pair, &streams);
        let regions = [0, 1].map(|h| Regions::new(&pair, h, streams.len()));
        let derived = [0, 1].map(|h| regions[h].derive(&pair, h, &plan.streams));
        let mut world = World {
            stores: [0, 1].map(|h: u64| {
                let first = pattern(program.seed ^ h, SHARED);
                pair.hosts[h as usize].mem.write(0, &first);
                History::new(first)
            }),
            words: [0, 1].map(|h| {
                let lanes = 2 * streams.len();
                let first: Vec<u64> = (0..WORDS).map(|_| random.below(4)).collect();
                for (i, n) in first.iter().enumerate() {
                    let host: &Host = &pair.hosts[h];
                    host.mem.write(WORDS_AT + 8 * i, &n.to_ne_bytes());
                }
                first.into_iter().map(|n| Word::new(n, lanes)).collect()
            }),
            pair,
            now: 1,
            streams,
            regions,
            derived,
            shared,
            late: plan.late.then(|| Random::new(&Seed::from_u64(program.seed ^ 0x1a7e))),
            owed: plan.streams.iter().map(|_| Default::default()).collect(),
            free: [ARENA; 2],
            back: [Vec::new(), Vec::new()],
            bytes: 0,
            tenants,
            random,
            outcome: Outcome::default(),
        };
        // A responder may not send before it has received something (RFC 5044 section 7.1.2).
        for s in 0..world.streams.len() {
            if world.streams[s].plan.rtr.is_none() {
                world.post_marker(s, 0);
            }
        }
        // The message that says ready to receive goes alone, or with the first messages.
        if world.random.chance(0.5) {
            world.step();
        }
        world
    }

    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// Returns a piece of the arena, if there is enough left.
    pub fn allocate(&mut self, host: usize, len: usize) -> Option<usize> {
        let at = self.free[host] + 16;
        self.bytes += len as u64;
        (at + len + 16 <= MEMORY).then(|| {
            self.free[host] = at + len;
            at
        })
    }

    /// Lets the next event happen, and looks at everything. Returns false if nothing will ever
    /// happen again.
    pub fn step(&mut self) -> bool {
        self.tenants.step();
        self.post_late(false);
        let more = self.pair.step();
        self.observe();
        more || self.post_late(true)
    }

    pub fn disconnect(&mut self, s: usize, me: usize) {
        let stream = &mut self.streams[s];
        if stream.ends[me].closed.is_none() {
            stream.ends[me].closing = true;
            // Reads of the peer that this end has not begun to answer cannot be answered any more.
            stream.codes.push(LOCAL);
            let now = self.pair.now;
            self.pair.driver(me).disconnect(now, stream.ids[me]);
            self.pair.collect_all();
            self.observe();
        }
    }

    pub fn abort(&mut self, s: usize, me: usize) {
        let stream = &mut self.streams[s];
        if stream.ends[me].closed.is_none() {
            self.pair.driver(me).rnic.abort(stream.ids[me]);
            self.pair.collect_all();
            self.observe();
        }
    }

    fn run_until(&mut self, limit: Duration, what: &str, done: impl Fn(&World) -> bool) {
        let end = self.pair.now + limit;
        while !done(self) {
            assert!(self.pair.now < end, "{what}: not after {limit:?}: {:#?}", self.streams);
            assert!(self.step() || done(self), "{what}: nothing left that could happen");
            self.check_storm();
        }
    }

    /// Checks that there are no more frames than the posts explain.
    fn check_storm(&mut self) {
        let frames: u64 = self.pair.frames.iter().sum::<u64>() + self.pair.lost;
        let posted: u64 = self.streams.iter().flat_map(|s| &s.ends).map(|e| u64::from(e.seq)).sum();
        let reason = 40 * self.streams.len() as u64 + posted + self.bytes / 400;
        let ratio = 100 * frames / reason;
        let most = self.outcome.0.entry("most frames in percent".into()).or_default();
        *most = ratio.max(*most);
        assert!(frames < 20 * reason, "{frames} frames, {posted} requests, {} bytes", self.bytes);
    }

    fn finish(&mut self) {
        // Undisturbed streams finish their requests, whatever happens to other streams.
        for s in 0..self.streams.len() {
            for me in 0..2 {
                if !self.streams[s].excused {
                    while !self.post_marker(s, me) {
                        assert!(self.step(), "the queue stays full");
                    }
                }
            }
        }
        // The requests after the last signaled one may complete in silence: check that their
        // messages arrive.
        let told = |e: &End| e.requests.iter().all(|r| !r.signaled);
        let done = |e: &End| told(e) && e.delivered == e.messages.len() && e.granted == 0;
        self.run_until(Duration::from_secs(120), "progress", |w| {
            w.streams.iter().all(|s| s.excused || s.ends.iter().all(done))
        });
        for host in 0..2 {
            self.tick();
            self.look(host, "after all is done");
        }
        // Some applications close both ends at once, some one after the other.
        let mut ends: Vec<_> = (0..self.streams.len()).flat_map(|s| [(s, 0), (s, 1)]).collect();
        // TCP resets a close in which nothing moves for `close_stall`: the applications close the
        // other halves well before that.
        let soon = self.pair.now + ConnConfig::default().close_stall / 2;
        while !ends.is_empty() {
            let i = self.random.below(ends.len() as u64) as usize;
            let (s, me) = ends.swap_remove(i);
            self.disconnect(s, me);
            for _ in 0..pick(&mut self.random, &[0, 0, 5, 50]) {
                if self.pair.next().is_some_and(|at| at < soon) {
                    self.step();
                }
            }
        }
        let closed = |s: &Stream| s.ends.iter().all(|e| e.closed.is_some());
        // An end that waits for an answer of a peer that no longer exists, for its first message,
        // or for the rest of an FPDU whose length was damaged, has nothing in flight for TCP to
        // time: the application must lose patience.
        self.run_until(Duration::from_secs(1800), "the end", |w| {
            w.streams.iter().all(|s| s.hangs() || closed(s))
        });
        let patience = self.pair.now + Duration::from_secs(1800);
        while self.pair.next().is_some_and(|at| at < patience) {
            self.step();
        }
        for s in 0..self.streams.len() {
            if self.streams[s].hangs() {
                (0..2).for_each(|me| self.abort(s, me));
            }
        }
        self.run_until(Duration::from_secs(1), "the end", |w| {
            w.streams.iter().flat_map(|s| &s.ends).all(|e| e.closed.is_some())
        });
        self.check_rest();
    }

    /// Posts a request whose completion means that all requests before it are complete. Returns
    /// false if the queue has no room for the request.
    fn post_marker(&mut self, s: usize, me: usize) -> bool {
        let host = self.pair.driver(me);
        let conn = self.streams[s].ids[me];
        let end = &mut self.streams[s].ends[me];
        let id = u64::from(end.seq);
        let wr = SendWr::write_inline(id, &[], self.regions[1 - me].shared.stag, TO_BASE);
        if host.post_send(conn, &wr).is_err() {
            return false;
        }
        end.seq += 1;
        end.requests.push_back(Request {
            id,
            what: CqeOp::Write,
            len: 0,
            signaled: true,
            seq: end.seq - 1,
            start: self.now,
            held: None,
            effect: Effect::None,
            message: None,
            names: None,
            bad: Bad::No,
        });
        true
    }

    /// Checks that no resource is left, and that memory is as the model says.
    fn check_rest(&mut self) {
        self.tick();
        self.pair.check_pins();
        for host in 0..2 {
            self.look(host, "at the end");
            for (i, word) in self.words[host].iter().enumerate() {
                let last = self.pair.hosts[host].mem.read(WORDS_AT + 8 * i, 8);
                word.check(u64::from_ne_bytes(last.try_into().unwrap()));
            }
            for (at, len, value) in &self.back[host] {
                let found = self.pair.hosts[host].mem.read(*at, *len);
                assert!(found.iter().all(|b| b == value), "stores to memory that was given back");
            }
            let mut used: Vec<_> = self.back[host].iter().map(|b| (b.0, b.1)).collect();
            used.sort_unstable();
            let mut at = ARENA;
            for (from, len) in used {
                let guard = self.pair.hosts[host].mem.read(from - 16, 16);
                assert!(guard.iter().all(|b| *b == GUARD), "stores between buffers, at {at}");
                at = from + len;
            }
            self.check_left(host);
            self.give_back_stags(host);
            let Counts { retransmits, snapshot, read, ahead, rtr } = self.counts(host);
            self.outcome.count("ready to receive", rtr);
            self.outcome.count("retransmits", retransmits);
            self.outcome.count("snapshot stalls", snapshot);
            self.outcome.count("read stalls", read);
            self.outcome.count("placed ahead of a gap", ahead);
            for s in &self.streams {
                let rnic = &mut self.pair.driver(host).rnic;
                rnic.release(s.ids[host]);
                assert!(rnic.connection(s.ids[host]).is_none() && rnic.qp(s.ids[host]).is_none());
            }
            let rnic = self.pair.rnic(host);
            assert_eq!((rnic.held_frames(), rnic.snapshot_bytes()), (0, 0), "what is kept");
            assert_eq!(self.pair.pinned(host), 0, "references to memory");
        }
        let waits: u64 = [0, 1].map(|host| self.pair.rnic(host).counters().rnr_waits).iter().sum();
        self.outcome.count("waited for a receive", waits);
        self.outcome.count("waited for a rate", self.tenants.waits());
        self.outcome.count("lost", self.pair.lost);
        self.outcome.count("marked", self.pair.marked);
        self.outcome.count("handed over", self.pair.rnic(0).counters().handed_fpdus);
        let rough =
            self.streams.iter().filter(|s| s.plan.rough).count() - self.pair.lose_first.len();
        self.outcome.count("first FPDU lost", rough as u64);
        self.outcome.count("corrupted", self.pair.corrupted);
    }

    fn counts(&self, host: usize) -> Counts {
        let rnic = self.pair.rnic(host);
        let qp = rnic.qp_counters();
        Counts {
            retransmits: rnic.counters().tx_retransmits,
            snapshot: qp.tx_snapshot_stalls,
            read: qp.tx_read_stalls,
            rtr: qp.rtr,
            ahead: rnic.counters().rx_placed_ahead,
        }
    }
}

struct Counts {
    retransmits: u64,
    snapshot: u64,
    read: u64,
    ahead: u64,
    rtr: u64,
}
