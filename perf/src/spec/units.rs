//! Numbers with units, as people write them.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

use super::SpecError;

/// A number of bytes: `0`, `4096`, `64K`, `1M`, `1G`, with powers of 1,024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u32);

const SIZE: &str = "a size such as 0, 512, 64K or 1M";

impl FromStr for Size {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Size, SpecError> {
        let bad = || SpecError::Malformed { given: s.into(), expected: SIZE };
        let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &s[digits.len()..] {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            _ => return Err(bad()),
        };
        // `parse` would accept a sign.
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let n: u32 = digits.parse().map_err(|_| bad())?;
        n.checked_mul(1 << shift).map(Size).ok_or_else(bad)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = match self.0 {
            n if n > 0 && n % (1 << 30) == 0 => (n >> 30, "G"),
            n if n > 0 && n % (1 << 20) == 0 => (n >> 20, "M"),
            n if n > 0 && n % (1 << 10) == 0 => (n >> 10, "K"),
            n => (n, ""),
        };
        f.pad(&format!("{n}{unit}"))
    }
}

/// A single size, or the powers of two in a range: `1..1M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    first: Size,
    last: Size,
}

impl Sizes {
    /// Makes a list of a single size.
    pub fn one(size: Size) -> Sizes {
        Sizes { first: size, last: size }
    }

    /// Returns the sizes in turn.
    pub fn iter(&self) -> impl Iterator<Item = Size> + use<> {
        let last = self.last.0;
        core::iter::successors(Some(self.first), move |s| {
            s.0.checked_mul(2).filter(|&n| n > s.0 && n <= last).map(Size)
        })
    }

    /// Returns true if there is only one size.
    pub fn is_one(&self) -> bool {
        self.first == self.last
    }
}

impl FromStr for Sizes {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Sizes, SpecError> {
        let bad = || SpecError::Malformed {
            given: s.into(),
            expected: "a range of sizes such as 1..1M, from one power of two to a larger one",
        };
        let Some((a, b)) = s.split_once("..") else {
            return s.parse().map(Sizes::one);
        };
        let (first, last) = (a.parse::<Size>()?, b.parse::<Size>()?);
        if first.0.is_power_of_two() && last.0.is_power_of_two() && first <= last {
            Ok(Sizes { first, last })
        } else {
            Err(bad())
        }
    }
}

/// A time: `10s`, `500ms`, `2m`, `100us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Span, SpecError> {
        let bad = || SpecError::Malformed {
            given: s.into(),
            expected: "a time with its unit such as 10s, 500ms or 2m",
        };
        let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let n: u32 = digits.parse().map_err(|_| bad())?;
        let unit = match &s[digits.len()..] {
            "us" => Duration::from_micros(1),
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            _ => return Err(bad()),
        };
        Ok(Span(unit * n))
    }
}

/// A share of frames: `0.01` or `1%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// The probability of an event that never happens.
    pub const ZERO: Probability = Probability(0.0);

    /// Returns the probability as a number in 0..=1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Probability, SpecError> {
        let (number, scale) = match s.strip_suffix('%') {
            Some(n) => (n, 0.01),
            None => (s, 1.0),
        };
        match number.parse::<f64>().map(|p| p * scale) {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(Probability(p)),
            _ => Err(SpecError::Malformed {
                given: s.into(),
                expected: "a share of frames such as 0.01 or 1%",
            }),
        }
    }
}
