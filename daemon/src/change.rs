//! Changes from one configuration to another while the appliance runs.
//!
//! [`changes`] lists the changes to make, or all keys that cannot change: then no change is made.
//! The changes are made in order. A change that fails (an application listens at that address by
//! now) is reported and left out, and the others are made; the next difference starts from the
//! changes that were made. No change is undone, because undoing could fail as well.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use heddle_ctl::Patience;
use heddle_tcp::{Cidr, Keepalive, Route, Vlan};
use heddle_verbs::MpaOptions;
use serde_json::Value;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{ClientRule, Config, Control, Forward, Limits, LogFormat, Port};
use crate::service::ServiceSpec;

/// A single change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Log lines from this level on.
    LogLevel(LevelFilter),
    /// Write log lines in this format.
    LogFormat(LogFormat),
    /// Answer Prometheus at this address only; at none when absent.
    Metrics(Option<SocketAddr>),
    /// Set other permissions of the control socket, which stays at its path.
    Access(Control),
    /// Set these keepalive probes for silent peers, also of existing connections.
    Keepalive(Option<Keepalive>),
    /// Set these time limits for peers that hold connections up, also for existing connections.
    Patience(Patience),
    /// Set this silence before a probe to a peer of InfiniBand, also for existing connections.
    IbKeepalive(Option<Duration>),
    /// Set start-up options, and one address's share, for services that start from here on.
    Terms(MpaOptions, Limits),
    /// Take no more connections at this address.
    ListenDel(SocketAddr),
    /// Set other addresses, routes and VLANs, for each port. Listeners at a removed address have ended
    /// before; connections at it end.
    Addresses(Vec<Net>),
    /// Set other options of an export that goes on, also for connected clients.
    ExportSet(ServiceSpec),
    /// Start a service.
    ListenAdd(ServiceSpec),
    /// Forward connections.
    ForwardAdd(Forward),
    /// Set the policies of applications of other processes.
    Clients(Vec<ClientRule>),
    /// Set the weight of the services in the turns of workers.
    Weight(u32),
    /// Set another time for the end of the appliance.
    Deadline(Duration),
}

/// Addresses, routes and VLANs of a port.
pub type Net = (Vec<Cidr>, Vec<Route>, Vec<Vlan>);

/// Returns the addresses, routes and VLANs of each port.
fn nets(config: &Config) -> Vec<Net> {
    let net = |p: &Port| (p.addresses.clone(), p.routes.clone(), p.vlans.clone());
    config.ports.iter().map(net).collect()
}

/// Returns the number of the port that has the address; no port has the unspecified address.
fn port_of(config: &Config, addr: SocketAddr) -> Option<usize> {
    config.ports.iter().position(|p| p.all_addresses().any(|c| c.addr() == addr.ip()))
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LogLevel(level) => write!(f, "log level {level}"),
            Change::LogFormat(LogFormat::Text) => f.write_str("log as text"),
            Change::LogFormat(LogFormat::Json) => f.write_str("log as JSON"),
            Change::Metrics(Some(addr)) => write!(f, "metrics on {addr}"),
            Change::Metrics(None) => f.write_str("no metrics"),
            Change::Keepalive(Some(k)) => write!(f, "keepalive after {:?}", k.idle),
            Change::Keepalive(None) => f.write_str("no keepalive"),
            Change::Patience(_) => f.write_str("patience with peers"),
            Change::IbKeepalive(Some(idle)) => write!(f, "keepalive of InfiniBand after {idle:?}"),
            Change::IbKeepalive(None) => f.write_str("no keepalive of InfiniBand"),
            Change::Access(_) => f.write_str("permissions of the control socket"),
            Change::Terms(..) => f.write_str("start-up options and shares of services"),
            Change::ListenDel(addr) => write!(f, "no service on {addr}"),
            Change::Addresses(_) => f.write_str("addresses and routes"),
            Change::ListenAdd(s) if s.infiniband => {
                write!(f, "{} on {}, over InfiniBand too", s.kind, s.addr)
            }
            Change::ListenAdd(spec) | Change::ExportSet(spec) => {
                write!(f, "{} on {}", spec.kind, spec.addr)
            }
            Change::ForwardAdd(forward) => write!(f, "{forward} on {}", forward.addr),
            Change::Clients(_) => f.write_str("quotas of applications"),
            Change::Weight(weight) => write!(f, "weight {weight} of the services"),
            Change::Deadline(d) => write!(f, "shutdown within {d:?}"),
        }
    }
}

/// A key that cannot change while the appliance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Name of the key.
    pub key: &'static str,
    /// The reason why the key is fixed.
    pub why: &'static str,
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot change while it runs: {}", self.key, self.why)
    }
}

/// Returns the changes that lead from `old`, which runs, to `new`, in the order in which to make
/// them.
///
/// # Errors
/// All keys that cannot change.
pub fn changes(old: &Config, new: &Config) -> Result<Vec<Change>, Vec<Fixed>> {
    let fixed = fixed(old, new);
    if !fixed.is_empty() {
        return Err(fixed);
    }
    let mut changes = Vec::new();
    if old.log.level != new.log.level {
        changes.push(Change::LogLevel(new.log.level));
    }
    if old.log.format != new.log.format {
        changes.push(Change::LogFormat(new.log.format));
    }
    if old.metrics != new.metrics {
        changes.push(Change::Metrics(new.metrics));
    }
    if let Some(control) = &new.control
        && old.control != new.control
    {
        changes.push(Change::Access(control.clone()));
    }
    if old.keepalive != new.keepalive {
        changes.push(Change::Keepalive(new.keepalive));
    }
    if old.patience != new.patience {
        changes.push(Change::Patience(new.patience));
    }
    if old.ib_keepalive != new.ib_keepalive {
        changes.push(Change::IbKeepalive(new.ib_keepalive));
    }
    // A listener gets the options for its answers when it is made.
    let terms = old.mpa != new.mpa || old.limits != new.limits;
    if terms {
        changes.push(Change::Terms(new.mpa, new.limits));
    }
    // A listener whose address moves to another port ends there, and is made anew at the new port.
    let stays = |s: &ServiceSpec| port_of(old, s.addr) == port_of(new, s.addr);
    let set =
        |new: &&ServiceSpec| !terms && stays(new) && old.listen.iter().any(|s| s.becomes(new));
    let set: Vec<_> = new.listen.iter().filter(set).collect();
    let same = |s: &ServiceSpec, others: &[ServiceSpec]| {
        let is_set = set.iter().any(|set| set.addr == s.addr);
        is_set || !terms && others.contains(s) && stays(s)
    };
    changes.extend(set.iter().map(|s| Change::ExportSet((*s).clone())));
    // A service that can listen beside all existing ones starts before anything ends, so that a
    // mistake in it costs no other service. The other services take the place of something, and
    // have to wait for its end.
    let (early, late): (Vec<&ServiceSpec>, _) =
        new.listen.iter().filter(|s| !same(s, &old.listen)).partition(|s| is_apart(old, s));
    changes.extend(early.into_iter().map(|s| Change::ListenAdd(s.clone())));
    let gone = old.listen.iter().filter(|s| !same(s, &new.listen));
    changes.extend(gone.map(|s| Change::ListenDel(s.addr)));
    let stays = |f: &Forward, others: &[Forward]| !terms && others.contains(f);
    let gone = old.forward.iter().filter(|f| !stays(f, &new.forward));
    changes.extend(gone.map(|f| Change::ListenDel(f.addr)));
    if nets(old) != nets(new) {
        changes.push(Change::Addresses(nets(new)));
    }
    changes.extend(late.into_iter().map(|s| Change::ListenAdd(s.clone())));
    let come = new.forward.iter().filter(|f| !stays(f, &old.forward));
    changes.extend(come.map(|f| Change::ForwardAdd(*f)));
    if old.clients != new.clients {
        changes.push(Change::Clients(new.clients.clone()));
    }
    if old.weight != new.weight {
        changes.push(Change::Weight(new.weight));
    }
    if old.shutdown != new.shutdown {
        changes.push(Change::Deadline(new.shutdown));
    }
    Ok(changes)
}

/// Returns true if a service can start beside all that runs by `old`: its address exists and is
/// free, and it needs nothing of the host that another service may have.
fn is_apart(old: &Config, s: &ServiceSpec) -> bool {
    let there = s.addr.ip().is_unspecified() || port_of(old, s.addr).is_some();
    let free = old.service_at(s.addr).is_none() && old.forward_at(s.addr).is_none();
    there && free && s.kind.nfs().is_none_or(|nfs| nfs.tcp.is_none())
}

fn fixed(old: &Config, new: &Config) -> Vec<Fixed> {
    const DEVICE: &str = "the device would have to be stopped";
    const WORKERS: &str = "each worker has it from its start";
    const MEMORY: &str = "memory is taken when it starts";
    const THREADS: &str = "connections cannot move to another thread";
    let path = |c: &Config| c.control.as_ref().map(|c| c.path.clone());
    // The ports are compared one by one in their order, because a port's settings stay with it.
    let port = |differs: fn(&Port, &Port) -> bool| {
        old.ports.iter().zip(&new.ports).any(|(old, new)| differs(old, new))
    };
    let checks = [
        (old.dpdk != new.dpdk, "dpdk", "DPDK is started once"),
        (path(old) != path(new), "control.socket", "who is connected would be cut off"),
        (
            old.ports.len() != new.ports.len(),
            "[[port]]",
            "workers are made for the ports there are",
        ),
        (port(|a, b| a.name != b.name), "port.name", "it would seem another one"),
        (port(|a, b| !a.is_same_device(b)), "port.vdev, port.pci or port.bond", DEVICE),
        (port(|a, b| a.mtu != b.mtu), "port.mtu", DEVICE),
        (port(|a, b| a.workers != b.workers), "port.workers", THREADS),
        (port(|a, b| a.queues != b.queues), "port.queues", DEVICE),
        (port(|a, b| a.router_adverts != b.router_adverts), "port.router-advertisements", DEVICE),
        (old.infiniband != new.infiniband, "infiniband.cm", WORKERS),
        (old.workers != new.workers, "workers", THREADS),
        (old.memory != new.memory, "memory", MEMORY),
        (old.limits.connections != new.limits.connections, "limits.connections", MEMORY),
        (old.limits.registrations != new.limits.registrations, "limits.registrations", MEMORY),
        (old.limits.frames != new.limits.frames, "limits.frames", MEMORY),
        (
            old.limits.peer_connections != new.limits.peer_connections,
            "limits.peer-connections",
            WORKERS,
        ),
        (old.limits.fpdu_memory != new.limits.fpdu_memory, "limits.fpdu-memory", WORKERS),
        (old.limits.rnr_wait != new.limits.rnr_wait, "limits.rnr-wait", WORKERS),
        (old.sharing.congestion != new.sharing.congestion, "tcp.congestion", WORKERS),
        (old.sharing.ecn != new.sharing.ecn, "tcp.ecn", WORKERS),
        (old.sharing.pacing != new.sharing.pacing, "tcp.pacing", WORKERS),
        (old.sharing.path_mtu != new.sharing.path_mtu, "tcp.path-mtu-probing", WORKERS),
        (
            old.sharing.user_timeout_option != new.sharing.user_timeout_option,
            "tcp.user-timeout-option",
            WORKERS,
        ),
        (
            old.sharing.user_timeout_limit != new.sharing.user_timeout_limit,
            "tcp.user-timeout-limit",
            WORKERS,
        ),
        (old.sharing.fixed_window() != new.sharing.fixed_window(), "tcp.receive-window", WORKERS),
        (
            old.sharing.window_budget != new.sharing.window_budget,
            "tcp.receive-window-budget",
            WORKERS,
        ),
        (old.syn_cookies != new.syn_cookies, "tcp.syn-cookies", WORKERS),
    ];
    let changed = checks.into_iter().filter(|(changed, ..)| *changed);
    changed.map(|(_, key, why)| Fixed { key, why }).collect()
}

/// A setting whose value differs between two configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Path of the key, as `port[0].mtu`.
    pub key: String,
    /// The value of the old configuration; absent if it has none.
    pub old: Option<Value>,
    /// The value of the new configuration; absent if it has none.
    pub new: Option<Value>,
    /// The reason why the key cannot change while the appliance runs; absent if it can.
    pub fixed: Option<&'static str>,
}

/// Returns all settings that differ, in the order of their keys.
///
/// # Errors
/// The reason, in one line; it would be a defect.
pub fn differences(old: &Config, new: &Config) -> Result<Vec<Difference>, String> {
    let fixed = fixed(old, new);
    let why = |key: &str| {
        let plain = without_numbers(key);
        let of = |name: &str| {
            let rest = plain.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let hit = |f: &&Fixed| match f.key {
            // Another number of ports: then every key of a port that comes or goes is fixed.
            "[[port]]" => plain.starts_with("port."),
            names => names.split(" or ").any(of),
        };
        fixed.iter().find(hit).map(|f| f.why)
    };
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    flatten(String::new(), old.to_value()?, &mut before);
    flatten(String::new(), new.to_value()?, &mut after);
    let keys: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    let differ = keys.into_iter().filter(|key| before.get(key) != after.get(key));
    let each = differ.collect::<Vec<_>>().into_iter().map(|key| Difference {
        fixed: why(&key),
        old: before.remove(&key),
        new: after.remove(&key),
        key,
    });
    Ok(each.collect())
}

/// Takes the numbers of array elements out of a path.
fn without_numbers(key: &str) -> String {
    let parts = key.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// Enters the values into `all`, by the paths of their keys. A list of plain values is one value.
fn flatten(path: String, value: Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(path, value, all);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (n, value) in list.into_iter().enumerate() {
                // A listener is the same wherever it stands in the file.
                let name = value.get("address").and_then(Value::as_str);
                let path = name.map_or_else(|| format!("{path}[{n}]"), |a| format!("{path}[{a}]"));
                flatten(path, value, all);
            }
        }
        plain => {
            all.insert(path, plain);
        }
    }
}

/// Enters `change` into the configuration in force.
pub fn apply(config: &mut Config, change: &Change) {
    match change {
        Change::LogLevel(level) => config.log.level = *level,
        Change::LogFormat(format) => config.log.format = *format,
        Change::Metrics(addr) => config.metrics = *addr,
        Change::Keepalive(keepalive) => config.keepalive = *keepalive,
        Change::Patience(patience) => config.patience = *patience,
        Change::IbKeepalive(idle) => config.ib_keepalive = *idle,
        Change::Access(control) => config.control = Some(control.clone()),
        Change::Terms(mpa, limits) => (config.mpa, config.limits) = (*mpa, *limits),
        Change::ListenDel(addr) => {
            config.listen.retain(|s| s.addr != *addr);
            config.forward.retain(|f| f.addr != *addr);
        }
        Change::Addresses(nets) => {
            for (port, net) in config.ports.iter_mut().zip(nets) {
                (port.addresses, port.routes, port.vlans) = net.clone();
            }
        }
        Change::ExportSet(spec) => {
            let same = config.listen.iter_mut().filter(|s| s.addr == spec.addr);
            same.for_each(|s| s.clone_from(spec));
        }
        Change::ListenAdd(spec) => config.listen.push(spec.clone()),
        Change::ForwardAdd(forward) => config.forward.push(*forward),
        Change::Clients(rules) => config.clients.clone_from(rules),
        Change::Weight(weight) => config.weight = *weight,
        Change::Deadline(d) => config.shutdown = *d,
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
