//! Shares: what each application has of a worker's turns, and of its rate.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use heddle_base::Instant;

/// The weight and the limits of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareTerms {
    /// Turns of the share in proportion to those of the other shares that have work; 0 counts
    /// as 1.
    pub weight: u32,
    /// The most bytes of FPDUs that all connections of the share may send in a second, at all
    /// workers together; `None` for no limit.
    pub rate: Option<u64>,
    /// The most bytes of FPDUs that each connection of the share may send in a second.
    pub connection_rate: Option<u64>,
}

impl Default for ShareTerms {
    /// Returns a weight of 1 and no limit.
    fn default() -> ShareTerms {
        ShareTerms { weight: 1, rate: None, connection_rate: None }
    }
}

/// Counts of a share, at all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareUsage {
    /// Bytes of FPDUs that the share has sent. The RNIC counts them while several shares exist.
    pub sent: u64,
    /// Times that the share, or a connection of it, waited for its rate.
    pub waits: u64,
    /// Time that the share and its connections have waited for their rates.
    pub waited: Duration,
}

/// The share of one tenant in the turns of all workers of an RNIC.
///
/// The control plane changes the terms while workers use the share; a worker reads the terms anew
/// in every turn of the share.
#[derive(Debug, Default)]
pub struct Share {
    number: u64,
    weight: AtomicU32,
    /// Bytes in a second; 0 for no limit.
    rate: AtomicU64,
    connection_rate: AtomicU64,
    /// The [`Bucket`] of the rate.
    due: AtomicU64,
    sent: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

/// The number of the share of the RNIC's own process.
pub const OWN_SHARE: u64 = 0;

impl Share {
    /// Returns the share of a tenant; `number` is 0 for the RNIC's own process, and no other tenant
    /// has the same number.
    pub fn new(number: u64, terms: ShareTerms) -> Arc<Share> {
        let share = Share { number, ..Share::default() };
        share.set(terms);
        Arc::new(share)
    }

    /// Returns the share's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Changes the terms, for connections that exist as well.
    pub fn set(&self, terms: ShareTerms) {
        // The terms are independent of each other, so a worker may see some of them earlier.
        self.weight.store(terms.weight.max(1), Ordering::Relaxed);
        self.rate.store(terms.rate.unwrap_or(0), Ordering::Relaxed);
        self.connection_rate.store(terms.connection_rate.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the terms.
    pub fn terms(&self) -> ShareTerms {
        let limit = |rate: &AtomicU64| Some(rate.load(Ordering::Relaxed)).filter(|r| *r > 0);
        ShareTerms {
            weight: self.weight(),
            rate: limit(&self.rate),
            connection_rate: limit(&self.connection_rate),
        }
    }

    /// Returns what the share has sent, and how long it has waited.
    pub fn usage(&self) -> ShareUsage {
        ShareUsage {
            sent: self.sent.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed).max(1)
    }

    /// Returns the bytes that the share may send now.
    ///
    /// # Errors
    /// Returns the time at which it may send again.
    #[inline]
    pub(crate) fn credit(&self, now: Instant) -> Result<u64, Instant> {
        match self.rate.load(Ordering::Relaxed) {
            0 => Ok(u64::MAX),
            rate => Bucket(self.due.load(Ordering::Relaxed)).credit(rate, now),
        }
    }

    /// Returns the limit of each connection; 0 for none.
    #[inline]
    pub(crate) fn connection_rate(&self) -> u64 {
        self.connection_rate.load(Ordering::Relaxed)
    }

    /// Counts bytes that the share sends, and charges them to its rate.
    #[inline]
    pub(crate) fn spend(&self, bytes: u64, now: Instant) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        let rate = self.rate.load(Ordering::Relaxed);
        if rate > 0 {
            let spent = |due| Some(Bucket(due).after(bytes, rate, now).0);
            // The closure always returns a value, so the update succeeds.
            let _ = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        }
    }

    pub(crate) fn note_wait(&self, waited: Duration) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Time whose bytes a share may send at once after it has sent less than its rate: longer than a
/// worker's thread naps, so that sleeping workers reach the rate.
const CREDIT: u64 = 1_000_000;

/// A share that has used its credit up waits until it may send this many bytes, or the bytes of
/// this time in nanoseconds: a timer for each segment would cost more than the segment.
const GRAIN: u64 = 64 << 10;
const GRAIN_TIME: u64 = 100_000;

/// A token bucket, as the time in nanoseconds at which it has neither credit nor debt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket(pub(crate) u64);

impl Bucket {
    /// Returns the bytes that may be sent now, one at least. A sender may exceed them by the rest
    /// of its last segment, which the bucket then has as debt.
    ///
    /// # Errors
    /// Returns the time at which there is credit again.
    pub(crate) fn credit(self, rate: u64, now: Instant) -> Result<u64, Instant> {
        let at = now.as_nanos();
        if self.0 > at {
            let grain = time_of(GRAIN, rate).min(GRAIN_TIME);
            return Err(Instant::from_nanos(self.0.saturating_add(grain)));
        }
        let credit = u128::from((at - self.0).min(CREDIT)) * u128::from(rate) / 1_000_000_000;
        Ok(u64::try_from(credit).unwrap_or(u64::MAX).max(1))
    }

    /// Returns the bucket after `bytes` have been sent.
    pub(crate) fn after(self, bytes: u64, rate: u64, now: Instant) -> Bucket {
        let from = self.0.max(now.as_nanos().saturating_sub(CREDIT));
        Bucket(from.saturating_add(time_of(bytes, rate)))
    }
}

/// Returns the nanoseconds that `bytes` take at a rate, rounded up so that many small segments do
/// not exceed the rate.
fn time_of(bytes: u64, rate: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn test_bucket_grants_its_rate_however_segments_are_cut() {
        for (rate, segment) in [(1_000_000, 1460), (125_000_000, 60), (1_250_000_000, 8960)] {
            let (mut bucket, mut now, mut sent) = (Bucket::default(), at(5_000_000_000), 0u64);
            let (from, end) = (now, at(6_000_000_000));
            while now < end {
                match bucket.credit(rate, now) {
                    Err(then) => now = then,
                    Ok(credit) => {
                        let bytes = credit.div_ceil(segment) * segment;
                        bucket = bucket.after(bytes, rate, now);
                        sent += bytes;
                    }
                }
            }
            let second = rate * u64::try_from(now.since(from).as_millis()).unwrap() / 1000;
            // The credit of an idle time comes on top once, and so may one grain.
            let more = rate / 1000 + GRAIN + segment;
            assert!(sent <= second + more && sent + GRAIN >= second, "{sent} of {second}");
        }
    }

    #[test]
    fn test_bucket_in_debt_names_time_with_credit_for_more_than_a_segment() {
        let rate = 1_000_000_000;
        let now = at(1_000_000_000);
        let bucket = Bucket::default().after(10_000_000, rate, now);
        // 1 ms of credit pays for a megabyte of the ten.
        assert_eq!(bucket.0, 1_009_000_000);
        let then = bucket.credit(rate, now).unwrap_err();
        assert_eq!(bucket.credit(rate, then), Ok(GRAIN));
        let slow = bucket.credit(1_000_000, now).unwrap_err();
        assert_eq!(slow.as_nanos(), bucket.0 + GRAIN_TIME);
    }

    #[test]
    fn test_share_keeps_no_more_credit_than_a_millisecond() {
        let terms = ShareTerms { rate: Some(1_000_000), ..ShareTerms::default() };
        let share = Share::new(1, terms);
        assert_eq!(share.credit(at(9_000_000_000)), Ok(1000));
        share.spend(1000, at(9_000_000_000));
        assert_eq!(share.credit(at(9_000_000_000)), Ok(1));
        share.spend(1, at(9_000_000_000));
        assert!(share.credit(at(9_000_000_000)).is_err());
        assert_eq!(share.usage().sent, 1001);
    }

    #[test]
    fn test_changed_terms_hold_at_once() {
        let share = Share::new(7, ShareTerms { weight: 0, ..ShareTerms::default() });
        assert_eq!((share.number(), share.weight()), (7, 1));
        assert_eq!(share.credit(at(0)), Ok(u64::MAX));
        let terms = ShareTerms { weight: 9, rate: Some(5), connection_rate: Some(3) };
        share.set(terms);
        assert_eq!(share.terms(), terms);
        share.spend(1_000_000, at(0));
        assert!(share.credit(at(1_000_000_000)).is_err());
        share.set(ShareTerms::default());
        assert_eq!(share.credit(at(1_000_000_000)), Ok(u64::MAX));
    }
}
