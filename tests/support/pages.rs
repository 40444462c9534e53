//! The pages of the documentation, as CommonMark with tables.

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Returns the top of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paths of all pages below `dir` and of `more`, from the top of the repository.
pub(crate) fn pages(dir: &str, more: &[&str]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = more.iter().map(PathBuf::from).collect();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                all.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    all.sort();
    all
}

/// A fenced block of code.
pub(crate) struct Block {
    /// The words after the opening fence.
    pub(crate) info: Vec<String>,
    pub(crate) text: String,
    /// The line of the opening fence, from 1.
    pub(crate) line: usize,
}

/// The parts of a page that the tests look at.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) blocks: Vec<Block>,
    /// Code within a line, with its line.
    pub(crate) code: Vec<(usize, String)>,
    /// Targets of links and images, with their lines.
    pub(crate) links: Vec<(usize, String)>,
    /// The anchors that GitHub and mdbook give the headings.
    pub(crate) anchors: Vec<String>,
}

impl Page {
    /// Reads a page, by its path from the top of the repository.
    pub(crate) fn read(path: &Path) -> Page {
        let text = fs::read_to_string(root().join(path))
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Page::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        let mut block: Option<Block> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = text[..range.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let title = heading.take().unwrap();
                    page.anchors.push(anchor(&title, &page.anchors));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => words(&info),
                        CodeBlockKind::Indented => Vec::new(),
                    };
                    block = Some(Block { info, text: String::new(), line });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Text(t) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&t);
                    } else if let Some(title) = &mut heading {
                        title.push_str(&t);
                    }
                }
                Event::Code(t) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&t);
                    }
                    page.code.push((line, t.into_string()));
                }
                _ => {}
            }
        }
        page
    }
}

fn words(info: &str) -> Vec<String> {
    info.split_whitespace().map(str::to_owned).collect()
}

/// Returns the anchor of a heading: letters and digits in lower case, hyphens for spaces, and a
/// number if a heading before it has the same.
fn anchor(title: &str, before: &[String]) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    let plain = kept.collect::<String>().to_lowercase().replace(' ', "-");
    let mut id = plain.clone();
    let mut n = 0;
    while before.contains(&id) {
        n += 1;
        id = format!("{plain}-{n}");
    }
    id
}
