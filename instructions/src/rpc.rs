//! Calls of RPC-over-RDMA on two RNICs in virtual time.

use std::time::Duration;

use heddle_base::units::{Size, Sizes};
use heddle_dataplane::{Clock, Eal};
use heddle_perf::rpc::RpcRun;
use heddle_perf::rpc::pair::RpcPair;
use heddle_perf::spec::{BenchSpec, Until};
use heddle_rpc::Speaks;
use heddle_services::rpc::program::Call;

use crate::harness::{HarnessError, PATIENCE, TURN};
use crate::measured;

/// Counts `ops` calls with items of `size` bytes, `depth` outstanding, after `warm` uncounted
/// calls.
pub(crate) fn stream(
    eal: &Eal,
    call: Call,
    (size, depth): (usize, usize),
    warm: u64,
    ops: u64,
) -> Result<u64, HarnessError> {
    let size = Size(u32::try_from(size).unwrap_or(u32::MAX));
    // The calls after the counted ones are those of the last round. So the comparison of all memory
    // with which the load ends, which is no part of a call, is not counted.
    let all = warm + ops + depth as u64;
    let spec = BenchSpec {
        sizes: Sizes::one(size),
        depth: u32::try_from(depth).ok(),
        until: Until::Iters(all),
        ..BenchSpec::default()
    };
    let (clock, hand) = Clock::manual();
    hand.advance(Duration::from_secs(1));
    let mut pair = RpcPair::in_time_of(eal, &spec, &clock, || hand.advance(TURN))?;
    let mut load = pair.load(RpcRun::new(&spec, call, Speaks::V2, size))?;
    let mut until = |calls: u64| {
        let mut idle = 0;
        while load.ops() < calls {
            let before = load.ops();
            hand.advance(TURN);
            pair.turn(&mut load)?;
            idle = if load.ops() == before { idle + 1 } else { 0 };
            if idle == PATIENCE {
                return Err(HarnessError::Stalled("replies"));
            }
        }
        Ok(())
    };
    until(warm)?;
    measured(|| until(warm + ops))?;
    until(all)?;
    Ok(ops)
}
