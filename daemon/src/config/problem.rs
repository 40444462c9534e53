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
    /// The problem and the expected value, in one line.
    pub text: String,
}

impl Problem {
    /// Makes a problem for the bytes `span` of `text`.
    pub(crate) fn at(text: &str, span: Range<usize>, what: impl fmt::Display) -> Problem {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Problem {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            text: what.to_string().replace('\n', " "),
        }
    }

    /// Makes a problem of an error in the format, or in a type.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> Problem {
        Problem::at(text, error.span().unwrap_or(0..0), error.message())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
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
