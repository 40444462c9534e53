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
    // The fuzz targets and the frames of tests are not part of the product.
    let outside = ["heddle-fuzz", "heddle-testkit"];
    let all = metadata["packages"].as_array().unwrap().iter();
    let packages: Vec<_> = all.filter(|p| !outside.contains(&name(p).as_str())).collect();
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

/// Returns the boxes and the arrows of a picture of `docs/pictures`.
fn picture(name: &str) -> (BTreeSet<String>, Graph) {
    let text = fs::read_to_string(root().join("docs/pictures").join(name)).unwrap();
    let plain = |word: &str| word.trim().trim_matches('"').to_owned();
    let (mut boxes, mut arrows) = (BTreeSet::new(), Graph::new());
    for line in text.lines().map(str::trim).filter(|l| l.ends_with(';') && !l.starts_with('{')) {
        let (what, attributes) = line.trim_end_matches(';').split_once('[').unwrap_or((line, ""));
        if let Some((from, to)) = what.trim_end_matches(';').split_once("->") {
            arrows.entry(plain(from)).or_default().insert(plain(to));
        } else if attributes.contains("label=") {
            boxes.insert(plain(what));
        }
    }
    (boxes, arrows)
}

/// Returns all that `name` uses, directly or by others.
fn reached(graph: &Graph, name: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![name];
    while let Some(name) = open.pop() {
        for used in graph.get(name).into_iter().flatten() {
            if all.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    all
}

/// Every crate is in the picture of the rooms, each arrow is a dependency, and the dependencies
/// without an arrow follow from those with one.
#[test]
fn test_picture_of_rooms_shows_the_dependencies_of_cargo() {
    let graph = crates();
    let (boxes, arrows) = picture("rooms.dot");
    assert_eq!(boxes, graph.keys().cloned().collect());
    for (name, uses) in &graph {
        let drawn = arrows.get(name).cloned().unwrap_or_default();
        let wrong: Vec<_> = drawn.difference(uses).collect();
        assert!(wrong.is_empty(), "{name} does not use {wrong:?}");
        assert_eq!(reached(&arrows, name), reached(&graph, name), "{name}");
    }
}

/// The states of a connection, and the ways between them, are those of the table that the tests of
/// the connection manager keep.
#[test]
fn test_picture_of_a_connection_shows_states_and_ways_of_the_connection_manager() {
    let table = fs::read_to_string(root().join("cm/src/conn/tests/matrix.txt")).unwrap();
    let first = |text: &str| text.split([' ', ',']).next().unwrap().to_owned();
    let mut ways = Graph::new();
    let mut state = String::new();
    for line in table.lines() {
        if let Some(row) = line.strip_prefix("  ") {
            let next = first(row.get(18..).unwrap_or_default());
            if next.starts_with(|c: char| c.is_ascii_uppercase()) {
                ways.entry(state.clone()).or_default().insert(next);
            }
        } else {
            state = first(line);
            ways.entry(state.clone()).or_default();
        }
    }
    let (boxes, arrows) = picture("connection.dot");
    let states: BTreeSet<String> = boxes.into_iter().filter(|b| !b.starts_with("start_")).collect();
    // These states only undo what was begun.
    let drawn = ways.keys().filter(|s| !["Undoing", "Unopened"].contains(&s.as_str()));
    assert_eq!(states, drawn.cloned().collect());
    for (from, to) in arrows.iter().filter(|(from, _)| !from.starts_with("start_")) {
        let wrong: Vec<_> = to.difference(&ways[from]).collect();
        assert!(wrong.is_empty(), "no way leads from {from} to {wrong:?}");
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
    let folder = |name: &str| if name == "cli" { root() } else { root().join(name) };
    for (name, uses) in crates() {
        let text = text_below(&folder(&name).join("src"));
        for used in uses {
            let path = match used.as_str() {
                "heddle" => "heddle::".to_owned(),
                used => format!("heddle_{}", used.replace('-', "_")),
            };
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

/// Returns the names in backquotes of the sentence of `document` that has `part`.
fn listed(document: &str, part: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let paragraph = text.split("\n\n").find(|p| p.contains(part));
    let paragraph = paragraph.unwrap_or_else(|| panic!("{document} does not say {part:?}"));
    let sentence = paragraph.split(part).next().unwrap();
    sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn test_documents_agree_on_the_pure_crates() {
    let pure: BTreeSet<String> = PURE.map(str::to_owned).into();
    assert_eq!(listed("docs/architecture.md", "are pure:"), pure);
    assert_eq!(listed("CONTRIBUTING.md", "need no DPDK"), pure);
    let script = fs::read_to_string(root().join("scripts/test")).unwrap();
    let after = script.split("the core crates are pure").nth(1).unwrap();
    let list = after.split("; do").next().unwrap();
    let checked = list.split_whitespace().filter(|w| w.starts_with("heddle-")).map(short);
    assert_eq!(checked.collect::<BTreeSet<_>>(), pure);
    let script = fs::read_to_string(root().join("scripts/ports")).unwrap();
    let list = script.split("pure=(").nth(1).unwrap().split(')').next().unwrap();
    assert_eq!(list.split_whitespace().map(short).collect::<BTreeSet<_>>(), pure);
}

/// The crates without operating system, thread, clock and DPDK.
const PURE: [&str; 11] =
    ["base", "types", "mr", "engine", "tcp", "iwarp", "ib", "rpcrdma", "dissect", "rnic", "cm"];

/// Crates documented as pure forbid `unsafe` by attribute, so that the check cannot miss a file.
#[test]
fn test_pure_crates_forbid_unsafe() {
    for name in PURE {
        let text = fs::read_to_string(root().join(name).join("src/lib.rs")).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}
