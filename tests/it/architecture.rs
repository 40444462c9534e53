//! Checks that the documents describe the crates as they are: which crate uses which, and where
//! `unsafe` is.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the first fenced block after `heading` in a document.
fn block(document: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let mut lines = text.lines().skip_while(|l| l.trim_start_matches('#').trim() != heading);
    assert!(lines.next().is_some(), "{document} has no section {heading:?}");
    let inside = lines.skip_while(|l| !l.starts_with("```")).skip(1);
    let block: Vec<String> = inside.take_while(|l| *l != "```").map(str::to_owned).collect();
    assert!(!block.is_empty(), "{document}: no block in section {heading:?}");
    block
}

/// Returns a crate's name without the prefix that all but one crate have.
fn short(name: &str) -> String {
    name.strip_prefix("heddle-").unwrap_or(name).to_owned()
}

/// Returns the workspace's crates, each with the crates that it depends on (not for tests or build
/// scripts).
fn crates() -> Graph {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let name = |v: &serde_json::Value| v["name"].as_str().unwrap().to_owned();
    // The fuzz targets are not part of the product.
    let all = metadata["packages"].as_array().unwrap().iter();
    let packages: Vec<_> = all.filter(|p| name(p) != "heddle-fuzz").collect();
    let ours: BTreeSet<String> = packages.iter().map(|p| name(p)).collect();
    let uses = |p: &serde_json::Value| {
        let all = p["dependencies"].as_array().unwrap().iter();
        all.filter(|d| d["kind"].is_null())
            .map(name)
            .filter(|d| ours.contains(d))
            .map(|d| short(&d))
            .collect()
    };
    packages.into_iter().map(|p| (short(&name(p)), uses(p))).collect()
}

#[test]
fn test_documented_dependency_table_matches_cargo() {
    let table: Graph = block("docs/architecture.md", "Crates")
        .iter()
        .map(|line| {
            let (name, uses) = line.split_once("──▶").unwrap_or((line, ""));
            (name.trim().to_owned(), uses.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    assert_eq!(table, crates());
}

/// Returns the crates that a line of the picture names.
fn named(line: &str, graph: &Graph) -> Vec<String> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    // The description of a crate follows its name and may name others, so stop at the first other
    // word.
    let names = words.filter(|w| !w.is_empty()).take_while(|w| graph.contains_key(*w));
    names.map(str::to_owned).collect()
}

/// Every crate is in the picture of the rooms once, and uses only crates below it or, in the same line,
/// to its right.
#[test]
fn test_picture_places_every_crate_above_its_dependencies() {
    let graph = crates();
    let order: Vec<String> =
        block("docs/architecture.md", "Rooms").iter().flat_map(|l| named(l, &graph)).collect();
    let mut sorted = order.clone();
    sorted.sort();
    assert_eq!(sorted, graph.keys().cloned().collect::<Vec<_>>(), "crates in the picture");
    let place = |name: &str| order.iter().position(|o| o == name).unwrap();
    for (name, uses) in &graph {
        for used in uses {
            assert!(place(name) < place(used), "{name} uses {used}, which stands above it");
        }
    }
}

/// Returns the text of all Rust files below `dir`.
fn text_below(dir: &Path) -> String {
    let mut files = Vec::new();
    sources(dir, &mut files);
    files.iter().map(|f| fs::read_to_string(f).unwrap()).collect()
}

/// A crate that declares a dependency also names it in its sources.
#[test]
fn test_every_declared_dependency_is_used() {
    let folder = |name: &str| if name == "heddle" { root() } else { root().join(name) };
    for (name, uses) in crates() {
        let text = text_below(&folder(&name).join("src"));
        for used in uses {
            let path = format!("heddle_{}", used.replace('-', "_"));
            assert!(text.contains(&path), "{name} declares {used}, and no code of it names {path}");
        }
    }
}

/// Collects the Rust files of the repository, without the fuzz targets, which are not part of the
/// product.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "fuzz" {
                sources(&path, out);
            }
        } else if name.ends_with(".rs") {
            out.push(path);
        }
    }
}

/// Returns true if a line of code (not of comment) makes or needs a promise that the compiler does
/// not check.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|u| code.contains(u))
}

#[test]
fn test_files_with_unsafe_match_the_documented_list() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let found: BTreeSet<String> = files
        .into_iter()
        // This file itself contains the words that it searches for.
        .filter(|p| !p.ends_with("it/architecture.rs"))
        .filter(|p| fs::read_to_string(p).unwrap().lines().any(is_unsafe))
        .map(|p| p.strip_prefix(root()).unwrap().to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = block("docs/architecture.md", "Where `unsafe` lives")
        .iter()
        .flat_map(|line| {
            let mut words = line.split_whitespace();
            let dir = words.next().unwrap_or_default().to_owned();
            words.map(move |w| format!("{dir}/{w}.rs")).collect::<Vec<_>>()
        })
        .collect();
    let missing: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not listed: {missing:?}; without: {gone:?}");
}

/// Crates documented as pure forbid `unsafe` by attribute, so that the check cannot miss a file.
#[test]
fn test_pure_crates_forbid_unsafe() {
    for name in ["base", "tcp", "iwarp", "ib", "rpcrdma", "dissect", "rnic", "cm"] {
        let text = fs::read_to_string(root().join(name).join("src/lib.rs")).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}
