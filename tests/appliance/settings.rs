//! The settings in force, their difference from the file, and the report for a fault.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::lab::{Appliance, heddle, listen};

#[test]
fn test_settings_in_force_are_shown_as_a_file_that_gives_the_same() {
    let a = Appliance::start(&format!("[limits]\nrnr-wait = \"7s\"\n{}", listen(7174, "rping")));
    let text = String::from_utf8(a.command(&["config", "show"]).stdout).unwrap();
    assert!(text.contains("rnr-wait = \"7s\"\n") && text.contains("zero-window = \"600s\"\n"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shown.toml");
    std::fs::write(&file, &text).unwrap();
    let of = |args: &[&str]| a.ask(&[&["config", "show"], args].concat())["settings"].clone();
    let running = of(&[]);
    assert_eq!(running["limits"]["rnr-wait"], "7s");
    assert_eq!(of(&["--config", file.to_str().unwrap()]), running);
    // A service that was added since is in force, too.
    a.ask(&["listen", "add", "10.77.0.1:7175=sink"]);
    assert_eq!(of(&[])["listen"][1]["service"], "sink");
}

#[test]
fn test_config_diff_says_what_needs_a_reload_and_what_a_restart() {
    let a = Appliance::start(&listen(7174, "rping"));
    assert_eq!(a.ask(&["config", "diff"])["differences"], json!([]));
    a.write(&format!(
        "[log]\nlevel = \"info\"\n[memory]\nregistered = 7\n{}",
        listen(7175, "sink")
    ));
    let all = a.ask(&["config", "diff"])["differences"].clone();
    let all: BTreeMap<String, Value> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|d| (d["key"].as_str().unwrap().to_owned(), d.clone()))
        .collect();
    let level = &all["log.level"];
    assert_eq!((&level["running"], &level["file"]), (&"warn".into(), &"info".into()));
    assert_eq!(level["restart"], Value::Null);
    let memory = &all["memory.registered"];
    assert_eq!((&memory["running"], &memory["file"]), (&256.into(), &7.into()));
    assert!(memory["restart"].as_str().unwrap().contains("memory is taken"), "{memory}");
    assert_eq!(all["listen[10.77.0.1:7174].service"]["running"], "rping");
    assert_eq!(all["listen[10.77.0.1:7175].service"]["file"], "sink");
    let text = String::from_utf8(a.command(&["config", "diff"]).stdout).unwrap();
    assert!(text.contains("memory.registered: 256 -> 7 (restart: "), "{text}");
    assert!(text.contains("log.level: \"warn\" -> \"info\" (reload)\n"), "{text}");
    a.write_as_it_is("[log]\nlevle = 1\n");
    let (status, text) = a.refusal(&["config", "diff"]);
    assert!(status == 1 && text.contains("log.levle"), "{text}");
}

/// Returns the names of the files of an archive, and the contents of one.
fn unpack(archive: &Path, name: &str) -> (Vec<String>, String) {
    let tar = |args: &[&str]| {
        let out = Command::new("tar").args(args).arg("-f").arg(archive).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let list = String::from_utf8(tar(&["-tz"])).unwrap();
    let mut c = Command::new("tar");
    c.args(["-xzO", "-f"]).arg(archive).arg(format!("heddle-support/{name}"));
    let text = String::from_utf8_lossy(&c.output().unwrap().stdout).into_owned();
    (list.lines().map(str::to_owned).collect(), text)
}

#[test]
fn test_support_collects_state_for_its_owner_alone() {
    let metrics = "[metrics]\nlisten = \"127.0.0.1:9184\"\n[log]\nlevel = \"info\"\n";
    let a = Appliance::start(&format!("{metrics}{}", listen(7174, "rping")));
    let _rping = a.rping(7174);
    a.assert_moves();
    let _ = a.command(&["drain", "--no-wait"]);
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("report.tar.gz");
    let out = a.command(&["support", archive.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mode = std::fs::metadata(&archive).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (names, status) = unpack(&archive, "status.json");
    for name in [
        "README.txt",
        "version.txt",
        "settings.toml",
        "heddle.toml",
        "status.json",
        "conns.json",
        "qps.json",
        "mrs.json",
        "ports.json",
        "stats.json",
        "log.json",
        "kernel.txt",
        "cpuinfo.txt",
        "hugepages.txt",
        "interfaces.txt",
        "process-limits.txt",
    ] {
        assert!(names.contains(&format!("heddle-support/{name}")), "no {name}: {names:?}");
    }
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["pid"].as_i64(), Some(a.pid().into()));
    assert!(unpack(&archive, "version.txt").1.contains("runs with DPDK "));
    assert!(!unpack(&archive, "mrs.json").1.contains("stag\""), "an STag is a capability");
    let log = unpack(&archive, "log.json").1;
    assert!(log.contains("are refused: heddle drain"), "{log}");
    // An existing archive stays as it is.
    let (status, text) = a.refusal(&["support", archive.to_str().unwrap()]);
    assert!(status == 1 && text.contains("exists already"), "{text}");
}

#[test]
fn test_support_without_appliance_has_the_host_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (to, config) = (dir.path().join("report"), dir.path().join("h.toml"));
    std::fs::write(&config, "[log]\n").unwrap();
    let mut c = heddle();
    c.arg("support").arg(&to).args(["--socket", "/no/such/socket", "--config"]).arg(&config);
    let out = c.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mode = std::fs::metadata(&to).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let readme = std::fs::read_to_string(to.join("README.txt")).unwrap();
    let missing = readme.split_once("What could not be had:").unwrap().1;
    assert!(missing.contains("status.json") && missing.contains("/no/such/socket"), "{readme}");
    assert_eq!(std::fs::read_to_string(to.join("heddle.toml")).unwrap(), "[log]\n");
    assert!(to.join("kernel.txt").exists() && !to.join("status.json").exists());
}
