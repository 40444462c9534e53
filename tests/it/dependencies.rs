//! Checks every crate that the build uses by the rules of `deny.toml`, without cargo-deny: the
//! licences that we may ship, wildcard versions, and where crates come from. `scripts/test` runs
//! cargo-deny too where it is installed.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::path::Path;
use std::process::Command;
use std::vec::IntoIter;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    /// Only cargo-deny reads it: the database of advisories comes by network.
    #[serde(rename = "advisories")]
    _advisories: toml::Table,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Bans {
    multiple_versions: String,
    wildcards: String,
    allow_wildcard_paths: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDep>,
}

#[derive(Deserialize)]
struct NodeDep {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Deserialize)]
struct DepKind {
    kind: Option<String>,
}

fn rules() -> Rules {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn metadata(target: &str) -> Metadata {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Returns the packages that crates of the workspace use, directly or not, for more than tests.
fn shipped(metadata: &Metadata) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|n| (n.id.as_str(), n)).collect();
    let mut found: BTreeSet<&str> = metadata.workspace_members.iter().map(String::as_str).collect();
    let mut todo: Vec<&str> = found.iter().copied().collect();
    while let Some(id) = todo.pop() {
        for dep in &nodes[id].deps {
            let shipped = dep.dep_kinds.iter().any(|k| k.kind.as_deref() != Some("dev"));
            if shipped && found.insert(&dep.pkg) {
                todo.push(&dep.pkg);
            }
        }
    }
    found
}

/// Returns true if the `allowed` licences satisfy an SPDX expression. Old manifests write `/` for
/// `OR`.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut words = words.into_iter().peekable();
    let result = any(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}: not an SPDX expression");
    result
}

type Words = Peekable<IntoIter<String>>;

fn any(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    let mut result = all(words, allowed);
    while words.next_if(|w| w == "OR").is_some() {
        result |= all(words, allowed);
    }
    result
}

fn all(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    let mut result = one(words, allowed);
    while words.next_if(|w| w == "AND").is_some() {
        result &= one(words, allowed);
    }
    result
}

fn one(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    let word = words.next().expect("an SPDX expression has a licence here");
    if word == "(" {
        let result = any(words, allowed);
        assert_eq!(words.next().as_deref(), Some(")"), "a bracket of an SPDX expression");
        return result;
    }
    if words.next_if(|w| w == "WITH").is_some() {
        let exception = words.next().expect("an SPDX expression has an exception after WITH");
        return allowed.contains(&format!("{word} WITH {exception}"));
    }
    allowed.contains(&word)
}

#[test]
fn test_licence_expression_needs_what_its_operators_say() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for good in [
        "MIT",
        "GPL-3.0-only OR MIT",
        "Unlicense/MIT",
        "MIT AND ISC",
        "(GPL-3.0-only OR MIT) AND ISC",
        "GPL-3.0-only OR MIT AND ISC",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(satisfied(good, &allowed), "{good}");
    }
    for bad in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "MIT AND (GPL-3.0-only OR Apache-2.0)",
        "Apache-2.0",
        "MIT WITH LLVM-exception",
    ] {
        assert!(!satisfied(bad, &allowed), "{bad}");
    }
}

#[test]
fn test_crates_keep_the_rules_of_deny_toml() {
    let rules = rules();
    assert!(!rules.graph.targets.is_empty(), "deny.toml names no target");
    // The test knows these settings. cargo-deny only warns of several versions of a crate, so the
    // test does not look for them.
    assert_eq!(rules.bans.multiple_versions, "warn");
    assert_eq!((rules.bans.wildcards.as_str(), rules.bans.allow_wildcard_paths), ("deny", true));
    assert_eq!(rules.sources.unknown_registry, "deny");
    assert_eq!(rules.sources.unknown_git, "deny");

    for target in &rules.graph.targets {
        let faults = faults(&metadata(target), &rules);
        assert!(faults.is_empty(), "{target}:\n{}", faults.join("\n"));
    }
}

/// Returns what breaks the rules in the crates that one target needs.
fn faults(metadata: &Metadata, rules: &Rules) -> Vec<String> {
    let shipped = shipped(metadata);
    assert!(shipped.len() > metadata.workspace_members.len(), "no crate of others is shipped");
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        let ours = metadata.workspace_members.contains(&package.id);
        let source = package.source.as_deref();
        if !ours && source != Some("registry+https://github.com/rust-lang/crates.io-index") {
            faults.push(format!("{name} comes from {source:?}"));
        }
        if !shipped.contains(package.id.as_str()) {
            continue;
        }
        match &package.license {
            None => faults.push(format!("{name} names no licence")),
            Some(l) if satisfied(l, &rules.licenses.allow) => {}
            Some(l) => faults.push(format!("{name}: its licence, {l}, is not allowed")),
        }
        let wild = package.dependencies.iter().filter(|d| d.req == "*" && d.path.is_none());
        faults.extend(wild.map(|d| format!("{name} takes any version of {}", d.name)));
    }
    faults
}
