//! Benchmarks over a pair of rings, with every byte compared, and their reactions to faulty peers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use heddle_base::Seed;
use heddle_base::units::{Size, Sizes};
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, LcoreWorker};
use heddle_hub::DeviceConfig;
use heddle_perf::embedded::{BenchError, Pair, Placement, Remote};
use heddle_perf::pin;
use heddle_perf::report::{LatencyFrom, WorkerShare};
use heddle_perf::spec::{BenchSpec, Faults, Rate, Until, Wire};
use heddle_perf::usage::Usage;
use heddle_perf::workload::{Client, Run, Workload, WorkloadError};
use heddle_services::bench::hello::{Hello, Reason, Refusal, Region, Welcome};
use heddle_services::bench::{BenchServer, Mode, Op};
use heddle_services::{Serve, Step};
use heddle_tcp::Cidr;
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::{
    CmEvent, DeviceLimits, DisconnectReason, ListenParams, MpaOptions, Protocol, Stag,
};
use std::time::Duration;

use crate::common::{Net, Raw, eal, server};

const OPS: [Op; 3] = [Op::Write, Op::Read, Op::Send];

fn spec(op: Op, mode: Mode, size: u32, iters: u64) -> BenchSpec {
    BenchSpec {
        op,
        mode,
        sizes: Sizes::one(Size(size)),
        until: Until::Iters(iters),
        verify: true,
        ..BenchSpec::default()
    }
}

#[test]
fn test_every_operation_and_mode_inline_and_verified() {
    every_operation(Wire::Ring);
}

#[test]
fn test_every_operation_and_mode_over_rings_that_take_trains() {
    every_operation(Wire::RingTso);
}

#[test]
fn test_every_operation_and_mode_over_vhost() {
    every_operation(Wire::Vhost);
}

fn every_operation(wire: Wire) {
    let (eal, _turn) = eal();
    let most = BenchSpec { qps: 3, wire, ..spec(Op::Send, Mode::Bw, 100_000, 1) };
    let mut pair = Pair::open(&eal, &most).unwrap();
    for op in OPS {
        for mode in [Mode::Bw, Mode::Rate, Mode::Lat] {
            for (size, qps) in [(1, 1), (1460, 3), (100_000, 1), (4096, 3)] {
                let s = BenchSpec { qps, ..spec(op, mode, size, 50) };
                let r = pair.run(&s, Run::new(&s, Size(size)), Placement::Inline).unwrap();
                assert!(r.verified, "{op} {mode} {size}");
                assert_eq!(
                    (r.ops, r.bytes),
                    (50 * u64::from(qps), 50 * u64::from(qps * size)),
                    "{op} {mode}"
                );
                assert_eq!((r.op, r.mode, r.size, r.qps), (op, mode, size, qps));
                assert_eq!(r.wire, wire);
                assert!(r.seconds > 0.0 && r.gbit_per_s > 0.0 && r.mops_per_s > 0.0);
                let l = r.latency_ns;
                assert!(0 < l.min && l.min <= l.p50 && l.p50 <= l.p99 && l.p99 <= l.max, "{l:?}");
                // On a busy machine TCP may probe a tail without need; it retransmits nothing else.
                assert!(r.retransmits <= r.tail_probes + r.timeouts, "{r:?}");
                assert_eq!((r.fast_retransmits, r.drops, r.lcores.len()), (0, 0, 0));
                assert_eq!(r.sides, 2);
            }
        }
    }
}

/// Each Atomic Operation must find the number of those before it, and Immediate Data must be that
/// number, with and without `verify`.
#[test]
fn test_atomics_and_immediate_data_in_every_mode() {
    let (eal, _turn) = eal();
    let most = BenchSpec { qps: 3, ..spec(Op::WriteImm, Mode::Bw, 20_000, 1) };
    let mut pair = Pair::open(&eal, &most).unwrap();
    for op in [Op::WriteImm, Op::SendImm, Op::FetchAdd, Op::CmpSwap] {
        let sizes = op.fixed_size().map_or(vec![1, 8, 1460, 20_000], |s| vec![s.0]);
        for mode in [Mode::Bw, Mode::Rate, Mode::Lat] {
            for (&size, qps, verify) in
                sizes.iter().flat_map(|s| [(s, 1, true), (s, 3, true), (s, 2, false)])
            {
                let s = BenchSpec { qps, verify, ..spec(op, mode, size, 300) };
                let r = pair.run(&s, Run::new(&s, Size(size)), Placement::Inline).unwrap();
                assert_eq!(
                    (r.ops, r.bytes, r.verified),
                    (300 * u64::from(qps), 300 * u64::from(qps * size), verify),
                    "{op} {mode} {size}"
                );
            }
        }
    }
}

#[test]
fn test_atomics_by_the_clock_and_over_a_lossy_wire_count_exactly() {
    let (eal, _turn) = eal();
    for op in [Op::FetchAdd, Op::CmpSwap, Op::WriteImm, Op::SendImm] {
        let mut s = spec(op, Mode::Bw, 8, 1);
        s.until = Until::Elapsed(Duration::from_millis(50));
        s.faults =
            Faults { loss: "2%".parse().unwrap(), reorder: "2%".parse().unwrap(), ..s.faults };
        let mut pair = Pair::open(&eal, &s).unwrap();
        let r = pair.run(&s, Run::new(&s, Size(8)), Placement::Inline).unwrap();
        assert!(r.ops > 0 && r.verified, "{op}");
    }
}

#[test]
fn test_benchmark_runs_with_empty_messages() {
    let (eal, _turn) = eal();
    let mut pair = Pair::open(&eal, &BenchSpec::default()).unwrap();
    for (op, mode) in
        [(Op::Write, Mode::Bw), (Op::Read, Mode::Lat), (Op::Send, Mode::Bw), (Op::Send, Mode::Lat)]
    {
        let s = BenchSpec { verify: false, ..spec(op, mode, 0, 300) };
        let r = pair.run(&s, Run::new(&s, Size(0)), Placement::Inline).unwrap();
        assert_eq!((r.ops, r.bytes, r.verified), (300, 0, false), "{op} {mode}");
    }
}

#[test]
fn test_a_run_by_the_clock_lasts_as_long_as_asked_and_is_not_called_verified() {
    let (eal, _turn) = eal();
    let mut pair = Pair::open(&eal, &BenchSpec::default()).unwrap();
    for op in OPS {
        let until = Until::Elapsed(Duration::from_millis(100));
        let s = BenchSpec { until, verify: false, ..spec(op, Mode::Bw, 16384, 1) };
        let r = pair.run(&s, Run::new(&s, Size(16384)), Placement::Inline).unwrap();
        assert!(!r.verified && r.ops > 0, "{op}");
        assert!((0.1..5.0).contains(&r.seconds), "{op}: {} s", r.seconds);
    }
}

#[test]
fn test_benchmark_runs_on_two_lcores() {
    let (eal, _turn) = eal();
    let Ok(cores) = pin::first::<2>() else { return };
    let mut pair = Pair::open(&eal, &BenchSpec::default()).unwrap();
    for op in OPS {
        for mode in [Mode::Bw, Mode::Lat] {
            let s = spec(op, mode, 4000, 200);
            let r = pair.run(&s, Run::new(&s, Size(4000)), Placement::Lcores(cores)).unwrap();
            assert_eq!((r.ops, r.verified, &r.lcores[..]), (200, true, &cores[..]), "{op} {mode}");
        }
    }
}

/// Two workers per side, on all processors of the machine; threads share a processor if there are
/// too few.
#[test]
fn test_benchmark_runs_with_two_workers_per_side() {
    let (eal, _turn) = eal();
    let cpus = pin::available();
    let core = |n: usize| cpus[n % cpus.len()];
    let cores = [core(0), core(1), core(0), core(1)];
    let most = BenchSpec { qps: 4, ..BenchSpec::default() };
    let mut pair = Pair::with_workers(&eal, &most, 2).unwrap();
    for (n, op) in OPS.into_iter().enumerate() {
        let s = BenchSpec { qps: 4, ..spec(op, Mode::Bw, 4000, 200) };
        let r = pair.run_on(&s, Run::new(&s, Size(4000)), &cores).unwrap();
        assert_eq!((r.ops, r.verified, &r.lcores[..]), (800, true, &cores[..]), "{op}");
        let names: Vec<_> = r.workers.iter().map(|w| (w.side.as_str(), w.lcore)).collect();
        let lcore = |n: usize| Some(cores[n]);
        let sides = ["client", "client", "server", "server"];
        assert_eq!(names, [0, 1, 2, 3].map(|n: usize| (sides[n], lcore(n))));
        // Each worker gets as many connections; later runs may find connections of an earlier run
        // still closing.
        let fair = |w: &WorkerShare| n > 0 || w.connections == 2;
        assert!(r.workers.iter().all(fair), "{:?}", r.workers);
        assert!(r.workers.iter().all(|w| w.tx_bytes + w.rx_bytes > 0), "{:?}", r.workers);
        let inline = pair.run(&s, Run::new(&s, Size(4000)), Placement::Inline).unwrap();
        assert_eq!((inline.ops, inline.verified), (800, true));
        assert!(inline.workers.iter().all(|w| w.lcore.is_none()));
    }
    let wrong = pair.run(&most, Run::new(&most, Size(4000)), Placement::Lcores([cores[0]; 2]));
    assert!(wrong.is_err(), "two processors for four workers");
}

#[test]
fn test_large_messages_have_enough_frames() {
    let (eal, _turn) = eal();
    let s = BenchSpec { qps: 3, depth: Some(8), ..spec(Op::Write, Mode::Bw, 1 << 20, 20) };
    let mut pair = Pair::open(&eal, &s).unwrap();
    for op in OPS {
        let s = BenchSpec { op, verify: false, ..s.clone() };
        let r = pair.run(&s, Run::new(&s, Size(1 << 20)), Placement::Inline).unwrap();
        assert_eq!((r.ops, r.drops, r.fast_retransmits), (60, 0, 0), "{op}");
    }
}

#[test]
fn test_client_of_remote_server_reports_its_own_losses_and_place() {
    let (eal, _turn) = eal();
    let Ok([core, cores]) = pin::first::<2>() else { return };
    let config = |n: u8| {
        let addrs = Cidr::new([10, 0, 9, n].into(), 24).into_iter().collect();
        EndpointConfig {
            frames: 4095,
            ..EndpointConfig::with_seed(addrs, Seed::from_u64(n.into()))
        }
    };
    let mut lossy = config(2);
    lossy.fault.drop = 0.05;
    let (a, mut b) = Endpoint::ring_pair(&eal, "elsewhere", &config(1), &lossy).unwrap();
    let addr = ([10, 0, 9, 2], 7471).into();
    let protocol = Protocol::Mpa(MpaOptions { crc: CrcPolicy::Off, ..MpaOptions::default() });
    let params = ListenParams { protocol, ..ListenParams::default() };
    let mut server = BenchServer::new(b.device(), addr, params, None).unwrap();
    let serving = LcoreWorker::spawn(&eal, cores, "elsewhere", move |stop| {
        while !stop.is_set() {
            b.poll();
            server.step();
        }
        b.snapshot().worker.fault.fault_dropped
    })
    .unwrap();
    let mut remote = Remote::new(&eal, a, addr);
    // The wire loses answers, so the losses are the server side's.
    let s = spec(Op::Read, Mode::Bw, 16384, 60);
    let r = remote.run(&s, Run::new(&s, Size(16384)), &[core]).unwrap();
    assert!(serving.join().unwrap() > 0, "the server lost some");
    assert_eq!((r.wire, r.sides, &r.lcores[..]), (Wire::Vdev, 1, &[core][..]));
    assert_eq!((r.ops, r.drops, r.verified), (60, 0, true));
}

/// A client spreads its connections over its workers, each on a processor of its own.
#[test]
fn test_client_of_remote_server_uses_several_workers() {
    let (eal, _turn) = eal();
    let Ok([core, other]) = pin::first::<2>() else { return };
    let config = |n: u8, workers| EndpointConfig {
        frames: 4095,
        workers,
        ..EndpointConfig::with_seed(
            Cidr::new([10, 0, 8, n].into(), 24).into_iter().collect(),
            Seed::from_u64(n.into()),
        )
    };
    let (a, mut b) = Endpoint::ring_pair(&eal, "several", &config(1, 2), &config(2, 1)).unwrap();
    let addr = ([10, 0, 8, 2], 7471).into();
    let mut server = BenchServer::new(b.device(), addr, ListenParams::default(), None).unwrap();
    let serving = LcoreWorker::spawn(&eal, other, "several", move |stop| {
        while !stop.is_set() {
            if !b.poll() && !server.step() {
                std::thread::yield_now();
            }
        }
    })
    .unwrap();
    let mut remote = Remote::new(&eal, a, addr);
    let s = BenchSpec { qps: 6, ..spec(Op::Write, Mode::Bw, 4096, 40) };
    let wrong = remote.run(&s, Run::new(&s, Size(4096)), &[core]);
    assert!(matches!(wrong, Err(BenchError::Processors { given: 1, wanted: 2 })), "{wrong:?}");
    for _ in 0..2 {
        let r = remote.run(&s, Run::new(&s, Size(4096)), &[core, other]).unwrap();
        assert_eq!((r.ops, r.verified, &r.lcores[..]), (240, true, &[core, other][..]));
        assert_eq!(r.workers.len(), 2);
        assert!(r.workers.iter().all(|w| w.tx_bytes > 0), "{:?}", r.workers);
    }
    serving.join().unwrap();
}

#[test]
fn test_lossy_wire_changes_only_the_duration() {
    let (eal, _turn) = eal();
    let p = |s: &str| s.parse().unwrap();
    let faults = Faults { loss: p("2%"), reorder: p("2%"), dup: p("2%"), seed: 11 };
    let base = BenchSpec { faults, ..BenchSpec::default() };
    let mut pair = Pair::open(&eal, &base).unwrap();
    for op in OPS {
        let s = BenchSpec { faults, ..spec(op, Mode::Bw, 16384, 60) };
        let r = pair.run(&s, Run::new(&s, Size(16384)), Placement::Inline).unwrap();
        assert!(r.verified && r.ops == 60, "{op}");
        assert!(
            r.drops > 0 && r.retransmits > 0,
            "{op}: {} drops, {} retransmits",
            r.drops,
            r.retransmits
        );
    }
}

#[test]
fn test_benchmark_runs_without_crc_and_with_large_packets() {
    let (eal, _turn) = eal();
    let s = BenchSpec {
        mpa: MpaOptions::new().crc(CrcPolicy::Off),
        mtu: 9000,
        ..spec(Op::Write, Mode::Bw, 50_000, 40)
    };
    let mut pair = Pair::open(&eal, &s).unwrap();
    let r = pair.run(&s, Run::new(&s, Size(50_000)), Placement::Inline).unwrap();
    assert_eq!((r.crc, r.mtu, r.verified), (false, 9000, true));
}

/// Without faults, a run by the clock.
fn timed(op: Op, mode: Mode, size: u32, ms: u64) -> BenchSpec {
    let until = Until::Elapsed(Duration::from_millis(ms));
    BenchSpec { until, verify: false, ..spec(op, mode, size, 1) }
}

#[test]
fn test_rate_bounds_the_operations_of_every_mode() {
    let (eal, _turn) = eal();
    let most = BenchSpec { qps: 3, ..spec(Op::Send, Mode::Bw, 4096, 1) };
    let mut pair = Pair::open(&eal, &most).unwrap();
    for op in [Op::Write, Op::Read, Op::Send, Op::WriteImm, Op::FetchAdd] {
        for mode in [Mode::Bw, Mode::Lat] {
            let size = op.fixed_size().map_or(1000, |s| s.0);
            let rate = Some(Rate::Ops(3000.0));
            let s = BenchSpec { qps: 3, rate, ..timed(op, mode, size, 200) };
            s.check().unwrap();
            let r = pair.run(&s, Run::new(&s, Size(size)), Placement::Inline).unwrap();
            let due = r.due_ops.unwrap();
            assert!((600..3000).contains(&due), "{op} {mode}: {due}");
            // A backlog of the warm-up may come on top.
            assert!(r.ops > 0 && r.ops <= due + 100, "{op} {mode}: {} of {due}", r.ops);
            assert_eq!((r.latency_from, r.rate_ops_per_s), (LatencyFrom::Due, Some(3000.0)));
        }
    }
    // The third connection's first operation is due after the end.
    let s = BenchSpec { qps: 3, rate: Some(Rate::Ops(10.0)), ..timed(Op::Write, Mode::Bw, 8, 150) };
    let s = BenchSpec { warmup: Some(Duration::ZERO), ..s };
    let r = pair.run(&s, Run::new(&s, Size(8)), Placement::Inline).unwrap();
    assert_eq!((r.ops, r.due_ops), (2, Some(1)), "those at 0 and 100 ms");
    // By number of operations: the last of 60 per connection is due after 59 ms.
    let s = BenchSpec { rate: Some(Rate::Ops(1000.0)), ..spec(Op::Write, Mode::Bw, 64, 60) };
    let r = pair.run(&s, Run::new(&s, Size(64)), Placement::Inline).unwrap();
    assert!(r.ops == 60 && r.seconds >= 0.059 && r.verified, "{r:?}");
}

/// A stall of the client delays every operation that was due meanwhile, and the latencies say so. A
/// closed loop has only its outstanding operations delayed.
#[test]
fn test_latency_at_a_fixed_rate_shows_a_stall_in_all_delayed_operations() {
    let (eal, _turn) = eal();
    for mode in [Mode::Bw, Mode::Lat] {
        let mut net = Net::new(&eal);
        let params = ListenParams::default();
        let mut perf = BenchServer::new(net.server.device(), server(7471), params, None).unwrap();
        let rate = Some(Rate::Ops(1000.0));
        let warmup = Some(Duration::ZERO);
        let s = BenchSpec { rate, warmup, ..timed(Op::Write, mode, 64, 300) };
        let run = Run::new(&s, Size(64));
        let mut client =
            Client::new(net.client.device(), &Clock::new(&eal), server(7471), run).unwrap();
        let mut stalled = false;
        net.until("the end of a run", || {
            if client.ops() > 50 && !stalled {
                stalled = true;
                std::thread::sleep(Duration::from_millis(120));
            }
            perf.step();
            client.step().unwrap() == Step::Done
        });
        let outcome = client.outcome();
        // 120 of 300 operations were due in the stall: a third of all waited for 20 ms and more.
        let times = outcome.times.steps();
        let late: u64 = times.iter().filter(|t| t.ns > 20_000_000).map(|t| t.count).sum();
        assert!(stalled && late >= 80, "{mode}: {late} of {}", outcome.ops);
        assert!(outcome.latency().max >= 100_000_000, "{mode}: {:?}", outcome.latency());
    }
}

#[test]
fn test_intervals_hold_all_operations_of_a_run() {
    let (eal, _turn) = eal();
    let mut pair = Pair::open(&eal, &BenchSpec::default()).unwrap();
    for mode in [Mode::Bw, Mode::Lat] {
        let interval = Some(Duration::from_millis(20));
        let warmup = Some(Duration::from_millis(50));
        let s = BenchSpec { interval, warmup, ..timed(Op::Write, mode, 4096, 110) };
        let r = pair.run(&s, Run::new(&s, Size(4096)), Placement::Inline).unwrap();
        assert_eq!(r.intervals.iter().map(|i| i.ops).sum::<u64>(), r.ops, "{mode}");
        assert!(r.intervals.len() >= 5, "{mode}: {:?}", r.intervals);
        let joined = r.intervals.windows(2).all(|w| w[0].end_seconds == w[1].start_seconds);
        assert!(joined && r.intervals[0].start_seconds == 0.0, "{:?}", r.intervals);
        assert!((0.0199..0.0201).contains(&r.intervals[0].end_seconds), "{:?}", r.intervals[0]);
        assert!(r.intervals[0].gbit_per_s > 0.0 && r.intervals[0].latency_ns.p50 > 0);
        assert_eq!(r.warmup_seconds, 0.05);
        assert_eq!(pair.progress.intervals_from(2).len(), r.intervals.len() - 2);
    }
    let s = timed(Op::Write, Mode::Bw, 4096, 20);
    let r = pair.run(&s, Run::new(&s, Size(4096)), Placement::Inline).unwrap();
    assert!(r.intervals.is_empty(), "none without the option, none of the run before");
}

/// A lossy wire: the sender retransmits all the time, of a Read at the far end. On a busy machine most
/// of it may come after the measured time, while the last operations end.
#[test]
fn test_intervals_hold_the_retransmits_of_both_ends() {
    let (eal, _turn) = eal();
    let Ok(cores) = pin::first::<2>() else { return };
    let faults = Faults { loss: "2%".parse().unwrap(), ..Faults::NONE };
    let interval = Some(Duration::from_millis(100));
    let warmup = Some(Duration::ZERO);
    for op in [Op::Write, Op::Read] {
        let s = BenchSpec { interval, warmup, faults, ..timed(op, Mode::Bw, 16_384, 500) };
        let mut pair = Pair::open(&eal, &s).unwrap();
        for placement in [Placement::Inline, Placement::Lcores(cores)] {
            let r = pair.run(&s, Run::new(&s, Size(16_384)), placement).unwrap();
            let counts: Vec<_> = r.intervals.iter().filter_map(|i| i.retransmits).collect();
            assert_eq!(counts.len(), r.intervals.len(), "{op} {placement:?}");
            let sum = counts.iter().sum::<u64>();
            assert!(sum <= r.retransmits, "{op} {placement:?}: {counts:?} of {}", r.retransmits);
            assert!(sum > 0, "{op} {placement:?}: {counts:?} of {}", r.retransmits);
        }
    }
}

#[test]
fn test_report_has_processor_time_and_counters_of_both_ends() {
    let (eal, _turn) = eal();
    let Ok(cores) = pin::first::<2>() else { return };
    let mut pair = Pair::open(&eal, &BenchSpec::default()).unwrap();
    let s = timed(Op::Write, Mode::Bw, 4096, 200);
    let r = pair.run(&s, Run::new(&s, Size(4096)), Placement::Lcores(cores)).unwrap();
    let used = |u: Option<Usage>| u.map_or(0.0, |u| u.user_seconds + u.system_seconds);
    assert_eq!(r.workers.len(), 2);
    assert!(r.workers.iter().all(|w| used(w.processor) > 0.0), "{:?}", r.workers);
    let both: f64 = r.workers.iter().map(|w| used(w.processor)).sum();
    assert!(used(Some(r.processor)) >= both * 0.9, "{:?} {:?}", r.processor, r.workers);
    assert_eq!(r.counters.keys().collect::<Vec<_>>(), ["client", "server"]);
    assert!(r.counters.values().all(|c| !c.is_empty() && c.values().all(|v| *v > 0)));
    assert_eq!(r.latency_steps.iter().map(|s| s.count).sum::<u64>(), r.ops);
    let inline = pair.run(&s, Run::new(&s, Size(4096)), Placement::Inline).unwrap();
    assert!(inline.workers.iter().all(|w| w.processor.is_none()));
    assert!(used(Some(inline.processor)) > 0.0);
}

fn hello() -> Hello {
    Hello {
        op: Op::Read,
        mode: Mode::Bw,
        verify: false,
        bidirectional: false,
        size: 4096,
        depth: 4,
        seed: 1,
        region: Region::default(),
    }
}

#[test]
fn test_server_rejects_each_bad_hello_with_its_reason() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let mut perf =
        BenchServer::new(net.server.device(), server(7471), ListenParams::default(), None).unwrap();
    let huge = Hello { size: 64 << 20, depth: 4096, ..hello() };
    let large = Hello { size: 16 << 20, depth: 4, ..hello() };
    let mut old = hello().encode();
    old[4] = 9;
    let mut flagged = hello().encode();
    flagged[7] = 0x80;
    for (private_data, reason) in [
        (Vec::new(), Reason::NOT_OURS),
        (b"GET / HTTP/1.1".to_vec(), Reason::NOT_OURS),
        (vec![0xff; 400], Reason::NOT_OURS),
        (old, Reason::VERSION),
        (flagged, Reason::MALFORMED),
        (hello().encode()[..40].to_vec(), Reason::MALFORMED),
        (huge.encode(), Reason::NO_MEMORY),
        (large.encode(), Reason::NO_MEMORY),
    ] {
        let raw = Raw::new(&net.client, 64);
        raw.connect(&net.client, server(7471), &private_data);
        let event = raw.event(&mut net, || {
            perf.step();
        });
        let CmEvent::Rejected { private_data, .. } = event else { panic!("{reason}: {event:?}") };
        assert_eq!(Refusal::decode(&private_data), Ok(Refusal(reason)));
        assert_eq!(perf.connections(), 0, "{reason}");
    }
    // The server still serves.
    let run = Run::new(&spec(Op::Read, Mode::Bw, 4096, 20), Size(4096));
    let mut client =
        Client::new(net.client.device(), &Clock::new(&eal), server(7471), run).unwrap();
    net.until("the end of a run", || {
        perf.step();
        client.step().unwrap() == Step::Done
    });
    assert!(client.outcome().verified);
}

/// tests/services.rs has the same test for the other services.
#[test]
fn test_benchmark_server_releases_protection_domains_of_departed_clients() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let limits = DeviceLimits { max_pds: 2, ..DeviceLimits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::default() };
    let device = net.server.hub().open(&config).unwrap();
    let mut perf = BenchServer::new(&device, server(7471), ListenParams::default(), None).unwrap();
    for n in 0..6 {
        let run = Run::new(&spec(Op::Read, Mode::Bw, 4096, 20), Size(4096));
        let device = net.client.device();
        let mut client = Client::new(device, &Clock::new(&eal), server(7471), run).unwrap();
        net.until("the end of a run", || {
            perf.step();
            client.step().unwrap_or_else(|e| panic!("client {n}: {e}")) == Step::Done
        });
        net.until("its end at the server", || {
            perf.step();
            perf.connections() == 0
        });
    }
}

/// A connection that ends flushes its operations before its event comes; the client reports the reason
/// of the end, in streams and in ping-pongs.
#[test]
fn test_client_says_why_its_connection_ended() {
    let (eal, _turn) = eal();
    for (op, mode) in [(Op::Write, Mode::Bw), (Op::Send, Mode::Bw), (Op::Send, Mode::Lat)] {
        let mut net = Net::new(&eal);
        let device = net.server.device();
        let mut perf =
            BenchServer::new(device, server(7471), ListenParams::default(), None).unwrap();
        let until = Until::Elapsed(Duration::from_secs(60));
        let s = BenchSpec { verify: false, until, ..spec(op, mode, 4096, 1) };
        let run = Run::new(&s, Size(4096));
        let mut client =
            Client::new(net.client.device(), &Clock::new(&eal), server(7471), run).unwrap();
        let mut failure = None;
        net.until("a failure", || {
            perf.step();
            if client.ops() > 100 {
                perf.end();
            }
            failure = client.step().err();
            failure.is_some()
        });
        let why = failure.expect("it was waited for");
        let is_orderly = |r: &DisconnectReason| *r == DisconnectReason::Orderly;
        let told = matches!(&why, WorkloadError::Disconnected(r) if is_orderly(r));
        assert!(told, "{op} {mode}: {why}");
    }
}

/// Runs against a server that accepts and grants a region of zeros.
fn run_against_zeros(op: Op, mode: Mode, welcome: impl Fn(&Raw) -> Welcome) -> WorkloadError {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let raw = Raw::new(&net.server, 1 << 16);
    net.server.device().listen(server(1), ListenParams::default(), &raw.events).expect("a request");
    let size = op.fixed_size().unwrap_or(Size(4096));
    let s = BenchSpec {
        depth: Some(if mode == Mode::Lat { 1 } else { 4 }),
        ..spec(op, mode, size.0, 20)
    };
    let run = Run::new(&s, size);
    let mut client =
        Client::new(net.client.device(), &Clock::new(&eal), server(1), run).expect("a request");
    let mut failure = None;
    let device = net.server.device().clone();
    net.until("a failure", || {
        if let Some(CmEvent::ConnectRequest { id, .. }) = raw.events.poll() {
            let mut params = heddle_verbs::AcceptParams::new(raw.qp.clone());
            params.private_data = welcome(&raw).encode();
            device.accept(id, params).expect("a request");
        }
        failure = client.step().err();
        failure.is_some()
    });
    failure.expect("it was waited for")
}

fn all_of(raw: &Raw) -> Region {
    Region { stag: raw.mr.stag(), to: raw.mr.to(), len: raw.mr.len() as u64 }
}

#[test]
fn test_client_detects_wrong_bytes_when_it_reads() {
    for mode in [Mode::Bw, Mode::Lat] {
        let e = run_against_zeros(Op::Read, mode, |raw| Welcome { window: 0, region: all_of(raw) });
        assert!(matches!(e, WorkloadError::Wrong { size: 4096, at: 0, .. }), "{mode}: {e}");
    }
}

#[test]
fn test_client_detects_counter_that_differs_from_number_of_operations() {
    for op in [Op::FetchAdd, Op::CmpSwap] {
        for mode in [Mode::Bw, Mode::Lat] {
            let e = run_against_zeros(op, mode, |raw| {
                raw.mr.write(0, &5u64.to_ne_bytes());
                Welcome { window: 0, region: all_of(raw) }
            });
            assert!(
                matches!(e, WorkloadError::Counter { expected: 0, found: 5 }),
                "{op} {mode}: {e}"
            );
        }
    }
}

#[test]
fn test_client_reports_refused_remote_write() {
    let e = run_against_zeros(Op::Write, Mode::Bw, |raw| Welcome {
        window: 0,
        region: Region { stag: Stag(raw.mr.stag().0 ^ 0x100), ..all_of(raw) },
    });
    assert!(matches!(e, WorkloadError::Completion { .. } | WorkloadError::Disconnected(_)), "{e}");
}

#[test]
fn test_client_refuses_a_region_or_a_window_that_is_too_small() {
    let e = run_against_zeros(Op::Write, Mode::Bw, |raw| Welcome {
        window: 0,
        region: Region { len: 4 * 4096 - 1, ..all_of(raw) },
    });
    assert!(matches!(e, WorkloadError::Misfit { .. }), "{e}");
    let e = run_against_zeros(Op::Send, Mode::Bw, |raw| Welcome { window: 7, region: all_of(raw) });
    assert!(matches!(e, WorkloadError::Misfit { .. }), "{e}");
}

#[test]
fn test_client_reports_missing_listener() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let run = Run::new(&spec(Op::Read, Mode::Bw, 64, 1), Size(64));
    let mut client = Client::new(net.client.device(), &Clock::new(&eal), server(9), run).unwrap();
    let mut failure = None;
    net.until("a failure", || {
        failure = client.step().err();
        failure.is_some()
    });
    let e = failure.expect("it was waited for");
    assert!(matches!(e, WorkloadError::Connect { .. }), "{e}");
    assert!(e.to_string().contains("10.0.0.2:9"), "{e}");
}
