//! The arguments of requests.

use serde::{Deserialize, Serialize};

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
    /// The congestion control of the listener's connections; when absent, that of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Whether the connections use ECN; when absent, as the configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<String>,
    /// Whether the connections spread new data over the round trip; when absent, as the configuration
    /// says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<String>,
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
    /// Number of the connection, as in [`Conn::conn`](super::Conn::conn).
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
    /// Number of the application, as in [`Application::application`](super::Application::application).
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

/// The way in which all connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The appliance first sends all posted requests and then FIN.
    InOrder,
    /// The appliance resets the connections.
    Reset,
}
