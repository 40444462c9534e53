//! Benchmarks over two devices that a vhost-user socket joins.

use heddle_base::units::{Size, Sizes};
use heddle_dataplane::Offloads;
use heddle_perf::embedded::{Pair, Placement};
use heddle_perf::pin;
use heddle_perf::report::BenchReport;
use heddle_perf::spec::{BenchSpec, Faults, Until, Wire};
use heddle_perf::workload::Run;
use heddle_services::bench::{Mode, Op};

use crate::common::eal;

const SIZE: u32 = 64 << 10;
const OPS: u64 = 200;

fn spec(op: Op) -> BenchSpec {
    BenchSpec {
        op,
        mode: Mode::Bw,
        sizes: Sizes::one(Size(SIZE)),
        until: Until::Iters(OPS),
        verify: true,
        wire: Wire::Vhost,
        ..BenchSpec::default()
    }
}

/// Runs on a pair of its own, and returns the report after checking that the data is right.
fn run(spec: &BenchSpec) -> BenchReport {
    let (eal, _turn) = eal();
    let mut pair = Pair::open(&eal, spec).expect("two devices");
    let run = Run::new(spec, Size(SIZE));
    let report = pair.run(spec, run, Placement::Inline).expect("a run");
    assert!(report.verified && report.ops == OPS, "{report:?}");
    report
}

fn counter(r: &BenchReport, side: &str, name: &str) -> u64 {
    r.counters[side].get(name).copied().unwrap_or(0)
}

/// Trains go from the back end to the front end with a Write, and the other way with a Read. A run
/// sends 200 messages of 46 segments.
#[test]
fn test_trains_pass_vhost_whole_in_both_directions() {
    for (op, from, to) in [(Op::Write, "client", "server"), (Op::Read, "server", "client")] {
        let r = run(&spec(op));
        let segments = counter(&r, from, "rnic_tx_segments");
        let trains = counter(&r, from, "rnic_tx_trains");
        let frames = counter(&r, to, "rx_rx_frames");
        assert!(segments >= OPS * 45, "{op}: {segments}");
        assert!(trains > 0 && trains <= segments / 8, "{op}: {trains} trains");
        // A frame that came in pieces, or was cut on the way, would be many frames.
        assert!(frames <= segments / 4, "{op}: {frames} frames of {segments} segments");
        assert!(counter(&r, to, "stack_rx_merged") > 0, "{op}: trains of a burst are one run");
        assert_eq!((r.drops, r.fast_retransmits), (0, 0), "{op}");
    }
}

/// The sender cuts what its port or the other one may not carry, each by itself.
#[test]
fn test_either_offload_left_out_makes_frame_of_each_segment() {
    let without = [
        Offloads { tso: false, ..Offloads::default() },
        Offloads { lro: false, ..Offloads::default() },
        Offloads::NONE,
    ];
    for (offloads, op) in without.into_iter().flat_map(|o| [(o, Op::Write), (o, Op::Read)]) {
        let r = run(&BenchSpec { offloads, ..spec(op) });
        let (from, to) = if op == Op::Write { ("client", "server") } else { ("server", "client") };
        assert_eq!(counter(&r, from, "rnic_tx_trains"), 0, "{op} {offloads:?}");
        let frames = counter(&r, to, "rx_rx_frames");
        assert!(frames >= OPS * 45, "{op} {offloads:?}: {frames}");
        assert_eq!(r.drops, 0, "{op} {offloads:?}");
    }
}

/// The front end cannot see registered memory, so its sender copies payload that others leave where
/// it is.
#[test]
fn test_payload_without_crc_passes_vhost_from_either_end() {
    for op in [Op::Write, Op::Read] {
        let mut s = spec(op);
        s.mpa.crc = heddle_types::mpa::CrcPolicy::Off;
        let r = run(&s);
        let referred = |side| counter(&r, side, "sink_tx_external_bytes");
        let sent = OPS * u64::from(SIZE);
        assert_eq!(referred("server"), 0, "{op}");
        assert!(if op == Op::Write { referred("client") >= sent } else { true }, "{op}");
    }
}

#[test]
fn test_losses_jumbo_frames_and_two_workers_over_vhost() {
    let share = |s: &str| s.parse().expect("a share");
    let faults = Faults { loss: share("2%"), reorder: share("1%"), ..Faults::NONE };
    for op in [Op::Write, Op::Read] {
        let r = run(&BenchSpec { faults, ..spec(op) });
        assert!(r.retransmits > 0 && r.drops > 0, "{op}");
        assert_eq!(counter(&r, "client", "rnic_tx_trains"), 0, "faults meet single segments");
    }
    let r = run(&BenchSpec { mtu: 9000, ..spec(Op::Write) });
    assert!(counter(&r, "client", "rnic_tx_trains") > 0);

    let (eal, _turn) = eal();
    let cpus = pin::available();
    let core = |n: usize| cpus[n % cpus.len()];
    let s = BenchSpec { qps: 4, ..spec(Op::Send) };
    let mut pair = Pair::with_workers(&eal, &s, 2).expect("two devices with two queues");
    let cores = [core(0), core(1), core(0), core(1)];
    let r = pair.run_on(&s, Run::new(&s, Size(SIZE)), &cores).expect("a run");
    assert_eq!((r.ops, r.verified, r.wire), (4 * OPS, true, Wire::Vhost));
    assert!(r.workers.iter().all(|w| w.tx_bytes + w.rx_bytes > 0), "{:?}", r.workers);
}
