//! Medians and spreads of a few rounds.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Several measurements of the same thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds a measurement.
    pub fn push(&mut self, v: f64) {
        self.0.push(v);
    }

    /// Returns the middle measurement, or the mean of the two in the middle; 0 without
    /// measurements.
    pub fn median(&self) -> f64 {
        let mut v = self.0.clone();
        v.sort_by(f64::total_cmp);
        match v.len() {
            0 => 0.0,
            n if n % 2 == 1 => v[n / 2],
            n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
        }
    }

    /// Returns the smallest measurement; 0 without measurements.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    /// Returns the largest measurement; 0 without measurements.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().reduce(f64::max).unwrap_or(0.0)
    }

    /// Returns the standard deviation of a sample; 0 with fewer than two measurements.
    pub fn deviation(&self) -> f64 {
        let n = self.0.len();
        if n < 2 {
            return 0.0;
        }
        let mean = self.0.iter().sum::<f64>() / n as f64;
        let squares = self.0.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        (squares / (n - 1) as f64).sqrt()
    }

    /// Returns median, extremes and deviation.
    pub fn spread(&self) -> Spread {
        Spread { median: self.median(), min: self.min(), max: self.max(), stddev: self.deviation() }
    }

    /// Returns the number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ratios to `other`, round by round: a change of the machine between rounds
    /// affects both sides of a ratio.
    #[must_use]
    pub fn ratios_to(&self, other: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }
}

/// The summary of several measurements of the same thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle measurement, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest measurement.
    pub min: f64,
    /// The largest measurement.
    pub max: f64,
    /// The standard deviation of a sample; 0 for a single measurement.
    pub stddev: f64,
}

impl FromIterator<f64> for Rounds {
    fn from_iter<T: IntoIterator<Item = f64>>(iter: T) -> Rounds {
        Rounds(iter.into_iter().collect())
    }
}

impl Extend<f64> for Rounds {
    fn extend<T: IntoIterator<Item = f64>>(&mut self, iter: T) {
        self.0.extend(iter);
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = f.precision().unwrap_or(2);
        write!(f, "{:.p$} [{:.p$}..{:.p$}]", self.median(), self.min(), self.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(v: &[f64]) -> Rounds {
        let mut r = Rounds::default();
        r.extend(v.iter().copied());
        r
    }

    #[test]
    fn test_median_of_odd_even_and_empty_rounds_is_correct() {
        assert_eq!(rounds(&[9.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(rounds(&[4.0, 1.0, 2.0, 9.0]).median(), 3.0);
        assert_eq!((rounds(&[]).median(), rounds(&[]).min(), rounds(&[]).max()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn test_spread_has_the_deviation_of_a_sample() {
        let s = rounds(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).spread();
        assert_eq!((s.median, s.min, s.max), (4.5, 2.0, 9.0));
        assert!((s.stddev - (32.0f64 / 7.0).sqrt()).abs() < 1e-12, "{s:?}");
        assert_eq!(rounds(&[3.0]).spread().stddev, 0.0);
    }

    #[test]
    fn test_display_gives_median_and_spread() {
        assert_eq!(format!("{:.1}", rounds(&[3.0, 1.0, 2.0])), "2.0 [1.0..3.0]");
    }

    #[test]
    fn test_ratios_are_taken_within_rounds() {
        let r = rounds(&[2.0, 8.0, 3.0]).ratios_to(&rounds(&[1.0, 4.0, 1.0]));
        assert_eq!(r, rounds(&[2.0, 2.0, 3.0]));
    }
}
