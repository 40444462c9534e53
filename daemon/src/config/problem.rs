//! What is wrong with a file, and where.

use core::fmt;
use core::ops::Range;
use std::path::PathBuf;

/// Why there is no configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// It says what cannot be.
    Wrong {
        /// Which.
        path: PathBuf,
        /// What, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its line, from 1 on.
    pub line: usize,
    /// Its column in characters, from 1 on.
    pub column: usize,
    /// What, and what was expected: one line.
    pub text: String,
}

impl Problem {
    /// At octets `span` of `text`.
    pub(crate) fn at(text: &str, span: Range<usize>, what: impl fmt::Display) -> Problem {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Problem {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            text: what.to_string().replace('\n', " "),
        }
    }

    /// What the reader of the format, or of its types, says.
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
    /// A line for each problem, as compilers write them.
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
