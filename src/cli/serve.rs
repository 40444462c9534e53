//! `heddle serve`

use std::time::Duration;

use heddle::perf::service::{Limits, SERVICES, ServiceSpec, Services};
use heddle::perf::spec::{Span, SpecError};
use heddle::{
    ConnConfig, CoreList, Device, Eal, Endpoint, EndpointConfig, Keepalive, ListenParams, Node,
    Sleeper, Waker,
};

use super::interfaces::Interfaces;
use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::{NetArgs, first_core, mtu};
use super::signals::Stop;
use super::{Failure, counters, say};

/// Runs until told to end by SIGINT or SIGTERM, then shows what was counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    net: NetArgs,
    /// A service and where it listens (10.0.0.1:7174=rping); may be given several times
    #[arg(long = "listen", value_name = "ADDR:PORT=SERVICE", required = true, long_help = listen_help())]
    listen: Vec<ServiceSpec>,
    /// Octets of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    mpa: MpaArgs,
    /// Silence of a peer after which it is asked whether it is still there; three questions a third of
    /// that apart, then its connection ends [0s: never]
    #[arg(long, value_name = "T", default_value = "60s")]
    keepalive: Span,
    /// MiB of registered memory
    #[arg(long, value_name = "N", default_value_t = 256)]
    memory: u32,
    /// Processors, one for each worker: flows are spread over the workers by the port if it can, or by
    /// themselves. One named twice has two threads that take turns [default: the first]
    #[arg(long, alias = "lcore", value_name = "LIST", conflicts_with = "inline")]
    lcores: Option<CoreList>,
    /// One thread does everything
    #[arg(long)]
    inline: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn listen_help() -> String {
    format!(
        "A service and where it listens (10.0.0.1:7174=rping); may be given several times. One of: \
         {SERVICES}. ucmatose takes ,count=N and ,size=N, those of perftest (ib_*) ,size=N"
    )
}

/// MiB of registered memory one may ask for.
const MAX_MEMORY: u32 = 64 << 10;

/// Octets for queues: a service with all the connections it takes needs some 12 MiB.
const QUEUES: usize = 64 << 20;

/// How long the services sleep at most, so that signals are seen.
const NAP: Duration = Duration::from_millis(50);

/// How long connections have to end in order.
const FAREWELL: Duration = Duration::from_millis(300);

impl Args {
    fn workers(&self) -> usize {
        self.lcores.as_ref().map_or(1, |list| list.cores().len())
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.net.source()?;
    args.mpa.server()?;
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
    let (eal, endpoint) = args.net.open_with(|config| EndpointConfig {
        mtu: args.mtu,
        workers: args.workers(),
        memory: (args.memory as usize) << 20,
        queues: QUEUES,
        tcp: ConnConfig { keepalive: keepalive(args.keepalive.0), ..config.tcp },
        ..config
    })?;
    if args.inline { inline(args, &stop, endpoint) } else { threaded(args, &stop, &eal, endpoint) }
}

/// RFC 1122 section 4.2.3.6 leaves these to whoever asks for keepalives.
fn keepalive(idle: Duration) -> Option<Keepalive> {
    (!idle.is_zero()).then(|| Keepalive { idle, interval: idle / 3, count: 3 })
}

/// Starts what was asked for. Benchmarks of one peer get half of the memory at most.
fn services(args: &Args, device: &Device, waker: Option<&Waker>) -> Result<Services, Failure> {
    let params = ListenParams::default().mpa(args.mpa.server()?);
    let limits = Limits { peer_memory: u64::from(args.memory) << 19, ..Limits::default() };
    Ok(Services::start_with(device, &args.listen, &params, &limits, waker)?)
}

fn announce(args: &Args) {
    for s in &args.listen {
        say(&format!("{} listening on {}\n", s.kind, s.addr));
    }
}

fn threaded(args: &Args, stop: &Stop, eal: &Eal, endpoint: Endpoint) -> Result<(), Failure> {
    let cores = match &args.lcores {
        Some(list) => list.cores().to_vec(),
        None => vec![first_core()?],
    };
    let node = Node::start(eal, endpoint, &cores)?;
    let sleeper = Sleeper::new();
    let waker = sleeper.waker();
    let mut services = services(args, node.device(), Some(&waker))?;
    let interfaces = Interfaces::watch(args.net.vdev.as_ref());
    while !stop.is_set() && !services.is_listening()? {
        services.step();
        sleeper.sleep(NAP, || services.has_work());
    }
    announce(args);
    while !stop.is_set() {
        if !services.step() {
            sleeper.sleep(NAP, || services.has_work());
        }
        if !node.is_running() {
            return Err(Failure::failed("no worker is left, which is a defect"));
        }
        interfaces.check()?;
    }
    drop(services);
    std::thread::sleep(FAREWELL);
    say(&counters::of_rnic(&node.stop()));
    Ok(())
}

fn inline(args: &Args, stop: &Stop, mut endpoint: Endpoint) -> Result<(), Failure> {
    let mut services = services(args, endpoint.device(), None)?;
    let interfaces = Interfaces::watch(args.net.vdev.as_ref());
    while !stop.is_set() && !services.is_listening()? {
        endpoint.poll();
        services.step();
    }
    announce(args);
    while !stop.is_set() {
        endpoint.poll();
        services.step();
        interfaces.check()?;
    }
    drop(services);
    let until = endpoint.now() + FAREWELL;
    while endpoint.now() < until {
        endpoint.poll();
    }
    say(&counters::of_rnic(&endpoint.snapshot()));
    Ok(())
}
