//! Numbers with units, as people write them.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

/// Why a text is not a number with a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// The text.
    pub given: String,
    /// The expected form.
    pub expected: &'static str,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not {}", self.given, self.expected)
    }
}

impl core::error::Error for UnitError {}

/// A number of bytes: `0`, `4096`, `64K`, `1M`, `1G`, with powers of 1,024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u32);

const SIZE: &str = "a size such as 0, 512, 64K or 1M";

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Size, UnitError> {
        let bad = || UnitError { given: s.into(), expected: SIZE };
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
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Sizes, UnitError> {
        let bad = || UnitError {
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
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Span, UnitError> {
        let bad = || UnitError {
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

/// Splits a rate as people write it, such as `10Gbit/s`, into a positive number, with powers of
/// 1,000, and the unit. The `/s` may be left out.
pub fn per_second(s: &str) -> Option<(f64, &str)> {
    let text = s.strip_suffix("/s").unwrap_or(s);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    // `parse` would also accept signs, exponents and names.
    if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let n: f64 = digits.parse().ok()?;
    let unit = &text[digits.len()..];
    let (factor, unit) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M') => (1e6, &unit[1..]),
        Some('G') => (1e9, &unit[1..]),
        _ => (1.0, unit),
    };
    let n = n * factor;
    (n > 0.0 && n.is_finite()).then_some((n, unit))
}

/// A rate in bytes per second: `100MB/s` (bytes), `10Gbit/s` (bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRate(pub u64);

impl FromStr for ByteRate {
    type Err = UnitError;

    fn from_str(s: &str) -> Result<ByteRate, UnitError> {
        let bad = || UnitError { given: s.into(), expected: "a rate such as 100MB/s or 10Gbit/s" };
        let bytes = match per_second(s).ok_or_else(bad)? {
            (n, "B") => n,
            (n, "bit") => n / 8.0,
            _ => return Err(bad()),
        };
        if !s.ends_with("/s") || bytes >= 1e18 {
            return Err(bad());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..1e18")]
        let bytes = bytes.round() as u64;
        if bytes > 0 { Ok(ByteRate(bytes)) } else { Err(bad()) }
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k"), (1, "")];
        let (unit, name) =
            units.into_iter().find(|(n, _)| self.0.is_multiple_of(*n)).unwrap_or((1, ""));
        f.pad(&format!("{}{name}B/s", self.0 / unit))
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
    type Err = UnitError;

    fn from_str(s: &str) -> Result<Probability, UnitError> {
        let (number, scale) = match s.strip_suffix('%') {
            Some(n) => (n, 0.01),
            None => (s, 1.0),
        };
        match number.parse::<f64>().map(|p| p * scale) {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(Probability(p)),
            _ => {
                Err(UnitError { given: s.into(), expected: "a share of frames such as 0.01 or 1%" })
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn size(s: &str) -> Option<u32> {
        s.parse::<Size>().ok().map(|s| s.0)
    }

    #[test]
    fn test_size_parser_accepts_units_and_refuses_malformed_text() {
        assert_eq!(
            ["0", "1", "4096", "64K", "64k", "1M", "3G"].map(size),
            [Some(0), Some(1), Some(4096), Some(65536), Some(65536), Some(1 << 20), Some(3 << 30),]
        );
        for bad in ["", "K", "-1", "+1", "1.5K", "64KB", "4G", "4294967296", "1 K", "0x10", "é"] {
            assert_eq!(size(bad), None, "{bad:?}");
        }
        assert_eq!(size("4294967295"), Some(u32::MAX));
    }

    #[test]
    fn test_byte_rate_is_written_as_it_is_read() {
        for (text, bytes, shown) in [
            ("100MB/s", 100_000_000, "100MB/s"),
            ("10Gbit/s", 1_250_000_000, "1250MB/s"),
            ("1.5kB/s", 1500, "1500B/s"),
            ("8bit/s", 1, "1B/s"),
            ("2GB/s", 2_000_000_000, "2GB/s"),
        ] {
            assert_eq!(text.parse(), Ok(ByteRate(bytes)), "{text}");
            assert_eq!(ByteRate(bytes).to_string(), shown);
            assert_eq!(shown.parse(), Ok(ByteRate(bytes)));
        }
        let bad = ["", "100", "100MB", "0MB/s", "-1MB/s", "1e3B/s", "1MiB/s", "50kop/s", "1bit/s"];
        for bad in bad.into_iter().chain(["9999999999GB/s", "B/s", "1.2.3B/s"]) {
            let e = bad.parse::<ByteRate>().unwrap_err();
            assert!(e.to_string().contains("a rate such as"), "{bad}");
        }
    }

    #[test]
    fn test_sizes_are_the_powers_of_two() {
        let of = |s: &str| s.parse::<Sizes>().map(|s| s.iter().map(|s| s.0).collect::<Vec<_>>());
        assert_eq!(of("1..16"), Ok(vec![1, 2, 4, 8, 16]));
        assert_eq!(of("64K..64K"), Ok(vec![65536]));
        assert_eq!(of("100"), Ok(vec![100]));
        assert_eq!(of("0"), Ok(vec![0]));
        assert_eq!(of("1G..2G"), Ok(vec![1 << 30, 1 << 31]));
        for bad in ["0..16", "1..", "..1", "16..1", "3..8", "1..9", "1...8"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn test_span_needs_a_unit() {
        let of = |s: &str| s.parse::<Span>().ok().map(|s| s.0);
        assert_eq!(of("10s"), Some(Duration::from_secs(10)));
        assert_eq!(of("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(of("2m"), Some(Duration::from_secs(120)));
        assert_eq!(of("7us"), Some(Duration::from_micros(7)));
        for bad in ["", "10", "s", "1h", "1.5s", "-1s", "99999999999s"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn test_probability_in_both_notations() {
        let of = |s: &str| s.parse::<Probability>().ok().map(Probability::get);
        assert_eq!(
            [of("0"), of("0.25"), of("1"), of("1%"), of("100%")],
            [Some(0.0), Some(0.25), Some(1.0), Some(0.01), Some(1.0)]
        );
        for bad in ["", "%", "1.01", "-0.1", "101%", "nan", "inf"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
