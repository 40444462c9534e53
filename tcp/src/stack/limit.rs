//! A token bucket for what strangers can make us send.

use heddle_base::Instant;

/// Allows `rate` events a second on average and as many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    /// One event costs this many nanoseconds of credit.
    cost: u64,
    burst: u64,
    /// Credit is the time since here, at most `burst`.
    empty_at: u64,
}

impl RateLimit {
    pub(super) fn per_second(rate: u32) -> RateLimit {
        let cost = 1_000_000_000 / u64::from(rate.max(1));
        RateLimit { cost, burst: 1_000_000_000, empty_at: 0 }
    }

    /// Whether one more event may happen at `now`.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        // The origin of the clock is shifted by the burst so that a clock at 0 starts full.
        let now = now.as_nanos().saturating_add(self.burst);
        let from = self.empty_at.max(now - self.burst);
        let allowed = now.saturating_sub(from) >= self.cost;
        if allowed {
            self.empty_at = from + self.cost;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_burst_then_rate() {
        let mut l = RateLimit::per_second(100);
        let count =
            |l: &mut RateLimit, ms| (0..500).filter(|_| l.allow(Instant::from_millis(ms))).count();
        assert_eq!(count(&mut l, 0), 100);
        assert_eq!(count(&mut l, 9), 0);
        assert_eq!(count(&mut l, 10), 1);
        assert_eq!(count(&mut l, 110), 10);
        assert_eq!(count(&mut l, 10_000), 100);
    }
}
