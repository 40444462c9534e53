//! RFC 7323: the timestamps option, round-trip measurement, PAWS.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns an established bench with timestamps; the peer's clock is at `val`, our offset is 1000.
fn stamped(val: u32) -> Bench {
    let cfg = ConnConfig { timestamps: true, ..plain() };
    let now = Instant::from_millis(1_000_000);
    let mut b = Bench::new(Connection::connect(&cfg, now, ISS, 1000), now);
    let syn = b.tx().unwrap();
    assert_eq!(syn.timestamps, Some(Timestamps { val: 1_001_000, ecr: 0 }));
    b.ts = Some(Timestamps { val, ecr: 1_001_000 });
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    let ack = b.tx().unwrap();
    assert_eq!(ack.timestamps, Some(Timestamps { val: 1_001_000, ecr: val }));
    assert_eq!(b.tx(), None);
    b
}

fn set(b: &mut Bench, val: u32) {
    let ecr = b.ts.unwrap().ecr;
    b.ts = Some(Timestamps { val, ecr });
}

fn echoed(b: &mut Bench) -> Option<u32> {
    b.tx().and_then(|t| t.timestamps).map(|t| t.ecr)
}

#[test]
fn test_timestamps_ride_on_every_segment_but_not_unnegotiated() {
    let mut b = stamped(50);
    b.queue(1000);
    b.c.close();
    while let Some(t) = b.tx() {
        assert!(t.timestamps.is_some());
    }
    b.c.abort();
    assert!(b.tx().unwrap().timestamps.is_some(), "the reset too");
    // Without negotiation the connection ignores received timestamps and sends none.
    let mut b = Bench::established();
    b.ts = Some(Timestamps { val: 1, ecr: 2 });
    assert!(b.data(0, 1000).is_some());
    b.data(1000, 1000);
    assert_eq!(b.tx().unwrap().timestamps, None);
}

#[test]
fn test_timestamps_reduce_the_segment_size() {
    assert_eq!(stamped(5).c.emss(), 988);
}

/// Section 3.2: the connection drops the segment, but does not end.
#[test]
fn test_missing_timestamp_is_dropped_except_on_rst() {
    let mut b = stamped(50);
    let bare = Segment { timestamps: None, len: 10, ..b.seg(0, 0) };
    assert_eq!(b.recv(&bare), SegmentOutcome::default());
    assert_eq!((b.sent(), b.c.state()), (vec![], State::Established));
    assert_eq!(b.c.stats().counters.missing_timestamps, 1);
    b.recv(&Segment { timestamps: None, ..b.seg(0, 0).with(RST) });
    assert_eq!(b.c.state(), State::Closed);
}

/// Section 5.3, at the edge: the same timestamp passes, an older one does not.
#[test]
fn test_paws_drops_old_and_acks() {
    for (val, fine) in [(50, true), (49, false), (51, true), (50u32.wrapping_sub(1 << 31), false)] {
        let mut b = stamped(50);
        set(&mut b, val);
        assert_eq!(b.offer(0, 10).is_some(), fine, "{val}");
        assert_eq!(b.sent().len(), usize::from(!fine));
        assert_eq!(b.c.stats().counters.paws_drops, u64::from(!fine));
    }
}

/// Section 5.3 applies to every synchronised state: an old segment moves no state on, restarts no
/// wait, brings no bytes, and gets an answer.
#[test]
fn test_paws_holds_in_every_synchronised_state() {
    for state in State::ALL {
        let mut b = match state {
            State::SynSent | State::Closed => continue,
            State::SynReceived => {
                let cfg = ConnConfig { timestamps: true, ..plain() };
                let now = Instant::from_millis(1_000_000);
                let ts = Some(Timestamps { val: 50, ecr: 0 });
                let syn = Segment { timestamps: ts, ..raw(IRS, SeqNumber(0), SYN) };
                let c = Connection::accept(&cfg, now, ISS, 1000, &syn);
                Bench { ts: Some(Timestamps { val: 50, ecr: 1_001_000 }), ..Bench::new(c, now) }
            }
            _ => stamped(50),
        };
        let fin = |b: &mut Bench, ack| {
            let fin = b.seg(0, ack).with(FIN);
            b.recv(&fin);
        };
        if matches!(state, State::CloseWait | State::LastAck) {
            fin(&mut b, 0);
        }
        let closed =
            [State::FinWait1, State::FinWait2, State::Closing, State::LastAck, State::TimeWait];
        if closed.contains(&state) {
            b.c.close();
            b.sent();
        }
        match state {
            State::FinWait2 => drop(b.ack(1)),
            State::Closing => fin(&mut b, 0),
            State::TimeWait => fin(&mut b, 1),
            _ => {}
        }
        b.sent();
        b.events();
        assert_eq!(b.c.state(), state);
        let wait = b.c.poll_timeout();
        b.now = b.now + 10 * MS;
        set(&mut b, 49);
        // The old segment has data, a FIN and an acknowledgment of all that was sent.
        let ours = i32::from(closed.contains(&state));
        let seq = i32::try_from(b.c.rcv_nxt().0).unwrap();
        let old = Segment { len: 10, ..b.seg(seq, ours).with(FIN) };
        assert_eq!(b.recv(&old), SegmentOutcome::default(), "{state:?}");
        assert_eq!((b.c.state(), b.c.poll_timeout()), (state, wait), "{state:?}");
        assert_eq!((b.events(), b.c.counters().paws_drops), (vec![], 1), "{state:?}");
        assert_eq!(b.sent().len(), 1, "{state:?}");
    }
}

/// Anyone who guesses the ports can send such segments, so the connection limits the answers like
/// other challenges.
#[test]
fn test_paws_acks_are_limited_per_second() {
    let mut b = stamped(50);
    set(&mut b, 49);
    let mut answers = 0;
    for _ in 0..100 {
        b.offer(0, 10);
        answers += b.sent().len();
    }
    assert_eq!((answers, b.c.stats().counters.paws_drops), (10, 100));
    assert_eq!(b.c.stats().counters.challenge_acks_suppressed, 90);
}

#[test]
fn test_paws_works_across_the_wrap_of_the_clock() {
    let mut b = stamped(u32::MAX);
    set(&mut b, 3);
    assert!(b.data(0, 1000).is_some());
    b.data(1000, 1000);
    assert_eq!(echoed(&mut b), Some(3));
    set(&mut b, u32::MAX);
    assert!(b.data(2000, 10).is_none());
}

#[test]
fn test_paws_does_not_apply_to_rst() {
    let mut b = stamped(50);
    set(&mut b, 10);
    b.recv(&b.seg(0, 0).with(RST));
    assert_eq!(b.c.state(), State::Closed);
}

/// Section 5.5: after 24 days of silence the connection accepts an old-looking timestamp.
#[test]
fn test_paws_is_off_after_24_days() {
    for (days, fine) in [(24 * DAY, false), (24 * DAY + MS, true)] {
        let mut b = stamped(50);
        b.now = b.now + days;
        set(&mut b, 49);
        assert_eq!(b.offer(0, 10).is_some(), fine);
    }
}

/// Section 4.3 (A): with delayed ACKs the connection echoes the earliest segment not acknowledged.
#[test]
fn test_echo_is_of_the_earliest_unacknowledged_segment() {
    let mut b = stamped(50);
    set(&mut b, 60);
    b.data(0, 1000);
    set(&mut b, 70);
    b.data(1000, 1000);
    assert_eq!(echoed(&mut b), Some(60));
}

/// Section 4.3 (B): an ACK for a segment beyond a gap echoes the timestamp from before the gap.
#[test]
fn test_echo_ahead_of_a_gap_is_that_before_it() {
    let mut b = stamped(50);
    set(&mut b, 60);
    b.data(0, 988);
    set(&mut b, 61);
    b.data(988, 988);
    assert_eq!(echoed(&mut b), Some(60));
    set(&mut b, 70);
    b.data(2976, 988);
    assert_eq!(echoed(&mut b), Some(60));
    // (C): the ACK echoes the segment that fills the gap.
    set(&mut b, 80);
    b.data(1976, 1000);
    assert_eq!(echoed(&mut b), Some(80));
}

/// Section 4.1: only an ACK that advances gives a sample, also after a retransmission.
#[test]
fn test_echo_measures_what_was_sent_again() {
    let mut b = stamped(50);
    b.queue(500);
    b.sent();
    b.wait(200 * MS);
    assert_eq!(b.c.stats().rto, 400 * MS);
    // The retransmission was stamped 1_001_200; its ACK comes 7 ms later.
    b.now = b.now + 7 * MS;
    b.ts = Some(Timestamps { val: 51, ecr: 1_001_200 });
    b.ack(0);
    assert_eq!(b.c.stats().rto, 400 * MS);
    b.ack(500);
    let srtt = b.c.stats().srtt.unwrap();
    assert_eq!((srtt.as_micros(), b.c.stats().rto), (875, 200 * MS));
}

/// Neither an echo from the future nor an echo of an earlier transmission gives a sample. The
/// latter may only mean that an ACK was lost.
#[test]
fn test_echo_not_of_the_last_transmission_is_no_sample() {
    for ecr in [1_001_201, 1_001_199, 1_001_000, 0, 2_000_000, 999] {
        let mut b = stamped(50);
        b.queue(500);
        b.sent();
        b.wait(200 * MS);
        b.ts = Some(Timestamps { val: 51, ecr });
        b.ack(500);
        assert_eq!(b.c.stats().srtt, Some(Duration::ZERO), "{ecr}");
    }
}

/// Section 3.2: the echo of a segment without ACK means nothing, here in the SYN of a peer that
/// opens at the same time.
#[test]
fn test_echo_of_a_segment_without_ack_measures_nothing() {
    let mut b = Bench::connecting(&ethernet());
    b.sent();
    b.wait(1000 * MS);
    let ecr = u32::try_from(b.now.as_millis()).unwrap();
    b.now = b.now + 7 * MS;
    let syn = |flags| {
        let ts = Some(Timestamps { val: 77, ecr });
        Segment { timestamps: ts, ..b.seg(-1, 0).with(flags) }
    };
    let (syn, syn_ack) = (syn(SYN), syn(SYN_ACK));
    b.recv(&syn);
    assert_eq!((b.c.state(), b.c.stats().srtt), (State::SynReceived, None));
    // With the ACK the echo gives the round trip of the SYN that was sent again.
    let mut b = Bench::connecting(&ethernet());
    b.sent();
    b.wait(1000 * MS);
    b.now = b.now + 7 * MS;
    b.recv(&syn_ack);
    assert_eq!((b.c.state(), b.c.stats().srtt), (State::Established, Some(7 * MS)));
}

/// Section 5.2: the reset that answers a segment echoes its timestamp and has none of its own.
#[test]
fn test_reset_reply_echoes_the_timestamp() {
    let mut b = Bench::connecting(&ethernet());
    b.sent();
    b.ts = Some(Timestamps { val: 77, ecr: 5 });
    b.recv(&b.seg(0, 10));
    let tx = b.tx().unwrap();
    assert_eq!((tx.flags, tx.timestamps), (RST, Some(Timestamps { val: 0, ecr: 77 })));
}

/// The clock of the option runs with time, from the connection's own offset.
#[test]
fn test_clock_is_milliseconds_plus_the_offset() {
    let mut b = stamped(5);
    b.now = b.now + 1234 * MS;
    b.queue(1);
    assert_eq!(b.tx().unwrap().timestamps.unwrap().val, 1_001_000 + 1234);
}

#[test]
fn test_time_wait_replacement_goes_by_timestamp() {
    let mut b = stamped(50);
    b.c.close();
    b.sent();
    b.recv(&b.seg(0, 1).with(FIN));
    assert_eq!(b.c.state(), State::TimeWait);
    for (val, seq, fine) in [(51, -9, true), (50, -9, false), (50, 2, true), (49, 2, false)] {
        set(&mut b, val);
        assert_eq!(b.c.may_be_replaced_by(&b.seg(seq, 0).with(SYN)), fine, "{val} {seq}");
    }
}

/// RFC 7323 section 5.3, in each synchronised state and before the last segment of the handshake:
/// the connection acknowledges an old segment and ignores its contents.
#[test]
fn test_paws_drops_old_segments_in_every_state() {
    for state in State::ALL.into_iter().filter(|s| !matches!(s, State::SynSent | State::Closed)) {
        for flags in [ACK, FIN] {
            for len in [0, 100] {
                let mut b = Bench::in_state(state);
                (b.c.hot.ts_ok, b.c.hot.ts_recent, b.c.hot.last_rx) = (true, 1000, b.now);
                let wait_at = b.c.hot.wait_at;
                let at = |p: StreamPos| i32::try_from(p.0).unwrap();
                // This segment would move every state on: an ACK of all that we sent, bytes, the
                // end.
                let seg = b.seg(at(b.c.hot.rcv_nxt), at(b.c.hot.snd_max)).with(flags);
                let old = Segment { len, timestamps: Some(Timestamps { val: 999, ecr: 1 }), ..seg };
                let before = (b.c.snd_una(), b.c.rcv_nxt());
                let out = b.recv(&old);
                let what = format!("{state:?} {flags:?} {len}");
                assert_eq!((out.payload, out.acked), (None, None), "{what}");
                assert_eq!((b.c.state(), b.events()), (state, vec![]), "{what}");
                assert_eq!((b.c.snd_una(), b.c.rcv_nxt()), before, "{what}");
                assert_eq!((b.count().paws_drops, b.c.hot.wait_at), (1, wait_at), "{what}");
                assert!(b.c.hot.pending.any(super::super::Pending::ACK), "{what}: acknowledged");
                // The connection does not drop a segment as new as the last.
                b.recv(&Segment { timestamps: Some(Timestamps { val: 1000, ecr: 1 }), ..seg });
                assert_eq!(b.count().paws_drops, 1, "{what}");
            }
        }
    }
}
