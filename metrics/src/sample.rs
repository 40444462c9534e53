//! What is exposed, as plain values.

use core::time::Duration;

use heddle_cm::gateway::GatewayCounters;
use heddle_ctl::CtlCounters;
use heddle_dataplane::{PortCaps, PortStats, RestCounters, WorkerSnapshot};
use heddle_nfs::wire::Status;
use heddle_nfs::{Counts, Timing};
use heddle_rpc::server::ServerCounters;

use crate::http::HttpCounters;

/// An RNIC at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Version of the program.
    pub version: String,
    /// Version of DPDK it runs with.
    pub dpdk: String,
    /// Since it was started.
    pub uptime: Duration,
    /// Each worker, by its number.
    pub workers: Vec<WorkerSample>,
    /// Each port.
    pub ports: Vec<PortSample>,
    /// Each thread that polls workers.
    pub lcores: Vec<LcoreSample>,
    /// Applications of other processes, by user and name.
    pub applications: Vec<ApplicationSample>,
    /// Listeners of NFS; none twice, by their addresses.
    pub nfs: Vec<NfsSample>,
    /// Directories that are exported by NFS; none twice, by listener and directory.
    pub exports: Vec<ExportSample>,
    /// The control plane.
    pub control: CtlCounters,
    /// What is forwarded between InfiniBand's connection management and iWARP.
    pub gateway: Gateway,
    /// Registered memory.
    pub memory: Memory,
    /// Those who use the control socket.
    pub clients: Clients,
    /// Those who read metrics. The server that answers them fills this in.
    pub http: HttpCounters,
}

/// One worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerSample {
    /// Name of the port whose frames it handles.
    pub port: String,
    /// Whether it has answered.
    pub up: bool,
    /// What it has counted, as it last answered; zeros when it never has. A worker that is silent for a
    /// moment, or has ended, keeps its series.
    pub snapshot: Box<WorkerSnapshot>,
}

/// A thread that polls workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LcoreSample {
    /// The processor it is bound to.
    pub lcore: usize,
    /// How it rested.
    pub rest: RestCounters,
}

/// Applications of other processes that are of one user and have one name. There are so many of these at
/// most, whatever clients call themselves: that is for whoever makes them to see to.
#[derive(Clone, Debug, Default)]
pub struct ApplicationSample {
    /// Number of the user.
    pub user: String,
    /// Name.
    pub name: String,
    /// How many have a device.
    pub devices: usize,
    /// Octets of memory: of their devices, and that they have brought.
    pub memory: u64,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Connections they make or have accepted.
    pub connections: usize,
    /// Listeners.
    pub listeners: usize,
    /// STags.
    pub registrations: u64,
    /// Requests that were read, also of those that are gone.
    pub requests: u64,
    /// Requests that were refused, as above.
    pub refused: u64,
    /// Requests that were beyond a quota, as above.
    pub over_quota: u64,
}

/// A listener of NFS.
#[derive(Clone, Debug, Default)]
pub struct NfsSample {
    /// Address and port at which it listens.
    pub listener: String,
    /// Connections it has.
    pub connections: ExportConnections,
    /// What its RPC server on the RNIC has counted.
    pub rpc: ServerCounters,
}

/// A directory that is exported by NFS.
#[derive(Clone, Debug, Default)]
pub struct ExportSample {
    /// Address and port at which it listens.
    pub listener: String,
    /// The directory.
    pub directory: String,
    /// What was counted of it, over all transports.
    pub counts: Counts,
    /// Calls that failed, by their statuses.
    pub failures: Vec<(Status, u64)>,
    /// How long calls took, of each procedure that was called.
    pub timings: Vec<Timing>,
}

/// Connections of a listener of NFS, by how they speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportConnections {
    /// RPC-over-RDMA version 1.
    pub rdma1: usize,
    /// RPC-over-RDMA version 2.
    pub rdma2: usize,
    /// RDMA, and nothing has been said yet.
    pub silent: usize,
    /// TCP of the host.
    pub tcp: usize,
}

/// One port.
#[derive(Clone, Debug, Default)]
pub struct PortSample {
    /// Its name.
    pub name: String,
    /// Its driver, in DPDK's words (`net_ice`).
    pub driver: String,
    /// What the device does by itself.
    pub caps: PortCaps,
    /// Whether it is the inner port, which has no link: it joins the RNIC with itself.
    pub inner: bool,
    /// Whether its link is up.
    pub up: bool,
    /// Speed of the link in Mbit/s; none where there is no such thing.
    pub mbps: Option<u32>,
    /// Times its link came up or went down since the start.
    pub link_changes: u64,
    /// What it has counted.
    pub stats: PortStats,
}

/// What is forwarded between InfiniBand's connection management and iWARP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gateway {
    /// What was counted.
    pub counters: GatewayCounters,
    /// Connections that are forwarded now.
    pub connections: usize,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// STags there are.
    pub registrations: usize,
    /// STags there can be.
    pub registrations_max: usize,
    /// Octets that applications have registered.
    pub registered_bytes: u64,
    /// Octets there are to be registered.
    pub bytes: u64,
    /// Regions that are deregistered and still referred to.
    pub draining: usize,
}

/// Those who use the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clients {
    /// Connected now.
    pub connected: usize,
    /// Requests carried out.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Clients that found no place.
    pub turned_away: u64,
    /// Clients dropped because they did not take their answers.
    pub slow: u64,
    /// Clients dropped because what they sent made no sense.
    pub broken: u64,
    /// Applications that were killed, or that no rule covered any more.
    pub evicted: u64,
}

/// Where samples come from.
pub trait Source {
    /// A sample of now; why there is none, in one line. It may take its time: whoever asks has a
    /// deadline, and drops the future then.
    fn sample(&self) -> impl Future<Output = Result<Sample, String>>;
}
