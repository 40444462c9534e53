//! Runs of the [`Pair`](super::pair::Pair): whatever the link does, the receiver gets exactly the
//! bytes that the sender sent.

use super::pair::{Link, Pair};
use super::*;
use proptest::prelude::*;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn pair(link: Link, seed: u64) -> Pair {
    let cfg = ethernet();
    Pair::new([&cfg, &cfg], link, seed)
}

/// Returns the rate of `bytes` in `took`, in megabits per second.
fn rate(bytes: u64, took: Duration) -> u64 {
    u64::try_from(u128::from(bytes) * 8000 / took.as_nanos().max(1)).unwrap()
}

#[test]
fn test_pair_perfect_link_reaches_its_rate() {
    let mut p = pair(Link::default(), 1);
    p.ends[0].total = 20_000_000;
    let took = p.run_orderly(HOUR);
    assert!(rate(20_000_000, took) > 850, "{} Mb/s", rate(20_000_000, took));
    let s = p.ends[0].c.stats();
    assert_eq!(s.counters.timeouts, 0);
}

#[test]
fn test_pair_transfers_in_both_directions_at_once() {
    let mut p = pair(Link { loss: 0.01, reorder: 0.01, ..Link::default() }, 2);
    p.ends[0].total = 2_000_000;
    p.ends[1].total = 3_000_000;
    p.run_orderly(HOUR);
}

#[test]
fn test_pair_ten_megabytes_with_loss_duplication_and_reordering() {
    let link =
        Link { loss: 0.05, duplicate: 0.02, reorder: 0.05, latency: MS / 10, ..Link::default() };
    for seed in 10..13 {
        let mut p = pair(link, seed);
        p.ends[0].total = 10_000_000;
        p.run_orderly(HOUR);
    }
}

/// Returns the link of a machine room: 10 Gb/s, 0.1 ms round trip.
pub(super) fn fabric(loss: f64) -> Link {
    Link { latency: Duration::from_micros(50), rate: 1_250_000_000, loss, ..Link::default() }
}

/// Returns the most that a sender gets that halves its window for each loss, in Mb/s: MSS / RTT *
/// 1.22 / sqrt(p) (Mathis et al., 1997), or the link's rate.
fn model(loss: f64, rtt: Duration) -> f64 {
    (1448.0 * 8e-6 / rtt.as_secs_f64() * 1.22 / loss.sqrt()).min(9400.0)
}

/// Returns the median over seeds of the goodput in Mb/s. The link loses data, and ACKs too.
fn goodput(link: Link, cfg: &ConnConfig, bytes: u64) -> u64 {
    let mut all = Vec::new();
    for seed in 100..107 {
        let mut p = Pair::new([cfg, cfg], link, seed);
        p.ends[0].total = bytes;
        all.push(rate(bytes, p.run_orderly(HOUR)));
    }
    all.sort_unstable();
    println!("loss {}: {all:?} Mb/s", link.loss);
    all[3]
}

/// No run stalls: the goodput under loss is near the most that congestion control allows.
#[test]
#[expect(clippy::cast_precision_loss, reason = "megabits per second")]
fn test_pair_goodput_under_loss() {
    let cfg = ethernet();
    let rtt = Duration::from_micros(100);
    // At one loss in twenty the window is a handful of segments. If the receiver held back the ACK
    // of every second segment, an odd segment would wait for the next round trip, and a lost ACK
    // for a probe.
    for (loss, of_model) in [(0.001, 0.8), (0.01, 0.8), (0.05, 0.65)] {
        let got = goodput(fabric(loss), &cfg, 20_000_000);
        let want = model(loss, rtt) * of_model;
        assert!(got as f64 >= want, "loss {loss}: {got} Mb/s, not {want:.0}");
    }
    assert!(goodput(fabric(0.0), &cfg, 20_000_000) >= 5000);
}

#[test]
fn test_pair_completes_small_transfers_on_bad_links() {
    for seed in 0..300 {
        let mut p =
            pair(Link { loss: 0.15, duplicate: 0.1, reorder: 0.3, ..Link::default() }, 1000 + seed);
        p.ends[0].total = seed * 37 % 20_000;
        p.ends[1].total = seed * 101 % 9_000;
        p.run_orderly(HOUR);
    }
}

#[test]
fn test_pair_transfers_without_options() {
    let cfg = ConnConfig { timestamps: false, window_scaling: false, ..ethernet() };
    for seed in 0..10 {
        let link = Link { loss: 0.03, reorder: 0.05, duplicate: 0.05, ..Link::default() };
        let mut p = Pair::new([&cfg, &ethernet()], link, 2000 + seed);
        p.ends[0].total = 300_000;
        p.ends[1].total = 100_000;
        p.run_orderly(HOUR);
    }
}

#[test]
fn test_pair_transfers_when_owner_refuses_payload_at_random() {
    for seed in 0..10 {
        let mut p = pair(Link { loss: 0.01, ..Link::default() }, 3000 + seed);
        p.ends[0].total = 500_000;
        p.ends[1].refuse = 0.1;
        p.run_orderly(HOUR);
    }
}

#[test]
fn test_pair_survives_zero_window_periods() {
    for seed in 0..10 {
        let link = Link { loss: if seed % 2 == 0 { 0.0 } else { 0.02 }, ..Link::default() };
        let mut p = pair(link, 4000 + seed);
        p.ends[0].total = 5_000_000;
        let mut open = true;
        let mut turn = p.now + 20 * MS;
        p.close_when_sent();
        while !p.done() {
            p.step();
            if p.now >= turn {
                open = !open;
                turn = p.now + if open { 50 * MS } else { 500 * MS };
                p.ends[1].c.set_recv_window(if open { 1 << 20 } else { 0 });
                p.pump(1);
            }
            assert!(p.now < Instant::from_millis(3_600_000), "seed {}: stuck", p.seed);
        }
        p.run_orderly(HOUR);
        assert!(p.ends[0].c.stats().counters.probes > 0, "seed {}", p.seed);
    }
}

#[test]
fn test_pair_transfers_through_a_tiny_window() {
    let tiny = ConnConfig { recv_window: 700, window_scaling: false, ..ethernet() };
    for seed in 0..5 {
        let mut p =
            Pair::new([&ethernet(), &tiny], Link { loss: 0.01, ..Link::default() }, 5000 + seed);
        p.ends[0].total = 50_000;
        p.run_orderly(HOUR);
    }
}

#[test]
fn test_pair_dead_link_times_out_both() {
    let mut p = pair(Link::default(), 6);
    while p.ends[1].c.state() != State::Established {
        p.step();
    }
    assert_eq!(p.ends[1].c.state(), State::Established);
    p.ends[0].total = 5000;
    p.ends[1].total = 5000;
    p.lose_everything();
    p.pump(0);
    p.pump(1);
    p.run(HOUR);
    for e in &p.ends {
        assert_eq!(e.events.last(), Some(&ConnEvent::TimedOut));
    }
}

/// A bulk transfer crosses the wrap of the 32-bit space four times and more.
#[test]
fn test_pair_positions_beyond_four_gigabytes() {
    struct Endless(u64);
    impl SendQueue for Endless {
        fn end(&self) -> StreamPos {
            StreamPos(self.0)
        }
        fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
            u32::try_from(self.end() - from).unwrap_or(u32::MAX).min(max)
        }
    }
    let cfg = ConnConfig { mss: 65_000, recv_window: 64 << 20, ..ethernet() };
    let mut now = Instant::from_millis(1);
    let total = (4 << 32) + 12_345;
    let q = Endless(total);
    let none = ByteQueue::default();
    let mut a = Connection::connect(&cfg, now, SeqNumber(u32::MAX - 5), 7);
    let syn = opening::arrived(&a.poll_transmit(now, &q).unwrap());
    let mut z = Connection::accept(&cfg, now, SeqNumber(3), 9, &syn);
    let mut n = 0u64;
    while z.rcv_nxt() < StreamPos(total) {
        while let Some(t) = a.poll_transmit(now, &q) {
            n += 1;
            // The test loses every thousandth segment.
            if t.len > 0 && n.is_multiple_of(1000) {
                continue;
            }
            if let Some(p) = z.handle_segment(now, &opening::arrived(&t)).payload {
                z.accept_payload(now, p.pos, p.len);
            }
        }
        now = now + MS;
        z.handle_timeout(now);
        let mut idle = true;
        while let Some(t) = z.poll_transmit(now, &none) {
            idle = false;
            a.handle_segment(now, &opening::arrived(&t));
        }
        if idle {
            now = now.max(a.poll_timeout().unwrap());
            a.handle_timeout(now);
        }
        a.handle_timeout(now);
    }
    assert_eq!(z.rcv_nxt(), StreamPos(total));
}

/// Returns settings for both ends: SACK on both, one or none; with and without timestamps.
fn settings() -> impl Strategy<Value = ConnConfig> {
    (any::<bool>(), any::<bool>(), 0u32..3, 300u16..9000).prop_map(
        |(sack, timestamps, ack, mss)| ConnConfig {
            sack,
            timestamps,
            delayed_ack: ack * MS / 2,
            mss,
            // A timeout that is backed off must not end the connection: see below.
            user_timeout: HOUR + Duration::from_secs(mss.into()),
            user_timeout_option: UserTimeoutOption::NAMES[ack as usize].1,
            user_timeout_limit: HOUR * 4,
            fin_wait_2: HOUR,
            ..ethernet()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.min(64),
        ..ProptestConfig::default()
    })]

    /// The link loses, duplicates and reorders data and ACKs; the owner refuses some payload. The
    /// receiver gets exactly the bytes that were sent, and no run stalls: the bound on the time is
    /// what losses in a row may cost.
    #[test]
    fn test_any_link_delivers_what_was_sent(
        cfg in settings(),
        peer in settings(),
        loss in 0.0f64..0.1,
        duplicate in 0.0f64..0.1,
        reorder in 0.0f64..0.2,
        micros in 5u32..5000,
        gather in prop_oneof![1 => Just(0u32), 1 => 1u32..100],
        refuse in prop_oneof![3 => Just(0.0), 1 => 0.0f64..0.1],
        sizes in (0u64..600_000, 0u64..100_000),
        seed: u64,
    ) {
        let latency = Duration::from_micros(micros.into());
        let gather = Duration::from_micros(gather.into());
        let link = Link { loss, duplicate, reorder, latency, gather, ..Link::default() };
        let mut p = Pair::new([&cfg, &peer], link, seed);
        (p.ends[0].total, p.ends[1].total) = sizes;
        p.ends[1].refuse = refuse;
        // Without SACK and timestamps retransmissions measure nothing, and the timeout stays backed
        // off, to a minute at worst, until new data is sent and acknowledged (RFC 6298 section 5).
        // A run may include several such timeouts.
        let measured = cfg.sack && peer.sack || cfg.timestamps && peer.timestamps;
        p.run_orderly(Duration::from_secs(if measured { 120 } else { 1200 }));
        // The option may be lost on the way.
        for (end, own, other) in [(0, &cfg, &peer), (1, &peer, &cfg)] {
            let longer = own.user_timeout.max(other.user_timeout);
            let adapts = own.user_timeout_option == UserTimeoutOption::Adapt
                && other.user_timeout_option != UserTimeoutOption::Off;
            let now = p.ends[end].c.user_timeout();
            prop_assert!(now == own.user_timeout || adapts && now == longer, "{end}: {now:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.min(16),
        ..ProptestConfig::default()
    })]

    /// Reordering alone, by up to a whole round trip, costs little: TCP undoes the recoveries that
    /// it causes. A transfer in some thousands has bad luck and takes three times as long as most,
    /// so the test measures four together.
    #[test]
    fn test_reordering_alone_hardly_slows_down(reorder in 0.0f64..0.05, seeds: [u64; 4]) {
        let link = Link { latency: Duration::from_micros(50), reorder, rate: 1_250_000_000, ..Link::default() };
        let cfg = ethernet();
        let mut took = Duration::ZERO;
        for seed in seeds {
            let mut p = Pair::new([&cfg, &cfg], link, seed);
            p.ends[0].total = 5_000_000;
            took += p.run_orderly(HOUR);
            prop_assert_eq!(p.ends[0].c.stats().counters.timeouts, 0);
        }
        prop_assert!(rate(20_000_000, took) >= 2500, "{} Mb/s", rate(20_000_000, took));
    }
}
