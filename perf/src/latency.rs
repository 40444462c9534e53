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

impl Latency {
    /// Returns the distribution of the halves of the times.
    #[must_use]
    pub fn halved(self) -> Latency {
        let Latency { min, p50, p90, p99, p999, max, count } = self;
        let [min, p50, p90, p99, p999, max] = [min, p50, p90, p99, p999, max].map(|ns| ns / 2);
        Latency { min, p50, p90, p99, p999, max, count }
    }
}

/// A step of a distribution: times up to a bound, and beyond the bound of the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The longest time of the step, in nanoseconds.
    pub ns: u64,
    /// The number of times in the step.
    pub count: u64,
}

/// Steps of a histogram for each doubling of the time.
const STEPS_PER_DOUBLING: i32 = 8;

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

    /// Adds the times of another recorder.
    pub fn add(&mut self, other: &Recorder) {
        // Both have the same bounds, so the addition cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// Returns the distribution of the times recorded since `self` was the same as `before`.
    pub fn since(&self, before: &Recorder) -> Latency {
        let mut rest = self.clone();
        // Times are only added between clears, so no step of `before` has more than `self`.
        let _ = rest.0.subtract(&before.0);
        rest.latency()
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the distribution in steps, eight for each doubling of the time, without empty ones.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut step = i32::MIN;
        for v in self.0.iter_recorded() {
            let ns = v.value_iterated_to();
            let this = bound_index(ns);
            match steps.last_mut() {
                Some(last) if this == step => {
                    *last = Step { ns, count: last.count + v.count_at_value() };
                }
                _ => steps.push(Step { ns, count: v.count_at_value() }),
            }
            step = this;
        }
        steps
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

/// Returns the number of the step of a histogram in which a time lies.
#[expect(clippy::cast_possible_truncation, reason = "64 doublings have 512 steps")]
fn bound_index(ns: u64) -> i32 {
    ((ns.max(1) as f64).log2() * f64::from(STEPS_PER_DOUBLING)).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_steps_hold_every_time_once_in_order() {
        let mut r = Recorder::default();
        (1..=100_000).for_each(|n| r.record_nanos(n));
        let steps = r.steps();
        assert_eq!(steps.iter().map(|s| s.count).sum::<u64>(), 100_000);
        assert!(steps.is_sorted_by(|a, b| a.ns < b.ns), "{steps:?}");
        assert!(steps.len() <= 17 * 8 && steps.len() > 64, "{}", steps.len());
        assert!(steps.last().is_some_and(|s| (100_000..=100_200).contains(&s.ns)), "{steps:?}");
        assert_eq!(Recorder::default().steps(), []);
    }

    #[test]
    fn test_since_leaves_out_the_times_before() {
        let mut r = Recorder::default();
        r.record_nanos(1_000_000);
        let before = r.clone();
        (0..9).for_each(|_| r.record_nanos(100));
        let l = r.since(&before);
        assert_eq!((l.count, l.p50, l.max), (9, 100, 100));
        let mut sum = before.clone();
        sum.add(&before);
        assert!(sum.count() == 2 && sum.latency().min > 900_000, "{:?}", sum.latency());
    }

    #[test]
    fn test_halved_latency_keeps_the_count() {
        let l = Latency { min: 2, p50: 10, p90: 20, p99: 30, p999: 40, max: 51, count: 7 };
        let half = Latency { min: 1, p50: 5, p90: 10, p99: 15, p999: 20, max: 25, count: 7 };
        assert_eq!(l.halved(), half);
    }

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
