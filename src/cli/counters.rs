//! Formats an RNIC's counters for people.

use heddle::counters::{PortStats, Snapshot, WorkerSnapshot};
use heddle_perf::report::align;

/// Lists every counter of the RNIC that is not zero.
pub(crate) fn of_rnic(s: &Snapshot) -> String {
    show(rows_of_rnic(s))
}

/// A counter: its part of the RNIC, its name and its value.
pub(crate) type Row = (&'static str, &'static str, u64);

/// Returns every counter of the RNIC that is not zero.
pub(crate) fn rows_of_rnic(s: &Snapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    s.ctl.for_each(|name, _, value| rows.push(("ctl", name, value)));
    let PortStats {
        rx_frames,
        rx_bytes,
        rx_missed,
        rx_errors,
        rx_no_mbuf,
        tx_frames,
        tx_bytes,
        tx_errors,
    } = s.port;
    rows.extend([
        ("port", "rx_frames", rx_frames),
        ("port", "rx_bytes", rx_bytes),
        ("port", "rx_missed", rx_missed),
        ("port", "rx_errors", rx_errors),
        ("port", "rx_no_mbuf", rx_no_mbuf),
        ("port", "tx_frames", tx_frames),
        ("port", "tx_bytes", tx_bytes),
        ("port", "tx_errors", tx_errors),
    ]);
    rows.extend(worker_rows(&s.worker));
    rows.retain(|r| r.2 > 0);
    rows
}

/// Lists every counter of the worker that is not zero.
pub(crate) fn of_worker(s: &WorkerSnapshot) -> String {
    show(worker_rows(s))
}

fn worker_rows(s: &WorkerSnapshot) -> Vec<Row> {
    let mut rows = Vec::new();
    s.for_each(|group, name, _, value| rows.push((group, name, value)));
    // The number and the time of polls say nothing about a run, whose driver polls as it likes.
    rows.retain(|r| !["polls", "busy_polls", "busy_ns"].contains(&r.1));
    rows
}

fn show(rows: Vec<Row>) -> String {
    let rows = rows.into_iter().filter(|r| r.2 > 0);
    let rows = rows.map(|(part, name, value)| vec![part.into(), name.into(), value.to_string()]);
    align(&["part", "counter", "value"], rows, 2)
}
