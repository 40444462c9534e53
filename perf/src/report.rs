//! The results of a run, for programs and for people.
//!
//! `docs/guide/bench.md` has the name, unit and meaning of each field; a test compares it with what
//! [`Document`](crate::document::Document) writes. A comparison of bytes that fails is an error of
//! the run, not a report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use heddle_base::units::Size;
use heddle_services::bench::{Mode, Op};
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, Step};
use crate::spec::{BenchSpec, Wire};
use crate::stats::{Rounds, Spread};
use crate::usage::Usage;
use crate::workload::{Interval, ReverseOutcome, Run};

/// The time that a latency is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyKind {
    /// From posting an operation to its completion.
    Completion,
    /// From posting a message to the answer of the same size.
    RoundTrip,
    /// Half of the round trip, as perftest reports it.
    HalfRoundTrip,
}

impl LatencyKind {
    /// Returns the kind of the latencies of a run.
    pub fn of(op: Op, mode: Mode, half: bool) -> LatencyKind {
        match (mode, half) {
            (Mode::Lat, _) if op.is_answered() => LatencyKind::Completion,
            (Mode::Lat, true) => LatencyKind::HalfRoundTrip,
            (Mode::Lat, false) => LatencyKind::RoundTrip,
            (Mode::Bw | Mode::Rate, _) => LatencyKind::Completion,
        }
    }

    /// Returns the words for people.
    pub fn words(self) -> &'static str {
        match self {
            LatencyKind::Completion => "posting to completion",
            LatencyKind::RoundTrip => "full round trips",
            LatencyKind::HalfRoundTrip => "half round trips",
        }
    }
}

/// The moment from which a latency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyFrom {
    /// The operation was posted.
    Post,
    /// The operation was due, by the schedule of a fixed rate.
    Due,
}

/// The outcome of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
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
    pub warmup_seconds: f64,
    pub seconds: f64,
    pub bytes: u64,
    pub ops: u64,
    pub rate_ops_per_s: Option<f64>,
    pub due_ops: Option<u64>,
    pub gbit_per_s: f64,
    pub mops_per_s: f64,
    pub latency_kind: LatencyKind,
    pub latency_from: LatencyFrom,
    pub latency_ns: Latency,
    pub latency_steps: Vec<Step>,
    pub intervals: Vec<IntervalReport>,
    pub retransmits: u64,
    pub fast_retransmits: u64,
    pub timeouts: u64,
    pub tail_probes: u64,
    pub spurious_retransmits: u64,
    pub drops: u64,
    pub processor: Usage,
    pub workers: Vec<WorkerShare>,
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
    pub verified: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<ReverseReport>,
    pub warnings: Vec<String>,
}

/// The figures of the server's operations in a bidirectional run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct ReverseReport {
    pub seconds: f64,
    pub ops: u64,
    pub bytes: u64,
    pub gbit_per_s: f64,
    pub mops_per_s: f64,
}

impl ReverseReport {
    /// Makes a report of operations with messages of `size` bytes.
    pub fn of(outcome: &ReverseOutcome, size: u32) -> ReverseReport {
        let ReverseOutcome { elapsed, ops } = *outcome;
        let (seconds, bytes) = (elapsed.as_secs_f64(), ops * u64::from(size));
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        ReverseReport {
            seconds,
            ops,
            bytes,
            gbit_per_s: per_second(bytes as f64 * 8e-9),
            mops_per_s: per_second(ops as f64 * 1e-6),
        }
    }
}

/// The work of one worker in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct WorkerShare {
    pub side: String,
    pub lcore: Option<usize>,
    pub connections: u64,
    pub tx_bytes: u64,
    pub rx_bytes: u64,
    pub retransmits: u64,
    pub processor: Option<Usage>,
}

/// The figures of one interval of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct IntervalReport {
    pub start_seconds: f64,
    pub end_seconds: f64,
    pub ops: u64,
    pub bytes: u64,
    pub gbit_per_s: f64,
    pub mops_per_s: f64,
    pub latency_ns: Latency,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
}

impl IntervalReport {
    /// Makes a report of an interval of a run with messages of `size` bytes.
    pub fn of(interval: &Interval, size: u32, kind: LatencyKind) -> IntervalReport {
        let seconds = (interval.end - interval.start).as_secs_f64();
        let bytes = interval.ops * u64::from(size);
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        IntervalReport {
            start_seconds: interval.start.as_secs_f64(),
            end_seconds: interval.end.as_secs_f64(),
            ops: interval.ops,
            bytes,
            gbit_per_s: per_second(bytes as f64 * 8e-9),
            mops_per_s: per_second(interval.ops as f64 * 1e-6),
            latency_ns: match kind {
                LatencyKind::HalfRoundTrip => interval.latency.halved(),
                LatencyKind::Completion | LatencyKind::RoundTrip => interval.latency,
            },
            retransmits: interval.retransmits,
        }
    }

    /// Returns a line for people, without a line feed.
    pub fn line(&self) -> String {
        let l = &self.latency_ns;
        let us = |ns: u64| ns as f64 / 1e3;
        let resent = self.retransmits.map_or_else(String::new, |n| format!("  {n:>6} retr"));
        format!(
            "[{:8.2}-{:8.2} s]  {:>12} ops  {:>10.3} Gb/s  {:>9.3} Mop/s  \
             p50 {:.2} us  p99 {:.2} us  max {:.2} us{resent}",
            self.start_seconds,
            self.end_seconds,
            self.ops,
            self.gbit_per_s,
            self.mops_per_s,
            us(l.p50),
            us(l.p99),
            us(l.max),
        )
    }
}

/// The spreads of the main figures over the repetitions of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct Summary {
    pub gbit_per_s: Spread,
    pub mops_per_s: Spread,
    pub p50_ns: Spread,
    pub p99_ns: Spread,
}

impl Summary {
    /// Returns the spreads of Gb/s, millions of operations per second, and latencies.
    pub fn of(figures: &[(f64, f64, Latency)]) -> Summary {
        let spread = |of: fn(&(f64, f64, Latency)) -> f64| {
            figures.iter().map(of).collect::<Rounds>().spread()
        };
        Summary {
            gbit_per_s: spread(|f| f.0),
            mops_per_s: spread(|f| f.1),
            p50_ns: spread(|f| f.2.p50 as f64),
            p99_ns: spread(|f| f.2.p99 as f64),
        }
    }
}

/// Returns the warnings about a run whose report is complete otherwise.
pub(crate) fn warnings(report: &BenchReport, spec: &BenchSpec) -> Vec<String> {
    let mut all = Vec::new();
    let lossless = !matches!(report.wire, Wire::Vdev | Wire::Socket) && spec.faults.is_none();
    if lossless && report.drops > 0 {
        all.push(format!(
            "{} frames were dropped for want of room, though the wire loses none: the figures have \
             their repair in them",
            report.drops
        ));
    } else if lossless && report.retransmits > 0 {
        all.push(format!(
            "{} segments were retransmitted, though the wire loses none: a thread lost its processor for a while, \
             and TCP took the silence for loss; give the benchmark idle processors",
            report.retransmits
        ));
    }
    if let Some(due) = report.due_ops
        && report.ops < due - due / 100
    {
        all.push(format!(
            "the rate was not reached: {} of {due} operations that were due completed",
            report.ops
        ));
    }
    all
}

/// Returns the number of operations that are due in `seconds`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(crate) fn due(run: &Run, seconds: f64) -> Option<u64> {
    run.rate.map(|rate| (rate * seconds).floor() as u64)
}

/// Returns a table for people, with one line per report; the text ends in a line feed.
pub fn table(reports: &[BenchReport]) -> String {
    let mut head = vec![
        "op", "mode", "size", "qps", "depth", "ops", "Gb/s", "Mop/s", "p50 us", "p99 us",
        "p99.9 us", "max us", "retx", "rto", "drops", "verified",
    ];
    let bidirectional = reports.iter().any(|r| r.reverse.is_some());
    if bidirectional {
        head.extend(["rev ops", "rev Gb/s", "sum Gb/s"]);
    }
    let rows = reports.iter().map(|r| {
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
        let l = &r.latency_ns;
        let mut row = vec![
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
        ];
        if let Some(reverse) = &r.reverse {
            row.extend([
                reverse.ops.to_string(),
                format!("{:.3}", reverse.gbit_per_s),
                format!("{:.3}", r.gbit_per_s + reverse.gbit_per_s),
            ]);
        }
        row
    });
    let mut text = align(&head, rows, 2);
    if reports.iter().any(|r| r.sides == 1) {
        text.push_str("retx, rto and drops are the client's alone\n");
    }
    if bidirectional {
        text.push_str(
            "rev: the operations of the server, which counts them; the others are the client's\n",
        );
    }
    if let Some(r) = reports.first() {
        let from = match r.latency_from {
            LatencyFrom::Post => "",
            LatencyFrom::Due => ", from the time at which the operation was due",
        };
        // A write to a string does not fail.
        let _ = writeln!(text, "latency: {}{from}", r.latency_kind.words());
    }
    text
}

/// Returns a table of the spreads of points with several runs, with one line per figure.
pub fn spreads<'a>(points: impl IntoIterator<Item = (String, &'a Summary, usize)>) -> String {
    let head = ["point", "figure", "runs", "median", "min", "max", "stddev"];
    let rows = points.into_iter().flat_map(|(name, s, runs)| {
        let us = |s: Spread| Spread {
            median: s.median / 1e3,
            min: s.min / 1e3,
            max: s.max / 1e3,
            stddev: s.stddev / 1e3,
        };
        let figures = [
            ("Gb/s", s.gbit_per_s),
            ("Mop/s", s.mops_per_s),
            ("p50 us", us(s.p50_ns)),
            ("p99 us", us(s.p99_ns)),
        ];
        figures.map(|(figure, s)| {
            let mut row = vec![name.clone(), figure.into(), runs.to_string()];
            row.extend([s.median, s.min, s.max, s.stddev].map(|v| format!("{v:.3}")));
            row
        })
    });
    align(&head, rows, 2)
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

    use crate::document::tests::report;

    fn forward(size: u32) -> BenchReport {
        BenchReport { reverse: None, ..report(size) }
    }

    #[test]
    fn test_lossless_wire_with_retransmissions_warns() {
        let spec = BenchSpec::default();
        let mut r = report(8);
        (r.drops, r.retransmits) = (0, 0);
        assert_eq!(warnings(&r, &spec), Vec::<String>::new());
        r.retransmits = 3;
        let text = warnings(&r, &spec).concat();
        assert!(text.starts_with("3 segments were retransmitted"), "{text}");
        r.wire = Wire::Loop;
        assert_eq!(warnings(&r, &spec).len(), 1);
        r.wire = Wire::Vdev;
        assert_eq!(warnings(&r, &spec), Vec::<String>::new(), "a device may lose");
        (r.wire, r.drops) = (Wire::Ring, 5);
        assert!(warnings(&r, &spec).concat().starts_with("5 frames were dropped"));
        let faults = crate::spec::Faults { loss: "1%".parse().unwrap(), ..spec.faults };
        assert_eq!(warnings(&r, &BenchSpec { faults, ..spec }), Vec::<String>::new());
    }

    #[test]
    fn test_rate_that_is_not_reached_warns() {
        let mut r = report(8);
        (r.drops, r.ops, r.due_ops) = (0, 990, Some(1000));
        assert_eq!(warnings(&r, &BenchSpec::default()), Vec::<String>::new());
        r.ops = 989;
        assert!(warnings(&r, &BenchSpec::default()).concat().contains("989 of 1000"));
    }

    #[test]
    fn test_latency_kind_follows_perftest() {
        let of = |op, half| LatencyKind::of(op, Mode::Lat, half);
        assert_eq!(of(Op::Write, true), LatencyKind::HalfRoundTrip);
        assert_eq!(of(Op::Send, false), LatencyKind::RoundTrip);
        assert_eq!(of(Op::Read, true), LatencyKind::Completion, "perftest halves no Read");
        assert_eq!(LatencyKind::of(Op::Write, Mode::Bw, false), LatencyKind::Completion);
    }

    #[test]
    fn test_spreads_have_a_line_for_each_figure() {
        let latency = |p50| Latency { p50, p99: 9000, ..Latency::default() };
        let s = Summary::of(&[(1.0, 2.0, latency(1000)), (3.0, 2.0, latency(3000))]);
        let text = spreads([("write bw 8".to_owned(), &s, 2)]);
        let cells = |n: usize| text.lines().nth(n).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(cells(1), ["write", "bw", "8", "Gb/s", "2", "2.000", "1.000", "3.000", "1.414"]);
        assert_eq!(cells(3)[4..], ["us", "2", "2.000", "1.000", "3.000", "1.414"]);
    }

    #[test]
    fn test_table_columns_line_up() {
        let t = table(&[forward(8), forward(64 << 20)]);
        let lines: Vec<&str> = t.lines().collect();
        assert_eq!(lines.len(), 4);
        let column = |l: &str, word: &str| l.find(word).map(|i| i + word.len());
        assert_eq!(column(lines[0], "size"), column(lines[1], " 8"));
        assert_eq!(column(lines[0], "size"), column(lines[2], "64M"));
        assert_eq!(column(lines[0], "Gb/s"), column(lines[2], "4.295"));
        assert!(lines.iter().all(|l| !l.ends_with(' ')), "{t}");
    }

    #[test]
    fn test_table_notes_losses_of_client_only() {
        let one = BenchReport { sides: 1, ..forward(8) };
        assert!(table(&[one]).contains("\nretx, rto and drops are the client's alone\n"));
        let two = table(&[forward(8)]);
        assert!(two.ends_with("\nlatency: posting to completion\n"), "{two}");
        assert_eq!(two.lines().count(), 3);
    }

    #[test]
    fn test_table_adds_up_both_directions() {
        let t = table(&[report(8), forward(16)]);
        let cells = |n: usize| t.lines().nth(n).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(cells(1)[16..], ["100", "3.500", "7.795"]);
        assert_eq!(cells(2).len(), 16, "this run had one direction");
        assert!(t.contains("\nrev: the operations of the server"), "{t}");
    }

    #[test]
    fn test_align_takes_short_rows_and_no_rows() {
        assert_eq!(align(&["a", "bb"], [], 1), "a  bb\n");
        assert_eq!(align(&["a", "bb"], [vec!["xyz".into()]], 1), "a    bb\nxyz\n");
    }
}
