//! A fixed rate, as people write it.

use core::fmt;
use core::str::FromStr;

use heddle_base::units::{Size, UnitError};

/// A rate of all connections together: `50k` or `50kop/s` (operations), `100MB/s` (bytes),
/// `10Gbit/s` (bits), with powers of 1,000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Operations per second.
    Ops(f64),
    /// Bytes of payload per second.
    Bytes(f64),
}

impl Rate {
    /// Returns the operations per second of messages of `size` bytes; infinite for bytes per second
    /// of empty messages.
    pub fn ops(self, size: Size) -> f64 {
        match self {
            Rate::Ops(n) => n,
            Rate::Bytes(n) => n / f64::from(size.0),
        }
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Rate, UnitError> {
        let bad = || UnitError {
            given: s.into(),
            expected: "a rate such as 50k or 50kop/s (operations), 100MB/s or 10Gbit/s",
        };
        let text = s.strip_suffix("/s").unwrap_or(s);
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        // `parse` would also accept signs, exponents and names.
        if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(bad());
        }
        let n: f64 = digits.parse().map_err(|_| bad())?;
        let unit = &text[digits.len()..];
        let (factor, unit) = match unit.chars().next() {
            Some('k' | 'K') => (1e3, &unit[1..]),
            Some('M') => (1e6, &unit[1..]),
            Some('G') => (1e9, &unit[1..]),
            _ => (1.0, unit),
        };
        let n = n * factor;
        if n <= 0.0 || !n.is_finite() {
            return Err(bad());
        }
        match unit {
            "" | "op" => Ok(Rate::Ops(n)),
            "B" => Ok(Rate::Bytes(n)),
            "bit" => Ok(Rate::Bytes(n / 8.0)),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Ops(n) => write!(f, "{n} op/s"),
            Rate::Bytes(n) => write!(f, "{n} B/s"),
        }
    }
}
