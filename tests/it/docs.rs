//! Checks of the pages: the book has all of them, every link leads somewhere, and the pictures are
//! those of their sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

#[path = "../support/pages.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use support::{Page, pages, root};

/// Pages outside `docs/`.
const MORE: [&str; 5] =
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "packaging/README.md"];

/// Returns `to` as seen from the page `from`, without `.` and `..`; `None` outside the repository.
fn resolve(from: &Path, to: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(to).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// Returns the reason why a link of the page `from` leads nowhere.
fn fault(from: &Path, link: &str) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() { Some(from.to_owned()) } else { resolve(from, file) };
    let Some(path) = path else { return Some("leads out of the repository".into()) };
    if !root().join(&path).exists() {
        return Some(format!("there is no {}", path.display()));
    }
    let is_page = path.extension().is_some_and(|e| e == "md");
    if anchor.is_empty() {
        None
    } else if !is_page {
        Some("only pages have anchors".into())
    } else if !Page::read(&path).anchors.iter().any(|a| a == anchor) {
        Some(format!("{} has no heading #{anchor}", path.display()))
    } else {
        None
    }
}

#[test]
fn test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    let mut links = 0;
    for path in pages("docs", &MORE) {
        for (line, link) in Page::read(&path).links {
            links += 1;
            let fault = fault(&path, &link);
            faults.extend(fault.map(|f| format!("{}:{line}: {link}: {f}", path.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(links > 200, "only {links} links were found");
}

#[test]
fn test_wrong_link_is_reported_with_its_fault() {
    let from = Path::new("docs/guide/README.md");
    for (link, wrong) in [
        ("../../README.md#packages", None),
        ("#terms", None),
        ("../../examples", None),
        ("https://nexte.st", None),
        ("nothing.md", Some("there is no docs/guide/nothing.md")),
        ("../../README.md#nothing", Some("README.md has no heading #nothing")),
        ("../heddle.toml#port", Some("only pages have anchors")),
        ("../../../README.md", Some("leads out of the repository")),
        ("/README.md", Some("leads out of the repository")),
    ] {
        assert_eq!(fault(from, link).as_deref(), wrong, "{link}");
    }
    let page =
        Page::parse("# A `b`: c\n\n## Same\n## Same\n\n[x](y.md)\n\n```sh\n[no](link)\n```\n");
    assert_eq!(page.anchors, ["a-b-c", "same", "same-1"]);
    assert_eq!(page.links, [(6, "y.md".to_owned())]);
}

/// The book has the pages in the order of `docs/SUMMARY.md`; a page that is missing there would not
/// be in the book.
#[test]
fn test_summary_lists_every_page_once() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed = Page::read(summary).links;
    let listed = listed.iter().map(|(_, link)| resolve(summary, link).unwrap());
    let mut sorted: Vec<PathBuf> = listed.collect();
    sorted.sort();
    let all = pages("docs", &MORE).into_iter().filter(|p| p != summary);
    assert_eq!(sorted, all.collect::<Vec<_>>());
}

/// Returns the digest of a picture's source as `scripts/docs` writes it into the picture.
fn digest(source: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(source).iter().map(|b| format!("{b:02x}")).collect()
}

fn stems(extension: &str) -> BTreeSet<PathBuf> {
    let files = fs::read_dir(root().join("docs/pictures")).unwrap().map(|e| e.unwrap().path());
    let of_kind = files.filter(|p| p.extension().is_some_and(|e| e == extension));
    of_kind.map(|p| p.with_extension("")).collect()
}

/// Drawing takes Graphviz, which the tests do not need: each picture has the digest of the source
/// that `scripts/docs --pictures` drew it from.
#[test]
fn test_every_picture_is_drawn_from_its_source() {
    let sources = stems("dot");
    assert_eq!(sources, stems("svg"), "each source has one picture");
    assert!(!sources.is_empty());
    for stem in sources {
        let source = fs::read(stem.with_extension("dot")).unwrap();
        let picture = fs::read_to_string(stem.with_extension("svg")).unwrap();
        let mark = format!("<!-- sha256 of the source: {} -->", digest(&source));
        let name = stem.display();
        assert!(picture.contains(&mark), "{name}.svg is stale: run scripts/docs --pictures");
        assert!(picture.contains("prefers-color-scheme: dark"), "{name}.svg has no dark colours");
    }
}

/// Each picture is shown by some page.
#[test]
fn test_every_picture_is_shown_by_a_page() {
    let mut shown = BTreeSet::new();
    for path in pages("docs", &MORE) {
        let links = Page::read(&path).links;
        shown.extend(links.iter().filter_map(|(_, link)| resolve(&path, link)));
    }
    for stem in stems("svg") {
        let picture = stem.with_extension("svg");
        let picture = picture.strip_prefix(root()).unwrap();
        assert!(shown.contains(picture), "no page shows {}", picture.display());
    }
}
