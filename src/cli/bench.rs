//! `heddle bench`

mod rpc;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use heddle::perf::embedded::{Pair, Placement, Remote, memory_for, queues_for};
use heddle::perf::own_process::OwnProcess;
use heddle::perf::pin;
use heddle::perf::progress::Progress;
use heddle::perf::report::{BenchReport, table, write_json};
use heddle::perf::spec::{BenchSpec, Faults, OUTSTANDING, OUTSTANDING_INLINE, Until};
use heddle::perf::workload::Run;
use heddle::services::bench::{Mode, Op};
use heddle::units::{Probability, Size, Sizes, Span};
use heddle::{CoreList, Eal, EndpointConfig, MAX_WORKERS, Seed};

use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::{Iova, mtu, start_eal};
use super::progress::Line;
use super::rnic::{Rnic, RnicArgs, explain};
use super::{Failure, say};

/// Without --connect, client and server run in this process, joined by rings.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Operation: write, read, send, write-imm, send-imm, fetch-add, cmp-swap; or rpc: calls of
    /// RPC-over-RDMA, each time beside the operation of these that carries them
    #[arg(long, default_value = "write")]
    op: rpc::What,
    /// The figure to measure: bw (throughput), lat (latency, one message in each direction), rate
    /// (operations per second)
    #[arg(long, default_value = "bw")]
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
    /// The wire between client and server
    #[arg(long, value_enum, default_value_t = WireArg::Ring, conflicts_with = "connect")]
    wire: WireArg,
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
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The perf service of another process or host; needs --vdev or --pci, and --ip, or --socket
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<SocketAddr>,
    #[command(flatten)]
    rpc: rpc::RpcArgs,
    #[command(flatten)]
    rnic: RnicArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WireArg {
    /// Two ports of this process, joined by rings
    Ring,
    /// No wire: client and server are two applications of one RNIC, whose worker is on the client's
    /// processor. Without a CRC and markers, the worker moves data from one to the other by one
    /// copy
    Loop,
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
            faults: Faults {
                loss: self.loss,
                reorder: self.reorder,
                dup: self.dup,
                seed: self.seed,
            },
            verify: self.verify,
        })
    }

    /// Refuses options that need a device.
    fn check_ring(&self) -> Result<(), Failure> {
        let net = &self.rnic.net;
        let device = net.vdev.is_some() || net.pci.is_some() || self.rnic.socket.is_some();
        if device || !net.ips.is_empty() {
            return Err(Failure::usage(
                "--vdev, --pci, --ip and --socket go with --connect: without it the wire is a ring",
            ));
        }
        Ok(())
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
    if let Some(path) = &args.json
        && path.is_dir()
    {
        return Err(Failure::usage(format!("--json: {} is a directory", path.display())));
    }
    let op = match args.op {
        rpc::What::Rpc => return rpc::run(args),
        rpc::What::Raw(op) => op,
    };
    args.rpc.check_unused()?;
    let spec = args.spec(op, Size(8))?;
    spec.check().map_err(Failure::usage)?;
    let reports = match args.connect {
        Some(server) => connect(args, &spec, server)?,
        None => embedded(args, &spec)?,
    };
    say(&table(&reports));
    if let Some(path) = &args.json {
        write_json(path, &reports)?;
    }
    Ok(())
}

fn embedded(args: &Args, spec: &BenchSpec) -> Result<Vec<BenchReport>, Failure> {
    args.check_ring()?;
    let cores = args.cores()?;
    let workers = (cores.len() / 2).max(1);
    let eal = start(args, spec.mtu, 2 * workers)?;
    let mut pair = match args.wire {
        WireArg::Ring => Pair::with_workers(&eal, spec, workers)?,
        WireArg::Loop if workers > 1 => {
            return Err(Failure::usage("--wire loop has one worker: it takes two processors"));
        }
        WireArg::Loop if !spec.faults.is_none() => {
            return Err(Failure::usage("--loss, --reorder and --dup need frames: --wire ring"));
        }
        WireArg::Loop => Pair::looped(&eal, spec)?,
    };
    let mut reports = Vec::new();
    for size in spec.sizes.iter() {
        let _line = line(args, spec, size, &pair.progress);
        let run = Run::new(spec, size);
        reports.push(match cores.is_empty() {
            true => pair.run(spec, run, Placement::Inline)?,
            false => pair.run_on(spec, run, &cores)?,
        });
    }
    Ok(reports)
}

/// Starts DPDK with memory for `pools` pools of packet buffers.
fn start(args: &Args, mtu: u16, pools: usize) -> Result<Eal, Failure> {
    args.log.start();
    let shape = EndpointConfig { mtu, ..EndpointConfig::with_seed(Vec::new(), Seed::from_u64(0)) };
    start_eal(&shape, u32::try_from(pools).unwrap_or(u32::MAX), Vec::new(), Iova::Auto)
}

fn connect(args: &Args, spec: &BenchSpec, server: SocketAddr) -> Result<Vec<BenchReport>, Failure> {
    args.check_device(spec)?;
    let cores = args.remote_cores()?;
    args.log.start();
    let workers = cores.len().max(1);
    // Each worker needs its own room for completion queues.
    let queues = queues_for(spec) + (workers - 1) * (16 << 20);
    let rnic = args.rnic.open_with(spec.mtu, memory_for(spec), queues, workers)?;
    if let Some(&core) = cores.first() {
        pin::pin_to(core)?;
    }
    let served = rnic.served();
    let measured = measure(args, spec, server, rnic, &cores);
    measured.map_err(|failure| explain(served.as_ref(), failure))
}

fn measure(
    args: &Args,
    spec: &BenchSpec,
    server: SocketAddr,
    rnic: Rnic,
    cores: &[usize],
) -> Result<Vec<BenchReport>, Failure> {
    let mut reports = Vec::new();
    match rnic {
        Rnic::Own { eal, endpoint } => {
            let mut remote = Remote::new(&eal, *endpoint, server);
            for size in spec.sizes.iter() {
                let _line = line(args, spec, size, &remote.progress);
                reports.push(remote.run(spec, Run::new(spec, size), cores)?);
            }
        }
        Rnic::Served(device) => {
            let mut client = OwnProcess::new(device, server);
            for size in spec.sizes.iter() {
                let _line = line(args, spec, size, &client.progress);
                reports.push(client.run(spec, Run::new(spec, size), cores.first().copied())?);
            }
        }
    }
    Ok(reports)
}

fn line(args: &Args, spec: &BenchSpec, size: Size, progress: &Progress) -> Line {
    let what = format!("{} {} {size}", spec.op, spec.mode);
    Line::start(what, progress.clone(), args.log.quiet)
}
