//! Runs the packet scripts beside this file, each as a test of its own, over IPv4 and over IPv6.
//!
//! `README.md` describes their language. The test of a script has the script's path as its name, so
//! that a failure names the file: `cargo nextest run -p heddle-tcp --test scripts closing/`.
#![allow(missing_docs, unreachable_pub, reason = "parts of a test")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod flow;
mod host;
mod parse;
mod run;
mod runner_tests;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parse::Script;

/// The ending of a script's name.
const ENDING: &str = "tcp";

fn main() -> ExitCode {
    let (args, names) = arguments(env::args().collect());
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut trials = runner_tests::all();
    for path in scripts(&top) {
        let name = path.strip_prefix(&top).unwrap().with_extension("");
        let trial = Trial::test(name.display().to_string(), move || check(&path));
        trials.push(trial);
    }
    if !names.is_empty() {
        trials.retain(|t| names.iter().any(|name| name == t.name()));
    }
    libtest_mimic::run(&args, trials).exit_code()
}

/// Returns the arguments, and the names of tests if they are several: `libtest_mimic` takes one.
fn arguments(mut all: Vec<String>) -> (Arguments, Vec<String>) {
    let mut names = Vec::new();
    if let Some(at) = all.iter().position(|a| a == "--exact") {
        let end = all[at + 1..].iter().position(|a| a.starts_with('-'));
        let range = at + 1..end.map_or(all.len(), |end| at + 1 + end);
        if range.len() > 1 {
            names = all.drain(range).collect();
        }
    }
    (Arguments::from_iter(all), names)
}

/// Returns the scripts below a folder, in order.
fn scripts(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(scripts(&path));
        } else if path.extension().is_some_and(|e| e == ENDING) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Runs a script over both versions of IP.
fn check(path: &Path) -> Result<(), Failed> {
    let name = path.display();
    let text = fs::read_to_string(path)?;
    let script = Script::parse(&text).map_err(|e| format!("{name}:{e}"))?;
    for ipv6 in [false, true] {
        if script.only_ipv6.is_none_or(|only| only == ipv6) {
            run::run(&script, ipv6).map_err(|e| format!("{name}: {}\n{e}", script.rule))?;
        }
    }
    Ok(())
}
