//! The text of a file as TOML: its form, the places of its keys, and from there all keys and types
//! that the file should not have.
//!
//! serde stops at the first wrong key or type. So the reader takes the wrong entry out of the
//! parsed text and asks serde again, until nothing is wrong any more. Every round takes out an entry.

use core::ops::Range;
use std::collections::BTreeSet;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::file::File;
use super::problem::{Problem, closest};

/// A text that has the form of TOML.
pub(super) struct Text<'a> {
    text: &'a str,
    root: Spanned<DeTable<'a>>,
}

/// The keys that could be read, and the others.
pub(super) struct Read {
    pub(super) file: File,
    /// Unknown keys and wrong types.
    pub(super) problems: Vec<Problem>,
    /// Paths of the entries that were taken out, without the numbers of array elements. A check
    /// does not report a key as missing that is there and wrong.
    pub(super) broken: BTreeSet<String>,
}

impl<'a> Text<'a> {
    /// Parses a text.
    ///
    /// # Errors
    /// Everything that is not in the form of TOML.
    pub(super) fn parse(text: &'a str) -> Result<Text<'a>, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(Text { text, root });
        }
        Err(errors.iter().map(|e| Problem::of_toml(text, e)).collect())
    }

    /// Reads all keys.
    pub(super) fn read(&self) -> Read {
        let (mut problems, mut broken) = (Vec::new(), BTreeSet::new());
        let mut rest = self.root.clone();
        loop {
            let error = match File::deserialize(Deserializer::from(rest.clone())) {
                Ok(file) => return Read { file, problems, broken },
                Err(error) => error,
            };
            let span = error.span().unwrap_or(0..0);
            let what = said(error.message());
            problems.push(Problem::at(self.text, span.clone(), what).of_key(self.key_at(&span)));
            match take_out(rest.get_mut(), &span, "") {
                Some(path) => {
                    broken.insert(path);
                }
                // Without a place there is nothing to take out, and no sense in asking again.
                None => return Read { file: File::default(), problems, broken },
            };
        }
    }

    /// Adds to each problem the key in which it lies.
    pub(super) fn name_keys(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let named = |p: Problem| match p.key.is_empty() && !p.span.is_empty() {
            true => Problem { key: self.key_at(&p.span), ..p },
            false => p,
        };
        problems.into_iter().map(named).collect()
    }

    /// Makes a problem with a key, as `port[0].vdev`. If the file leaves the key out, the place is
    /// that of the innermost table that the file has.
    pub(super) fn problem(&self, key: &str, what: impl core::fmt::Display) -> Problem {
        let mut span = 0..0;
        let mut table = Some(self.root.get_ref());
        'parts: for part in key.split('.') {
            let (name, index) = match part.split_once('[') {
                Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
                None => (part, None),
            };
            let Some(value) = table.and_then(|t| t.iter().find(|(k, _)| *k.get_ref() == name))
            else {
                break 'parts;
            };
            let mut value = value.1;
            if let Some(index) = index {
                match value.get_ref().as_array().and_then(|a| a.get(index)) {
                    Some(element) => value = element,
                    None => break 'parts,
                }
            }
            span = value.span();
            table = value.get_ref().as_table();
        }
        Problem::at(self.text, span, what).of_key(key.to_owned())
    }

    /// Returns the number of the listener with an address among those of the file.
    pub(super) fn listener(&self, addr: core::net::SocketAddr) -> Option<usize> {
        let all = self.root.get_ref().iter().find(|(k, _)| *k.get_ref() == "listen")?.1;
        all.get_ref().as_array()?.iter().position(|l| {
            let given = l.get_ref().get("address").and_then(|a| a.get_ref().as_str());
            given.and_then(|a| crate::service::ServiceSpec::address(a).ok()) == Some(addr)
        })
    }

    /// Returns the path of the innermost key or value that covers a place; empty for the whole file.
    fn key_at(&self, span: &Range<usize>) -> String {
        let mut path = String::new();
        find(self.root.get_ref(), span, &mut path);
        path
    }
}

/// Returns true if `outer` covers `inner`.
fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end && !outer.is_empty()
}

/// Appends to `path` the way to the innermost entry that covers `span`. The place of a table is
/// that of its header alone, so the search looks into all tables.
fn find(table: &DeTable<'_>, span: &Range<usize>, path: &mut String) -> bool {
    let start = path.len();
    for (key, value) in table {
        path.truncate(start);
        path.push_str(if start == 0 { "" } else { "." });
        path.push_str(key.get_ref());
        if find_in(value, span, path) || covers(&key.span(), span) {
            return true;
        }
    }
    path.truncate(start);
    false
}

fn find_in(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut String) -> bool {
    let start = path.len();
    let inside = match value.get_ref() {
        DeValue::Table(table) => find(table, span, path),
        DeValue::Array(all) => all.iter().enumerate().any(|(n, element)| {
            path.truncate(start);
            path.push_str(&format!("[{n}]"));
            find_in(element, span, path)
        }),
        _ => false,
    };
    if !inside {
        path.truncate(start);
    }
    inside || covers(&value.span(), span)
}

/// Takes the innermost entry out whose key or value is at `span`, and returns its path without the
/// numbers of array elements. An element of an array takes the whole array with it, because
/// elements after it would change their numbers.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>, above: &str) -> Option<String> {
    let of = |key: &str| if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") };
    for (key, value) in table.iter_mut() {
        let path = of(key.get_ref());
        let taken = match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, span, &path),
            DeValue::Array(all) => all.iter_mut().find_map(|e| match e.get_mut() {
                DeValue::Table(inner) => take_out(inner, span, &path),
                _ => None,
            }),
            _ => None,
        };
        if taken.is_some() {
            return taken;
        }
    }
    let is_at = |v: &Spanned<DeValue<'_>>| {
        let elements = v.get_ref().as_array();
        v.span() == *span || elements.is_some_and(|all| all.iter().any(|e| e.span() == *span))
    };
    let exact = table.iter().find(|(k, v)| k.span() == *span || is_at(v));
    let exact = exact.map(|(k, _)| k.clone());
    let key = exact.or_else(|| {
        let around = table.iter().find(|(k, v)| covers(&k.span(), span) || covers(&v.span(), span));
        around.map(|(k, _)| k.clone())
    })?;
    table.remove(&key);
    Some(of(key.get_ref()))
}

/// Puts serde's message into the words of a file, with the key that an unknown key may stand for.
fn said(message: &str) -> String {
    /// Words of serde, and those of TOML for the same.
    const WORDS: [(&str, &str); 4] = [
        ("expected i64", "expected an integer"),
        ("expected a sequence", "expected an array"),
        ("invalid type: sequence", "invalid type: array"),
        ("invalid type: map", "invalid type: table"),
    ];
    let mut message = WORDS.iter().fold(message.to_owned(), |m, (from, to)| m.replace(from, to));
    // The rest is the name of a type of ours.
    if let Some(at) = message.find("expected struct ") {
        message.replace_range(at.., "expected a table");
    }
    let Some(rest) = message.strip_prefix("unknown field ") else { return message };
    let mut words = rest.split('`').skip(1).step_by(2);
    let given = words.next().unwrap_or_default();
    let meant = closest(given, words);
    let hint = meant.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    format!("unknown key {rest}{hint}")
}
