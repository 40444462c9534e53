//! The window under each algorithm, without a connection.

use super::*;

const MSS: u32 = 1000;
const MS: Duration = Duration::from_millis(1);

/// A window, its clock, and the stream up to which the peer has acknowledged.
struct Bench {
    w: Window,
    rto: Rto,
    now: Instant,
    una: StreamPos,
}

impl Bench {
    fn new(algorithm: Congestion, rtt: Duration) -> Bench {
        let mut rto = Rto::new(1000 * MS, MS, 60_000 * MS);
        rto.sample(rtt);
        let w = Window::new(MSS, algorithm);
        Bench { w, rto, now: Instant::from_millis(1000), una: StreamPos::START }
    }

    /// Acknowledges a window of segments in the time `rtt`; each acknowledgment shows that time.
    fn round(&mut self, rtt: Duration) {
        let segments = self.w.cwnd() / MSS;
        for _ in 0..segments {
            self.now = self.now + rtt / segments;
            self.una += u64::from(MSS);
            let flight = u64::from(self.w.cwnd());
            self.w.note_rtt(u64::try_from(rtt.as_nanos()).unwrap());
            if self.w.may_watch() {
                self.w.watch(self.una, self.una + flight, Some(rtt), &self.rto);
            }
            let max = self.una + flight;
            self.w.on_ack(self.now, self.una, max, MSS.into(), flight, &self.rto);
        }
    }
}

/// RFC 9406: round trips that grow end slow start, after five rounds of slower growth.
#[test]
fn test_growing_round_trips_end_first_slow_start() {
    let mut b = Bench::new(Congestion::Cubic, 40 * MS);
    b.round(40 * MS);
    b.round(40 * MS);
    assert_eq!((b.w.cwnd(), b.w.ssthresh()), (40_000, u32::MAX));
    b.round(44 * MS);
    assert_eq!((b.w.cwnd(), b.w.ssthresh()), (80_000, u32::MAX), "an eighth is 5 ms");
    let mut windows = vec![];
    for _ in 0..6 {
        b.round(50 * MS);
        windows.push(b.w.cwnd());
    }
    assert!(windows[0] < 110_000, "a quarter of the pace: {windows:?}");
    assert!(b.w.ssthresh() < u32::MAX, "{windows:?}");
    let end = b.w.cwnd();
    b.round(50 * MS);
    assert!(b.w.cwnd() <= end + 2 * MSS, "congestion avoidance");
}

#[test]
fn test_round_trips_that_come_down_again_resume_slow_start() {
    let mut b = Bench::new(Congestion::Cubic, 40 * MS);
    b.round(40 * MS);
    b.round(40 * MS);
    b.round(50 * MS);
    let slowed = b.w.cwnd();
    assert!(slowed < 70_000);
    b.round(41 * MS);
    b.round(41 * MS);
    assert!(b.w.cwnd() > 3 * slowed, "{}", b.w.cwnd());
    assert_eq!(b.w.ssthresh(), u32::MAX);
}

#[test]
fn test_round_trips_end_no_slow_start_where_they_are_short_or_of_newreno_or_not_the_first() {
    for (algorithm, rtt) in [(Congestion::Cubic, MS / 2), (Congestion::NewReno, 40 * MS)] {
        let mut b = Bench::new(algorithm, rtt);
        for n in 1..8 {
            b.round(rtt * n);
            assert_eq!(b.w.ssthresh(), u32::MAX);
        }
        assert_eq!(b.w.cwnd(), 10_000 << 7);
        assert!(b.w.more.is_none(), "nothing was allocated");
    }
    let mut b = Bench::new(Congestion::Cubic, 40 * MS);
    b.round(40 * MS);
    b.w.on_timeout(b.una, b.una + 400_000, true);
    assert_eq!(b.w.ssthresh(), 280_000);
    for n in 1..8 {
        b.una = b.w.recover;
        b.round(40 * MS * n);
        assert_eq!(b.w.ssthresh(), 280_000);
    }
}

/// RFC 9438 section 4.9.2: a mistaken reduction leaves no trace, also not in the cubic function.
#[test]
fn test_undone_reduction_restores_window_and_function() {
    let mut b = Bench::new(Congestion::Cubic, 100 * MS);
    b.w.cwnd = 500_000;
    b.w.on_timeout(b.una, b.una + 500_000, true);
    b.w.cwnd = 350_000;
    b.una = b.w.recover;
    (0..20).for_each(|_| b.round(100 * MS));
    let law = |b: &Bench| match b.w.more.as_ref().unwrap().law {
        Law::Cubic(c) => format!("{c:?}"),
        other => format!("{other:?}"),
    };
    let (cwnd, ssthresh, before) = (b.w.cwnd(), b.w.ssthresh(), law(&b));
    b.w.save(false);
    b.w.start_recovery(cwnd.into(), b.una);
    assert_eq!(u64::from(b.w.ssthresh()), u64::from(cwnd) * 7 / 10);
    assert_ne!(law(&b), before);
    b.w.save(true);
    b.w.on_timeout(b.una, b.una + 1000, true);
    assert_eq!(b.w.cwnd(), MSS);
    b.w.undo();
    assert_eq!((b.w.cwnd(), b.w.ssthresh(), law(&b)), (cwnd, ssthresh, before));
}

/// RFC 9438 section 4.6: not below two segments.
#[test]
fn test_ssthresh_after_a_loss_is_at_least_two_segments() {
    for algorithm in [Congestion::Cubic, Congestion::NewReno] {
        let mut b = Bench::new(algorithm, MS);
        b.w.on_timeout(b.una, b.una + 1000, true);
        assert_eq!((b.w.ssthresh(), b.w.cwnd()), (2 * MSS, MSS));
    }
}

/// RFC 9438 section 4.9.2: a window that has grown beyond the old one keeps its function.
#[test]
fn test_undoing_late_keeps_the_larger_window_and_its_function() {
    let mut b = Bench::new(Congestion::Cubic, 100 * MS);
    b.w.save(false);
    b.w.start_recovery(10_000, b.una);
    b.w.end_recovery();
    (0..100).for_each(|_| b.round(100 * MS));
    let cwnd = b.w.cwnd();
    assert!(cwnd > 10_000);
    let function = |b: &Bench| format!("{:?}", b.w.more.as_ref().unwrap().law);
    let before = function(&b);
    b.w.undo();
    assert_eq!((b.w.cwnd(), function(&b)), (cwnd, before));
}

/// The initial window goes at once, and then a burst of 1 ms: segments that follow others in a train
/// count as well.
#[test]
fn test_trains_count_towards_the_initial_window() {
    for train in [1, 2, 4, 16] {
        let mut b = Bench::new(Congestion::NewReno, 40 * MS);
        b.w.cwnd = 100_000;
        let mut sent = 0;
        while b.w.pace(b.now, MSS, 40 * MS).is_ok() {
            let more = (train - 1) * MSS;
            let more = more.min(u32::try_from(b.w.pace_room()).unwrap() / MSS * MSS);
            b.w.pace_more(more);
            sent += MSS + more;
        }
        assert_eq!(sent, 10_000 + 5000, "trains of {train}");
    }
}

/// As Linux does: two windows in a round trip of slow start, 1.2 from half of ssthresh on; the
/// initial window goes at once.
#[test]
fn test_pace_is_two_windows_per_round_trip_in_slow_start_and_less_later() {
    for (ssthresh, expected) in [(u32::MAX, 20.0), (200_000, 33.3)] {
        let mut b = Bench::new(Congestion::NewReno, 40 * MS);
        (b.w.cwnd, b.w.ssthresh) = (100_000, ssthresh);
        let start = b.now;
        for _ in 0..10 {
            assert_eq!(b.w.pace(b.now, MSS, 40 * MS), Ok(()));
        }
        let mut longest = 0;
        for _ in 0..100 {
            let mut burst = 0;
            while let Err(at) = b.w.pace(b.now, MSS, 40 * MS) {
                assert!(at > b.now);
                (b.now, burst) = (at, burst + 1);
            }
            longest = longest.max(burst);
        }
        let took = (b.now - start).as_secs_f64() * 1000.0;
        assert!((expected - 2.0..=expected).contains(&took), "{ssthresh}: {took}");
        assert_eq!(longest, 1, "the time of the pacer is right");
    }
}
