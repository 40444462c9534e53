//! `heddle serve`

use std::time::Duration;

use heddle::perf::service::{ServiceSpec, Services};
use heddle::perf::spec::{self, SpecError};
use heddle::{Eal, Endpoint, ListenParams, Node, Sleeper, WorkerSnapshot};
use tracing::debug;

use super::log::LogArgs;
use super::net::{NetArgs, first_core};
use super::signals::Stop;
use super::{Failure, say};

/// Runs until told to end by SIGINT or SIGTERM.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    net: NetArgs,
    /// A service and where it listens: rping, perf, sink (10.0.0.1:7174=rping); may be given several times
    #[arg(long = "listen", value_name = "ADDR:PORT=SERVICE", required = true)]
    listen: Vec<ServiceSpec>,
    /// Octets of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u16,
    /// MiB of registered memory
    #[arg(long, value_name = "N", default_value_t = 256)]
    memory: u32,
    /// Processor of the worker [default: the first]
    #[arg(long, value_name = "N", conflicts_with = "inline")]
    lcore: Option<usize>,
    /// One thread does everything
    #[arg(long)]
    inline: bool,
    #[command(flatten)]
    log: LogArgs,
}

/// MiB of registered memory one may ask for.
const MAX_MEMORY: u32 = 64 << 10;

/// How long the services sleep at most, so that signals are seen.
const NAP: Duration = Duration::from_millis(50);

/// How long connections have to end in order.
const FAREWELL: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.net.source()?;
    if !spec::MTU.contains(&args.mtu) {
        let (min, max) = ((*spec::MTU.start()).into(), (*spec::MTU.end()).into());
        return Err(Failure::usage(SpecError::Range {
            what: "MTU",
            given: args.mtu.into(),
            min,
            max,
        }));
    }
    if !(1..=MAX_MEMORY).contains(&args.memory) {
        let (given, max) = (args.memory.into(), MAX_MEMORY.into());
        return Err(Failure::usage(SpecError::Range { what: "MiB of memory", given, min: 1, max }));
    }
    for (n, s) in args.listen.iter().enumerate() {
        if !s.addr.ip().is_unspecified() && !args.net.ips.iter().any(|c| c.addr() == s.addr.ip()) {
            return Err(Failure::usage(format!("--listen {}: no --ip has that address", s.addr)));
        }
        if args.listen[..n].iter().any(|o| o.addr == s.addr) {
            return Err(Failure::usage(format!("--listen {}: given twice", s.addr)));
        }
    }
    args.log.start();
    let stop = Stop::on_signals()?;
    let (eal, endpoint) = args.net.open(args.mtu, (args.memory as usize) << 20)?;
    if args.inline { inline(args, &stop, endpoint) } else { threaded(args, &stop, &eal, endpoint) }
}

fn announce(args: &Args) {
    for s in &args.listen {
        say(&format!("{} listening on {}\n", s.kind, s.addr));
    }
}

fn threaded(args: &Args, stop: &Stop, eal: &Eal, endpoint: Endpoint) -> Result<(), Failure> {
    let core = args.lcore.map_or_else(first_core, Ok)?;
    let node = Node::start(eal, endpoint, core)?;
    let sleeper = Sleeper::new();
    let waker = sleeper.waker();
    let mut services =
        Services::start(node.device(), &args.listen, &ListenParams::default(), Some(&waker))?;
    announce(args);
    while !stop.is_set() {
        if !services.step() {
            sleeper.sleep(NAP, || services.has_work());
        }
        if !node.is_running() {
            return Err(Failure::failed("the worker has ended by itself, which is a defect"));
        }
    }
    drop(services);
    std::thread::sleep(FAREWELL);
    if let Some(s) = node.snapshot() {
        tell(&s);
    }
    Ok(())
}

fn inline(args: &Args, stop: &Stop, mut endpoint: Endpoint) -> Result<(), Failure> {
    let mut services =
        Services::start(endpoint.device(), &args.listen, &ListenParams::default(), None)?;
    // The first poll carries out the orders to listen.
    endpoint.poll();
    announce(args);
    while !stop.is_set() {
        endpoint.poll();
        services.step();
    }
    drop(services);
    let until = endpoint.now() + FAREWELL;
    while endpoint.now() < until {
        endpoint.poll();
    }
    tell(&endpoint.snapshot().worker);
    Ok(())
}

/// What was counted, to the log.
fn tell(s: &WorkerSnapshot) {
    s.for_each(|part, name, _, value| {
        if value > 0 {
            debug!(part, name, value, "in all");
        }
    });
}
