//! Durations that a worker measures. The worker takes samples, since a turn with nothing to measure
//! should not cost more than a look.

use heddle_base::{Histogram, Instant};

use super::WorkerCounters;

/// The worker measures one of so many turns that found work.
const TURNS: u64 = 8;

/// The worker follows one of so many batches of work requests to its completion.
const BATCHES: u32 = 64;

/// A time that does not come.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// A number that no slot of a connection has.
const NONE: usize = usize::MAX;

/// The measurements of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// A sample of one in 8 turns that found work, from its beginning to that of the next: how long
    /// a frame may have waited for the worker. For an RNIC that runs on its caller's thread, this
    /// includes the caller's own work between turns.
    pub turns: Histogram,
    /// Round trips that TCP measured: those of its handshakes, and a sample of the others.
    pub round_trips: Histogram,
    /// Requests of send queues, from the turn that takes them to their completion, or to that of
    /// the next signaled request: the last of one in 64 batches taken, one at a time.
    pub requests: Histogram,
}

impl WorkerTimes {
    /// Calls `f` with name, help text and distribution of each measurement.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, &Histogram)) {
        f(
            "turn",
            "Turns of a worker that found work, to the beginning of the next; a sample.",
            &self.turns,
        );
        f("round_trip", "Round trips that TCP measured; a sample.", &self.round_trips);
        f(
            "request",
            "Requests of send queues from being taken by the worker to their completion; a sample.",
            &self.requests,
        );
    }

    /// Adds the measurements of `other`.
    pub fn add(&mut self, other: &WorkerTimes) {
        self.turns.add(&other.turns);
        self.round_trips.add(&other.round_trips);
        self.requests.add(&other.requests);
    }
}

/// The worker's measuring device.
#[derive(Debug)]
pub(super) struct Stopwatch {
    /// The beginning of the turn before if it found work, else [`NEVER`].
    turn: Instant,
    /// The time from which on that turn's time is not counted yet, or [`NEVER`] if all of it is
    /// counted.
    uncounted: Instant,
    batches: u32,
    /// The slot of the connection whose request the worker follows, or [`NONE`].
    followed: usize,
    /// The number of retired requests of its send queue, modulo 2^32, at which the request is
    /// complete.
    until: u32,
    since: Instant,
    turns: Histogram,
    requests: Histogram,
}

impl Default for Stopwatch {
    fn default() -> Stopwatch {
        Stopwatch {
            turn: NEVER,
            uncounted: NEVER,
            batches: 0,
            followed: NONE,
            until: 0,
            since: Instant::ZERO,
            turns: Histogram::ZERO,
            requests: Histogram::ZERO,
        }
    }
}

impl Stopwatch {
    /// Notes that a turn begins, which ends the time of the turn before. Returns true if the turn before
    /// found no work. The thread does not sleep after a turn that found work, so no clock has to be
    /// read at the end of a turn.
    #[inline(always)]
    pub(super) fn begin(&mut self, now: Instant, counters: &mut WorkerCounters) -> bool {
        // Most turns of a worker that spins follow one that found no work.
        let rested = self.turn == NEVER;
        if !rested {
            counters.busy_ns += nanos(self.uncounted, now);
            if counters.busy_polls.is_multiple_of(TURNS) {
                self.record_turn(now);
            }
            self.turn = NEVER;
        }
        rested
    }

    #[cold]
    fn record_turn(&mut self, now: Instant) {
        self.turns.record_time(now - self.turn);
    }

    /// Counts the time of the last turn up to `now` as busy, if that turn found work: the thread
    /// works for another worker from `now` on.
    #[inline(always)]
    pub(super) fn settle(&mut self, now: Instant, counters: &mut WorkerCounters) {
        if self.turn != NEVER {
            counters.busy_ns += nanos(self.uncounted, now);
            self.uncounted = NEVER;
        }
    }

    /// Notes that the turn that began at `now` has ended, and has found work if `busy`.
    #[inline(always)]
    pub(super) fn end(&mut self, now: Instant, busy: bool) {
        if busy {
            (self.turn, self.uncounted) = (now, now);
        }
    }

    /// Counts a batch of requests that was taken; returns true if the worker has to follow its last
    /// request.
    #[inline(always)]
    pub(super) fn is_due(&mut self) -> bool {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(BATCHES)
    }

    /// Follows the request that is complete when `until` requests of the queue are retired.
    #[cold]
    pub(super) fn follow(&mut self, conn: usize, until: u32, now: Instant) {
        if self.followed == NONE {
            (self.followed, self.until, self.since) = (conn, until, now);
        }
    }

    /// Returns true if the worker follows a request of that connection.
    #[inline(always)]
    pub(super) fn follows(&self, conn: usize) -> bool {
        self.followed == conn
    }

    /// Notes that `retired` requests of the followed connection's queue are retired by now.
    #[cold]
    pub(super) fn retired(&mut self, retired: u32, now: Instant) {
        if retired.wrapping_sub(self.until).cast_signed() >= 0 {
            self.requests.record_time(now - self.since);
            self.followed = NONE;
        }
    }

    /// Notes that the connection is over, and that another connection may get its slot; the worker
    /// does not measure the outcome of its requests.
    pub(super) fn forget(&mut self, conn: usize) {
        if self.followed == conn {
            self.followed = NONE;
        }
    }

    /// Returns the measurements, with TCP's.
    pub(super) fn times(&self, round_trips: &Histogram) -> WorkerTimes {
        WorkerTimes { turns: self.turns, round_trips: *round_trips, requests: self.requests }
    }
}

/// Returns the nanoseconds from one time to another; 0 if `from` is the later.
#[inline(always)]
fn nanos(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Returns the histogram of one value.
    fn one(us: u64) -> Histogram {
        let mut h = Histogram::ZERO;
        h.record(us * 1000);
        h
    }

    #[test]
    fn test_stopwatch_times_every_eighth_busy_turn_to_start_of_next() {
        let (mut w, mut c) = (Stopwatch::default(), WorkerCounters::default());
        let mut turn = |start, busy, busy_turns| {
            w.begin(at(start), &mut c);
            c.busy_polls = busy_turns;
            w.end(at(start), busy);
            w.turns
        };
        assert_eq!(turn(10, true, 7), Histogram::ZERO);
        assert_eq!(turn(20, true, 8), Histogram::ZERO);
        assert_eq!(turn(25, false, 8), one(5));
        // A turn that found nothing does not count as a turn that found work.
        assert_eq!(turn(90, false, 8), one(5));
        assert_eq!(turn(95, true, 9), one(5));
        assert_eq!(turn(96, true, 10), one(5));
    }

    #[test]
    fn test_stopwatch_counts_time_of_busy_turns_alone() {
        let (mut w, mut c) = (Stopwatch::default(), WorkerCounters::default());
        let mut rested = Vec::new();
        for (start, busy) in [(10, true), (30, false), (35, false), (100, true), (101, true)] {
            rested.push(w.begin(at(start), &mut c));
            w.end(at(start), busy);
        }
        assert_eq!(rested, [true, false, true, true, false]);
        assert_eq!(c.busy_ns, 21_000);
        w.begin(at(104), &mut c);
        assert_eq!(c.busy_ns, 24_000);
    }

    /// Workers of one thread take turns: the time of the others is not this worker's.
    #[test]
    fn test_stopwatch_stops_where_turn_of_next_worker_begins() {
        let (mut w, mut c) = (Stopwatch::default(), WorkerCounters::default());
        for (start, busy) in [(10, true), (50, true), (90, false), (130, true)] {
            w.begin(at(start), &mut c);
            w.end(at(start), busy);
            w.settle(at(start + 5), &mut c);
            w.settle(at(start + 6), &mut c);
        }
        assert_eq!(c.busy_ns, 15_000);
        assert_eq!(w.turns.count(), 2, "a frame waits for the others' turns too");
    }

    #[test]
    fn test_stopwatch_is_due_for_every_64th_batch() {
        let mut w = Stopwatch::default();
        assert_eq!((0..640).filter(|_| w.is_due()).count(), 10);
    }

    #[test]
    fn test_stopwatch_times_request_until_retired_across_wraparound() {
        let mut w = Stopwatch::default();
        w.follow(5, 3, at(100));
        // The worker follows one request at a time.
        w.follow(6, 1, at(120));
        assert!(w.follows(5) && !w.follows(6));
        w.retired(u32::MAX, at(150));
        w.retired(2, at(160));
        assert_eq!((w.requests, w.follows(5)), (Histogram::ZERO, true));
        w.retired(3, at(170));
        assert_eq!((w.requests, w.follows(5)), (one(70), false));
    }

    #[test]
    fn test_stopwatch_drops_request_whose_connection_ends() {
        let mut w = Stopwatch::default();
        w.follow(5, 3, at(100));
        w.forget(6);
        assert!(w.follows(5));
        w.forget(5);
        assert!(!w.follows(5));
        w.follow(6, 9, at(200));
        w.retired(10, at(207));
        assert_eq!(w.requests, one(7));
    }
}
