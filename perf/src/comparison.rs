//! Two documents of results side by side.

use core::fmt;
use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::document::{Document, Point, ReadError, read};
use crate::report::{Summary, align};
use crate::stats::Spread;
use heddle_services::bench::Mode;

/// A figure of a point, and the direction in which it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Gbits,
    Mops,
    P50,
    P99,
}

impl Figure {
    const ALL: [Figure; 4] = [Figure::Gbits, Figure::Mops, Figure::P50, Figure::P99];

    /// Returns the figure that a mode measures, by which a point counts as a regression.
    fn of(mode: Mode) -> Figure {
        match mode {
            Mode::Bw => Figure::Gbits,
            Mode::Rate => Figure::Mops,
            Mode::Lat => Figure::P50,
        }
    }

    fn spread(self, s: &Summary) -> Spread {
        match self {
            Figure::Gbits => s.gbit_per_s,
            Figure::Mops => s.mops_per_s,
            Figure::P50 => s.p50_ns,
            Figure::P99 => s.p99_ns,
        }
    }

    fn is_time(self) -> bool {
        matches!(self, Figure::P50 | Figure::P99)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Figure::Gbits => "Gb/s",
            Figure::Mops => "Mop/s",
            Figure::P50 => "p50 us",
            Figure::P99 => "p99 us",
        })
    }
}

/// A figure in both documents.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    point: String,
    figure: Figure,
    a: Spread,
    b: Spread,
    runs: [usize; 2],
    /// True for the figure that the mode measures.
    main: bool,
}

/// The ratios of a figure: of the medians, and the smallest and largest that the runs allow.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
}

impl Row {
    /// Returns B's figure divided by A's; `None` where A's is 0.
    fn ratio(&self) -> Option<Ratio> {
        let (a, b) = (self.a, self.b);
        let positive = a.median > 0.0 && a.min > 0.0 && a.max > 0.0;
        positive.then(|| Ratio {
            median: b.median / a.median,
            min: b.min / a.max,
            max: b.max / a.min,
        })
    }

    /// Returns by how many percent B is worse than A; negative when it is better. A figure that has
    /// fallen to nothing, or a time without a measurement, is 100 % worse.
    fn worse(&self) -> Option<f64> {
        let ratio = self.ratio()?.median;
        Some(match self.figure.is_time() {
            true if ratio == 0.0 => 100.0,
            true => (ratio - 1.0) * 100.0,
            false => (1.0 - ratio) * 100.0,
        })
    }

    /// Returns true if the runs of A and B overlap, so that the difference may be noise.
    fn overlaps(&self) -> bool {
        self.a.min <= self.b.max && self.b.min <= self.a.max
    }
}

/// The comparison of two documents, A and B.
#[derive(Clone, Debug)]
pub struct Comparison {
    rows: Vec<Row>,
    notes: Vec<String>,
    /// Points that only one document has, with the document's name.
    alone: Vec<(String, &'static str)>,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A document could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The documents are of different cases.
    #[error("{0} and {1} have no operation, mode and size in common")]
    NothingInCommon(String, String),
}

impl Comparison {
    /// Compares the documents in two files.
    ///
    /// # Errors
    /// [`CompareError`].
    pub fn of_files(a: &Path, b: &Path) -> Result<Comparison, CompareError> {
        let found = Comparison::of(&read(a)?, &read(b)?);
        if found.rows.is_empty() {
            let name = |path: &Path| path.display().to_string();
            return Err(CompareError::NothingInCommon(name(a), name(b)));
        }
        Ok(found)
    }

    /// Compares two documents.
    pub fn of(a: &Document<IgnoredAny>, b: &Document<IgnoredAny>) -> Comparison {
        let find =
            |all: &[Point<IgnoredAny>], name: &str| all.iter().position(|p| p.name() == name);
        let (mut rows, mut alone) = (Vec::new(), Vec::new());
        for p in &a.results {
            let name = p.name();
            let Some(other) = find(&b.results, &name) else {
                alone.push((name, "A"));
                continue;
            };
            let q = &b.results[other];
            rows.extend(Figure::ALL.map(|figure| Row {
                point: name.clone(),
                figure,
                a: figure.spread(&p.summary),
                b: figure.spread(&q.summary),
                runs: [p.runs.len(), q.runs.len()],
                main: figure == Figure::of(p.mode),
            }));
        }
        for q in &b.results {
            if find(&a.results, &q.name()).is_none() {
                alone.push((q.name(), "B"));
            }
        }
        Comparison { rows, notes: differences(a, b), alone }
    }

    /// Returns the points that are worse in B by more than `percent`, one line each: by the figure
    /// that their mode measures, and points that B lacks.
    pub fn regressions(&self, percent: f64) -> Vec<String> {
        let mut all = Vec::new();
        for row in self.rows.iter().filter(|r| r.main) {
            let Some(worse) = row.worse().filter(|worse| *worse > percent) else { continue };
            let noise = if row.overlaps() { " (the runs overlap)" } else { "" };
            all.push(format!("{}: {} is {worse:.1} % worse{noise}", row.point, row.figure));
        }
        let lost = self.alone.iter().filter(|(_, side)| *side == "A");
        all.extend(lost.map(|(point, _)| format!("{point}: B does not have it")));
        all
    }

    /// Returns a table for people, with one line per figure; the text ends in a line feed.
    pub fn table(&self) -> String {
        let head = ["point", "figure", "A", "B", "B/A", "lowest", "highest", "runs", "", "overlap"];
        let rows = self.rows.iter().map(|r| {
            let unit = if r.figure.is_time() { 1e3 } else { 1.0 };
            let number = |v: f64| format!("{:.3}", v / unit);
            let ratio = r.ratio();
            let cell = |of: fn(Ratio) -> f64| ratio.map_or("-".into(), |x| format!("{:.3}", of(x)));
            let better = match r.worse() {
                Some(worse) if worse > 0.0 => format!("{worse:.1} % worse"),
                Some(worse) if worse < 0.0 => format!("{:.1} % better", -worse),
                _ => "-".into(),
            };
            vec![
                r.point.clone(),
                r.figure.to_string(),
                number(r.a.median),
                number(r.b.median),
                cell(|x| x.median),
                cell(|x| x.min),
                cell(|x| x.max),
                format!("{}/{}", r.runs[0], r.runs[1]),
                better,
                if r.overlaps() { "yes" } else { "no" }.into(),
            ]
        });
        let mut text = align(&head, rows, 2);
        let lines = self.notes.iter().cloned();
        let alone = self.alone.iter().map(|(point, side)| format!("only {side} has {point}"));
        for line in lines.chain(alone) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// Returns a line for each parameter and fact of the host in which the documents differ.
fn differences(a: &Document<IgnoredAny>, b: &Document<IgnoredAny>) -> Vec<String> {
    let mut all = Vec::new();
    let mut differ = |name: &str, a: &Value, b: &Value| {
        if a != b {
            all.push(format!("{name} differs: {a} in A, {b} in B"));
        }
    };
    differ("version", &a.heddle.clone().into(), &b.heddle.clone().into());
    let host = |d: &Document<IgnoredAny>| serde_json::to_value(&d.host).unwrap_or_default();
    let (ours, theirs) = (host(a), host(b));
    for fact in ["name", "kernel", "processor", "processors", "usable_processors"] {
        differ(fact, &ours[fact], &theirs[fact]);
    }
    let mut names: Vec<&String> = a.parameters.keys().chain(b.parameters.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let none = Value::Null;
    for name in names {
        let of = |d: &'_ Document<IgnoredAny>| d.parameters.get(name).unwrap_or(&none).clone();
        differ(name, &of(a), &of(b));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    use crate::document::tests::{document, report};
    use crate::report::BenchReport;

    fn run(size: u32, gbit_per_s: f64) -> BenchReport {
        BenchReport { gbit_per_s, ..report(size) }
    }

    fn file(dir: &Path, name: &str, runs: Vec<Vec<BenchReport>>) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, document(runs).to_json().unwrap()).unwrap();
        path
    }

    #[test]
    fn test_comparison_has_ratios_with_the_spread_of_the_runs() {
        let dir = tempfile::tempdir().unwrap();
        let a = file(dir.path(), "a", vec![vec![run(8, 10.0), run(8, 8.0), run(8, 12.0)]]);
        let b = file(dir.path(), "b", vec![vec![run(8, 5.0), run(8, 4.0), run(8, 6.0)]]);
        let c = Comparison::of_files(&a, &b).unwrap();
        let row = &c.rows[0];
        let want = Ratio { median: 0.5, min: 4.0 / 12.0, max: 6.0 / 8.0 };
        assert_eq!((row.figure, row.ratio()), (Figure::Gbits, Some(want)));
        assert_eq!((row.worse(), row.overlaps(), row.runs), (Some(50.0), false, [3, 3]));
        let text = c.table();
        assert!(text.contains("0.500") && text.contains("50.0 % worse"), "{text}");
        assert_eq!(c.regressions(50.0), Vec::<String>::new());
        assert_eq!(c.regressions(49.9), ["write bw 8: Gb/s is 50.0 % worse"]);
        // The other way round it is better.
        let back = Comparison::of_files(&b, &a).unwrap();
        assert_eq!(back.regressions(0.0), Vec::<String>::new());
        assert!(back.table().contains("100.0 % better"));
    }

    #[test]
    fn test_comparison_of_latencies_counts_longer_as_worse() {
        let lat = |p50| {
            let mut r = BenchReport { mode: Mode::Lat, ..report(8) };
            r.latency_ns.p50 = p50;
            vec![vec![r]]
        };
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (file(dir.path(), "a", lat(1000)), file(dir.path(), "b", lat(1300)));
        let c = Comparison::of_files(&a, &b).unwrap();
        assert_eq!(c.regressions(29.0), ["write lat 8: p50 us is 30.0 % worse"]);
        assert_eq!(c.regressions(31.0), Vec::<String>::new());
        let zero = Comparison::of_files(&file(dir.path(), "z", lat(0)), &b).unwrap();
        assert_eq!(zero.rows[2].ratio(), None, "nothing to divide by");
        assert!(zero.table().contains("  -  "));
    }

    #[test]
    fn test_point_that_b_lacks_is_a_regression() {
        let dir = tempfile::tempdir().unwrap();
        let a = file(dir.path(), "a", vec![vec![run(8, 1.0)], vec![run(16, 1.0)]]);
        let b = file(dir.path(), "b", vec![vec![run(8, 1.0)], vec![run(32, 1.0)]]);
        let c = Comparison::of_files(&a, &b).unwrap();
        assert_eq!(c.regressions(5.0), ["write bw 16: B does not have it"]);
        let text = c.table();
        assert!(text.contains("only A has write bw 16\nonly B has write bw 32\n"), "{text}");
        let other = file(dir.path(), "c", vec![vec![run(64, 1.0)]]);
        let e = Comparison::of_files(&a, &other).unwrap_err().to_string();
        assert!(e.contains("in common"), "{e}");
    }

    #[test]
    fn test_comparison_names_differing_parameters() {
        let d = |mtu: u32| {
            let mut d = document(vec![vec![report(8)]]);
            d.parameters.insert("mtu".into(), mtu.into());
            let json = d.to_json().unwrap();
            serde_json::from_str::<Document<IgnoredAny>>(&json).unwrap()
        };
        let text = Comparison::of(&d(1500), &d(9000)).table();
        assert!(text.contains("mtu differs: 1500 in A, 9000 in B\n"), "{text}");
        assert!(!Comparison::of(&d(1500), &d(1500)).table().contains("differs"));
    }
}
