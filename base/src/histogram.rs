//! Distributions of times.

use core::time::Duration;

/// Values up to 2 to this power, 256 ns, share the first bucket.
const FIRST_BITS: u32 = 8;
/// Values beyond 2 to this power, some 34 s, share the last bucket.
const LAST_BITS: u32 = 35;
/// Buckets for each power of two between the first and the last bucket.
const PER_OCTAVE: u32 = 2;

/// Counts how often times of each length occurred.
///
/// Buckets grow with the values: two for each power of two, from 256 ns to 34 s, so that a reader
/// knows a value to within a third. A histogram has a fixed size of half a KiB, counts in a few
/// instructions without a branch, and never wraps: a count or sum that has reached its maximum
/// stays there.
///
/// ```
/// use heddle_base::Histogram;
/// let mut h = Histogram::default();
/// for us in [3, 5, 5, 900] {
///     h.record(us * 1000);
/// }
/// assert_eq!((h.count(), h.sum()), (4, 913_000));
/// // 5 µs lie in the bucket of those above 4,096 ns and up to 6,144 ns.
/// assert_eq!(h.quantile(0.5), 6_144);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Histogram::BUCKETS],
    sum: u64,
}

impl Histogram {
    /// Number of buckets, including the last, which takes all longer times.
    pub const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) * PER_OCTAVE + 2) as usize;

    /// A histogram that has counted no time.
    pub const ZERO: Histogram = Histogram { counts: [0; Histogram::BUCKETS], sum: 0 };

    /// Counts a time of `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts a time of `ns` nanoseconds `times` times, for a sample that stands for others.
    #[inline]
    pub fn record_many(&mut self, ns: u64, times: u64) {
        // As in Prometheus, a bucket includes its upper bound, so the index is computed from `ns -
        // 1`. Times below the first bucket's bound count as that bound.
        let below = (1 << FIRST_BITS) - 1;
        let v = ns.saturating_sub(1).max(below);
        let log = v.ilog2();
        let half = (v >> (log - 1)) & 1;
        // The first bucket is the upper half of the octave below FIRST_BITS, and has index 0.
        let index =
            u64::from(log) * u64::from(PER_OCTAVE) + half - u64::from(FIRST_BITS * PER_OCTAVE - 1);
        // The index is at most 2 * 63 + 1, so any `usize` holds it.
        #[expect(clippy::cast_possible_truncation, reason = "at most 127")]
        let index = (index as usize).min(Histogram::BUCKETS - 1);
        let count = &mut self.counts[index];
        *count = count.saturating_add(times);
        self.sum = self.sum.saturating_add(ns.saturating_mul(times));
    }

    /// Counts a time; a time beyond 584 years counts as 584 years.
    pub fn record_time(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts and the sum of `other`.
    pub fn add(&mut self, other: &Histogram) {
        for (mine, its) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*its);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the number of times counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Returns the sum of all times, in nanoseconds.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns each bucket: its inclusive upper bound in nanoseconds, and the number of times that
    /// lie above the previous bucket's bound and not above this bound. The last bucket has no
    /// bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(n, count)| (bound(n), *count))
    }

    /// Returns the upper bound, in nanoseconds, of the bucket that contains the quantile `q` (0 to
    /// 1): a share `q` of all times does not exceed this bound. Returns 0 where no time was
    /// counted, and [`u64::MAX`] beyond the last bound.
    pub fn quantile(&self, q: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a count: what is lost is less than a part in 2^52"
        )]
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (bound, n) in self.buckets() {
            seen = seen.saturating_add(n);
            if seen >= rank {
                return bound.unwrap_or(u64::MAX);
            }
        }
        u64::MAX
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::ZERO
    }
}

/// Returns the largest value of bucket `n` (256, 384, 512, 768 and so on); the last bucket has
/// none.
fn bound(n: usize) -> Option<u64> {
    if n + 1 >= Histogram::BUCKETS {
        return None;
    }
    let n = u32::try_from(n).ok()?;
    let octave = 1u64 << (FIRST_BITS + n / PER_OCTAVE);
    Some(octave + u64::from(n % PER_OCTAVE) * (octave / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bucket that a value falls into.
    fn bucket(ns: u64) -> usize {
        let mut h = Histogram::ZERO;
        h.record(ns);
        h.counts.iter().position(|n| *n == 1).unwrap_or(usize::MAX)
    }

    #[test]
    fn test_histogram_puts_bound_in_its_bucket_and_next_value_in_the_next() {
        for n in 0..Histogram::BUCKETS - 1 {
            let bound = bound(n).unwrap_or_default();
            assert_eq!((bucket(bound), bucket(bound + 1)), (n, n + 1), "{bound}");
        }
    }

    #[test]
    fn test_histogram_bounds_span_256_ns_to_34_s_in_steps_of_at_most_half() {
        let bounds: Vec<u64> = Histogram::ZERO.buckets().filter_map(|(b, _)| b).collect();
        assert_eq!(bounds.len(), Histogram::BUCKETS - 1);
        assert_eq!((bounds[0], bounds[1], bounds[2]), (256, 384, 512));
        assert_eq!(bounds[bounds.len() - 1], 1 << 35);
        for pair in bounds.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] * 2 <= pair[0] * 3, "{pair:?}");
        }
    }

    #[test]
    fn test_histogram_has_buckets_for_zero_and_for_largest_value() {
        assert_eq!((bucket(0), bucket(1), bucket(u64::MAX)), (0, 0, Histogram::BUCKETS - 1));
        let last = Histogram::ZERO.buckets().last();
        assert_eq!(last, Some((None, 0)));
    }

    #[test]
    fn test_histogram_counts_and_sum_saturate() {
        let mut h = Histogram::ZERO;
        h.counts[0] = u64::MAX;
        h.record(3);
        assert_eq!((h.counts[0], h.count()), (u64::MAX, u64::MAX));
        h.record(u64::MAX);
        assert_eq!(h.sum(), u64::MAX);
        let mut twice = h;
        twice.add(&h);
        assert_eq!((twice.count(), twice.sum()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn test_histogram_weighs_sample_by_the_number_it_stands_for() {
        let (mut one, mut eight) = (Histogram::ZERO, Histogram::ZERO);
        one.record_many(700, 8);
        (0..8).for_each(|_| eight.record(700));
        assert_eq!((one, one.sum(), one.count()), (eight, 5600, 8));
        one.record_many(u64::MAX, 2);
        assert_eq!(one.sum(), u64::MAX);
    }

    #[test]
    fn test_sum_of_two_histograms_equals_one_histogram_of_all_values() {
        let (mut a, mut b, mut all) = (Histogram::ZERO, Histogram::ZERO, Histogram::ZERO);
        for n in 0..10_000u64 {
            let ns = n * n * n;
            if n % 3 == 0 {
                a.record(ns)
            } else {
                b.record(ns)
            }
            all.record(ns);
        }
        a.add(&b);
        assert_eq!(a, all);
    }

    #[test]
    fn test_histogram_quantile_is_bucket_bound_of_value_at_that_rank() {
        let mut h = Histogram::ZERO;
        assert_eq!(h.quantile(0.5), 0);
        for _ in 0..99 {
            h.record(1000);
        }
        h.record_time(Duration::from_millis(1));
        assert_eq!((h.quantile(0.0), h.quantile(0.99)), (1024, 1024));
        assert_eq!(h.quantile(0.995), 1 << 20);
        h.record_time(Duration::from_secs(100));
        assert_eq!(h.quantile(1.0), u64::MAX);
    }
}
