//! A fixed rate, as people write it.

use core::fmt;
use core::str::FromStr;

use heddle_base::units::{Size, UnitError, per_second};

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
        let (n, unit) = per_second(s).ok_or_else(bad)?;
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
