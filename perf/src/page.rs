//! The results of a command as a page of HTML that fetches nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::document::{Document, Measured, Point};
use crate::report::BenchReport;
use crate::stats::Spread;

mod plot;

use plot::{Axis, Chart, Curve};

const STYLE: &str = "body{font:14px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;\
color:#222}table{border-collapse:collapse;margin:1em 0}th,td{border:1px solid #ccc;padding:.2em .6em;\
text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}\
.warning{background:#fff3cd;border:1px solid #e0c36a;padding:.5em 1em}code{overflow-wrap:anywhere}\
figure{margin:1em 0}";

impl<R: Measured> Document<R> {
    /// Returns the document as a page of HTML with its plots inside. All texts are escaped, and the
    /// page refers to nothing outside.
    pub fn to_html(&self) -> String {
        let title = format!("heddle bench on {}", self.host.name);
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { (title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (title) }
                    (self.about())
                    @for warning in &self.warnings {
                        p.warning { strong { "Warning: " } (warning) }
                    }
                    h2 { "Results" }
                    (self.summary())
                    (self.sweep())
                    @for point in &self.results {
                        (section(point))
                    }
                    h2 { "Parameters" }
                    p { code { (self.command_line.join(" ")) } }
                    table {
                        @for (name, value) in &self.parameters {
                            tr { th { (name) } td { (text(value)) } }
                        }
                    }
                }
            }
        }
        .into_string()
    }

    /// Returns a table of host, time and processor time.
    fn about(&self) -> Markup {
        let host = &self.host;
        let rows = [
            ("Heddle", self.heddle.clone()),
            ("Started", self.started.clone()),
            ("Wall time", format!("{:.3} s", self.wall_seconds)),
            (
                "Processor time",
                format!(
                    "{:.3} s user, {:.3} s system",
                    self.processor.user_seconds, self.processor.system_seconds
                ),
            ),
            ("Host", host.name.clone()),
            ("Kernel", host.kernel.clone()),
            (
                "Processor",
                format!(
                    "{} ({} online, {} usable)",
                    host.processor, host.processors, host.usable_processors
                ),
            ),
        ];
        html! {
            table { @for (name, value) in rows { tr { th { (name) } td { (value) } } } }
        }
    }

    /// Returns a table of the main figures of each point.
    fn summary(&self) -> Markup {
        let spread = |s: Spread, unit: f64, runs: usize| {
            let v = |v: f64| v / unit;
            match runs {
                0 | 1 => format!("{:.3}", v(s.median)),
                _ => format!(
                    "{:.3} [{:.3}..{:.3}], sd {:.3}",
                    v(s.median),
                    v(s.min),
                    v(s.max),
                    v(s.stddev)
                ),
            }
        };
        html! {
            table {
                tr {
                    th { "Point" } th { "Runs" } th { "Gb/s" } th { "Mop/s" } th { "p50 µs" }
                    th { "p99 µs" }
                }
                @for p in &self.results {
                    tr {
                        th { (p.name()) }
                        td.n { (p.runs.len()) }
                        td.n { (spread(p.summary.gbit_per_s, 1.0, p.runs.len())) }
                        td.n { (spread(p.summary.mops_per_s, 1.0, p.runs.len())) }
                        td.n { (spread(p.summary.p50_ns, 1e3, p.runs.len())) }
                        td.n { (spread(p.summary.p99_ns, 1e3, p.runs.len())) }
                    }
                }
            }
        }
    }

    /// Returns the plots of figures against the size, if there are several sizes.
    fn sweep(&self) -> Markup {
        let mut kinds: Vec<String> = Vec::new();
        for name in self.results.iter().map(kind) {
            if !kinds.contains(&name) {
                kinds.push(name);
            }
        }
        let first = self.results.first().map(|p| p.size);
        if self.results.iter().all(|p| Some(p.size) == first) {
            return html! {};
        }
        let curves = |name: &str, of: &dyn Fn(&Point<R>) -> f64| {
            let of_kind = |k: &String| {
                let points = self.results.iter().filter(|p| kind(p) == *k);
                Curve {
                    name: format!("{k}{name}"),
                    points: points.map(|p| (f64::from(p.size.max(1)), of(p))).collect(),
                }
            };
            kinds.iter().map(of_kind).collect::<Vec<_>>()
        };
        let three = |of: fn(&Point<R>) -> Spread, unit: f64| {
            let mut all = curves("", &|p| of(p).median / unit);
            if self.results.iter().any(|p| p.runs.len() > 1) {
                all.extend(curves(", lowest", &|p| of(p).min / unit));
                all.extend(curves(", highest", &|p| of(p).max / unit));
            }
            all
        };
        let mut latency = curves(" p50", &|p| p.summary.p50_ns.median / 1e3);
        latency.extend(curves(" p99", &|p| p.summary.p99_ns.median / 1e3));
        let total = |p: &Point<R>, of: fn(&BenchReport) -> u64| {
            let runs = p.runs.iter().filter_map(Measured::bench);
            runs.map(of).sum::<u64>() as f64
        };
        let mut losses = curves(" retransmissions", &|p| total(p, |r| r.retransmits));
        losses.extend(curves(" drops", &|p| total(p, |r| r.drops)));
        let charts = [
            Chart::new(
                "Throughput",
                Axis::Size,
                Axis::Linear("Gb/s"),
                three(|p| p.summary.gbit_per_s, 1.0),
            ),
            Chart::new(
                "Rate",
                Axis::Size,
                Axis::Linear("Mop/s"),
                three(|p| p.summary.mops_per_s, 1.0),
            ),
            Chart::new("Latency", Axis::Size, Axis::Log("µs"), latency),
            Chart::new("Loss", Axis::Size, Axis::Linear("segments or frames"), losses),
        ];
        html! { @for chart in &charts { (figure(chart)) } }
    }
}

/// Returns the words that name the curve of a point.
fn kind<R>(p: &Point<R>) -> String {
    let name = p.name();
    name.rsplit_once(' ').map_or(name.clone(), |(kind, _)| kind.to_owned())
}

fn figure(chart: &Chart) -> Markup {
    match chart.svg() {
        // The plotting library escapes the texts in its SVG.
        Some(svg) => html! { figure { (PreEscaped(svg)) } },
        None => html! {},
    }
}

/// Returns what is known about the runs of a point.
fn section<R: Measured>(point: &Point<R>) -> Markup {
    let runs: Vec<&BenchReport> = point.runs.iter().filter_map(Measured::bench).collect();
    html! {
        h2 { (point.name()) }
        @if !runs.is_empty() {
            (distributions(&runs))
            (over_time(&runs))
        }
        (table_of_runs(point))
        @for (n, run) in runs.iter().enumerate() {
            (ends(run, n, runs.len()))
        }
    }
}

/// Returns a title that also names the run, if there are several.
fn numbered(title: &str, n: usize, of: usize) -> String {
    if of > 1 { format!("{title}, run {}", n + 1) } else { title.to_owned() }
}

/// Returns the histogram and the percentiles of latencies.
fn distributions(runs: &[&BenchReport]) -> Markup {
    let mut histogram = Vec::new();
    let mut percentiles = Vec::new();
    for (n, run) in runs.iter().enumerate() {
        let total = run.latency_steps.iter().map(|s| s.count as f64).sum::<f64>();
        if total <= 0.0 {
            continue;
        }
        let name = format!("run {}", n + 1);
        let (mut bars, mut curve, mut below) = (Vec::new(), Vec::new(), 0.0);
        for step in &run.latency_steps {
            let us = (step.ns as f64 / 1e3).max(1e-3);
            let count = step.count as f64;
            bars.push((us, 100.0 * count / total));
            // The share of times beyond this step, as the number of times of which one is beyond.
            below += count;
            curve.push((total / (total - below).max(1.0), us));
        }
        histogram.push(Curve { name: name.clone(), points: bars });
        percentiles.push(Curve { name, points: curve });
    }
    let kind = runs.first().map_or("", |r| r.latency_kind.words());
    let charts = [
        Chart::new(
            &format!("Percentiles of the latency ({kind})"),
            Axis::Percentile,
            Axis::Log("µs"),
            percentiles,
        ),
        Chart::new(
            &format!("Histogram of the latency ({kind})"),
            Axis::Log("µs"),
            Axis::Linear("% of the operations in a step"),
            histogram,
        ),
    ];
    html! { @for chart in &charts { (figure(chart)) } }
}

/// Returns the throughput over time, if the runs have intervals.
fn over_time(runs: &[&BenchReport]) -> Markup {
    let curve = |(n, run): (usize, &&BenchReport)| Curve {
        name: format!("run {}", n + 1),
        points: run.intervals.iter().map(|i| (i.end_seconds, i.gbit_per_s)).collect(),
    };
    let curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
    let chart = Chart::new("Throughput over time", Axis::Linear("s"), Axis::Linear("Gb/s"), curves);
    html! { @if runs.iter().any(|r| r.intervals.len() > 1) { (figure(&chart)) } }
}

/// Returns a table with a column for each run.
fn table_of_runs<R: Measured>(point: &Point<R>) -> Markup {
    let cells: Vec<_> = point.runs.iter().map(Measured::cells).collect();
    let names = cells.first().map_or_else(Vec::new, |c| c.iter().map(|(n, _)| *n).collect());
    html! {
        details open[point.runs.len() == 1] {
            summary { "All figures" }
            table {
                @for name in names {
                    tr {
                        th { (name) }
                        @for run in &cells {
                            td.n { (run.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the workers and the counters of both ends in a run.
fn ends(run: &BenchReport, n: usize, of: usize) -> Markup {
    let sides: Vec<&String> = run.counters.keys().collect();
    let mut names: Vec<&String> = run.counters.values().flat_map(|c| c.keys()).collect();
    names.sort_unstable();
    names.dedup();
    html! {
        @if !run.workers.is_empty() {
            details {
                summary { (numbered("Workers", n, of)) }
                table {
                    tr {
                        th { "Side" } th { "Processor" } th { "Bytes sent" } th { "Bytes received" }
                        th { "Retransmissions" } th { "User s" } th { "System s" }
                    }
                    @for w in &run.workers {
                        tr {
                            td { (w.side) }
                            td.n { (w.lcore.map_or("-".to_owned(), |c| c.to_string())) }
                            td.n { (w.tx_bytes) }
                            td.n { (w.rx_bytes) }
                            td.n { (w.retransmits) }
                            td.n { (w.processor.map_or("-".to_owned(), |u| format!("{:.3}", u.user_seconds))) }
                            td.n { (w.processor.map_or("-".to_owned(), |u| format!("{:.3}", u.system_seconds))) }
                        }
                    }
                }
            }
        }
        @if !names.is_empty() {
            details {
                summary { (numbered("Counters of the ends", n, of)) }
                table {
                    tr { th { "Counter" } @for side in &sides { th { (side) } } }
                    @for name in names {
                        tr {
                            th { (name) }
                            @for side in &sides {
                                td.n { (run.counters[*side].get(name).copied().unwrap_or(0)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a value for people.
fn text(v: &Value) -> String {
    match v {
        Value::Null => "-".into(),
        Value::String(s) => s.clone(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::document::tests::{document, report};

    #[test]
    fn test_page_escapes_every_text_and_fetches_nothing() {
        let mut d = document(vec![vec![report(8)]]);
        let evil = "<script>alert('x')</script>\"&";
        d.host.name = evil.into();
        d.host.processor = evil.into();
        d.command_line = vec![evil.into()];
        d.parameters.insert(evil.into(), evil.into());
        d.results[0].op = evil.into();
        d.results[0].runs[0].workers[0].side = evil.into();
        d.results[0].runs[0].counters.insert(evil.into(), [(evil.to_owned(), 1)].into());
        let page = d.to_html();
        assert!(page.matches("&lt;script&gt;").count() >= 9, "{page}");
        for bad in ["<script", "src=", "href=", "@import", "url(", "<link", "<img", "<b>odd"] {
            assert!(!page.contains(bad), "{bad}");
        }
    }

    #[test]
    fn test_page_of_a_sweep_plots_each_figure_against_the_size() {
        let one = document(vec![vec![report(8)]]).to_html();
        assert_eq!(one.matches("<svg").count(), 2, "percentiles and histogram");
        let mut run = report(16);
        run.gbit_per_s = 7.5;
        let page = document(vec![vec![report(8), report(8)], vec![run]]).to_html();
        assert_eq!(page.matches("<svg").count(), 4 + 2 * 2);
        for title in ["Throughput", "Rate", "Latency", "Loss"] {
            assert!(page.contains(title), "{title}");
        }
        assert!(page.contains("write bw, highest") && page.contains("write bw p99"));
    }

    #[test]
    fn test_page_shows_parameters_warnings_counters_and_intervals() {
        let mut r = report(8);
        r.intervals.push(crate::report::IntervalReport { end_seconds: 2.0, ..r.intervals[0] });
        let page = document(vec![vec![r]]).to_html();
        for text in ["rnic_tx_fpdus", "Warning: ", "Throughput over time", "<th>op</th>", "Kernel"]
        {
            assert!(page.contains(text), "{text}");
        }
    }

    #[test]
    fn test_page_of_strange_figures_is_a_page() {
        let mut r = report(8);
        r.gbit_per_s = f64::NAN;
        r.latency_steps.clear();
        let mut empty = report(16);
        empty.latency_steps = vec![crate::latency::Step { ns: 0, count: u64::MAX }];
        empty.gbit_per_s = f64::INFINITY;
        let page = document(vec![vec![r], vec![empty]]).to_html();
        assert!(page.ends_with("</html>"), "{page}");
    }
}
