//! Listeners of NFS, and their exports, labelled by listener and directory.

use heddle_nfs::Counts;
use heddle_rpc::server::ServerCounters;

use crate::sample::{ExportConnections, ExportSample, NfsSample};
use crate::text::{Kind, Text};

pub(super) fn put(t: &mut Text, listeners: &[NfsSample], all: &[ExportSample]) {
    connections(t, listeners);
    counters(t, all, "nfs", |e| of(e).to_vec(), |e| nfs(&e.counts));
    counters(t, listeners, "rpc", |l| at(l).to_vec(), |l| rpc(&l.rpc));
    let help = "Calls of NFS that failed, by the status of the reply.";
    t.family("heddle_nfs_errors_total", Kind::Counter, help);
    for e in all {
        for (status, count) in &e.failures {
            // Every status that a service returns has a name.
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

/// Returns the labels of an export.
fn of(e: &ExportSample) -> [(&str, &str); 2] {
    [("listener", &e.listener), ("export", &e.directory)]
}

/// Returns the labels of a listener.
fn at(l: &NfsSample) -> [(&str, &str); 1] {
    [("listener", &l.listener)]
}

fn connections(t: &mut Text, all: &[NfsSample]) {
    let help = "Connections of listeners of NFS, by what carries their calls.";
    t.family("heddle_nfs_connections", Kind::Gauge, help);
    for l in all {
        let ExportConnections { rdma1, rdma2, silent, tcp } = l.connections;
        for (transport, count) in
            [("rdma-1", rdma1), ("rdma-2", rdma2), ("rdma-silent", silent), ("tcp", tcp)]
        {
            t.value(&[at(l)[0], ("transport", transport)], count);
        }
    }
}

/// Name, help text and value of a counter.
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

/// Writes the counters of `all`. Every entry has the same counters in the same order.
fn counters<T: Default>(
    t: &mut Text,
    all: &[T],
    group: &str,
    labels: impl Fn(&T) -> Vec<(&str, &str)>,
    values: impl Fn(&T) -> Vec<Named>,
) {
    let known: Vec<_> = all.iter().map(|e| (labels(e), values(e))).collect();
    for (at, (name, help, _)) in values(&T::default()).into_iter().enumerate() {
        t.family(&format!("heddle_{group}_{name}_total"), Kind::Counter, help);
        for (labels, values) in &known {
            if let Some((.., value)) = values.get(at) {
                t.value(labels, value);
            }
        }
    }
}
