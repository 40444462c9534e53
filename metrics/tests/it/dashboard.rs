//! The dashboard uses no metric that the program does not expose.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::{Family, read, sample};
use heddle_metrics::expose;
use serde_json::Value;

/// Labels that Prometheus adds to the series that it scrapes.
const ADDED: [&str; 2] = ["instance", "job"];

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana/heddle.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns all queries: title of the panel, query and legend.
fn queries(dashboard: &Value) -> Vec<(String, String, String)> {
    let panels = dashboard["panels"].as_array().unwrap();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let of = |p: &Value| {
        let title = text(&p["title"]);
        let all = p["targets"].as_array().cloned().unwrap_or_default();
        all.iter()
            .map(|t| (title.clone(), text(&t["expr"]), text(&t["legendFormat"])))
            .collect::<Vec<_>>()
    };
    panels.iter().flat_map(of).collect()
}

fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Returns the family that a line belongs to by its name.
fn family<'f>(all: &'f BTreeMap<String, Family>, name: &str) -> Option<&'f Family> {
    let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|s| name.strip_suffix(s));
    let of_histogram = of_histogram.filter_map(|n| all.get(n)).find(|f| f.kind == "histogram");
    all.get(name).filter(|f| f.kind != "histogram").or(of_histogram)
}

/// Returns the names in a query that are metrics of ours, each with the text in the braces after
/// it.
fn selectors(query: &str) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    for (at, _) in query.match_indices("heddle_") {
        let rest = &query[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let inside = rest[end..].strip_prefix('{').and_then(|r| r.split_once('}'));
        all.push((&rest[..end], inside.map_or("", |i| i.0)));
    }
    all
}

#[test]
fn test_every_metric_and_label_of_dashboard_queries_is_exposed() {
    let all = read(&expose(&sample()));
    let queries = queries(&dashboard());
    assert!(queries.len() > 50, "{}", queries.len());
    for (title, query, legend) in &queries {
        let selectors = selectors(query);
        assert!(!selectors.is_empty(), "{title}: {query}");
        let mut known: BTreeSet<&str> = ADDED.into();
        for (name, inside) in selectors {
            let family = family(&all, name).unwrap_or_else(|| panic!("{title}: no {name}"));
            known.extend(family.labels());
            for matcher in inside.split(',').filter(|m| !m.is_empty()) {
                let label = matcher.split(['=', '!']).next().unwrap();
                let known = ADDED.contains(&label) || family.labels().contains(label);
                assert!(known, "{title}: {name} has no label {label}");
            }
        }
        // Each name in a legend or a sum is a label of a metric in the query.
        let grouped =
            query.split(" by (").skip(1).flat_map(|r| words(r.split(')').next().unwrap()));
        let shown = legend.split("{{").skip(1).map(|r| r.split("}}").next().unwrap());
        for label in grouped.filter(|w| !w.is_empty()).chain(shown) {
            assert!(known.contains(label), "{title}: no label {label}: {query}, {legend}");
        }
    }
}

#[test]
fn test_dashboard_shows_counters_as_rates_and_histograms_by_buckets() {
    let all = read(&expose(&sample()));
    for (title, query, _) in queries(&dashboard()) {
        for (name, _) in selectors(&query) {
            let before = &query[..query.find(name).unwrap()];
            let rated = before.ends_with("rate(") || before.ends_with("increase(");
            let family = family(&all, name).unwrap();
            assert_eq!(rated, family.kind != "gauge", "{title}: {query}");
        }
    }
}

#[test]
fn test_dashboard_has_rows_panels_and_variables_that_grafana_expects() {
    let d = dashboard();
    assert!(d["schemaVersion"].as_u64().unwrap() >= 38);
    let panels = d["panels"].as_array().unwrap();
    let rows = panels.iter().filter(|p| p["type"] == "row").map(|p| p["title"].as_str().unwrap());
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            "Overview",
            "Workers",
            "Ports",
            "TCP: loss and retransmissions",
            "Connections",
            "Memory",
            "Clients",
            "Latency",
            "Applications and idle threads",
            "NFS"
        ]
    );
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for p in panels {
        assert!(ids.insert(p["id"].as_u64().unwrap()), "{p}");
        let g = |k: &str| p["gridPos"][k].as_u64().unwrap();
        assert!(g("x") + g("w") <= 24);
        for (x, y) in
            (g("x")..g("x") + g("w")).flat_map(|x| (g("y")..g("y") + g("h")).map(move |y| (x, y)))
        {
            assert!(places.insert((x, y)), "{} lies on another panel", p["title"]);
        }
    }
    // Every variable of a query is one of the dashboard's, or Grafana's own.
    let list = d["templating"]["list"].as_array().unwrap();
    let names: BTreeSet<&str> = list.iter().map(|v| v["name"].as_str().unwrap()).collect();
    for (title, query, _) in queries(&d) {
        for v in query.split('$').skip(1) {
            let v = words(v).next().unwrap();
            assert!(v == "__rate_interval" || names.contains(v), "{title}: {v}");
        }
    }
    let all = read(&expose(&sample()));
    for v in list.iter().filter(|v| v["type"] == "query") {
        let query = v["definition"].as_str().unwrap();
        let (name, label) = query.strip_prefix("label_values(").unwrap().split_once(", ").unwrap();
        let label = label.trim_end_matches(')');
        assert!(ADDED.contains(&label) || all[name].labels().contains(label), "{query}");
    }
}
