//! Checks that `packaging/` installs every file in its place, that systemd accepts the unit, and
//! that the unit keeps all its hardening.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `packaging/install` below `dir`.
fn install(dir: &Path, more: &[&str]) -> Output {
    Command::new(root().join("packaging/install"))
        .args(["--root", dir.to_str().unwrap()])
        .args(more)
        .env("HEDDLE", env!("CARGO_BIN_EXE_heddle"))
        // `install` copies the C library without looking into it, so any file can stand in for it.
        .env("HEDDLE_IBVERBS", root().join("LICENSE-MIT"))
        .output()
        .unwrap()
}

fn installed(more: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let out = install(dir.path(), more);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    dir
}

fn text_of(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn analyze(dir: &Path, args: &[&str]) -> Output {
    Command::new("systemd-analyze")
        .arg(format!("--root={}", dir.display()))
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("systemd-analyze: {e}; apt-get install systemd"))
}

/// Returns all files below `dir`, by their path from there.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![dir.to_owned()];
    while let Some(d) = open.pop() {
        for entry in fs::read_dir(d).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                all.insert(format!("/{}", path.strip_prefix(dir).unwrap().display()));
            }
        }
    }
    all
}

#[test]
fn test_install_places_every_file_and_only_program_is_executable() {
    let dir = installed(&[]);
    let there = files(dir.path());
    for path in [
        "/usr/bin/heddle",
        "/usr/lib/heddle/libibverbs.so.1",
        "/usr/share/doc/heddle/ld.so.conf.d/heddle.conf",
        "/usr/share/man/man1/heddle.1",
        "/usr/share/man/man1/heddle-serve.1",
        "/usr/share/bash-completion/completions/heddle",
        "/usr/share/zsh/site-functions/_heddle",
        "/usr/share/fish/vendor_completions.d/heddle.fish",
        "/usr/lib/systemd/system/heddle.service",
        "/usr/lib/sysusers.d/heddle.conf",
        "/usr/lib/tmpfiles.d/heddle.conf",
        "/usr/share/doc/heddle/grafana.json",
        "/etc/heddle/heddle.toml",
        "/usr/lib/udev/rules.d/60-heddle.rules",
        "/usr/share/doc/heddle/drop-ins/vfio-only.conf",
    ] {
        assert!(there.contains(path), "{path} is not among {there:?}");
    }
    for path in &there {
        let mode = fs::metadata(dir.path().join(&path[1..])).unwrap().permissions().mode() & 0o777;
        let want = if path == "/usr/bin/heddle" { 0o755 } else { 0o644 };
        assert_eq!(mode, want, "{path}: {mode:o}");
    }
}

#[test]
fn test_installed_unit_starts_program_from_chosen_prefix() {
    let dir = installed(&["--prefix", "/usr/local"]);
    assert!(dir.path().join("usr/local/bin/heddle").exists());
    assert!(!dir.path().join("usr/bin").exists());
    let unit =
        fs::read_to_string(dir.path().join("usr/lib/systemd/system/heddle.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/heddle "), "{unit}");
    assert!(!unit.contains("/usr/bin/heddle"), "{unit}");
    assert!(dir.path().join("usr/local/lib/heddle/libibverbs.so.1").exists());
    let doc = dir.path().join("usr/local/share/doc/heddle");
    let snippet = fs::read_to_string(doc.join("ld.so.conf.d/heddle.conf")).unwrap();
    assert!(snippet.ends_with("\n/usr/local/lib/heddle\n"), "{snippet}");
}

#[test]
fn test_install_keeps_existing_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("etc/heddle/heddle.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "# mine\n").unwrap();
    let out = install(dir.path(), &[]);
    assert!(out.status.success(), "{}", text_of(&out));
    assert_eq!(fs::read_to_string(&config).unwrap(), "# mine\n");
}

/// The installed file works as it is, except for the name of the interface.
#[test]
fn test_packaged_configuration_is_valid_and_its_socket_path_is_writable() {
    let text = fs::read_to_string(root().join("packaging/heddle.toml")).unwrap();
    // The user who runs the tests need not have the group.
    let text = text.replace("group = \"heddle\"\n", "").replace("group:heddle", "any");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("heddle.toml");
    fs::write(&file, &text).unwrap();
    let check = |file: &Path| {
        Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(["serve", "--check-config=file", "--config", file.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let out = check(&file);
    assert!(out.status.success(), "{}", text_of(&out));
    fs::write(&file, text.replace("[metrics]", "[metric]")).unwrap();
    assert!(!check(&file).status.success());
    let unit = fs::read_to_string(root().join("packaging/systemd/heddle.service")).unwrap();
    assert!(text.contains("socket = \"/run/heddle/heddle.sock\""));
    assert!(unit.contains("RuntimeDirectory=heddle\n"));
    assert!(unit.contains("reload --socket /run/heddle/heddle.sock\n"));
}

#[test]
fn test_install_names_the_script_that_builds_a_missing_library() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(root().join("packaging/install"))
        .args(["--root", dir.path().to_str().unwrap()])
        .env("HEDDLE", env!("CARGO_BIN_EXE_heddle"))
        .env("HEDDLE_IBVERBS", "/nonexistent/libibverbs.so.1")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text_of(&out).contains("scripts/build-ibverbs --release"), "{}", text_of(&out));
    assert_eq!(files(dir.path()), BTreeSet::new());
}

#[test]
fn test_install_without_a_program_says_how_to_build_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(root().join("packaging/install"))
        .args(["--root", dir.path().to_str().unwrap()])
        .env("HEDDLE", "/nonexistent/heddle")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text_of(&out).contains("cargo build --release"), "{}", text_of(&out));
    assert_eq!(files(dir.path()), BTreeSet::new());
}

/// The test checks the unit alone, and with each drop-in.
#[test]
fn test_systemd_accepts_unit_with_every_drop_in() {
    let drop_ins = fs::read_dir(root().join("packaging/systemd/drop-ins")).unwrap();
    let drop_ins = drop_ins.map(|e| Some(e.unwrap().path()));
    for drop_in in [None].into_iter().chain(drop_ins) {
        let dir = installed(&[]);
        let units = dir.path().join("usr/lib/systemd/system");
        // The unit refers to these units, which belong to systemd.
        for unit in [
            "network.target",
            "multi-user.target",
            "sysinit.target",
            "basic.target",
            "shutdown.target",
            "system.slice",
            "-.slice",
        ] {
            fs::write(units.join(unit), "[Unit]\nDescription=there\n").unwrap();
        }
        if let Some(path) = &drop_in {
            let place = dir.path().join("etc/systemd/system/heddle.service.d");
            fs::create_dir_all(&place).unwrap();
            fs::copy(path, place.join(path.file_name().unwrap())).unwrap();
        }
        let out = analyze(dir.path(), &["verify", "--man=no", "heddle.service"]);
        assert!(
            out.status.success() && text_of(&out).trim().is_empty(),
            "{drop_in:?}: {}",
            text_of(&out)
        );
    }
}

/// systemd's score is 0 for a unit without any access, and 10 for unlimited root. A twin without
/// the hardening gets a far higher score, which shows that the score measures the hardening.
#[test]
fn test_the_unit_is_hardened() {
    let dir = installed(&[]);
    let security = |dir: &Path| {
        analyze(dir, &["security", "--offline=true", "--threshold=25", "heddle.service"])
    };
    let out = security(dir.path());
    assert!(out.status.success(), "{}", text_of(&out));
    let path = dir.path().join("usr/lib/systemd/system/heddle.service");
    let unit = fs::read_to_string(&path).unwrap();
    let soft: String =
        unit.lines().filter(|l| !l.contains("Protect")).map(|l| format!("{l}\n")).collect();
    fs::write(&path, soft).unwrap();
    assert!(!security(dir.path()).status.success());
}
