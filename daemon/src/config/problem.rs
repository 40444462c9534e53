//! Problems of a file, and their places.

use core::fmt;
use core::ops::Range;
use std::path::PathBuf;

/// The reason why there is no configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// The file has values that are not valid.
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// The problems, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// A single problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line of the problem, from 1 on.
    pub line: usize,
    /// Column of the problem in characters, from 1 on.
    pub column: usize,
    /// Path of the key, as `port[0].mtu`; empty for the file as a whole.
    pub key: String,
    /// The problem and the expected value, in one line.
    pub text: String,
    /// Whether an appliance starts nevertheless.
    pub warning: bool,
    /// The problem's bytes in the file.
    pub(super) span: Range<usize>,
}

impl Problem {
    /// Makes a problem for the bytes `span` of `text`.
    pub(crate) fn at(text: &str, span: Range<usize>, what: impl fmt::Display) -> Problem {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Problem {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: String::new(),
            warning: false,
            span,
            text: what.to_string().replace('\n', " "),
        }
    }

    /// Returns the problem as one of a key.
    pub(super) fn of_key(self, key: String) -> Problem {
        Problem { key, ..self }
    }

    /// Returns the problem as a warning.
    pub(super) fn into_warning(self) -> Problem {
        Problem { warning: true, ..self }
    }

    /// Makes a problem of an error in the format.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> Problem {
        Problem::at(text, error.span().unwrap_or(0..0), error.message())
    }
}

/// Returns the name that a wrong one was probably meant for, if any is similar enough.
pub(super) fn closest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Least similarity: two of five letters may be wrong, and neighbors that changed places count
    /// as one.
    const ALIKE: f64 = 0.6;
    let like = known.map(|known| (strsim::normalized_damerau_levenshtein(given, known), known));
    let best = like.filter(|(like, _)| *like >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| known)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if self.warning {
            f.write_str("warning: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

impl fmt::Display for ConfigError {
    /// Writes a line for each problem, as compilers do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Read { path, why } => write!(f, "cannot read {}: {why}", path.display()),
            ConfigError::Wrong { path, problems } => {
                for (n, p) in problems.iter().enumerate() {
                    let end = if n + 1 < problems.len() { "\n" } else { "" };
                    write!(f, "{}:{p}{end}", path.display())?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ConfigError {}
