//! Paths that carry less than the link and do not say so, and paths that change.

use core::time::Duration;

use heddle_base::Random;

use super::net::{Faults, Station};
use super::path_mtu::fragmentation_needed;
use super::transfer::{pair, pattern};
use super::*;
use crate::{ConnConfig, PathMtu};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a pair whose A probes as `probing` says, with a connection.
fn probing(probing: PathMtu) -> (Net<Host, Host>, ConnId, ConnId) {
    let mut n = pair(3, Faults::default());
    let conn = ConnConfig { path_mtu: probing, ..ConnConfig::default() };
    n.a = Host::new(StackConfig { conn, ..config_a() });
    let (a, b) = connect(&mut n);
    (n, a, b)
}

/// Connects A to B, once more perhaps.
fn connect(n: &mut Net<Host, Host>) -> (ConnId, ConnId) {
    let before = n.b.accepted();
    let a = n.a.stack.connect(n.now, b_addr(), None).unwrap();
    let done = |n: &Net<Host, Host>| n.a.says(a, ConnEvent::Connected) && n.b.accepted() != before;
    n.run("connect", MINUTE, |n| done(n));
    (a, n.b.accepted().unwrap())
}

/// Sends `len` bytes from A to B, and checks them.
fn send(n: &mut Net<Host, Host>, (a, b): (ConnId, ConnId), len: usize) {
    let before = n.b.got(b).len();
    let data = pattern(len, 1);
    n.a.send(a, &data);
    n.run("transfer", 10 * MINUTE, |n| n.b.got(b).len() == before + len);
    assert!(n.b.got(b)[before..] == data, "wrong bytes");
    n.run("ACK", MINUTE, |n| n.a.stack.conn(a).unwrap().stats().in_flight == 0);
}

/// Keeps the connection busy until a search in progress is over.
fn search(n: &mut Net<Host, Host>, ends: (ConnId, ConnId)) {
    for _ in 0..60 {
        send(n, ends, 50_000);
        wait(n, Duration::from_millis(500));
    }
}

/// Lets time pass.
fn wait(n: &mut Net<Host, Host>, time: Duration) {
    n.now = n.now + time;
}

fn emss(n: &Net<Host, Host>, a: ConnId) -> u32 {
    n.a.stack.conn(a).unwrap().emss()
}

fn counters(n: &Net<Host, Host>, a: ConnId) -> crate::ConnCounters {
    n.a.stack.conn(a).unwrap().stats().counters
}

#[test]
fn test_transfer_gets_out_of_a_black_hole_and_finds_the_largest_segment() {
    for mtu in [1492, 1400, 1301, 1100] {
        let (mut n, a, b) = probing(PathMtu::BlackHole);
        (n.path_mtu, n.silent) = (Some(mtu), true);
        let start = n.now;
        send(&mut n, (a, b), 2_000_000);
        assert!(n.now - start < Duration::from_secs(2), "{mtu}: {:?}", n.now - start);
        search(&mut n, (a, b));
        let (found, most) = (emss(&n, a), u32::from(mtu) - 52);
        assert!(found <= most && most - found <= 16, "{mtu}: {found}");
        let c = counters(&n, a);
        assert_eq!(c.mtu_black_holes, 1, "{mtu}");
        assert!(c.mtu_raises >= 1 && (1..=20).contains(&c.mtu_probes_lost), "{mtu}: {c:?}");
    }
}

#[test]
fn test_black_hole_lowers_the_segment_size_by_a_step() {
    let (mut n, a, _) = probing(PathMtu::BlackHole);
    (n.path_mtu, n.silent) = (Some(1400), true);
    n.a.send(a, &pattern(100_000, 1));
    n.run("black hole", MINUTE, |n| counters(n, a).mtu_black_holes == 1);
    assert_eq!(emss(&n, a), 1012);
}

#[test]
fn test_path_below_the_first_step_carries_smaller_segments() {
    let (mut n, a, b) = probing(PathMtu::BlackHole);
    (n.path_mtu, n.silent) = (Some(700), true);
    send(&mut n, (a, b), 400_000);
    search(&mut n, (a, b));
    let found = emss(&n, a);
    assert!((700 - 52 - 16..=700 - 52).contains(&found), "{found}");
    assert_eq!(counters(&n, a).mtu_black_holes, 2);
}

#[test]
fn test_connection_that_does_not_probe_stays_in_the_black_hole() {
    let (mut n, a, b) = probing(PathMtu::Off);
    (n.path_mtu, n.silent) = (Some(1400), true);
    n.a.send(a, &pattern(100_000, 1));
    let end = n.now + Duration::from_secs(30);
    n.run("nothing", MINUTE, |n| n.now >= end);
    assert_eq!((n.b.got(b).len(), emss(&n, a), counters(&n, a).mtu_black_holes), (0, 1448, 0));
}

#[test]
fn test_connection_that_always_probes_begins_small_and_reaches_the_whole_mtu() {
    let (mut n, a, b) = probing(PathMtu::On);
    assert_eq!(emss(&n, a), 1012);
    send(&mut n, (a, b), 100_000);
    let c = counters(&n, a);
    assert_eq!((emss(&n, a), c.mtu_probes, c.mtu_raises, c.retransmits), (1448, 1, 1, 0));
    // The search is over.
    send(&mut n, (a, b), 1_000_000);
    assert_eq!(counters(&n, a).mtu_probes, 1);
}

#[test]
fn test_report_about_a_probe_ends_the_search_at_its_value() {
    let (mut n, a, b) = probing(PathMtu::On);
    n.path_mtu = Some(1380);
    send(&mut n, (a, b), 100_000);
    search(&mut n, (a, b));
    let c = counters(&n, a);
    assert_eq!((emss(&n, a), c.mtu_probes, c.mtu_probes_lost), (1380 - 52, 2, 1));
    assert_eq!(n.a.stack.counters().icmp_frag_needed, 1);
    assert_eq!(c.timeouts, 0, "the lost probe went again at once");
}

#[test]
fn test_search_begins_again_after_ten_minutes_and_finds_that_the_path_grew() {
    for silent in [true, false] {
        let (mut n, a, b) = probing(PathMtu::BlackHole);
        (n.path_mtu, n.silent) = (Some(1400), silent);
        send(&mut n, (a, b), 1_000_000);
        search(&mut n, (a, b));
        let (small, probes) = (emss(&n, a), counters(&n, a).mtu_probes);
        assert!((1332..=1348).contains(&small));
        n.path_mtu = None;
        wait(&mut n, Duration::from_secs(565));
        send(&mut n, (a, b), 100_000);
        assert_eq!((emss(&n, a), counters(&n, a).mtu_probes), (small, probes), "too early");
        wait(&mut n, Duration::from_secs(40));
        send(&mut n, (a, b), 100_000);
        assert_eq!((emss(&n, a), counters(&n, a).mtu_probes), (1448, probes + 1));
    }
}

#[test]
fn test_new_connections_begin_with_what_earlier_ones_have_found() {
    for silent in [true, false] {
        let (mut n, a, b) = probing(PathMtu::BlackHole);
        (n.path_mtu, n.silent) = (Some(1400), silent);
        send(&mut n, (a, b), 1_000_000);
        search(&mut n, (a, b));
        let small = emss(&n, a);
        let (next, far) = connect(&mut n);
        assert_eq!(emss(&n, next), small, "silent: {silent}");
        send(&mut n, (next, far), 100_000);
        let c = counters(&n, next);
        assert_eq!((c.timeouts, c.mtu_black_holes, c.mtu_probes), (0, 0, 0));
        // Paths change: after ten minutes the knowledge is too old.
        n.path_mtu = None;
        wait(&mut n, Duration::from_secs(600));
        let (late, far) = connect(&mut n);
        assert_eq!(emss(&n, late), 1448);
        send(&mut n, (late, far), 100_000);
    }
}

#[test]
fn test_peer_that_is_away_for_a_while_gets_whole_segments_again() {
    let (mut n, a, b) = probing(PathMtu::BlackHole);
    send(&mut n, (a, b), 100_000);
    n.faults.loss = 1.0;
    n.a.send(a, &pattern(300_000, 1));
    let end = n.now + Duration::from_millis(500);
    n.run("nothing", MINUTE, |n| n.now >= end);
    assert!(emss(&n, a) < 1012, "the sender cannot know the reason");
    n.faults.loss = 0.0;
    n.run("rest", MINUTE, |n| n.b.got(b).len() == 400_000);
    assert_eq!((emss(&n, a), n.a.stack.paths.len()), (1448, 0));
    let (next, _) = connect(&mut n);
    assert_eq!(emss(&n, next), 1448, "no other connection suffers");
}

#[test]
fn test_forged_reports_teach_nothing_to_new_connections() {
    let (mut n, a, b) = probing(PathMtu::BlackHole);
    send(&mut n, (a, b), 10_000);
    n.a.send(a, &pattern(1000, 1));
    let mut frame = n.a.transmit(n.now).unwrap();
    // Neither a number outside of the window nor a port of no connection counts.
    for (at, by) in [(38, 0x40), (35, 1)] {
        let before = frame.clone();
        frame[at] ^= by;
        n.a.handle(n.now, &fragmentation_needed(&frame, 600));
        frame = before;
    }
    assert_eq!((n.a.stack.paths.len(), n.a.stack.counters().icmp_unmatched), (0, 2));
    n.b.handle(n.now, &frame);
    let (next, _) = connect(&mut n);
    assert_eq!(emss(&n, next), 1448);
}

/// The bytes arrive as they were sent, whatever happens to the path and to the frames.
#[test]
fn test_transfer_survives_paths_that_change_at_random() {
    for seed in 1..=12 {
        let mut r = Random::new(&Seed::from_u64(seed));
        let modes = [PathMtu::BlackHole, PathMtu::On];
        let (mut n, a, b) = probing(modes[usize::try_from(seed % 2).unwrap()]);
        let mut len = 0;
        for _ in 0..12 {
            let mtu = 576 + u16::try_from(r.below(1000)).unwrap();
            n.path_mtu = (r.below(4) > 0).then_some(mtu);
            n.silent = r.below(2) > 0;
            n.faults = Faults { loss: [0.0, 0.005][usize::from(r.below(2) > 0)], ..n.faults };
            n.a.send(a, &pattern(100_000, 1));
            len += 100_000;
            let upto = len - usize::try_from(r.below(100_000)).unwrap();
            n.run("part", 20 * MINUTE, |n| n.b.got(b).len() >= upto);
            if r.below(3) == 0 {
                let quiet = |n: &Net<Host, Host>| n.a.stack.conn(a).unwrap().stats().in_flight == 0;
                n.run("pause", 20 * MINUTE, |n| n.b.got(b).len() == len && quiet(n));
                wait(&mut n, Duration::from_secs(601));
            }
        }
        n.run("rest", 20 * MINUTE, |n| n.b.got(b).len() == len);
        let part = pattern(100_000, 1);
        assert!(n.b.got(b).chunks(100_000).all(|c| c == part), "seed {seed}");
    }
}
