//! No allocation per operation: once a connection has run for a while, Sends, Writes and Reads of
//! any size allocate nothing, neither in the RNICs nor in the application's calls.
//!
//! Everything runs on the test's own thread, so the count of that thread is complete. Memory that
//! DPDK takes from its own pools is not counted, because the pools exist for that purpose.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::counting::alloc::{self, Calls};
use crate::counting::traffic::{KINDS, Kind, SIZES, Traffic};
use crate::counting::{DEPTH, Net, Setup};
use heddle_dataplane::FaultConfig;
use heddle_rnic::RnicCounters;

/// Operations of each connection before the count begins, and during the count. The greatest number
/// under way shows late: Read Responses keep a buffer for each segment that is not acknowledged.
const WARM_UP: u64 = 16_000;
const COUNTED: u64 = 4000;

#[test]
fn test_allocation_counter_counts_calls_of_its_own_thread() {
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
    // The calls of another thread count only for that thread.
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

/// Counts the allocator calls during each of some numbers of operations, one after another on
/// connections of their own.
fn count<const N: usize>(net: &mut Net, kind: Kind, sizes: &[usize], ops: [u64; N]) -> [Calls; N] {
    net.connected(|net, conns| {
        let mut traffic = Traffic::new(conns, kind, sizes);
        let mut total = 0;
        ops.map(|n| {
            total += n;
            let before = alloc::mine();
            traffic.run(total, || net.poll());
            alloc::mine().since(before)
        })
    })
}

fn counters(net: &Net, f: fn(&RnicCounters) -> u64) -> u64 {
    f(&net.a.snapshot().worker.engine.rnic) + f(&net.b.snapshot().worker.engine.rnic)
}

/// Number of stretches of traffic after the warm-up within which a row of stretches without calls
/// has to come. A connection takes more buffers for Read Responses when more responses are under
/// way than ever before, which may be late.
const PATIENCE: usize = 40;
const IN_A_ROW: usize = 4;

/// Counts the allocator calls during `COUNTED` operations and then twice as many, after
/// [`IN_A_ROW`] stretches of `COUNTED` operations have made no call.
fn count_settled(net: &mut Net, kind: Kind, sizes: &[usize], warm_up: u64) -> [Calls; 2] {
    net.connected(|net, conns| {
        let mut traffic = Traffic::new(conns, kind, sizes);
        let mut total = 0;
        let mut stretch = |n| {
            total += n;
            let before = alloc::mine();
            traffic.run(total, || net.poll());
            alloc::mine().since(before)
        };
        stretch(warm_up);
        let mut quiet = 0;
        let settled = (0..PATIENCE).any(|_| {
            quiet = if stretch(COUNTED) == Calls::NONE { quiet + 1 } else { 0 };
            quiet == IN_A_ROW
        });
        assert!(settled, "{kind:?} of {sizes:?} never stops to allocate");
        [stretch(COUNTED), stretch(2 * COUNTED)]
    })
}

/// Counts every row, and reports all rows that are wrong.
fn assert_none(setup: &Setup, warm_up: u64, rows: &[(Kind, &[usize])]) {
    let mut net = Net::new(setup.clone());
    let mut wrong = Vec::new();
    for &(kind, sizes) in rows {
        let [short, long] = count_settled(&mut net, kind, sizes, warm_up);
        if [short, long] != [Calls::NONE; 2] {
            wrong.push(format!("{kind:?} of {sizes:?}: {short:?}, twice as long {long:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns every kind with every size in turn, and with sizes that make the pipeline deep in
/// different ways: most messages, most segments, messages that fill a segment exactly.
fn rows() -> Vec<(Kind, &'static [usize])> {
    const EACH: [&[usize]; 4] = [&SIZES, &[0], &[1, 33], &[65_536]];
    KINDS.iter().flat_map(|&kind| EACH.map(|sizes| (kind, sizes))).collect()
}

#[test]
fn test_no_operation_allocates() {
    assert_none(&Setup::default(), WARM_UP, &rows());
}

/// Queues grow with the number of posted requests, by doubling. Buffers of Read Responses grow one
/// by one, with the number under way. So the first operations allocate, a number of times that
/// depends on the depth of the queues and not on the number of operations, and later operations do
/// not. The very first operation is not counted, because with it the RNICs learn each other's
/// hardware addresses.
#[test]
fn test_first_short_operations_allocate_only_until_queues_have_grown() {
    let mut net = Net::new(Setup::default());
    let mut wrong = Vec::new();
    for size in [0, 1, 33, 1424] {
        for kind in KINDS {
            let stretches = [1, COUNTED, COUNTED, COUNTED, COUNTED, COUNTED, 2 * COUNTED];
            let [_, first, _, _, _, next, long] = count(&mut net, kind, &[size], stretches);
            if first.allocated > 2 * DEPTH as u64 || [next, long] != [Calls::NONE; 2] {
                wrong.push(format!("{kind:?} of {size}: {first:?}, then {next:?}, {long:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn test_no_operation_allocates_without_crc() {
    let setup = Setup { crc: false, ..Setup::default() };
    assert_none(&setup, WARM_UP, &KINDS.map(|k| (k, SIZES.as_slice())));
}

#[test]
fn test_no_operation_allocates_on_many_connections() {
    let setup = Setup { conns: 8, ..Setup::default() };
    assert_none(&setup, WARM_UP, &[(Kind::Mixed, &SIZES), (Kind::Read, &[4096])]);
}

/// Loss makes queues longer, and their greatest length shows late, so they may still grow, by
/// doubling, after the warm-up. The queues' memory must not go to the allocator and back.
#[test]
fn test_loss_and_reordering_allocate_only_until_the_queues_have_grown() {
    let fault = FaultConfig {
        drop: 0.005,
        duplicate: 0.005,
        reorder: 0.02,
        hold_time: Duration::from_micros(100),
        ..FaultConfig::default()
    };
    let mut net = Net::new(Setup { fault, ..Setup::default() });
    let mut wrong = Vec::new();
    for kind in KINDS {
        for sizes in [SIZES.as_slice(), &[100], &[4096]] {
            let seen: [fn(&RnicCounters) -> u64; 3] =
                [|c| c.tx_retransmits, |c| c.rx_ahead, |c| c.rx_held];
            let before = seen.map(|f| counters(&net, f));
            let [_, calls @ ..] =
                count(&mut net, kind, sizes, [WARM_UP, COUNTED, COUNTED, COUNTED]);
            let after = seen.map(|f| counters(&net, f));
            // A row without any loss and held segment would prove nothing.
            let seen = after.iter().zip(before).all(|(after, before)| *after > before);
            assert!(seen, "{kind:?} of {sizes:?}: {before:?} {after:?}");
            if !alloc::is_steady(&calls) {
                wrong
                    .push(format!("{kind:?} of {sizes:?}: {calls:?} in {COUNTED} operations each"));
            }
        }
    }
    let copied = counters(&net, |c| c.held_copied_bytes);
    assert!(copied > 0, "short segments were held, and so copied");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
