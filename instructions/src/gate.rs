//! Comparison of counts with the figures of the file.

use core::fmt::Write as _;
use core::str::FromStr;
use std::collections::BTreeMap;

/// How far a count may be from its figure, in per cent.
pub(crate) const TOLERANCE: u64 = 2;

/// Instructions per operation by name of the case, as in the file. The file has a line
/// `"name" = number` for each case and comments after `#`, which is TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures(pub(crate) BTreeMap<String, u64>);

/// The error for a line that is no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the figures is not '\"case\" = instructions': {text}")]
pub(crate) struct FiguresError {
    line: usize,
    text: String,
}

impl FromStr for Figures {
    type Err = FiguresError;

    fn from_str(s: &str) -> Result<Figures, FiguresError> {
        let mut all = BTreeMap::new();
        for (i, line) in s.lines().enumerate() {
            let text = line.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let bad = || FiguresError { line: i + 1, text: line.into() };
            let (name, n) = text.split_once('=').ok_or_else(bad)?;
            let name = name.trim().strip_prefix('"').and_then(|n| n.strip_suffix('"'));
            let n = n.trim().replace('_', "").parse().map_err(|_| bad())?;
            if n == 0 || all.insert(name.ok_or_else(bad)?.to_owned(), n).is_some() {
                return Err(bad());
            }
        }
        Ok(Figures(all))
    }
}

impl Figures {
    /// Returns the text of the file.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from(
            "# Instructions per operation (or lines of memory), both ends together, as callgrind counts them.\n\
             # Made by `scripts/bench --instructions --renew`; instructions/src/main.rs says of what.\n",
        );
        for (name, n) in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "\"{name}\" = {n}");
        }
        text
    }
}

/// The result of comparing a count with its figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The count is the same, within [`TOLERANCE`].
    Same,
    /// The count is less by more than the tolerance: renew the figure, or a later rise passes
    /// unnoticed.
    Better,
    /// The count is more by more than the tolerance.
    Worse,
    /// The file has no figure.
    Unknown,
}

/// Compares a count with its figure.
pub(crate) fn judge(figure: Option<u64>, count: u64) -> Verdict {
    let Some(figure) = figure.filter(|&f| f > 0) else { return Verdict::Unknown };
    // Compute in whole numbers: a count exactly at the limit is within it.
    let (count, figure) = (u128::from(count) * 100, u128::from(figure));
    if count > figure * u128::from(100 + TOLERANCE) {
        Verdict::Worse
    } else if count < figure * u128::from(100 - TOLERANCE) {
        Verdict::Better
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gate_reports_change_only_beyond_two_percent() {
        for (count, want) in [
            (10_000, Verdict::Same),
            (10_200, Verdict::Same),
            (10_201, Verdict::Worse),
            (9_800, Verdict::Same),
            (9_799, Verdict::Better),
            (0, Verdict::Better),
        ] {
            assert_eq!(judge(Some(10_000), count), want, "{count}");
        }
        assert_eq!(judge(None, 5), Verdict::Unknown);
        assert_eq!(judge(Some(0), 5), Verdict::Unknown);
    }

    #[test]
    fn test_figures_parse_back_from_their_text() {
        let f = Figures(BTreeMap::from([("b-1".into(), 7), ("a".into(), 123_456)]));
        assert_eq!(f.to_text().parse(), Ok(f));
    }

    #[test]
    fn test_figures_refuse_malformed_lines() {
        for bad in ["a = 1", "\"a\"", "\"a\" = x", "\"a\" = 0", "\"a\" = 1\n\"a\" = 2", "[a]"] {
            assert!(bad.parse::<Figures>().is_err(), "{bad}");
        }
        assert_eq!(" # nothing\n\n".parse(), Ok(Figures::default()));
        let one = Figures(BTreeMap::from([("a".into(), 1_000)]));
        assert_eq!("\"a\" = 1_000 # so".parse(), Ok(one));
    }
}
