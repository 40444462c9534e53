//! Both ends of a benchmark in one process, or the client alone.
//!
//! A [`Pair`] is two RNICs that rings, a vhost-user socket or a link outside of the process connect,
//! or one RNIC that connects to itself. [`Pair::run`] runs one size on the pair: on the calling
//! thread alone, which polls both RNICs and steps client and server in turn; or on two threads, each
//! bound to a processor. A program makes a pair once and runs it any number of times, since pools of
//! packet buffers live as long as the process.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Seed;
use heddle_ctl::{Detached, Endpoint, EndpointConfig, InnerSetup, OpenError, RnicSetup, Snapshot};
use heddle_dataplane::{
    Clock, Eal, FaultConfig, LcoreError, LcoreWorker, Offloads, PortSource, WorkerSnapshot,
};
use heddle_services::Limits;
use heddle_services::Serve as _;
use heddle_services::Step;
use heddle_services::bench::BenchServer;
use heddle_tcp::{Cidr, ConnConfig};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::{Device, DeviceError, ListenParams, MpaOptions, Protocol};
use tracing::debug;

use crate::progress::{Progress, Rhythm, Teller};
use crate::report::{
    BenchReport, IntervalReport, LatencyFrom, LatencyKind, ReverseReport, WorkerShare, due,
    warnings,
};
use crate::sizing::{completions_for, cqs_for, frames_for, memory_for, mrs_for, queues_for};
use crate::spec::{BenchSpec, Faults, Wire};
use crate::usage::Usage;
use crate::workload::{Client, Outcome, Peer, PerftestClient, Run, Workload, WorkloadError};

/// Where the polling threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The calling thread does everything.
    Inline,
    /// Client and server have processors of their own. [`Pair::run_on`] takes several for each.
    Lcores([usize; 2]),
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The RNICs could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The control plane refused something.
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    /// A polling thread could not start, or panicked.
    #[error(transparent)]
    Lcore(#[from] LcoreError),
    /// The run itself failed.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The number of processors does not match the number of workers.
    #[error("{given} processors for workers that take {wanted}")]
    Processors {
        /// The number of processors that the caller gave.
        given: usize,
        /// The number of workers, each of which needs a processor.
        wanted: usize,
    },
    /// An earlier failed run took the RNICs with it.
    #[error("the benchmark's RNICs were lost when an earlier run failed")]
    Lost,
}

/// The address of an embedded benchmark's server.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7471);

/// The address of a server that shares the client's RNIC.
const LOOPED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7471);

/// Two RNICs that a wire connects, or one RNIC that connects to itself.
pub struct Pair {
    sides: Option<(Side, ServerSide)>,
    workers: usize,
    wire: Wire,
    server: SocketAddr,
    eal: Eal,
    /// The counter in which runs report how far they are.
    pub progress: Progress,
}

/// The RNIC of the client.
struct Side {
    endpoint: Endpoint,
    clock: Clock,
}

/// The server, and its RNIC unless that is the client's.
struct ServerSide {
    endpoint: Option<Endpoint>,
    server: BenchServer,
}

pub(crate) fn fault_config(f: &Faults) -> FaultConfig {
    FaultConfig {
        drop: f.loss.get(),
        duplicate: f.dup.get(),
        reorder: f.reorder.get(),
        ..FaultConfig::default()
    }
}

/// Returns the configuration of the RNIC with address 10.0.0.`n`, for all runs of `spec`.
fn pair_config(spec: &BenchSpec, workers: usize) -> impl Fn(u8) -> EndpointConfig {
    let seed = Seed::from_u64(spec.faults.seed);
    let rings = spec.wire == Wire::RingTso;
    move |n: u8| EndpointConfig {
        mtu: spec.mtu,
        memory: memory_for(spec),
        // Each worker needs room for completion queues.
        queues: queues_for(spec) + (workers - 1) * cqs_for(spec),
        workers,
        frames: frames_for(spec),
        offloads: Offloads { rings, ..spec.offloads },
        max_conns: 2 * spec.qps as usize + 16,
        max_mrs: mrs_for(spec),
        fault: fault_config(&spec.faults),
        // No packet of an old connection is in flight after the ring is empty, and the next
        // size needs the connection's place.
        tcp: ConnConfig { time_wait: Duration::from_millis(10), ..spec.tcp },
        ..EndpointConfig::with_seed(
            Cidr::new(Ipv4Addr::new(10, 0, 0, n).into(), 24).into_iter().collect(),
            seed.derive(n.into()),
        )
    }
}

/// How the two sides of a pair are connected.
struct Topology {
    wire: Wire,
    /// Where the server listens.
    server: SocketAddr,
    /// The number of workers on either side.
    workers: usize,
}

impl Pair {
    /// Sets up everything that the runs of `spec` need, with one worker on either side.
    pub fn open(eal: &Eal, spec: &BenchSpec) -> Result<Pair, BenchError> {
        Pair::with_workers(eal, spec, 1)
    }

    /// Sets up the same with `workers` workers on either side, each connected to its counterpart by
    /// the wire of `spec`. The workers share the connections evenly.
    pub fn with_workers(eal: &Eal, spec: &BenchSpec, workers: usize) -> Result<Pair, BenchError> {
        let config = pair_config(spec, workers);
        // Names of devices are unique in the process.
        static PAIRS: AtomicU64 = AtomicU64::new(0);
        let name = format!("bench{}", PAIRS.fetch_add(1, Ordering::Relaxed));
        let pair = match spec.wire {
            Wire::Vhost => Endpoint::vhost_pair,
            _ => Endpoint::ring_pair,
        };
        let (a, b) = pair(eal, &name, &config(1), &config(2))?;
        Pair::of(eal, spec, a, Some(b), Topology { wire: spec.wire, server: SERVER, workers })
    }

    /// Sets up the same on the devices of client and server, which a link outside of the process
    /// joins: a pair of virtual interfaces, or a cable.
    pub fn on_devices(
        eal: &Eal,
        spec: &BenchSpec,
        workers: usize,
        [client, server]: [&PortSource; 2],
    ) -> Result<Pair, BenchError> {
        let config = pair_config(spec, workers);
        let a = Endpoint::open(eal, client, &config(1))?;
        let b = Endpoint::open(eal, server, &config(2))?;
        Pair::of(eal, spec, a, Some(b), Topology { wire: Wire::Vdev, server: SERVER, workers })
    }

    /// Sets up one RNIC with client and server as two of its applications. The RNIC copies data
    /// once from one to the other; if `spec` asks for a CRC or markers, the RNIC sends frames to
    /// itself instead. A single worker serves both, on the client's thread.
    pub fn looped(eal: &Eal, spec: &BenchSpec) -> Result<Pair, BenchError> {
        let setup = RnicSetup {
            memory: 2 * memory_for(spec),
            queues: 2 * queues_for(spec),
            max_conns: 2 * spec.qps as usize + 16,
            max_mrs: mrs_for(spec),
            tcp: ConnConfig { time_wait: Duration::from_millis(10), ..ConnConfig::default() },
            inner: Some(InnerSetup::loopback()),
            ..RnicSetup::with_seed(Seed::from_u64(spec.faults.seed))
        };
        let rnic = Endpoint::assemble(eal, Vec::new(), &setup)?;
        Pair::of(eal, spec, rnic, None, Topology { wire: Wire::Loop, server: LOOPED, workers: 1 })
    }

    /// Starts the server, and waits until it listens. Without an RNIC `b` of its own, the server
    /// is at `a`.
    fn of(
        eal: &Eal,
        spec: &BenchSpec,
        mut a: Endpoint,
        mut b: Option<Endpoint>,
        topology: Topology,
    ) -> Result<Pair, BenchError> {
        // The server leaves the CRC to the client, since connections use a CRC when either side
        // asks for it. Each side asks for markers by itself.
        let params = ListenParams {
            protocol: Protocol::Mpa(MpaOptions {
                crc: CrcPolicy::Off,
                markers: spec.mpa.markers,
                rtr: spec.mpa.rtr,
                ..MpaOptions::default()
            }),
            backlog: spec.qps as usize + 16,
            ..ListenParams::default()
        };
        let device = b.as_ref().unwrap_or(&a).device();
        // All connections come from one address.
        let limits =
            Limits { peer_share: 1, completions: completions_for(spec), ..Limits::default() };
        let mut server = BenchServer::with_limits(device, topology.server, params, limits, None)?;
        // Every worker of the server has to listen: the server refuses a client that comes before.
        let until = a.now() + SETTLE;
        while !matches!(server.is_listening(), Ok(true)) && a.now() < until {
            poll_pair(&mut a, b.as_mut());
            server.step();
        }
        let side = Side { endpoint: a, clock: Clock::new(eal) };
        Ok(Pair {
            sides: Some((side, ServerSide { endpoint: b, server })),
            workers: topology.workers,
            wire: topology.wire,
            server: topology.server,
            eal: *eal,
            progress: Progress::default(),
        })
    }

    /// Returns the number of workers on either side.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Runs one size at `placement`.
    pub fn run(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        placement: Placement,
    ) -> Result<BenchReport, BenchError> {
        match placement {
            Placement::Inline => self.measure(spec, run, &[]),
            Placement::Lcores(cores) => self.run_on(spec, run, &cores),
        }
    }

    /// Runs one size on these processors, one for each worker: the first half for the client, the
    /// others for the server. The first processor of each side also runs that side's program. If
    /// `cores` names a processor several times, several threads share it, as the scheduler decides.
    ///
    /// # Errors
    /// [`BenchError::Processors`] when there are not two for each pair of workers.
    pub fn run_on(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        cores: &[usize],
    ) -> Result<BenchReport, BenchError> {
        if cores.len() != 2 * self.workers {
            let (given, wanted) = (cores.len(), 2 * self.workers);
            return Err(BenchError::Processors { given, wanted });
        }
        self.measure(spec, run, cores)
    }

    /// Runs and measures on `cores`; an empty list means the calling thread.
    fn measure(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        cores: &[usize],
    ) -> Result<BenchReport, BenchError> {
        let (mut a, mut b) = self.sides.take().ok_or(BenchError::Lost)?;
        let before = snapshots(&a, &b);
        self.progress.clear();
        let used = Usage::of_process();
        let mut threads = Vec::new();
        let outcome = if cores.is_empty() {
            run_inline(&mut a, &mut b, self.server, run, &self.progress)
        } else {
            let outcome;
            (a, b, outcome, threads) =
                run_on(&self.eal, cores, (a, b), self.server, run, &self.progress)?;
            outcome
        };
        let used = Usage::of_process().since(used);
        let after = snapshots(&a, &b);
        self.sides = Some((a, b));
        let mut report = report(spec, &run, &outcome?, self.wire);
        add_intervals(&mut report, &self.progress);
        report.processor = used;
        report.lcores = cores.to_vec();
        report.sides = u8::try_from(after.len()).unwrap_or(2);
        for (side, s) in ["client", "server"].iter().zip(&after) {
            s.worker.for_each(|part, name, _, value| {
                if value > 0 {
                    debug!(side, part, name, value, "so far");
                }
            });
        }
        let halves = [&cores[..cores.len() / 2], &cores[cores.len() / 2..]];
        let threads = [&threads[..threads.len() / 2], &threads[threads.len() / 2..]];
        for (n, (before, after)) in before.iter().zip(&after).enumerate() {
            let (side, place) = (["client", "server"][n], (halves[n], threads[n]));
            add_losses(&mut report, before, after);
            add_workers(&mut report, side, place, before, after);
            add_counters(&mut report, side, before, after);
        }
        report.warnings = warnings(&report, spec);
        Ok(report)
    }
}

/// Returns a snapshot of each RNIC.
fn snapshots(a: &Side, b: &ServerSide) -> Vec<Snapshot> {
    let both = [Some(&a.endpoint), b.endpoint.as_ref()];
    both.into_iter().flatten().map(Endpoint::snapshot).collect()
}

fn run_inline(
    a: &mut Side,
    b: &mut ServerSide,
    server: SocketAddr,
    run: Run,
    progress: &Progress,
) -> Result<Outcome, WorkloadError> {
    let client = Client::new(a.endpoint.device(), &a.clock, server, run)?;
    let resent = |a: &Side, b: &ServerSide| {
        a.endpoint.retransmits() + b.endpoint.as_ref().map_or(0, Endpoint::retransmits)
    };
    let mut teller = Teller::new(progress, resent(a, b));
    let result = drive(client, progress, || {
        poll_pair(&mut a.endpoint, b.endpoint.as_mut());
        b.server.step();
        teller.tell(|| resent(a, b));
    });
    // Poll on until the server has noticed the end, and memory has come back.
    let until = a.endpoint.now() + SETTLE;
    while a.endpoint.now() < until && b.server.connections() > 0 {
        poll_pair(&mut a.endpoint, b.endpoint.as_mut());
        b.server.step();
    }
    result
}

/// Steps a client to its end, and calls `poll` in between so that the RNICs progress.
pub(crate) fn drive(
    mut client: impl Workload,
    progress: &Progress,
    mut poll: impl FnMut(),
) -> Result<Outcome, WorkloadError> {
    let (mut rhythm, mut before) = (Rhythm::new(), progress.retransmits());
    let result = loop {
        poll();
        match client.step() {
            Ok(Step::Done) => break Ok(client.outcome()),
            Ok(_) => {}
            Err(e) => break Err(e),
        }
        if rhythm.is_due() {
            progress.set(client.ops());
            pass_on(&mut client, progress, &mut before);
        }
    };
    pass_on(&mut client, progress, &mut before);
    if result.is_err() {
        client.abandon();
    }
    result
}

/// Passes the intervals that have ended on to `progress`, with the retransmits since `before`: the
/// number at the end of the interval before.
fn pass_on(client: &mut impl Workload, progress: &Progress, before: &mut Option<u64>) {
    let now = progress.retransmits();
    if !client.is_measuring() {
        *before = now;
        return;
    }
    let mut ended = client.take_intervals();
    let Some((last, earlier)) = ended.split_last_mut() else { return };
    if let Some(now) = now {
        earlier.iter_mut().for_each(|interval| interval.retransmits = Some(0));
        last.retransmits = Some(now.saturating_sub(before.unwrap_or(0)));
    }
    *before = now;
    progress.push(ended);
}

/// Runs the client of a server elsewhere to its end.
pub(crate) fn connect(
    device: &Device,
    clock: &Clock,
    remote: SocketAddr,
    run: Run,
    progress: &Progress,
    poll: impl FnMut(),
) -> Result<Outcome, WorkloadError> {
    match run.peer {
        Peer::Bench => drive(Client::new(device, clock, remote, run)?, progress, poll),
        Peer::Perftest => drive(PerftestClient::new(device, clock, remote, run)?, progress, poll),
    }
}

/// Polls two RNICs that rings connect, or one. The receiver gets in its poll the frames that the
/// sender sent in the poll before.
pub(crate) fn poll_pair(sender: &mut Endpoint, receiver: Option<&mut Endpoint>) {
    sender.poll();
    if let Some(receiver) = receiver {
        receiver.poll();
    }
}

/// How long the server may take to notice that connections have ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Both sides, the result, and the processor time of each thread: those of the client, then those
/// of the server, in the order of their processors.
type Both = (Side, ServerSide, Result<Outcome, WorkloadError>, Vec<Usage>);

fn run_on(
    eal: &Eal,
    cores: &[usize],
    (mut a, mut b): (Side, ServerSide),
    at: SocketAddr,
    run: Run,
    progress: &Progress,
) -> Result<Both, BenchError> {
    let (ours, theirs) = cores.split_at(cores.len() / 2);
    let detached = b.endpoint.as_mut().map_or_else(Vec::new, Endpoint::detach);
    let helpers = [
        spawn_workers(eal, &ours[1..], a.endpoint.detach(), progress)?,
        spawn_workers(eal, &theirs[1..], detached, progress)?,
    ];
    let mut teller = Teller::new(progress, b.endpoint.as_ref().map_or(0, Endpoint::retransmits));
    let server = LcoreWorker::spawn(eal, theirs[0], "heddle-server", move |stop| {
        let used = Usage::of_thread();
        while !stop.is_set() {
            if let Some(endpoint) = &mut b.endpoint {
                endpoint.poll();
                teller.tell(|| endpoint.retransmits());
            }
            b.server.step();
        }
        (b, Usage::of_thread().since(used))
    })?;
    let progress = progress.clone();
    let client = LcoreWorker::spawn(eal, ours[0], "heddle-client", move |_| {
        let used = Usage::of_thread();
        let result = run_client(&mut a, at, run, &progress);
        (a, result, Usage::of_thread().since(used))
    })?;
    while !client.is_finished() && !server.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut a, result, client_used) = client.join()?;
    let (mut b, server_used) = server.join()?;
    let [ours, theirs] = helpers;
    let mut used = vec![client_used];
    a.endpoint.attach(join_workers(ours, &mut used)?);
    used.push(server_used);
    let theirs = join_workers(theirs, &mut used)?;
    if let Some(endpoint) = &mut b.endpoint {
        endpoint.attach(theirs);
    }
    Ok((a, b, result, used))
}

/// Starts a thread for each worker of a side except the first.
fn spawn_workers(
    eal: &Eal,
    cores: &[usize],
    workers: Vec<Detached>,
    progress: &Progress,
) -> Result<Vec<LcoreWorker<(Detached, Usage)>>, BenchError> {
    let spawn = |(mut worker, &core): (Detached, &usize)| {
        let name = format!("heddle-w{}", worker.number());
        let mut teller = Teller::new(progress, worker.retransmits());
        let thread = LcoreWorker::spawn(eal, core, &name, move |stop| {
            let used = Usage::of_thread();
            while !stop.is_set() {
                if !worker.poll() {
                    std::hint::spin_loop();
                }
                teller.tell(|| worker.retransmits());
            }
            (worker, Usage::of_thread().since(used))
        });
        Ok(thread?)
    };
    workers.into_iter().zip(cores).map(spawn).collect()
}

/// Ends the threads of workers, and adds their processor times to `used`.
fn join_workers(
    threads: Vec<LcoreWorker<(Detached, Usage)>>,
    used: &mut Vec<Usage>,
) -> Result<Vec<Detached>, BenchError> {
    let join = |thread: LcoreWorker<(Detached, Usage)>| {
        let (worker, usage) = thread.join()?;
        used.push(usage);
        Ok(worker)
    };
    threads.into_iter().map(join).collect()
}

/// Runs a client on the calling thread, against a server elsewhere.
fn run_client(
    a: &mut Side,
    remote: SocketAddr,
    run: Run,
    progress: &Progress,
) -> Result<Outcome, WorkloadError> {
    let (device, clock) = (a.endpoint.device().clone(), a.clock.clone());
    let mut teller = Teller::new(progress, a.endpoint.retransmits());
    let result = connect(&device, &clock, remote, run, progress, || {
        a.endpoint.poll();
        teller.tell(|| a.endpoint.retransmits());
    });
    let until = a.endpoint.now() + LINGER;
    while a.endpoint.now() < until {
        a.endpoint.poll();
    }
    result
}

/// How long peers of closed connections may still exchange their last packets.
const LINGER: Duration = Duration::from_millis(20);

/// A client of a server elsewhere.
pub struct Remote {
    /// `None` after a run that failed on a thread.
    side: Option<Side>,
    eal: Eal,
    server: SocketAddr,
    /// The counter in which runs report how far they are.
    pub progress: Progress,
}

impl Remote {
    /// Makes a client that runs on `endpoint`, towards `server`.
    pub fn new(eal: &Eal, endpoint: Endpoint, server: SocketAddr) -> Remote {
        let side = Some(Side { endpoint, clock: Clock::new(eal) });
        Remote { side, eal: *eal, server, progress: Progress::default() }
    }

    /// Returns the RNIC, and the clock that measures runs.
    pub(crate) fn endpoint(&mut self) -> Option<(&mut Endpoint, &Clock)> {
        self.side.as_mut().map(|side| (&mut side.endpoint, &side.clock))
    }

    /// Runs one size on these processors, one for each worker. The first worker and the program run
    /// on the calling thread, which the caller has bound to the first processor. With no processors
    /// everything runs on the calling thread, which is not bound.
    ///
    /// # Errors
    /// [`BenchError::Processors`] when `cores` is neither empty nor one for each worker.
    pub fn run(
        &mut self,
        spec: &BenchSpec,
        run: Run,
        cores: &[usize],
    ) -> Result<BenchReport, BenchError> {
        let mut side = self.side.take().ok_or(BenchError::Lost)?;
        let (given, wanted) = (cores.len(), side.endpoint.workers());
        if given != wanted && given > 0 {
            self.side = Some(side);
            return Err(BenchError::Processors { given, wanted });
        }
        let before = side.endpoint.snapshot();
        self.progress.clear();
        let (process, thread) = (Usage::of_process(), Usage::of_thread());
        let helpers = match cores {
            [] => Vec::new(),
            [_, others @ ..] => {
                spawn_workers(&self.eal, others, side.endpoint.detach(), &self.progress)?
            }
        };
        let outcome = run_client(&mut side, self.server, run, &self.progress);
        let mut threads = vec![Usage::of_thread().since(thread)];
        side.endpoint.attach(join_workers(helpers, &mut threads)?);
        let after = side.endpoint.snapshot();
        self.side = Some(side);
        let mut report = report(spec, &run, &outcome?, Wire::Vdev);
        add_intervals(&mut report, &self.progress);
        report.processor = Usage::of_process().since(process);
        report.lcores = cores.to_vec();
        add_workers(&mut report, "client", (cores, &threads), &before, &after);
        add_counters(&mut report, "client", &before, &after);
        // The server's losses and retransmits are not known here.
        report.sides = 1;
        add_losses(&mut report, &before, &after);
        report.warnings = warnings(&report, spec);
        Ok(report)
    }
}

/// Returns true if a run's FPDUs have CRCs.
pub(crate) fn crc_of(mpa: &MpaOptions, wire: Wire) -> bool {
    (if wire == Wire::Loop { mpa.crc_inside } else { mpa.crc }) == CrcPolicy::Required
}

pub(crate) fn report(spec: &BenchSpec, run: &Run, outcome: &Outcome, wire: Wire) -> BenchReport {
    let seconds = outcome.elapsed.as_secs_f64();
    let bytes = outcome.ops * u64::from(run.size);
    let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
    let kind = LatencyKind::of(run.op, run.mode, spec.half);
    let half = kind == LatencyKind::HalfRoundTrip;
    let mut latency_steps = outcome.times.steps();
    if half {
        latency_steps.iter_mut().for_each(|step| step.ns /= 2);
    }
    BenchReport {
        op: run.op,
        mode: run.mode,
        size: run.size,
        qps: run.qps,
        depth: run.depth,
        mtu: spec.mtu,
        crc: crc_of(&run.mpa, wire),
        wire,
        lcores: Vec::new(),
        sides: 2,
        warmup_seconds: run.warm_up().as_secs_f64(),
        seconds,
        bytes,
        ops: outcome.ops,
        rate_ops_per_s: run.rate,
        due_ops: due(run, seconds),
        gbit_per_s: per_second(bytes as f64 * 8e-9),
        mops_per_s: per_second(outcome.ops as f64 * 1e-6),
        latency_kind: kind,
        latency_from: if run.rate.is_some() { LatencyFrom::Due } else { LatencyFrom::Post },
        latency_ns: if half { outcome.latency().halved() } else { outcome.latency() },
        latency_steps,
        intervals: Vec::new(),
        retransmits: 0,
        fast_retransmits: 0,
        timeouts: 0,
        tail_probes: 0,
        spurious_retransmits: 0,
        drops: 0,
        processor: Usage::default(),
        workers: Vec::new(),
        counters: BTreeMap::new(),
        verified: outcome.verified,
        reverse: outcome.reverse.map(|r| ReverseReport::of(&r, run.size)),
        warnings: Vec::new(),
    }
}

/// Adds the intervals of a run.
pub(crate) fn add_intervals(report: &mut BenchReport, progress: &Progress) {
    let (size, kind) = (report.size, report.latency_kind);
    let all = progress.intervals_from(0);
    report.intervals = all.iter().map(|i| IntervalReport::of(i, size, kind)).collect();
}

/// Adds the growth of each counter of one side in a run.
fn add_counters(report: &mut BenchReport, side: &str, before: &Snapshot, after: &Snapshot) {
    let mut old = BTreeMap::new();
    before.worker.for_each(|part, name, _, value| {
        old.insert((part, name), value);
    });
    let mut all = BTreeMap::new();
    after.worker.for_each(|part, name, _, value| {
        let grown = value.saturating_sub(old.get(&(part, name)).copied().unwrap_or(0));
        if grown > 0 {
            all.insert(format!("{part}_{name}"), grown);
        }
    });
    report.counters.insert(side.to_owned(), all);
}

/// Adds the losses and retransmits of one side in a run.
fn add_losses(report: &mut BenchReport, before: &Snapshot, after: &Snapshot) {
    let since = |of: fn(&Snapshot) -> u64| of(after).saturating_sub(of(before));
    report.retransmits += since(|s| s.worker.engine.rnic.tx_retransmits);
    report.fast_retransmits += since(|s| s.worker.engine.tcp.fast_retransmits);
    report.timeouts += since(|s| s.worker.engine.tcp.timeouts);
    report.tail_probes += since(|s| s.worker.engine.tcp.tail_probes);
    report.spurious_retransmits += since(|s| s.worker.engine.tcp.spurious_retransmits);
    report.drops += since(drops);
}

/// Adds the work of each worker of one side in a run.
fn add_workers(
    report: &mut BenchReport,
    side: &str,
    (cores, threads): (&[usize], &[Usage]),
    before: &Snapshot,
    after: &Snapshot,
) {
    for (n, (before, after)) in before.workers.iter().zip(&after.workers).enumerate() {
        let (Some(before), Some(after)) = (&before.counters, &after.counters) else { continue };
        let since = |of: fn(&WorkerSnapshot) -> u64| of(after).saturating_sub(of(before));
        report.workers.push(WorkerShare {
            side: side.into(),
            lcore: cores.get(n).copied(),
            processor: threads.get(n).copied(),
            connections: after.engine.stack.opened + after.engine.stack.accepted,
            tx_bytes: since(|s| s.engine.rnic.tx_fpdu_bytes),
            rx_bytes: since(|s| s.engine.rnic.rx_payload_bytes),
            retransmits: since(|s| s.engine.rnic.tx_retransmits),
        });
    }
}

/// Returns the number of frames that were lost, on purpose or for want of room.
fn drops(s: &Snapshot) -> u64 {
    let (f, p, w) = (&s.worker.fault, &s.port, &s.worker);
    let made = f.fault_dropped + f.fault_overflow;
    let no_mbuf = w.sink.tx_no_mbuf + w.tx.tx_linearize_drops;
    made + no_mbuf + p.rx_missed + p.rx_no_mbuf + p.rx_errors + p.tx_errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::units::Size;
    use heddle_services::bench::Mode;

    #[test]
    fn test_half_round_trips_are_half_of_the_same_times() {
        let half = BenchSpec { mode: Mode::Lat, half: true, ..BenchSpec::default() };
        let full = BenchSpec { half: false, ..half.clone() };
        let mut outcome = Outcome { elapsed: Duration::from_secs(1), ..Outcome::default() };
        (1..=100).for_each(|n| outcome.times.record_nanos(10 * n));
        let of = |spec: &BenchSpec| report(spec, &Run::new(spec, Size(8)), &outcome, Wire::Ring);
        let (half, full) = (of(&half), of(&full));
        assert_eq!((half.latency_ns.p50, full.latency_ns.p50), (250, 500));
        assert_eq!(half.latency_kind, LatencyKind::HalfRoundTrip);
        assert_eq!(full.latency_kind, LatencyKind::RoundTrip);
        let last = |r: &BenchReport| r.latency_steps.last().map(|s| s.ns);
        assert_eq!((last(&half), last(&full)), (Some(500), Some(1000)));
    }
}
