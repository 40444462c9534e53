//! The answer to `status`: the appliance, its workers, listeners, applications and exports.

use serde::{Deserialize, Serialize};

/// The state of the appliance, in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process ID of the appliance.
    pub pid: u32,
    /// Time of the answer, since the appliance's start.
    pub at_ns: u64,
    /// Path of the configuration file, if the appliance has one.
    pub config: Option<String>,
    /// The last time that the appliance read the file again.
    pub last_reload: Option<LastReload>,
    /// Names of the ports, in the order of the configuration.
    pub ports: Vec<String>,
    /// All workers, in the order of their numbers.
    pub workers: Vec<WorkerStatus>,
    /// Beginning of the drain, since the start; absent when new connections are taken.
    #[serde(default)]
    pub draining_ns: Option<u64>,
    /// Connections in any state.
    pub conns: usize,
    /// Connections of peers that are not established yet; `conns` includes them.
    pub startups: usize,
    /// Applications that hold an object of the RNIC; all services together count as one.
    pub applications: usize,
    /// STags in use.
    pub registrations: usize,
    /// Most STags that can be in use at a time.
    pub registrations_max: usize,
    /// Regions that are unregistered and to whose memory a worker still refers.
    pub draining: usize,
    /// Bytes of a page of the memory that services register, as far as this memory is mapped in
    /// pages of that size.
    #[serde(default)]
    pub page: u64,
    /// Listeners, including failed and ending ones.
    pub listeners: Vec<Listener>,
    /// Applications of other processes that have a device.
    #[serde(default)]
    pub clients: Vec<Application>,
    /// Counters of the control socket.
    pub control: ControlStatus,
}

/// An application of another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// Number of the application; the appliance never gives a number again.
    pub application: u64,
    /// Name that the application calls itself by.
    pub name: String,
    /// User ID of the application's process.
    pub uid: u32,
    /// Process ID of the application, as the system reported when the application connected.
    pub pid: Option<i32>,
    /// Connections that the application is making or has accepted.
    pub connections: usize,
    /// Listeners of the application.
    pub listeners: usize,
    /// Requests that the appliance has read.
    pub requests: u64,
    /// Requests that the appliance has refused.
    pub refused: u64,
    /// Requests that the appliance has refused because they exceeded a quota.
    pub over_quota: u64,
    /// Bytes of memory: that of the application's device and that which the application has
    /// brought.
    #[serde(default)]
    pub memory: u64,
    /// Queue pairs that the application has now.
    #[serde(default)]
    pub queue_pairs: usize,
    /// STags that the application has now.
    #[serde(default)]
    pub registrations: u32,
    /// Weight of the share in the turns of workers that all applications of the user under this
    /// rule have together.
    #[serde(default)]
    pub weight: u32,
    /// Bytes that the share may send in a second; absent without a limit.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Times that the share, or a connection of it, waited for its rate.
    #[serde(default)]
    pub rate_waits: u64,
    /// Nanoseconds that the share and its connections have waited for their rates.
    #[serde(default)]
    pub rate_waited_ns: u64,
}

/// The last reading of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LastReload {
    /// Time of the reading, since the start.
    pub at_ns: u64,
    /// The error, if the reading failed.
    pub error: Option<String>,
}

/// A worker, its port and its place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// Name of the port that the worker serves.
    pub port: String,
    /// The processor that the worker runs on.
    pub lcore: Option<usize>,
    /// The processor socket (NUMA node) of the worker, where the system reports one.
    #[serde(default)]
    pub socket: Option<u32>,
    /// The processor socket of the port, when it differs from the worker's: every frame then
    /// crosses between the sockets.
    #[serde(default)]
    pub port_socket: Option<u32>,
    /// True if the worker runs.
    pub running: bool,
    /// Time that the worker has spent in turns that found work, since the start; absent when the
    /// worker has not answered in time.
    #[serde(default)]
    pub busy_ns: Option<u64>,
}

/// A listener, its service and its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Where the listener listens, `ADDRESS:PORT`.
    pub address: String,
    /// The service of the listener, or the target that the listener forwards to; for any other
    /// listener the number of its application.
    pub service: String,
    /// `starting`, `listening`, `ending` or `failed: ` and the reason. An ending listener takes no
    /// new connections, and its existing connections go on. A failed listener no longer exists in
    /// the control plane; an administrator has to remove it or start it again.
    pub state: String,
    /// Connections that are not established yet.
    pub startups: usize,
    /// Most connections that may be not yet established at a time.
    pub backlog: usize,
    /// Calls and connections of a listener that serves NFS, summed over all its exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs: Option<Export>,
    /// The listener's exports, where it serves NFS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportedDirectory>,
}

/// A directory that a listener serves by NFS, with its counters since the listener began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportedDirectory {
    /// The directory with its options, as in the service.
    pub export: String,
    /// Calls that the server has carried out.
    pub calls: u64,
    /// Calls that the server has carried out with a status other than OK.
    pub failed: u64,
    /// Bytes that clients have read.
    pub read_bytes: u64,
    /// Bytes that clients have written.
    pub written_bytes: u64,
}

/// An NFS listener: its connections by protocol, and its counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Connections in RPC-over-RDMA version 1.
    pub rdma1: usize,
    /// Connections in RPC-over-RDMA version 2.
    pub rdma2: usize,
    /// Connections over RDMA whose client has not sent anything yet.
    pub silent: usize,
    /// Connections over TCP of the host.
    pub tcp: usize,
    /// Calls that the server has carried out.
    pub calls: u64,
    /// Calls that the server has carried out with a status other than OK.
    pub failed: u64,
    /// Bytes that clients have read.
    pub read_bytes: u64,
    /// Bytes that clients have written.
    pub written_bytes: u64,
}

/// Clients and counters of the control socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Connections to the control socket, including the one that asks.
    pub clients: usize,
    /// Requests that the appliance has carried out.
    pub requests: u64,
    /// Requests that the appliance has refused, for any reason.
    pub refused: u64,
    /// Connections that the appliance has turned away because there were too many.
    pub turned_away: u64,
    /// Connections that the appliance has dropped because the client did not read its answers.
    pub slow: u64,
    /// Connections that the appliance has dropped because of invalid data from the client.
    pub broken: u64,
    /// Applications that an administrator has killed, or that no rule of the configuration allows
    /// any more.
    #[serde(default)]
    pub evicted: u64,
}
