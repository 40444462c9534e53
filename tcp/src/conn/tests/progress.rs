//! Peers that answer and take nothing: windows that stay shut, closes that stand still.

use super::*;

const LIMIT: Duration = Duration::from_secs(100);

fn limited(sack: bool) -> ConnConfig {
    ConnConfig { zero_window: LIMIT, close_stall: Duration::from_secs(20), sack, ..plain() }
}

/// Returns an established bench with 5000 bytes that wait for a window that is shut.
fn blocked(sack: bool) -> Bench {
    let mut b = Bench::established_with(&limited(sack));
    b.window = 0;
    b.ack(0);
    b.queue(5000);
    assert_eq!(b.sent(), strings(&[]));
    b
}

/// Makes the peer answer at `upto` for `time`, every 100 ms.
fn answer(b: &mut Bench, upto: i32, time: Duration) -> Vec<String> {
    let (end, mut all) = (b.now + time, Vec::new());
    while b.now < end && b.c.state() != State::Closed {
        let step = (end - b.now).min(100 * MS);
        all.extend(b.wait(step).into_iter().map(|(_, s)| s));
        b.ack(upto);
        all.extend(b.sent());
    }
    all
}

#[test]
fn test_window_kept_shut_is_reported_and_ends_the_connection_at_the_limit() {
    for sack in [false, true] {
        let mut b = blocked(sack);
        answer(&mut b, 0, LIMIT / 4);
        assert_eq!(b.events(), []);
        answer(&mut b, 0, LIMIT * 2 / 4);
        assert_eq!(b.events(), [ConnEvent::Stalled], "once, sack {sack}");
        let start = b.now;
        let out = answer(&mut b, 0, LIMIT);
        assert_eq!(b.events(), [ConnEvent::WindowShut]);
        assert!(b.now - start <= LIMIT / 4 + 1000 * MS, "{:?}", b.now - start);
        assert!(out.last().is_some_and(|s| s.starts_with("R.")), "{out:?}");
        assert_eq!((b.count().zero_window_timeouts, b.c.poll_timeout()), (1, None));
    }
}

#[test]
fn test_window_shut_for_less_than_the_limit_never_ends_the_connection() {
    for sack in [false, true] {
        let mut b = blocked(sack);
        for n in 1..=3 {
            answer(&mut b, 5000 * (n - 1), LIMIT * 98 / 100);
            b.window = 10_000;
            while b.c.snd_una() < StreamPos(u64::try_from(5000 * n).unwrap()) {
                b.ack(i32::try_from(b.c.snd_max().0).unwrap());
                b.sent();
                b.wait(MS);
            }
            b.window = 0;
            b.ack(5000 * n);
            b.queue(5000);
            b.sent();
        }
        assert_eq!(b.c.state(), State::Established);
        assert_eq!(b.count().zero_window_timeouts, 0);
    }
}

#[test]
fn test_message_that_went_through_does_not_count_against_the_next_shut_window() {
    let mut b = Bench::established_with(&limited(true));
    b.window = 0;
    b.ack(0);
    b.queue(20);
    b.sent();
    answer(&mut b, 0, LIMIT / 4);
    b.window = 10_000;
    b.ack(0);
    b.sent();
    b.ack(20);
    b.wait(LIMIT * 10);
    b.window = 0;
    b.ack(20);
    b.queue(20);
    b.sent();
    answer(&mut b, 20, LIMIT * 98 / 100);
    assert_eq!(b.c.state(), State::Established);
    answer(&mut b, 20, LIMIT / 10);
    assert_eq!(b.events().last(), Some(&ConnEvent::WindowShut));
}

/// The peer takes the byte of each probe, which is no segment's worth within the limit.
#[test]
fn test_window_that_takes_only_the_byte_of_each_probe_counts_as_shut() {
    for sack in [false, true] {
        let mut b = blocked(sack);
        let start = b.now;
        let mut taken = 0;
        while b.c.state() != State::Closed {
            b.wait(100 * MS);
            taken = i32::try_from(b.c.snd_max().0).unwrap();
            b.ack(taken);
            b.sent();
            assert!(b.now - start < LIMIT * 2, "held by {taken} bytes");
        }
        assert_eq!(b.events().last(), Some(&ConnEvent::WindowShut));
        assert!(taken > 3, "{taken}");
    }
}

/// The peer opens and shuts its window faster than any timer, and acknowledges nothing.
#[test]
fn test_window_that_opens_and_shuts_forever_ends_the_connection() {
    for sack in [false, true] {
        for open in [1, 500, 2000] {
            for shuts in [1, 2] {
                let mut b = blocked(sack);
                let start = b.now;
                while b.c.state() != State::Closed {
                    for window in core::iter::once(open).chain(core::iter::repeat_n(0, shuts)) {
                        b.window = window;
                        b.ack(0);
                        b.sent();
                        b.wait(3 * MS);
                    }
                    let held = b.now - start;
                    assert!(held < Duration::from_secs(300), "{open} {shuts} {sack}: {:?}", b.c);
                }
                let end = b.events().last().copied();
                assert!(
                    matches!(end, Some(ConnEvent::WindowShut | ConnEvent::TimedOut)),
                    "{end:?}"
                );
            }
        }
    }
}

#[test]
fn test_shut_window_ends_a_connection_that_closes() {
    let mut b = blocked(true);
    b.c.close();
    b.sent();
    answer(&mut b, 0, LIMIT * 2);
    assert_eq!((b.c.state(), b.events().last()), (State::Closed, Some(&ConnEvent::WindowShut)));
}

const STALL: Duration = Duration::from_secs(20);

#[test]
fn test_bounded_close_goes_on_while_the_peer_acknowledges() {
    for closed in [false, true] {
        let mut b = Bench::established_with(&limited(true));
        b.queue(50_000);
        b.c.bound_close(b.now);
        if closed {
            b.c.close();
        }
        // The peer takes a segment every 15 s: 10 minutes for all.
        for n in 1..=40 {
            b.window = 1000;
            b.wait(15_000 * MS);
            b.ack(1000 * n);
            b.sent();
            assert_ne!(b.c.state(), State::Closed, "{n}, closed {closed}");
        }
        let start = b.now;
        b.wait(STALL * 2);
        assert_eq!((b.c.state(), b.events().last()), (State::Closed, Some(&ConnEvent::TimedOut)));
        assert_eq!(b.count().close_stalls, 1);
        assert!(b.now - start <= STALL * 2);
    }
}

#[test]
fn test_bounded_close_goes_on_while_the_owner_moves_bytes_beside_the_stream() {
    let mut b = Bench::established_with(&limited(true));
    // Before a close is bounded, `note_progress` has nothing to record.
    b.c.note_progress(b.now);
    b.c.bound_close(b.now);
    for n in 1..=40 {
        b.wait(15_000 * MS);
        b.sent();
        assert_ne!(b.c.state(), State::Closed, "{n}");
        b.c.note_progress(b.now);
    }
    let start = b.now;
    b.wait(STALL * 2);
    assert_eq!((b.c.state(), b.events().last()), (State::Closed, Some(&ConnEvent::TimedOut)));
    assert!(b.now - start <= STALL * 2);
}

#[test]
fn test_bounded_close_goes_on_while_the_peer_sends() {
    let mut b = Bench::established_with(&limited(true));
    b.c.bound_close(b.now);
    b.c.close();
    b.sent();
    b.ack(1);
    assert_eq!(b.c.state(), State::FinWait2);
    for n in 0..40 {
        b.wait(15_000 * MS);
        b.recv(&Segment { len: 10, ..b.seg(10 * n, 1) });
        b.c.accept_payload(b.now, b.c.rcv_nxt(), 10);
        b.sent();
        assert_eq!(b.c.state(), State::FinWait2, "{n}");
    }
    // An ACK or a window update is no byte that moves.
    for _ in 0..3 {
        b.wait(8_000 * MS);
        b.ack(1);
    }
    b.wait(5_000 * MS);
    assert_eq!((b.c.state(), b.events().last()), (State::Closed, Some(&ConnEvent::TimedOut)));
}

#[test]
fn test_bounded_close_ends_within_a_quarter_stall_after_the_limit() {
    for state in [State::Established, State::FinWait1, State::FinWait2, State::CloseWait] {
        let mut b = Bench::in_state_with(&limited(true), state);
        b.c.bound_close(b.now);
        b.c.bound_close(b.now);
        b.wait(STALL - MS);
        assert_eq!(b.c.state(), state);
        b.wait(STALL / 4 + 2 * MS);
        assert_eq!(b.c.state(), State::Closed, "{state:?}");
        assert_eq!(b.events().last(), Some(&ConnEvent::TimedOut));
    }
}

/// Most connections have closed by then, without a turn of the timers.
#[test]
fn test_bounded_close_looks_first_after_a_quarter_of_the_stall() {
    let mut b = Bench::in_state_with(&limited(true), State::Established);
    b.c.bound_close(b.now);
    assert_eq!(b.c.poll_timeout(), Some(b.now + STALL / 4));
}

#[test]
fn test_bounded_close_ends_in_an_ordinary_time_wait() {
    let mut b = Bench::in_state_with(&limited(true), State::FinWait2);
    b.c.bound_close(b.now);
    b.wait(MS);
    b.recv(&b.seg(0, 1).with(FIN));
    assert_eq!(b.c.state(), State::TimeWait);
    b.sent();
    assert_eq!(b.events(), [ConnEvent::PeerClosed, ConnEvent::Closed]);
    b.wait(999 * MS);
    assert_eq!(b.c.state(), State::TimeWait);
    b.wait(MS);
    assert_eq!((b.c.state(), b.c.poll_timeout()), (State::Closed, None));
    let mut b = Bench::in_state(State::TimeWait);
    b.c.bound_close(b.now);
    b.wait(1000 * MS);
    assert_eq!((b.c.state(), b.events()), (State::Closed, vec![]));
}
