//! The settings of an appliance: from a file, or from the flags of the command line.
//!
//! ```text
//!   text ── serde ──▶ file::File ── check ──▶ Config ── host ──▶ usable here
//!             │ unknown keys, wrong      │ values out of range,  │ interfaces, devices,
//!             │ types                    │ contradictions        │ processors, hugepages
//!             └────────▶ Problems ◀──────┴───────────────────────┘   each with its place and key
//! ```
//!
//! A [`Config`] is checked and has its defaults, so code that has a `Config` need not check again.
//! The text of a file comes in as a value; only [`Config::read`] opens a file.

mod check;
mod file;
pub(crate) mod forward;
mod host;
mod private;
mod problem;
mod shown;
mod summary;
mod text;
pub(crate) mod value;

use core::net::SocketAddr;
use core::time::Duration;
use std::path::{Path, PathBuf};

use heddle_ctl::{InnerSetup, Patience};
use heddle_dataplane::{Hugepages, IdlePolicy, IovaMode, Member, Offloads, PortSource};
use heddle_hub::Policy;
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::{
    Cidr, Congestion, ConnConfig, Ecn, Keepalive, Pacing, PathMtu, RECV_WINDOW_BUDGET, Route,
    SynCookies, UserTimeoutOption, Vlan,
};
use heddle_verbs::{DeviceLimits, MpaOptions, PageSize};
use tracing_subscriber::filter::LevelFilter;

use crate::service::ServiceSpec;

pub use forward::Forward;
pub use private::Private;
pub use problem::{ConfigError, Problem};
use text::Text;
pub use value::{Accounts, Principal, cidr};

/// Largest number of memory areas of an appliance, and of a private RNIC, whose programs bring many
/// small ones.
const REGIONS: usize = 4096;
const PRIVATE_REGIONS: u32 = 16 << 10;

/// Returns the settings of an appliance's inner port: its frames are as large as frames of the
/// other ports may be.
pub fn inner() -> InnerSetup {
    InnerSetup { mtu: 9000, ..InnerSetup::default() }
}

/// Largest amount of registered memory, in MiB.
pub const MAX_MEMORY: u32 = 64 << 10;

/// All settings of an appliance.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Settings of DPDK.
    pub dpdk: Dpdk,
    /// Level and format of the log.
    pub log: Log,
    /// The control socket; none when absent.
    pub control: Option<Control>,
    /// The address that Prometheus asks, by HTTP over the kernel's TCP; none when absent.
    pub metrics: Option<SocketAddr>,
    /// The ports: at least one, unless the RNIC is private.
    pub ports: Vec<Port>,
    /// The inner port, over which the RNIC connects to itself.
    pub inner: InnerSetup,
    /// Absent for an appliance.
    pub private: Option<Private>,
    /// The threads that move data.
    pub workers: Workers,
    /// Memory of the services.
    pub memory: Memory,
    /// Largest numbers of connections and other objects.
    pub limits: Limits,
    /// Weight of the services in the turns of workers.
    pub weight: u32,
    /// Start-up options of listeners.
    pub mpa: MpaOptions,
    /// Keepalive probes to silent peers of new connections; absent for no probes.
    pub keepalive: Option<Keepalive>,
    /// How connections share the network with others.
    pub sharing: Sharing,
    /// When a worker answers a SYN with a cookie.
    pub syn_cookies: SynCookies,
    /// Time limits for peers that hold connections up.
    pub patience: Patience,
    /// Whether InfiniBand's connection management is enabled.
    pub infiniband: bool,
    /// Silence after which the RNIC probes the peer that made an InfiniBand connection; absent for
    /// no probes.
    pub ib_keepalive: Option<Duration>,
    /// Services, each at an address of its own.
    pub listen: Vec<ServiceSpec>,
    /// Forwarders, at addresses of their own too.
    pub forward: Vec<Forward>,
    /// Policies for applications of other processes; the first rule that covers an application
    /// applies.
    pub clients: Vec<ClientRule>,
    /// Time that connections have to end in order when the appliance ends.
    pub shutdown: Duration,
}

/// How connections share the network with others: see the fields of [`heddle_tcp::ConnConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// The algorithm that sizes the congestion window.
    pub congestion: Congestion,
    /// Explicit Congestion Notification.
    pub ecn: Ecn,
    /// Spreading of new data over the round trip.
    pub pacing: Pacing,
    /// Probes of the path MTU.
    pub path_mtu: PathMtu,
    /// Whether ends tell each other their user timeouts (RFC 5482).
    pub user_timeout_option: UserTimeoutOption,
    /// The longest timeout that a connection takes from its peer.
    pub user_timeout_limit: Duration,
    /// Bytes that a peer may send ahead at first.
    pub recv_window: u32,
    /// The most bytes to which this window grows.
    pub recv_window_max: u32,
    /// Bytes by which the windows of a worker's connections may grow.
    pub window_budget: u64,
}

impl Sharing {
    /// Returns the same with a receive window of `bytes` that does not grow, if `bytes` is given.
    #[must_use]
    pub fn with_window(self, bytes: Option<u32>) -> Sharing {
        match bytes {
            Some(recv_window) => Sharing { recv_window, recv_window_max: 0, ..self },
            None => self,
        }
    }

    /// Returns the size of a receive window that does not grow.
    pub fn fixed_window(&self) -> Option<u32> {
        (self.recv_window_max <= self.recv_window).then_some(self.recv_window)
    }

    /// Returns `conn` with these settings.
    #[must_use]
    pub fn of_conn(&self, conn: ConnConfig) -> ConnConfig {
        ConnConfig {
            congestion: self.congestion,
            ecn: self.ecn,
            pacing: self.pacing,
            path_mtu: self.path_mtu,
            user_timeout_option: self.user_timeout_option,
            user_timeout_limit: self.user_timeout_limit,
            recv_window: self.recv_window,
            recv_window_max: self.recv_window_max,
            ..conn
        }
    }
}

impl Default for Sharing {
    fn default() -> Sharing {
        let conn = ConnConfig::default();
        Sharing {
            congestion: conn.congestion,
            ecn: conn.ecn,
            pacing: conn.pacing,
            path_mtu: conn.path_mtu,
            user_timeout_option: conn.user_timeout_option,
            user_timeout_limit: conn.user_timeout_limit,
            recv_window: conn.recv_window,
            recv_window_max: conn.recv_window_max,
            window_budget: RECV_WINDOW_BUDGET,
        }
    }
}

/// Settings of DPDK.
#[derive(Clone, Debug, PartialEq)]
pub struct Dpdk {
    /// MiB for packet buffers and DPDK's own structures; when absent, as much as the ports need.
    pub memory: Option<u32>,
    /// Use of huge pages.
    pub hugepages: Hugepages,
    /// The kind of addresses that devices use; when absent, the kind that they are known to need.
    pub iova: Option<IovaMode>,
}

/// Settings of the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log {
    /// The least severe level that is logged.
    pub level: LevelFilter,
    /// Form of the lines.
    pub format: LogFormat,
}

/// Form of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// A JSON object.
    Json,
}

/// Settings of the control socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// Path of the socket's file.
    pub path: PathBuf,
    /// Permissions of the file.
    pub mode: u32,
    /// The group that owns the file; the group of the process when absent.
    pub group: Option<u32>,
    /// Principals that may read the appliance's state, beside those that may change it.
    pub read: Vec<Principal>,
    /// Principals that may change the appliance, beside root and the user of the process.
    pub change: Vec<Principal>,
    /// Directories below which clients that may change the appliance may have directories exported;
    /// root and the user of the process may export any.
    pub exports: Vec<PathBuf>,
    /// Largest number of simultaneous clients.
    pub clients: usize,
}

impl Control {
    /// Returns the settings of the socket at `path` for root and the user of the process.
    pub fn at(path: impl Into<PathBuf>) -> Control {
        Control {
            path: path.into(),
            mode: 0o660,
            group: None,
            read: Vec::new(),
            change: Vec::new(),
            exports: Vec::new(),
            clients: 256,
        }
    }
}

/// Settings of a port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the port in answers and logs.
    pub name: String,
    /// The port's device.
    pub source: PortSource,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Number of workers that share the port.
    pub workers: usize,
    /// Number of pairs of queues; when absent, as many as there are workers, or as the device has.
    pub queues: Option<usize>,
    /// The work that the device may do by itself.
    pub offloads: Offloads,
    /// Our addresses at the port, with their prefixes.
    pub addresses: Vec<Cidr>,
    /// Routes to peers outside the prefixes.
    pub routes: Vec<Route>,
    /// Which advertisements of routers count at the port.
    pub router_adverts: RouterAdverts,
    /// VLANs of the port, with addresses and routes of their own.
    pub vlans: Vec<Vlan>,
}

impl PartialEq for Port {
    fn eq(&self, other: &Port) -> bool {
        let Port { name, source: _, mtu, workers, queues, offloads, addresses, routes, .. } = self;
        let o = other;
        self.is_same_device(o)
            && (name, mtu, workers, queues) == (&o.name, &o.mtu, &o.workers, &o.queues)
            && (offloads, addresses, routes) == (&o.offloads, &o.addresses, &o.routes)
            && (self.router_adverts, &self.vlans) == (o.router_adverts, &o.vlans)
    }
}

/// Returns the names of the devices of a source.
fn names(source: &PortSource) -> impl Iterator<Item = &str> {
    let (own, members) = match source {
        PortSource::Vdev(vdev) => (Some(vdev.name()), &[][..]),
        PortSource::Device(name) => (Some(name.as_str()), &[][..]),
        PortSource::Bond(bond) => (None, &bond.members[..]),
    };
    own.into_iter().chain(members.iter().map(Member::name))
}

impl Port {
    /// Returns our addresses at the port and in its VLANs.
    pub fn all_addresses(&self) -> impl Iterator<Item = Cidr> + '_ {
        let vlans = self.vlans.iter().flat_map(|v| v.net.addrs());
        self.addresses.iter().chain(vlans).copied()
    }

    /// Returns true if both name a device that can be opened only once.
    fn names_device_of(&self, other: &Port) -> bool {
        let has = |name: &str| names(&other.source).any(|n| n == name);
        names(&self.source).any(has)
    }

    /// Returns true if both name the same device; the name decides.
    pub fn is_same_device(&self, other: &Port) -> bool {
        format!("{:?}", self.source) == format!("{:?}", other.source)
    }
}

/// The threads that move data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Processors of the threads; when empty, the first that the process may use.
    pub lcores: Vec<usize>,
    /// Behavior of the threads when there is no work.
    pub idle: IdlePolicy,
}

/// Memory of the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory that can be registered, in MiB.
    pub registered: u32,
    /// Page size of that memory.
    pub pages: PageSize,
    /// Memory for queues, in MiB.
    pub queues: u32,
}

/// The policy of some applications of other processes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientRule {
    /// The users and groups that the rule covers.
    pub who: Principal,
    /// The policy that applications of one user share, with the rights of each.
    pub policy: Policy,
}

/// Largest numbers of connections and other objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of each worker.
    pub connections: usize,
    /// Number of STags.
    pub registrations: usize,
    /// Frames in the pool of each worker.
    pub frames: u32,
    /// Divisor of a service's connections that gives one address's share.
    pub peer_share: usize,
    /// Connections that one address may open to a worker; when absent, as many as are free.
    pub peer_connections: Option<usize>,
    /// Memory of each worker for unfinished FPDUs, in MiB.
    pub fpdu_memory: u32,
    /// Time for which a peer's message waits for a receive; zero for no wait.
    pub rnr_wait: Duration,
    /// Time that a client of rping or perf has for its first message; unlimited when absent.
    pub first_message: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1024,
            registrations: 4096,
            frames: 16 << 10,
            peer_share: 4,
            peer_connections: None,
            fpdu_memory: 64,
            rnr_wait: Duration::ZERO,
            first_message: Some(Duration::from_secs(5)),
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with all problems of the file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        Config::parse(&contents(path)?, &Accounts::of_system())
            .map_err(|problems| ConfigError::Wrong { path: path.into(), problems })
    }

    /// Reads a file, and checks that an appliance with these settings could start on this host:
    /// that what the settings name is there and free. Starts DPDK, without devices, to ask for its
    /// drivers.
    ///
    /// # Errors
    /// [`ConfigError`], with all problems and warnings of the file and of the host.
    pub fn check_here(path: &Path) -> Result<Checked, ConfigError> {
        let text = contents(path)?;
        let wrong = |problems| ConfigError::Wrong { path: path.into(), problems };
        let read = Text::parse(&text).map_err(wrong)?;
        let (config, problems) = check::check(&text, &Accounts::of_system(), read.read());
        let mut all = read.name_keys(problems);
        let found = host::look(&config, &read);
        // Where the file is wrong, the host was looked at for a default.
        let known: Vec<_> = all.iter().map(|p| p.key.clone()).collect();
        all.extend(found.problems.into_iter().filter(|p| !known.contains(&p.key)));
        all.sort_by_key(|p| (p.line, p.column));
        if all.iter().any(|p| !p.warning) {
            return Err(wrong(all));
        }
        let summary = summary::of(&config, found.memory, found.dpdk.as_deref());
        Ok(Checked { config, warnings: all, summary })
    }

    /// Reads the text of a file; `accounts` has the users and groups that it names.
    ///
    /// # Errors
    /// The problems, in the order of the text: all of its form if the text is not TOML, and
    /// otherwise all of its keys and values.
    pub fn parse(text: &str, accounts: &Accounts) -> Result<Config, Vec<Problem>> {
        let read = Text::parse(text)?;
        let (config, problems) = check::check(text, accounts, read.read());
        if problems.is_empty() {
            return Ok(config);
        }
        let mut problems = read.name_keys(problems);
        problems.sort_by_key(|p| (p.line, p.column));
        Err(problems)
    }

    /// Returns the policy of root and of the user of the process, when no rule covers them.
    pub fn usual_policy(&self) -> Policy {
        match self.private {
            Some(_) => private::policy(&self.limits),
            None => usual_policy(&self.limits),
        }
    }

    /// Returns the number of workers of all ports, without those of the inner port.
    pub fn worker_count(&self) -> usize {
        self.ports.iter().map(|p| p.workers).sum()
    }

    /// Returns the number of memory areas that all applications together may bring.
    pub(crate) fn regions(&self) -> usize {
        if self.private.is_some() { PRIVATE_REGIONS as usize } else { REGIONS }
    }

    /// Returns the forwarder that listens at `addr`.
    pub fn forward_at(&self, addr: SocketAddr) -> Option<&Forward> {
        self.forward.iter().find(|f| f.addr == addr)
    }

    /// Returns the service that listens at `addr`.
    pub fn service_at(&self, addr: SocketAddr) -> Option<&ServiceSpec> {
        self.listen.iter().find(|s| s.addr == addr)
    }
}

/// A file that is usable on this host.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// Facts about the host that may keep the appliance from being useful, such as an interface
    /// that is down.
    pub warnings: Vec<Problem>,
    /// The settings in short, a line for each part.
    pub summary: String,
}

/// Reads the text of a file.
fn contents(path: &Path) -> Result<String, ConfigError> {
    let fail = |e: std::io::Error| ConfigError::Read { path: path.into(), why: e.to_string() };
    std::fs::read_to_string(path).map_err(fail)
}

/// Returns the default policy of one user's applications: half of the RNIC's resources, so that no
/// user has all.
fn usual_policy(limits: &Limits) -> Policy {
    let half = |n: usize| u32::try_from(n.div_ceil(2)).unwrap_or(u32::MAX);
    let usual = Policy::default();
    let stags = half(limits.registrations);
    Policy {
        connections: half(limits.connections),
        limits: DeviceLimits {
            max_mrs: stags,
            max_mws: stags,
            max_cqs: 1024,
            max_srqs: 256,
            ..usual.limits
        },
        ..usual
    }
}

/// Returns a level of the log by its name.
///
/// # Errors
/// When no level has that name.
pub fn level(name: &str) -> Result<LevelFilter, String> {
    let found = check::LEVELS.iter().find(|(n, _)| *n == name).map(|(_, level)| *level);
    let names = || check::LEVELS.map(|(n, _)| n).join(", ");
    found.ok_or_else(|| format!("'{name}' is none of {}", names()))
}

/// Returns the keepalive settings for a silence of `idle`: three probes, a third of that time
/// apart. RFC 1122 section 4.2.3.6 leaves these numbers to the application.
pub fn keepalive(idle: Duration) -> Option<Keepalive> {
    (!idle.is_zero()).then(|| Keepalive { idle, interval: idle / 3, count: 3 })
}

#[cfg(test)]
mod tests;
