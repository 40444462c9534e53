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

const WARM_UP: u64 = 4000;
const COUNTED: u64 = 4000;

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
        let (start, mine, before) = (Instant::now(), alloc::mine(), alloc::all());
        traffic.run(WARM_UP + COUNTED, std::thread::yield_now);
        let (after, mine) = (alloc::all(), alloc::mine().since(mine));
        let naps = start.elapsed().as_millis() / 100;
        let threads = after.since(&before);
        let workers: Vec<_> = threads.iter().filter(|t| t.0.starts_with("heddle-w")).collect();
        assert_eq!(workers.len(), 2, "{threads:?}");
        if mine != Calls::NONE || workers.iter().any(|t| t.1 != Calls::NONE) {
            wrong.push(format!("{kind:?}: application {mine:?}, {workers:?}"));
        }
        // The control planes have no part in operations. They wake ten times a second, and take a
        // list of what to wait for each time.
        let idle = Calls { allocated: naps as u64 + 4, freed: naps as u64 + 4 };
        for (_, calls) in threads.iter().filter(|t| t.0.starts_with("heddle-ctl")) {
            if calls.allocated > idle.allocated || calls.freed > idle.freed {
                wrong.push(format!("{kind:?}: control plane {calls:?} in {COUNTED} operations"));
            }
        }
        a.device().disconnect(conns[0].id).unwrap();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
