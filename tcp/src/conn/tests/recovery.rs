//! Recovery with SACK: the segments sent for each acknowledgment (RFC 6937, RFC 3042), where a
//! recovery begins and ends (RFC 6675 sections 5 and 5.1), and which reports count (RFC 2883).

use super::rack::{RTT, ten_out};
use super::*;

/// Returns a bench with twenty segments of 1000 bytes outstanding and as many more queued: the
/// situation of the examples in RFC 6937 section 3.1.
fn twenty_out() -> Bench {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    assert_eq!(b.c.stats().cwnd, 20_000);
    b.queue(40_000);
    assert_eq!(b.sent().len(), 20);
    b.now = b.now + RTT;
    b
}

/// The position where the twenty segments begin.
const START: i32 = 10_000;

/// Reports the segments `from..to` of the twenty as received.
fn report(b: &mut Bench, from: i32, to: i32) -> Vec<String> {
    b.sack(START, &[(START + 1000 * from, START + 1000 * to)]);
    b.sent()
}

/// RFC 6937 section 3, while more is in the network than ssthresh: a recovery sends in proportion
/// to the bytes that arrived, for every acknowledgment. By the end of the round trip it has sent no
/// more than half of the bytes that were outstanding (RFC 5681 section 4.3).
#[test]
fn test_recovery_sends_in_proportion_to_delivered_data() {
    let mut b = twenty_out();
    assert_eq!(report(&mut b, 1, 2), [". 30000+1000 ack 0"], "limited transmit");
    assert_eq!(report(&mut b, 1, 3), [". 31000+1000 ack 0"], "limited transmit");
    let mut sent = 0;
    for n in 3..=18 {
        sent += report(&mut b, 1, 1 + n).len() as u64;
        let s = b.c.stats();
        assert_eq!(s.ssthresh, 10_000);
        // Two segments of the 22 had arrived before the recovery began.
        let delivered = 1000 * u64::try_from(n - 2).unwrap();
        let due = (delivered * 10_000).div_ceil(22_000);
        assert!(1000 * sent <= due.max(1000), "{n}: {sent} sent, {due} due");
        assert!(1000 * (sent + 1) > due || s.in_flight <= 10_000, "{n}: {sent} sent, {due} due");
    }
    sent += report(&mut b, 1, 20).len() as u64;
    assert!(sent <= 10, "{sent} segments in the round trip of the loss");
    b.now = b.now + RTT;
    b.sack(i32::try_from(b.c.snd_max().0).unwrap(), &[]);
    assert_eq!((b.c.stats().cwnd, b.c.stats().ssthresh), (10_000, 10_000));
}

/// RFC 6937 section 3.1, the second example, number by number: fifteen segments lost in a row leave
/// less in the network than ssthresh, and each acknowledgment lets two segments out.
#[test]
fn test_recovery_from_a_burst_of_losses_matches_rfc_6937_example() {
    let mut b = twenty_out();
    let counts: Vec<usize> = (16..=20).map(|end| report(&mut b, 15, end).len()).collect();
    assert_eq!(counts, [1, 1, 2, 2, 2]);
    assert_eq!((b.count().fast_retransmits, b.count().timeouts), (1, 0));
    assert_eq!(b.c.stats().in_flight, 8000, "the RFC's pipe of 6, and the two sent then");
    // The recovery ends before the window has reached ssthresh: the window is then set to ssthresh.
    assert_eq!(b.c.stats().cwnd, 8000);
    b.now = b.now + RTT;
    b.sack(i32::try_from(b.c.snd_max().0).unwrap(), &[]);
    assert_eq!((b.c.stats().cwnd, b.c.stats().ssthresh), (10_000, 10_000));
}

/// RFC 5681 section 3.2, step 2, and RFC 6675 section 5, step 4.2: bytes sent by limited transmit
/// do not count in ssthresh.
#[test]
fn test_ssthresh_excludes_segments_of_limited_transmit() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 2000)]);
    assert_eq!(b.sent(), [". 10000+1000 ack 0"]);
    b.sack(0, &[(1000, 3000)]);
    assert_eq!(b.sent(), [". 11000+1000 ack 0"]);
    assert_eq!(b.c.stats().cwnd, 10_000, "it does not grow by that");
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent()[0], ". 0+1000 ack 0 again");
    assert_eq!(b.c.stats().ssthresh, 5000);
}

/// RFC 3042 section 2: a duplicate ACK that reports nothing new lets no segment out, however often
/// a receiver repeats it.
#[test]
fn test_limited_transmit_requires_new_sack_information() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 2000)]);
    assert_eq!(b.sent(), [". 10000+1000 ack 0"]);
    for blocks in [&[(1000, 2000)][..], &[], &[(1000, 1500)], &[(1000, 2000), (1200, 1900)]] {
        b.sack(0, blocks);
        assert_eq!(b.sent(), strings(&[]), "{blocks:?}");
    }
    assert_eq!((b.c.stats().cwnd, b.count().fast_retransmits), (10_000, 0));
}

/// RFC 6675 section 5, step A: reports from beyond the point where a recovery ends outlive the
/// recovery, and the sender does not send the reported bytes again, not even by the timer.
#[test]
fn test_reports_beyond_a_recovery_survive_its_end() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 9000)]);
    b.sent();
    let end = i32::try_from(b.c.snd_max().0).unwrap();
    assert!(end >= 13_000, "{end}");
    // Half of the first new segment and all of the second are lost, over and over; the peer reports
    // the rest during the recovery only.
    b.now = b.now + RTT;
    b.sack(9000, &[(12_000, end), (10_500, 11_000)]);
    let mut sent = b.sent();
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    sent.extend(b.sent());
    while b.count().timeouts == 0 {
        sent.extend(b.fire());
    }
    b.now = b.now + RTT;
    b.sack(11_000, &[]);
    sent.extend(b.sent());
    assert!(sent.contains(&". 11000+1000 ack 0 again".to_string()), "{sent:?}");
    assert!(sent.contains(&". 10000+500 ack 0 again".to_string()), "{sent:?}");
    assert!(!sent.iter().any(|s| s.starts_with(". 12000")), "{sent:?}");
}

/// The recovery lasts until the peer acknowledges all bytes outstanding at its beginning. A loss
/// beyond these bytes starts a recovery of its own.
#[test]
fn test_loss_beyond_a_recovery_starts_its_own_recovery() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 9000)]);
    let sent = b.sent();
    assert_eq!(sent[..2], [". 0+1000 ack 0 again", ". 10000+1000 ack 0"]);
    let end = i32::try_from(b.c.snd_max().0).unwrap();
    assert!(end >= 13_000, "{sent:?}");
    // The first of the new segments is lost.
    b.now = b.now + RTT;
    b.sack(9000, &[(11_000, 12_000)]);
    let reduced = b.c.stats().ssthresh;
    assert_eq!((b.count().fast_retransmits, reduced), (1, 5000), "the recovery is not over");
    b.sack(10_000, &[(11_000, end)]);
    assert_eq!(b.count().fast_retransmits, 2, "now it is, and the next loss has one of its own");
    let again = b.sent();
    assert_eq!(again[0], ". 10000+1000 ack 0 again");
    assert!(!again.iter().any(|s| s.starts_with(". 11000")), "it was reported: {again:?}");
}

/// RFC 6675 section 5.1: a timeout ends the recovery, and the bytes outstanding then begin no other
/// recovery, although reports continue to show holes and the sender obeys them.
#[test]
fn test_timeout_ends_recovery_and_starts_no_other() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    assert_eq!(b.count().fast_retransmits, 1);
    while b.count().timeouts == 0 {
        b.fire();
    }
    let s = b.c.stats();
    assert_eq!((s.cwnd, s.counters.fast_retransmits), (1000, 1));
    b.now = b.now + RTT;
    // Three segments and more lie beyond a hole: a loss, if there had been no timeout.
    b.sack(4000, &[(5000, 9000)]);
    assert_eq!(b.sent(), [". 4000+1000 ack 0 again", "P. 9000+1000 ack 0 again"]);
    assert_eq!((b.c.stats().ssthresh, b.count().fast_retransmits), (s.ssthresh, 1));
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    assert_eq!((b.c.poll_timeout(), b.count().fast_retransmits), (None, 1));
    // From here on a loss starts a recovery.
    let end = |b: &Bench| i32::try_from(b.q.end().0).unwrap();
    while b.c.stats().cwnd < 5000 {
        b.queue(usize::try_from(b.c.stats().cwnd).unwrap());
        b.sent();
        b.now = b.now + RTT;
        b.sack(end(&b), &[]);
    }
    let start = end(&b);
    b.queue(5000);
    assert_eq!(b.sent().len(), 5);
    b.now = b.now + RTT;
    b.sack(start, &[(start + 1000, start + 5000)]);
    assert_eq!(b.count().fast_retransmits, 2);
}

/// RFC 2883 section 5: the receiver of a block compares the block with the acknowledgment in the
/// same ACK, and not with later acknowledgments. An ACK that was overtaken on the way undoes
/// nothing.
#[test]
fn test_report_of_an_overtaken_ack_is_no_duplicate() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    b.now = b.now + RTT;
    b.sack(8000, &[]);
    // The peer sent this ACK before the previous one, and the bytes of its block came once.
    b.sack(500, &[(1000, 4000)]);
    let s = b.c.stats();
    assert_eq!((s.counters.spurious_retransmits, s.counters.recoveries_undone), (0, 0));
    assert_eq!((b.c.snd_una(), s.ssthresh), (StreamPos(8000), 5000));
    // Compared with its own acknowledgment, the same kind of block is a duplicate.
    b.sack(8000, &[(0, 1000)]);
    assert_eq!((b.count().spurious_retransmits, b.count().recoveries_undone), (1, 1));
}
