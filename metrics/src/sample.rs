//! The exposed data, as plain values.

use core::time::Duration;

use heddle_ctl::CtlCounters;
use heddle_dataplane::{PortCaps, PortStats, RestCounters, WorkerSnapshot};
use heddle_gateway::GatewayCounters;
use heddle_nfs::wire::Status;
use heddle_nfs::{Counts, Timing};
use heddle_rpc::server::ServerCounters;

use crate::http::HttpCounters;

/// The state of an RNIC at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Version of this program.
    pub version: String,
    /// Version of the DPDK that the program runs with.
    pub dpdk: String,
    /// Time since the program started.
    pub uptime: Duration,
    /// True while the program takes no new connections and applications.
    pub draining: bool,
    /// Each worker; the index is its number.
    pub workers: Vec<WorkerSample>,
    /// Each port of the RNIC.
    pub ports: Vec<PortSample>,
    /// Each thread that polls workers.
    pub lcores: Vec<LcoreSample>,
    /// Applications of other processes, by user and name.
    pub applications: Vec<ApplicationSample>,
    /// Shares of the turns of workers: that of the services, and those of applications.
    pub shares: Vec<ShareSample>,
    /// Listeners of NFS; no address occurs twice.
    pub nfs: Vec<NfsSample>,
    /// Directories exported by NFS; no pair of listener and directory occurs twice.
    pub exports: Vec<ExportSample>,
    /// Counters of the control plane.
    pub control: CtlCounters,
    /// Messages forwarded between InfiniBand's connection management and iWARP.
    pub gateway: Gateway,
    /// State of registered memory.
    pub memory: Memory,
    /// Clients of the control socket.
    pub clients: Clients,
    /// Clients that read metrics. The server that answers them fills this field in.
    pub http: HttpCounters,
}

/// The data of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerSample {
    /// Name of the port whose frames the worker handles.
    pub port: String,
    /// True if the worker has answered.
    pub up: bool,
    /// Counters from the worker's last answer; zeros when it has never answered. A worker that is
    /// silent for a moment, or has ended, keeps its series.
    pub snapshot: Box<WorkerSnapshot>,
}

/// A thread that polls workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LcoreSample {
    /// Number of the processor to which the thread is bound.
    pub lcore: usize,
    /// Counters of how the thread rested.
    pub rest: RestCounters,
}

/// Applications of other processes that belong to one user and have one name. The code that makes
/// samples bounds their number, whatever names clients give themselves.
#[derive(Clone, Debug, Default)]
pub struct ApplicationSample {
    /// Numeric id of the user.
    pub user: String,
    /// Name that the applications give themselves.
    pub name: String,
    /// Number of applications that have a device.
    pub devices: usize,
    /// Bytes of memory: of the applications' devices, and brought by the applications.
    pub memory: u64,
    /// Number of queue pairs.
    pub queue_pairs: usize,
    /// Connections that the applications are making or have accepted.
    pub connections: usize,
    /// Number of listeners.
    pub listeners: usize,
    /// Number of STags.
    pub registrations: u64,
    /// Requests read, including requests of applications that have ended.
    pub requests: u64,
    /// Requests refused, including requests of applications that have ended.
    pub refused: u64,
    /// Requests beyond a quota, including requests of applications that have ended.
    pub over_quota: u64,
}

/// A share of the turns of workers.
#[derive(Clone, Debug, Default)]
pub struct ShareSample {
    /// Numeric id of the user whose applications have the share; empty for the services.
    pub user: String,
    /// The rule that covers the applications.
    pub rule: String,
    /// Weight of the share.
    pub weight: u32,
    /// Bytes that the share may send in a second; absent without a limit.
    pub rate: Option<u64>,
    /// Bytes of FPDUs that the share has sent while several shares existed.
    pub sent: u64,
    /// Times that the share, or a connection of it, waited for its rate.
    pub waits: u64,
    /// Time that the share and its connections have waited for their rates.
    pub waited: Duration,
}

/// A listener of NFS.
#[derive(Clone, Debug, Default)]
pub struct NfsSample {
    /// Address and port at which the service listens.
    pub listener: String,
    /// Current connections of the listener.
    pub connections: ExportConnections,
    /// Counters of the listener's RPC server on the RNIC.
    pub rpc: ServerCounters,
}

/// A directory that is exported by NFS.
#[derive(Clone, Debug, Default)]
pub struct ExportSample {
    /// Address and port of the listener that exports the directory.
    pub listener: String,
    /// Path of the directory.
    pub directory: String,
    /// Counters of the export, over all transports.
    pub counts: Counts,
    /// Number of failed calls, by status.
    pub failures: Vec<(Status, u64)>,
    /// Duration of calls, for each procedure that was called.
    pub timings: Vec<Timing>,
}

/// Connections of a listener of NFS, by transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportConnections {
    /// Connections with RPC-over-RDMA version 1.
    pub rdma1: usize,
    /// Connections with RPC-over-RDMA version 2.
    pub rdma2: usize,
    /// RDMA connections on which no call has come yet.
    pub silent: usize,
    /// Connections over the host's TCP.
    pub tcp: usize,
}

/// The data of one port.
#[derive(Clone, Debug, Default)]
pub struct PortSample {
    /// Name of the port.
    pub name: String,
    /// Driver of the port, in DPDK's words (`net_ice`).
    pub driver: String,
    /// Work that the device does by itself.
    pub caps: PortCaps,
    /// True for the inner port, which has no link: it joins the RNIC with itself.
    pub inner: bool,
    /// True if the link of the port is up.
    pub up: bool,
    /// Speed of the link in Mbit/s; `None` for a port without a speed.
    pub mbps: Option<u32>,
    /// Times the link came up or went down since the start.
    pub link_changes: u64,
    /// Counters of the port.
    pub stats: PortStats,
    /// The bond of the port, if it is one.
    pub bond: Option<BondSample>,
}

/// The data of a bond.
#[derive(Clone, Debug, Default)]
pub struct BondSample {
    /// Times another member of an active-backup bond took over.
    pub switches: u64,
    /// Frames dropped because they came to members that carry nothing.
    pub backup_drops: u64,
    /// Members of the bond.
    pub members: Vec<MemberSample>,
}

/// The data of a member of a bond.
#[derive(Clone, Debug, Default)]
pub struct MemberSample {
    /// The device's name, or its address.
    pub device: String,
    /// True if its link is up.
    pub up: bool,
    /// True if it carries frames.
    pub active: bool,
    /// Times its link came up or went down.
    pub link_changes: u64,
    /// Its counters.
    pub stats: PortStats,
}

/// The gateway between InfiniBand's connection management and iWARP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gateway {
    /// Counters of the gateway.
    pub counters: GatewayCounters,
    /// Connections that the gateway forwards now.
    pub connections: usize,
}

/// State of registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Current number of STags.
    pub registrations: usize,
    /// The most STags.
    pub registrations_max: usize,
    /// Bytes that applications have registered.
    pub registered_bytes: u64,
    /// Bytes available for registration in total.
    pub bytes: u64,
    /// Regions that applications have unregistered while references to them remain.
    pub draining: usize,
}

/// Clients of the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clients {
    /// Clients connected now.
    pub connected: usize,
    /// Requests carried out.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Clients that found no free place.
    pub turned_away: u64,
    /// Clients dropped because they did not read their answers.
    pub slow: u64,
    /// Clients dropped because their messages were malformed.
    pub broken: u64,
    /// Applications that were evicted: killed, or no longer covered by any rule.
    pub evicted: u64,
}

/// The origin of samples.
pub trait Source {
    /// Takes a sample now. Returns the reason in one line if there is none. The call may take its
    /// time: the caller has a deadline, and then drops the future.
    fn sample(&self) -> impl Future<Output = Result<Sample, String>>;
}
