//! NFS exports, told apart by their listeners and directories.

use heddle_nfs::Counts;
use heddle_rpc::server::ServerCounters;

use crate::sample::{ExportConnections, ExportSample};
use crate::text::{Kind, Text};

pub(super) fn put(t: &mut Text, all: &[ExportSample]) {
    connections(t, all);
    counters(t, all, "nfs", |e| nfs(&e.counts));
    counters(t, all, "rpc", |e| rpc(&e.rpc));
    let help = "Calls of NFS that failed, by the status of the reply.";
    t.family("heddle_nfs_errors_total", Kind::Counter, help);
    for e in all {
        for (status, count) in &e.failures {
            // All that a service gives have names.
            let status = status.name().unwrap_or("other");
            t.value(&[of(e)[0], of(e)[1], ("status", status)], count);
        }
    }
    let help = "Calls of NFS and MOUNT from arguments that have come to results that are made.";
    t.family("heddle_nfs_call_seconds", Kind::Histogram, help);
    for e in all {
        for timing in &e.timings {
            let names = [("program", timing.program), ("procedure", timing.procedure)];
            t.histogram(&[of(e)[0], of(e)[1], names[0], names[1]], &timing.times);
        }
    }
}

/// What tells an export from others.
fn of(e: &ExportSample) -> [(&str, &str); 2] {
    [("listener", &e.listener), ("export", &e.directory)]
}

fn connections(t: &mut Text, all: &[ExportSample]) {
    let help = "Connections of NFS exports, by what carries their calls.";
    t.family("heddle_nfs_connections", Kind::Gauge, help);
    for e in all {
        let ExportConnections { rdma1, rdma2, silent, tcp } = e.connections;
        for (transport, count) in
            [("rdma-1", rdma1), ("rdma-2", rdma2), ("rdma-silent", silent), ("tcp", tcp)]
        {
            t.value(&[of(e)[0], of(e)[1], ("transport", transport)], count);
        }
    }
}

/// Name, help text and value.
type Named = (&'static str, &'static str, u64);

fn nfs(counts: &Counts) -> Vec<Named> {
    let mut all = Vec::new();
    counts.for_each(|name, help, value| all.push((name, help, value)));
    all
}

fn rpc(counters: &ServerCounters) -> Vec<Named> {
    let mut all = Vec::new();
    counters.for_each(|name, help, value| all.push((name, help, value)));
    all
}

/// Every export has the same counters in the same order.
fn counters(
    t: &mut Text,
    all: &[ExportSample],
    group: &str,
    values: impl Fn(&ExportSample) -> Vec<Named>,
) {
    let known: Vec<_> = all.iter().map(|e| (e, values(e))).collect();
    for (at, (name, help, _)) in values(&ExportSample::default()).into_iter().enumerate() {
        t.family(&format!("heddle_{group}_{name}_total"), Kind::Counter, help);
        for (e, values) in &known {
            if let Some((.., value)) = values.get(at) {
                t.value(&of(e), value);
            }
        }
    }
}
