//! A configuration in short, for people who have checked a file.

use std::fmt::Write;

use heddle_dataplane::{IdlePolicy, MemoryMode};
use heddle_tcp::Cidr;

use super::Config;
use super::host::ranges;

/// Returns a line for each part. `memory` is that of packet buffers, in MiB.
pub(super) fn of(config: &Config, memory: Option<(u32, MemoryMode)>, dpdk: Option<&str>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "  {name}: {what}");
    };
    for p in &config.ports {
        let joined = |addresses: &[Cidr]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let mut what = format!("{}, {}", p.source, joined(&p.addresses));
        for v in &p.vlans {
            let _ = write!(what, ", VLAN {}: {}", v.vid, joined(v.net.addrs()));
        }
        let _ = write!(what, ", MTU {}, {}", p.mtu, number(p.workers, "worker"));
        line(&p.name, what);
    }
    let cpus = match &config.workers.lcores[..] {
        [] => "the first that may be used".into(),
        all => ranges(all),
    };
    let idle = match config.workers.idle {
        IdlePolicy::Spin => "spin",
        IdlePolicy::Backoff(_) => "backoff",
        IdlePolicy::Interrupt(_) => "interrupt",
    };
    line("processors", format!("{cpus}; without work: {idle}"));
    let packets = memory.map(|(mib, mode)| {
        let pages = match mode {
            MemoryMode::Hugepages => "hugepages",
            MemoryMode::NoHuge => "ordinary pages",
        };
        format!("{mib} MiB for packets in {pages}, ")
    });
    let m = &config.memory;
    let services = format!("{} MiB registered, {} MiB for queues", m.registered, m.queues);
    line("memory", packets.unwrap_or_default() + &services);
    let listen = config.listen.iter().map(|s| format!("{} on {}", s.kind, s.addr));
    let forward = config.forward.iter().map(|f| format!("{f} on {}", f.addr));
    let all: Vec<_> = listen.chain(forward).collect();
    line("listeners", if all.is_empty() { "none".into() } else { all.join("; ") });
    line("applications", number(config.clients.len(), "rule"));
    let control = config.control.as_ref();
    let socket = control.map(|c| format!("{}, mode {:04o}", c.path.display(), c.mode));
    line("control socket", socket.unwrap_or_else(|| "none".into()));
    line("metrics", config.metrics.map_or_else(|| "none".into(), |m| m.to_string()));
    if let Some(version) = dpdk {
        line("drivers", format!("of {version}"));
    }
    text
}

fn number(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
