//! The heap bytes of an idle connection, counted: a test opens a thousand connections, puts them to
//! work, and leaves them alone for a while.
//!
//! The test runs two RNICs in virtual time, including TCP and queue pairs. The layers above them
//! add data whose size the compiler knows; `dataplane` adds those sizes up.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(clippy::cast_possible_wrap, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use crate::counting::alloc;
use crate::sim::{Frame, LinkConfig, PORT, Pair, TO_BASE};
use heddle_base::Seed;
use heddle_iwarp::{QpConfig, Role};
use heddle_mr::{MrAttr, MrTable};
use heddle_rnic::{Event, FpduMode, Rnic, RnicConfig};
use heddle_tcp::{Cidr, StackConfig};
use heddle_types::{Access, ConnId, Data, RecvWr, SendOp, SendWr, Sge};

const CONNS: usize = 1000;

/// Bytes of a large message.
const LARGE: usize = 100_000;

/// Receive buffers that stay posted on the passive side, and the bytes that each may take: its
/// entry and its SGE, in rings whose size is a power of two.
const POSTED: usize = 8;
const REQUEST: usize = 64;

/// Bytes that a connection without posted requests may take in the RNIC. The limit includes the
/// allocator's overhead, the connection's share of all tables and pools, and the records of past
/// losses.
const LIMIT: usize = 2048;

fn sge(mr: &MrAttr, at: usize, len: usize) -> Sge {
    Sge { stag: mr.stag, to: at as u64 + TO_BASE, len: len as u32 }
}

/// Steps until `f` returns a value for an event of `host`.
fn event<T>(p: &mut Pair, host: usize, f: impl Fn(&Event) -> Option<T>) -> T {
    for _ in 0..10_000 {
        let events = &mut p.hosts[host].events;
        if let Some((at, found)) = events.iter().enumerate().find_map(|(i, e)| Some((i, f(e)?))) {
            events.remove(at);
            return found;
        }
        p.step();
    }
    panic!("no such event");
}

fn enter(p: &mut Pair, host: usize, conn: ConnId, reply: &[u8], role: Role) {
    let qp = QpConfig { role, sq_depth: 256, rq_depth: 256, ..QpConfig::default() };
    let h = &mut p.hosts[host];
    let mode = FpduMode { startup_len: 20, reply: reply.to_vec(), qp };
    h.rnic.enter_fpdu_mode(conn, mode).unwrap();
    h.rnic.start(&h.mem, conn);
}

/// Makes a connection with a start-up of 20 bytes each way.
fn connect(p: &mut Pair) -> [ConnId; 2] {
    let a = p.hosts[0].rnic.connect(p.now, ([10, 0, 0, 2], PORT).into()).unwrap();
    let started = |e: &Event| matches!(e, Event::StartupBytes { .. }).then_some(());
    event(p, 0, |e| matches!(e, Event::Connected { .. }).then_some(()));
    p.hosts[0].rnic.send_startup(a, &[1; 20]).unwrap();
    let b = event(p, 1, |e| match e {
        Event::Accepted { conn, .. } => Some(*conn),
        _ => None,
    });
    event(p, 1, started);
    enter(p, 1, b, &[2; 20], Role::Responder);
    event(p, 0, started);
    enter(p, 0, a, &[], Role::Initiator);
    [a, b]
}

fn post(p: &mut Pair, conn: ConnId, op: SendOp, sges: &[Sge]) {
    let wr = SendWr { wr_id: 1, op, data: Data::Sges(sges), signaled: true, fence: false };
    p.hosts[0].rnic.post_send(conn, &wr).unwrap();
}

/// Runs work of every kind on all connections at once; returns when all is done.
fn work(p: &mut Pair, conns: &[[ConnId; 2]], mrs: &[MrAttr; 2]) {
    const SENDS: usize = 20;
    let before = [0, 1].map(|i| p.hosts[i].completions.len());
    for &[a, b] in conns {
        let (near, far) = (&mrs[0], &mrs[1]);
        for i in 0..SENDS {
            let sges = [sge(far, 0, 2000)];
            let wr = RecvWr { wr_id: i as u64, sges: &sges };
            p.hosts[1].rnic.post_recv(b, &wr).unwrap();
            let op = SendOp::Send { solicited: false, invalidate: None };
            post(p, a, op, &[sge(near, 0, 2000)]);
        }
        let (stag, to) = (far.stag, TO_BASE);
        post(p, a, SendOp::Write { stag, to }, &[sge(near, 0, LARGE)]);
        post(p, a, SendOp::Read { stag, to }, &[sge(near, 0, 100)]);
    }
    let want = [before[0] + conns.len() * (SENDS + 2), before[1] + conns.len() * SENDS];
    p.run(Duration::from_secs(600), |p| [0, 1].map(|i| p.hosts[i].completions.len()) == want);
    for h in &mut p.hosts {
        assert!(h.completions.iter().all(|(_, c)| c.status.is_success()));
        // These lists are the test's own, and must not count.
        h.completions = Vec::new();
        h.events = Vec::new();
    }
}

/// Lets ten seconds pass without any request.
fn rest(p: &mut Pair) {
    let (end, mut steps) = (p.now + Duration::from_secs(10), 0);
    while p.now < end && p.step() {
        steps += 1;
    }
    // Rounds over a thousand connections have 32 steps each, and end.
    assert!(steps < 10_000, "{steps} steps of idle RNICs");
}

/// Returns the bytes that an RNIC's tables take for each connection that it may have.
fn tables() -> usize {
    let of = |conns: usize| {
        let seed = Seed::from_u64(1);
        let addr = Cidr::new([10, 0, 0, 1].into(), 24).unwrap();
        let stack = StackConfig {
            max_conns: conns,
            ..StackConfig::new([2, 0, 0, 0, 0, 1], addr, Seed::from_u64(1))
        };
        let config = RnicConfig::new(stack, 64, 4096);
        let before = alloc::bytes();
        let rnic: Rnic<Frame> = Rnic::new(config, Arc::new(MrTable::new(&seed, 64)));
        let bytes = alloc::bytes() - before;
        drop(rnic);
        usize::try_from(bytes).unwrap()
    };
    (of(4096) - of(2048)).div_ceil(2048)
}

/// Returns the heap bytes of each connection on each side, including tables.
fn idle_bytes(link: LinkConfig) -> (usize, usize) {
    let mut p = Pair::new(7, link, LARGE);
    let mrs = [0, 1].map(|i| {
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        p.register(i, 0, LARGE, all)
    });
    p.hosts[1].rnic.listen(None, PORT, 64).unwrap();
    let mut conns = Vec::with_capacity(CONNS);
    // With the first connection the hosts learn each other's hardware addresses.
    connect(&mut p);
    rest(&mut p);
    let before = alloc::bytes();
    for _ in 1..CONNS {
        conns.push(connect(&mut p));
    }
    let sides = 2 * conns.len();
    let per_conn = || usize::try_from(alloc::bytes() - before).unwrap() / sides;
    rest(&mut p);
    let fresh = per_conn();
    for &[_, b] in &conns {
        for i in 0..POSTED {
            let sges = [sge(&mrs[1], 0, 2000)];
            p.hosts[1].rnic.post_recv(b, &RecvWr { wr_id: i as u64, sges: &sges }).unwrap();
        }
    }
    let mut after = Vec::new();
    let mut busy = 0;
    for _ in 0..3 {
        work(&mut p, &conns, &mrs);
        busy = busy.max(per_conn());
        rest(&mut p);
        after.push(per_conn());
    }
    // The queues stay trimmed, and a burst leaves no memory behind. Each burst may leave the records
    // of some connections' first losses: those of CUBIC alone take some 300 bytes.
    assert!(after[2] <= after[1] + 64, "{fresh} bytes fresh, {busy} busy, {after:?} idle");
    (busy, after[2] + tables())
}

#[test]
fn test_idle_connection_takes_less_than_two_kibibytes() {
    for loss in [0.0, 0.005] {
        let (busy, idle) = idle_bytes(LinkConfig { loss, ..LinkConfig::default() });
        // Half of the sides have buffers posted.
        let limit = LIMIT + POSTED * REQUEST / 2;
        assert!(idle <= limit, "loss {loss}: {idle} bytes of {limit}");
        assert!(busy > 2 * limit, "loss {loss}: {busy} bytes under load are no burst");
    }
}
