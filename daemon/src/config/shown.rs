//! A configuration as a file: every key with its value, also where the value is the default.
//!
//! [`Config::parse`] reads the text back to an equal configuration; users and groups have their
//! numbers.

use core::time::Duration;

use heddle_base::units::ByteRate;
use heddle_dataplane::{Bond, BondMode, Hugepages, IdlePolicy, IovaMode, Naps, PortSource};
use heddle_hub::Addresses;
use heddle_services::ServiceKind as Program;
use heddle_tcp::{Congestion, Ecn, Pacing, PathMtu, Route, SynCookies, UserTimeoutOption, Vlan};
use heddle_types::TcpTerms;
use heddle_types::mpa::{CrcPolicy, Revision, Rtr, RtrSet};
use heddle_verbs::PageSize;
use toml::Spanned;
use tracing_subscriber::filter::LevelFilter;

use super::check::LEVELS;
use super::file::{self, File, Key, Time};
use super::{ClientRule, Config, Control, Forward, Limits, LogFormat, Port, forward};
use crate::service::{ServiceKind, ServiceSpec};

impl Config {
    /// Returns the text of a file with all settings.
    ///
    /// # Errors
    /// The reason, in one line; it would be a defect.
    pub fn to_text(&self) -> Result<String, String> {
        toml::to_string(&self.to_file()).map_err(|e| e.to_string())
    }

    /// Returns all settings by their keys.
    ///
    /// # Errors
    /// As [`to_text`](Self::to_text).
    pub fn to_value(&self) -> Result<serde_json::Value, String> {
        // TOML has no null, so this leaves out the keys that are left out in the text.
        let value = toml::Value::try_from(self.to_file()).map_err(|e| e.to_string())?;
        serde_json::to_value(value).map_err(|e| e.to_string())
    }

    fn to_file(&self) -> File {
        let listen = self.listen.iter().map(service);
        let listen = listen.chain(self.forward.iter().map(forwarder));
        let Limits { peer_connections, first_message, .. } = self.limits;
        File {
            dpdk: file::Dpdk {
                memory: self.dpdk.memory.and_then(number),
                hugepages: word(match self.dpdk.hugepages {
                    Hugepages::Auto => "auto",
                    Hugepages::Never => "never",
                    Hugepages::Require => "require",
                }),
                iova: word(match self.dpdk.iova {
                    None => "auto",
                    Some(IovaMode::Va) => "va",
                    Some(IovaMode::Pa) => "pa",
                }),
            },
            log: file::Log {
                level: word(level(self.log.level)),
                format: word(match self.log.format {
                    LogFormat::Text => "text",
                    LogFormat::Json => "json",
                }),
            },
            control: self.control.as_ref().map_or_else(no_control, control),
            metrics: file::Metrics { listen: self.metrics.and_then(word) },
            port: all(self.ports.iter().map(port)),
            workers: workers(&self.workers.lcores, self.workers.idle),
            memory: file::Memory {
                registered: number(self.memory.registered),
                pages: word(match self.memory.pages {
                    PageSize::Auto => "auto",
                    PageSize::Small => "4K",
                    PageSize::Huge2M => "2M",
                    PageSize::Huge1G => "1G",
                }),
                queues: number(self.memory.queues),
            },
            limits: file::Limits {
                connections: number(self.limits.connections),
                registrations: number(self.limits.registrations),
                frames: number(self.limits.frames),
                peer_share: number(self.limits.peer_share),
                peer_connections: number(peer_connections.unwrap_or(0)),
                fpdu_memory: number(self.limits.fpdu_memory),
                rnr_wait: time(self.limits.rnr_wait),
                first_message: time(first_message.unwrap_or_default()),
                weight: number(self.weight),
            },
            mpa: file::Mpa {
                crc: flag(self.mpa.crc == CrcPolicy::Required),
                revision: number(if self.mpa.revision == Revision::V1 { 1 } else { 2 }),
                rtr: rtr(self.mpa.rtr),
                markers: flag(self.mpa.markers),
                fpdu_stall: time(self.patience.fpdu_stall),
            },
            tcp: file::Tcp {
                keepalive: time(self.keepalive.map_or(Duration::ZERO, |k| k.idle)),
                user_timeout: time(self.patience.tcp.user_timeout),
                zero_window: time(self.patience.tcp.zero_window),
                close_stall: time(self.patience.tcp.close_stall),
                close_limit: time(self.patience.close_limit),
                congestion: name(&Congestion::NAMES, self.sharing.congestion),
                ecn: name(&Ecn::NAMES, self.sharing.ecn),
                pacing: name(&Pacing::NAMES, self.sharing.pacing),
                path_mtu_probing: name(&PathMtu::NAMES, self.sharing.path_mtu),
                user_timeout_option: name(
                    &UserTimeoutOption::NAMES,
                    self.sharing.user_timeout_option,
                ),
                user_timeout_limit: time(self.sharing.user_timeout_limit),
                receive_window: self.sharing.fixed_window().and_then(|w| number(w >> 10)),
                receive_window_budget: number(self.sharing.window_budget >> 20),
                syn_cookies: name(&SynCookies::NAMES, self.syn_cookies),
            },
            infiniband: file::Infiniband {
                cm: flag(self.infiniband),
                keepalive: time(self.ib_keepalive.unwrap_or_default()),
            },
            listen: all(listen),
            client: all(self.clients.iter().map(client)),
            shutdown: file::Shutdown { deadline: time(self.shutdown) },
        }
    }
}

/// Returns the name of a value that has one.
fn name<T: PartialEq>(names: &[(&str, T)], value: T) -> Key<String> {
    names.iter().find(|(_, v)| *v == value).and_then(|(name, _)| word(name))
}

/// Makes an entry; its place in a text is of no use here.
fn at<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn all<T>(values: impl Iterator<Item = T>) -> Vec<Spanned<T>> {
    values.map(at).collect()
}

fn words<T: ToString>(values: impl Iterator<Item = T>) -> Vec<Spanned<String>> {
    all(values.map(|v| v.to_string()))
}

#[allow(clippy::unnecessary_wraps, reason = "every key of a file may be left out")]
fn word(value: impl ToString) -> Key<String> {
    Some(at(value.to_string()))
}

#[allow(clippy::unnecessary_wraps, reason = "as above")]
fn flag(value: bool) -> Key<bool> {
    Some(at(value))
}

fn number(value: impl TryInto<i64>) -> Key<i64> {
    value.try_into().ok().map(at)
}

/// Writes a time in its largest unit without a fraction.
#[allow(clippy::unnecessary_wraps, reason = "as above")]
fn time(value: Duration) -> Key<Time> {
    let us = value.as_micros();
    Some(at(Time(match us {
        _ if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        _ if us.is_multiple_of(1000) => format!("{}ms", us / 1000),
        _ => format!("{us}us"),
    })))
}

fn level(level: LevelFilter) -> &'static str {
    LEVELS.iter().find(|(_, l)| *l == level).map_or("warn", |(name, _)| *name)
}

fn no_control() -> file::Control {
    file::Control { socket: word(""), ..file::Control::default() }
}

fn control(c: &Control) -> file::Control {
    file::Control {
        socket: word(c.path.display()),
        mode: word(format!("{:04o}", c.mode)),
        group: c.group.and_then(word),
        read: words(c.read.iter()),
        change: words(c.change.iter()),
        exports: words(c.exports.iter().map(|p| p.display())),
        clients: number(c.clients),
    }
}

fn port(p: &Port) -> file::Port {
    let (vdev, pci, bond) = match &p.source {
        PortSource::Vdev(vdev) => (word(vdev), None, None),
        PortSource::Device(pci) => (None, word(pci), None),
        PortSource::Bond(b) => (None, None, Some(at(bond(b)))),
    };
    file::Port {
        name: word(&p.name),
        vdev,
        pci,
        bond,
        mtu: number(p.mtu),
        workers: number(p.workers),
        queues: p.queues.and_then(number),
        offloads: Some(words(p.offloads.names())),
        addresses: words(p.addresses.iter()),
        // The default route is written like the others.
        gateway: None,
        routes: all(p.routes.iter().map(route)),
        router_advertisements: word(p.router_adverts),
        vlan: all(p.vlans.iter().map(vlan)),
    }
}

fn bond(b: &Bond) -> file::Bond {
    file::Bond {
        mode: word(b.mode),
        members: words(b.members.iter()),
        primary: b.primary.as_ref().and_then(word),
        hash: (b.mode == BondMode::Lacp).then(|| at(b.hash.to_string())),
        link_interval: time(b.interval),
    }
}

fn route(r: &Route) -> file::Route {
    file::Route { to: word(r.dest), via: word(r.via) }
}

fn vlan(v: &Vlan) -> file::Vlan {
    file::Vlan {
        id: number(v.vid.get()),
        priority: Some(at(file::Priority(v.priority.to_string()))),
        addresses: words(v.net.addrs().iter()),
        gateway: None,
        routes: all(v.net.routes().iter().map(route)),
        router_advertisements: word(v.router_adverts),
    }
}

fn workers(lcores: &[usize], idle: IdlePolicy) -> file::Workers {
    let (idle, naps) = match idle {
        IdlePolicy::Spin => ("spin", Naps::default()),
        IdlePolicy::Backoff(naps) => ("backoff", naps),
        IdlePolicy::Interrupt(naps) => ("interrupt", naps),
    };
    file::Workers {
        lcores: lcores.iter().filter_map(|n| number(*n)).collect(),
        idle: word(idle),
        nap_after: time(naps.after),
        nap_longest: time(naps.longest),
    }
}

/// Returns the first messages; none are given where all are accepted.
fn rtr(set: RtrSet) -> Key<Vec<Spanned<String>>> {
    let names = [(Rtr::Send, "send"), (Rtr::Write, "write"), (Rtr::Read, "read")];
    let given = words(names.into_iter().filter(|(rtr, _)| set.has(*rtr)).map(|(_, name)| name));
    (!given.is_empty()).then(|| at(given))
}

fn service(s: &ServiceSpec) -> file::Listen {
    let kind = match &s.kind {
        ServiceKind::Program(kind @ Program::Ucmatose(m)) => {
            format!("{kind},count={},size={}", m.count, m.size)
        }
        ServiceKind::Program(kind @ Program::Perftest(t)) => format!("{kind},size={}", t.size),
        kind => kind.to_string(),
    };
    let [congestion, ecn, pacing] = tcp_terms(s.tcp);
    file::Listen {
        address: word(s.addr),
        service: word(kind),
        infiniband: flag(s.infiniband),
        congestion,
        ecn,
        pacing,
        ..file::Listen::default()
    }
}

fn forwarder(f: &Forward) -> file::Listen {
    let forward = file::Forward {
        to: word(f.to),
        over: word(forward::name(f.over)),
        connections: number(f.connections),
        timeout: time(f.timeout),
    };
    let [congestion, ecn, pacing] = tcp_terms(f.tcp);
    file::Listen {
        address: word(f.addr),
        congestion,
        ecn,
        pacing,
        forward: Some(at(forward)),
        ..file::Listen::default()
    }
}

/// Returns the names of congestion control, ECN and pacing, where the terms have them.
fn tcp_terms(t: TcpTerms) -> [Key<String>; 3] {
    [
        t.congestion.and_then(|c| name(&Congestion::NAMES, c)),
        t.ecn.and_then(|e| name(&Ecn::NAMES, e)),
        t.pacing.and_then(|p| name(&Pacing::NAMES, p)),
    ]
}

fn client(c: &ClientRule) -> file::Client {
    let p = &c.policy;
    let [congestion, ecn, pacing] = tcp_terms(p.tcp);
    file::Client {
        who: word(&c.who),
        sessions: number(p.sessions),
        descriptors: number(p.descriptors),
        memory: number(p.memory >> 20),
        queues: number(p.queues >> 20),
        regions: number(p.regions),
        connections: number(p.connections),
        listeners: number(p.listeners),
        backlog: number(p.backlog),
        queue_pairs: number(p.limits.max_qps),
        completion_queues: number(p.limits.max_cqs),
        shared_receive_queues: number(p.limits.max_srqs),
        registrations: number(p.limits.max_mrs),
        weight: number(p.share.weight),
        rate: rate(p.share.rate),
        connection_rate: rate(p.share.connection_rate),
        congestion,
        ecn,
        pacing,
        listen: Some(places(&p.listen)),
        connect: Some(places(&p.connect)),
    }
}

fn rate(limit: Option<u64>) -> Key<String> {
    limit.map_or_else(|| word("none"), |bytes| word(ByteRate(bytes)))
}

/// Writes ranges of addresses in the form of the file.
fn places(ranges: &[Addresses]) -> Vec<Spanned<String>> {
    let any = Addresses::any();
    let (every, rest): (Vec<_>, Vec<_>) = ranges.iter().partition(|a| any.contains(a));
    let every = (!every.is_empty()).then(|| "any".to_owned());
    let range = |a: &Addresses| {
        let addr = if a.addr.is_ipv6() { format!("[{}]", a.addr) } else { a.addr.to_string() };
        format!("{addr}/{}:{}-{}", a.prefix, a.ports.start(), a.ports.end())
    };
    words(every.into_iter().chain(rest.into_iter().map(range)))
}
