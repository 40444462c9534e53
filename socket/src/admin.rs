//! Requests with which administrators observe and change an appliance.
//!
//! | `op` | `args` | answer | may |
//! |---|---|---|---|
//! | `status` | | [`Status`] | look |
//! | `conns` | [`ConnsArgs`], may be absent | [`Conns`] | look |
//! | `mrs` | [`MrsArgs`], may be absent | [`Mrs`] | look |
//! | `ports` | | [`Ports`] | look |
//! | `stats` | | [`Stats`] | look |
//! | `listen-add` | [`ListenAdd`] | null | change |
//! | `listen-del` | [`ListenDel`] | null | change |
//! | `conn-kill` | [`ConnKill`] | null | change |
//! | `application-kill` | [`ApplicationKill`] | null | change |
//! | `reload` | | [`Reloaded`] | change |
//! | `log-level` | [`LogLevel`] | null | change |
//! | `drain` | [`DrainArgs`], may be absent | [`Drained`] | change |
//! | `undrain` | | null | change |
//! | `log` | | [`LogLines`] | change |
//! | `config` | | [`Settings`] | look |
//! | `config-diff` | | [`Differences`] | look |
//!
//! A queue pair is shown with its connection. Times of the appliance are nanoseconds since its
//! start (`at_ns`): a client computes a rate from the difference of two answers. Counters begin at
//! 0 with the appliance, or with the connection, and wrap at 2^64. Addresses are written
//! `ADDRESS:PORT`. Later versions may add fields to answers; a client ignores fields that it does
//! not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, Bounded, Rule, bound};

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Request {
    /// Report the state of the appliance, in short.
    Status,
    /// List connections and their queue pairs.
    Conns(Option<ConnsArgs>),
    /// List registered memory.
    Mrs(Option<MrsArgs>),
    /// Report the state and the counters of each port.
    Ports,
    /// Report all counters.
    Stats,
    /// Start a service.
    ListenAdd(ListenAdd),
    /// Stop a service from taking connections; its existing connections go on.
    ListenDel(ListenDel),
    /// End a connection.
    ConnKill(ConnKill),
    /// End an application of another process: the application loses its device and all objects of
    /// the device.
    ApplicationKill(ApplicationKill),
    /// Read the configuration again and carry out its changes.
    Reload,
    /// Log at another level until the configuration is read again.
    LogLevel(LogLevel),
    /// Refuse new connections and applications from here on; existing ones go on.
    Drain(Option<DrainArgs>),
    /// Take new connections and applications again.
    Undrain,
    /// Report the last lines of the log. They may name users and files, so the right to look is not
    /// enough.
    Log,
    /// Report all settings in force, with their defaults.
    Config,
    /// Compare the settings in force with those of the configuration file.
    ConfigDiff,
}

impl Bounded for Request {
    const BOUNDS: &'static [Bound] = &[
        bound("conns", "after", Rule::Name),
        bound("conns", "limit", Rule::Clamp(1, MAX_CONNS as u64)),
        bound("conns", "port", Rule::Name),
        bound("conns", "worker", Rule::Name),
        bound("listen-add", "forward.connections", Rule::Within(1, 1 << 20)),
        bound("listen-add", "forward.timeout_ms", Rule::Within(1, 3_600_000)),
        bound("conn-kill", "conn", Rule::Name),
        bound("application-kill", "application", Rule::Name),
    ];
}

impl Request {
    /// Returns true if the request changes the appliance.
    pub const fn changes(&self) -> bool {
        match self {
            Request::Status
            | Request::Conns(_)
            | Request::Mrs(_)
            | Request::Ports
            | Request::Stats
            | Request::Config
            | Request::ConfigDiff => false,
            Request::ListenAdd(_)
            | Request::ListenDel(_)
            | Request::ConnKill(_)
            | Request::ApplicationKill(_)
            | Request::Reload
            | Request::LogLevel(_)
            | Request::Drain(_)
            | Request::Undrain
            | Request::Log => true,
        }
    }
}

/// Most connections in one answer; a client gets more by asking again with the last number as
/// [`after`](ConnsArgs::after).
pub const MAX_CONNS: usize = 4096;

/// Most regions in one answer.
pub const MAX_MRS: usize = 16_384;

/// Selects connections; a connection has to match every field that is present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnsArgs {
    /// Connections whose numbers are higher than this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most this many connections, and never more than [`MAX_CONNS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Connections whose peer has this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<std::net::IpAddr>,
    /// Connections at this port of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Connections of this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// Connections in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Options of a list of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MrsArgs {
    /// Show STags. A reader could give peers access with an STag, so the server shows STags to root
    /// and to the appliance's own user only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stags: bool,
}

/// A service to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenAdd {
    /// Where the service listens, `ADDRESS:PORT`.
    pub address: String,
    /// The service with its options, as in the configuration. Empty where the listener forwards.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Answer requests over InfiniBand too; connections of InfiniBand carry no data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infiniband: bool,
    /// Forward connections that arrive at `address`, instead of serving them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
}

/// The target of a listener that forwards its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// Address of the target, `ADDRESS:PORT`.
    pub to: String,
    /// `iwarp` or `infiniband`: the transport towards the target. Connections that arrive over the
    /// other transport are forwarded.
    pub over: String,
    /// Most connections at a time; when absent, the configuration's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Milliseconds within which the target has to answer; when absent, the configuration's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A service to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenDel {
    /// Where the service listens, `ADDRESS:PORT`.
    pub address: String,
}

/// A connection to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnKill {
    /// Number of the connection, as in [`Conn::conn`].
    pub conn: u64,
    /// If true, the appliance first sends all posted requests and then FIN; otherwise it resets the
    /// connection.
    #[serde(default)]
    pub in_order: bool,
}

/// An application to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationKill {
    /// Number of the application, as in [`Application::application`].
    pub application: u64,
}

/// The level to log at, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

/// Options of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainArgs {
    /// Also end all connections that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// The last lines of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// The lines, the oldest first, without line ends.
    pub lines: Vec<String>,
    /// Number of older lines that were dropped.
    pub dropped: u64,
}

/// The way in which all connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The appliance first sends all posted requests and then FIN.
    InOrder,
    /// The appliance resets the connections.
    Reset,
}

/// The state of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drained {
    /// Beginning of the drain, since the start. A drain that goes on already keeps its beginning.
    pub since_ns: u64,
    /// Connections that are left, in any state.
    pub conns: usize,
    /// Applications of other processes that are left.
    pub applications: usize,
}

/// All settings in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Path of the configuration file, if the appliance has one.
    pub file: Option<String>,
    /// The settings as a configuration file.
    pub text: String,
    /// The settings by their keys, as in the file.
    pub settings: serde_json::Value,
}

/// How the settings in force differ from the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// Path of the configuration file.
    pub file: String,
    /// The settings that differ, in the order of their keys.
    pub differences: Vec<Difference>,
}

/// A setting with two values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Path of the key, as `port[0].mtu`.
    pub key: String,
    /// The value in force; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<serde_json::Value>,
    /// The value of the file, or its default; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<serde_json::Value>,
    /// Why only a restart brings the value of the file into force; absent if a reload does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
}

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

/// A list of connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conns {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Connections in the order of their numbers.
    pub conns: Vec<Conn>,
    /// Value for [`ConnsArgs::after`] to go on with, when there may be more connections.
    pub next: Option<u64>,
    /// Numbers of the workers that have not answered in time: the state of TCP and the counters of
    /// their connections are missing.
    #[serde(default)]
    pub silent: Vec<usize>,
}

/// A connection with its queue pair and its counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conn {
    /// Number of the connection, never given again. Connections that peers made have numbers from
    /// 2^63 on.
    pub conn: u64,
    /// Address of our end.
    pub local: String,
    /// Address of the peer's end.
    pub remote: String,
    /// State of the connection.
    pub state: String,
    /// Number of the worker that runs the connection.
    pub worker: usize,
    /// `iwarp` or `infiniband`.
    #[serde(default)]
    pub transport: String,
    /// The service, `forward`, or the number of the application.
    pub service: String,
    /// For a forwarded connection, the number of the connection at the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<u64>,
    /// The agreed parameters, once the connection is established.
    pub agreed: Option<Agreed>,
    /// The queue pair, once the connection has one.
    pub qp: Option<Qp>,
    /// State of TCP, while the worker has the connection.
    pub tcp: Option<Tcp>,
    /// Every counter of TCP and of the queue pair that is not 0.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// Parameters that both ends agreed on during start-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Revision of MPA.
    pub revision: u8,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// Reads that the peer may have outstanding.
    pub ird: u16,
    /// Reads that we may have outstanding.
    pub ord: u16,
    /// True if we send markers.
    pub send_markers: bool,
    /// True if the peer sends markers.
    pub recv_markers: bool,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Queue pair number.
    pub qpn: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// State of the queue pair.
    pub state: String,
    /// Depth of the send queue.
    pub sq_depth: u32,
    /// Depth of the receive queue.
    pub rq_depth: u32,
    /// True if the queue pair takes its receives from a shared receive queue.
    pub shared: bool,
    /// Requests of the send queue that the worker has taken and not completed.
    pub sq_outstanding: u32,
    /// Requests of the receive queue that the worker has taken and not completed.
    pub rq_outstanding: u32,
    /// Bytes of payload that the worker has put into FPDUs.
    pub tx_bytes: u64,
    /// Bytes of payload that the worker has placed.
    pub rx_bytes: u64,
    /// FPDUs that the worker has made.
    pub tx_fpdus: u64,
    /// FPDUs that the worker has received and found valid.
    pub rx_fpdus: u64,
}

/// A TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Connection state of RFC 9293.
    pub state: String,
    /// Bytes of payload in a full segment.
    pub emss: u32,
    /// Smoothed round-trip time; absent before the first measurement.
    pub srtt_ns: Option<u64>,
    /// Variation of the round-trip time.
    pub rttvar_ns: u64,
    /// Retransmission timeout.
    pub rto_ns: u64,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Why the connection makes no progress: `peer silent` or `window shut`. A connection whose
    /// hindrance lasts ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
}

/// A list of registered memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrs {
    /// Regions, windows and fast registrations whose STag is valid.
    pub mrs: Vec<Mr>,
    /// True if there are more entries than fit into an answer.
    pub cut: bool,
}

/// A region, a window or a fast registration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mr {
    /// Slot in the table of STags. An STag is a capability, and a slot number is not.
    pub index: u32,
    /// The STag, where a client that may see STags has asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stag: Option<u32>,
    /// Number of the protection domain.
    pub pd: u32,
    /// Owner of the protection domain: `services`, or the name of an application with its number.
    /// Absent when the owner no longer exists.
    #[serde(default)]
    pub owner: Option<String>,
    /// The only queue pair that may use the memory, where it is bound to one.
    pub qpn: Option<u32>,
    /// Length in bytes.
    pub len: u64,
    /// Names of the access rights.
    pub access: Vec<String>,
}

/// All ports, with their counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Ports in the order of the configuration.
    pub ports: Vec<Port>,
}

/// A port and its device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port in the configuration.
    pub name: String,
    /// Name of the port's device in DPDK.
    pub device: String,
    /// Name of the driver of the device.
    pub driver: String,
    /// Ethernet address of the port.
    pub mac: String,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// True if the link is up.
    pub up: bool,
    /// Speed of the link in Mb/s, where the device knows.
    pub mbps: Option<u32>,
    /// Number of times that the link came up or went down since the start.
    #[serde(default)]
    pub link_changes: u64,
    /// Time of the last such change, since the start; absent when the link has not changed.
    #[serde(default)]
    pub link_changed_ns: Option<u64>,
    /// Our addresses, with their prefixes.
    pub addresses: Vec<String>,
    /// Routes, `NETWORK/PREFIX via GATEWAY`.
    pub routes: Vec<String>,
    /// Number of workers that share the port.
    pub workers: usize,
    /// Offloads of the device: `rx-ip-checksum`, `rx-tcp-checksum`, `tx-ip-checksum`,
    /// `tx-tcp-checksum`, `multi-segs`, `rx-hash`.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// Why the port's queues do not interrupt although the configuration asks for interrupts.
    #[serde(default)]
    pub no_interrupts: Option<String>,
    /// Counters of the device, by name.
    pub counters: BTreeMap<String, u64>,
}

/// All counters of the appliance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Numbers of the workers that have answered.
    pub workers: Vec<usize>,
    /// Numbers of the workers that have not answered in time.
    pub silent: Vec<usize>,
    /// The counters, each summed over all workers.
    pub counters: Vec<Counter>,
}

/// A counter with its help text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Part of the appliance that counts.
    pub part: String,
    /// Name of the counter within its part.
    pub name: String,
    /// Help text: the event that the counter counts.
    pub help: String,
    /// Value of the counter, summed over all workers.
    pub value: u64,
    /// Value at each worker that has answered; empty where no worker counts this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u64>,
}

/// Result of reading the configuration again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Changes that were carried out, in order.
    pub applied: Vec<String>,
    /// Changes that failed, and why; the next reload tries them again.
    pub failed: Vec<String>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::document::{Call, VERSION, read_call, to_line};

    #[test]
    fn test_every_request_parses_back_from_its_line() {
        let address = || "10.0.0.1:1".to_owned();
        let filter = ConnsArgs { port: Some(1), ..ConnsArgs::default() };
        let listen = |forward: Option<Forward>| ListenAdd {
            address: address(),
            service: if forward.is_none() { "cmtime".into() } else { String::new() },
            infiniband: forward.is_none(),
            forward,
        };
        let over = "iwarp".into();
        let forward = Forward { to: address(), over, connections: Some(1), timeout_ms: None };
        for (request, changes) in [
            (Request::Status, false),
            (Request::Conns(None), false),
            (Request::Conns(Some(filter)), false),
            (Request::Mrs(Some(MrsArgs { stags: true })), false),
            (Request::Ports, false),
            (Request::Stats, false),
            (Request::ListenAdd(listen(None)), true),
            (Request::ListenAdd(listen(Some(forward.clone()))), true),
            (Request::ListenDel(ListenDel { address: address() }), true),
            (Request::ConnKill(ConnKill { conn: u64::MAX, in_order: true }), true),
            (Request::ApplicationKill(ApplicationKill { application: 7 }), true),
            (Request::Reload, true),
            (Request::LogLevel(LogLevel { level: "info".into() }), true),
            (Request::Drain(None), true),
            (Request::Drain(Some(DrainArgs { end: Some(End::InOrder) })), true),
            (Request::Undrain, true),
            (Request::Log, true),
            (Request::Config, false),
            (Request::ConfigDiff, false),
        ] {
            let line = to_line(&Call { v: VERSION, id: 1, request: &request });
            let back: (u64, Request) = read_call(&line).unwrap();
            assert_eq!(back, (1, request.clone()));
            assert_eq!(request.changes(), changes, "{request:?}");
        }
    }

    #[test]
    fn test_every_number_of_every_request_is_bounded() {
        use crate::bounds::{operations, unbounded};
        let number = "after limit port worker connections timeout_ms conn application";
        let numbers: Vec<_> = number.split(' ').collect();
        let forward = r#"{"to":"","over":"","connections":1,"timeout_ms":1}"#;
        let samples = [
            ("status", "null".into()),
            ("conns", r#"{"after":1,"limit":1,"port":1,"worker":1}"#.into()),
            ("mrs", r#"{"stags":true}"#.into()),
            ("ports", "null".into()),
            ("stats", "null".into()),
            ("listen-add", format!(r#"{{"address":"","forward":{forward}}}"#)),
            ("listen-del", r#"{"address":""}"#.into()),
            ("conn-kill", r#"{"conn":1}"#.into()),
            ("application-kill", r#"{"application":1}"#.into()),
            ("reload", "null".into()),
            ("log-level", r#"{"level":""}"#.into()),
            ("drain", r#"{"end":"reset"}"#.into()),
            ("undrain", "null".into()),
            ("log", "null".into()),
            ("config", "null".into()),
            ("config-diff", "null".into()),
        ];
        let ops: Vec<_> = samples.iter().map(|(op, _)| (*op).to_owned()).collect();
        assert_eq!(ops, operations::<Request>());
        let mut seen = 0;
        for (op, args) in samples {
            let line = format!(r#"{{"v":1,"id":1,"op":"{op}","args":{args}}}"#);
            read_call::<Request>(line.as_bytes()).unwrap();
            seen += numbers.iter().filter(|n| args.contains(&format!("\"{n}\":1"))).count();
            let call = serde_json::from_str(&line).unwrap();
            assert_eq!(unbounded(Request::BOUNDS, &call), [""; 0]);
        }
        assert_eq!(seen, numbers.len());
        let all = br#"{"v":1,"id":1,"op":"conns","args":{"limit":18446744073709551615}}"#;
        let (_, Request::Conns(Some(cut))) = read_call(all).unwrap() else { panic!() };
        assert_eq!(cut.limit, Some(MAX_CONNS));
    }

    #[test]
    fn test_request_may_omit_default_arguments_but_not_add_unknown_ones() {
        for op in ["conns", "mrs"] {
            let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\"}}");
            assert!(read_call::<Request>(line.as_bytes()).is_ok(), "{line}");
            let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\",\"args\":{{\"limits\":1}}}}");
            assert!(read_call::<Request>(line.as_bytes()).is_err(), "{line}");
        }
        // A client that knows of services alone sends no other fields.
        let add = b"{\"v\":1,\"id\":1,\"op\":\"listen-add\",\"args\":{\"address\":\"a\",\"service\":\"s\"}}";
        let add: (u64, Request) = read_call(add).unwrap();
        let (address, service) = ("a".into(), "s".into());
        let plain = ListenAdd { address, service, infiniband: false, forward: None };
        assert_eq!(add.1, Request::ListenAdd(plain));
        let kill: (u64, Request) =
            read_call(b"{\"v\":1,\"id\":1,\"op\":\"conn-kill\",\"args\":{\"conn\":9}}").unwrap();
        assert_eq!(kill.1, Request::ConnKill(ConnKill { conn: 9, in_order: false }));
    }
}
