//! The counts of a run, and the time over which they count.

use std::time::Duration;

use heddle_base::Instant;
use heddle_dataplane::Clock;

use crate::latency::{Latency, Recorder};
use crate::spec::Until;
use crate::workload::Run;

/// The measured figures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The measured time.
    pub elapsed: Duration,
    /// The number of operations completed in this time.
    pub ops: u64,
    /// The distribution of the operations' times.
    pub latency: Latency,
    /// True if the run compared every message and all were right.
    pub verified: bool,
}

/// The state that both engines share.
pub(crate) struct Measure {
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) ops: u64,
    /// The time from which operations count.
    pub(crate) since: Instant,
    /// The end of the warm-up, at which all counts restart; `None` afterwards.
    pub(crate) warm_until: Option<Instant>,
    /// The time after which the engine starts no more operations; it moves with the end of the
    /// warm-up.
    pub(crate) deadline: Option<Instant>,
    /// The duration of the measurement.
    pub(crate) length: Option<Duration>,
    /// The time at which the measurement ended.
    pub(crate) ended: Option<Instant>,
}

impl Measure {
    pub(crate) fn new(clock: &Clock, run: &Run) -> Measure {
        let now = clock.now();
        let warm = run.warm_up();
        let length = match run.until {
            Until::Elapsed(d) => Some(d),
            Until::Iters(_) => None,
        };
        Measure {
            clock: clock.clone(),
            recorder: Recorder::default(),
            ops: 0,
            since: now,
            warm_until: (!warm.is_zero()).then(|| now + warm),
            deadline: length.map(|d| now + warm + d),
            length,
            ended: None,
        }
    }

    /// Starts or ends the measurement if its time has come.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.warm_until.is_some_and(|t| t <= now) {
            self.warm_until = None;
            (self.ops, self.since) = (0, now);
            self.deadline = self.length.map(|d| now + d);
            self.recorder.clear();
        }
        if self.deadline.is_some_and(|t| t <= now) {
            self.end(now);
        }
    }

    #[inline]
    pub(crate) fn count(&mut self, from: Instant, to: Instant) {
        if self.ended.is_none() {
            self.ops += 1;
            self.recorder.record(to.since(from));
        }
    }

    pub(crate) fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(crate) fn outcome(&self, verified: bool) -> Outcome {
        Outcome {
            elapsed: self.ended.unwrap_or(self.since).since(self.since),
            ops: self.ops,
            latency: self.recorder.latency(),
            verified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_measure_starts_again_after_the_warm_up_and_ends_at_the_deadline() {
        let (clock, hand) = Clock::manual();
        let spec = crate::spec::BenchSpec {
            until: Until::Elapsed(Duration::from_secs(1)),
            ..Default::default()
        };
        let mut m = Measure::new(&clock, &Run::new(&spec, heddle_base::units::Size(8)));
        let at = |ms: u64, m: &mut Measure| {
            hand.set(Instant::from_millis(ms));
            m.tick(clock.now());
            m.count(Instant::from_millis(ms - 1), clock.now());
        };
        at(50, &mut m);
        at(100, &mut m);
        at(600, &mut m);
        assert_eq!((m.ops, m.ended), (2, None), "the first was in the warm-up");
        at(1100, &mut m);
        at(1200, &mut m);
        let o = m.outcome(false);
        assert_eq!((o.ops, o.elapsed), (2, Duration::from_secs(1)));
        assert!((990_000..=1_010_000).contains(&o.latency.p50), "{:?}", o.latency);
    }
}
