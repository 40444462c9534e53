//! `heddle bench` as people call it: where its results go, and what they say.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs a benchmark of some milliseconds, on one thread.
fn bench(args: &[&str]) -> Output {
    let short = ["bench", "--inline", "--quiet", "--duration", "40ms", "--warmup", "5ms"];
    heddle(&[&short[..], args].concat())
}

fn heddle(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heddle")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn test_bench_writes_json_to_stdout_and_the_table_to_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "--inline", "--quiet", "--iters", "200", "--repeat", "2", "--json", "-"];
    let binary = env!("CARGO_BIN_EXE_heddle");
    let out = Command::new(binary).args(args).current_dir(dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let v: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((v["format"].as_str(), v["schema"].as_u64()), (Some("heddle-bench"), Some(1)));
    assert_eq!(v["results"][0]["runs"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        (v["parameters"]["iters"].as_u64(), v["parameters"]["repeat"].as_u64()),
        (Some(200), Some(2))
    );
    let used = |kind: &str| v["processor"][kind].as_f64().unwrap();
    assert!(used("user_seconds") + used("system_seconds") > 0.0, "{}", v["processor"]);
    let table = text(&out.stderr);
    assert!(table.starts_with("op ") && table.contains("stddev"), "{table}");
    assert!(table.contains("latency: posting to completion"), "{table}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file called -");
}

/// Here shared memory joins the two devices of the process; a pair of interfaces is no different.
#[test]
fn test_bench_measures_between_two_devices_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let device = |n, role| {
        let socket = dir.path().join("memif");
        format!("net_memif{n},role={role},socket={},socket-abstract=no", socket.display())
    };
    // The driver's server comes before its client.
    let (ours, theirs) = (device(0, "server"), device(1, "client"));
    let wire = ["--wire", "vdev", "--vdev", &ours, "--server-vdev", &theirs];
    let out = bench(&[&wire[..], &["--verify", "--json", "-"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let v: Value = serde_json::from_slice(&out.stdout).unwrap();
    let run = &v["results"][0]["runs"][0];
    assert!(run["ops"].as_u64() > Some(0) && run["verified"] == true, "{run}");
    assert_eq!(v["parameters"]["wire"], "vdev");
    for side in ["client", "server"] {
        assert!(run["counters"][side]["worker_busy_polls"].as_u64() > Some(0), "{run}");
    }
}

#[test]
fn test_bench_writes_csv_json_and_page_in_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (json, page) = (path("r.json"), path("r.html"));
    let out = bench(&["--sizes", "64..256", "--json", &json, "--report", &page, "--csv", "-"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let csv = text(&out.stdout);
    assert_eq!(csv.lines().count(), 4, "{csv}");
    assert!(csv.starts_with("op,call,version,mode,size,"), "{csv}");
    let sizes: Vec<_> = csv.lines().skip(1).map(|l| l.split(',').nth(4).unwrap()).collect();
    assert_eq!(sizes, ["64", "128", "256"]);
    let v: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(v["results"].as_array().map(Vec::len), Some(3));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"), "{page}");
    assert!(page.contains("Counters of the ends"), "the counters of both ends");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file");
}

#[test]
fn test_bench_shows_a_line_for_each_interval() {
    let out = bench(&["--interval", "10ms"]);
    let shown = text(&out.stdout);
    let lines = shown.lines().filter(|l| l.starts_with('[') && l.contains("Gb/s")).count();
    assert!(lines >= 4, "{shown}");
    assert!(shown.lines().next().unwrap().contains("write bw 64K"), "{shown}");
}

#[test]
fn test_bench_names_half_and_full_round_trips() {
    for (half, what, kind) in [
        (&["--half"][..], "latency: half round trips", "half-round-trip"),
        (&[], "latency: full round trips", "round-trip"),
    ] {
        let out = bench(&[&["--mode", "lat", "--json", "-"], half].concat());
        assert!(text(&out.stderr).contains(what), "{}", text(&out.stderr));
        let v: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(v["results"][0]["runs"][0]["latency_kind"], kind);
    }
    let out = bench(&["--mode", "lat", "--op", "read", "--half", "--rate", "1k"]);
    let shown = text(&out.stdout);
    let what = "latency: posting to completion, from the time at which the operation was due";
    assert!(shown.contains(what), "{shown}");
}

#[test]
fn test_bench_compare_fails_on_a_regression_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (a, b) = (path("a.json"), path("b.json"));
    let rated = |file: &str, rate| bench(&["--mode", "rate", "--rate", rate, "--json", file]);
    assert!(rated(&a, "20k").status.success());
    assert!(rated(&b, "2k").status.success());
    let compare = |args: &[&str]| heddle(&[&["bench", "compare"], args].concat());
    let out = compare(&[&a, &b]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert!(
        shown.contains("B/A") && shown.contains("rate differs: \"20000 op/s\" in A"),
        "{shown}"
    );
    let out = compare(&[&a, &b, "--fail-above", "50"]);
    assert_eq!(out.status.code(), Some(1));
    let why = text(&out.stderr);
    assert!(why.starts_with("heddle: a regression above 50 %: write rate 8: Mop/s is"), "{why}");
    assert_eq!(compare(&[&b, &a, "--fail-above", "50"]).status.code(), Some(0));
    fs::write(&b, "{}").unwrap();
    let out = compare(&[&a, &b]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("not a report of heddle bench"), "{}", text(&out.stderr));
}

#[test]
fn test_completions_offer_operations_modes_and_levels() {
    let script = heddle(&["generate", "completions", "bash"]);
    let script = text(&script.stdout);
    for values in [
        "write read send write-imm send-imm fetch-add cmp-swap rpc",
        "bw lat rate",
        "off error warn info debug trace",
    ] {
        assert!(script.contains(values), "{values}");
    }
}
