//! Random calls in both directions over random connections, compared with the contents that were
//! sent.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use heddle_base::{Random, Seed};

use crate::conn::world::World;

/// Length of the longest item in bytes, in most runs.
const MIB: u32 = 1 << 20;

fn run(seed: u64, largest: u32, calls: u32) {
    let random = Random::new(&Seed::from_u64(seed));
    let result = catch_unwind(AssertUnwindSafe(|| World::new(random, largest).run(calls)));
    if let Err(panic) = result {
        eprintln!("HEDDLE_RPCRDMA_SEED={seed}, items of up to {largest} bytes, {calls} calls");
        resume_unwind(panic);
    }
}

/// Runs the seed in `HEDDLE_RPCRDMA_SEED`, if the variable is set, and otherwise these seeds.
fn run_all(seeds: std::ops::Range<u64>, largest: u32, calls: u32) {
    match std::env::var("HEDDLE_RPCRDMA_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => run(seed, largest, calls),
        None => seeds.for_each(|seed| run(seed, largest, calls)),
    }
}

#[test]
fn test_random_calls_arrive_unchanged() {
    run_all(0..60, MIB, 60);
}

#[test]
fn test_random_calls_of_up_to_16_mib_arrive_unchanged() {
    run_all(0..16, 16 * MIB, 25);
}

/// Runs many more seeds.
#[test]
#[ignore = "takes minutes"]
fn test_many_more_random_calls_arrive_unchanged() {
    run_all(1000..11_000, MIB, 60);
    run_all(1000..1_400, 16 * MIB, 60);
}
