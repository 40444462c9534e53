//! The counts of a run, and the time over which they count.

use std::time::Duration;

use heddle_base::Instant;
use heddle_dataplane::Clock;

use super::reverse::ReverseOutcome;
use crate::latency::{Latency, Recorder};
use crate::spec::Until;
use crate::workload::Run;

/// The measured figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The measured time.
    pub elapsed: Duration,
    /// The number of operations completed in this time.
    pub ops: u64,
    /// The times of the operations.
    pub times: Recorder,
    /// True if the run compared every message and all were right.
    pub verified: bool,
    /// The figures of the server's operations, in a bidirectional run.
    pub reverse: Option<ReverseOutcome>,
}

impl Outcome {
    /// Returns the distribution of the operations' times.
    pub fn latency(&self) -> Latency {
        self.times.latency()
    }
}

/// The figures of a part of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The beginning of the interval, counted from the beginning of the measurement.
    pub start: Duration,
    /// The end of the interval, counted from the beginning of the measurement.
    pub end: Duration,
    /// The number of operations completed in the interval.
    pub ops: u64,
    /// The distribution of their times.
    pub latency: Latency,
    /// The number of segments that the RNICs of this process have retransmitted; `None` if they are
    /// not known.
    pub retransmits: Option<u64>,
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
    /// The intervals, if the run has any.
    intervals: Option<Box<Intervals>>,
    /// The earliest time at which [`tick`](Measure::tick) has anything to do. A run without
    /// intervals pays one comparison for the whole of them.
    next: Option<Instant>,
}

/// The intervals of a run.
struct Intervals {
    every: Duration,
    /// The beginning of the current interval.
    from: Instant,
    /// The number of operations before the current interval.
    ops: u64,
    /// The times of the operations before the current interval.
    times: Recorder,
    /// Intervals that have ended, and that the caller has not taken yet.
    done: Vec<Interval>,
}

impl Measure {
    pub(crate) fn new(clock: &Clock, run: &Run) -> Measure {
        let now = clock.now();
        let warm = run.warm_up();
        let length = match run.until {
            Until::Elapsed(d) => Some(d),
            Until::Iters(_) => None,
        };
        let intervals = run.interval.map(|every| {
            Box::new(Intervals {
                every,
                from: now,
                ops: 0,
                times: Recorder::default(),
                done: Vec::new(),
            })
        });
        let mut measure = Measure {
            clock: clock.clone(),
            recorder: Recorder::default(),
            ops: 0,
            since: now,
            warm_until: (!warm.is_zero()).then(|| now + warm),
            deadline: length.map(|d| now + warm + d),
            length,
            ended: None,
            intervals,
            next: None,
        };
        measure.look_ahead();
        measure
    }

    /// Starts or ends the measurement or an interval if its time has come.
    #[inline]
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.next.is_some_and(|t| t <= now) {
            self.turn(now);
        }
    }

    #[cold]
    fn turn(&mut self, now: Instant) {
        if self.warm_until.is_some_and(|t| t <= now) {
            self.warm_until = None;
            (self.ops, self.since) = (0, now);
            self.deadline = self.length.map(|d| now + d);
            self.recorder.clear();
            if let Some(i) = &mut self.intervals {
                i.from = now;
            }
        }
        if self.warm_until.is_none() {
            let end = self.deadline.map_or(now, |t| t.min(now));
            while self.intervals.as_ref().is_some_and(|i| i.from + i.every <= end) {
                let end = self.intervals.as_ref().map_or(now, |i| i.from + i.every);
                self.close_interval(end);
            }
        }
        if self.deadline.is_some_and(|t| t <= now) {
            self.end(now);
        }
        self.look_ahead();
    }

    /// Sets the time of the next turn.
    fn look_ahead(&mut self) {
        let interval = match (&self.intervals, self.warm_until) {
            (Some(i), None) => Some(i.from + i.every),
            _ => None,
        };
        let times = [self.warm_until, self.deadline, interval];
        self.next = match self.ended {
            None => times.into_iter().flatten().min(),
            Some(_) => None,
        };
    }

    /// Ends the current interval at `end`. All operations since the interval before belong to it:
    /// the engine calls `tick` before it counts an operation.
    fn close_interval(&mut self, end: Instant) {
        let Some(i) = &mut self.intervals else { return };
        i.done.push(Interval {
            start: i.from.since(self.since),
            end: end.since(self.since),
            ops: self.ops - i.ops,
            latency: self.recorder.since(&i.times),
            retransmits: None,
        });
        (i.from, i.ops) = (end, self.ops);
        i.times.clone_from(&self.recorder);
    }

    #[inline]
    pub(crate) fn count(&mut self, from: Instant, to: Instant) {
        if self.ended.is_none() {
            self.ops += 1;
            self.recorder.record(to.since(from));
        }
    }

    pub(crate) fn end(&mut self, now: Instant) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(now);
        let end = self.deadline.unwrap_or(now);
        if self.intervals.as_ref().is_some_and(|i| i.from < end) {
            self.close_interval(now);
        }
        self.look_ahead();
    }

    /// Returns true after the warm-up.
    pub(crate) fn is_warm(&self) -> bool {
        self.warm_until.is_none()
    }

    /// Returns the intervals that have ended since the last call.
    pub(crate) fn take_intervals(&mut self) -> Vec<Interval> {
        self.intervals.as_mut().map_or_else(Vec::new, |i| core::mem::take(&mut i.done))
    }

    pub(crate) fn outcome(&self, verified: bool) -> Outcome {
        Outcome {
            elapsed: self.ended.unwrap_or(self.since).since(self.since),
            ops: self.ops,
            times: self.recorder.clone(),
            verified,
            reverse: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second() -> crate::spec::BenchSpec {
        crate::spec::BenchSpec {
            until: Until::Elapsed(Duration::from_secs(1)),
            ..Default::default()
        }
    }

    #[test]
    fn test_measure_starts_again_after_the_warm_up_and_ends_at_the_deadline() {
        let (clock, hand) = Clock::manual();
        let mut m = Measure::new(&clock, &Run::new(&second(), heddle_base::units::Size(8)));
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
        assert!((990_000..=1_010_000).contains(&o.latency().p50), "{:?}", o.latency());
    }

    #[test]
    fn test_intervals_follow_the_warm_up_and_hold_every_operation() {
        let (clock, hand) = Clock::manual();
        let mut spec = second();
        spec.warmup = Some(Duration::from_millis(100));
        spec.interval = Some(Duration::from_millis(300));
        let mut m = Measure::new(&clock, &Run::new(&spec, heddle_base::units::Size(8)));
        // A stall lasts from 450 to 1050 ms.
        for ms in [50, 100, 200, 399, 400, 450, 1050, 1060, 1100, 1150] {
            hand.set(Instant::from_millis(ms));
            m.tick(clock.now());
            m.count(Instant::from_millis(ms - 1), clock.now());
        }
        let all = m.take_intervals();
        let ms = |d: Duration| d.as_millis();
        let rows: Vec<_> = all.iter().map(|i| (ms(i.start), ms(i.end), i.ops)).collect();
        assert_eq!(rows, [(0, 300, 3), (300, 600, 2), (600, 900, 0), (900, 1000, 2)]);
        assert_eq!(rows.iter().map(|r| r.2).sum::<u64>(), m.ops);
        assert_eq!((all[0].latency.count, all[2].latency), (3, Latency::default()));
        assert_eq!(m.take_intervals(), []);
    }
}
