//! Converts a sample to text, and names each metric.
//!
//! A counter of a group is `heddle_GROUP_NAME_total`. Times are in seconds, sizes in bytes.

mod exports;

use heddle_base::Histogram;
use heddle_cm::CmGauges;
use heddle_dataplane::{PortStats, RestCounters, WorkerSnapshot, WorkerTimes};

use crate::sample::{
    ApplicationSample, BondSample, Clients, Gateway, LcoreSample, MemberSample, Memory, PortSample,
    Sample, ShareSample, WorkerSample,
};
use crate::text::{Kind, Text, seconds};

/// Returns the text of a sample: every family once, with all its values.
pub fn expose(sample: &Sample) -> String {
    let mut t = Text::default();
    t.family("heddle_build_info", Kind::Gauge, "Always 1; what runs, in its labels.");
    t.value(&[("version", &sample.version), ("dpdk", &sample.dpdk)], 1);
    t.family("heddle_uptime_seconds", Kind::Gauge, "Time since the start.");
    let uptime = u64::try_from(sample.uptime.as_nanos()).unwrap_or(u64::MAX);
    t.value(&[], seconds(uptime));
    let help = "1 while new connections and applications are refused (heddle drain), else 0.";
    gauge(&mut t, "draining", help, usize::from(sample.draining));
    workers(&mut t, &sample.workers);
    ports(&mut t, &sample.ports);
    lcores(&mut t, &sample.lcores);
    applications(&mut t, &sample.applications);
    shares(&mut t, &sample.shares);
    exports::put(&mut t, &sample.nfs, &sample.exports);
    sample.control.cm.for_each(|name, help, value| counter(&mut t, "cm", name, help, value));
    sample.control.ib.for_each(|name, help, value| counter(&mut t, "ib", name, help, value));
    sample.control.control.for_each(|n, help, value| counter(&mut t, "control", n, help, value));
    let Gateway { counters, connections } = &sample.gateway;
    counters.for_each(|name, help, value| counter(&mut t, "gateway", name, help, value));
    gauge(&mut t, "forwarded_connections", "Connections that the gateway stands in.", connections);
    control(&mut t, &sample.control.gauges);
    t.family(
        "heddle_connection_setup_seconds",
        Kind::Histogram,
        "From an application's request (active) or the end of the handshake of TCP (passive) to FPDU mode.",
    );
    t.histogram(&[("side", "active")], &sample.control.startups.active);
    t.histogram(&[("side", "passive")], &sample.control.startups.passive);
    memory(&mut t, &sample.memory);
    clients(&mut t, &sample.clients);
    sample.http.for_each(|name, help, value| counter(&mut t, "metrics", name, help, value));
    t.finish()
}

fn counter(t: &mut Text, group: &str, name: &str, help: &str, value: u64) {
    t.family(&format!("heddle_{group}_{name}_total"), Kind::Counter, help);
    t.value(&[], value);
}

fn gauge(t: &mut Text, name: &str, help: &str, value: impl core::fmt::Display) {
    t.family(&format!("heddle_{name}"), Kind::Gauge, help);
    t.value(&[], value);
}

/// Writes the counters and distributions of each worker, labelled by its number and port.
fn workers(t: &mut Text, workers: &[WorkerSample]) {
    let numbers: Vec<String> = (0..workers.len()).map(|n| n.to_string()).collect();
    let all = || workers.iter().zip(&numbers);
    t.family("heddle_worker_up", Kind::Gauge, "Whether a worker runs and has answered.");
    for (w, n) in all() {
        t.value(&[("worker", n), ("port", &w.port)], u8::from(w.up));
    }
    // Every worker has the same counters in the same order.
    let values = |s: &WorkerSnapshot| {
        let mut values = Vec::new();
        s.for_each(|_, _, _, value| values.push(value));
        values
    };
    let known: Vec<_> = all().map(|(w, n)| (w, n, values(&w.snapshot))).collect();
    let mut at = 0;
    WorkerSnapshot::default().for_each(|group, name, help, _| {
        // Prometheus wants times in seconds. The help text names the unit of the counter.
        let time = name.strip_suffix("_ns");
        let shown = time.map_or_else(|| name.to_owned(), |name| format!("{name}_seconds"));
        let help =
            if time.is_some() { help.replace("Nanoseconds", "Seconds") } else { help.into() };
        t.family(&format!("heddle_{group}_{shown}_total"), Kind::Counter, &help);
        for (w, n, values) in &known {
            if let Some(&value) = values.get(at) {
                let labels = [("worker", n.as_str()), ("port", w.port.as_str())];
                match time {
                    Some(_) => t.value(&labels, seconds(value)),
                    None => t.value(&labels, value),
                }
            }
        }
        at += 1;
    });
    buffers(t, workers);
    let mut times = Vec::new();
    WorkerTimes::default().for_each(|name, help, _| times.push((name, help)));
    for (at, (name, help)) in times.into_iter().enumerate() {
        t.family(&format!("heddle_{name}_seconds"), Kind::Histogram, help);
        for (w, n) in all() {
            let mut all: Vec<Histogram> = Vec::new();
            w.snapshot.times.for_each(|_, _, h| all.push(*h));
            t.histogram(&[("worker", n), ("port", &w.port)], &all[at]);
        }
    }
}

/// Writes the buffer counts of each port. Workers of one port share a pool, so the first worker
/// that has answered reports them.
fn buffers(t: &mut Text, workers: &[WorkerSample]) {
    let mut pools: Vec<(&str, (u32, u32))> = Vec::new();
    for w in workers {
        if w.up && pools.iter().all(|(port, _)| *port != w.port) {
            pools.push((&w.port, w.snapshot.buffers));
        }
    }
    t.family("heddle_port_buffers", Kind::Gauge, "Packet buffers of a port.");
    for (port, (free, used)) in &pools {
        t.value(&[("port", port)], u64::from(*free) + u64::from(*used));
    }
    t.family("heddle_port_buffers_free", Kind::Gauge, "Packet buffers of a port that are free.");
    for (port, (free, _)) in &pools {
        t.value(&[("port", port)], free);
    }
}

type OfPort = fn(&PortStats) -> u64;

const PORT_COUNTERS: [(&str, &str, OfPort); 8] = [
    ("rx_frames", "Frames received.", |s| s.rx_frames),
    ("rx_bytes", "Bytes received.", |s| s.rx_bytes),
    ("rx_missed", "Frames dropped because the queue was full.", |s| s.rx_missed),
    ("rx_errors", "Frames that were wrong.", |s| s.rx_errors),
    ("rx_no_mbuf", "Frames dropped because the mempool was empty.", |s| s.rx_no_mbuf),
    ("tx_frames", "Frames sent.", |s| s.tx_frames),
    ("tx_bytes", "Bytes sent.", |s| s.tx_bytes),
    ("tx_errors", "Frames that could not be sent.", |s| s.tx_errors),
];

fn ports(t: &mut Text, ports: &[PortSample]) {
    t.family("heddle_port_info", Kind::Gauge, "Always 1; the driver of a port, in its labels.");
    for p in ports {
        t.value(&[("port", &p.name), ("driver", &p.driver)], 1);
    }
    for (name, help, of) in PORT_COUNTERS {
        t.family(&format!("heddle_port_{name}_total"), Kind::Counter, help);
        for p in ports {
            t.value(&[("port", &p.name)], of(&p.stats));
        }
    }
    let help = "Whether the device does this by itself (1) or the RNIC does (0).";
    t.family("heddle_port_offload", Kind::Gauge, help);
    for p in ports {
        for (offload, on) in p.caps.each() {
            t.value(&[("port", &p.name), ("offload", offload)], u8::from(on));
        }
    }
    let help = "Times the link came up or went down.";
    t.family("heddle_port_link_changes_total", Kind::Counter, help);
    for p in ports {
        t.value(&[("port", &p.name)], p.link_changes);
    }
    t.family("heddle_port_up", Kind::Gauge, "Whether the link is up.");
    for p in ports {
        t.value(&[("port", &p.name)], u8::from(p.up));
    }
    let help = "Speed of the link in bytes a second; absent where it has none.";
    t.family("heddle_port_speed_bytes", Kind::Gauge, help);
    for p in ports {
        if let Some(mbps) = p.mbps {
            t.value(&[("port", &p.name)], u64::from(mbps) * (1_000_000 / 8));
        }
    }
    bonds(t, ports);
}

type OfBond = fn(&BondSample) -> u64;
type OfMember = fn(&MemberSample) -> u64;

const BOND_COUNTERS: [(&str, &str, OfBond); 2] = [
    ("switches", "Times another member of an active-backup bond took over.", |b| b.switches),
    ("backup_drops", "Frames dropped at members that carry nothing.", |b| b.backup_drops),
];

const MEMBERS: [(&str, Kind, &str, OfMember); 5] = [
    ("up", Kind::Gauge, "Whether the link of a member of a bond is up.", |m| m.up.into()),
    ("active", Kind::Gauge, "Whether a member of a bond carries frames.", |m| m.active.into()),
    ("link_changes_total", Kind::Counter, "Times a member's link came up or went down.", |m| {
        m.link_changes
    }),
    ("rx_bytes_total", Kind::Counter, "Bytes that a member received.", |m| m.stats.rx_bytes),
    ("tx_bytes_total", Kind::Counter, "Bytes that a member sent.", |m| m.stats.tx_bytes),
];

/// Writes the bonds among the ports.
fn bonds(t: &mut Text, ports: &[PortSample]) {
    let bonds = || ports.iter().filter_map(|p| Some((&p.name, p.bond.as_ref()?)));
    for (name, help, of) in BOND_COUNTERS {
        t.family(&format!("heddle_bond_{name}_total"), Kind::Counter, help);
        for (port, bond) in bonds() {
            t.value(&[("port", port)], of(bond));
        }
    }
    for (name, kind, help, of) in MEMBERS {
        t.family(&format!("heddle_bond_member_{name}"), kind, help);
        for (port, bond) in bonds() {
            for m in &bond.members {
                t.value(&[("port", port), ("member", &m.device)], of(m));
            }
        }
    }
}

type OfLcore = fn(&RestCounters) -> String;

const LCORE_COUNTERS: [(&str, &str, OfLcore); 5] = [
    ("sleeps", "Times a thread slept that polls workers.", |r| r.rest_sleeps.to_string()),
    ("slept_seconds", "Time it slept.", |r| seconds(r.rest_slept_us.saturating_mul(1000))),
    ("interrupts", "Its sleeps that an interrupt of a queue ended.", |r| {
        r.rest_interrupts.to_string()
    }),
    ("wakeups", "Its sleeps that a doorbell, an order or another worker ended.", |r| {
        r.rest_wakeups.to_string()
    }),
    ("unwoken", "Its sleeps after which frames lay in a queue that had not interrupted.", |r| {
        r.rest_unwoken.to_string()
    }),
];

/// Writes how threads rest, labelled by their processors.
fn lcores(t: &mut Text, lcores: &[LcoreSample]) {
    for (name, help, of) in LCORE_COUNTERS {
        t.family(&format!("heddle_lcore_{name}_total"), Kind::Counter, help);
        for l in lcores {
            t.value(&[("lcore", &l.lcore.to_string())], of(&l.rest));
        }
    }
}

type OfApplication = fn(&ApplicationSample) -> u64;

const APPLICATION: [(&str, Kind, &str, OfApplication); 9] = [
    ("devices", Kind::Gauge, "Applications of other processes that have a device.", |a| {
        a.devices as u64
    }),
    ("memory_bytes", Kind::Gauge, "Bytes of their devices, and that they have brought.", |a| {
        a.memory
    }),
    ("queue_pairs", Kind::Gauge, "Queue pairs of applications.", |a| a.queue_pairs as u64),
    ("connections", Kind::Gauge, "Connections of applications.", |a| a.connections as u64),
    ("listeners", Kind::Gauge, "Listeners of applications.", |a| a.listeners as u64),
    ("registrations", Kind::Gauge, "STags of applications.", |a| a.registrations),
    ("requests_total", Kind::Counter, "Requests of applications.", |a| a.requests),
    ("refused_total", Kind::Counter, "Requests of applications refused.", |a| a.refused),
    ("over_quota_total", Kind::Counter, "Requests refused for a quota.", |a| a.over_quota),
];

fn applications(t: &mut Text, all: &[ApplicationSample]) {
    for (name, kind, help, of) in APPLICATION {
        t.family(&format!("heddle_application_{name}"), kind, help);
        for a in all {
            t.value(&[("user", &a.user), ("name", &a.name)], of(a));
        }
    }
}

type OfShare = fn(&ShareSample) -> Option<String>;

const SHARE: [(&str, Kind, &str, OfShare); 5] = [
    ("weight", Kind::Gauge, "Weight of the share in the turns of workers.", |s| {
        Some(s.weight.to_string())
    }),
    ("rate_bytes", Kind::Gauge, "Bytes that it may send in a second; absent without limit.", |s| {
        s.rate.map(|r| r.to_string())
    }),
    ("sent_bytes_total", Kind::Counter, "Bytes of FPDUs sent while there were several.", |s| {
        Some(s.sent.to_string())
    }),
    ("rate_waits_total", Kind::Counter, "Times it or a connection waited for a rate.", |s| {
        Some(s.waits.to_string())
    }),
    ("rate_waited_seconds_total", Kind::Counter, "Time it or a connection waited so.", |s| {
        Some(seconds(u64::try_from(s.waited.as_nanos()).unwrap_or(u64::MAX)))
    }),
];

fn shares(t: &mut Text, all: &[ShareSample]) {
    for (name, kind, help, of) in SHARE {
        t.family(&format!("heddle_share_{name}"), kind, help);
        for s in all {
            if let Some(value) = of(s) {
                t.value(&[("user", &s.user), ("rule", &s.rule)], value);
            }
        }
    }
}

fn control(t: &mut Text, g: &CmGauges) {
    let CmGauges { conns, startups, listeners, claims, timers, apps, events } = *g;
    gauge(t, "connections", "Connections, in whatever state.", conns);
    let help = "Connections of peers that are in their start-up.";
    gauge(t, "connections_starting", help, startups);
    gauge(t, "listeners", "Listeners.", listeners);
    let help = "Queue pairs in a connection, or that had one and are not reset.";
    gauge(t, "queue_pairs", help, claims);
    gauge(t, "deadlines", "Deadlines that start-ups and closes wait for.", timers);
    gauge(t, "applications", "Applications that have anything, the services being one.", apps);
    gauge(t, "events_waiting", "Events that applications have not taken.", events);
}

fn memory(t: &mut Text, m: &Memory) {
    let Memory { registrations, registrations_max, registered_bytes, bytes, draining } = *m;
    gauge(t, "registrations", "STags there are.", registrations);
    gauge(t, "registrations_max", "STags there can be.", registrations_max);
    gauge(t, "registered_bytes", "Bytes that applications have registered.", registered_bytes);
    gauge(t, "registrable_bytes", "Bytes there are to be registered.", bytes);
    let help = "Regions that are deregistered and still referred to by frames.";
    gauge(t, "regions_draining", help, draining);
}

fn clients(t: &mut Text, c: &Clients) {
    let Clients { connected, requests, refused, turned_away, slow, broken, evicted } = *c;
    gauge(t, "clients", "Clients of the control socket.", connected);
    for (name, help, value) in [
        ("requests", "Requests over the control socket carried out.", requests),
        ("refused", "Requests over the control socket refused.", refused),
        ("turned_away", "Clients that found no place at the control socket.", turned_away),
        ("slow", "Clients dropped because they did not take their answers.", slow),
        ("broken", "Clients dropped because what they sent made no sense.", broken),
        ("evicted", "Applications killed, or that no rule covered any more.", evicted),
    ] {
        counter(t, "client", name, help, value);
    }
}
