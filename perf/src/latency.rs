//! Distributions of times.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A distribution in nanoseconds. Values are exact to three significant digits; `min` and `max` are
/// rounded like the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest time.
    pub min: u64,
    /// The median: half of the times are not longer.
    pub p50: u64,
    /// 90 of 100 times are not longer.
    pub p90: u64,
    /// 99 of 100 times are not longer.
    pub p99: u64,
    /// 999 of 1,000 times are not longer.
    pub p999: u64,
    /// The longest time.
    pub max: u64,
    /// The number of measured times.
    #[serde(skip)]
    pub count: u64,
}

/// The longest time in nanoseconds that the recorder distinguishes from longer ones.
const LONGEST: u64 = 60_000_000_000;

/// Gathers times.
#[derive(Clone, Debug)]
pub struct Recorder(Histogram<u64>);

impl Default for Recorder {
    fn default() -> Self {
        let h = Histogram::new_with_bounds(1, LONGEST, 3);
        Recorder(h.expect("bounds and digits are in the documented range"))
    }
}

impl Recorder {
    /// Records a time, without allocating memory.
    #[inline]
    pub fn record(&mut self, d: Duration) {
        self.record_nanos(u64::try_from(d.as_nanos()).unwrap_or(LONGEST));
    }

    /// Records a time in nanoseconds.
    #[inline]
    pub fn record_nanos(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Returns the distribution so far; all zero when no time has been recorded.
    pub fn latency(&self) -> Latency {
        let h = &self.0;
        if h.is_empty() {
            return Latency::default();
        }
        Latency {
            min: h.min(),
            p50: h.value_at_quantile(0.5),
            p90: h.value_at_quantile(0.9),
            p99: h.value_at_quantile(0.99),
            p999: h.value_at_quantile(0.999),
            max: h.max(),
            count: h.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_latency_quantiles_match_a_known_distribution() {
        let mut r = Recorder::default();
        (1..=1000).for_each(|n| r.record(Duration::from_nanos(n)));
        let l = r.latency();
        assert_eq!((l.min, l.p50, l.p90, l.p99, l.p999, l.max), (1, 500, 900, 990, 999, 1000));
        assert_eq!(l.count, 1000);
    }

    #[test]
    fn test_empty_recorder_reports_zero_and_long_times_are_capped() {
        let mut r = Recorder::default();
        assert_eq!(r.latency(), Latency::default());
        r.record(Duration::from_secs(3600));
        assert!(r.latency().max >= LONGEST);
        r.clear();
        assert_eq!(r.latency().count, 0);
    }
}
