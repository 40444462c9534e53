//! The reports that ACKs make of bytes ahead of a gap: RFC 2018, RFC 2883.

use super::*;

fn with_sack() -> ConnConfig {
    ConnConfig { sack: true, ..plain() }
}

fn established() -> Bench {
    Bench::established_with(&with_sack())
}

#[test]
fn test_sack_is_offered_and_used_only_if_both_offer_it() {
    let mut b = Bench::connecting(&with_sack());
    assert!(b.tx().unwrap().sack_permitted);
    // The peer does not permit SACK.
    b.recv(&b.seg(-1, 0).with(SYN_ACK));
    b.sent();
    b.data(1000, 1000);
    assert_eq!(b.sent(), [". 0 ack 0"]);

    let syn = Segment { mss: Some(1000), ..raw(IRS, SeqNumber(0), SYN) };
    let now = Instant::from_millis(1);
    for (ours, theirs) in [(true, true), (true, false), (false, true)] {
        let cfg = ConnConfig { sack: ours, ..plain() };
        let syn = Segment { sack_permitted: theirs, ..syn };
        let mut b = Bench::new(Connection::accept(&cfg, now, ISS, 0, &syn), now);
        assert_eq!(b.tx().unwrap().sack_permitted, ours && theirs);
    }
}

#[test]
fn test_sack_blocks_are_newest_first_and_repeated() {
    let mut b = established();
    for (at, sack) in [
        (1000, "1000-1500"),
        (3000, "3000-3500,1000-1500"),
        (5000, "5000-5500,3000-3500,1000-1500"),
        (7000, "7000-7500,5000-5500,3000-3500,1000-1500"),
        (9000, "9000-9500,7000-7500,5000-5500,3000-3500"),
        // A range that grows is the newest.
        (3500, "3000-4000,9000-9500,7000-7500,5000-5500"),
        // Two ranges become one.
        (4000, "3000-4500,9000-9500,7000-7500,5000-5500"),
        (4500, "3000-5500,9000-9500,7000-7500,1000-1500"),
    ] {
        assert!(b.data(at, 500).is_some());
        assert_eq!(b.sent(), [format!(". 0 ack 0 sack {sack}")]);
    }
    // A gap closes: its range is acknowledged, the others remain.
    b.data(0, 1000);
    assert_eq!(b.sent(), [". 0 ack 1500 sack 3000-5500,9000-9500,7000-7500"]);
    b.data(1500, 1500);
    b.data(5500, 1500);
    b.data(7500, 1500);
    assert_eq!(b.sent(), [". 0 ack 9500"]);
}

/// The connection answers the segments of a burst together, and still reports every range, in the
/// order in which they came.
#[test]
fn test_burst_with_many_gaps_reports_each_range() {
    let mut b = established();
    for i in 0..9 {
        b.data(500 + i * 1000, 500);
    }
    assert_eq!(
        b.sent(),
        [
            ". 0 ack 0 sack 3500-4000,2500-3000,1500-2000,500-1000",
            ". 0 ack 0 sack 7500-8000,6500-7000,5500-6000,4500-5000",
            ". 0 ack 0 sack 8500-9000,7500-8000,6500-7000,5500-6000",
        ]
    );
}

#[test]
fn test_ack_with_timestamps_has_room_for_three_sack_blocks() {
    let cfg = ConnConfig { timestamps: true, ..with_sack() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.ts = Some(Timestamps { val: 1, ecr: 0 });
    let syn_ack = Segment { sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) };
    b.recv(&syn_ack);
    b.sent();
    for i in 0..4 {
        b.data(500 + i * 1000, 500);
    }
    let all = b.sent();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1], ". 0 ack 0 sack 3500-4000,2500-3000,1500-2000");
}

#[test]
fn test_duplicate_segments_are_reported_once_and_in_first_block() {
    let mut b = established();
    b.data(0, 1000);
    b.data(2000, 1000);
    b.sent();
    // The duplicate is wholly acknowledged.
    assert_eq!(b.data(0, 1000), None);
    assert_eq!(b.sent(), [". 0 ack 1000 sack 0-1000,2000-3000"]);
    b.data(4000, 500);
    assert_eq!(b.sent(), [". 0 ack 1000 sack 4000-4500,2000-3000"]);
    // The duplicate lies inside a range: the range follows.
    assert_eq!(b.data(2500, 200), None);
    assert_eq!(b.sent(), [". 0 ack 1000 sack 2500-2700,4000-4500,2000-3000"]);
    // The duplicate is the part in front of the new bytes.
    assert!(b.data(500, 1000).is_some());
    assert_eq!(b.sent(), [". 0 ack 1500 sack 500-1000,4000-4500,2000-3000"]);
    // The connection has no other range to report.
    b.data(1500, 3000);
    b.data(3000, 1000);
    b.sent();
    assert_eq!(b.data(100, 100), None);
    assert_eq!(b.sent(), [". 0 ack 4500 sack 100-200"]);
    assert_eq!(b.data(4500, 100).unwrap().pos, StreamPos(4500));
    assert_eq!(b.wait(MS * 100).len(), 1);
}

#[test]
fn test_sack_is_sent_before_data_that_has_no_room_for_it() {
    let mut b = established();
    b.queue(1500);
    b.data(1000, 1000);
    assert_eq!(b.sent(), [". 0 ack 0 sack 1000-2000", ". 0+1000 ack 0", "P. 1000+500 ack 0"]);
}

/// RFC 5681 section 4.2, for peers that count: the connection sends as many duplicate ACKs as
/// segments came ahead of the gap, although it answers them together.
#[test]
fn test_without_sack_each_segment_ahead_of_a_gap_is_answered() {
    let mut b = Bench::established();
    for i in 1..4 {
        b.data(i * 1000, 1000);
    }
    assert_eq!(b.sent(), [". 0 ack 0", ". 0 ack 0", ". 0 ack 0"]);
    b.data(4000, 1000);
    b.data(0, 1000);
    assert_eq!(b.sent(), [". 0 ack 5000"]);
}
