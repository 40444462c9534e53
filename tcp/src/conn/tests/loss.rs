//! Loss: duplicate ACKs, NewReno recovery, the retransmission timer.

use super::*;

/// Returns a bench with ten segments of 1000 bytes outstanding and `more` bytes queued after them.
fn ten_out(more: usize) -> Bench {
    let mut b = Bench::established();
    b.queue(10_000 + more);
    assert_eq!(b.sent().len(), 10);
    b
}

/// Returns a connection that has just repaired one loss, with an empty queue.
pub(super) fn after_recovery() -> Bench {
    let mut b = ten_out(0);
    for _ in 0..3 {
        b.ack(0);
    }
    b.sent();
    b.ack(10_000);
    // RFC 6582: the outstanding bytes limit the window after recovery; use the window until it
    // reaches ssthresh.
    while b.c.stats().cwnd < b.c.stats().ssthresh {
        let end = i32::try_from(b.q.end().0).unwrap();
        b.queue(usize::try_from(b.c.stats().cwnd).unwrap());
        b.sent();
        b.ack(end + i32::try_from(b.c.stats().cwnd).unwrap());
    }
    b
}

/// RFC 3042 and RFC 5681 section 3.2: one new segment each for the first and second duplicate ACK,
/// cwnd unchanged.
#[test]
fn test_sender_uses_limited_transmit_before_fast_retransmit() {
    let mut b = ten_out(10_000);
    b.ack(0);
    assert_eq!(b.sent(), [". 10000+1000 ack 0"]);
    b.ack(0);
    assert_eq!(b.sent(), [". 11000+1000 ack 0"]);
    assert_eq!(b.c.stats().cwnd, 10_000);
    b.ack(0);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    let s = b.c.stats();
    // Half of the flight without the bytes of limited transmit, plus three segments.
    assert_eq!((s.ssthresh, s.cwnd), (5000, 8000));
    assert_eq!((s.counters.fast_retransmits, s.counters.dup_acks), (1, 3));
}

#[test]
fn test_limited_transmit_obeys_the_peers_window() {
    let mut b = Bench::established();
    b.window = 10_000;
    b.ack(0);
    b.queue(20_000);
    b.sent();
    b.ack(0);
    b.ack(0);
    assert_eq!(b.sent(), strings(&[]));
}

#[test]
fn test_recovery_inflates_sends_new_data_and_ends() {
    let mut b = ten_out(10_000);
    for _ in 0..3 {
        b.ack(0);
    }
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    for n in 4..=5 {
        b.ack(0);
        assert_eq!(b.c.stats().cwnd, 5000 + n * 1000);
        assert_eq!(b.sent(), strings(&[]));
    }
    b.ack(0);
    assert_eq!(b.sent(), [". 10000+1000 ack 0"]);
    assert_eq!(b.ack(10_000).acked, Some(StreamPos(10_000)));
    // At most ssthresh, and one segment more than is outstanding (RFC 6582 section 3.2).
    assert_eq!(b.c.stats().cwnd, 2000);
    assert_eq!(b.c.stats().ssthresh, 5000);
}

/// RFC 6582: a partial acknowledgment sends the next hole at once and stays in recovery.
#[test]
fn test_recovery_partial_ack_retransmits_the_next_hole() {
    let mut b = ten_out(0);
    for _ in 0..3 {
        b.ack(0);
    }
    b.sent();
    assert_eq!(b.c.stats().cwnd, 8000);
    b.ack(4000);
    assert_eq!(b.sent(), [". 4000+1000 ack 0 again"]);
    assert_eq!(b.c.stats().cwnd, 8000 - 4000 + 1000);
    b.ack(7000);
    assert_eq!(b.sent(), [". 7000+1000 ack 0 again"]);
    b.ack(10_000);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.c.stats().counters.fast_retransmits, 1, "one reduction for one window");
    assert_eq!(b.c.stats().ssthresh, 5000);
}

#[test]
fn test_two_duplicate_acks_do_not_signal_loss() {
    let mut b = ten_out(0);
    b.ack(0);
    b.ack(0);
    b.ack(1000);
    b.ack(1000);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.c.stats().counters.fast_retransmits, 0);
}

/// RFC 5681 section 2: an ACK with data, another window or a FIN is no duplicate.
#[test]
fn test_ack_with_data_or_window_update_is_no_duplicate() {
    let mut b = ten_out(0);
    for i in 0..4 {
        b.data(i * 10, 10);
    }
    for w in [60_000, 60_001, 60_002, 60_003] {
        b.window = w;
        b.ack(0);
    }
    assert_eq!(b.c.stats().counters.dup_acks, 0);
    // Nothing is outstanding: these ACKs are no duplicates either.
    b.ack(10_000);
    for _ in 0..4 {
        b.ack(10_000);
    }
    assert_eq!(b.c.stats().counters.dup_acks, 0);
    assert_eq!(b.c.stats().counters.fast_retransmits, 0);
}

/// RFC 5681 section 3.2 step 4: a peer cannot inflate the window by inventing duplicates.
#[test]
fn test_spoofed_duplicate_acks_inflate_cwnd_by_at_most_the_flight() {
    let mut b = ten_out(0);
    for _ in 0..1000 {
        b.ack(0);
    }
    assert!(b.c.stats().cwnd <= 5000 + 10_000 + 1000);
}

/// RFC 6298 section 5: the timer, its backoff; RFC 5681 equation (4) and the loss window.
#[test]
fn test_timeout_retransmits_oldest_segment_and_backs_off() {
    let mut b = ten_out(0);
    assert_eq!(b.c.stats().rto, 200 * MS);
    let out = b.wait(3000 * MS);
    assert_eq!(
        out,
        [200, 600, 1400, 3000].map(|t| (t, ". 0+1000 ack 0 again".to_string())).to_vec()
    );
    let s = b.c.stats();
    assert_eq!((s.cwnd, s.ssthresh), (1000, 5000), "ssthresh only at the first timeout");
    assert_eq!(b.events(), [ConnEvent::Unresponsive]);
}

#[test]
fn test_acks_after_timeout_retransmit_the_rest_in_slow_start() {
    let mut b = ten_out(0);
    b.wait(200 * MS);
    b.ack(1000);
    assert_eq!(b.sent(), [". 1000+1000 ack 0 again", ". 2000+1000 ack 0 again"]);
    // The sender skips the bytes that had arrived.
    b.ack(9000);
    assert_eq!(b.sent(), ["P. 9000+1000 ack 0 again"]);
    b.ack(10_000);
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_timeout_backoff_restarts_after_progress() {
    let mut b = ten_out(0);
    b.wait(700 * MS);
    assert_eq!(b.c.stats().ssthresh, 5000);
    b.ack(1000);
    b.sent();
    b.wait(10_000 * MS);
    // The loss of a retransmission is a second indication of congestion.
    assert_eq!(b.c.stats().ssthresh, 4500);
}

/// RFC 6582 section 3.2, "retransmit timeouts": echoes of retransmissions are no new loss.
#[test]
fn test_duplicate_acks_after_a_timeout_are_ignored() {
    let mut b = ten_out(5000);
    b.wait(200 * MS);
    b.ack(5000);
    b.sent();
    for _ in 0..5 {
        b.ack(5000);
    }
    assert_eq!(b.c.stats().counters.fast_retransmits, 0);
    // ACKs of the highest number then sent do not count either; ACKs beyond it do.
    b.ack(10_000);
    b.sent();
    for _ in 0..5 {
        b.ack(10_000);
    }
    assert_eq!(b.c.stats().counters.fast_retransmits, 0);
    b.ack(10_001);
    b.sent();
    for _ in 0..3 {
        b.ack(10_001);
    }
    assert_eq!(b.c.stats().counters.fast_retransmits, 1);
}

#[test]
fn test_timer_restarts_with_each_new_acknowledgment() {
    let mut b = ten_out(0);
    b.wait(150 * MS);
    b.ack(1000);
    let rto = b.c.stats().rto;
    assert_eq!(b.c.poll_timeout(), Some(b.now + rto));
    // A duplicate does not restart the timer.
    b.wait(10 * MS);
    b.ack(1000);
    assert_eq!(b.c.poll_timeout().unwrap() - b.now, rto - 10 * MS);
}

/// RFC 6298 section 5: if duplicate ACKs made the sender send a segment again, a timer that was
/// about to expire does not send it once more.
#[test]
fn test_fast_retransmit_restarts_the_timer() {
    let mut b = ten_out(0);
    b.wait(199 * MS);
    for _ in 0..3 {
        b.ack(0);
    }
    assert_eq!(b.sent().len(), 1);
    assert_eq!(b.wait(199 * MS), []);
    assert_eq!(b.wait(MS).len(), 1);
}

/// RFC 6298 section 3: without timestamps the sender measures no bytes that were sent twice.
#[test]
fn test_sender_takes_no_rtt_sample_from_retransmitted_data() {
    let mut b = ten_out(0);
    let srtt = b.c.stats().srtt;
    b.wait(200 * MS);
    b.now = b.now + 50 * MS;
    b.ack(10_000);
    assert_eq!(b.c.stats().srtt, srtt);
    assert_eq!(b.c.stats().rto, 400 * MS, "and the backoff stays");
    b.queue(1000);
    b.sent();
    b.now = b.now + 8 * MS;
    b.ack(11_000);
    assert_eq!(b.c.stats().rto, 200 * MS);
    assert_eq!(b.c.stats().srtt, Some(MS));
}

/// The same holds for bytes that duplicate ACKs made the sender send again, without SACK.
#[test]
fn test_sender_takes_no_rtt_sample_after_fast_retransmit() {
    let mut b = ten_out(0);
    let srtt = b.c.stats().srtt;
    b.now = b.now + 10 * MS;
    for _ in 0..3 {
        b.ack(0);
    }
    assert_eq!(b.sent().len(), 1);
    b.now = b.now + 50 * MS;
    b.ack(10_000);
    assert_eq!(b.c.stats().srtt, srtt);
}

#[test]
fn test_sender_takes_one_rtt_sample_per_window() {
    let mut b = ten_out(10_000);
    b.now = b.now + 10 * MS;
    b.ack(1000);
    let srtt = b.c.stats().srtt;
    b.now = b.now + 500 * MS;
    b.ack(2000);
    assert_eq!(b.c.stats().srtt, srtt);
}

/// RFC 9293 MUST-20, MUST-21, SHLD-11: R2 is a time that the owner chooses.
#[test]
fn test_user_timeout_ends_the_connection() {
    let mut b = ten_out(0);
    b.wait(Duration::from_secs(119));
    assert_eq!(b.c.state(), State::Established);
    b.wait(Duration::from_secs(90));
    assert_eq!(b.c.state(), State::Closed);
    assert_eq!(b.events(), [ConnEvent::Unresponsive, ConnEvent::TimedOut]);
    assert_eq!((b.c.poll_timeout(), b.tx()), (None, None));

    let cfg = ConnConfig { user_timeout: Duration::from_secs(1), ..plain() };
    let mut b = Bench::established_with(&cfg);
    b.queue(10);
    b.sent();
    b.wait(Duration::from_millis(1399));
    assert_eq!(b.c.state(), State::Established);
    b.wait(MS);
    assert_eq!(b.c.state(), State::Closed);
}

#[test]
fn test_lost_fin_is_retransmitted() {
    let mut b = Bench::established();
    b.queue(500);
    b.sent();
    b.c.close();
    assert_eq!(b.sent(), ["F. 500 ack 0"]);
    b.ack(500);
    assert_eq!(b.wait(200 * MS), [(200, "F. 500 ack 0 again".to_string())]);
    // The FIN goes with the data before it, when these are lost too.
    let mut b = Bench::established();
    b.queue(500);
    b.c.close();
    assert_eq!(b.sent(), ["FP. 0+500 ack 0"]);
    assert_eq!(b.wait(200 * MS), [(200, "FP. 0+500 ack 0 again".to_string())]);
    assert_eq!(b.ack(501).acked, Some(StreamPos(500)));
    assert_eq!(b.c.state(), State::FinWait2);
}

#[test]
fn test_fast_retransmit_of_the_last_segment_keeps_its_fin() {
    let mut b = Bench::established();
    b.queue(4000);
    b.c.close();
    b.sent();
    b.ack(3000);
    for _ in 0..3 {
        b.ack(3000);
    }
    assert_eq!(b.sent(), ["FP. 3000+1000 ack 0 again"]);
}

#[test]
fn test_early_timeout_call_does_nothing() {
    let mut b = ten_out(0);
    b.now = b.now + 199 * MS;
    b.c.handle_timeout(b.now);
    assert_eq!(b.sent(), strings(&[]));
}
