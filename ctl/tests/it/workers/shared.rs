//! Use of shared objects from several workers at once: 64 connections, one listener, and one of
//! everything else on each side.

use std::collections::{BTreeMap, BTreeSet};

use heddle_verbs::{Cqe, CqeOp, Qp, Qpn, RecvWr, SendWr};

use super::rig::*;

/// Number of connections.
pub const CONNS: usize = 64;
/// Number of FetchAdds of each connection.
const ADDS: u64 = 50;
/// Number of Sends of each connection, in either direction.
const SENDS: usize = 4;

/// Returns the bytes of message `round` of connection `conn`.
fn message(side: usize, conn: usize, round: usize) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    for (n, b) in bytes.iter_mut().enumerate() {
        *b = (n * 7 + side * 101 + conn * 13 + round * 29) as u8;
    }
    bytes[0] = conn as u8;
    bytes[1] = round as u8;
    bytes
}

/// Takes completions of one application until there are `n`.
fn completions(rig: &mut Rig, app: &App, n: usize) -> Vec<Cqe> {
    let mut all = Vec::new();
    rig.until("completions", |_| {
        all.extend(std::iter::from_fn(|| app.cq.poll()));
        (all.len() >= n).then_some(())
    });
    assert_eq!(all.len(), n, "each once");
    assert!(all.iter().all(|c| c.status.is_success()), "{all:?}");
    all
}

/// Makes every connection send into the shared receive queue of the other side, in both directions,
/// and finds each message where its completion says.
fn exchange(rig: &mut Rig, apps: &[App; 2], qps: &[Vec<Qp>; 2], rounds: std::ops::Range<usize>) {
    for side in 0..2 {
        let wrs = 0..CONNS * rounds.len();
        for slot in wrs {
            let sges = [apps[side].mr.sge((SLOTS + slot) * SLOT, SLOT)];
            apps[side].srq.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges }).unwrap();
        }
    }
    for (turn, round) in rounds.clone().enumerate() {
        for conn in 0..CONNS {
            for side in 0..2 {
                let at = (turn * CONNS + conn) * SLOT;
                apps[side].mr.write(at, &message(side, conn, round));
                let sges = [apps[side].mr.sge(at, SLOT)];
                qps[side][conn].post_send(&SendWr::send(1 << 32, &sges)).unwrap();
            }
        }
    }
    for side in 0..2 {
        let by_qpn: BTreeMap<Qpn, usize> =
            qps[side].iter().enumerate().map(|(conn, qp)| (qp.qpn(), conn)).collect();
        let all = completions(rig, &apps[side], 2 * CONNS * rounds.len());
        let mut next: Vec<_> = vec![rounds.start; CONNS];
        let mut buffers = BTreeSet::new();
        for cqe in all.iter().filter(|c| c.op == CqeOp::Recv) {
            let conn = by_qpn[&cqe.qpn];
            assert!(buffers.insert(cqe.wr_id), "a buffer is used once");
            let mut got = [0; SLOT];
            apps[side].mr.read((SLOTS + cqe.wr_id as usize) * SLOT, &mut got);
            // The message belongs to the connection that the completion names, in the order of the
            // Sends.
            assert_eq!(got, message(1 - side, conn, next[conn]), "side {side}, {conn}");
            next[conn] += 1;
        }
        assert!(next.iter().all(|n| *n == rounds.end), "{next:?}");
    }
}

/// Makes every connection add 1 to the same word, many times: each value comes back once.
fn count_together(rig: &mut Rig, apps: &[App; 2], qps: &[Vec<Qp>; 2], side: usize) {
    let (here, there) = (&apps[side], &apps[1 - side]);
    there.mr.write(0, &[0; 8]);
    let (mut posted, mut seen) = (vec![0; CONNS], Vec::new());
    let wr = |conn: usize| {
        let place = [here.mr.sge(conn * 8, 8)];
        qps[side][conn]
            .post_send(&SendWr::fetch_add(conn as u64, &place, there.mr.stag(), there.mr.to(), 1))
            .unwrap();
    };
    // Each connection has one request outstanding, so that its result can be read.
    for (conn, posted) in posted.iter_mut().enumerate() {
        wr(conn);
        *posted += 1;
    }
    while seen.len() < CONNS * ADDS as usize {
        let cqe = rig.until("an addition", |_| here.cq.poll());
        assert!(cqe.status.is_success(), "{cqe:?}");
        let conn = cqe.wr_id as usize;
        let mut old = [0; 8];
        here.mr.read(conn * 8, &mut old);
        seen.push(u64::from_ne_bytes(old));
        if posted[conn] < ADDS {
            posted[conn] += 1;
            wr(conn);
        }
    }
    let mut sum = [0; 8];
    there.mr.read(0, &mut sum);
    assert_eq!(u64::from_ne_bytes(sum), CONNS as u64 * ADDS, "no addition was lost");
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..CONNS as u64 * ADDS), "each came between two others");
}

fn run(shape: Shape) {
    use_everything(&mut Rig::new(shape));
}

/// Makes 64 connections, half of them opened by either side, and uses everything that they share.
pub fn use_everything(rig: &mut Rig) {
    let apps = [0, 1].map(|n| App::new(rig.sides[n].device()));
    let qps = [0, 1].map(|n: usize| apps[n].qps(CONNS));
    let (first, second) = (0..CONNS / 2, CONNS / 2..CONNS);
    // A listener on each side hears of all connections, whichever worker has them.
    let listeners = [rig.listen(0), rig.listen(1)];
    let there = rig.connect(0, &listeners[1], &qps[0][first.clone()], &qps[1][first]);
    let here = rig.connect(1, &listeners[0], &qps[1][second.clone()], &qps[0][second]);
    assert_eq!(there.len() + here.len(), CONNS);
    for side in 0..2 {
        let spread = rig.spread(side);
        assert_eq!(spread.iter().sum::<u64>(), CONNS as u64, "{spread:?}");
        let workers = spread.len() as u64;
        assert!(spread.iter().all(|n| is_fair(CONNS as u64, workers, *n)), "{spread:?}");
    }
    use_connections(rig, &apps, &qps);
}

/// Makes 64 existing connections do every kind of operation, and ends none.
pub fn use_connections(rig: &mut Rig, apps: &[App; 2], qps: &[Vec<Qp>; 2]) {
    exchange(rig, apps, qps, 0..SENDS);
    count_together(rig, apps, qps, 0);
    count_together(rig, apps, qps, 1);
    // The connections work as before.
    exchange(rig, apps, qps, SENDS..2 * SENDS);
    for side in 0..2 {
        let s = rig.sides[side].snapshot();
        assert_eq!(s.worker.worker.cq_overflows, 0);
        assert!(s.workers.iter().all(|w| w.counters.is_some()));
    }
}

#[test]
fn test_inline_workers_carry_64_connections_over_joined_queues() {
    run(Shape { workers: [2, 2], threads: false });
}

#[test]
fn test_worker_threads_carry_64_connections_over_joined_queues() {
    run(Shape { workers: [2, 2], threads: true });
}

/// Neither side has more than one queue: each worker hands the others their frames.
#[test]
fn test_workers_that_share_a_queue_carry_64_connections() {
    run(Shape { workers: [2, 3], threads: false });
}

/// The side with one worker has one queue, against two workers.
#[test]
fn test_single_worker_carries_64_connections_with_two_workers() {
    run(Shape { workers: [1, 2], threads: false });
}

#[test]
fn test_threads_carry_64_connections_of_one_worker_with_two() {
    run(Shape { workers: [1, 2], threads: true });
}
