//! The names that the library exports, with their versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::library::library;

/// Returns the lines of a list beside this test, without its comments.
fn list(name: &str) -> BTreeSet<String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ibverbs/names")).join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect()
}

fn exported() -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(library().join("libibverbs.so.1"));
    let out = nm.output().expect("nm is missing: install binutils");
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').nth(2)).map(String::from).collect()
}

#[test]
fn test_library_exports_every_name_with_its_version_and_no_other() {
    let (ours, wanted) = (exported(), list("exported"));
    assert!(wanted.len() > 150);
    let missing: Vec<_> = wanted.difference(&ours).collect();
    let more: Vec<_> = ours.difference(&wanted).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing: {missing:?}; not asked for: {more:?}");
}

#[test]
fn test_programs_of_the_distribution_find_every_name_that_they_import() {
    // Compare names with their versions, whether or not the version is the default.
    let ours: BTreeSet<String> = exported().iter().map(|name| name.replace("@@", "@")).collect();
    let imports = list("imported");
    assert!(imports.len() > 400);
    let missing: Vec<_> =
        imports.iter().filter(|line| !ours.contains(line.split_once(' ').unwrap().1)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn test_library_has_soname_that_programs_link_against() {
    let mut readelf = Command::new("readelf");
    readelf.arg("-d").arg(library().join("libibverbs.so.1"));
    let out = readelf.output().expect("readelf is missing: install binutils");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("Library soname: [libibverbs.so.1]"), "{text}");
    assert!(!text.contains("TEXTREL"), "{text}");
}
