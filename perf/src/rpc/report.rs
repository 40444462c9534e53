//! The results of the rounds of a procedure, size and version.
//!
//! # JSON
//!
//! The runs of a [`Document`](crate::document::Document) of calls:
//!
//! * `op`: `"rpc"`;
//! * `call`: `"echo"`, `"get"` or `"put"`;
//! * `version`: the version of RPC-over-RDMA that the connections used;
//! * `private_data`: whether the client sent private data; only version 1 needs it;
//! * `mode`, `size`, `qps`, `depth`, `mtu`, `crc`, `wire`, `lcores`, `seconds`, `bytes`, `ops`,
//!   `gbit_per_s`, `mops_per_s`, `latency_ns`, `verified`: as for [other
//!   operations](crate::report), from the round with the median `ratio`; bytes are those of the
//!   item, in one direction;
//! * `per_call`: the work of the client's transport per call, from the first call on: `sends`,
//!   `registrations`, `invalidations` (its own), `remote_invalidations` (by the server's reply);
//! * `rounds`: the number of rounds;
//! * `ratio`: calls per second divided by raw operations per second of the same round: `median`,
//!   `min` and `max` of the rounds; null without a raw operation;
//! * `raw`: the raw operation in the round of the median; null without a raw operation.

use heddle_base::units::Size;
use heddle_rpc::Counters;
use heddle_services::bench::Mode;
use heddle_services::rpc::program::Call;
use serde::{Deserialize, Serialize};

use super::RpcRun;
use super::load::LoadOutcome;
use crate::embedded::crc_of;
use crate::latency::Latency;
use crate::report::{BenchReport, Summary, align};
use crate::spec::{BenchSpec, Wire};

/// The work of a client's transport per call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the module's table says it all")]
pub struct Work {
    pub sends: f64,
    pub registrations: f64,
    pub invalidations: f64,
    pub remote_invalidations: f64,
}

/// A round of a benchmark.
#[derive(Clone, Debug)]
pub struct Round {
    /// The figures of the calls.
    pub load: LoadOutcome,
    /// The raw operation just before the calls.
    pub raw: Option<BenchReport>,
}

/// Median, minimum and maximum of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Ratio {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// The outcome of one procedure, size and version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the module's table says it all")]
pub struct RpcReport {
    pub op: String,
    pub call: Call,
    pub version: u32,
    pub private_data: bool,
    pub mode: Mode,
    pub size: u32,
    pub qps: u32,
    pub depth: u32,
    pub mtu: u16,
    pub crc: bool,
    pub wire: Wire,
    pub lcores: Vec<usize>,
    pub seconds: f64,
    pub bytes: u64,
    pub ops: u64,
    pub gbit_per_s: f64,
    pub mops_per_s: f64,
    pub latency_ns: Latency,
    pub verified: bool,
    pub per_call: Work,
    pub rounds: usize,
    pub ratio: Option<Ratio>,
    pub raw: Option<BenchReport>,
}

impl Round {
    fn per_second(&self) -> f64 {
        let seconds = self.load.outcome.elapsed.as_secs_f64();
        if seconds > 0.0 { self.load.outcome.ops as f64 / seconds } else { 0.0 }
    }

    /// Returns the spreads of the figures of rounds with items of `size` bytes.
    pub fn summary(rounds: &[Round], size: u32) -> Summary {
        let figures = |round: &Round| {
            let calls = round.per_second();
            (calls * f64::from(size) * 8e-9, calls * 1e-6, round.load.outcome.latency())
        };
        Summary::of(&rounds.iter().map(figures).collect::<Vec<_>>())
    }

    fn ratio(&self) -> Option<f64> {
        let raw = self.raw.as_ref().map(|raw| raw.ops as f64 / raw.seconds)?;
        (raw > 0.0).then(|| self.per_second() / raw)
    }
}

impl RpcReport {
    /// Makes a report of rounds of the same benchmark; `None` without rounds.
    pub fn of(
        spec: &BenchSpec,
        what: &RpcRun,
        wire: Wire,
        lcores: &[usize],
        mut rounds: Vec<Round>,
    ) -> Option<RpcReport> {
        // Rounds with a ratio sort by the ratio; rounds without a raw operation sort by their own
        // rate.
        let key = |round: &Round| round.ratio().unwrap_or_else(|| round.per_second());
        rounds.sort_by(|a, b| key(a).total_cmp(&key(b)));
        let (first, last) = (rounds.first()?, rounds.last()?);
        let middle = rounds.get((rounds.len() - 1) / 2)?;
        let ratio = match (first.ratio(), middle.ratio(), last.ratio()) {
            (Some(min), Some(median), Some(max)) => Some(Ratio { median, min, max }),
            _ => None,
        };
        let (run, outcome) = (&what.run, &middle.load.outcome);
        let bytes = outcome.ops * u64::from(run.size);
        let per_second = middle.per_second();
        Some(RpcReport {
            op: "rpc".into(),
            call: what.call,
            version: middle.load.version,
            private_data: what.private_data,
            mode: run.mode,
            size: run.size,
            qps: run.qps,
            depth: run.depth,
            mtu: spec.mtu,
            crc: crc_of(&run.mpa, wire),
            wire,
            lcores: lcores.to_vec(),
            seconds: outcome.elapsed.as_secs_f64(),
            bytes,
            ops: outcome.ops,
            gbit_per_s: per_second * f64::from(run.size) * 8e-9,
            mops_per_s: per_second * 1e-6,
            latency_ns: outcome.latency(),
            verified: outcome.verified,
            per_call: middle.load.work,
            rounds: rounds.len(),
            ratio,
            raw: middle.raw.clone(),
        })
    }
}

impl Work {
    /// Returns the work per call of connections with these counters.
    pub fn of(counters: &[Counters]) -> Work {
        let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).sum::<u64>() as f64;
        let calls = sum(|c| c.replies_received).max(1.0);
        Work {
            sends: sum(|c| c.sends) / calls,
            registrations: sum(|c| c.registrations) / calls,
            invalidations: sum(|c| c.invalidations) / calls,
            remote_invalidations: sum(|c| c.remote_invalidations) / calls,
        }
    }
}

/// Returns a table for people, with one line per report; the text ends in a line feed.
pub fn table(reports: &[RpcReport]) -> String {
    let head = [
        "call",
        "version",
        "mode",
        "size",
        "qps",
        "depth",
        "calls",
        "Gb/s",
        "Mcall/s",
        "p50 us",
        "p99 us",
        "reg",
        "inv",
        "remote inv",
        "raw",
        "raw Mop/s",
        "ratio",
        "of rounds",
        "verified",
    ];
    let rows = reports.iter().map(|r| {
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
        let none = || "-".to_owned();
        let raw = r.raw.as_ref();
        vec![
            r.call.to_string(),
            if r.private_data { r.version.to_string() } else { format!("{}-plain", r.version) },
            r.mode.to_string(),
            Size(r.size).to_string(),
            r.qps.to_string(),
            r.depth.to_string(),
            r.ops.to_string(),
            format!("{:.3}", r.gbit_per_s),
            format!("{:.4}", r.mops_per_s),
            us(r.latency_ns.p50),
            us(r.latency_ns.p99),
            format!("{:.1}", r.per_call.registrations),
            format!("{:.1}", r.per_call.invalidations),
            format!("{:.1}", r.per_call.remote_invalidations),
            raw.map_or_else(none, |raw| raw.op.to_string()),
            raw.map_or_else(none, |raw| format!("{:.4}", raw.mops_per_s)),
            r.ratio.map_or_else(none, |ratio| format!("{:.3}", ratio.median)),
            r.ratio.map_or_else(none, |ratio| format!("{:.3}..{:.3}", ratio.min, ratio.max)),
            if r.verified { "yes" } else { "-" }.into(),
        ]
    });
    align(&head, rows, 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    use heddle_rpc::Speaks;

    use crate::workload::Outcome;

    fn round(calls: u64, raw: Option<u64>) -> Round {
        let (spec, run) = spec();
        let outcome = |ops| Outcome { elapsed: Duration::from_secs(2), ops, ..Outcome::default() };
        let raw =
            raw.map(|ops| crate::embedded::report(&spec, &run.run, &outcome(ops), Wire::Ring));
        let work = Work::default();
        Round { load: LoadOutcome { outcome: outcome(calls), version: 2, work }, raw }
    }

    fn spec() -> (BenchSpec, RpcRun) {
        let spec = BenchSpec::default();
        let run = RpcRun::new(&spec, Call::Get, Speaks::BOTH, Size(1 << 10));
        (spec, run)
    }

    fn report(rounds: Vec<Round>) -> Option<RpcReport> {
        let (spec, run) = spec();
        RpcReport::of(&spec, &run, Wire::Ring, &[0, 1], rounds)
    }

    #[test]
    fn test_report_is_of_the_round_with_the_median_ratio() {
        let rounds = vec![round(500, Some(1000)), round(900, Some(1000)), round(400, Some(500))];
        let r = report(rounds).unwrap();
        assert_eq!((r.ops, r.raw.as_ref().map(|raw| raw.ops), r.rounds), (400, Some(500), 3));
        assert_eq!(r.ratio, Some(Ratio { median: 0.8, min: 0.5, max: 0.9 }));
        assert_eq!((r.seconds, r.bytes), (2.0, 400 << 10));
        assert!((r.mops_per_s - 0.0002).abs() < 1e-12, "{}", r.mops_per_s);
        assert_eq!(report(Vec::new()), None);
    }

    #[test]
    fn test_report_without_a_raw_operation_has_no_ratio() {
        let r = report(vec![round(5, None), round(9, None), round(7, None)]).unwrap();
        assert_eq!((r.ops, r.ratio, r.raw.clone()), (7, None, None));
        assert!(table(&[r]).contains("  -  "));
    }

    #[test]
    fn test_rpc_report_json_has_documented_fields_and_round_trips() {
        // Binary fractions represent this rate exactly: the JSON reader is exact only to the last
        // digit but one.
        let one = report(vec![round(15_625, Some(9))]).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        let v: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut names: Vec<&str> = v.as_object().unwrap().keys().map(String::as_str).collect();
        let mut documented: Vec<&str> = "op call version private_data mode size qps depth mtu \
            crc wire lcores seconds bytes ops gbit_per_s mops_per_s latency_ns verified per_call \
            rounds ratio raw"
            .split(' ')
            .collect();
        names.sort_unstable();
        documented.sort_unstable();
        assert_eq!(names, documented);
        assert_eq!((v["op"].as_str(), v["call"].as_str()), (Some("rpc"), Some("get")));
        assert_eq!(serde_json::from_str::<RpcReport>(&text).unwrap(), one);
    }

    #[test]
    fn test_work_is_for_each_call_over_all_connections() {
        let one = Counters { replies_received: 3, registrations: 6, ..Counters::default() };
        let two = Counters { replies_received: 1, sends: 4, ..Counters::default() };
        let work = Work::of(&[one, two]);
        assert_eq!((work.registrations, work.sends, work.invalidations), (1.5, 1.0, 0.0));
        assert_eq!(Work::of(&[]), Work::default());
    }
}
