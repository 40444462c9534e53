//! What an appliance is to be: from a file, or from the flags of the command line.
//!
//! ```text
//!   text ── serde ──▶ file::File ── check ──▶ Config ◀── flags
//!             │ unknown keys, wrong      │ values out of range, contradictions:
//!             │ types: the first         │ all of them
//!             └────────▶ Problems ◀──────┘   each with its line and column
//! ```
//!
//! A [`Config`] is checked and has its defaults: whoever has one need not ask again. The text of a
//! file comes in as a value; [`Config::read`] alone opens one.

mod check;
mod file;
pub(crate) mod forward;
mod private;
mod problem;
mod value;

use core::net::SocketAddr;
use core::time::Duration;
use std::path::{Path, PathBuf};

use heddle_ctl::{InnerSetup, Patience};
use heddle_dataplane::{Hugepages, IdlePolicy, IovaMode, PortSource};
use heddle_tcp::{Cidr, Keepalive, Route};
use heddle_verbs::remote::Policy;
use heddle_verbs::{DeviceLimits, MpaOptions, PageSize};
use tracing_subscriber::filter::LevelFilter;

use crate::service::ServiceSpec;

pub use forward::Forward;
pub use private::Private;
pub use problem::{ConfigError, Problem};
pub use value::{Accounts, Principal, cidr};

/// Regions of memory of an appliance, and of a private RNIC, whose programs bring many small ones.
const REGIONS: usize = 4096;
const PRIVATE_REGIONS: u32 = 16 << 10;

/// The inner port of an appliance: frames as large as those of its other ports may be.
pub fn inner() -> InnerSetup {
    InnerSetup { mtu: 9000, ..InnerSetup::default() }
}

/// MiB of registered memory that may be asked for.
pub const MAX_MEMORY: u32 = 64 << 10;

/// An appliance, as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// DPDK.
    pub dpdk: Dpdk,
    /// What is logged, and how.
    pub log: Log,
    /// The control socket; none when absent.
    pub control: Option<Control>,
    /// Where Prometheus asks, over HTTP of the kernel's TCP; nowhere when absent.
    pub metrics: Option<SocketAddr>,
    /// Where it is reached; one at least, unless it is private.
    pub ports: Vec<Port>,
    /// By which it connects to itself.
    pub inner: InnerSetup,
    /// Absent for an appliance.
    pub private: Option<Private>,
    /// The threads that move data.
    pub workers: Workers,
    /// Memory of the services.
    pub memory: Memory,
    /// How much there may be of each thing.
    pub limits: Limits,
    /// How listeners answer.
    pub mpa: MpaOptions,
    /// How silent peers of new connections are asked whether they are there; never when absent.
    pub keepalive: Option<Keepalive>,
    /// How long peers may keep connections from getting on.
    pub patience: Patience,
    /// Whether InfiniBand's connection management is spoken.
    pub infiniband: bool,
    /// Silence after which the peer of an InfiniBand connection that it made is asked whether it is
    /// there; never when absent.
    pub ib_keepalive: Option<Duration>,
    /// Services, each at an address of its own.
    pub listen: Vec<ServiceSpec>,
    /// What is forwarded, from addresses of their own too.
    pub forward: Vec<Forward>,
    /// What applications of other processes may have: the first rule that covers one is its own.
    pub clients: Vec<ClientRule>,
    /// How long connections have to end in order when the appliance is told to.
    pub shutdown: Duration,
}

/// How DPDK is started.
#[derive(Clone, Debug, PartialEq)]
pub struct Dpdk {
    /// MiB for packet buffers and its own structures; what the ports need when absent.
    pub memory: Option<u32>,
    /// Pages.
    pub hugepages: Hugepages,
    /// What devices go by; what they are known to need when absent.
    pub iova: Option<IovaMode>,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log {
    /// From what level on.
    pub level: LevelFilter,
    /// How.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// The control socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// Where.
    pub path: PathBuf,
    /// Permissions of the file.
    pub mode: u32,
    /// The group it belongs to; that of the process when absent.
    pub group: Option<u32>,
    /// Who may look, beside those who may change.
    pub read: Vec<Principal>,
    /// Who may change, beside root and the user of the process.
    pub change: Vec<Principal>,
    /// Below which directories who may change may have others exported; root and the user of the
    /// process may have any.
    pub exports: Vec<PathBuf>,
    /// Connections at a time.
    pub clients: usize,
}

impl Control {
    /// The socket at `path` for root and the user of the process.
    pub fn at(path: impl Into<PathBuf>) -> Control {
        Control {
            path: path.into(),
            mode: 0o660,
            group: None,
            read: Vec::new(),
            change: Vec::new(),
            exports: Vec::new(),
            clients: 64,
        }
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name in answers and logs.
    pub name: String,
    /// Its device.
    pub source: PortSource,
    /// Octets of an IP packet.
    pub mtu: u16,
    /// Workers that share it.
    pub workers: usize,
    /// Pairs of queues; as many as there are workers, or as the device has, when absent.
    pub queues: Option<usize>,
    /// Our addresses there, with their prefixes.
    pub addresses: Vec<Cidr>,
    /// Where peers outside the prefixes are reached.
    pub routes: Vec<Route>,
}

impl PartialEq for Port {
    fn eq(&self, other: &Port) -> bool {
        let Port { name, source: _, mtu, workers, queues, addresses, routes } = self;
        let o = other;
        self.is_same_device(o)
            && (name, mtu, workers, queues) == (&o.name, &o.mtu, &o.workers, &o.queues)
            && (addresses, routes) == (&o.addresses, &o.routes)
    }
}

impl Port {
    /// Whether both name the same device: a device is what it is called.
    pub fn is_same_device(&self, other: &Port) -> bool {
        format!("{:?}", self.source) == format!("{:?}", other.source)
    }
}

/// The threads that move data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Their processors; the first that the process may use when empty.
    pub lcores: Vec<usize>,
    /// What they do when there is nothing to do.
    pub idle: IdlePolicy,
}

/// Memory of the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// MiB that can be registered.
    pub registered: u32,
    /// Pages of that.
    pub pages: PageSize,
    /// MiB for queues.
    pub queues: u32,
}

/// What some applications of other processes may have.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientRule {
    /// Whose they are.
    pub who: Principal,
    /// What those of one user may have together, and each of them do.
    pub policy: Policy,
}

/// How much there may be of each thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of each worker.
    pub connections: usize,
    /// STags.
    pub registrations: usize,
    /// Frames in the pool of each worker.
    pub frames: u32,
    /// One address gets one in so many of a service's connections.
    pub peer_share: usize,
    /// Connections that one address may open to a worker; as many as are free beside when absent.
    pub peer_connections: Option<usize>,
    /// MiB of each worker for FPDUs that have begun and are not whole.
    pub fpdu_memory: u32,
    /// How long a message of a peer's waits for a receive; not at all when zero.
    pub rnr_wait: Duration,
    /// How long a client of rping or perf may take to its first message; for ever when absent.
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
    /// [`ConfigError`], with everything that is wrong.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let accounts = Accounts::of_system();
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Read { path: path.into(), why: e.to_string() })?;
        Config::parse(&text, &accounts)
            .map_err(|problems| ConfigError::Wrong { path: path.into(), problems })
    }

    /// The same from the text of one, with the users and groups that its names are of.
    ///
    /// # Errors
    /// What is wrong: one problem when it is no such file at all, else all there are, in the order
    /// of the text.
    pub fn parse(text: &str, accounts: &Accounts) -> Result<Config, Vec<Problem>> {
        let file = toml::from_str(text).map_err(|e| vec![Problem::of_toml(text, &e)])?;
        check::check(text, accounts, file)
    }

    /// What root and the user of the process may have without a rule.
    pub fn usual_policy(&self) -> Policy {
        match self.private {
            Some(_) => private::policy(&self.limits),
            None => usual_policy(&self.limits),
        }
    }

    /// Workers of all ports, without those of the inner one.
    pub fn worker_count(&self) -> usize {
        self.ports.iter().map(|p| p.workers).sum()
    }

    /// Regions of memory that all applications together may bring.
    pub(crate) fn regions(&self) -> usize {
        if self.private.is_some() { PRIVATE_REGIONS as usize } else { REGIONS }
    }

    /// The listener at `addr` that forwards.
    pub fn forward_at(&self, addr: SocketAddr) -> Option<&Forward> {
        self.forward.iter().find(|f| f.addr == addr)
    }

    /// The service that listens at `addr`.
    pub fn service_at(&self, addr: SocketAddr) -> Option<&ServiceSpec> {
        self.listen.iter().find(|s| s.addr == addr)
    }
}

/// What the applications of one user get unless the file says otherwise: of what the RNIC has for all,
/// half, so that no user has all.
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

/// A level of the log by its name.
///
/// # Errors
/// That it is none.
pub fn level(name: &str) -> Result<LevelFilter, String> {
    let found = check::LEVELS.iter().find(|(n, _)| *n == name).map(|(_, level)| *level);
    let names = || check::LEVELS.map(|(n, _)| n).join(", ");
    found.ok_or_else(|| format!("'{name}' is none of {}", names()))
}

/// Keepalives after so much silence: three, a third of it apart. RFC 1122 section 4.2.3.6 leaves these
/// numbers to whoever asks for keepalives.
pub fn keepalive(idle: Duration) -> Option<Keepalive> {
    (!idle.is_zero()).then(|| Keepalive { idle, interval: idle / 3, count: 3 })
}

#[cfg(test)]
mod tests;
