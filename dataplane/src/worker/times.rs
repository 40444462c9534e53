//! How long things take, as a worker sees them. No clock is read for it: all times are those at which
//! turns began.

use heddle_base::{Histogram, Instant};

/// Of so many takings of work requests one is followed to its completion.
const ONE_IN: u32 = 16;

/// Of so many turns that found work one is counted, for all of them.
const TURNS: u64 = 8;

/// A turn that took as long as this, in nanoseconds, is counted in any case, and for itself alone: it
/// is what one looks for.
const LONG_TURN: u64 = 100_000;

/// What a worker has measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// Turns that found work, from their beginning to that of the next one: how long a frame may have
    /// waited for the worker. Between turns of an RNIC that runs on its caller's thread is whatever
    /// the caller does. Of those shorter than 100 µs one in 8 is measured and counted 8 times.
    pub turns: Histogram,
    /// Round trips that TCP measured: those of its handshakes, and a sample of the others.
    pub round_trips: Histogram,
    /// Requests of send queues, from being taken to their completion, or to that of the next signaled
    /// one: the last of one in 16 batches taken.
    pub requests: Histogram,
}

impl WorkerTimes {
    /// Calls `f` with name, help text and distribution of each.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, &Histogram)) {
        f("turn", "Turns of a worker that found work, to the beginning of the next.", &self.turns);
        f("round_trip", "Round trips that TCP measured.", &self.round_trips);
        f(
            "request",
            "Requests of send queues from being taken by the worker to their completion; a sample.",
            &self.requests,
        );
    }

    /// Adds what `other` has measured.
    pub fn add(&mut self, other: &WorkerTimes) {
        self.turns.add(&other.turns);
        self.round_trips.add(&other.round_trips);
        self.requests.add(&other.requests);
    }
}

/// A request that is being followed.
#[derive(Debug)]
struct Probe {
    /// The slot of its connection.
    conn: usize,
    /// Requests of its send queue retired when it is, modulo 2^32.
    retired: u32,
    since: Instant,
}

/// What the worker measures with.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    /// The beginning of this turn.
    now: Instant,
    /// The turn before found work.
    busy: bool,
    busy_turns: u64,
    batches: u32,
    probe: Option<Probe>,
    turns: Histogram,
    requests: Histogram,
}

impl Stopwatch {
    /// A turn begins.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        if self.busy {
            let took = now.as_nanos().saturating_sub(self.now.as_nanos());
            self.busy_turns = self.busy_turns.wrapping_add(1);
            if took >= LONG_TURN || self.busy_turns.is_multiple_of(TURNS) {
                self.count_turn(took);
            }
        }
        self.now = now;
    }

    #[cold]
    fn count_turn(&mut self, took: u64) {
        self.turns.record_many(took, if took < LONG_TURN { TURNS } else { 1 });
    }

    /// It is over, and has found work or not.
    #[inline]
    pub(super) fn end(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Requests have been taken; all have been completed when `retired` of their queue are.
    #[inline]
    pub(super) fn taken(&mut self, conn: usize, retired: u32) {
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(ONE_IN) && self.probe.is_none() {
            self.probe = Some(Probe { conn, retired, since: self.now });
        }
    }

    /// So many requests of a queue are retired by now.
    #[inline]
    pub(super) fn retired(&mut self, conn: usize, retired: u32) {
        if let Some(p) = &self.probe
            && p.conn == conn
            && retired.wrapping_sub(p.retired).cast_signed() >= 0
        {
            self.take_probe();
        }
    }

    #[cold]
    fn take_probe(&mut self) {
        if let Some(p) = self.probe.take() {
            self.requests.record_time(self.now - p.since);
        }
    }

    /// The connection is over, and its slot may be another's; what became of its requests is no measure.
    pub(super) fn forget(&mut self, conn: usize) {
        if self.probe.as_ref().is_some_and(|p| p.conn == conn) {
            self.probe = None;
        }
    }

    /// What was measured, with what TCP did.
    pub(super) fn times(&self, round_trips: &Histogram) -> WorkerTimes {
        WorkerTimes { turns: self.turns, round_trips: *round_trips, requests: self.requests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// What one value leaves.
    fn one(us: u64) -> Histogram {
        let mut h = Histogram::ZERO;
        h.record(us * 1000);
        h
    }

    /// A stopwatch that follows the next batch.
    fn ready(conn: usize) -> Stopwatch {
        let mut w = Stopwatch::default();
        for _ in 1..ONE_IN {
            w.taken(conn, 0);
        }
        w
    }

    #[test]
    fn test_only_turns_that_found_work_count_and_to_the_beginning_of_the_next() {
        let mut w = Stopwatch::default();
        // Long ones first: each counts.
        for (start, busy) in [(0, false), (200, true), (300, true), (450, false), (900, false)] {
            w.begin(at(start));
            w.end(busy);
        }
        let mut want = one(100);
        want.add(&one(150));
        assert_eq!(w.turns, want);
    }

    #[test]
    fn test_of_short_turns_one_counts_for_eight() {
        let mut w = Stopwatch::default();
        for n in 0..17 {
            w.begin(at(n * 5));
            w.end(true);
        }
        let mut want = Histogram::ZERO;
        want.record_many(5000, 16);
        assert_eq!(w.turns, want);
    }

    #[test]
    fn test_a_request_lasts_until_it_is_retired_also_beyond_the_end_of_numbers() {
        let conn = 3;
        let mut w = ready(conn);
        w.begin(at(100));
        w.taken(conn, 3);
        // Others that are taken meanwhile change nothing.
        w.taken(conn, 4);
        w.begin(at(150));
        w.retired(conn + 1, 3);
        w.retired(conn, u32::MAX);
        w.retired(conn, 2);
        assert_eq!(w.requests, Histogram::ZERO);
        w.begin(at(170));
        w.retired(conn, 3);
        assert_eq!(w.requests, one(70));
        w.retired(conn, 4);
        assert_eq!(w.requests, one(70));
    }

    #[test]
    fn test_what_ends_with_its_connection_is_no_measure_and_makes_room() {
        let conn = 3;
        let mut w = ready(conn);
        w.taken(conn, 3);
        w.forget(conn);
        w.retired(conn, 3);
        assert_eq!(w.requests, Histogram::ZERO);
        for _ in 0..ONE_IN {
            w.taken(conn, 9);
        }
        w.begin(at(7));
        w.retired(conn, 9);
        assert_eq!(w.requests, one(7));
    }
}
