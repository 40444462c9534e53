//! Formats the appliance's answers as tables.

use std::fmt::Write;
use std::time::Duration;

use heddle_perf::report::align;
use heddle_socket::admin::{
    ExportedDirectory, Listener, Mrs, PortBond, Ports, Reloaded, Stats, Status,
};

pub(super) fn status(s: &Status) -> String {
    let mut text = String::new();
    let up = s.at_ns / 1_000_000_000;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "heddle {}, process {}, up {}:{:02}:{:02}",
        s.version,
        s.pid,
        up / 3600,
        up / 60 % 60,
        up % 60
    );
    let _ = writeln!(text, "configuration: {}", s.config.as_deref().unwrap_or("flags"));
    if let Some(r) = &s.last_reload {
        let ago = s.at_ns.saturating_sub(r.at_ns) / 1_000_000_000;
        let how = r.error.as_deref().unwrap_or("done");
        let _ = writeln!(text, "last reload: {ago} s ago, {how}");
    }
    if let Some(since) = s.draining_ns {
        let ago = s.at_ns.saturating_sub(since) / 1_000_000_000;
        let _ = writeln!(text, "draining for {ago} s: no new connections and applications");
    }
    let _ = writeln!(
        text,
        "connections: {} ({} in their start-up); applications: {}",
        s.conns, s.startups, s.applications
    );
    let _ = writeln!(
        text,
        "registrations: {} of {} ({} to be given back); services' memory in pages of {} KiB",
        s.registrations,
        s.registrations_max,
        s.draining,
        s.page >> 10
    );
    let c = &s.control;
    let _ = writeln!(
        text,
        "control socket: {} connected, {} requests, {} refused, {} turned away, {} too slow, {} applications ended\n",
        c.clients, c.requests, c.refused, c.turned_away, c.slow, c.evicted
    );
    let workers = s.workers.iter().map(|w| {
        let lcore = w.lcore.map_or_else(|| "-".into(), |l| l.to_string());
        let running = if w.running { "running" } else { "ended" };
        let socket = match (w.socket, w.port_socket) {
            (None, _) => "-".into(),
            (Some(at), None) => at.to_string(),
            (Some(at), Some(port)) => format!("{at} (port: {port})"),
        };
        let busy = if w.running { busy(w.busy_ns, s.at_ns) } else { "-".into() };
        vec![w.port.clone(), running.into(), w.worker.to_string(), lcore, socket, busy]
    });
    text += &align(&["port", "worker is", "worker", "lcore", "socket", "busy"], workers, 2);
    text.push('\n');
    let listeners = s.listeners.iter().map(|l| {
        let startups = format!("{}/{}", l.startups, l.backlog);
        vec![l.address.clone(), l.service.clone(), l.state.clone(), startups]
    });
    text += &align(&["listener", "service", "state", "start-ups"], listeners, 3);
    let exports: Vec<_> = s.listeners.iter().flat_map(exports).collect();
    if !exports.is_empty() {
        text.push('\n');
        let head = [
            "listener", "export", "rdma v1", "v2", "silent", "tcp", "calls", "failed", "read",
            "written",
        ];
        text += &align(&head, exports, 2);
    }
    if !s.clients.is_empty() {
        let clients = s.clients.iter().map(|c| {
            let pid = c.pid.map_or_else(|| "-".into(), |p| p.to_string());
            let name = format!("{}#{}", c.name, c.application);
            let (conns, listeners) = (c.connections.to_string(), c.listeners.to_string());
            let (memory, qps) = ((c.memory >> 20).to_string(), c.queue_pairs.to_string());
            let (mrs, over) = (c.registrations.to_string(), c.over_quota.to_string());
            let (weight, rate) = (c.weight.to_string(), rate(c.rate));
            let waited = format!("{:.1}s", Duration::from_nanos(c.rate_waited_ns).as_secs_f64());
            vec![
                name,
                c.uid.to_string(),
                pid,
                conns,
                listeners,
                memory,
                qps,
                mrs,
                over,
                weight,
                rate,
                waited,
            ]
        });
        text.push('\n');
        let head = [
            "application",
            "user",
            "process",
            "conns",
            "listeners",
            "MiB",
            "qps",
            "stags",
            "over quota",
            "weight",
            "rate",
            "waited",
        ];
        text += &align(&head, clients, 1);
    }
    text
}

/// Formats the rate of a share, which is a megabyte per second at least.
fn rate(limit: Option<u64>) -> String {
    let Some(bytes) = limit else { return "-".into() };
    format!("{}.{} MB/s", bytes / 1_000_000, bytes / 100_000 % 10)
}

/// Formats the share of the time since the start in which a worker had work.
fn busy(busy_ns: Option<u64>, at_ns: u64) -> String {
    let Some(busy_ns) = busy_ns else { return "no answer".into() };
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let share = busy_ns as f64 / at_ns.max(1) as f64;
    format!("{:.1}%", 100.0 * share.min(1.0))
}

/// Makes a row for each directory of an NFS listener: each directory counts its own calls and
/// bytes, while the connections are the whole listener's.
fn exports(listener: &Listener) -> Vec<Vec<String>> {
    let Some(nfs) = &listener.nfs else { return Vec::new() };
    let conns = [nfs.rdma1, nfs.rdma2, nfs.silent, nfs.tcp].map(|n| n.to_string());
    let row = |e: &ExportedDirectory| {
        let place = [listener.address.clone(), e.export.clone()];
        let counts = [e.calls, e.failed, e.read_bytes, e.written_bytes].map(|n| n.to_string());
        place.into_iter().chain(conns.clone()).chain(counts).collect()
    };
    listener.exports.iter().map(row).collect()
}

pub(super) fn mrs(m: &Mrs) -> String {
    let rows = m.mrs.iter().map(|r| {
        let stag = r.stag.map_or_else(|| "-".into(), |s| format!("{s:#010x}"));
        let qpn = r.qpn.map_or_else(|| "-".into(), |q| q.to_string());
        let index = r.index.to_string();
        let owner = r.owner.clone().unwrap_or_else(|| "-".into());
        vec![index, r.access.join(","), owner, r.pd.to_string(), qpn, r.len.to_string(), stag]
    });
    let mut text = align(&["index", "access", "owner", "pd", "qp", "bytes", "stag"], rows, 3);
    if m.cut {
        text += "and more\n";
    }
    text
}

pub(super) fn ports(p: &Ports) -> String {
    let rows = p.ports.iter().map(|p| {
        let link = match (p.up, p.mbps) {
            (false, _) => "down".into(),
            (true, None) => "up".into(),
            (true, Some(mbps)) => format!("up {mbps} Mb/s"),
        };
        let (name, device, driver) = (p.name.clone(), p.device.clone(), p.driver.clone());
        let changes = p.link_changes.to_string();
        let (mtu, workers) = (p.mtu.to_string(), p.workers.to_string());
        vec![
            name,
            device,
            driver,
            p.mac.clone(),
            link,
            p.addresses.join(","),
            changes,
            mtu,
            workers,
        ]
    });
    let head =
        ["port", "device", "driver", "mac", "link", "addresses", "link changes", "mtu", "workers"];
    let mut text = align(&head, rows, 6);
    for port in &p.ports {
        for route in &port.routes {
            let _ = writeln!(text, "{}: {route}", port.name);
        }
        for vlan in &port.vlans {
            let (name, id, addresses) = (&port.name, vlan.id, vlan.addresses.join(","));
            let priority = &vlan.priority;
            let _ = writeln!(text, "{name}: VLAN {id}: {addresses}, priority {priority}");
            for route in &vlan.routes {
                let _ = writeln!(text, "{name}: VLAN {id}: {route}");
            }
        }
        if let Some(bond) = &port.bond {
            text += &members(&port.name, bond);
        }
        let offloads = match &port.offloads[..] {
            [] => "nothing".to_owned(),
            all => all.join(", "),
        };
        let _ = writeln!(text, "{}: by the device: {offloads}", port.name);
        if let Some(why) = &port.no_interrupts {
            let _ = writeln!(text, "{}: no interrupts of queues: {why}", port.name);
        }
    }
    for port in &p.ports {
        let rows = port.counters.iter();
        let rows = rows.map(|(n, v)| vec![port.name.clone(), n.clone(), v.to_string()]);
        text.push('\n');
        text += &align(&["port", "counter", "value"], rows, 2);
    }
    text
}

/// Returns lines about the members of a bond.
fn members(port: &str, bond: &PortBond) -> String {
    let mode = &bond.mode;
    let mut text = format!("{port}: {mode} bond, {} switches, ", bond.switches);
    let _ = writeln!(text, "{} frames dropped at members that carry none", bond.backup_drops);
    for m in &bond.members {
        let link = match (m.gone, m.up) {
            (true, _) => "gone",
            (false, true) => "up",
            (false, false) => "down",
        };
        let (device, changes) = (&m.device, m.link_changes);
        let active = if m.active { "active" } else { "idle" };
        let of = |name| m.counters.get(name).copied().unwrap_or(0);
        let (rx, tx) = (of("rx_frames"), of("tx_frames"));
        let _ = writeln!(
            text,
            "{port}: member {device}: {link}, {active}, {changes} link changes, {rx} frames received, \
             {tx} sent"
        );
        if let Some(l) = &m.lacp {
            let with = l.aggregator.as_deref().unwrap_or("none");
            let _ = writeln!(
                text,
                "{port}: member {device}: LACP {}; partner {} port {} key {}: {}; aggregator {with}",
                l.actor, l.system, l.port, l.key, l.partner
            );
        }
    }
    text
}

pub(super) fn stats(s: &Stats, all: bool, help: bool) -> String {
    let mut head = vec!["part".to_owned(), "counter".to_owned(), "value".to_owned()];
    let several = s.workers.len() > 1;
    if several {
        head.extend(s.workers.iter().map(|w| format!("worker {w}")));
    }
    let counters = s.counters.iter().filter(|c| all || c.value > 0);
    let rows = counters.map(|c| {
        let mut row = vec![c.part.clone(), c.name.clone(), c.value.to_string()];
        if several {
            let of = |n| c.workers.get(n).map_or_else(String::new, u64::to_string);
            row.extend((0..s.workers.len()).map(of));
        }
        if help {
            row.push(c.help.clone());
        }
        row
    });
    let mut head: Vec<&str> = head.iter().map(String::as_str).collect();
    if help {
        head.push("what it counts");
    }
    let mut text = align(&head, rows, 2);
    text += &super::conns::silent(&s.silent);
    text
}

pub(super) fn reloaded(r: &Reloaded) -> String {
    if r.applied.is_empty() && r.failed.is_empty() {
        return "nothing has changed\n".into();
    }
    r.applied.iter().fold(String::new(), |text, a| text + a + "\n")
}
