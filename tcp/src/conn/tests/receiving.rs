//! Incoming payload: order, acknowledgments, and the two phases of acceptance.

use super::*;

fn payload(pos: u64, skip: u32, len: u32, in_order: bool) -> Option<Payload> {
    Some(Payload { pos: StreamPos(pos), skip, len, in_order })
}

#[test]
fn test_established_data_in_order_is_acked_every_second_segment() {
    let mut b = Bench::established();
    assert_eq!(b.data(0, 1000), payload(0, 0, 1000, true));
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.data(1000, 1000), payload(1000, 0, 1000, true));
    assert_eq!(b.sent(), [". 0 ack 2000"]);
    assert_eq!(b.c.rcv_nxt(), StreamPos(2000));
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_established_single_segment_is_acked_after_the_delay() {
    let mut b = Bench::established();
    b.data(0, 1000);
    assert_eq!(b.wait(39 * MS), []);
    assert_eq!(b.wait(MS), [(1, ". 0 ack 1000".to_string())]);
}

/// RFC 5681 section 4.2: an ACK is never later than 500 ms, whatever the configuration asks for.
#[test]
fn test_delayed_ack_is_cut_to_half_a_second() {
    let cfg = ConnConfig { delayed_ack: Duration::from_secs(5), ..plain() };
    let mut b = Bench::established_with(&cfg);
    b.data(0, 1000);
    assert_eq!(b.wait(499 * MS), []);
    assert_eq!(b.wait(MS).len(), 1);
}

#[test]
fn test_delayed_ack_of_zero_acks_at_once() {
    let cfg = ConnConfig { delayed_ack: Duration::ZERO, ..plain() };
    let mut b = Bench::established_with(&cfg);
    b.data(0, 1);
    assert_eq!(b.sent(), [". 0 ack 1"]);
}

#[test]
fn test_established_ack_is_piggybacked_on_data() {
    let mut b = Bench::established();
    b.data(0, 1000);
    b.queue(10);
    assert_eq!(b.sent(), ["P. 0+10 ack 1000"]);
    assert!(b.wait(100 * MS).is_empty());
}

/// A lone RDMA Write completes with its ACK. Where no data have carried two ACKs in a row, holding
/// the next one back would only make the peer wait.
#[test]
fn test_acks_that_no_data_carry_are_soon_not_held_back() {
    let mut b = Bench::established();
    for (n, pos) in [(0u64, 0), (1, 10), (2, 20), (3, 30)] {
        b.data(pos, 10);
        let ack = format!(". 0 ack {}", pos + 10);
        if n < 2 {
            assert_eq!(b.wait(40 * MS), [(40, ack)], "message {n}");
        } else {
            assert_eq!(b.sent(), [ack], "message {n}");
        }
        assert!(b.wait(60 * MS).is_empty());
    }
}

/// The application answers again: its data carry the ACKs, as before.
#[test]
fn test_acks_are_held_back_again_once_data_follow_soon() {
    let mut b = Bench::established();
    for pos in [0, 10] {
        b.data(pos, 10);
        assert_eq!(b.wait(40 * MS).len(), 1);
    }
    b.data(20, 10);
    assert_eq!(b.sent(), [". 0 ack 30"]);
    // This answer is too late for an ACK that would have waited for it.
    assert!(b.wait(40 * MS).is_empty());
    b.queue(10);
    assert_eq!(b.sent(), ["P. 0+10 ack 30"]);
    b.data(30, 10);
    assert_eq!(b.sent(), [". 10 ack 40"]);
    assert!(b.wait(39 * MS).is_empty());
    b.queue(10);
    assert_eq!(b.sent(), ["P. 10+10 ack 40"]);
    b.data(40, 10);
    assert_eq!(b.sent(), strings(&[]));
    b.queue(10);
    assert_eq!(b.sent(), ["P. 20+10 ack 50"]);
}

/// RFC 9293 MUST-58, MUST-59: the connection handles a whole burst before one ACK goes out.
#[test]
fn test_established_burst_makes_one_ack() {
    let mut b = Bench::established();
    for i in 0..8 {
        b.data(i * 1000, 1000);
    }
    assert_eq!(b.sent(), [". 0 ack 8000"]);
}

#[test]
fn test_established_refused_payload_leaves_no_trace() {
    let mut b = Bench::established();
    assert_eq!(b.offer(0, 1000), payload(0, 0, 1000, true));
    assert_eq!(b.c.rcv_nxt(), StreamPos(0));
    assert_eq!((b.sent(), b.c.poll_timeout()), (vec![], None));
    assert_eq!(b.data(0, 1000), payload(0, 0, 1000, true));
    assert_eq!(b.c.rcv_nxt(), StreamPos(1000));
}

#[test]
fn test_established_part_accepted_leaves_the_rest() {
    let mut b = Bench::established();
    b.offer(0, 1000);
    b.c.accept_payload(b.now, StreamPos(0), 300);
    assert_eq!(b.c.rcv_nxt(), StreamPos(300));
    assert_eq!(b.offer(0, 1000), payload(300, 300, 700, true));
}

/// RFC 5681 sections 3.2 and 4.2; RFC 9293 SHLD-31.
#[test]
fn test_established_gap_is_reported_acked_and_filled() {
    let mut b = Bench::established();
    assert_eq!(b.data(1000, 1000), payload(1000, 0, 1000, false));
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.data(3000, 1000), payload(3000, 0, 1000, false));
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.data(0, 1000), payload(0, 0, 1000, true));
    assert_eq!(b.sent(), [". 0 ack 2000"]);
    assert_eq!(b.data(2000, 1000), payload(2000, 0, 1000, true));
    assert_eq!(b.sent(), [". 0 ack 4000"]);
    assert_eq!(b.c.stats().counters.ooo_segments, 2);
}

/// RFC 5681 section 4.2: the connection acknowledges a segment that fills part of a gap at once,
/// however short it is.
#[test]
fn test_established_part_of_a_gap_is_acked_at_once() {
    let mut b = Bench::established();
    b.data(2000, 1000);
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert!(b.data(0, 10).is_some());
    assert_eq!(b.sent(), [". 0 ack 10"]);
    assert!(b.data(10, 1990).is_some());
    assert_eq!(b.sent(), [". 0 ack 3000"]);
    // Without a gap the ACK of the same segment waits.
    assert!(b.data(3000, 10).is_some());
    assert_eq!(b.sent(), strings(&[]));
}

/// RFC 5681 section 4.2 demands an ACK for every second full segment at least. After a gap, when
/// the peer's window is small, sixteen full segments get an ACK each; the ACK of a short segment
/// waits as usual.
#[test]
fn test_established_full_segments_after_a_gap_are_acked_one_by_one() {
    let mut b = Bench::established();
    b.data(1000, 1000);
    b.data(0, 1000);
    assert_eq!(b.sent(), [". 0 ack 2000"]);
    for n in 2..18 {
        b.data(1000 * n, 1000);
        assert_eq!(b.sent(), [format!(". 0 ack {}", 1000 * (n + 1))]);
    }
    b.data(18_000, 1000);
    assert_eq!(b.sent(), strings(&[]), "from here on every second one");
    b.data(19_000, 1000);
    assert_eq!(b.sent(), [". 0 ack 20000"]);
}

#[test]
fn test_established_refused_payload_ahead_of_a_gap_is_still_acked() {
    let mut b = Bench::established();
    assert_eq!(b.offer(1000, 1000), payload(1000, 0, 1000, false));
    assert_eq!(b.sent(), [". 0 ack 0"]);
    b.data(0, 1000);
    assert_eq!(b.c.rcv_nxt(), StreamPos(1000));
}

#[test]
fn test_established_duplicate_is_acked_at_once() {
    let mut b = Bench::established();
    b.data(0, 1000);
    b.data(1000, 1000);
    b.sent();
    assert_eq!(b.data(0, 1000), None);
    assert_eq!(b.sent(), [". 0 ack 2000"]);
    // The same holds for a duplicate ahead of a gap.
    b.data(3000, 1000);
    b.sent();
    assert_eq!(b.data(3000, 1000), None);
    assert_eq!(b.sent(), [". 0 ack 2000"]);
    assert_eq!(b.c.stats().counters.duplicate_segments, 2);
}

#[test]
fn test_established_overlap_is_trimmed_on_both_sides() {
    let mut b = Bench::established();
    b.data(0, 500);
    assert_eq!(b.offer(200, 1000), payload(500, 300, 700, true));
    b.data(1000, 500);
    assert_eq!(b.offer(200, 2000), payload(500, 300, 500, true));
    assert_eq!(b.offer(1200, 1000), payload(1500, 300, 700, false));
}

#[test]
fn test_established_window_edge_cuts_payload() {
    let mut b = Bench::established();
    assert_eq!(b.offer(9000, 1000), payload(9000, 0, 1000, false));
    assert_eq!(b.offer(9000, 1001), payload(9000, 0, 1000, false));
    assert_eq!(b.offer(9999, 5), payload(9999, 0, 1, false));
    b.sent();
    assert_eq!(b.offer(10_000, 5), None);
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.c.stats().counters.out_of_window, 1);
}

#[test]
fn test_established_too_many_gaps_are_refused() {
    let mut b = Bench::established();
    let most = i32::try_from(ranges::MAX_RANGES).unwrap();
    for i in 0..most {
        assert!(b.data(2 + i * 4, 2).is_some());
    }
    assert_eq!(b.data(2 + most * 4, 2), None);
    assert_eq!(b.c.stats().counters.ooo_refused, 1);
    // The connection still takes bytes that join a range, and bytes in order.
    assert!(b.data(4, 1).is_some());
    assert!(b.data(0, 2).is_some());
    assert_eq!(b.c.rcv_nxt(), StreamPos(5));
    assert!(b.data(2 + most * 4, 2).is_some());
}

#[test]
fn test_established_fin_waits_for_preceding_data() {
    let mut b = Bench::established();
    let fin = Segment { len: 500, ..b.seg(1000, 0).with(FIN) };
    let p = b.recv(&fin).payload.unwrap();
    b.c.accept_payload(b.now, p.pos, p.len);
    assert_eq!((b.c.state(), b.sent()), (State::Established, strings(&[". 0 ack 0"])));
    b.data(0, 1000);
    assert_eq!((b.c.state(), b.sent()), (State::CloseWait, strings(&[". 0 ack 1501"])));
    assert_eq!(b.events(), [ConnEvent::PeerClosed]);
    assert_eq!(b.c.rcv_nxt(), StreamPos(1500));
}

#[test]
fn test_established_fin_with_refused_payload_is_not_taken() {
    let mut b = Bench::established();
    let fin = Segment { len: 500, ..b.seg(0, 0).with(FIN) };
    assert!(b.recv(&fin).payload.is_some());
    assert_eq!((b.c.state(), b.sent()), (State::Established, vec![]));
    assert_eq!(b.c.rcv_nxt(), StreamPos(0));
    // Bytes alone are enough later: the connection knows where the stream ends.
    b.data(0, 500);
    assert_eq!(b.c.state(), State::CloseWait);
}

#[test]
fn test_established_bytes_beyond_a_fin_are_cut() {
    let mut b = Bench::established();
    b.recv(&b.seg(500, 0).with(FIN));
    assert_eq!(b.offer(0, 600), payload(0, 0, 500, true));
    assert_eq!(b.offer(500, 100), None);
    b.data(0, 500);
    assert_eq!(b.c.state(), State::CloseWait);
}

#[test]
fn test_established_contradicting_fin_is_ignored() {
    let mut b = Bench::established();
    b.recv(&b.seg(500, 0).with(FIN));
    b.recv(&b.seg(400, 0).with(FIN));
    assert_eq!(b.c.stats().counters.bad_fins, 1);
    b.data(0, 400);
    assert_eq!(b.c.state(), State::Established);
    // A FIN before accepted bytes does not count either.
    let mut b = Bench::established();
    b.data(500, 100);
    b.recv(&b.seg(599, 0).with(FIN));
    assert_eq!(b.c.stats().counters.bad_fins, 1);
    b.recv(&b.seg(600, 0).with(FIN));
    assert_eq!(b.c.stats().counters.bad_fins, 1);
}

#[test]
fn test_established_segment_without_ack_is_dropped() {
    let mut b = Bench::established();
    let s = Segment { len: 10, ..b.seg(0, 0).with(Flags::PSH) };
    assert_eq!(b.recv(&s), SegmentOutcome::default());
    assert_eq!(b.sent(), strings(&[]));
}

/// RFC 9293 MUST-66 and section 3.8.5: the connection ignores the pointer, and the bytes count.
#[test]
fn test_established_urgent_data_is_plain_data() {
    let mut b = Bench::established();
    let s = Segment { len: 10, ..b.seg(0, 0).with(Flags::URG.with(Flags::ACK)) };
    assert_eq!(b.recv(&s).payload, payload(0, 0, 10, true));
}

#[test]
fn test_established_keepalive_is_answered() {
    for len in [0, 1] {
        let mut b = Bench::established();
        b.data(0, 10);
        b.wait(40 * MS);
        b.offer(9, len);
        assert_eq!(b.sent(), [". 0 ack 10"]);
    }
}

#[test]
fn test_accept_payload_out_of_order_is_harmless() {
    let mut b = Bench::established();
    b.c.accept_payload(b.now, StreamPos(0), 20_000);
    assert_eq!(b.c.rcv_nxt(), StreamPos(10_000), "cut at the edge");
    b.c.accept_payload(b.now, StreamPos(0), 100);
    b.c.accept_payload(b.now, StreamPos(u64::MAX), u32::MAX);
    assert_eq!(b.c.rcv_nxt(), StreamPos(10_000));
    let mut b = Bench::in_state(State::CloseWait);
    b.c.accept_payload(b.now, StreamPos(0), 100);
    assert_eq!(b.c.rcv_nxt(), StreamPos(0));
}

#[test]
fn test_close_wait_data_after_fin_is_ignored() {
    let mut b = Bench::in_state(State::CloseWait);
    assert_eq!(b.data(1, 100), None);
}

/// Positions continue where sequence numbers start again.
#[test]
fn test_established_positions_continue_beyond_four_gigabytes_received() {
    let cfg = ConnConfig { recv_window: 1 << 30, timestamps: false, ..ethernet() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.recv(&Segment { window_scale: Some(0), ..b.seg(-1, 0).with(SYN_ACK) });
    b.sent();
    let (mut pos, step) = (0u64, 50_000_000u32);
    let mut seq = IRS.advance(1);
    for _ in 0..300 {
        let s = Segment { seq, len: step, ..b.seg(0, 0) };
        let p = b.recv(&s).payload.unwrap();
        assert_eq!((p.pos, p.skip, p.len, p.in_order), (StreamPos(pos), 0, step, true));
        // The connection still recognises an old segment as old.
        let old = Segment { seq: seq.advance(u32::MAX), len: 1, ..b.seg(0, 0) };
        assert_eq!(b.recv(&old).payload, None);
        b.c.accept_payload(b.now, p.pos, p.len);
        pos += u64::from(step);
        seq = seq.advance(step);
        let tx = b.tx().unwrap();
        assert_eq!((tx.ack, b.c.rcv_nxt()), (seq, StreamPos(pos)));
    }
    assert!(pos > 3 << 32);
}
