//! Reads the text back, and checks it with Prometheus's own checker.
#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{read, sample};
use heddle_dataplane::WorkerSnapshot;
use heddle_metrics::{Sample, expose};
use heddle_nfs::Counts;
use heddle_rpc::server::ServerCounters;

#[test]
fn test_every_worker_counter_is_exposed_with_help_and_value() {
    let all = read(&expose(&sample()));
    let s = sample().workers[0].snapshot.clone();
    let mut seen = 0;
    s.for_each(|group, name, help, value| {
        if name == "busy_ns" {
            // The only counter of a time; the lines below compare it in seconds.
            return;
        }
        let family = &all[&format!("heddle_{group}_{name}_total")];
        assert_eq!(family.kind, "counter");
        let help: Vec<&str> = help.split_whitespace().collect();
        assert_eq!(family.help, help.join(" "));
        // The other worker has not answered yet, and still has its series.
        let [(_, labels, got), (_, silent, zero)] = &family.lines[..] else {
            panic!("{:?}", family.lines)
        };
        assert_eq!((silent["worker"].as_str(), *zero), ("1", 0.0));
        assert_eq!((labels["worker"].as_str(), labels["port"].as_str()), ("0", "east"));
        assert_eq!(*got, value as f64);
        seen += 1;
    });
    assert!(seen > 100, "{seen}");
    assert_eq!(all["heddle_worker_polls_total"].lines[0].2, 7.0);
    assert_eq!(all["heddle_tcp_retransmits_total"].lines[0].2, 3.0);
    let busy = &all["heddle_worker_busy_seconds_total"];
    assert_eq!((busy.kind.as_str(), busy.lines[0].2, busy.lines[1].2), ("counter", 2.5, 0.0));
    assert_eq!(busy.help, "Seconds of turns that found work.");
    assert!(!all.contains_key("heddle_worker_busy_ns_total"));
}

#[test]
fn test_control_plane_counters_and_gauges_are_exposed() {
    let mut s = sample();
    s.control.cm.established = 5;
    s.control.control.stale = 6;
    s.control.gauges.conns = 8;
    s.control.ib.rx_datagrams = 9;
    s.gateway.counters.forwarded = 10;
    s.gateway.connections = 11;
    let all = read(&expose(&s));
    for (name, kind, value) in [
        ("heddle_cm_established_total", "counter", 5.0),
        ("heddle_control_stale_total", "counter", 6.0),
        ("heddle_connections", "gauge", 8.0),
        ("heddle_ib_rx_datagrams_total", "counter", 9.0),
        ("heddle_gateway_forwarded_total", "counter", 10.0),
        ("heddle_forwarded_connections", "gauge", 11.0),
        ("heddle_uptime_seconds", "gauge", 12.5),
        ("heddle_draining", "gauge", 1.0),
        ("heddle_registered_bytes", "gauge", 1_048_576.0),
        ("heddle_clients", "gauge", 1.0),
        ("heddle_port_speed_bytes", "gauge", 1_250_000_000.0),
    ] {
        let family = &all[name];
        assert_eq!((family.kind.as_str(), family.lines[0].2), (kind, value), "{name}");
    }
    assert_eq!(all["heddle_build_info"].lines[0].1["version"], "1.2.3");
    let up: Vec<f64> = all["heddle_worker_up"].lines.iter().map(|l| l.2).collect();
    assert_eq!(up, [1.0, 0.0]);
    assert_eq!(all["heddle_worker_up"].lines[1].1["port"], "we\"st");
}

#[test]
fn test_worker_histograms_are_exposed_before_worker_answers() {
    let all = read(&expose(&sample()));
    for name in ["turn", "round_trip", "request"] {
        let family = &all[&format!("heddle_{name}_seconds")];
        let of = |worker: &str| {
            let counts = family.lines.iter().filter(|l| l.0.ends_with("_count"));
            counts.filter(|l| l.1["worker"] == worker).map(|l| l.2).collect::<Vec<_>>()
        };
        assert_eq!((of("0").len(), of("1")), (1, vec![0.0]), "{name}");
    }
}

#[test]
fn test_shares_are_labeled_by_user_and_rule() {
    let all = read(&expose(&sample()));
    for (name, kind, services, tenant) in [
        ("heddle_share_weight", "gauge", Some(4.0), 2.0),
        ("heddle_share_rate_bytes", "gauge", None, 1_250_000_000.0),
        ("heddle_share_sent_bytes_total", "counter", Some(0.0), 9000.0),
        ("heddle_share_rate_waits_total", "counter", Some(0.0), 3.0),
        ("heddle_share_rate_waited_seconds_total", "counter", Some(0.0), 0.25),
    ] {
        let family = &all[name];
        assert_eq!(family.kind, kind, "{name}");
        let of = |user: &str, rule: &str| {
            let mut lines = family.lines.iter();
            lines.find(|l| l.1["user"] == user && l.1["rule"] == rule).map(|l| l.2)
        };
        assert_eq!((of("", "services"), of("1000", "group:7")), (services, Some(tenant)), "{name}");
    }
}

#[test]
fn test_port_offloads_are_exposed() {
    let all = read(&expose(&sample()));
    let lines = &all["heddle_port_offload"].lines;
    assert_eq!(lines.len(), 18, "nine of each port");
    let on = lines.iter().filter(|l| l.2 == 1.0);
    let on: Vec<_> = on.map(|l| (l.1["port"].as_str(), l.1["offload"].as_str())).collect();
    assert_eq!(on, [("east", "rx-tcp-checksum"), ("east", "multi-segs")]);
}

#[test]
fn test_histograms_are_cumulative_in_seconds_and_end_with_their_count() {
    let all = read(&expose(&sample()));
    let histograms: BTreeSet<&str> =
        all.iter().filter(|(_, f)| f.kind == "histogram").map(|(n, _)| n.as_str()).collect();
    assert_eq!(
        histograms,
        BTreeSet::from([
            "heddle_connection_setup_seconds",
            "heddle_nfs_call_seconds",
            "heddle_request_seconds",
            "heddle_round_trip_seconds",
            "heddle_turn_seconds",
        ])
    );
    let turns = &all["heddle_turn_seconds"];
    let of = |suffix: &str| {
        let name = format!("heddle_turn_seconds{suffix}");
        let of_first = turns.lines.iter().filter(|l| l.1["worker"] == "0");
        of_first.filter(move |l| l.0 == name).collect::<Vec<_>>()
    };
    let buckets: Vec<(f64, f64)> = of("_bucket")
        .iter()
        .map(|l| (l.1["le"].replace("+Inf", "inf").parse().unwrap(), l.2))
        .collect();
    for pair in buckets.windows(2) {
        assert!(pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1, "{pair:?}");
    }
    let below = |le: f64| buckets.iter().rev().find(|b| b.0 <= le).unwrap().1;
    assert_eq!((below(0.000_000_512), below(0.000_001), below(1.0)), (0.0, 1.0, 2.0));
    assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, 2.0));
    assert_eq!((of("_sum")[0].2, of("_count")[0].2), (0.001_000_7, 2.0));
}

#[test]
fn test_export_series_are_labeled_by_listener_and_directory() {
    let all = read(&expose(&sample()));
    let of = |name: &str, wanted: &[(&str, &str)]| {
        let fits = |(_, labels, _): &&(String, BTreeMap<String, String>, f64)| {
            wanted.iter().all(|(label, value)| labels[*label] == *value)
        };
        let values = all[name].lines.iter().filter(fits).map(|line| line.2);
        values.collect::<Vec<_>>()
    };
    for directory in ["/srv/a", "/srv/b\""] {
        let export = [("listener", "10.0.0.1:20049"), ("export", directory)];
        let with = |label, value| [export[0], export[1], (label, value)];
        for (name, value) in
            [("heddle_nfs_calls_total", 9.0), ("heddle_nfs_read_bytes_total", 4096.0)]
        {
            assert_eq!(of(name, &export), [value], "{name}");
        }
        assert_eq!(of("heddle_nfs_errors_total", &with("status", "NOENT")), [4.0]);
        let calls = of("heddle_nfs_call_seconds", &with("procedure", "READ"));
        assert_eq!(calls[calls.len() - 2..], [0.003, 1.0]);
    }
    // Connections and RPC counters belong to the listener, whatever number of directories it has.
    let listener = ("listener", "10.0.0.1:20049");
    for (name, value) in
        [("heddle_rpc_calls_repeated_total", 2.0), ("heddle_rpc_memory_waits_total", 5.0)]
    {
        assert_eq!(of(name, &[listener]), [value], "{name}");
    }
    for (transport, value) in [("rdma-2", 3.0), ("rdma-1", 0.0)] {
        let wanted = [listener, ("transport", transport)];
        assert_eq!(of("heddle_nfs_connections", &wanted), [value]);
    }
    // Every counter of both groups is there, with its help, even when nothing is exported.
    let none = read(&expose(&Sample { nfs: Vec::new(), exports: Vec::new(), ..sample() }));
    let is_there = |group: &str, name: &str, help: &str| {
        let family = &none[&format!("heddle_{group}_{name}_total")];
        assert_eq!((family.help.as_str(), family.lines.len()), (help.trim(), 0));
    };
    Counts::ZERO.for_each(|name, help, _| is_there("nfs", name, help));
    ServerCounters::ZERO.for_each(|name, help, _| is_there("rpc", name, help));
}

#[test]
fn test_metric_names_are_prefixed_lowercase_and_unique() {
    for name in read(&expose(&sample())).keys() {
        assert!(name.starts_with("heddle_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    }
    // Every counter of a worker occurs once: the group in the name distinguishes equal names.
    let mut names = BTreeSet::new();
    WorkerSnapshot::default()
        .for_each(|g, n, _, _| assert!(names.insert(format!("{g}_{n}")), "{n}"));
}

/// The message when the test cannot start promtool.
const MISSING: &str =
    "promtool is missing: Debian has it in the package prometheus, and scripts/test gets it";

/// Returns Prometheus's checker: from where `scripts/test` unpacks it, or else from PATH.
fn tool() -> Command {
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/usr/bin/promtool");
    Command::new(if Path::new(unpacked).exists() { unpacked } else { "promtool" })
}

/// Returns the verdict of `promtool check metrics` on a text.
fn promtool(text: &str) -> (bool, String) {
    let mut tool = tool();
    let tool = tool.args(["check", "metrics"]);
    let tool = tool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tool.spawn().unwrap_or_else(|e| panic!("{MISSING}: {e}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn test_promtool_accepts_exposed_metrics() {
    let text = expose(&sample());
    assert_eq!(promtool(&text), (true, String::new()));
    // promtool complains about a counter without a counter's name.
    let bad = text.replace("heddle_worker_polls_total", "heddle_worker_polls");
    assert!(promtool(&bad).1.contains("heddle_worker_polls"));
}

/// The guide's tables and queries name the families by their names in code.
#[test]
fn test_the_guide_names_every_gauge_and_histogram_and_nothing_else() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/metrics.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let all = read(&expose(&sample()));
    let words: BTreeSet<&str> = guide
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|w| w.starts_with("heddle_") && *w != "heddle_GROUP_NAME_total")
        .collect();
    for word in &words {
        let mut of_histogram = ["_bucket", "_count"].iter().filter_map(|s| word.strip_suffix(s));
        let known = all.contains_key(*word) || of_histogram.any(|name| all.contains_key(name));
        assert!(known, "{word} is not exposed");
    }
    for (name, family) in &all {
        assert!(family.kind == "counter" || words.contains(name.as_str()), "{name} is not told of");
    }
}

/// Prometheus accepts the guide's rules.
#[test]
fn test_promtool_accepts_alerts_of_the_guide() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/metrics.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let rules = guide.split("## Alerts").nth(1).unwrap();
    let rules = rules.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = std::env::temp_dir().join(format!("heddle-rules-{}.yaml", std::process::id()));
    std::fs::write(&file, rules).unwrap();
    let out = tool().args(["check", "rules"]).arg(&file).output().expect(MISSING);
    std::fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("9 rules found"), "{said}");
}
