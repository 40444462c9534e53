//! The results of a command: everything that was measured, with what and where.
//!
//! `docs/guide/bench.md` documents each field of the JSON, with its unit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use heddle_services::bench::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::host::Host;
use crate::report::{BenchReport, Summary};
use crate::rpc::report::RpcReport;
use crate::usage::Usage;

/// The value of the field `format`.
pub const FORMAT: &str = "heddle-bench";

/// The version of the document's fields. A change that a reader has to know about increases it.
pub const SCHEMA: u32 = 1;

/// The longest document that is read, in bytes.
const LONGEST: u64 = 256 << 20;

/// The results of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct Document<R> {
    pub format: String,
    pub schema: u32,
    pub heddle: String,
    pub started: String,
    pub wall_seconds: f64,
    pub processor: Usage,
    pub host: Host,
    pub command_line: Vec<String>,
    pub parameters: serde_json::Map<String, Value>,
    pub results: Vec<Point<R>>,
    pub warnings: Vec<String>,
}

/// The runs of one operation and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/guide/bench.md says it all")]
pub struct Point<R> {
    pub op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_data: Option<bool>,
    pub mode: Mode,
    pub size: u32,
    pub summary: Summary,
    pub runs: Vec<R>,
}

impl<R> Point<R> {
    /// Returns the words that name the point among the others of a document.
    pub fn name(&self) -> String {
        let size = heddle_base::units::Size(self.size);
        let mut name = self.op.clone();
        if let (Some(call), Some(version)) = (&self.call, self.version) {
            let plain = if self.private_data == Some(false) { "-plain" } else { "" };
            name = format!("{name} {call} v{version}{plain}");
        }
        format!("{name} {} {size}", self.mode)
    }
}

impl Point<BenchReport> {
    /// Makes a point of runs of the same operation and size; `None` without runs.
    pub fn of(runs: Vec<BenchReport>) -> Option<Point<BenchReport>> {
        let first = runs.first()?;
        let figures: Vec<_> =
            runs.iter().map(|r| (r.gbit_per_s, r.mops_per_s, r.latency_ns)).collect();
        Some(Point {
            op: first.op.to_string(),
            call: None,
            version: None,
            private_data: None,
            mode: first.mode,
            size: first.size,
            summary: Summary::of(&figures),
            runs,
        })
    }
}

impl Point<RpcReport> {
    /// Makes a point of the rounds of a procedure and size, of which `report` is the median.
    pub fn of_rpc(report: RpcReport, summary: Summary) -> Point<RpcReport> {
        Point {
            op: report.op.clone(),
            call: Some(report.call.to_string()),
            version: Some(report.version),
            private_data: Some(report.private_data),
            mode: report.mode,
            size: report.size,
            summary,
            runs: vec![report],
        }
    }
}

/// The kinds of runs that a document may hold.
pub trait Measured: Serialize {
    /// Returns the cells of the run in a table of values separated by commas, by the names of
    /// [`COLUMNS`]; a name that is absent has no value.
    fn cells(&self) -> Vec<(&'static str, String)>;

    /// Returns the report, if the run is of an operation and not of calls.
    fn bench(&self) -> Option<&BenchReport>;
}

/// The columns of [`Document::to_csv`].
pub const COLUMNS: [&str; 41] = [
    "op",
    "call",
    "version",
    "mode",
    "size",
    "repetition",
    "qps",
    "depth",
    "mtu",
    "crc",
    "wire",
    "seconds",
    "bytes",
    "ops",
    "rate_ops_per_s",
    "due_ops",
    "gbit_per_s",
    "mops_per_s",
    "latency_kind",
    "latency_from",
    "min_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "retransmits",
    "fast_retransmits",
    "timeouts",
    "tail_probes",
    "spurious_retransmits",
    "drops",
    "user_seconds",
    "system_seconds",
    "sides",
    "ratio",
    "verified",
    "reverse_seconds",
    "reverse_ops",
    "reverse_gbit_per_s",
    "reverse_mops_per_s",
];

/// Returns the JSON name of a unit variant.
fn word<T: Serialize>(v: T) -> String {
    let value = serde_json::to_value(v).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

macro_rules! cells {
    ($r:expr, $($name:ident),*) => { vec![$((stringify!($name), $r.$name.to_string())),*] };
}

fn latency_cells(l: &crate::latency::Latency) -> [(&'static str, String); 6] {
    [
        ("min_ns", l.min),
        ("p50_ns", l.p50),
        ("p90_ns", l.p90),
        ("p99_ns", l.p99),
        ("p999_ns", l.p999),
        ("max_ns", l.max),
    ]
    .map(|(name, ns)| (name, ns.to_string()))
}

impl Measured for BenchReport {
    fn cells(&self) -> Vec<(&'static str, String)> {
        let mut all = cells!(
            self,
            op,
            mode,
            size,
            qps,
            depth,
            mtu,
            crc,
            wire,
            seconds,
            bytes,
            ops,
            gbit_per_s,
            mops_per_s,
            retransmits,
            fast_retransmits,
            timeouts,
            tail_probes,
            spurious_retransmits,
            drops,
            sides,
            verified
        );
        all.extend(latency_cells(&self.latency_ns));
        all.push(("latency_kind", word(self.latency_kind)));
        all.push(("latency_from", word(self.latency_from)));
        all.extend(self.rate_ops_per_s.map(|rate| ("rate_ops_per_s", rate.to_string())));
        all.extend(self.due_ops.map(|due| ("due_ops", due.to_string())));
        if let Some(r) = &self.reverse {
            all.push(("reverse_seconds", r.seconds.to_string()));
            all.push(("reverse_ops", r.ops.to_string()));
            all.push(("reverse_gbit_per_s", r.gbit_per_s.to_string()));
            all.push(("reverse_mops_per_s", r.mops_per_s.to_string()));
        }
        all.push(("user_seconds", self.processor.user_seconds.to_string()));
        all.push(("system_seconds", self.processor.system_seconds.to_string()));
        all
    }

    fn bench(&self) -> Option<&BenchReport> {
        Some(self)
    }
}

impl Measured for RpcReport {
    fn cells(&self) -> Vec<(&'static str, String)> {
        let mut all = cells!(
            self, op, call, version, mode, size, qps, depth, mtu, crc, wire, seconds, bytes, ops,
            gbit_per_s, mops_per_s, verified
        );
        all.extend(latency_cells(&self.latency_ns));
        all.extend(self.ratio.map(|ratio| ("ratio", ratio.median.to_string())));
        all
    }

    fn bench(&self) -> Option<&BenchReport> {
        None
    }
}

/// A command that measures, from its start.
#[derive(Debug)]
pub struct Started {
    at: SystemTime,
    clock: Instant,
    used: Usage,
}

impl Started {
    /// Notes the time and the processor time of now.
    pub fn now() -> Started {
        Started { at: SystemTime::now(), clock: Instant::now(), used: Usage::of_process() }
    }

    /// Makes the document of the results.
    pub fn document<R: Measured>(
        &self,
        parameters: serde_json::Map<String, Value>,
        results: Vec<Point<R>>,
    ) -> Document<R> {
        let warn = |p: &Point<R>| {
            let bench = p.runs.iter().filter_map(Measured::bench);
            let texts = bench.flat_map(|r| r.warnings.clone());
            texts.map(|text| format!("{}: {text}", p.name())).collect::<Vec<_>>()
        };
        Document {
            format: FORMAT.into(),
            schema: SCHEMA,
            heddle: env!("CARGO_PKG_VERSION").into(),
            // A time beyond the year 9999 has no text.
            started: OffsetDateTime::from(self.at).format(&Rfc3339).unwrap_or_default(),
            wall_seconds: self.clock.elapsed().as_secs_f64(),
            processor: Usage::of_process().since(self.used),
            host: Host::read(),
            command_line: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            parameters,
            warnings: results.iter().flat_map(warn).collect(),
            results,
        }
    }
}

impl<R: Measured> Document<R> {
    /// Returns the document as JSON.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Returns a line of names ([`COLUMNS`]), and a line of values for each run. Values are numbers
    /// and single words, so nothing is quoted.
    pub fn to_csv(&self) -> String {
        let mut text = COLUMNS.join(",");
        text.push('\n');
        for point in &self.results {
            for (n, run) in point.runs.iter().enumerate() {
                let mut cells = run.cells();
                cells.push(("repetition", (n + 1).to_string()));
                let cell = |name: &&str| {
                    let found = cells.iter().find(|(n, _)| n == name);
                    found.map_or("", |(_, value)| value.as_str())
                };
                text.push_str(&COLUMNS.iter().map(cell).collect::<Vec<_>>().join(","));
                text.push('\n');
            }
        }
        text
    }
}

/// Why a file is not a document that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{}: longer than {LONGEST} bytes, so not a report of heddle bench", path.display())]
    Long {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is not JSON.
    #[error("{}: not JSON: {source}", path.display())]
    Json {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The file is JSON of another kind.
    #[error("{}: not a report of heddle bench (--json writes them)", path.display())]
    Other {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is a report with other fields.
    #[error("{}: a report of schema version {found}; this heddle reads version {SCHEMA}", path.display())]
    Schema {
        /// The path of the file.
        path: PathBuf,
        /// The version in the file.
        found: Value,
    },
    /// A field of the report is absent or wrong.
    #[error("{}: a damaged report: {source}", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

/// Reads a document from a file.
///
/// # Errors
/// [`ReadError`] for whatever is not a document of this schema version.
pub fn read<R: DeserializeOwned>(path: &Path) -> Result<Document<R>, ReadError> {
    let path = path.to_owned();
    let mut text = Vec::new();
    let file = File::open(&path).and_then(|f| f.take(LONGEST + 1).read_to_end(&mut text));
    if let Err(source) = file {
        return Err(ReadError::File { path, source });
    }
    if text.len() as u64 > LONGEST {
        return Err(ReadError::Long { path });
    }
    let value: Value = match serde_json::from_slice(&text) {
        Ok(value) => value,
        Err(source) => return Err(ReadError::Json { path, source }),
    };
    if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
        return Err(ReadError::Other { path });
    }
    let found = value.get("schema").cloned().unwrap_or_default();
    if found.as_u64() != Some(SCHEMA.into()) {
        return Err(ReadError::Schema { path, found });
    }
    serde_json::from_value(value).map_err(|source| ReadError::Damaged { path, source })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use heddle_services::bench::Op;
    use serde::de::IgnoredAny;

    use crate::latency::{Latency, Step};
    use crate::report::{IntervalReport, LatencyFrom, LatencyKind, ReverseReport, WorkerShare};
    use crate::spec::Wire;

    /// A report with a value in every field.
    pub(crate) fn report(size: u32) -> BenchReport {
        let latency_ns =
            Latency { min: 900, p50: 1500, p90: 2000, p99: 3000, p999: 4000, max: 5000, count: 0 };
        let usage = Usage { user_seconds: 1.5, system_seconds: 0.25 };
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
            warmup_seconds: 0.5,
            seconds: 2.0,
            bytes: 1 << 30,
            ops: 16384,
            rate_ops_per_s: None,
            due_ops: None,
            gbit_per_s: 4.294967296,
            mops_per_s: 0.008192,
            latency_kind: LatencyKind::Completion,
            latency_from: LatencyFrom::Post,
            latency_ns,
            latency_steps: vec![Step { ns: 1500, count: 12_000 }, Step { ns: 5000, count: 4384 }],
            intervals: vec![IntervalReport {
                start_seconds: 0.0,
                end_seconds: 1.0,
                ops: 8192,
                bytes: 1 << 29,
                gbit_per_s: 4.0,
                mops_per_s: 0.008,
                latency_ns,
                retransmits: Some(2),
            }],
            retransmits: 0,
            fast_retransmits: 0,
            timeouts: 0,
            tail_probes: 0,
            spurious_retransmits: 0,
            drops: 3,
            processor: usage,
            workers: vec![WorkerShare {
                side: "client".into(),
                lcore: Some(0),
                connections: 1,
                tx_bytes: 5,
                rx_bytes: 6,
                retransmits: 0,
                processor: Some(usage),
            }],
            counters: BTreeMap::from([(
                "client".to_owned(),
                BTreeMap::from([("rnic_tx_fpdus".to_owned(), 7)]),
            )]),
            verified: true,
            reverse: Some(ReverseReport {
                seconds: 1.9,
                ops: 100,
                bytes: 100 * u64::from(size),
                gbit_per_s: 3.5,
                mops_per_s: 0.007,
            }),
            warnings: vec!["something <b>odd</b> & \"quoted\"".into()],
        }
    }

    pub(crate) fn document(runs: Vec<Vec<BenchReport>>) -> Document<BenchReport> {
        let parameters = serde_json::json!({ "op": "write" });
        let parameters = parameters.as_object().cloned().unwrap_or_default();
        Started::now().document(parameters, runs.into_iter().filter_map(Point::of).collect())
    }

    fn keys(v: &Value, all: &mut Vec<String>) {
        match v {
            Value::Object(map) => {
                for (name, value) in map {
                    all.push(name.clone());
                    // Names of parameters and counters are no fields.
                    if name != "counters" && name != "parameters" {
                        keys(value, all);
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|v| keys(v, all)),
            _ => {}
        }
    }

    #[test]
    fn test_guide_documents_every_field_of_json() {
        let text = document(vec![vec![report(8)]]).to_json().unwrap();
        let (mut names, guide) = (Vec::new(), include_str!("../../docs/guide/bench.md"));
        keys(&serde_json::from_str(&text).unwrap(), &mut names);
        assert!(names.len() > 60, "{names:?}");
        for name in names {
            assert!(guide.contains(&format!("`{name}`")), "docs/guide/bench.md lacks `{name}`");
        }
        for name in COLUMNS {
            assert!(guide.contains(&format!("`{name}`")), "docs/guide/bench.md lacks `{name}`");
        }
    }

    #[test]
    fn test_document_says_when_and_where_it_was_made() {
        let d = document(vec![vec![report(8)]]);
        assert_eq!((d.format.as_str(), d.schema), ("heddle-bench", 1));
        assert!(d.started.ends_with('Z') && d.started.contains('T'), "{}", d.started);
        assert!(d.started.len() >= 20 && d.started.starts_with("20"), "{}", d.started);
        assert_eq!(d.heddle, env!("CARGO_PKG_VERSION"));
        assert!(!d.host.kernel.is_empty() && !d.command_line.is_empty());
        assert_eq!(d.warnings, ["write bw 8: something <b>odd</b> & \"quoted\""]);
    }

    #[test]
    fn test_json_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let d = document(vec![vec![report(1), report(1)], vec![report(2)]]);
        std::fs::write(&path, d.to_json().unwrap()).unwrap();
        let back: Document<BenchReport> = read(&path).unwrap();
        assert_eq!(back.results, d.results);
        assert_eq!(back.results[0].runs.len(), 2);
    }

    #[test]
    fn test_read_refuses_whatever_is_not_a_report_of_this_schema() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read::<IgnoredAny>(&path).unwrap_err().to_string()
        };
        assert!(error("").contains("not JSON"));
        assert!(error("\u{0}\u{1}").contains("not JSON"));
        assert!(error(&"[".repeat(100_000)).contains("not JSON"), "deep nesting");
        assert!(error("[]").contains("not a report"));
        assert!(error("{\"op\": \"write\", \"gbit_per_s\": 3}").contains("not a report"));
        let e = error("{\"format\": \"heddle-bench\", \"schema\": 99}");
        assert!(e.contains("schema version 99; this heddle reads version 1"), "{e}");
        assert!(error("{\"format\": \"heddle-bench\"}").contains("schema version null"));
        let e = error("{\"format\": \"heddle-bench\", \"schema\": 1}");
        assert!(e.contains("damaged report: missing field"), "{e}");
        let e = read::<IgnoredAny>(&dir.path().join("none")).unwrap_err().to_string();
        assert!(e.starts_with("cannot read ") && e.contains("No such file"), "{e}");
    }

    #[test]
    fn test_csv_has_a_row_for_each_run_under_one_header() {
        let mut rated = report(2);
        (rated.rate_ops_per_s, rated.due_ops) = (Some(1000.0), Some(2000));
        let text = document(vec![vec![report(1), report(1)], vec![rated]]).to_csv();
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
        assert_eq!((rows.len(), &rows[0][..]), (4, &COLUMNS[..]));
        assert!(rows.iter().all(|r| r.len() == COLUMNS.len()), "{text}");
        let cell =
            |row: usize, name: &str| rows[row][COLUMNS.iter().position(|c| *c == name).unwrap()];
        assert_eq!((cell(1, "repetition"), cell(2, "repetition")), ("1", "2"));
        assert_eq!((cell(3, "size"), cell(3, "due_ops"), cell(1, "due_ops")), ("2", "2000", ""));
        assert_eq!((cell(1, "gbit_per_s"), cell(1, "p99_ns")), ("4.294967296", "3000"));
        assert_eq!((cell(1, "latency_kind"), cell(1, "call")), ("completion", ""));
    }
}
