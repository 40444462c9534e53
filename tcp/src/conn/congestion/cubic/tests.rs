use super::*;

const MSS: u32 = 1000;
const MS: Duration = Duration::from_millis(1);

/// Returns W_cubic of RFC 9438 section 4.2 in bytes, computed as the text has it.
fn w_cubic(t: f64, w_max: f64, epoch: f64) -> f64 {
    let (w_max, epoch) = (w_max / f64::from(MSS), epoch / f64::from(MSS));
    let k = ((w_max - epoch) / 0.4).cbrt();
    (0.4 * (t - k).powi(3) + w_max) * f64::from(MSS)
}

/// Acknowledges a window of segments over each round trip, in each of `rounds`. Returns the window after
/// each round trip.
fn run(c: &mut Cubic, now: &mut Instant, cwnd: &mut u32, rtt: Duration, rounds: usize) -> Vec<u32> {
    let mut count = 0;
    let mut windows = Vec::new();
    for _ in 0..rounds {
        let segments = *cwnd / MSS;
        for _ in 0..segments {
            *now = *now + rtt / segments;
            *cwnd = c.on_ack(*now, MSS, &mut count, *cwnd, MSS, Some(rtt));
        }
        windows.push(*cwnd);
    }
    windows
}

#[test]
fn test_cube_root_is_exact_at_cubes_and_just_below_them() {
    for n in [1u64, 2, 3, 10, 999, 4242, (1 << ROOT_BITS) - 1] {
        let root = u32::try_from(n).unwrap();
        assert_eq!(cube_root(n * n * n), root);
        assert_eq!(cube_root(n * n * n - 1), root - 1, "{n}");
    }
    assert_eq!((cube_root(0), cube_root(u64::MAX)), (0, (1 << ROOT_BITS) - 1));
}

/// Sections 4.2, 4.4 and 4.5: from the reduction over the plateau to beyond it.
#[test]
fn test_window_follows_cubic_function_of_time_since_reduction() {
    let (mut c, mut now) = (Cubic::default(), Instant::from_millis(5000));
    let before = 1_000_000u32;
    let left = c.on_loss(before, before.into(), false);
    assert_eq!(left, 700_000, "section 4.6");
    let mut cwnd = u32::try_from(left).unwrap();
    let rtt = 100 * MS;
    for n in 1..=150 {
        run(&mut c, &mut now, &mut cwnd, rtt, 1);
        let t = f64::from(n) * 0.1;
        // The window is on its way to the value after one more round trip.
        let (low, high) = (w_cubic(t, 1e6, 7e5), w_cubic(t + 0.1, 1e6, 7e5));
        let low = low.min(high) - 3000.0;
        let high = high.max(low) * 1.01 + 3000.0;
        assert!((low..=high).contains(&f64::from(cwnd)), "{n}: {cwnd}, not {low} to {high}");
    }
    assert!(cwnd > 1_050_000, "convex beyond the plateau: {cwnd}");
}

/// Section 4.2: however far the function runs ahead, the window grows by at most half in a round
/// trip.
#[test]
fn test_window_grows_by_at_most_half_in_a_round_trip() {
    let (mut c, mut now, mut cwnd) = (Cubic::default(), Instant::from_millis(5000), 10_000);
    c.slow_start_over(cwnd);
    let windows = run(&mut c, &mut now, &mut cwnd, 2000 * MS, 30);
    for pair in windows.windows(2) {
        assert!(pair[1] <= pair[0] + pair[0] / 2 + MSS, "{pair:?}");
    }
    assert!(windows.last() > Some(&1_000_000), "{windows:?}");
}

/// Section 4.3: with short round trips, Reno with the same average window is faster.
#[test]
fn test_window_follows_reno_where_round_trips_are_short() {
    let (mut c, mut now) = (Cubic::default(), Instant::from_millis(5000));
    let mut cwnd = u32::try_from(c.on_loss(100_000, 100_000, false)).unwrap();
    let windows = run(&mut c, &mut now, &mut cwnd, MS, 57);
    // 9/17 of a segment per round trip; 30 segments in 57 round trips.
    assert!((99_000..=101_000).contains(windows.last().unwrap()), "{windows:?}");
    // From the old window on, a segment per round trip.
    let windows = run(&mut c, &mut now, &mut cwnd, MS, 20);
    assert!((117_000..=123_000).contains(windows.last().unwrap()), "{windows:?}");
}

/// Section 4.7: a plateau that was not reached again becomes lower.
#[test]
fn test_second_loss_below_the_plateau_lowers_it() {
    let mut c = Cubic::default();
    c.on_loss(100_000, 100_000, false);
    assert_eq!(c.w_max, 100_000);
    c.on_loss(90_000, 90_000, false);
    assert_eq!((c.w_max, c.prior), (76_500, 90_000));
    c.on_loss(80_000, 80_000, false);
    assert_eq!(c.w_max, 80_000, "above the lowered plateau");
}

/// Sections 4.8 and 4.10: after a timeout, and after slow start without a loss, the plateau is where
/// congestion avoidance begins.
#[test]
fn test_plateau_is_the_present_window_after_timeout_or_slow_start() {
    for timeout in [true, false] {
        let (mut c, mut now, mut cwnd) = (Cubic::default(), Instant::from_millis(5000), 70_000);
        if timeout {
            assert_eq!(c.on_loss(100_000, 100_000, true), 70_000);
        } else {
            c.slow_start_over(cwnd);
        }
        run(&mut c, &mut now, &mut cwnd, 100 * MS, 1);
        assert_eq!((c.w_max, c.k), (70_000, 0));
        run(&mut c, &mut now, &mut cwnd, 100 * MS, 9);
        assert!(cwnd <= 84_000, "flat at first: {cwnd}");
    }
}

/// Sections 4.2 and 5.8: a time in which the sender did not use its window does not count.
#[test]
fn test_function_stands_still_while_sender_does_not_use_its_window() {
    let run_with = |pause: Duration| {
        let (mut c, mut now) = (Cubic::default(), Instant::from_millis(5000));
        let mut cwnd = u32::try_from(c.on_loss(1_000_000, 1_000_000, false)).unwrap();
        run(&mut c, &mut now, &mut cwnd, 100 * MS, 20);
        if !pause.is_zero() {
            c.pause(now);
            c.pause(now + pause / 2);
            now = now + pause;
        }
        run(&mut c, &mut now, &mut cwnd, 100 * MS, 20);
        cwnd
    };
    assert!(run_with(60_000 * MS).abs_diff(run_with(Duration::ZERO)) <= MSS);
}

#[test]
fn test_arithmetic_holds_at_extremes() {
    for (cwnd, mss) in [(1, 1), (1 << 30, 64), (u32::MAX, u32::MAX), (1 << 30, 1), (64, 65_535)] {
        let mut c = Cubic::default();
        c.on_loss(u32::MAX, u64::MAX, false);
        let mut count = u32::MAX;
        let mut now = Instant::ZERO;
        for wait in [0, 1, 1_000_000, u64::MAX / 2, u64::MAX] {
            now = now + Duration::from_nanos(wait);
            let next = c.on_ack(now, u32::MAX, &mut count, cwnd, mss, Some(Duration::MAX));
            assert!(next >= cwnd);
        }
        c.set_mss(1, u32::MAX);
        c.pause(now);
        c.on_ack(now, 1, &mut count, cwnd, mss, None);
    }
}
