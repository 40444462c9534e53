//! The results of a run, for programs and for people.
//!
//! # JSON
//!
//! [`write_json`] writes a file that holds one object for a run of one size, and an array of such
//! objects, in the order they were measured, for a run of several (`--sizes`):
//!
//! * `op`: `"write"`, `"read"` or `"send"`;
//! * `mode`: `"bw"`, `"lat"` or `"rate"`;
//! * `size`: bytes of a message;
//! * `qps`: connections;
//! * `depth`: operations outstanding per connection;
//! * `mtu`: bytes of the largest IP packet;
//! * `crc`: whether FPDUs carried a CRC-32C that the receiver checked;
//! * `wire`: `"ring"`: two ports of the process; `"vdev"`: a device;
//! * `lcores`: processors to which the polling threads were bound: those of client and server, or
//!   with `--connect` of the client; empty when one unbound thread did everything (`--inline`);
//! * `sides`: ends whose losses are known and counted below: 2, or 1 with `--connect`: the
//!   client's;
//! * `seconds`: measured time;
//! * `bytes`: payload bytes of the operations completed in this time;
//! * `ops`: operations completed in this time; for a ping-pong: round trips;
//! * `gbit_per_s`: 10^9 bits of payload per second;
//! * `mops_per_s`: 10^6 operations per second;
//! * `latency_ns`: `min`, `p50`, `p90`, `p99`, `p999`, `max`: posting to completion in nanoseconds,
//!   or the full round trip of a ping-pong;
//! * `retransmits`: TCP segments retransmitted by either of `sides`;
//! * `fast_retransmits`: times TCP found a loss from the peer's reports, by either of `sides`;
//! * `timeouts`: times TCP found a loss, or believed so, because the peer was silent, by either of
//!   `sides`;
//! * `tail_probes`: segments sent to learn whether the last ones were lost, by either of `sides`;
//! * `spurious_retransmits`: segments retransmitted although the first had arrived, by either of
//!   `sides`;
//! * `drops`: frames lost or refused, by either of `sides`, including those lost on purpose;
//! * `workers`: each worker of `sides`: `side` (`"client"`, `"server"`), `lcore` (or null),
//!   `connections` that the worker has opened and accepted so far, and in this run `tx_bytes`
//!   (bytes of FPDUs), `rx_bytes` (bytes of TCP payload) and `retransmits`;
//! * `verified`: true when the run compared every byte and all were right; false when the run
//!   compared none.
//!
//! A comparison that fails is an error of the run, not a report.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use heddle_base::units::Size;
use heddle_services::bench::{Mode, Op};
use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::spec::Wire;

/// The outcome of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the module's table says it all")]
pub struct BenchReport {
    pub op: Op,
    pub mode: Mode,
    pub size: u32,
    pub qps: u32,
    pub depth: u32,
    pub mtu: u16,
    pub crc: bool,
    pub wire: Wire,
    pub lcores: Vec<usize>,
    pub sides: u8,
    pub seconds: f64,
    pub bytes: u64,
    pub ops: u64,
    pub gbit_per_s: f64,
    pub mops_per_s: f64,
    pub latency_ns: Latency,
    pub retransmits: u64,
    pub fast_retransmits: u64,
    pub timeouts: u64,
    pub tail_probes: u64,
    pub spurious_retransmits: u64,
    pub drops: u64,
    #[serde(default)]
    pub workers: Vec<WorkerShare>,
    pub verified: bool,
}

/// The work of one worker in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the module's table says it all")]
pub struct WorkerShare {
    pub side: String,
    pub lcore: Option<usize>,
    pub connections: u64,
    pub tx_bytes: u64,
    pub rx_bytes: u64,
    pub retransmits: u64,
}

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The serializer failed.
    #[error("cannot make JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes `reports` to `path`, in the module's format.
pub fn write_json(path: &Path, reports: &[BenchReport]) -> Result<(), ReportError> {
    write_json_of(path, reports)
}

/// Writes one report as an object, several as an array.
pub(crate) fn write_json_of<R: Serialize>(path: &Path, reports: &[R]) -> Result<(), ReportError> {
    let mut text = match reports {
        [one] => serde_json::to_string_pretty(one)?,
        several => serde_json::to_string_pretty(several)?,
    };
    text.push('\n');
    fs::write(path, text).map_err(|source| ReportError::File { path: path.into(), source })
}

/// Returns a table for people, with one line per report; the text ends in a line feed.
pub fn table(reports: &[BenchReport]) -> String {
    let head = [
        "op", "mode", "size", "qps", "depth", "ops", "Gb/s", "Mop/s", "p50 us", "p99 us",
        "p99.9 us", "max us", "retx", "rto", "drops", "verified",
    ];
    let rows = reports.iter().map(|r| {
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
        let l = &r.latency_ns;
        vec![
            r.op.to_string(),
            r.mode.to_string(),
            Size(r.size).to_string(),
            r.qps.to_string(),
            r.depth.to_string(),
            r.ops.to_string(),
            format!("{:.3}", r.gbit_per_s),
            format!("{:.3}", r.mops_per_s),
            us(l.p50),
            us(l.p99),
            us(l.p999),
            us(l.max),
            r.retransmits.to_string(),
            r.timeouts.to_string(),
            r.drops.to_string(),
            if r.verified { "yes" } else { "-" }.into(),
        ]
    });
    let mut text = align(&head, rows, 2);
    if reports.iter().any(|r| r.sides == 1) {
        text.push_str("retx, rto and drops are the client's alone\n");
    }
    text
}

/// Formats columns as wide as their widest cell: the first `left` of them flush left, the others
/// flush right.
pub fn align(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>, left: usize) -> String {
    let mut all = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    all.extend(rows);
    let width = |c: usize| all.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &all {
        let mut line = String::new();
        for (c, (cell, &w)) in row.iter().zip(&widths).enumerate() {
            let gap = if c == 0 { "" } else { "  " };
            // A write to a string does not fail.
            let _ = if c < left {
                write!(line, "{gap}{cell:<w$}")
            } else {
                write!(line, "{gap}{cell:>w$}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(size: u32) -> BenchReport {
        BenchReport {
            op: Op::Write,
            mode: Mode::Bw,
            size,
            qps: 1,
            depth: 16,
            mtu: 1500,
            crc: true,
            wire: Wire::Ring,
            lcores: vec![0, 1],
            sides: 2,
            seconds: 2.0,
            bytes: 1 << 30,
            ops: 16384,
            gbit_per_s: 4.294967296,
            mops_per_s: 0.008192,
            latency_ns: Latency {
                min: 900,
                p50: 1500,
                p90: 2000,
                p99: 3000,
                p999: 4000,
                max: 5000,
                count: 9,
            },
            retransmits: 0,
            fast_retransmits: 0,
            timeouts: 0,
            tail_probes: 0,
            spurious_retransmits: 0,
            drops: 3,
            workers: Vec::new(),
            verified: true,
        }
    }

    #[test]
    fn test_json_of_one_is_an_object_with_the_documented_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        write_json(&path, &[report(65536)]).unwrap();
        let v: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut names: Vec<&str> = v.as_object().unwrap().keys().map(String::as_str).collect();
        let mut documented: Vec<&str> = "op mode size qps depth mtu crc wire lcores sides seconds bytes ops gbit_per_s mops_per_s latency_ns retransmits fast_retransmits timeouts tail_probes spurious_retransmits drops workers verified".split(' ').collect();
        names.sort_unstable();
        documented.sort_unstable();
        assert_eq!(names, documented);
        let mut quantiles: Vec<&str> =
            v["latency_ns"].as_object().unwrap().keys().map(String::as_str).collect();
        quantiles.sort_unstable();
        assert_eq!(quantiles, ["max", "min", "p50", "p90", "p99", "p999"]);
        assert_eq!((v["op"].as_str(), v["wire"].as_str()), (Some("write"), Some("ring")));
        assert_eq!((v["crc"].as_bool(), v["size"].as_u64()), (Some(true), Some(65536)));
    }

    #[test]
    fn test_json_of_several_is_an_array_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let mut two = [report(1), report(2)];
        write_json(&path, &two).unwrap();
        let back: Vec<BenchReport> =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for r in &mut two {
            r.latency_ns.count = 0;
        }
        assert_eq!(back, two);
    }

    #[test]
    fn test_json_into_a_directory_that_is_not_there_names_the_file() {
        let e = write_json(Path::new("/nonexistent/r.json"), &[report(1)]).unwrap_err();
        assert!(e.to_string().starts_with("cannot write /nonexistent/r.json: "), "{e}");
    }

    #[test]
    fn test_table_columns_line_up() {
        let t = table(&[report(8), report(64 << 20)]);
        let lines: Vec<&str> = t.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = |l: &str, word: &str| l.find(word).map(|i| i + word.len());
        assert_eq!(column(lines[0], "size"), column(lines[1], " 8"));
        assert_eq!(column(lines[0], "size"), column(lines[2], "64M"));
        assert_eq!(column(lines[0], "Gb/s"), column(lines[2], "4.295"));
        assert!(lines.iter().all(|l| !l.ends_with(' ')), "{t}");
    }

    #[test]
    fn test_table_notes_losses_of_client_only() {
        let one = BenchReport { sides: 1, ..report(8) };
        assert!(table(&[one]).ends_with("\nretx, rto and drops are the client's alone\n"));
        assert_eq!(table(&[report(8)]).lines().count(), 2);
    }

    #[test]
    fn test_align_takes_short_rows_and_no_rows() {
        assert_eq!(align(&["a", "bb"], [], 1), "a  bb\n");
        assert_eq!(align(&["a", "bb"], [vec!["xyz".into()]], 1), "a    bb\nxyz\n");
    }
}
