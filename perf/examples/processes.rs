//! Measures what an application pays for living in another process than its RNIC: the example runs
//! the same benchmarks in turn on a device of this process and, through a socket, on a device of
//! another process.
//!
//! A single thread polls the server and two RNICs that rings connect; the client has a processor of
//! its own, as a thread or as a process. So both sides of the comparison cross from one thread to
//! another.
//!
//! ```sh
//! cargo run -p heddle-perf --example processes
//! ```
//!
//! With 64 free hugepages of 2 MiB, the example also measures the process with its memory and its
//! queues on such pages.

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::error::Error;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_base::units::{Size, Sizes};
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages, LcoreWorker};
use heddle_hub::{DeviceConfig, Policy, serve};
use heddle_perf::own_process::OwnProcess;
use heddle_perf::pin;
use heddle_perf::sizing::{memory_for, queues_for};
use heddle_perf::spec::{BenchSpec, Until};
use heddle_perf::workload::Run;
use heddle_services::bench::{BenchServer, Mode, Op};
use heddle_tcp::Cidr;
use heddle_verbs::remote::OpenParams;
use heddle_verbs::{Device, ListenParams, PageSize, Region};

type Fault = Box<dyn Error + Send + Sync>;

/// Tell the child, which is this program again, where the socket is and which benchmark to run.
const SOCKET: &str = "HEDDLE_PROCESSES_SOCKET";
const CASE: &str = "HEDDLE_PROCESSES_CASE";
/// Set if the child's memory and queues have to lie on hugepages.
const HUGE: &str = "HEDDLE_PROCESSES_HUGE";

/// The number of measurements of each case, unless the first argument gives another; the median
/// counts.
const ROUNDS: usize = 5;

/// The cases: name, mode, size in bytes, and unit of the figure.
const CASES: [(&str, Mode, u32, &str); 3] = [
    ("write 64K", Mode::Bw, 64 << 10, "Gbit/s"),
    ("write 8, rate", Mode::Rate, 8, "M/s"),
    ("write 8, there and back", Mode::Lat, 8, "us"),
];

fn spec(case: usize) -> (BenchSpec, Run) {
    let (_, mode, size, _) = CASES[case];
    let spec = BenchSpec {
        op: Op::Write,
        mode,
        sizes: Sizes::one(Size(size)),
        until: Until::Elapsed(Duration::from_millis(300)),
        ..BenchSpec::default()
    };
    let run = Run::new(&spec, Size(size));
    (spec, run)
}

fn server() -> SocketAddr {
    ([10, 0, 0, 2], 7471).into()
}

/// Returns the figure of one run on `device`.
fn measure(device: Device, case: usize) -> Result<f64, Fault> {
    let (spec, run) = spec(case);
    let report = OwnProcess::new(device, server()).run(&spec, run, None)?;
    Ok(match spec.mode {
        Mode::Bw => report.gbit_per_s,
        Mode::Rate => report.mops_per_s,
        Mode::Lat => report.latency_ns.p50 as f64 / 1e3,
    })
}

/// Runs the client as a process, which inherits its parent's processor.
fn child(socket: &str, case: &str) -> Result<(), Fault> {
    let case = case.parse()?;
    let (spec, _) = spec(case);
    let (memory, queues) = (memory_for(&spec), queues_for(&spec));
    let huge = std::env::var_os(HUGE).is_some();
    let pages = if huge { PageSize::Huge2M } else { PageSize::Small };
    let params = OpenParams { memory, queues, pages, ..Default::default() };
    let device = Device::open_with(socket, &params)?;
    println!("{}", measure(device, case)?);
    Ok(())
}

fn in_other_process(socket: &Path, case: usize, huge: bool) -> Result<f64, Fault> {
    let mut program = Command::new(std::env::current_exe()?);
    if huge {
        program.env(HUGE, "1");
    }
    let out = program
        .env(SOCKET, socket)
        .env(CASE, case.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    Ok(String::from_utf8(out.stdout)?.trim().parse()?)
}

/// Returns the median of the ratios, with the least and the greatest, as text.
fn shown(ratios: &mut [f64]) -> String {
    let median = median(ratios);
    format!("{median:.2} [{:.2}..{:.2}]", ratios[0], ratios[ratios.len() - 1])
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Fault> {
    if let (Ok(socket), Ok(case)) = (std::env::var(SOCKET), std::env::var(CASE)) {
        return child(&socket, &case);
    }
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |n| n.parse())?;
    let eal = Eal::init(&EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() })?;
    let config = |n: u8| EndpointConfig {
        memory: 64 << 20,
        ..EndpointConfig::with_seed(
            Cidr::new([10, 0, 0, n].into(), 24).into_iter().collect(),
            Seed::from_u64(n.into()),
        )
    };
    let [near, far] = pin::first::<2>()?;
    let (mut a, mut b) = Endpoint::ring_pair(&eal, "processes", &config(1), &config(2))?;
    let hub = a.hub().clone();
    for hub in [a.hub(), b.hub()] {
        hub.set_threaded();
    }
    let mut server = BenchServer::new(b.device(), server(), ListenParams::default(), None)?;
    // Poll until the server listens.
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        a.poll();
        b.poll();
        server.step();
    }
    let rnics = LcoreWorker::spawn(&eal, near, "rnics", move |stop| {
        while !stop.is_set() {
            a.poll();
            b.poll();
            server.step();
        }
    })?;
    let directory = std::env::temp_dir().join(format!("heddle-processes-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let socket = directory.join("socket");
    let listener = UnixListener::bind(&socket)?;
    let served = hub.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let hub = served.clone();
            std::thread::spawn(move || serve(&hub, Policy::default(), &client));
        }
    });
    pin::pin_to(far)?;
    // As much memory as the client takes at most.
    let huge = Region::shared_on(128 << 20, PageSize::Huge2M).is_ok();
    let head = if huge { ", and its ratio on hugepages" } else { "" };
    println!("{:<24} {:>10} {:>14}   ratio of pairs{head}", "", "a thread", "a process");
    for (case, (name, _, _, unit)) in CASES.into_iter().enumerate() {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let (mut ratios, mut on_huge) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (spec, _) = spec(case);
            let (memory, queues) = (memory_for(&spec), queues_for(&spec));
            let config = DeviceConfig { memory, queues, shared: true, ..DeviceConfig::default() };
            let ours = measure(hub.open(&config)?, case)?;
            let theirs = in_other_process(&socket, case, false)?;
            here.push(ours);
            there.push(theirs);
            ratios.push(theirs / ours);
            if huge {
                on_huge.push(in_other_process(&socket, case, true)? / theirs);
            }
        }
        let (ours, theirs, ratio) = (median(&mut here), median(&mut there), shown(&mut ratios));
        let huge = if huge { shown(&mut on_huge) } else { String::new() };
        println!("{name:<24} {ours:>10.2} {theirs:>7.2} {unit:<6}   {ratio}   {huge}");
    }
    drop(rnics);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
