//! Probes of the path MTU, segment by segment (RFC 4821). The peer of [`Path`] gets no segment that is
//! too long, and acknowledges the others after a round trip, selectively.

use super::rack::RTT;
use super::*;

/// The first size, and that of both ends.
const BASE: u32 = 1024;
const MOST: u32 = 2000;

/// Returns an established bench that probes from the start on, with nothing to send.
fn bench() -> Bench {
    let cfg = ConnConfig { sack: true, mss: 2000, path_mtu: PathMtu::On, ..plain() };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.now = b.now + RTT;
    let syn_ack = Segment { mss: Some(2000), sack_permitted: true, ..b.seg(-1, 0).with(SYN_ACK) };
    b.recv(&syn_ack);
    b.sent();
    b.events();
    assert_eq!((b.c.emss(), b.c.stats().cwnd), (BASE, 10 * BASE));
    b
}

/// The bytes that the peer has received.
#[derive(Default)]
struct Path {
    limit: u32,
    got: Vec<(i32, i32)>,
}

impl Path {
    fn of(limit: u32) -> Path {
        Path { limit, got: Vec::new() }
    }

    /// Sends what waits, and lets the peer answer a round trip later. Returns the lengths of the
    /// probes.
    fn round(&mut self, b: &mut Bench) -> Vec<u32> {
        let mut probes = Vec::new();
        while b.c.wants_transmit(b.q.end()) {
            let usual = b.c.emss();
            let Some(tx) = b.tx() else { break };
            if tx.len > usual {
                probes.push(tx.len);
            }
            if (1..=self.limit).contains(&tx.len) {
                let at = i32::try_from(tx.pos.0).unwrap();
                self.got.push((at, at + i32::try_from(tx.len).unwrap()));
            }
        }
        b.c.check_invariants(b.q.end());
        b.now = b.now + RTT;
        self.answer(b);
        probes
    }

    fn answer(&mut self, b: &mut Bench) {
        self.got.sort_unstable();
        let mut merged: Vec<(i32, i32)> = vec![(0, 0)];
        for &(start, end) in &self.got {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let blocks: Vec<_> = merged[1..].iter().rev().take(3).copied().collect();
        b.sack(merged[0].1, &blocks);
    }
}

/// Keeps the connection busy for so many round trips. Returns the round and length of each probe.
fn busy(b: &mut Bench, path: &mut Path, rounds: usize) -> Vec<(usize, u32)> {
    let mut all = Vec::new();
    for n in 0..rounds {
        b.queue(12_000);
        all.extend(path.round(b).into_iter().map(|len| (n, len)));
    }
    all
}

#[test]
fn test_lost_probe_alone_is_no_sign_of_congestion() {
    let mut b = bench();
    b.queue(10_000);
    assert_eq!(b.sent()[..3], [". 0+1024 ack 0", ". 1024+2000 ack 0", ". 3024+1024 ack 0"]);
    b.now = b.now + RTT;
    b.sack(1024, &[(3024, 6096)]);
    assert_eq!(b.sent()[..2], [". 1024+1024 ack 0 again", ". 2048+976 ack 0 again"]);
    let s = b.c.stats();
    assert_eq!((s.cwnd, s.ssthresh), (11 * BASE, u32::MAX), "grown by the bytes acknowledged");
    let c = b.count();
    assert_eq!((c.mtu_probes, c.mtu_probes_lost, c.fast_retransmits), (1, 1, 0));
    // More reports before the bytes go again change nothing.
    let mut b = bench();
    b.queue(10_000);
    b.sent();
    b.now = b.now + RTT;
    b.sack(1024, &[(3024, 6096)]);
    b.sack(1024, &[(3024, 7120)]);
    assert_eq!((b.count().fast_retransmits, b.c.stats().ssthresh), (0, u32::MAX));
    // The second loss of the same bytes, in small segments, is congestion.
    b.sent();
    b.now = b.now + 2 * RTT;
    b.queue(10_000);
    b.sack(1024, &[(3024, 10_000)]);
    b.sent();
    b.now = b.now + 2 * RTT;
    b.sack(1024, &[(3024, 12_048)]);
    assert_eq!(b.count().fast_retransmits, 1);
}

#[test]
fn test_loss_beside_a_probe_is_a_sign_of_congestion() {
    let mut b = bench();
    b.queue(10_000);
    b.sent();
    b.now = b.now + RTT;
    // The segment before the probe is lost as well.
    b.sack(0, &[(3024, 6096)]);
    b.sent();
    let c = b.count();
    assert_eq!((c.fast_retransmits, c.mtu_probes_lost), (1, 0));
    assert!(b.c.stats().ssthresh < 10 * BASE);
    // The size is tried again, once nothing is lost.
    b.now = b.now + RTT;
    b.ack(10_000);
    b.now = b.now + 3 * RTT;
    b.queue(10_000);
    assert_eq!(b.sent()[..2], [". 10000+1024 ack 0", ". 11024+2000 ack 0"]);
    // A loss after the probe counts too.
    let mut b = bench();
    b.queue(10_000);
    b.sent();
    b.now = b.now + RTT;
    b.sack(1024, &[(4048, 7120)]);
    b.sent();
    assert_eq!((b.count().fast_retransmits, b.count().mtu_probes_lost), (1, 0));
}

#[test]
fn test_next_probe_waits_for_a_round_trip_per_segment_of_the_window() {
    let mut b = bench();
    let probes = busy(&mut b, &mut Path::of(1500), 60);
    let cwnd = b.c.stats().cwnd;
    let [(0, MOST), (next, MOST), ..] = probes[..] else { panic!("{probes:?}") };
    // The window had ten segments at least at the first loss.
    assert!((11..=30).contains(&next), "{probes:?} {cwnd}");
}

#[test]
fn test_three_lost_probes_end_the_attempts_of_a_size() {
    let mut b = bench();
    let probes = busy(&mut b, &mut Path::of(1500), 3000);
    let lens: Vec<_> = probes.iter().map(|p| p.1).collect();
    assert_eq!(lens.iter().filter(|&&len| len == MOST).count(), 3, "{lens:?}");
    assert!(lens[3] < MOST && lens[3] > BASE, "{lens:?}");
    let found = b.c.emss();
    assert!(found <= 1500 && found > 1500 - 16, "{found}: {lens:?}");
    assert_eq!(b.count().fast_retransmits + b.count().timeouts, 0);
    assert_eq!(b.c.stats().ssthresh, u32::MAX);
}

#[test]
fn test_larger_segments_leave_the_window_as_large() {
    let mut b = bench();
    b.queue(10_000);
    b.sent();
    b.now = b.now + RTT;
    b.ack(10_000);
    assert_eq!((b.c.emss(), b.c.stats().cwnd), (MOST, 10 * BASE + 10_000), "as slow start has it");
    b.queue(10_000);
    assert_eq!(b.sent()[0], ". 10000+2000 ack 0");
}

#[test]
fn test_probe_goes_only_with_data_around_it() {
    let mut b = bench();
    b.queue(1024 + 2000 + 4 * 1024 - 1);
    assert_eq!(b.sent()[1], ". 1024+1024 ack 0", "a byte is missing after the probe");
    let mut b = bench();
    b.queue(1024 + 2000 + 4 * 1024);
    assert_eq!(b.sent()[1], ". 1024+2000 ack 0");
    // Segments before the probe serve as well.
    let mut b = bench();
    for _ in 0..4 {
        b.queue(1024);
        b.sent();
    }
    b.now = b.now + RTT / 10;
    b.queue(1024 + 2000);
    assert_eq!(b.sent(), [". 4096+1024 ack 0", "P. 5120+2000 ack 0"]);
}

#[test]
fn test_new_data_wait_for_room_for_a_probe() {
    let mut b = bench();
    for _ in 0..10 {
        b.queue(1024);
        b.sent();
    }
    b.now = b.now + RTT;
    b.queue(20_000);
    assert_eq!(b.sent(), strings(&[]), "the window is full");
    b.ack(1024);
    assert_eq!(b.sent(), [". 10240+1024 ack 0"], "the room for the next is kept");
    b.ack(2048);
    assert_eq!(b.sent()[0], ". 11264+2000 ack 0");
    assert_eq!(b.count().mtu_probes, 1);
}

#[test]
fn test_probe_lost_in_a_timeout_is_tried_again_later() {
    let mut b = bench();
    let mut path = Path::of(0);
    b.queue(10_000);
    assert_eq!(path.round(&mut b), [MOST]);
    while b.count().timeouts == 0 {
        b.now = b.c.poll_timeout().unwrap();
        b.c.handle_timeout(b.now);
    }
    let from = b.now;
    path.limit = MOST;
    let mut rounds = 0;
    while b.count().mtu_probes == 1 {
        b.queue(12_000);
        path.round(&mut b);
        rounds += 1;
        assert!(rounds < 500);
    }
    let pause = b.now - from;
    assert!(pause >= 5 * 10 * RTT, "{pause:?}");
    assert_eq!(b.count().mtu_probes_lost, 0);
}
