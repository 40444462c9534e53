//! The times at which the operations of a run with a fixed rate are due.

use std::time::Duration;

use heddle_base::Instant;

use crate::workload::Run;

/// The schedule of an open loop: the time at which an operation is due depends on its number alone,
/// and not on the operations before. An operation counts from the time at which it was due, so a
/// stall delays, and shows in, every operation that was due meanwhile (no coordinated omission).
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    start: Instant,
    /// Nanoseconds between two operations of all connections.
    gap: f64,
    conns: f64,
}

impl Pace {
    /// Returns the schedule of a run that starts at `start`, if the run has a fixed rate.
    pub(super) fn new(run: &Run, start: Instant) -> Option<Pace> {
        let rate = run.rate?;
        Some(Pace { start, gap: 1e9 / rate, conns: f64::from(run.qps.max(1)) })
    }

    /// Returns the time at which operation `number` (from 0) of connection `conn` is due. The
    /// connections take turns.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    pub(super) fn due(&self, conn: usize, number: u64) -> Instant {
        let place = number as f64 * self.conns + conn as f64;
        self.start + Duration::from_nanos((place * self.gap) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{BenchSpec, Rate};
    use heddle_base::units::Size;

    #[test]
    fn test_pace_spreads_the_operations_over_connections_and_time() {
        let spec = BenchSpec { qps: 2, rate: Some(Rate::Ops(1000.0)), ..BenchSpec::default() };
        let start = Instant::from_millis(5);
        let pace = Pace::new(&Run::new(&spec, Size(8)), start).expect("a rate");
        let due = |conn, number| pace.due(conn, number).since(start).as_millis();
        assert_eq!([due(0, 0), due(1, 0), due(0, 1), due(1, 1)], [0, 1, 2, 3]);
        assert_eq!(due(0, 1_000_000), 2_000_000, "no drift");
        assert!(Pace::new(&Run::new(&BenchSpec::default(), Size(8)), start).is_none());
    }
}
