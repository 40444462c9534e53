//! No allocation per operation when the RNICs have threads of their own: neither on the workers,
//! nor on the application's thread that posts and polls.
//!
//! One test only, so that no other test's threads run meanwhile.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod counting;

use std::time::Instant;

use counting::alloc::{self, Calls};
use counting::traffic::{KINDS, SIZES, Traffic};
use counting::{Setup, connect, eal};
use heddle_ctl::Node;
use heddle_dataplane::CoreList;

const WARM_UP: u64 = 2000;
const COUNTED: u64 = 1000;
const STRETCHES: usize = 3;

/// Processors this process may use.
fn processors() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().parse::<CoreList>().unwrap().cores().to_vec()
}

#[test]
fn test_no_operation_allocates_on_any_thread() {
    let (eal, _turn) = eal();
    let (a, b) = Setup::default().open(&eal);
    let cores = processors();
    let a = Node::start(&eal, a, cores[0]).unwrap();
    let b = Node::start(&eal, b, cores[cores.len() - 1]).unwrap();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let conns = connect(a.device(), b.device(), 1, true, std::thread::yield_now);
        let mut traffic = Traffic::new(&conns, kind, &SIZES);
        traffic.run(WARM_UP, std::thread::yield_now);
        let start = Instant::now();
        // By thread: what it did in each stretch.
        let mut threads: Vec<(String, Vec<Calls>)> = Vec::new();
        let mut mine = [Calls::NONE; STRETCHES];
        for (i, mine) in (1..).zip(&mut mine) {
            let (ours, before) = (alloc::mine(), alloc::all());
            traffic.run(WARM_UP + i * COUNTED, std::thread::yield_now);
            let after = alloc::all();
            *mine = alloc::mine().since(ours);
            for (at, (name, calls)) in after.since(&before).into_iter().enumerate() {
                if at == threads.len() {
                    threads.push((name, Vec::new()));
                }
                threads[at].1.push(calls);
            }
        }
        assert_eq!(mine, [Calls::NONE; STRETCHES], "{kind:?}: the application's thread");
        let workers: Vec<_> = threads.iter().filter(|t| t.0.starts_with("heddle-w")).collect();
        assert_eq!(workers.len(), 2, "{threads:?}");
        // How much is under way at a time depends on when threads run, and so does the most a queue
        // has held.
        if !workers.iter().all(|t| alloc::is_steady(&t.1)) {
            wrong.push(format!("{kind:?}, {COUNTED} operations each: {workers:?}"));
        }
        // The control planes have no part in operations. They wake ten times a second, and make a
        // list of what to wait for each time.
        let naps = start.elapsed().as_millis() as u64 / 100 + 4;
        for (_, calls) in threads.iter().filter(|t| t.0.starts_with("heddle-ctl")) {
            let total: u64 = calls.iter().map(|c| c.allocated).sum();
            if total > naps {
                wrong.push(format!("{kind:?}: control plane, {total} allocations in {naps} naps"));
            }
        }
        a.device().disconnect(conns[0].id).unwrap();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
