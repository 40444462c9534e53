//! Calls of the benchmark's program over a pair of rings, with every byte compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{Net, eal, server};
use heddle_base::units::{Size, Sizes};
use heddle_dataplane::Clock;
use heddle_perf::embedded::{BenchError, Pair, Placement};
use heddle_perf::rpc::load::Load;
use heddle_perf::rpc::pair::RpcPair;
use heddle_perf::rpc::report::{Round, RpcReport};
use heddle_perf::rpc::{RpcError, RpcRun, raw};
use heddle_perf::spec::{BenchSpec, Until, Wire};
use heddle_perf::workload::Run;
use heddle_rpc::{CallError, Speaks};
use heddle_services::Services;
use heddle_services::bench::Mode;
use heddle_services::rpc::program::{Call, MAX_SIZE};
use heddle_verbs::ListenParams;

fn spec(size: u32, calls: u64) -> BenchSpec {
    BenchSpec {
        sizes: Sizes::one(Size(size)),
        until: Until::Iters(calls),
        verify: true,
        ..BenchSpec::default()
    }
}

#[test]
fn test_every_rpc_procedure_in_both_versions_returns_correct_bytes() {
    let (eal, _turn) = eal();
    let most = BenchSpec { qps: 2, depth: Some(4), ..spec(MAX_SIZE, 1) };
    let mut pair = RpcPair::open(&eal, &most).unwrap();
    for (speaks, version) in [(Speaks::V1, 1), (Speaks::V2, 2)] {
        for call in Call::ALL {
            for (size, qps) in [(1, 2), (512, 1), (5001, 2), (100_000, 1)] {
                for verify in [true, false] {
                    let s = BenchSpec { qps, verify, depth: Some(4), ..spec(size, 20) };
                    let what = RpcRun::new(&s, call, speaks, Size(size));
                    let r = pair.run(what, &[]).unwrap();
                    let title = format!("{call} {size} {version}");
                    assert_eq!(
                        (r.outcome.ops, r.version),
                        (20 * u64::from(qps), version),
                        "{title}"
                    );
                    assert_eq!(r.outcome.verified, verify);
                    assert!(r.outcome.latency().p50 > 0 && !r.outcome.elapsed.is_zero());
                }
            }
        }
    }
}

/// The cost of a call besides its bytes: an item has a registration, which the reply invalidates at
/// the peer, and data within messages has none.
#[test]
fn test_rpc_call_registers_item_once_and_server_invalidates_it() {
    let (eal, _turn) = eal();
    let s = BenchSpec { depth: Some(4), ..spec(64 << 10, 100) };
    let mut pair = RpcPair::open(&eal, &s).unwrap();
    for speaks in [Speaks::V1, Speaks::V2] {
        for (call, size, items) in
            [(Call::Get, 64 << 10, 1.0), (Call::Put, 64 << 10, 1.0), (Call::Echo, 512, 0.0)]
        {
            let work = pair.run(RpcRun::new(&s, call, speaks, Size(size)), &[]).unwrap().work;
            assert_eq!(work.registrations, items, "{call}");
            assert_eq!((work.invalidations, work.remote_invalidations), (0.0, items), "{call}");
        }
    }
}

/// A client of version 1 that has sent no private data invalidates its own registrations, and
/// messages of more than 1 KiB lie in memory of their own.
#[test]
fn test_version_1_without_private_data_takes_operations_that_others_do_not() {
    let (eal, _turn) = eal();
    let s = BenchSpec { depth: Some(4), ..spec(64 << 10, 100) };
    let mut pair = RpcPair::open(&eal, &s).unwrap();
    for (call, size, plain, others) in
        [(Call::Get, 64 << 10, 1.0, 1.0), (Call::Echo, 512, 0.0, 0.0), (Call::Echo, 2048, 2.0, 0.0)]
    {
        let mut run = |speaks, private_data| {
            let what = RpcRun::new(&s, call, speaks, Size(size));
            pair.run(RpcRun { private_data, ..what }, &[]).unwrap().work
        };
        for (speaks, private_data) in [(Speaks::V1, true), (Speaks::V2, true), (Speaks::V2, false)]
        {
            let work = run(speaks, private_data);
            assert_eq!((work.registrations, work.invalidations), (others, 0.0), "{call} {size}");
        }
        let work = run(Speaks::V1, false);
        assert_eq!((work.registrations, work.invalidations), (plain, plain), "{call} {size}");
        assert_eq!(work.remote_invalidations, 0.0, "{call} {size}");
    }
}

#[test]
fn test_rounds_beside_the_raw_operation_make_a_report() {
    let (eal, _turn) = eal();
    let s = BenchSpec { mode: Mode::Lat, ..spec(512, 200) };
    let raw_spec = raw(&s, Call::Echo);
    let mut raw_pair = Pair::open(&eal, &raw_spec).unwrap();
    let mut pair = RpcPair::open(&eal, &s).unwrap();
    let what = RpcRun::new(&s, Call::Echo, Speaks::V2, Size(512));
    let rounds = (0..3).map(|_| {
        let run = Run::new(&raw_spec, Size(512));
        let raw = raw_pair.run(&raw_spec, run, Placement::Inline).unwrap();
        Round { load: pair.run(what, &[]).unwrap(), raw: Some(raw) }
    });
    let r = RpcReport::of(&s, &what, Wire::Ring, &[], rounds.collect()).unwrap();
    let ratio = r.ratio.unwrap();
    assert_eq!((r.ops, r.bytes, r.version, r.depth, r.rounds), (200, 512 * 200, 2, 1, 3));
    assert!(0.0 < ratio.min && ratio.min <= ratio.median && ratio.median <= ratio.max);
    let raw = r.raw.unwrap();
    let of_this = (r.ops as f64 / r.seconds) / (raw.ops as f64 / raw.seconds);
    assert!((of_this / ratio.median - 1.0).abs() < 1e-9, "{of_this} {ratio:?}");
}

#[test]
fn test_run_on_three_processors_is_refused_and_pair_stays_usable() {
    let (eal, _turn) = eal();
    let s = spec(512, 1);
    let mut pair = RpcPair::open(&eal, &s).unwrap();
    let what = RpcRun::new(&s, Call::Echo, Speaks::V2, Size(512));
    let refused = pair.run(what, &[0, 1, 2]);
    let wanted =
        matches!(refused, Err(RpcError::Bench(BenchError::Processors { given: 3, wanted: 2 })));
    assert!(wanted, "{refused:?}");
    assert_eq!(pair.run(what, &[]).unwrap().outcome.ops, 1);
}

#[test]
fn test_rpc_service_answers_and_shuts_down_in_order() {
    let (eal, _turn) = eal();
    let mut net = Net::with_memory(&eal, 64 << 20);
    let services = ["10.0.0.2:20049=rpc".parse().unwrap()];
    let params = ListenParams::default();
    let mut services = Services::start(net.server.device(), &services, &params, None).unwrap();
    net.until("a listener", || {
        services.step();
        services.is_listening().unwrap()
    });
    let s = BenchSpec { depth: Some(4), ..spec(64 << 10, 50) };
    let what = RpcRun::new(&s, Call::Put, Speaks::BOTH, Size(64 << 10));
    let clock = Clock::new(&eal);
    let mut load = Load::new(net.client.device(), &clock, server(20049), what).unwrap();
    net.until("replies", || {
        services.step();
        load.step().unwrap();
        load.outcome().is_some()
    });
    let outcome = load.outcome().unwrap();
    assert_eq!((outcome.outcome.ops, outcome.version), (50, 2));
    net.until("the end of the connection", || {
        load.step().unwrap();
        services.step();
        services.conns() == 0
    });
    // The listener has ended: calls time out, and report the reason.
    services.end();
    let gone = Load::new(net.client.device(), &clock, server(20049), what).unwrap();
    gone.close();
    let mut gone = gone;
    let e = gone.step().unwrap_err();
    assert!(matches!(e, RpcError::Call { number: 0, error: CallError::Closed, .. }), "{e}");
}
