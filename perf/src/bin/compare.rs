//! Heddle beside its baselines, in one run.
//!
//! ```text
//! compare [--rounds N] [--seconds S] [--mtu N]
//!         [--require-bw RATIO] [--require-lcores RATIO] [--require-lat RATIO]
//! ```
//!
//! The program makes three comparisons, each in alternating rounds, so that other load on the
//! machine affects both sides alike:
//!
//! * bandwidth: RDMA Writes of 64 KiB with CRC-32C, one thread for both ends, against the TCP of
//!   smoltcp without a CRC, one thread for both ends; both with packets of `--mtu` bytes, and both
//!   compute and verify TCP checksums. The program tries smoltcp's settings first and uses the
//!   fastest.
//! * lcores: RDMA Writes of 64 KiB with CRC-32C, client and server on a processor each, against one
//!   thread for both.
//! * latency: a ping-pong of RDMA Writes of 8 bytes between two threads on two processors, against
//!   the kernel's TCP over loopback between two threads on the same processors: the better of a
//!   blocking and a spinning ping-pong. The figures are medians of full round trips.
//!
//! Ratios are above 1 when Heddle is better. Exit status: 0; 1 when a step failed or a required
//! ratio was missed; 2 for wrong usage.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use heddle_base::units::{Size, Sizes};
use heddle_dataplane::{Eal, EalConfig};
use heddle_perf::baseline::kernel::{PingPong, Wait};
use heddle_perf::baseline::smoltcp::{Bulk, Receive};
use heddle_perf::embedded::{Pair, Placement};
use heddle_perf::pin;
use heddle_perf::spec::{BenchSpec, OUTSTANDING_INLINE, Until};
use heddle_perf::stats::Rounds;
use heddle_perf::workload::Run;
use heddle_services::bench::{Mode, Op};

/// Heddle beside its baselines, in one run
#[derive(Debug, Parser)]
struct Args {
    /// Rounds of each comparison
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// Least median ratio of bandwidths
    #[arg(long, value_name = "RATIO")]
    require_bw: Option<f64>,
    /// Least median ratio of the bandwidth of two processors to that of one
    #[arg(long, value_name = "RATIO")]
    require_lcores: Option<f64>,
    /// Least median ratio of latencies
    #[arg(long, value_name = "RATIO")]
    require_lat: Option<f64>,
    /// Leave out the comparison of bandwidths
    #[arg(long, conflicts_with = "require_bw")]
    no_bw: bool,
    /// Leave out the comparison of two processors with one
    #[arg(long, conflicts_with = "require_lcores")]
    no_lcores: bool,
    /// Leave out the comparison of latencies
    #[arg(long, conflicts_with = "require_lat")]
    no_lat: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !(0.01..=3600.0).contains(&args.seconds) {
        let _ = writeln!(
            io::stderr(),
            "compare: --seconds {} is not between 0.01 and 3600",
            args.seconds
        );
        return ExitCode::from(2);
    }
    match compare(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            let _ = writeln!(io::stderr(), "compare: {e}");
            ExitCode::from(1)
        }
    }
}

fn say(text: &str) {
    // A reader that has closed the pipe is no error.
    let _ = writeln!(io::stdout(), "{text}");
}

fn compare(args: &Args) -> Result<bool, Box<dyn Error>> {
    let eal = Eal::init(&EalConfig::default())?;
    let seconds = Duration::from_secs_f64(args.seconds);
    let spec = BenchSpec { until: Until::Elapsed(seconds), mtu: args.mtu, ..BenchSpec::default() };
    let mut pair = Pair::open(&eal, &spec)?;
    let mut good = true;
    if !args.no_bw {
        good &= bandwidth(args, &spec, &mut pair, seconds)?;
    }
    if !args.no_lcores {
        good &= lcores(args, &spec, &mut pair)?;
    }
    if !args.no_lat {
        good &= latency(args, &spec, &mut pair, seconds)?;
    }
    Ok(good)
}

fn bandwidth(
    args: &Args,
    spec: &BenchSpec,
    pair: &mut Pair,
    seconds: Duration,
) -> Result<bool, Box<dyn Error>> {
    let baseline = fastest_smoltcp(args.mtu, seconds)?;
    let run = Run::new(&inline(spec), Size(64 << 10));
    let (mut ours, mut theirs) = (Rounds::default(), Rounds::default());
    for round in 0..args.rounds {
        // Each side goes first in every other round.
        for first in [true, false] {
            if first == (round % 2 == 0) {
                ours.push(pair.run(spec, run, Placement::Inline)?.gbit_per_s);
            } else {
                theirs.push(baseline.run()?.gbit_per_s());
            }
        }
    }
    say(&format!("bandwidth, one thread, MTU {}, Gb/s: median [smallest..largest]", args.mtu));
    say(&format!("  heddle, RDMA Write of 64 KiB, CRC-32C   {ours:.2}"));
    let how = if baseline.receive == Receive::Copy { "copied out" } else { "read in place" };
    say(&format!(
        "  smoltcp TCP, no CRC                     {theirs:.2}  (buffers of {} KiB, link of {} frames, {how})",
        baseline.buffer >> 10,
        baseline.link,
    ));
    Ok(verdict("bandwidth", &ours.ratios_to(&theirs), args.require_bw))
}

/// Finds smoltcp's fastest settings by trial.
fn fastest_smoltcp(mtu: u16, seconds: Duration) -> Result<Bulk, Box<dyn Error>> {
    let trial = (seconds / 8).clamp(Duration::from_millis(20), Duration::from_millis(200));
    let best = Bulk::fastest(mtu.into(), 64 << 10, trial)?;
    Ok(Bulk { duration: seconds, ..best })
}

/// Returns the specification with as many operations outstanding as suit one thread.
fn inline(spec: &BenchSpec) -> BenchSpec {
    BenchSpec { outstanding: OUTSTANDING_INLINE, ..spec.clone() }
}

fn lcores(args: &Args, spec: &BenchSpec, pair: &mut Pair) -> Result<bool, Box<dyn Error>> {
    let cores = pin::first::<2>()?;
    let (on_two, on_one) =
        (Run::new(spec, Size(64 << 10)), Run::new(&inline(spec), Size(64 << 10)));
    let (mut two, mut one) = (Rounds::default(), Rounds::default());
    for round in 0..args.rounds {
        for first in [true, false] {
            if first == (round % 2 == 0) {
                two.push(pair.run(spec, on_two, Placement::Lcores(cores))?.gbit_per_s);
            } else {
                one.push(pair.run(spec, on_one, Placement::Inline)?.gbit_per_s);
            }
        }
    }
    say(&format!(
        "RDMA Write of 64 KiB, CRC-32C, MTU {}, Gb/s: median [smallest..largest]",
        args.mtu
    ));
    say(&format!("  client and server on a processor each   {two:.2}"));
    say(&format!("  both on one thread                      {one:.2}"));
    Ok(verdict("lcores", &two.ratios_to(&one), args.require_lcores))
}

fn latency(
    args: &Args,
    spec: &BenchSpec,
    pair: &mut Pair,
    seconds: Duration,
) -> Result<bool, Box<dyn Error>> {
    let cores = pin::first::<2>()?;
    let spec =
        BenchSpec { op: Op::Write, mode: Mode::Lat, sizes: Sizes::one(Size(8)), ..spec.clone() };
    let run = Run::new(&spec, Size(8));
    let kernel = |wait| PingPong { wait, size: 8, duration: seconds, cores }.run();
    let us = |ns: u64| ns as f64 / 1e3;
    let (mut ours, mut blocking, mut spinning) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..args.rounds {
        for first in [true, false] {
            if first == (round % 2 == 0) {
                ours.push(us(pair.run(&spec, run, Placement::Lcores(cores))?.latency_ns.p50));
            } else {
                blocking.push(us(kernel(Wait::Blocking)?.p50));
                spinning.push(us(kernel(Wait::Spinning)?.p50));
            }
        }
    }
    say(
        "round trip of 8 bytes, two threads, us: median [smallest..largest] of the rounds' medians",
    );
    say(&format!("  heddle, RDMA Write, CRC-32C             {ours:.2}"));
    say(&format!("  kernel TCP over loopback, blocking      {blocking:.2}"));
    say(&format!("  kernel TCP over loopback, spinning      {spinning:.2}"));
    let better = if spinning.median() < blocking.median() { &spinning } else { &blocking };
    Ok(verdict("latency", &better.ratios_to(&ours), args.require_lat))
}

/// Prints the ratio, and returns true if it is as required.
fn verdict(what: &str, ratios: &Rounds, required: Option<f64>) -> bool {
    let mut text = format!("{what} ratio {ratios:.2}");
    let good = required.is_none_or(|r| ratios.median() >= r);
    if let Some(r) = required {
        // A write to a string does not fail.
        let _ = write!(text, ", {} {r:.2} required", if good { "at least" } else { "MISSED:" });
    }
    say(&text);
    good
}
