//! From one configuration to another while the appliance runs.
//!
//! [`changes`] says what is to be done, or everything that cannot be done: then nothing is. What can
//! be done is done in order, forwards: a change that fails (an application listens at that address by
//! now) is told and left out, the others are made, and what was made is what the next difference is
//! taken from. Nothing is undone: that could fail as well.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use heddle_ctl::Patience;
use heddle_tcp::{Cidr, Keepalive, Route};
use heddle_verbs::MpaOptions;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{ClientRule, Config, Control, Forward, Limits, LogFormat, Port};
use crate::service::ServiceSpec;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Log from this level on.
    LogLevel(LevelFilter),
    /// Log in this form.
    LogFormat(LogFormat),
    /// Answer Prometheus there, and there only; nowhere when absent.
    Metrics(Option<SocketAddr>),
    /// Other permissions of the control socket, which stays where it is.
    Access(Control),
    /// Probe silent peers so, those of connections that stand included.
    Keepalive(Option<Keepalive>),
    /// Bear so long with peers that keep connections from getting on, those that stand included.
    Patience(Patience),
    /// Ask silent peers of InfiniBand so, those of connections that stand included.
    IbKeepalive(Option<Duration>),
    /// Start-up options, and what one address gets, of services that are started from here on.
    Terms(MpaOptions, Limits),
    /// Take no more connections there.
    ListenDel(SocketAddr),
    /// Other addresses and routes, those of each port. Listeners at an address that goes have gone
    /// before; connections at it end.
    Addresses(Vec<Net>),
    /// Other options of an export that goes on, those connected included.
    ExportSet(ServiceSpec),
    /// Start a service.
    ListenAdd(ServiceSpec),
    /// Forward what comes there.
    ForwardAdd(Forward),
    /// What applications that open a device from here on may have.
    Clients(Vec<ClientRule>),
    /// Other time to end in.
    Deadline(Duration),
}

/// Addresses and routes of a port.
pub type Net = (Vec<Cidr>, Vec<Route>);

/// Those of each port.
fn nets(config: &Config) -> Vec<Net> {
    config.ports.iter().map(|p| (p.addresses.clone(), p.routes.clone())).collect()
}

/// The number of the port that has the address; none has the unspecified one.
fn port_of(config: &Config, addr: SocketAddr) -> Option<usize> {
    config.ports.iter().position(|p| p.addresses.iter().any(|c| c.addr() == addr.ip()))
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
            Change::Deadline(d) => write!(f, "shutdown within {d:?}"),
        }
    }
}

/// A key that cannot change while the appliance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Which.
    pub key: &'static str,
    /// Why.
    pub why: &'static str,
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot change while it runs: {}", self.key, self.why)
    }
}

/// What leads from `old`, which runs, to `new`, in the order in which it is to be done.
///
/// # Errors
/// All that cannot be done.
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
    // What a listener answers with is given to it when it is made.
    let terms = old.mpa != new.mpa || old.limits != new.limits;
    if terms {
        changes.push(Change::Terms(new.mpa, new.limits));
    }
    // One at an address that goes to another port ends with it there, and is made anew behind it.
    let stays = |s: &ServiceSpec| port_of(old, s.addr) == port_of(new, s.addr);
    let set =
        |new: &&ServiceSpec| !terms && stays(new) && old.listen.iter().any(|s| s.becomes(new));
    let set: Vec<_> = new.listen.iter().filter(set).collect();
    let same = |s: &ServiceSpec, others: &[ServiceSpec]| {
        let is_set = set.iter().any(|set| set.addr == s.addr);
        is_set || !terms && others.contains(s) && stays(s)
    };
    changes.extend(set.iter().map(|s| Change::ExportSet((*s).clone())));
    // What can listen beside all that is there does so before anything ends: a mistake in it costs
    // nobody else. The rest takes the place of something, and has to wait for its end.
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
    if old.shutdown != new.shutdown {
        changes.push(Change::Deadline(new.shutdown));
    }
    Ok(changes)
}

/// Whether a service can start beside all that runs by `old`: its address is there, nobody listens at
/// it, and it needs nothing of the host that another may have.
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
    // One by one, in their order: what is a port's stays with it.
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
        (port(|a, b| !a.is_same_device(b)), "port.vdev or port.pci", DEVICE),
        (port(|a, b| a.mtu != b.mtu), "port.mtu", DEVICE),
        (port(|a, b| a.workers != b.workers), "port.workers", THREADS),
        (port(|a, b| a.queues != b.queues), "port.queues", DEVICE),
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
    ];
    let changed = checks.into_iter().filter(|(changed, ..)| *changed);
    changed.map(|(_, key, why)| Fixed { key, why }).collect()
}

/// What is in force once `change` has been made.
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
            for (port, (addresses, routes)) in config.ports.iter_mut().zip(nets) {
                (port.addresses, port.routes) = (addresses.clone(), routes.clone());
            }
        }
        Change::ExportSet(spec) => {
            let same = config.listen.iter_mut().filter(|s| s.addr == spec.addr);
            same.for_each(|s| s.clone_from(spec));
        }
        Change::ListenAdd(spec) => config.listen.push(spec.clone()),
        Change::ForwardAdd(forward) => config.forward.push(*forward),
        Change::Clients(rules) => config.clients.clone_from(rules),
        Change::Deadline(d) => config.shutdown = *d,
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
