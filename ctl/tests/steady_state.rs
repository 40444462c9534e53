//! No allocation per operation: once a connection has run for a while, Sends, Writes and Reads of
//! any size allocate nothing, neither in the RNICs nor in the application's calls.
//!
//! Everything runs on the test's own thread here, so its count is all there is. What DPDK takes
//! from its own pools is not counted; that is what the pools are for.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod counting;

use std::time::Duration;

use counting::alloc::{self, Calls};
use counting::traffic::{KINDS, Kind, SIZES, Traffic};
use counting::{Setup, connect, eal};
use heddle_dataplane::FaultConfig;
use heddle_rnic::RnicCounters;

/// Operations of each connection before the count begins, and while it goes on.
const WARM_UP: u64 = 1000;
const COUNTED: u64 = 4000;

#[test]
fn test_the_counter_counts() {
    let before = alloc::mine();
    let one = std::hint::black_box(Box::new(7u8));
    let with_one = alloc::mine().since(before);
    drop(one);
    let mut bytes = std::hint::black_box(Vec::<u8>::with_capacity(1));
    bytes.reserve_exact(100);
    drop(std::hint::black_box(bytes));
    let at_the_end = alloc::mine().since(before);
    assert_eq!(with_one, Calls { allocated: 1, freed: 0 });
    assert_eq!(at_the_end, Calls { allocated: 3, freed: 2 });
    // Another thread's are its own.
    let before = alloc::mine();
    let theirs = std::thread::scope(|s| {
        let theirs = s.spawn(|| {
            let before = alloc::mine();
            drop(std::hint::black_box(Box::new([0u64; 9])));
            alloc::mine().since(before)
        });
        theirs.join().unwrap()
    });
    assert_eq!(theirs, Calls { allocated: 1, freed: 1 });
    assert!(alloc::mine().since(before).allocated > 0, "starting a thread allocates");
}

/// Counts each row on connections of its own, and tells of all that are wrong.
fn assert_none(setup: &Setup, rows: &[(Kind, &[usize])]) {
    let (eal, _turn) = eal();
    let (setup, hand) = setup.clone().with_manual_clock();
    let (mut a, mut b) = setup.open(&eal);
    let (client, server) = (a.device().clone(), b.device().clone());
    let mut wrong = Vec::new();
    for &(kind, sizes) in rows {
        let before = [a.snapshot().worker.rnic, b.snapshot().worker.rnic];
        let mut poll = || {
            a.poll();
            b.poll();
            hand.advance(Duration::from_micros(5));
        };
        let conns = connect(&client, &server, setup.conns, setup.crc, &mut poll);
        let mut traffic = Traffic::new(&conns, kind, sizes);
        traffic.run(WARM_UP, &mut poll);
        let start = alloc::mine();
        traffic.run(WARM_UP + COUNTED, &mut poll);
        let calls = alloc::mine().since(start);
        for conn in &conns {
            client.disconnect(conn.id).unwrap();
        }
        drop(conns);
        for _ in 0..10_000 {
            poll();
        }
        if calls != Calls::NONE {
            let ops = COUNTED * setup.conns as u64;
            wrong.push(format!("{kind:?} of {sizes:?}: {calls:?} in {ops} operations"));
        }
        if !setup.fault.is_none() {
            // The row would show nothing if nothing had been lost and nothing held.
            let after = [a.snapshot().worker.rnic, b.snapshot().worker.rnic];
            let grown = |f: fn(&RnicCounters) -> u64| {
                after.iter().map(f).sum::<u64>() > before.iter().map(f).sum()
            };
            assert!(grown(|c| c.tx_retransmits) && grown(|c| c.rx_ahead), "{kind:?} {sizes:?}");
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Every kind with every size in turn, and with sizes that make the pipeline deep in different
/// ways: most messages, most segments, messages that fill a segment exactly.
fn rows() -> Vec<(Kind, &'static [usize])> {
    const EACH: [&[usize]; 4] = [&SIZES, &[0], &[1, 33], &[65_536]];
    KINDS.iter().flat_map(|&kind| EACH.map(|sizes| (kind, sizes))).collect()
}

#[test]
fn test_no_operation_allocates() {
    assert_none(&Setup::default(), &rows());
}

#[test]
fn test_no_operation_allocates_without_crc() {
    assert_none(&Setup { crc: false, ..Setup::default() }, &KINDS.map(|k| (k, SIZES.as_slice())));
}

#[test]
fn test_no_operation_allocates_on_many_connections() {
    let setup = Setup { conns: 8, ..Setup::default() };
    assert_none(&setup, &[(Kind::Mixed, &SIZES), (Kind::Read, &[4096])]);
}

#[test]
fn test_no_operation_allocates_under_loss_and_reordering() {
    let fault = FaultConfig {
        drop: 0.005,
        duplicate: 0.005,
        reorder: 0.02,
        hold_time: Duration::from_micros(100),
        ..FaultConfig::default()
    };
    let rows: Vec<(Kind, &[usize])> =
        KINDS.iter().flat_map(|&k| [(k, SIZES.as_slice()), (k, [100].as_slice())]).collect();
    assert_none(&Setup { fault, ..Setup::default() }, &rows);
}
