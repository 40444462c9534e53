//! Loss with SACK: RACK-TLP (RFC 8985), rate reduction, and undone recoveries.

use super::*;

pub(super) const RTT: Duration = MS;

/// Returns an established bench with a round trip of a millisecond, ten segments of 1000 bytes
/// outstanding, and `more` bytes queued after them.
pub(super) fn ten_out(more: usize) -> Bench {
    out_with(&ConnConfig { sack: true, ..plain() }, more)
}

fn out_with(cfg: &ConnConfig, more: usize) -> Bench {
    let mut b = Bench::connecting(cfg);
    b.sent();
    b.now = b.now + RTT;
    b.ts = cfg.timestamps.then(|| Timestamps { val: 1, ecr: b.stamp() - 1 });
    let syn_ack = Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) };
    b.recv(&syn_ack);
    b.sent();
    b.events();
    b.queue(10 * usize::try_from(b.c.emss()).unwrap() + more);
    assert_eq!(b.sent().len(), 10);
    b
}

impl Bench {
    /// Returns our timestamp clock; the offset is 0.
    pub(super) fn stamp(&self) -> u32 {
        u32::try_from(self.now.as_millis()).unwrap()
    }

    /// Receives a bare ACK of `ack` with these blocks.
    pub(super) fn sack(&mut self, ack: i32, blocks: &[(i32, i32)]) -> SegmentOutcome {
        let s = self.seg(i32::try_from(self.c.rcv_nxt().0).unwrap(), ack);
        let mut sack = SackBlocks::default();
        for &(start, end) in blocks {
            let at = |n: i32| ISS.advance(1).advance(n.cast_unsigned());
            sack.push(SackBlock { start: at(start), end: at(end) });
        }
        self.recv_selective(&s, &sack)
    }

    /// Returns the time from now to the next timer.
    fn next(&self) -> Duration {
        self.c.poll_timeout().unwrap() - self.now
    }

    /// Runs the next timer. Returns the segments sent then.
    pub(super) fn fire(&mut self) -> Vec<String> {
        self.now = self.c.poll_timeout().unwrap();
        self.c.handle_timeout(self.now);
        self.sent()
    }

    pub(super) fn count(&self) -> crate::ConnCounters {
        *self.c.counters()
    }
}

/// RFC 8985 section 6.2: one ACK for three segments beyond the hole shows the loss without a wait.
#[test]
fn test_ack_for_three_segments_beyond_hole_shows_the_loss() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    assert_eq!((b.count().fast_retransmits, b.count().timeouts), (1, 0));
    assert_eq!(b.c.stats().ssthresh, 5000);
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    assert_eq!(b.c.stats().cwnd, 5000);
    assert_eq!(b.c.poll_timeout(), None);
}

/// Fewer segments may mean reordering: the sender waits a quarter of the least round trip.
#[test]
fn test_recent_hole_waits_for_the_reordering_window() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 2000)]);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.next(), RTT / 4);
    let mut late = Bench { c: b.c.clone(), q: ByteQueue::default(), ..b };
    late.queue(10_000);
    assert_eq!(late.fire(), [". 0+1000 ack 0 again"]);
    // The hole was only reordering.
    b.sack(2000, &[]);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.count().fast_retransmits, 0);
    // From now on three segments are no proof either.
    b.sack(2000, &[(3000, 9000)]);
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.fire(), [". 2000+1000 ack 0 again"]);
}

/// The sender repairs all holes of a window in one round trip, and sends new data after them (RFC
/// 6937).
#[test]
fn test_several_holes_are_repaired_in_one_round_trip_after_sack() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(9000, 10_000), (5000, 8000), (1000, 4000)]);
    assert_eq!(
        b.sent(),
        [
            ". 0+1000 ack 0 again",
            ". 4000+1000 ack 0 again",
            ". 8000+1000 ack 0 again",
            ". 10000+1000 ack 0",
            ". 11000+1000 ack 0",
        ]
    );
    assert_eq!(b.count().fast_retransmits, 1, "one reduction for one window");
    b.now = b.now + RTT;
    b.sack(12_000, &[]);
    assert_eq!(b.c.stats().cwnd, 5000);
}

/// A hole ends at the reported range: the boundary of a segment, and so of a record.
#[test]
fn test_wide_hole_is_retransmitted_in_segments() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(2500, 10_000)]);
    assert_eq!(
        b.sent(),
        [". 0+1000 ack 0 again", ". 1000+1000 ack 0 again", ". 2000+500 ack 0 again"]
    );
}

#[test]
fn test_lost_retransmission_is_retransmitted_without_a_timeout() {
    let mut b = ten_out(10_000);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 8000)]);
    let sent = b.sent();
    assert_eq!(sent[..2], [". 0+1000 ack 0 again", ". 10000+1000 ack 0"]);
    b.now = b.now + RTT;
    // New data arrived that was sent after the retransmission (at the same instant, further on).
    b.sack(0, &[(1000, 11_000)]);
    assert_eq!(b.sent()[0], ". 0+1000 ack 0 again");
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 12_000)]);
    assert_eq!((b.count().timeouts, b.count().fast_retransmits), (0, 1));
}

/// RFC 8985 section 7: the last segments are lost, and no ACK comes back.
#[test]
fn test_a_lost_tail_is_probed_and_repaired_without_a_timeout() {
    let mut b = ten_out(0);
    assert_eq!(b.next(), 2 * RTT);
    assert_eq!(b.fire(), ["P. 9000+1000 ack 0 again"]);
    assert_eq!((b.count().tail_probes, b.count().timeouts), (1, 0));
    b.now = b.now + RTT;
    b.sack(5000, &[(9000, 10_000)]);
    assert_eq!(
        b.sent()[..2],
        [". 5000+1000 ack 0 again".to_string(), ". 6000+1000 ack 0 again".to_string()]
    );
    assert_eq!(b.count().timeouts, 0);
}

#[test]
fn test_tail_probe_sends_new_data_if_there_is_any() {
    let mut b = ten_out(1500);
    assert_eq!(b.fire(), [". 10000+1000 ack 0"]);
    b.now = b.now + RTT;
    // The probe arrives, and nothing was lost: nothing changes.
    b.sack(11_000, &[]);
    assert_eq!(b.c.stats().ssthresh, u32::MAX);
    assert_eq!(b.sent(), ["P. 11000+500 ack 0"]);
}

#[test]
fn test_the_tail_probe_obeys_the_peers_window() {
    let mut b = ten_out(0);
    b.window = 10_000;
    b.sack(0, &[]);
    b.queue(5000);
    assert_eq!(b.fire(), [". 9000+1000 ack 0 again"]);
}

/// RFC 8985 section 7.3: after one probe comes the timeout.
#[test]
fn test_timeout_follows_one_tail_probe() {
    let cfg = ConnConfig { sack: true, rto_min: 5 * MS, ..plain() };
    let mut b = out_with(&cfg, 0);
    b.fire();
    assert_eq!(b.next(), 5 * MS);
    assert_eq!(b.fire(), [". 0+1000 ack 0 again"]);
    assert_eq!((b.count().tail_probes, b.count().timeouts), (1, 1));
    assert_eq!(b.next(), 10 * MS);
}

/// A peer that holds its ACK back costs one segment at a time, but no timeout and no window, until
/// the sender knows its habit.
#[test]
fn test_a_delayed_ack_is_learned_from_needless_probes() {
    for d_sack in [true, false] {
        let cfg = ConnConfig { sack: true, peer_ack_delay: MS, rto_min: 5 * MS, ..plain() };
        let mut b = out_with(&cfg, 0);
        b.now = b.now + RTT;
        b.sack(10_000, &[]);
        for n in 0..9u32 {
            let start = b.now;
            b.queue(1000);
            assert_eq!(b.sent().len(), 1);
            // The timer comes up after two round trips, and finds that it has to wait.
            assert_eq!(b.fire(), strings(&[]));
            assert_eq!(b.fire().len(), 1);
            assert_eq!(b.now - start, 2 * RTT + (1u32 << n).min(200) * MS);
            b.now = b.now + RTT;
            let end = i32::try_from(b.q.end().0).unwrap();
            if d_sack {
                b.sack(end, &[(end - 1000, end)]);
            } else {
                b.sack(end, &[]);
                b.sack(end, &[]);
            }
        }
        assert_eq!((b.count().timeouts, b.c.stats().ssthresh), (0, u32::MAX));
    }
}

/// RFC 8985 section 7.4.2: the probe repaired the loss, which still counts as a loss.
#[test]
fn test_a_loss_repaired_by_the_probe_reduces_the_window() {
    let mut b = ten_out(0);
    b.fire();
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    assert_eq!(b.c.stats().ssthresh, u32::MAX, "may still turn out needless");
    b.queue(1000);
    b.sent();
    b.now = b.now + RTT;
    let cwnd = b.c.stats().cwnd;
    b.sack(11_000, &[]);
    assert_eq!(b.c.stats().ssthresh, cwnd / 2);
}

/// After a timeout the sender sends the holes again, and no reported bytes.
#[test]
fn test_timeout_retransmits_only_segments_not_sacked() {
    let mut b = ten_out(0);
    b.sack(0, &[(2000, 3000), (5000, 10_000)]);
    b.sent();
    while b.count().timeouts == 0 {
        b.now = b.c.poll_timeout().unwrap();
        b.c.handle_timeout(b.now);
    }
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    assert_eq!(b.c.stats().cwnd, 1000);
    b.now = b.now + RTT;
    b.sack(1000, &[(5000, 10_000)]);
    assert_eq!(b.sent(), [". 1000+1000 ack 0 again", ". 3000+1000 ack 0 again"]);
    b.now = b.now + RTT;
    b.sack(4000, &[(5000, 10_000)]);
    assert_eq!(b.sent(), [". 4000+1000 ack 0 again"]);
    b.now = b.now + RTT;
    assert_eq!(b.sack(10_000, &[]).acked, Some(StreamPos(10_000)));
    assert_eq!(b.c.poll_timeout(), None);
}

/// The sender learns the peer's ACK delay from ACKs that were not delayed, and notices when the
/// peer delays them after all. A single needless probe may mean a lost ACK.
#[test]
fn test_the_peers_ack_delay_is_learned() {
    let cfg = ConnConfig { sack: true, peer_ack_delay: 80 * MS, rto_min: 5 * MS, ..plain() };
    let mut b = out_with(&cfg, 0);
    b.now = b.now + RTT;
    b.sack(10_000, &[]);
    let lone = |b: &mut Bench| {
        b.queue(1000);
        assert_eq!(b.sent().len(), 1);
        i32::try_from(b.q.end().0).unwrap()
    };
    // Returns when the probe of a lone segment goes; its peer then reports it as needless.
    let probe = |b: &mut Bench| {
        let (start, end) = (b.now, lone(b));
        while b.fire().is_empty() {}
        let after = b.now - start;
        b.now = b.now + RTT;
        b.sack(end, &[(end - 1000, end)]);
        after
    };
    let quick = |b: &mut Bench, n: usize| {
        for _ in 0..n {
            let end = lone(b);
            b.now = b.now + RTT;
            b.sack(end, &[]);
        }
    };
    quick(&mut b, 31);
    let mut early = Bench { c: b.c.clone(), q: ByteQueue::default(), ..b };
    early.q.push(&vec![7; usize::try_from(b.q.end().0).unwrap()]);
    assert_eq!(probe(&mut early), 2 * RTT + 80 * MS, "not known yet");
    quick(&mut b, 1);
    assert_eq!(probe(&mut b), 2 * RTT + MS);
    quick(&mut b, 1);
    assert_eq!(probe(&mut b), 2 * RTT + 2 * MS);
    assert_eq!(probe(&mut b), 2 * RTT + 4 * MS);
    assert_eq!(probe(&mut b), 2 * RTT + 8 * MS);
    assert_eq!(probe(&mut b), 2 * RTT + 80 * MS, "three in a row");
    quick(&mut b, 63);
    assert_eq!(b.count().timeouts, 0);
    let mut b2 = Bench { c: b.c.clone(), q: ByteQueue::default(), ..b };
    b2.q.push(&vec![7; usize::try_from(b.q.end().0).unwrap()]);
    assert!(probe(&mut b2) > 80 * MS);
    quick(&mut b, 1);
    assert_eq!(probe(&mut b), 2 * RTT + MS);
}

/// RFC 2018 section 8: a peer may take back a report, which shows when it acknowledges up to the
/// reported range. After the second timeout no report of this peer counts.
#[test]
fn test_sender_retransmits_data_whose_sack_the_peer_reneged() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 10_000)]);
    b.sent();
    b.now = b.now + RTT;
    b.sack(1000, &[]);
    assert_eq!(b.count().sacks_reneged, 1);
    assert!(b.sent()[0].starts_with(". 1000+1000 ack 0 again"));

    let mut b = ten_out(0);
    b.sack(0, &[(1000, 10_000)]);
    b.sent();
    while b.count().timeouts < 2 {
        b.now = b.c.poll_timeout().unwrap();
        b.c.handle_timeout(b.now);
        b.sent();
    }
    b.now = b.now + RTT;
    b.sack(1000, &[]);
    assert_eq!(b.sent()[0], ". 1000+1000 ack 0 again");
}

/// A D-SACK reports everything that was sent again: nothing had been lost.
#[test]
fn test_needless_recovery_is_undone_by_d_sack() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent().len(), 1);
    assert_eq!(b.c.stats().ssthresh, 5000);
    b.now = b.now + RTT / 2;
    b.sack(10_000, &[]);
    b.sack(10_000, &[(0, 1000)]);
    let s = b.c.stats();
    assert!(s.cwnd >= 10_000 && s.ssthresh == u32::MAX, "{s:?}");
    assert_eq!((s.counters.spurious_retransmits, s.counters.recoveries_undone), (1, 1));
}

/// A network that delivers frames twice draws a D-SACK for each. Such a report is about bytes sent
/// once, so it is no evidence against the recovery.
#[test]
fn test_copies_that_the_network_made_undo_no_recovery() {
    let mut b = ten_out(0);
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    b.now = b.now + RTT / 2;
    b.sack(10_000, &[]);
    b.sack(10_000, &[(1000, 2000)]);
    b.sack(10_000, &[(9000, 10_000)]);
    assert_eq!((b.c.stats().ssthresh, b.count().recoveries_undone), (5000, 0));
    // The twin: the copy of what was sent again.
    b.sack(10_000, &[(0, 1000)]);
    assert_eq!((b.c.stats().ssthresh, b.count().recoveries_undone), (u32::MAX, 1));
}

/// RFC 3522: the first ACK after a timeout echoes a timestamp from before it.
#[test]
fn test_a_premature_timeout_is_undone() {
    let cfg = ConnConfig { sack: true, timestamps: true, rto_min: 5 * MS, ..plain() };
    let mut b = out_with(&cfg, 0);
    let len = i32::try_from(b.c.emss()).unwrap();
    let before = b.stamp();
    while b.count().timeouts == 0 {
        b.now = b.c.poll_timeout().unwrap();
        b.c.handle_timeout(b.now);
        b.sent();
    }
    assert_eq!(b.c.stats().cwnd, b.c.emss());
    b.ts = Some(Timestamps { val: 1, ecr: before });
    b.sack(8 * len, &[]);
    let s = b.c.stats();
    assert_eq!((s.counters.spurious_timeouts, s.counters.recoveries_undone), (1, 1));
    assert!(s.cwnd >= 10 * b.c.emss(), "{s:?}");
    assert_eq!(b.sent(), strings(&[]), "the rest is still under way");
}

/// A peer may make up any blocks: the sender believes no report of bytes that were not sent, and
/// bounds the reports that it keeps.
#[test]
fn test_invented_sack_blocks_are_ignored_or_bounded() {
    let mut b = ten_out(0);
    for block in [(10_001, 11_000), (5000, 4000), (3000, 3000), (-1000, -2000), (9000, 10_001)] {
        b.sack(0, &[block]);
    }
    assert_eq!(b.sent(), strings(&[]));
    assert_eq!(b.count().fast_retransmits, 0);
    for i in (1..9999).step_by(2) {
        b.sack(0, &[(i, i + 1)]);
    }
    while !b.sent().is_empty() {
        b.now = b.now + RTT;
        b.sack(0, &[(1, 2)]);
    }
    b.sack(10_000, &[]);
    assert_eq!(b.c.snd_una(), StreamPos(10_000));
    assert_eq!(b.c.poll_timeout(), None);
}
