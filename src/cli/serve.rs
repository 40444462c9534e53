//! `heddle serve`

mod private;

use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle::connection::ListenParams;
use heddle::dpdk::{CoreList, Hugepages, IdlePolicy, Naps};
use heddle::memory::PageSize;
use heddle::rnic::Patience;
use heddle::tcp::{Route, SynCookies};
use heddle::units::Span;
use heddle::{Device, Endpoint};
use heddle_daemon::config::{self, Config, ConfigError, Control, Dpdk, Limits, Log, LogFormat};
use heddle_daemon::interfaces::Interfaces;
use heddle_daemon::rnic::{self, Progress};
use heddle_daemon::service::{ServiceKind, ServiceSpec, services as names};
use heddle_perf::spec::SpecError;
use heddle_services::Services;

use super::log::LogArgs;
use super::mpa::MpaArgs;
use super::net::{NetArgs, TcpArgs, mtu, syn_cookies};
use super::signals::Stop;
use super::{Failure, complain, counters, say};

/// Runs until SIGINT or SIGTERM, then shows its counters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read all other settings from a file (docs/guide/appliance.md); read again on SIGHUP and
    /// `heddle reload`
    #[arg(long, value_name = "FILE", conflicts_with_all = FLAGS)]
    config: Option<PathBuf>,
    /// Only check the file, and that this host has what the file names; =file leaves the host out
    #[arg(
        long,
        value_name = "WHAT",
        requires = "config",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "host",
        value_enum
    )]
    check_config: Option<Check>,
    #[command(flatten)]
    net: NetArgs,
    /// A service and where it listens (10.0.0.1:7174=rping); may be given several times
    #[arg(
        long = "listen",
        value_name = "ADDR:PORT=SERVICE",
        required_unless_present_any = ["config", "private"],
        long_help = listen_help()
    )]
    listen: Vec<ServiceSpec>,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    #[command(flatten)]
    mpa: MpaArgs,
    /// Silence of a peer after which the RNIC probes whether it is alive; after three probes, a
    /// third of that time apart, its connection ends [0s: never]
    #[arg(long, value_name = "T", default_value = "60s")]
    keepalive: Span,
    #[command(flatten)]
    tcp: TcpArgs,
    /// Answer a SYN with a cookie, for which nothing is kept: auto (where there is no room for it
    /// among the half-open connections), always or off
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = syn_cookies)]
    syn_cookies: SynCookies,
    /// MiB of registered memory
    #[arg(long, value_name = "N", default_value_t = 256)]
    memory: u32,
    /// Processors, one for each worker: the port spreads the flows over the workers if it can, and
    /// otherwise the workers do. A processor named twice has two threads that take turns [default:
    /// one worker, on the first]
    #[arg(long, value_name = "LIST", alias = "lcore", conflicts_with = "inline")]
    lcores: Option<CoreList>,
    /// The behaviour of a worker without work
    #[arg(long, value_enum, default_value_t = Idle::Spin)]
    idle: Idle,
    /// Serve as the user's own RNIC, for programs on this host: no device, no privileges, addresses
    /// 127.0.0.0/8 and those of the host. The RNIC ends when the last program has gone (heddle run)
    #[arg(long, conflicts_with = "config", conflicts_with_all = &FLAGS[..PUBLIC])]
    private: bool,
    /// The time that a private RNIC stays without a program
    #[arg(long, value_name = "T", default_value = "10s", requires = "private")]
    grace: Span,
    /// Start the RNIC apart from this process, with a log beside its socket
    #[arg(long, requires = "private", hide = true)]
    detach: bool,
    /// Log to this file once the RNIC has its lock
    #[arg(long, value_name = "FILE", requires = "private", hide = true)]
    log_to: Option<PathBuf>,
    /// Run everything on one thread
    #[arg(long)]
    inline: bool,
    /// The control socket on which to answer while running [default: none]
    #[arg(long, value_name = "PATH", conflicts_with = "inline")]
    socket: Option<PathBuf>,
    /// The address for Prometheus to scrape (127.0.0.1:9184), in the kernel's network [default:
    /// none]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "inline")]
    metrics: Option<std::net::SocketAddr>,
    #[command(flatten)]
    log: LogArgs,
}

/// Options that the configuration file replaces: first those that do not apply to a private RNIC
/// either.
const FLAGS: [&str; 30] = [
    "metrics",
    "vdev",
    "pci",
    "bond",
    "members",
    "iova",
    "ips",
    "gateway",
    "router_adverts",
    "vlans",
    "congestion",
    "ecn",
    "pacing",
    "receive_window",
    "syn_cookies",
    "path_mtu_probing",
    "user_timeout",
    "user_timeout_option",
    "listen",
    "mtu",
    "crc",
    "mpa",
    "rtr",
    "markers",
    "memory",
    "lcores",
    "idle",
    "inline",
    "keepalive",
    "socket",
];

/// How many of [`FLAGS`] do not apply to a private RNIC.
const PUBLIC: usize = FLAGS.len() - 2;

/// The reach of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Check {
    /// The file, and the host that it is for
    Host,
    /// The file alone, on any host
    File,
}

/// The command line's form of [`IdlePolicy`], with the usual naps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Idle {
    /// Poll again at once, and take all of a processor
    Spin,
    /// Sleep for growing times
    Backoff,
    /// Sleep until the device interrupts, where it can
    Interrupt,
}

impl Idle {
    fn policy(self) -> IdlePolicy {
        match self {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Backoff => IdlePolicy::Backoff(Naps::default()),
            Idle::Interrupt => IdlePolicy::Interrupt(Naps::default()),
        }
    }
}

fn listen_help() -> String {
    format!(
        "A service and where it listens (10.0.0.1:7174=rping); may be given several times. One of: \
         {}. ucmatose takes ,count=N and ,size=N, those of perftest (ib_*) ,size=N, nfs ,ro and ,async, \
         further directories (,/srv/scratch,ro), ,tcp=ADDR:PORT, where the host answers MOUNT, and ,rpcbind \
         (docs/guide/nfs.md)",
        names()
    )
}

/// MiB for queues: a service with all its connections needs about 12.
const QUEUES: u32 = 64;

/// Time for connections to end in order, where no file sets it.
const SHUTDOWN: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.private {
        return private::run(args);
    }
    let config = match &args.config {
        Some(file) => {
            if let Some(what) = args.check_config {
                return check(file, what);
            }
            let config = Config::read(file).map_err(|e| of_config(&e))?;
            Config {
                log: Log { level: args.log.level_or(config.log.level), ..config.log },
                ..config
            }
        }
        None => of_flags(args)?,
    };
    if args.inline {
        args.log.start();
        return inline(&config);
    }
    let counted =
        heddle_daemon::run(config, args.config.clone(), report).map_err(Failure::of_start)?;
    if heddle_daemon::log::is_json() {
        for (part, counter, value) in counters::rows_of_rnic(&counted) {
            tracing::info!(target: heddle_daemon::log::REPORT, part, counter, value, "counted");
        }
    } else {
        say(&counters::of_rnic(&counted));
    }
    Ok(())
}

/// Checks a file; warnings go to stderr, and the settings in short to stdout.
fn check(file: &Path, what: Check) -> Result<(), Failure> {
    let name = file.display();
    match what {
        Check::File => {
            Config::read(file).map_err(|e| of_config(&e))?;
            say(&format!("{name} is valid; this host was not looked at\n"));
        }
        Check::Host => {
            let checked = Config::check_here(file).map_err(|e| of_config(&e))?;
            for warning in &checked.warnings {
                complain(&format!("{name}:{warning}"));
            }
            say(&format!("{name} is usable on this host:\n{}", checked.summary));
        }
    }
    Ok(())
}

/// Prints a line, or logs it where the log has a format for programs.
fn report(line: &str) {
    if heddle_daemon::log::is_json() {
        tracing::info!(target: heddle_daemon::log::REPORT, "{}", line.trim_end());
    } else {
        say(line);
    }
}

/// Checks the options of a command that the documents show, without opening a device.
#[cfg(test)]
pub(super) fn check_shown(args: &Args) -> Result<(), Failure> {
    match &args.config {
        // A name without a directory stands for a file of the reader's own.
        Some(file) if file.parent().is_some_and(|dir| dir.as_os_str().is_empty()) => Ok(()),
        Some(file) => Config::read(file).map(drop).map_err(|e| of_config(&e)),
        None if args.private => Ok(()),
        None => of_flags(args).map(drop),
    }
}

/// Converts the error of a wrong file to a usage error.
pub(super) fn of_config(e: &ConfigError) -> Failure {
    match e {
        ConfigError::Read { .. } => Failure::failed(e),
        ConfigError::Wrong { .. } => Failure::Lines(e.to_string()),
    }
}

/// Builds from the options the same value that a file gives.
fn of_flags(args: &Args) -> Result<Config, Failure> {
    let source = args.net.source()?;
    let mpa = args.mpa.server()?;
    if !(1..=config::MAX_MEMORY).contains(&args.memory) {
        let (given, max) = (args.memory.into(), config::MAX_MEMORY.into());
        return Err(Failure::usage(SpecError::Range { what: "MiB of memory", given, min: 1, max }));
    }
    for (n, s) in args.listen.iter().enumerate() {
        if !s.addr.ip().is_unspecified() && !args.net.has(s.addr.ip()) {
            return Err(Failure::usage(format!("--listen {}: no --ip has that address", s.addr)));
        }
        if args.listen[..n].iter().any(|o| o.addr == s.addr) {
            return Err(Failure::usage(format!("--listen {}: given twice", s.addr)));
        }
    }
    Ok(Config {
        dpdk: Dpdk { memory: None, hugepages: Hugepages::Auto, iova: args.net.iova.mode() },
        log: Log { level: args.log.level(), format: LogFormat::Text },
        control: args.socket.as_ref().map(Control::at),
        metrics: args.metrics,
        ports: vec![config::Port {
            name: "port0".into(),
            source,
            mtu: args.mtu,
            // A single thread for everything needs only one worker.
            workers: args.lcores.as_ref().map_or(1, |l| l.cores().len()),
            queues: None,
            offloads: args.net.offloads.unwrap_or_default(),
            addresses: args.net.ips.clone(),
            routes: args.net.gateway.map(Route::default_via).into_iter().collect(),
            router_adverts: args.net.router_adverts,
            vlans: args.net.vlans.clone(),
        }],
        inner: config::inner(),
        private: None,
        workers: config::Workers {
            lcores: args.lcores.as_ref().map(|l| l.cores().to_vec()).unwrap_or_default(),
            idle: args.idle.policy(),
        },
        memory: config::Memory { registered: args.memory, pages: PageSize::Auto, queues: QUEUES },
        weight: 1,
        limits: Limits::default(),
        mpa,
        keepalive: config::keepalive(args.keepalive.0),
        sharing: args.tcp.sharing(),
        syn_cookies: args.syn_cookies,
        patience: Patience { tcp: args.tcp.patience(), ..Patience::default() },
        infiniband: false,
        ib_keepalive: None,
        listen: args.listen.clone(),
        forward: Vec::new(),
        clients: Vec::new(),
        shutdown: SHUTDOWN,
    })
}

/// Starts the configured services. The benchmarks of one peer get half of the memory at most.
fn services(config: &Config, device: &Device) -> Result<Services, Failure> {
    let params = ListenParams::default().mpa(config.mpa);
    let peer_memory = u64::from(config.memory.registered) << 19;
    let limits = heddle_services::Limits { peer_memory, ..heddle_services::Limits::default() };
    let spec = |s: &ServiceSpec| match s.kind {
        ServiceKind::Program(kind) => {
            Ok(heddle_services::ServiceSpec { addr: s.addr, kind, infiniband: s.infiniband })
        }
        ServiceKind::Nfs(_) => {
            let what = format!("--listen {}: nfs needs threads of its own, not --inline", s.addr);
            Err(Failure::usage(what))
        }
    };
    let specs = config.listen.iter().map(spec).collect::<Result<Vec<_>, _>>()?;
    Ok(Services::start_with(device, &specs, &params, &limits, None)?)
}

/// Runs everything on one thread, which therefore answers no control requests meanwhile.
fn inline(config: &Config) -> Result<(), Failure> {
    let progress = Progress::default();
    let (_eal, mut endpoint): (_, Endpoint) =
        rnic::open(config, &progress).map_err(Failure::of_start)?;
    // Install the handlers only now: a driver may wait for its device for ever, and until here a
    // signal still ends the process.
    let stop = Stop::on_signals()?;
    let mut services = services(config, endpoint.device())?;
    let interfaces = Interfaces::watch(config.ports.iter().map(|p| &p.source));
    while !stop.is_set() && !services.is_listening()? {
        endpoint.poll();
        services.step();
    }
    for s in &config.listen {
        say(&format!("{} listening on {}\n", s.kind, s.addr));
    }
    while !stop.is_set() {
        endpoint.poll();
        services.step();
        interfaces.check().map_err(Failure::failed)?;
    }
    drop(services);
    let until = endpoint.now() + config.shutdown;
    while endpoint.now() < until {
        endpoint.poll();
    }
    say(&counters::of_rnic(&endpoint.snapshot()));
    Ok(())
}
