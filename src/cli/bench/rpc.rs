//! `heddle bench --op rpc`

use std::net::SocketAddr;
use std::str::FromStr;

use clap::ValueEnum;
use heddle::Device;
use heddle::rpc::Speaks;
use heddle::units::Size;
use heddle_perf::document::{Point, Started};
use heddle_perf::embedded::{Pair, Placement, Remote};
use heddle_perf::own_process::OwnProcess;
use heddle_perf::pin;
use heddle_perf::progress::Progress;
use heddle_perf::report::BenchReport;
use heddle_perf::rpc;
use heddle_perf::rpc::load::LoadOutcome;
use heddle_perf::rpc::pair::RpcPair;
use heddle_perf::rpc::report::{Round, RpcReport, table};
use heddle_perf::rpc::{RpcRun, calls_of};
use heddle_perf::sizing::{memory_for, queues_for};
use heddle_perf::spec::{BenchSpec, Wire};
use heddle_perf::workload::Run;
use heddle_services::bench::{Op, UnknownWord};
use heddle_services::rpc::program::Call;

use super::super::Failure;
use super::super::progress::Line;
use super::super::rnic::{Rnic, explain};

/// The value of `--op`: a raw operation, or calls of RPC-over-RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Raw(Op),
    Rpc,
}

impl FromStr for What {
    type Err = UnknownWord;

    fn from_str(s: &str) -> Result<What, UnknownWord> {
        let unknown = |_| UnknownWord { what: "operation", given: s.into(), known: &KNOWN };
        if s == "rpc" { Ok(What::Rpc) } else { s.parse().map(What::Raw).map_err(unknown) }
    }
}

/// All values of `--op`.
pub(super) const KNOWN: [&str; 8] =
    ["write", "read", "send", "write-imm", "send-imm", "fetch-add", "cmp-swap", "rpc"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --op rpc")]
pub(crate) struct RpcArgs {
    /// Versions of RPC-over-RDMA, one after the other [default: 1,2]
    #[arg(long, value_enum, value_name = "VERSION", value_delimiter = ',')]
    rpc_version: Vec<Version>,
    /// Data comes from the server by its RDMA Writes (read), goes to it by its RDMA Reads (write),
    /// or one after the other (both) [default: both in mode bw; otherwise in both directions within
    /// messages]
    #[arg(long, value_enum, value_name = "DIRECTION")]
    dir: Option<Dir>,
    /// Rounds, each of the raw operation and of the calls [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// The perf service for the raw operation, beside the rpc service of --connect [default: no raw
    /// operation]
    #[arg(long, value_name = "ADDR:PORT", requires = "connect")]
    raw: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Version {
    /// RFC 8166, without private data: 1 KiB in a message, and no invalidation by the peer
    #[value(name = "1-plain")]
    Plain,
    /// RFC 8166
    #[value(name = "1")]
    One,
    /// draft-ietf-nfsv4-rpcrdma-version-two
    #[value(name = "2")]
    Two,
}

impl Version {
    fn run(self, spec: &BenchSpec, call: Call, size: Size) -> RpcRun {
        let speaks = if self == Version::Two { Speaks::V2 } else { Speaks::V1 };
        RpcRun { private_data: self != Version::Plain, ..RpcRun::new(spec, call, speaks, size) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dir {
    Read,
    Write,
    Both,
}

/// Default bytes of a short call.
const SMALL: Size = Size(512);

impl RpcArgs {
    /// Refuses options that only `--op rpc` takes.
    pub(super) fn check_unused(&self) -> Result<(), Failure> {
        let RpcArgs { rpc_version, dir, rounds, raw } = self;
        let unused = rpc_version.is_empty() && dir.is_none() && rounds.is_none() && raw.is_none();
        if unused {
            Ok(())
        } else {
            Err(Failure::usage("--rpc-version, --dir, --rounds and --raw go with --op rpc"))
        }
    }

    fn versions(&self) -> &[Version] {
        if self.rpc_version.is_empty() { &[Version::One, Version::Two] } else { &self.rpc_version }
    }

    fn calls(&self, spec: &BenchSpec) -> &'static [Call] {
        match self.dir {
            None => calls_of(spec.mode),
            Some(Dir::Read) => &[Call::Get],
            Some(Dir::Write) => &[Call::Put],
            Some(Dir::Both) => &[Call::Get, Call::Put],
        }
    }
}

/// The place where rounds run: this process or remote servers.
trait Runner {
    /// Runs the raw operation, if there is a server for it.
    fn raw(&mut self, spec: &BenchSpec, run: Run) -> Result<Option<BenchReport>, Failure>;
    fn rpc(&mut self, what: RpcRun) -> Result<LoadOutcome, Failure>;
    /// Returns the progress of the calls.
    fn progress(&self) -> Progress;
    fn wire(&self) -> (Wire, &[usize]);
}

pub(super) fn run(args: &super::Args) -> Result<(), Failure> {
    let none = args.repeat == 1
        && args.interval.is_none()
        && args.rate.is_none()
        && !args.half
        && !args.bidirectional;
    if !none {
        return Err(Failure::usage(
            "--repeat, --interval, --rate, --half and --bidirectional do not go with --op rpc, which \
             has --rounds",
        ));
    }
    let spec = args.spec(Op::Send, SMALL)?;
    let calls = args.rpc.calls(&spec);
    rpc::check(&spec, calls).map_err(Failure::usage)?;
    let mut runner: Box<dyn Runner> = match args.connect {
        None => Box::new(Ring::open(args, &spec, calls)?),
        Some(server) => Box::new(Far::open(args, &spec, server)?),
    };
    let started = Started::now();
    let mut points = Vec::new();
    for (size, call) in spec.sizes.iter().flat_map(|s| calls.iter().map(move |c| (s, *c))) {
        points.extend(measure(args, &spec, &mut *runner, size, call)?);
    }
    let reports: Vec<RpcReport> = points.iter().flat_map(|p| p.runs.iter().cloned()).collect();
    args.results.say(&table(&reports));
    let document = started.document(args.parameters(&spec, "rpc"), points);
    args.results.write(&document)
}

/// Runs all rounds of one size and procedure. Each round runs the raw operation, and then each
/// version.
fn measure(
    args: &super::Args,
    spec: &BenchSpec,
    runner: &mut dyn Runner,
    size: Size,
    call: Call,
) -> Result<Vec<Point<RpcReport>>, Failure> {
    let what = args.rpc.versions().iter().map(|version| version.run(spec, call, size));
    let mut all: Vec<(RpcRun, Vec<Round>)> = what.map(|what| (what, Vec::new())).collect();
    for _ in 0..args.rpc.rounds.unwrap_or(3) {
        let raw = runner.raw(&rpc::raw(spec, call), Run::new(&rpc::raw(spec, call), size))?;
        for (what, rounds) in &mut all {
            let text = format!("rpc {call} {} {size}", spec.mode);
            let _line = Line::start(text, runner.progress(), args.log.quiet);
            let load = runner.rpc(*what)?;
            rounds.push(Round { load, raw: raw.clone() });
        }
    }
    let reports = all.into_iter();
    let (wire, lcores) = runner.wire();
    let report = |(what, rounds): (RpcRun, Vec<Round>)| {
        let summary = Round::summary(&rounds, size.0);
        let report = RpcReport::of(spec, &what, wire, lcores, rounds)?;
        Some(Point::of_rpc(report, summary))
    };
    Ok(reports.filter_map(report).collect())
}

/// Two RNICs of this process for the raw operations, and two for the calls.
struct Ring {
    raw: Vec<(Op, Pair)>,
    rpc: RpcPair,
    cores: Vec<usize>,
}

impl Ring {
    fn open(args: &super::Args, spec: &BenchSpec, calls: &[Call]) -> Result<Ring, Failure> {
        args.check_ring()?;
        if args.wire != super::WireArg::Ring {
            return Err(Failure::usage("--op rpc goes with --wire ring"));
        }
        let cores = args.cores()?;
        if cores.len() > 2 {
            return Err(Failure::usage("--lcores takes two processors with --op rpc"));
        }
        let eal = super::start(args, spec.mtu, 2 * (calls.len() + 1))?;
        let pair = |call: &Call| Ok((call.raw(), Pair::open(&eal, &rpc::raw(spec, *call))?));
        let raw = calls.iter().map(pair).collect::<Result<_, Failure>>()?;
        Ok(Ring { raw, rpc: RpcPair::open(&eal, spec)?, cores })
    }
}

impl Runner for Ring {
    fn raw(&mut self, spec: &BenchSpec, run: Run) -> Result<Option<BenchReport>, Failure> {
        let Some((_, pair)) = self.raw.iter_mut().find(|(op, _)| *op == run.op) else {
            return Ok(None);
        };
        Ok(Some(match self.cores.is_empty() {
            true => pair.run(spec, run, Placement::Inline)?,
            false => pair.run_on(spec, run, &self.cores)?,
        }))
    }

    fn rpc(&mut self, what: RpcRun) -> Result<LoadOutcome, Failure> {
        Ok(self.rpc.run(what, &self.cores)?)
    }

    fn progress(&self) -> Progress {
        self.rpc.progress.clone()
    }

    fn wire(&self) -> (Wire, &[usize]) {
        (Wire::Ring, &self.cores)
    }
}

/// The client of remote servers.
struct Far {
    client: Client,
    server: SocketAddr,
    /// True if there is a server of the raw operations.
    raw: bool,
    cores: Vec<usize>,
    /// The device of another process's RNIC.
    served: Option<Device>,
}

enum Client {
    Own(Box<Remote>),
    Served(OwnProcess),
}

impl Far {
    fn open(args: &super::Args, spec: &BenchSpec, server: SocketAddr) -> Result<Far, Failure> {
        args.check_device(spec)?;
        let cores = args.remote_cores()?;
        if cores.len() > 1 {
            return Err(Failure::usage("--lcores takes one processor with --op rpc and --connect"));
        }
        args.log.start();
        let memory = memory_for(spec) + rpc::memory_for(spec);
        let rnic = args.rnic.open_with(spec.mtu, memory, 2 * queues_for(spec), 1, args.tcp)?;
        if let Some(&core) = cores.first() {
            pin::pin_to(core)?;
        }
        let raw = args.rpc.raw.unwrap_or(server);
        let served = rnic.served();
        let client = match rnic {
            Rnic::Own { eal, endpoint } => Client::Own(Box::new(Remote::new(&eal, *endpoint, raw))),
            Rnic::Served(device) => Client::Served(OwnProcess::new(device, raw)),
        };
        Ok(Far { client, server, raw: args.rpc.raw.is_some(), cores, served })
    }
}

impl Runner for Far {
    fn raw(&mut self, spec: &BenchSpec, run: Run) -> Result<Option<BenchReport>, Failure> {
        if !self.raw {
            return Ok(None);
        }
        let core = self.cores.first().copied();
        let report = match &mut self.client {
            Client::Own(remote) => remote.run(spec, run, &self.cores).map_err(Failure::from),
            Client::Served(client) => client.run(spec, run, core).map_err(Failure::from),
        };
        report.map(Some).map_err(|failure| explain(self.served.as_ref(), failure))
    }

    fn rpc(&mut self, what: RpcRun) -> Result<LoadOutcome, Failure> {
        let outcome = match &mut self.client {
            Client::Own(remote) => remote.run_rpc(self.server, what).map_err(Failure::from),
            Client::Served(client) => client.run_rpc(self.server, what).map_err(Failure::from),
        };
        outcome.map_err(|failure| explain(self.served.as_ref(), failure))
    }

    fn progress(&self) -> Progress {
        match &self.client {
            Client::Own(remote) => remote.progress.clone(),
            Client::Served(client) => client.progress.clone(),
        }
    }

    fn wire(&self) -> (Wire, &[usize]) {
        let wire = match self.client {
            Client::Own(_) => Wire::Vdev,
            Client::Served(_) => Wire::Socket,
        };
        (wire, &self.cores)
    }
}
