//! Time as a value.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on a monotonic clock, in nanoseconds since an origin that the caller chooses.
///
/// The core crates never read a clock: a worker reads the cycle counter once per poll and passes
/// the result down; a simulation passes virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Instant = Instant(0);

    /// Returns the instant `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Returns the instant `ms` milliseconds after the origin.
    pub const fn from_millis(ms: u64) -> Instant {
        Instant(ms.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Returns the nanoseconds from `earlier` to this instant; 0 if this instant is not later. Code
    /// that runs for each segment compares these: a [`Duration`] costs a division, which splits off
    /// the seconds.
    #[inline]
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of the clock, 584 years after its origin.
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_duration_since_a_later_instant_is_zero() {
        let (a, b) = (Instant::from_nanos(5), Instant::from_nanos(9));
        assert_eq!(b.since(a), Duration::from_nanos(4));
        assert_eq!(a.since(b), Duration::ZERO);
        assert_eq!((b.nanos_since(a), a.nanos_since(b)), (4, 0));
    }

    #[test]
    fn test_instant_saturates_when_duration_is_added() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Instant::from_millis(2) + Duration::from_millis(1), Instant::from_millis(3));
    }
}
