//! An owner sleeps until `poll_timeout`, and in each turn it asks `is_due` and `is_idle` whether
//! there is something to do: the three functions must agree at any time.

use std::time::Duration;

use heddle_base::{Instant, Random, Seed};
use heddle_iwarp::QpConfig;
use heddle_types::{Access, RecvWr, SendWr, Sge};
use proptest::prelude::*;

use crate::sim::{LinkConfig, PD, Pair, TO_BASE};

const MEMORY: usize = 1 << 16;

/// Compares the three at `now`, at the time that `poll_timeout` returned, and just before each.
fn check_agreement(p: &Pair) {
    for h in &p.hosts {
        let next = h.rnic.poll_timeout();
        for at in [Some(p.now), next, Some(Instant::ZERO)].into_iter().flatten() {
            let before = Instant::from_nanos(at.as_nanos().saturating_sub(1));
            for t in [at, before] {
                let due = h.rnic.is_due(t);
                assert_eq!(due, next.is_some_and(|at| at <= t), "due at {t:?}, next {next:?}");
                assert!(!due || !h.rnic.is_idle(t), "due at {t:?}, and idle");
            }
        }
    }
}

/// Runs traffic of both ends on some connections, with pauses of all lengths, and an end.
fn run(seed: u64, loss: f64) {
    let mut r = Random::new(&Seed::from_u64(seed));
    let link = LinkConfig { loss, reorder: loss, ..LinkConfig::default() };
    let mut p = Pair::new(seed, link, MEMORY);
    let qp = QpConfig { pd: PD, ..QpConfig::default() };
    let conns: Vec<_> = (0..3).map(|i| p.connect_to(7000 + i, [&qp, &qp])).collect();
    let mrs = [0, 1].map(|h| p.register(h, 0, MEMORY, Access::LOCAL_WRITE));
    for _ in 0..30 {
        let (ids, me) = (conns[r.below(3) as usize], r.below(2) as usize);
        let len = r.below(5000) as u32;
        let sges = [0, 1].map(|h: usize| [Sge { stag: mrs[h].stag, to: TO_BASE, len }]);
        let _ = p.hosts[1 - me].rnic.post_recv(ids[1 - me], &RecvWr::new(1, &sges[1 - me]));
        let _ = p.hosts[me].rnic.post_send(ids[me], &SendWr::send(1, &sges[me]));
        check_agreement(&p);
        for _ in 0..[0, 3, 50, 400][r.below(4) as usize] {
            if !p.step() {
                break;
            }
            check_agreement(&p);
        }
    }
    for [a, b] in conns {
        p.hosts[0].rnic.disconnect(p.now, a);
        p.hosts[1].rnic.abort(b);
        check_agreement(&p);
    }
    // Only timers are left, and they come to an end.
    let end = p.now + Duration::from_secs(600);
    while p.now < end && p.step() {
        check_agreement(&p);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn test_is_due_and_is_idle_agree_with_poll_timeout(seed: u64, loss in 0.0..0.05f64) {
        run(seed, loss);
    }
}

/// The turns of an owner that asks only `is_due` handle everything that `poll_timeout` wakes the
/// owner for, including the rounds that trim quiet connections.
#[test]
fn test_idle_rnic_runs_its_rounds_and_has_no_timer_due() {
    let mut p = Pair::new(1, LinkConfig::default(), MEMORY);
    let [a, b] = p.connect(&QpConfig { pd: PD, ..QpConfig::default() });
    let mrs = [0, 1].map(|h| p.register(h, 0, MEMORY, Access::LOCAL_WRITE));
    let sges = [0, 1].map(|h: usize| [Sge { stag: mrs[h].stag, to: TO_BASE, len: 60_000 }]);
    p.hosts[1].rnic.post_recv(b, &RecvWr::new(1, &sges[1])).unwrap();
    p.hosts[0].rnic.post_send(a, &SendWr::send(1, &sges[0])).unwrap();
    p.run(Duration::from_secs(10), |p| p.hosts[0].completions.len() == 1);
    let (end, mut steps) = (p.now + Duration::from_secs(30), 0);
    while p.next().is_some_and(|at| at <= end) {
        p.step();
        steps += 1;
        for h in &p.hosts {
            let next = h.rnic.poll_timeout();
            assert!(next.is_none_or(|at| at > p.now), "a timer is due that no turn handles");
        }
    }
    // There are rounds of a second each, and timers of TCP and ARP, but not one wake-up after the
    // other.
    assert!((2..100).contains(&steps), "{steps} wake-ups in 30 s of idleness");
}

/// The link loses each of the first requests for the peer's station, or its answer; in the second
/// run, each of a server's SYN-ACKs or its ACK, so that only the client has a connection.
#[test]
fn test_is_due_agrees_with_poll_timeout_when_owner_connects_again() {
    run(1_292_694_105_673_382_099, 0.028_489_625_942_396_6);
    run(2_682_236_882_452_671_156, 0.047_568_969_247_910_11);
}
