//! `heddle bench`

mod compare;
mod intervals;
mod results;
mod rpc;

use std::net::SocketAddr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use heddle::connection::CrcPolicy;
use heddle::dpdk::{CoreList, PortSource, VdevArg};
use heddle::rnic::MAX_WORKERS;
use heddle::units::{Probability, Size, Sizes, Span};
use heddle::{Eal, EalConfig, EndpointConfig, Seed};
use heddle_perf::document::{Point, Started};
use heddle_perf::embedded::{Pair, Placement, Remote};
use heddle_perf::own_process::OwnProcess;
use heddle_perf::pin;
use heddle_perf::progress::Progress;
use heddle_perf::report::{BenchReport, LatencyKind, spreads, table};
use heddle_perf::sizing::{memory_for, queues_for};
use heddle_perf::spec::{
    BenchSpec, Congestion, Ecn, Faults, OUTSTANDING, OUTSTANDING_INLINE, Pacing, Rate, Until, Wire,
};
use heddle_perf::workload::{Peer, Run};
use heddle_services::bench::{Mode, Op};
use serde_json::{Map, Value, json};

use super::Failure;
use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::{TcpArgs, mtu, start_eal};
use super::progress::Line;
use super::rnic::{Rnic, RnicArgs, explain};

/// Without --connect, client and server run in this process, joined by rings or another --wire.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Operation: write, read, send, write-imm, send-imm, fetch-add, cmp-swap; or rpc: calls of
    /// RPC-over-RDMA, each time beside the operation of these that carries them
    #[arg(long, default_value = "write", value_parser = what())]
    op: rpc::What,
    /// The figure to measure: bw (throughput), lat (latency, one message in each direction), rate
    /// (operations per second)
    #[arg(long, default_value = "bw", value_parser = mode())]
    mode: Mode,
    /// Bytes of a message [default: 64K; 8 in modes lat and rate, 512 with rpc, and 8 are all that
    /// send-imm, fetch-add and cmp-swap have]
    #[arg(long, value_name = "N")]
    size: Option<Size>,
    /// Several sizes in turn, the powers of two in a range (1..1M)
    #[arg(long, value_name = "A..B", conflicts_with = "size")]
    sizes: Option<Sizes>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    qps: u32,
    /// Operations outstanding per connection [default: as many as make 1M, or 256K with --inline, 4
    /// to 128; 1 in mode lat]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// Operations per connection
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    iters: Option<u64>,
    /// Time per size (10s, 500ms)
    #[arg(long, value_name = "T", default_value = "2s")]
    duration: Span,
    /// Time at the start of each run that is not measured [default: a tenth of --duration, 500ms at
    /// most]
    #[arg(long, value_name = "T", conflicts_with = "iters")]
    warmup: Option<Span>,
    /// Runs of each size; median, extremes and standard deviation of several are shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Show the figures of each interval of T while a run goes on
    #[arg(long, value_name = "T")]
    interval: Option<Span>,
    /// Rate of all connections together: operations (50k), bytes (100MB/s) or bits (10Gbit/s) per
    /// second. The latency then counts from the time at which an operation was due [default: as many
    /// as there can be]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Show half of the round trip in mode lat, as perftest does
    #[arg(long)]
    half: bool,
    /// Let the server carry out the same operations on the client's memory at the same time, over
    /// the same connections: write and read, in modes bw and rate
    #[arg(short, long)]
    bidirectional: bool,
    /// The wire between client and server
    #[arg(long, value_enum, default_value_t = WireArg::Ring, conflicts_with = "connect")]
    wire: WireArg,
    /// The server's device of --wire vdev, in the syntax of --vdev
    #[arg(long, value_name = "ARGS", requires = "vdev", conflicts_with = "connect")]
    server_vdev: Option<VdevArg>,
    /// Processors, one for each worker: the first half for the client, the others for the server;
    /// with --connect all for the client, with --socket one, of the program. Connections are spread
    /// over the workers of a side, the first of which shares its processor with the program. A
    /// processor named twice has two threads that take turns [default: the first two; the last one]
    #[arg(long, value_name = "LIST", conflicts_with = "inline")]
    lcores: Option<CoreList>,
    /// Run everything on one thread
    #[arg(long)]
    inline: bool,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    mpa: MpaArgs,
    #[command(flatten)]
    tcp: TcpArgs,
    /// Share of frames to lose (0.01 or 1%)
    #[arg(long, value_name = "P", default_value = "0")]
    loss: Probability,
    /// Share of frames to deliver after later ones
    #[arg(long, value_name = "P", default_value = "0")]
    reorder: Probability,
    /// Share of frames to deliver twice
    #[arg(long, value_name = "P", default_value = "0")]
    dup: Probability,
    /// The seed of the lost frames and of the messages' bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Compare every byte of every message (slow)
    #[arg(long)]
    verify: bool,
    /// The perf service of another process or host; needs --vdev, --pci or --bond, and --ip, or --socket
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<SocketAddr>,
    /// The server at --connect is one of perftest's (`ib_write_bw -R` and the like), started with the
    /// same -s; for Sends, and for writes in mode lat, also with -n as many as --iters
    #[arg(long, requires = "connect", conflicts_with = "sizes")]
    perftest: bool,
    #[command(flatten)]
    results: results::ResultArgs,
    #[command(flatten)]
    rpc: rpc::RpcArgs,
    #[command(flatten)]
    rnic: RnicArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the ratios of the figures of two reports
    #[command(disable_version_flag = true)]
    Compare(compare::Args),
}

/// Returns the parser of `--op`, whose values the completions of shells offer.
fn what() -> impl TypedValueParser<Value = rpc::What> {
    PossibleValuesParser::new(rpc::KNOWN).try_map(|s| s.parse::<rpc::What>())
}

/// Returns the parser of `--mode`.
fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["bw", "lat", "rate"]).try_map(|s| s.parse::<Mode>())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WireArg {
    /// Two ports of this process, joined by rings
    Ring,
    /// The same rings, which take frames of many segments as they are, and without checksums: what
    /// ports do that cut and join segments (TSO and LRO)
    RingTso,
    /// Two ports of this process, joined as those of a host and its virtual machine (net_vhost,
    /// net_virtio_user): frames pass by one copy, and those of many segments as they are
    Vhost,
    /// No wire: client and server are two applications of one RNIC, whose worker is on the client's
    /// processor. Without a CRC and markers, the worker moves data from one to the other by one
    /// copy
    Loop,
    /// Two devices of this process, --vdev for the client and --server-vdev for the server, that a
    /// link outside of it joins, as a pair of virtual interfaces does
    Vdev,
}

impl WireArg {
    /// Returns the wire of a run with two RNICs; it does not matter in another.
    fn between_two(self) -> Wire {
        match self {
            WireArg::Ring | WireArg::Loop => Wire::Ring,
            WireArg::RingTso => Wire::RingTso,
            WireArg::Vhost => Wire::Vhost,
            WireArg::Vdev => Wire::Vdev,
        }
    }
}

impl Args {
    /// Builds the specification of a run of `op`, with messages of `small` bytes in modes lat and
    /// rate.
    fn spec(&self, op: Op, small: Size) -> Result<BenchSpec, Failure> {
        let usual = match self.mode {
            Mode::Lat | Mode::Rate => small,
            Mode::Bw => Size(64 << 10),
        };
        let size = self.size.or(op.fixed_size()).unwrap_or(usual);
        Ok(BenchSpec {
            op,
            mode: self.mode,
            sizes: self.sizes.unwrap_or(Sizes::one(size)),
            qps: self.qps,
            depth: self.depth,
            outstanding: match self.connect {
                None if self.cores()?.is_empty() => OUTSTANDING_INLINE,
                _ => OUTSTANDING,
            },
            until: self.iters.map_or(Until::Elapsed(self.duration.0), Until::Iters),
            mpa: self.mpa.client()?,
            mtu: self.mtu,
            wire: self.wire.between_two(),
            offloads: self.rnic.net.offloads.unwrap_or_default(),
            tcp: self.tcp.settings(),
            faults: Faults {
                loss: self.loss,
                reorder: self.reorder,
                dup: self.dup,
                seed: self.seed,
            },
            verify: self.verify,
            warmup: self.warmup.map(|t| t.0),
            interval: self.interval.map(|t| t.0),
            rate: self.rate,
            half: self.half,
            bidirectional: self.bidirectional,
            peer: if self.perftest { Peer::Perftest } else { Peer::Bench },
        })
    }

    /// Returns the values of all options that figures depend on, defaults included.
    fn parameters(&self, spec: &BenchSpec, op: &str) -> Map<String, Value> {
        let seconds = |t: Option<std::time::Duration>| t.map(|t| t.as_secs_f64());
        let (iters, duration) = match spec.until {
            Until::Iters(n) => (Some(n), None),
            Until::Elapsed(t) => (None, Some(t)),
        };
        let wire = match self.connect {
            Some(_) if self.perftest => "device, to perftest".to_owned(),
            Some(_) => "device".to_owned(),
            None => {
                self.wire.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
            }
        };
        let all = [
            ("op", json!(op)),
            ("mode", json!(spec.mode)),
            ("sizes", json!(spec.sizes.iter().map(|s| s.0).collect::<Vec<_>>())),
            ("qps", json!(spec.qps)),
            ("depth", json!(spec.depth)),
            ("iters", json!(iters)),
            ("duration_seconds", json!(seconds(duration))),
            ("warmup_seconds", json!(seconds(spec.warmup))),
            ("interval_seconds", json!(seconds(spec.interval))),
            ("repeat", json!(self.repeat)),
            ("rate", json!(spec.rate.map(|rate| rate.to_string()))),
            ("half", json!(spec.half)),
            ("bidirectional", json!(spec.bidirectional)),
            ("wire", json!(wire)),
            ("lcores", json!(self.lcores.as_ref().map(|list| list.cores().to_vec()))),
            ("inline", json!(self.inline)),
            ("mtu", json!(spec.mtu)),
            ("crc", json!(spec.mpa.crc == CrcPolicy::Required)),
            ("markers", json!(spec.mpa.markers)),
            ("congestion", json!(name_of(&Congestion::NAMES, spec.tcp.congestion))),
            ("ecn", json!(name_of(&Ecn::NAMES, spec.tcp.ecn))),
            ("pacing", json!(name_of(&Pacing::NAMES, spec.tcp.pacing))),
            ("receive_window", json!(spec.tcp.recv_window)),
            ("loss", json!(spec.faults.loss.get())),
            ("reorder", json!(spec.faults.reorder.get())),
            ("dup", json!(spec.faults.dup.get())),
            ("seed", json!(spec.faults.seed)),
            ("verify", json!(spec.verify)),
            ("connect", json!(self.connect.map(|to| to.to_string()))),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Refuses options that need a device, or another.
    fn check_ring(&self) -> Result<(), Failure> {
        let net = &self.rnic.net;
        let pair = self.wire == WireArg::Vdev;
        let device = net.pci.is_some() || net.bond.is_some() || self.rnic.socket.is_some();
        let addrs = net.addrs().next().is_some();
        if device || addrs || (net.vdev.is_some() && !pair) {
            return Err(Failure::usage(
                "--vdev, --pci, --bond, --ip, --vlan and --socket go with --connect: without it the wire is a \
                 ring; --vdev goes with --wire vdev, too",
            ));
        }
        if self.server_vdev.is_some() && !pair {
            return Err(Failure::usage("--server-vdev goes with --wire vdev"));
        }
        if net.offloads.is_some() && !pair && self.wire != WireArg::Vhost {
            return Err(Failure::usage(
                "--offloads goes with a device: with --connect, or with --wire vhost or vdev",
            ));
        }
        Ok(())
    }

    /// Returns the devices of client and server.
    fn devices(&self) -> Result<[PortSource; 2], Failure> {
        match (&self.rnic.net.vdev, &self.server_vdev) {
            (Some(ours), Some(theirs)) => Ok([ours, theirs].map(|d| PortSource::Vdev(d.clone()))),
            _ => Err(Failure::usage("--wire vdev needs two devices: --vdev and --server-vdev")),
        }
    }

    /// Refuses options that need the ring.
    fn check_device(&self, spec: &BenchSpec) -> Result<(), Failure> {
        if !spec.faults.is_none() {
            return Err(Failure::usage(
                "--loss, --reorder and --dup go with the ring, not with --connect",
            ));
        }
        self.rnic.check()
    }

    /// Returns the processors of client and server. An empty list means one thread, bound to no
    /// processor.
    fn cores(&self) -> Result<Vec<usize>, Failure> {
        match &self.lcores {
            _ if self.inline => Ok(Vec::new()),
            None => Ok(pin::first::<2>().map_or(Vec::new(), |two| two.to_vec())),
            Some(list) if list.cores().len() % 2 == 0 && list.cores().len() <= 2 * MAX_WORKERS => {
                Ok(list.cores().to_vec())
            }
            Some(_) => Err(Failure::usage(
                "--lcores needs two processors for each pair of workers, of client and server, as 0,1",
            )),
        }
    }

    /// Returns the processors of a client whose server runs elsewhere. The default is the last
    /// processor, because a server on this machine takes the first. An empty list means one thread,
    /// bound to no processor.
    fn remote_cores(&self) -> Result<Vec<usize>, Failure> {
        let cores = match self.lcores.as_ref().map(CoreList::cores) {
            None if self.inline => Vec::new(),
            None => pin::available().last().copied().into_iter().collect(),
            Some(cores) => cores.to_vec(),
        };
        match cores.len() {
            n if n > 1 && self.rnic.socket.is_some() => {
                Err(Failure::usage("--lcores needs one processor with --socket: it has no workers"))
            }
            n if n > MAX_WORKERS => {
                Err(Failure::usage(format!("--lcores needs at most {MAX_WORKERS} processors")))
            }
            _ => Ok(cores),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(Command::Compare(args)) = &args.command {
        return compare::run(args);
    }
    args.results.check()?;
    let op = match args.op {
        rpc::What::Rpc => return rpc::run(args),
        rpc::What::Raw(op) => op,
    };
    args.rpc.check_unused()?;
    let spec = args.spec(op, Size(8))?;
    spec.check().map_err(Failure::usage)?;
    let started = Started::now();
    let points = match args.connect {
        Some(server) => connect(args, &spec, server)?,
        None => embedded(args, &spec)?,
    };
    let runs: Vec<BenchReport> = points.iter().flat_map(|p| p.runs.iter().cloned()).collect();
    args.results.say(&table(&runs));
    if args.repeat > 1 {
        let rows = points.iter().map(|p| (p.name(), &p.summary, p.runs.len()));
        args.results.say(&format!("\n{}", spreads(rows)));
    }
    let document = started.document(args.parameters(&spec, &op.to_string()), points);
    args.results.write(&document)
}

/// Runs every size as often as the user asks, by `run`.
fn measure(
    args: &Args,
    spec: &BenchSpec,
    progress: &Progress,
    mut run: impl FnMut(Run) -> Result<BenchReport, Failure>,
) -> Result<Vec<Point<BenchReport>>, Failure> {
    let mut points = Vec::new();
    for size in spec.sizes.iter() {
        let mut runs = Vec::new();
        for n in 1..=args.repeat {
            let _shown = shown(args, spec, size, n, progress);
            runs.push(run(Run::new(spec, size))?);
        }
        points.extend(Point::of(runs));
    }
    Ok(points)
}

fn embedded(args: &Args, spec: &BenchSpec) -> Result<Vec<Point<BenchReport>>, Failure> {
    args.check_ring()?;
    let devices = (args.wire == WireArg::Vdev).then(|| args.devices()).transpose()?;
    let cores = args.cores()?;
    let workers = (cores.len() / 2).max(1);
    let eal = start(args, spec.mtu, 2 * workers)?;
    let mut pair = match (args.wire, &devices) {
        (_, Some([ours, theirs])) => Pair::on_devices(&eal, spec, workers, [ours, theirs])?,
        (WireArg::Loop, _) if workers > 1 => {
            return Err(Failure::usage("--wire loop has one worker: it takes two processors"));
        }
        (WireArg::Loop, _) if !spec.faults.is_none() => {
            return Err(Failure::usage("--loss, --reorder and --dup need frames: --wire ring"));
        }
        (WireArg::Loop, _) => Pair::looped(&eal, spec)?,
        _ => Pair::with_workers(&eal, spec, workers)?,
    };
    let progress = pair.progress.clone();
    measure(args, spec, &progress, |run| {
        Ok(match cores.is_empty() {
            true => pair.run(spec, run, Placement::Inline)?,
            false => pair.run_on(spec, run, &cores)?,
        })
    })
}

/// Starts DPDK with memory for `pools` pools of packet buffers.
fn start(args: &Args, mtu: u16, pools: usize) -> Result<Eal, Failure> {
    args.log.start();
    let shape = EndpointConfig { mtu, ..EndpointConfig::with_seed(Vec::new(), Seed::from_u64(0)) };
    let eal = EalConfig { shares_memory: args.wire == WireArg::Vhost, ..EalConfig::default() };
    start_eal(&shape, u32::try_from(pools).unwrap_or(u32::MAX), eal)
}

fn connect(
    args: &Args,
    spec: &BenchSpec,
    server: SocketAddr,
) -> Result<Vec<Point<BenchReport>>, Failure> {
    args.check_device(spec)?;
    let cores = args.remote_cores()?;
    args.log.start();
    let workers = cores.len().max(1);
    // Each worker needs its own room for completion queues.
    let queues = queues_for(spec) + (workers - 1) * (16 << 20);
    let rnic = args.rnic.open_with(spec.mtu, memory_for(spec), queues, workers, args.tcp)?;
    if let Some(&core) = cores.first() {
        pin::pin_to(core)?;
    }
    let served = rnic.served();
    let measured = match rnic {
        Rnic::Own { eal, endpoint } => {
            let mut remote = Remote::new(&eal, *endpoint, server);
            let progress = remote.progress.clone();
            measure(args, spec, &progress, |run| Ok(remote.run(spec, run, &cores)?))
        }
        Rnic::Served(device) => {
            let mut client = OwnProcess::new(device, server);
            let progress = client.progress.clone();
            let core = cores.first().copied();
            measure(args, spec, &progress, |run| Ok(client.run(spec, run, core)?))
        }
    };
    measured.map_err(|failure| explain(served.as_ref(), failure))
}

/// The display of how far a run is, until it is dropped.
enum Shown {
    Line { _line: Line },
    Intervals { _lines: intervals::Intervals },
}

fn shown(args: &Args, spec: &BenchSpec, size: Size, n: u16, progress: &Progress) -> Shown {
    let mut what = format!("{} {} {size}", spec.op, spec.mode);
    if args.repeat > 1 {
        what = format!("{what}, run {n} of {}", args.repeat);
    }
    if spec.interval.is_none() {
        return Shown::Line { _line: Line::start(what, progress.clone(), args.log.quiet) };
    }
    let kind = LatencyKind::of(spec.op, spec.mode, spec.half);
    args.results.say(&format!("{what} ({})\n", kind.words()));
    let to_stderr = args.results.take_stdout();
    let lines = intervals::Intervals::start(progress.clone(), size.0, kind, to_stderr);
    Shown::Intervals { _lines: lines }
}

/// Returns the name of a value that has one.
fn name_of<'a, T: PartialEq>(names: &[(&'a str, T)], value: T) -> Option<&'a str> {
    names.iter().find(|(_, v)| *v == value).map(|(name, _)| *name)
}
