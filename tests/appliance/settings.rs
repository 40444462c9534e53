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
    // What the appliance was told since is in force, too.
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
