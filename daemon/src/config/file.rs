//! The file as it is written: every key, and nothing else. Defaults and meaning are in
//! [`check`](super::check); `docs/guide/appliance.md` explains the purpose of each key, and a test
//! compares the two.

use core::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// A value that may be left out, with its place in the text.
pub(super) type Key<T> = Option<Spanned<T>>;

/// A time with its unit, not parsed yet: a type of its own so that a number gets told the unit.
#[derive(Debug, Default, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Time(pub(super) String);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        from.deserialize_any(TimeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time with its unit, as \"60s\" or \"500ms\"")
    }

    fn visit_str<E: Error>(self, s: &str) -> Result<Time, E> {
        Ok(Time(s.into()))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Time, E> {
        // A negative number is no time in any unit.
        let hint = if n < 0 { "as \"60s\"".into() } else { format!("write \"{n}s\"") };
        Err(E::custom(format!("{n} is a number without a unit: {hint}")))
    }
}

/// The priority of a VLAN's frames, not parsed yet: a number or a word.
#[derive(Debug, Default, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Priority(pub(super) String);

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
        from.deserialize_any(PriorityVisitor)
    }
}

struct PriorityVisitor;

impl Visitor<'_> for PriorityVisitor {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority, 0 to 7 or \"dscp\"")
    }

    fn visit_str<E: Error>(self, s: &str) -> Result<Priority, E> {
        Ok(Priority(s.into()))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Priority, E> {
        Ok(Priority(n.to_string()))
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) dpdk: Dpdk,
    pub(super) log: Log,
    pub(super) control: Control,
    pub(super) metrics: Metrics,
    pub(super) port: Vec<Spanned<Port>>,
    pub(super) workers: Workers,
    pub(super) memory: Memory,
    pub(super) limits: Limits,
    pub(super) mpa: Mpa,
    pub(super) tcp: Tcp,
    pub(super) infiniband: Infiniband,
    pub(super) listen: Vec<Spanned<Listen>>,
    pub(super) client: Vec<Spanned<Client>>,
    pub(super) shutdown: Shutdown,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Dpdk {
    pub(super) memory: Key<i64>,
    pub(super) hugepages: Key<String>,
    pub(super) iova: Key<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) level: Key<String>,
    pub(super) format: Key<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Control {
    pub(super) socket: Key<String>,
    pub(super) mode: Key<String>,
    pub(super) group: Key<String>,
    pub(super) read: Vec<Spanned<String>>,
    pub(super) change: Vec<Spanned<String>>,
    pub(super) exports: Vec<Spanned<String>>,
    pub(super) clients: Key<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) listen: Key<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Port {
    pub(super) name: Key<String>,
    pub(super) vdev: Key<String>,
    pub(super) pci: Key<String>,
    pub(super) bond: Key<Bond>,
    pub(super) mtu: Key<i64>,
    pub(super) workers: Key<i64>,
    pub(super) queues: Key<i64>,
    pub(super) offloads: Option<Vec<Spanned<String>>>,
    pub(super) addresses: Vec<Spanned<String>>,
    pub(super) gateway: Key<String>,
    pub(super) routes: Vec<Spanned<Route>>,
    #[serde(rename = "router-advertisements")]
    pub(super) router_advertisements: Key<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) vlan: Vec<Spanned<Vlan>>,
}

#[derive(Debug, Default, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Bond {
    pub(super) mode: Key<String>,
    pub(super) members: Vec<Spanned<String>>,
    pub(super) primary: Key<String>,
    pub(super) hash: Key<String>,
    pub(super) link_interval: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Vlan {
    pub(super) id: Key<i64>,
    pub(super) priority: Key<Priority>,
    pub(super) addresses: Vec<Spanned<String>>,
    pub(super) gateway: Key<String>,
    pub(super) routes: Vec<Spanned<Route>>,
    pub(super) router_advertisements: Key<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Route {
    pub(super) to: Key<String>,
    pub(super) via: Key<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Workers {
    pub(super) lcores: Vec<Spanned<i64>>,
    pub(super) idle: Key<String>,
    pub(super) nap_after: Key<Time>,
    pub(super) nap_longest: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Memory {
    pub(super) registered: Key<i64>,
    pub(super) pages: Key<String>,
    pub(super) queues: Key<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Limits {
    pub(super) connections: Key<i64>,
    pub(super) registrations: Key<i64>,
    pub(super) frames: Key<i64>,
    pub(super) peer_share: Key<i64>,
    pub(super) peer_connections: Key<i64>,
    pub(super) fpdu_memory: Key<i64>,
    pub(super) rnr_wait: Key<Time>,
    pub(super) first_message: Key<Time>,
    pub(super) weight: Key<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Mpa {
    pub(super) crc: Key<bool>,
    pub(super) revision: Key<i64>,
    pub(super) rtr: Key<Vec<Spanned<String>>>,
    pub(super) markers: Key<bool>,
    pub(super) fpdu_stall: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Tcp {
    pub(super) keepalive: Key<Time>,
    pub(super) user_timeout: Key<Time>,
    pub(super) zero_window: Key<Time>,
    pub(super) close_stall: Key<Time>,
    pub(super) close_limit: Key<Time>,
    pub(super) congestion: Key<String>,
    pub(super) ecn: Key<String>,
    pub(super) pacing: Key<String>,
    pub(super) path_mtu_probing: Key<String>,
    pub(super) user_timeout_option: Key<String>,
    pub(super) user_timeout_limit: Key<Time>,
    pub(super) receive_window: Key<i64>,
    pub(super) syn_cookies: Key<String>,
    pub(super) receive_window_budget: Key<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Infiniband {
    pub(super) cm: Key<bool>,
    pub(super) keepalive: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listen {
    pub(super) address: Key<String>,
    pub(super) service: Key<String>,
    pub(super) infiniband: Key<bool>,
    pub(super) congestion: Key<String>,
    pub(super) ecn: Key<String>,
    pub(super) pacing: Key<String>,
    pub(super) forward: Key<Forward>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) export: Vec<Spanned<Export>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Export {
    pub(super) path: Key<String>,
    pub(super) ro: Key<bool>,
    #[serde(rename = "async")]
    pub(super) not_sync: Key<bool>,
    pub(super) client: Key<Vec<Spanned<String>>>,
    pub(super) squash: Key<String>,
    pub(super) anonuid: Key<i64>,
    pub(super) anongid: Key<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Forward {
    pub(super) to: Key<String>,
    pub(super) over: Key<String>,
    pub(super) connections: Key<i64>,
    pub(super) timeout: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    pub(super) deadline: Key<Time>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Client {
    pub(super) who: Key<String>,
    pub(super) sessions: Key<i64>,
    pub(super) descriptors: Key<i64>,
    pub(super) memory: Key<i64>,
    pub(super) queues: Key<i64>,
    pub(super) regions: Key<i64>,
    pub(super) connections: Key<i64>,
    pub(super) listeners: Key<i64>,
    pub(super) backlog: Key<i64>,
    pub(super) queue_pairs: Key<i64>,
    pub(super) completion_queues: Key<i64>,
    pub(super) shared_receive_queues: Key<i64>,
    pub(super) registrations: Key<i64>,
    pub(super) weight: Key<i64>,
    pub(super) rate: Key<String>,
    pub(super) connection_rate: Key<String>,
    pub(super) congestion: Key<String>,
    pub(super) ecn: Key<String>,
    pub(super) pacing: Key<String>,
    pub(super) listen: Option<Vec<Spanned<String>>>,
    pub(super) connect: Option<Vec<Spanned<String>>>,
}
