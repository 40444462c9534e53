//! No allocation per operation when the RNICs have threads of their own: neither on the workers,
//! nor on the application's thread that posts and polls.
//!
//! The scheduler decides when threads run, and thereby how much is under way at a time: while one
//! worker is off its processor the other's queues fill, and a segment that was not lost may be sent
//! twice. So no fixed number of operations suffices for each queue to reach its greatest length,
//! and for every rare counter to have its place. But that state comes at some time: after some
//! stretches of operations there are [`STRETCHES`] in a row in which no worker made a call.
//!
//! The program has a single test, so that no other test's threads run at the same time.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "allocations/counting/mod.rs"]
mod counting;

use std::time::Instant;

use counting::alloc::{self, Calls};
use counting::traffic::{KINDS, SIZES, Traffic};
use counting::{Setup, connect, eal};
use heddle_ctl::Node;
use heddle_dataplane::CoreList;
use heddle_verbs::MpaOptions;

const WARM_UP: u64 = 2000;
const COUNTED: u64 = 1000;
/// Number of stretches in a row without a call of a worker, after which the state is steady.
const STRETCHES: usize = 3;
/// Number of stretches within which the state has to become steady.
const MOST: u64 = 40;

/// Returns the processors that this process may use.
fn processors() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().parse::<CoreList>().unwrap().cores().to_vec()
}

/// Returns true if the last stretches were without any call.
fn is_steady(stretches: &[[Calls; 2]]) -> bool {
    stretches.len() >= STRETCHES
        && stretches.iter().rev().take(STRETCHES).all(|s| *s == [Calls::NONE; 2])
}

#[test]
fn test_no_operation_allocates_on_any_thread() {
    let (eal, _turn) = eal();
    let (a, b) = Setup::default().open(&eal);
    let cores = processors();
    let a = Node::start(&eal, a, &cores[..1]).unwrap();
    let b = Node::start(&eal, b, &cores[cores.len() - 1..]).unwrap();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let conns = connect(a.device(), b.device(), 1, MpaOptions::new(), std::thread::yield_now);
        let mut traffic = Traffic::new(&conns, kind, &SIZES);
        traffic.run(WARM_UP, std::thread::yield_now);
        let start = Instant::now();
        // The calls of each worker in each stretch, and of each control plane in all.
        let mut workers: Vec<[Calls; 2]> = Vec::new();
        let mut control = [0; 2];
        while !is_steady(&workers) && (workers.len() as u64) < MOST {
            let (ours, before) = (alloc::mine(), alloc::all());
            traffic.run(WARM_UP + (workers.len() as u64 + 1) * COUNTED, std::thread::yield_now);
            let after = alloc::all();
            assert_eq!(
                alloc::mine().since(ours),
                Calls::NONE,
                "{kind:?}: the application's thread"
            );
            let threads = after.since(&before);
            let of = |name: &'static str| {
                threads.iter().filter(move |t| t.0.starts_with(name)).map(|t| t.1)
            };
            workers.push(of("heddle-w").collect::<Vec<_>>().try_into().expect("two workers"));
            for (sum, calls) in control.iter_mut().zip(of("heddle-ctl")) {
                *sum += calls.allocated;
            }
        }
        if !is_steady(&workers) {
            wrong.push(format!("{kind:?}, {COUNTED} operations each: {workers:?}"));
        }
        // The control planes have no part in operations. A control plane wakes ten times a second,
        // and each time makes a list of the events to wait for.
        let naps = start.elapsed().as_millis() as u64 / 100 + 4;
        if control.iter().any(|n| *n > naps) {
            wrong.push(format!("{kind:?}: control planes, {control:?} allocations in {naps} naps"));
        }
        a.device().disconnect(conns[0].id).unwrap();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
