//! The retransmission timeout (RFC 6298).

use core::time::Duration;

/// Clock granularity G: that of the timestamps option, the coarser of our two sources.
const GRANULARITY_NS: u64 = 1_000_000;
const GRANULARITY_US: u32 = 1000;

/// Samples that make one half of the window in which the estimator keeps the least round trip.
const MIN_RTT_SAMPLES: u32 = 10_000;
/// The estimator hands on the first of every so many samples.
const HANDED_ON: u32 = 8;
/// The value of a round trip while there is no sample.
const NONE: u64 = u64::MAX;
/// The shortest time to a tail probe. A round trip on a quiet link is a few microseconds, and a
/// short pause of a peer's thread is no loss.
const TAIL_MIN_NS: u64 = 200_000;

/// A long round trip: the least by which round trips must grow before slow start ends without a loss
/// (RFC 9406 section 4.3, MIN_RTT_THRESH), in ns.
pub(super) const LONG: u64 = 4_000_000;

/// Round-trip estimator and timeout. The caller takes care of Karn's rule: it gives no sample that
/// might belong to another transmission of the same bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rto {
    /// Smoothed round trip in ns; [`NONE`] until the first sample.
    srtt: u64,
    rttvar: u64,
    /// The timeout without backoff, within the bounds.
    base: u64,
    /// The timeout, backoff included.
    current: u64,
    /// Time to the tail probe, in ns.
    tail: u64,
    /// Two values in ns: the least round trip of the previous [`MIN_RTT_SAMPLES`] samples, and of
    /// the samples since. The estimator thus notices after a while that a path has become longer.
    min_rtt: [u64; 2],
    samples: u32,
    /// The last sample handed on ([`HANDED_ON`]), in ns, until a caller takes it; 0 when there is
    /// none. A sample beyond 4 s is limited to `u32::MAX`.
    fresh: u32,
    /// The bounds of the timeout, in microseconds.
    min_us: u32,
    max_us: u32,
}

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX)
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Rto {
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Rto {
        let max_us = micros(max).max(GRANULARITY_US);
        let min_us = micros(min).clamp(GRANULARITY_US, max_us);
        let base = nanos(initial).clamp(1000 * u64::from(min_us), 1000 * u64::from(max_us));
        Rto {
            srtt: NONE,
            rttvar: 0,
            base,
            current: base,
            tail: base,
            min_rtt: [NONE; 2],
            samples: 0,
            fresh: 0,
            min_us,
            max_us,
        }
    }

    /// Returns the least timeout, in ns.
    fn min(&self) -> u64 {
        1000 * u64::from(self.min_us)
    }

    /// Returns the longest timeout, in ns.
    fn max(&self) -> u64 {
        1000 * u64::from(self.max_us)
    }

    /// Takes a measurement (RFC 6298 2.2, 2.3) and ends the backoff.
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.sample_nanos(nanos(rtt));
    }

    /// Takes a measurement in ns, as [`sample`](Rto::sample) does.
    pub(super) fn sample_nanos(&mut self, rtt: u64) {
        let r = rtt.min(self.max()).min(NONE - 1);
        let srtt = match self.srtt {
            NONE => {
                self.rttvar = r / 2;
                r
            }
            srtt => {
                // RTTVAR first, with the old SRTT; alpha = 1/8, beta = 1/4.
                self.rttvar = self.rttvar - self.rttvar / 4 + srtt.abs_diff(r) / 4;
                srtt - srtt / 8 + r / 8
            }
        };
        self.srtt = srtt;
        if self.samples.is_multiple_of(HANDED_ON) {
            self.fresh = u32::try_from(r).unwrap_or(u32::MAX).max(1);
        }
        self.min_rtt[1] = self.min_rtt[1].min(r);
        self.samples += 1;
        if self.samples == MIN_RTT_SAMPLES {
            self.samples = 0;
            self.min_rtt = [self.min_rtt[1], NONE];
        }
        self.tail = (2 * srtt).max(TAIL_MIN_NS);
        self.base = (srtt + GRANULARITY_NS.max(4 * self.rttvar)).clamp(self.min(), self.max());
        self.current = self.base;
    }

    /// Returns the last sample to hand on, in ns. Returns each sample once, and `None` until the
    /// next.
    #[inline(always)]
    pub(super) fn take_fresh(&mut self) -> Option<u32> {
        if self.fresh == 0 {
            return None;
        }
        Some(core::mem::take(&mut self.fresh))
    }

    /// Sets the timeout to at least `min` from now on.
    pub(super) fn raise_min(&mut self, min: Duration) {
        self.min_us = self.min_us.max(micros(min)).min(self.max_us);
        self.base = self.base.max(self.min());
        self.current = self.current.max(self.min());
    }

    /// Doubles the timeout (RFC 6298 5.5), up to the maximum.
    pub(super) fn back_off(&mut self) {
        self.current = self.current.saturating_mul(2).min(self.max());
    }

    /// Sets the timeout for data transmission after a SYN that timed out, until the next sample
    /// (RFC 6298 5.7).
    pub(super) fn after_lost_syn(&mut self) {
        self.base = self.base.max(3_000_000_000).min(self.max());
        self.current = self.base;
    }

    /// Returns the timeout, backoff included.
    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.current)
    }

    /// Returns true if the timeout was doubled since the last sample.
    pub(super) fn is_backed_off(&self) -> bool {
        self.current > self.base
    }

    /// Returns the silence after which the connection probes the tail, without the time for which
    /// the peer may delay an ACK: two round trips (RFC 8985 section 7.2), or the timeout while no
    /// round trip has been measured.
    #[inline]
    pub(super) fn tail(&self) -> Duration {
        Duration::from_nanos(self.tail)
    }

    /// Returns the recent least round trip (RFC 8985 section 6.2, step 1); zero before the first
    /// sample.
    pub(super) fn min_rtt(&self) -> Duration {
        Duration::from_nanos(self.min_rtt_nanos())
    }

    /// Returns the recent least round trip, in ns.
    #[inline]
    pub(super) fn min_rtt_nanos(&self) -> u64 {
        let least = self.min_rtt[0].min(self.min_rtt[1]);
        if least == NONE { 0 } else { least }
    }

    /// Returns the interval within which the scoreboard merges bursts: small against the round
    /// trip, and large enough that few bursts fall into one round trip. The interval is in ns.
    #[inline]
    pub(super) fn burst_interval(&self) -> u64 {
        self.min_rtt_nanos() / 32
    }

    /// Returns the timeout without its own backoff, doubled `times` times: the interval of window
    /// probes.
    pub(super) fn probe_interval(&self, times: u8) -> Duration {
        let doubled = self.base.saturating_mul(1u64.checked_shl(u32::from(times)).unwrap_or(0));
        Duration::from_nanos(if doubled == 0 { self.max() } else { doubled.min(self.max()) })
    }

    /// Returns true if the smoothed round trip is long enough for a queue in it to show
    /// ([`LONG`]).
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.srtt >= LONG && self.srtt != NONE
    }

    pub(super) fn srtt(&self) -> Option<Duration> {
        (self.srtt != NONE).then(|| Duration::from_nanos(self.srtt))
    }

    pub(super) fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rto(min_ms: u32) -> Rto {
        Rto::new(1000 * MS, min_ms * MS, 60_000 * MS)
    }

    #[test]
    fn test_initial_timeout_is_one_second_and_backs_off() {
        let mut r = rto(200);
        assert_eq!(r.get(), 1000 * MS);
        r.back_off();
        assert_eq!(r.get(), 2000 * MS);
        for _ in 0..10 {
            r.back_off();
        }
        assert_eq!(r.get(), 60_000 * MS);
    }

    #[test]
    fn test_first_and_next_sample_follow_the_formulas() {
        let mut r = rto(1);
        r.sample(100 * MS);
        assert_eq!((r.srtt(), r.rttvar(), r.get()), (Some(100 * MS), 50 * MS, 300 * MS));
        r.sample(180 * MS);
        // RTTVAR = 3/4 * 50 + 1/4 * |100 - 180|; SRTT = 7/8 * 100 + 1/8 * 180.
        assert_eq!((r.srtt(), r.rttvar()), (Some(110 * MS), Duration::from_micros(57_500)));
        assert_eq!(r.get(), 340 * MS);
    }

    #[test]
    fn test_every_eighth_sample_is_reported_once_and_a_long_one_is_capped() {
        let mut r = rto(1);
        assert_eq!(r.take_fresh(), None);
        r.sample(Duration::ZERO);
        assert_eq!((r.take_fresh(), r.take_fresh()), (Some(1), None));
        for _ in 1..HANDED_ON {
            r.sample(2 * MS);
            assert_eq!(r.take_fresh(), None);
        }
        r.sample(3 * MS);
        assert_eq!((r.take_fresh(), r.take_fresh()), (Some(3_000_000), None));
        for _ in 0..HANDED_ON {
            r.sample(5000 * MS);
        }
        assert_eq!(r.take_fresh(), Some(u32::MAX));
    }

    #[test]
    fn test_steady_samples_leave_the_granularity_as_variance() {
        let mut r = rto(1);
        for _ in 0..200 {
            r.sample(10 * MS);
        }
        let over = r.get() - r.srtt().unwrap();
        assert_eq!(over, MS);
    }

    #[test]
    fn test_minimum_rounds_up_and_sample_ends_backoff() {
        let mut r = rto(200);
        r.sample(MS);
        assert_eq!(r.get(), 200 * MS);
        r.back_off();
        r.back_off();
        assert_eq!(r.get(), 800 * MS);
        r.sample(MS);
        assert_eq!(r.get(), 200 * MS);
    }

    #[test]
    fn test_minimum_round_trip_is_forgotten_after_many_samples() {
        let mut r = rto(1);
        assert_eq!(r.min_rtt(), Duration::ZERO);
        r.sample(MS);
        for _ in 1..MIN_RTT_SAMPLES {
            r.sample(3 * MS);
            assert_eq!(r.min_rtt(), MS);
        }
        for _ in 0..MIN_RTT_SAMPLES {
            assert_eq!(r.min_rtt(), MS);
            r.sample(2 * MS);
        }
        assert_eq!(r.min_rtt(), 2 * MS);
    }

    #[test]
    fn test_tail_probe_waits_two_round_trips_and_at_least_its_minimum() {
        let mut r = rto(1);
        assert_eq!(r.tail(), 1000 * MS, "before the first sample");
        r.sample(MS);
        assert_eq!(r.tail(), 2 * MS);
        let mut r = rto(1);
        r.sample(MS / 1000);
        assert_eq!(r.tail(), Duration::from_nanos(TAIL_MIN_NS));
    }

    #[test]
    fn test_raised_minimum_timeout_takes_effect_immediately() {
        let mut r = rto(2);
        r.raise_min(200 * MS);
        r.sample(MS);
        assert_eq!(r.get(), 200 * MS);
        assert!(!r.is_backed_off());
        r.back_off();
        assert!(r.is_backed_off());
    }

    #[test]
    fn test_lost_syn_sets_data_timeout_to_three_seconds() {
        let mut r = rto(200);
        r.back_off();
        r.after_lost_syn();
        assert_eq!(r.get(), 3000 * MS);
    }

    #[test]
    fn test_probe_interval_doubles_to_the_maximum() {
        let r = rto(200);
        assert_eq!(r.probe_interval(0), 1000 * MS);
        assert_eq!(r.probe_interval(2), 4000 * MS);
        assert_eq!(r.probe_interval(63), 60_000 * MS);
        assert_eq!(r.probe_interval(255), 60_000 * MS);
    }

    #[test]
    fn test_extreme_settings_and_samples_do_not_overflow() {
        let mut r = Rto::new(Duration::MAX, Duration::MAX, Duration::MAX);
        r.back_off();
        r = Rto::new(Duration::ZERO, Duration::ZERO, Duration::ZERO);
        r.sample(Duration::MAX);
        r.sample(Duration::ZERO);
        assert_eq!(r.get(), MS);
    }
}
