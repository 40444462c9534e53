//! What an appliance is asked by those who look after it.
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
//!
//! Queue pairs are shown with their connections. Times of the appliance are nanoseconds since it was
//! started (`at_ns`): the difference of two answers is what a rate is made of. Counters begin at 0 with
//! the appliance, or with the connection, and wrap at 2^64. Addresses are written `ADDRESS:PORT`.
//! Fields may be added to answers; those who ask leave what they do not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, Bounded, Rule, bound};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Request {
    /// How it fares, in short.
    Status,
    /// Connections and their queue pairs.
    Conns(Option<ConnsArgs>),
    /// Registered memory.
    Mrs(Option<MrsArgs>),
    /// Ports.
    Ports,
    /// All counters.
    Stats,
    /// Start a service.
    ListenAdd(ListenAdd),
    /// Stop one from taking connections; those it has go on.
    ListenDel(ListenDel),
    /// End a connection.
    ConnKill(ConnKill),
    /// End an application of another process: it loses its device and all it has.
    ApplicationKill(ApplicationKill),
    /// Read the configuration anew and carry out what has changed.
    Reload,
    /// Log from another level on, until the configuration is read anew.
    LogLevel(LogLevel),
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
    /// Whether it changes something.
    pub const fn changes(&self) -> bool {
        match self {
            Request::Status
            | Request::Conns(_)
            | Request::Mrs(_)
            | Request::Ports
            | Request::Stats => false,
            Request::ListenAdd(_)
            | Request::ListenDel(_)
            | Request::ConnKill(_)
            | Request::ApplicationKill(_)
            | Request::Reload
            | Request::LogLevel(_) => true,
        }
    }
}

/// Most connections in one answer; more are had by asking again from the last on.
pub const MAX_CONNS: usize = 4096;

/// Most regions in one answer.
pub const MAX_MRS: usize = 16_384;

/// Which connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnsArgs {
    /// Those whose numbers are higher than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// So many at most, and never more than [`MAX_CONNS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Those whose peer has this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<std::net::IpAddr>,
    /// Those at this port of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Those of this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// Those in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Which regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MrsArgs {
    /// Show STags, with which a peer could be given access: to root and the appliance's own user
    /// only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stags: bool,
}

/// A service to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenAdd {
    /// Where, `ADDRESS:PORT`.
    pub address: String,
    /// What, with its options, as in the configuration. Empty where it forwards.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Answer InfiniBand's requests too, whose connections carry no data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infiniband: bool,
    /// Forward what comes there, instead of a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
}

/// Where connections are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// `ADDRESS:PORT`.
    pub to: String,
    /// `iwarp` or `infiniband`; what comes over the other is forwarded.
    pub over: String,
    /// Connections at a time; as in the configuration when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Milliseconds that the target has to answer; as in the configuration when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A service to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenDel {
    /// Where it listens, `ADDRESS:PORT`.
    pub address: String,
}

/// A connection to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnKill {
    /// Its number.
    pub conn: u64,
    /// What is posted is sent first, then FIN; otherwise it is reset.
    #[serde(default)]
    pub in_order: bool,
}

/// An application to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationKill {
    /// Its number.
    pub application: u64,
}

/// Another level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

/// How the appliance fares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it answered, since its start.
    pub at_ns: u64,
    /// The file it is configured by, if it is.
    pub config: Option<String>,
    /// The last time that was read anew.
    pub last_reload: Option<LastReload>,
    /// Ports by name.
    pub ports: Vec<String>,
    /// Workers.
    pub workers: Vec<WorkerStatus>,
    /// Connections, in whatever state.
    pub conns: usize,
    /// Of them, those of peers that are not established.
    pub startups: usize,
    /// Applications that have something, the services together being one.
    pub applications: usize,
    /// STags there are.
    pub registrations: usize,
    /// STags there can be.
    pub registrations_max: usize,
    /// Regions that are deregistered and still referred to.
    pub draining: usize,
    /// Octets of a page of the memory that services register, as far as it was mapped in such.
    #[serde(default)]
    pub page: u64,
    /// Those who listen.
    pub listeners: Vec<Listener>,
    /// Applications of other processes that have a device.
    #[serde(default)]
    pub clients: Vec<Application>,
    /// The control socket.
    pub control: ControlStatus,
}

/// An application of another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// Its number, never given again.
    pub application: u64,
    /// What it calls itself.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// Its process, as the system had it when it connected.
    pub pid: Option<i32>,
    /// Connections it makes or has accepted.
    pub connections: usize,
    /// Listeners it has.
    pub listeners: usize,
    /// Requests that were read.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were beyond a quota.
    pub over_quota: u64,
    /// Octets of memory: of its device, and that it has brought.
    #[serde(default)]
    pub memory: u64,
    /// Queue pairs.
    #[serde(default)]
    pub queue_pairs: usize,
    /// STags.
    #[serde(default)]
    pub registrations: u32,
}

/// The last reading of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LastReload {
    /// When, since the start.
    pub at_ns: u64,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// Its port.
    pub port: String,
    /// The processor it runs on.
    pub lcore: Option<usize>,
    /// The processor socket (NUMA node) that is at, where the system says.
    #[serde(default)]
    pub socket: Option<u32>,
    /// The one that its port is at, when that is another: every frame crosses.
    #[serde(default)]
    pub port_socket: Option<u32>,
    /// Whether it runs.
    pub running: bool,
}

/// Somebody who listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Where.
    pub address: String,
    /// What is served there, or where it forwards to; an application's number where it is neither.
    pub service: String,
    /// `starting`, `listening`, `ending`: it takes no more, and those it has go on; or `failed: ` and why:
    /// its listener is gone, and it is to be taken away, or made anew.
    pub state: String,
    /// Connections that are not established yet.
    pub startups: usize,
    /// So many there may be.
    pub backlog: usize,
    /// Calls and connections of a listener that serves NFS, of all its exports together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs: Option<Export>,
    /// Its exports, where it serves NFS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportedDirectory>,
}

/// A directory that a listener serves by NFS, and what was counted of it since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportedDirectory {
    /// The directory with its options, as in the service.
    pub export: String,
    /// Calls that were carried out.
    pub calls: u64,
    /// Those of them with a status that is not OK.
    pub failed: u64,
    /// Octets read.
    pub read_bytes: u64,
    /// Octets written.
    pub written_bytes: u64,
}

/// A listener of NFS: connections by how they speak, and what was counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Connections in RPC-over-RDMA version 1.
    pub rdma1: usize,
    /// In version 2.
    pub rdma2: usize,
    /// By RDMA, on which nothing has been said yet.
    pub silent: usize,
    /// By TCP of the host.
    pub tcp: usize,
    /// Calls that were carried out.
    pub calls: u64,
    /// Those of them with a status that is not OK.
    pub failed: u64,
    /// Octets read.
    pub read_bytes: u64,
    /// Octets written.
    pub written_bytes: u64,
}

/// The control socket's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Connections to it, this one included.
    pub clients: usize,
    /// Requests carried out.
    pub requests: u64,
    /// Requests refused, for whatever reason.
    pub refused: u64,
    /// Connections turned away because there were too many.
    pub turned_away: u64,
    /// Connections dropped because they did not take their answers.
    pub slow: u64,
    /// Connections dropped because of what they sent.
    pub broken: u64,
    /// Applications that were killed, or that no rule covered any more.
    #[serde(default)]
    pub evicted: u64,
}

/// Connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conns {
    /// When they were asked for, since the start.
    pub at_ns: u64,
    /// In the order of their numbers.
    pub conns: Vec<Conn>,
    /// Where to go on, when there may be more.
    pub next: Option<u64>,
}

/// A connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conn {
    /// Its number, never given again. Those of 2^63 and more were made by peers.
    pub conn: u64,
    /// Our end.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// Where it is in its life.
    pub state: String,
    /// The worker that has it.
    pub worker: usize,
    /// `iwarp` or `infiniband`.
    #[serde(default)]
    pub transport: String,
    /// The service, `forward`, or the number of the application.
    pub service: String,
    /// Of one that is forwarded, the number of the connection at the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<u64>,
    /// What was agreed, once it is established.
    pub agreed: Option<Agreed>,
    /// Its queue pair, once there is one.
    pub qp: Option<Qp>,
    /// TCP, while the worker has it.
    pub tcp: Option<Tcp>,
    /// Every counter of TCP and the queue pair that is not 0.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// What the start-up has agreed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Revision of MPA.
    pub revision: u8,
    /// Whether FPDUs have a CRC.
    pub crc: bool,
    /// Reads the peer may have outstanding.
    pub ird: u16,
    /// Reads we may have outstanding.
    pub ord: u16,
    /// We put markers in.
    pub send_markers: bool,
    /// The peer puts markers in.
    pub recv_markers: bool,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Its state.
    pub state: String,
    /// Depth of the send queue.
    pub sq_depth: u32,
    /// Depth of the receive queue.
    pub rq_depth: u32,
    /// Its receives are of a shared receive queue.
    pub shared: bool,
    /// Requests of the send queue the worker has taken and not completed.
    pub sq_outstanding: u32,
    /// Requests of the receive queue the worker has taken and not completed.
    pub rq_outstanding: u32,
    /// Octets of payload put into FPDUs.
    pub tx_bytes: u64,
    /// Octets of payload placed.
    pub rx_bytes: u64,
    /// FPDUs made.
    pub tx_fpdus: u64,
    /// FPDUs received and found good.
    pub rx_fpdus: u64,
}

/// A TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// The state of RFC 9293.
    pub state: String,
    /// Octets of payload in a full segment.
    pub emss: u32,
    /// Smoothed round-trip time; absent before the first measurement.
    pub srtt_ns: Option<u64>,
    /// Its variation.
    pub rttvar_ns: u64,
    /// Retransmission timeout.
    pub rto_ns: u64,
    /// Congestion window in octets.
    pub cwnd: u32,
    /// Slow start threshold in octets.
    pub ssthresh: u32,
    /// Octets believed to be in the network.
    pub in_flight: u64,
    /// The peer's window in octets.
    pub snd_wnd: u32,
    /// Octets the peer has acknowledged.
    pub acked: u64,
    /// Octets received in order.
    pub received: u64,
    /// What keeps the connection from getting on: `peer silent` or `window shut`. It ends if that lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Segments sent again.
    pub retransmits: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
}

/// Registered memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrs {
    /// Regions, windows and fast registrations whose STag is valid.
    pub mrs: Vec<Mr>,
    /// There are more than an answer takes.
    pub cut: bool,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mr {
    /// Its slot in the table of STags. An STag is a capability, and this is none.
    pub index: u32,
    /// The STag, where it was asked for by somebody who may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stag: Option<u32>,
    /// Its protection domain.
    pub pd: u32,
    /// Whose that is: `services`, or the name of an application with its number; nobody's once it is gone.
    #[serde(default)]
    pub owner: Option<String>,
    /// The only queue pair that may use it, if it is bound to one.
    pub qpn: Option<u32>,
    /// Octets.
    pub len: u64,
    /// Rights.
    pub access: Vec<String>,
}

/// Ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ports {
    /// When they were asked, since the start.
    pub at_ns: u64,
    /// In the order of the configuration.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the configuration.
    pub name: String,
    /// Its device in DPDK.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Octets of an IP packet.
    pub mtu: u16,
    /// Whether the link is up.
    pub up: bool,
    /// Mb/s, where the device knows.
    pub mbps: Option<u32>,
    /// Times the link came up or went down since the start.
    #[serde(default)]
    pub link_changes: u64,
    /// When it did so last, since the start; never when absent.
    #[serde(default)]
    pub link_changed_ns: Option<u64>,
    /// Our addresses, with their prefixes.
    pub addresses: Vec<String>,
    /// Routes, `NETWORK/PREFIX via GATEWAY`.
    pub routes: Vec<String>,
    /// Workers that share it.
    pub workers: usize,
    /// What the device does by itself: `rx-ip-checksum`, `rx-tcp-checksum`, `tx-ip-checksum`,
    /// `tx-tcp-checksum`, `multi-segs`, `rx-hash`.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// Why its queues do not interrupt though they were to.
    #[serde(default)]
    pub no_interrupts: Option<String>,
    /// What the device has counted.
    pub counters: BTreeMap<String, u64>,
}

/// All counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// When they were asked for, since the start.
    pub at_ns: u64,
    /// Numbers of the workers that have answered.
    pub workers: Vec<usize>,
    /// Those that have not, within their time.
    pub silent: Vec<usize>,
    /// The counters.
    pub counters: Vec<Counter>,
}

/// A counter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Of what part.
    pub part: String,
    /// Its name there.
    pub name: String,
    /// What it counts.
    pub help: String,
    /// Its value, of all workers together.
    pub value: u64,
    /// That of each worker that has answered; none where it is none of theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<u64>,
}

/// What came of a new configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What was changed, in order.
    pub applied: Vec<String>,
    /// What could not be, and why; the next reload tries it again.
    pub failed: Vec<String>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::document::{Call, VERSION, read_call, to_line};

    #[test]
    fn test_every_request_goes_round() {
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
        ] {
            let line = to_line(&Call { v: VERSION, id: 1, request: &request });
            let back: (u64, Request) = read_call(&line).unwrap();
            assert_eq!(back, (1, request.clone()));
            assert_eq!(request.changes(), changes, "{request:?}");
        }
    }

    #[test]
    fn test_every_number_of_every_request_has_a_bound() {
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
    fn test_arguments_that_all_have_defaults_may_be_left_out_and_unknown_ones_may_not() {
        for op in ["conns", "mrs"] {
            let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\"}}");
            assert!(read_call::<Request>(line.as_bytes()).is_ok(), "{line}");
            let line = format!("{{\"v\":1,\"id\":1,\"op\":\"{op}\",\"args\":{{\"limits\":1}}}}");
            assert!(read_call::<Request>(line.as_bytes()).is_err(), "{line}");
        }
        // As those ask who know of services alone.
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
