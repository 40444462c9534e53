//! A million operations of mixed kinds and sizes over a bad link, in virtual time.
//!
//! Both ends are requesters at once. Every operation has a slot of its own on both sides; when an
//! operation completes, the test compares the bytes on the other side one by one, and the guard
//! bytes around them. Completions must come in order, each exactly once.

#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "small numbers of a test")]

use std::collections::VecDeque;
use std::time::Duration;

use crate::sim::{LinkConfig, Pair, TO_BASE, pattern};
use heddle_base::{Random, Seed};
use heddle_iwarp::{QpConfig, mpa};
use heddle_mr::MrAttr;
use heddle_rnic::Event;
use heddle_types::{Access, ConnId, CqeOp, CqeStatus, Queue, RecvWr, SendOp, SendWr, Sge};

const SLOTS: usize = 24;
const RECVS: usize = 3 * SLOTS;
const BIG: usize = 1 << 20;
const SLOT: usize = BIG + 64;
const GUARD: u8 = 0xee;

/// Areas of a host's memory: as requester, as target, receive buffers.
const LOCAL: usize = 0;
const TARGET: usize = SLOTS * SLOT;
const RECV: usize = 2 * SLOTS * SLOT;
const MEMORY: usize = RECV + RECVS * SLOT;

#[derive(Clone, Copy)]
struct Op {
    kind: CqeOp,
    seed: u64,
    len: usize,
    slot: usize,
    id: u64,
}

/// An end as a requester.
struct Side {
    me: usize,
    conn: ConnId,
    random: Random,
    local: MrAttr,
    target: MrAttr,
    recv: MrAttr,
    free: Vec<usize>,
    outstanding: VecDeque<Op>,
    /// Sends of the peer that have not arrived.
    expected: VecDeque<Op>,
    recv_next: usize,
    started: u64,
    done: [u64; 3],
    received: u64,
}

fn sge(mr: &MrAttr, addr: usize, len: usize) -> Sge {
    Sge { stag: mr.stag, to: addr as u64 + TO_BASE, len: len as u32 }
}

/// Picks a size worth trying: nothing, one byte, odd sizes, sizes around an FPDU's capacity, and a
/// megabyte.
fn size(r: &mut Random, mulpdu: usize) -> usize {
    let (tagged, untagged) = (mulpdu - 14, mulpdu - 18);
    match r.below(2500) {
        0 => BIG - (r.below(3) as usize),
        1..=300 => 0,
        301..=600 => 1,
        601..=1200 => 2 * r.below(700) as usize + 1,
        1201..=1500 => tagged - 1 + r.below(3) as usize,
        1501..=1800 => untagged - 1 + r.below(3) as usize,
        1801..=1900 => 2 * tagged - 1 + r.below(3) as usize,
        1901..=2000 => 4096,
        _ => r.below(64) as usize,
    }
}

impl Side {
    fn new(pair: &Pair, me: usize, conn: ConnId, seed: u64) -> Side {
        let all = SLOTS * SLOT;
        Side {
            me,
            conn,
            random: Random::new(&Seed::from_u64(seed ^ me as u64)),
            local: pair.register(me, LOCAL, all, Access::LOCAL_WRITE),
            target: pair.register(me, TARGET, all, Access::REMOTE_WRITE.with(Access::REMOTE_READ)),
            recv: pair.register(me, RECV, RECVS * SLOT, Access::LOCAL_WRITE),
            free: (0..SLOTS).collect(),
            outstanding: VecDeque::new(),
            expected: VecDeque::new(),
            recv_next: 0,
            started: 0,
            done: [0; 3],
            received: 0,
        }
    }

    fn post_recv(&self, pair: &mut Pair, i: usize) {
        let sges = [sge(&self.recv, RECV + i * SLOT + 32, BIG)];
        pair.hosts[self.me].rnic.post_recv(self.conn, &RecvWr::new(i as u64, &sges)).unwrap();
    }

    fn start(&mut self, pair: &mut Pair, target: &MrAttr, mulpdu: usize) -> Op {
        let slot = self.free.pop().unwrap();
        let len = size(&mut self.random, mulpdu);
        let kind = [CqeOp::Send, CqeOp::Write, CqeOp::Read][self.random.below(3) as usize];
        let op = Op { kind, seed: self.random.next_u64(), len, slot, id: self.started };
        self.started += 1;
        let (here, there) = (LOCAL + slot * SLOT + 32, TARGET + slot * SLOT + 32);
        let data = pattern(op.seed, len);
        let guards = vec![GUARD; len + 64];
        let [mine, theirs] = if self.me == 0 { [0, 1] } else { [1, 0] };
        let to = there as u64 + TO_BASE;
        let op_code = match kind {
            CqeOp::Send => SendOp::Send { solicited: op.id.is_multiple_of(2), invalidate: None },
            CqeOp::Write => SendOp::Write { stag: target.stag, to },
            _ => SendOp::Read { stag: target.stag, to },
        };
        let (source, sink) = match kind {
            CqeOp::Read => ((theirs, there), Some((mine, here))),
            CqeOp::Write => ((mine, here), Some((theirs, there))),
            _ => ((mine, here), None),
        };
        if let Some((host, at)) = sink {
            pair.hosts[host].mem.write(at - 32, &guards);
        }
        pair.hosts[source.0].mem.write(source.1, &data);
        let sges = [sge(&self.local, here, len)];
        let fence = op.id.is_multiple_of(7);
        let wr = SendWr { op: op_code, fence, ..SendWr::send(op.id, &sges) };
        pair.hosts[self.me].rnic.post_send(self.conn, &wr).unwrap();
        self.outstanding.push_back(op);
        op
    }

    fn finish(&mut self, pair: &Pair, id: u64, kind: CqeOp) {
        let op = self.outstanding.pop_front().expect("a completion nobody waits for");
        assert_eq!((op.id, op.kind), (id, kind), "completions out of order");
        let at = op.slot * SLOT;
        let place = match kind {
            CqeOp::Write => Some((1 - self.me, TARGET + at)),
            CqeOp::Read => Some((self.me, LOCAL + at)),
            _ => None,
        };
        if let Some((host, at)) = place {
            check(pair, host, at, &op);
        }
        self.done[kind as usize % 3] += 1;
        self.free.push(op.slot);
    }
}

/// Checks the bytes of `op`, which lie 32 bytes after `at`, between guards.
fn check(pair: &Pair, host: usize, at: usize, op: &Op) {
    let mem = &pair.hosts[host].mem;
    assert!(mem.read(at, 32).iter().all(|b| *b == GUARD), "bytes before {} were written", op.id);
    assert!(
        mem.read(at + 32, op.len) == pattern(op.seed, op.len),
        "bytes of operation {} differ",
        op.id
    );
    assert!(
        mem.read(at + 32 + op.len, 32).iter().all(|b| *b == GUARD),
        "bytes behind {} were written",
        op.id
    );
}

fn run(seed: u64, ops: u64, link: LinkConfig, crc: bool) {
    run_with(seed, ops, link, QpConfig { crc, ..QpConfig::default() });
}

fn run_with(seed: u64, ops: u64, link: LinkConfig, qp: QpConfig) {
    // The test framework shows this output if the test fails.
    eprintln!("seed {seed}");
    let mut pair = Pair::new(seed, link, MEMORY);
    let depth = SLOTS as u32;
    let qp = QpConfig { pd: crate::sim::PD, sq_depth: depth, rq_depth: RECVS as u32, ..qp };
    let conns = pair.connect(&qp);
    let mut sides = [0, 1].map(|me| Side::new(&pair, me, conns[me], seed));
    for side in &sides {
        for i in 0..RECVS {
            side.post_recv(&mut pair, i);
        }
    }
    let mulpdu = usize::from(mpa::fpdu::mulpdu(
        pair.hosts[0].rnic.connection(conns[0]).unwrap().emss(),
        qp.send_markers,
    ));
    let half = ops / 2;
    loop {
        for me in 0..2 {
            let target = sides[1 - me].target;
            while sides[me].started < half && !sides[me].free.is_empty() {
                let op = sides[me].start(&mut pair, &target, mulpdu);
                if op.kind == CqeOp::Send {
                    sides[1 - me].expected.push_back(op);
                }
            }
        }
        if sides
            .iter()
            .all(|s| s.started == half && s.outstanding.is_empty() && s.expected.is_empty())
        {
            break;
        }
        assert!(pair.step(), "nothing left that could happen");
        for me in 0..2 {
            assert!(
                pair.hosts[me].events.iter().all(|e| matches!(e, Event::Qp { .. })),
                "{:?} at {:?}: {:?}",
                pair.hosts[me].events,
                pair.now,
                [0, 1].map(|h| {
                    let c = pair.hosts[h].rnic.connection(conns[h]);
                    c.map(|c| (c.stats(), c.snd_una(), c.snd_max(), c.rcv_nxt()))
                })
            );
            for (conn, cqe) in std::mem::take(&mut pair.hosts[me].completions) {
                assert_eq!((conn, cqe.status), (conns[me], CqeStatus::Success));
                if cqe.queue == Queue::Sq {
                    sides[me].finish(&pair, cqe.wr_id, cqe.op);
                    continue;
                }
                let op = sides[me].expected.pop_front().expect("a message nobody sent");
                let i = cqe.wr_id as usize;
                assert_eq!((i, cqe.len as usize), (sides[me].recv_next, op.len));
                assert_eq!(cqe.solicited, op.id.is_multiple_of(2));
                check(&pair, me, RECV + i * SLOT, &op);
                pair.hosts[me].mem.write(RECV + i * SLOT + 32, &vec![GUARD; op.len]);
                sides[me].recv_next = (i + 1) % RECVS;
                sides[me].received += 1;
                sides[me].post_recv(&mut pair, i);
            }
        }
    }
    let total: u64 = sides.iter().flat_map(|s| s.done).sum();
    assert_eq!(total, half * 2);
    if link.loss > 0.0 {
        let again: u64 = pair.hosts.iter().map(|h| h.rnic.counters().tx_retransmits).sum();
        assert!(again > 0 && pair.lost > 0, "the link lost nothing");
    }
    for (host, conn) in conns.into_iter().enumerate() {
        assert_eq!(pair.hosts[host].rnic.held_frames(), 0);
        pair.hosts[host].rnic.disconnect(pair.now, conn);
    }
    let closed =
        |p: &Pair, h: usize| p.hosts[h].events.iter().any(|e| matches!(e, Event::Closed { .. }));
    pair.run(Duration::from_secs(600), |p| closed(p, 0) && closed(p, 1));
}

#[test]
fn test_million_operations_complete_with_loss_and_reordering() {
    let link = LinkConfig { loss: 0.05, reorder: 0.05, duplicate: 0.01, ..LinkConfig::default() };
    run(1, 1_000_000, link, true);
}

#[test]
fn test_operations_without_crc_complete_on_a_bad_link() {
    let link = LinkConfig { loss: 0.02, reorder: 0.1, duplicate: 0.02, ..LinkConfig::default() };
    run(2, 20_000, link, false);
}

#[test]
fn test_operations_with_jumbo_frames_complete_on_a_good_link() {
    run(3, 20_000, LinkConfig { mtu: 9000, ..LinkConfig::default() }, true);
}

#[test]
fn test_operations_with_markers_complete_on_a_bad_link() {
    let link = LinkConfig { loss: 0.03, reorder: 0.1, duplicate: 0.02, ..LinkConfig::default() };
    let qp = QpConfig { send_markers: true, recv_markers: true, ..QpConfig::default() };
    run_with(4, 20_000, link, qp);
}
