//! Accurate ECN (RFC 9768) at random: segments that count at will, and two ends over a bad link.

use super::accurate::{ACCURATE, accepting, ace, codepoint, with_ecn};
use super::pair::{Link, Pair};
use super::*;
use proptest::prelude::*;

/// The random programs of `random`, whose segments ask for accurate ECN and count at will.
#[derive(Debug)]
pub(super) struct Derived(pub(super) Segment, pub(super) Option<ByteCounts>);

/// Derives the bits of ECN of a segment from its numbers.
pub(super) fn derived(seg: &Segment) -> Derived {
    let n = seg.seq.0.wrapping_mul(0x9e37_79b9) ^ seg.ack.0 ^ u32::from(seg.window);
    let bits = [ACCURATE, ace(2), ace(5), Flags(u16::try_from(n >> 8 & 0x1c0).unwrap())];
    let bits = bits[usize::try_from(n >> 20 & 3).unwrap()];
    let ecn = codepoint(u8::try_from(n & 3).unwrap());
    let seg = Segment { flags: seg.flags.with(bits), ecn, ..*seg };
    let fields = [n, n >> 3, seg.ack.0].map(|f| f & 0x00ff_ffff);
    let len = u8::try_from(n >> 2 & 3).unwrap();
    let option = ByteCounts { reversed: n >> 4 & 1 == 1, fields, len };
    Derived(seg, (n >> 5 & 1 == 1).then_some(option))
}

proptest! {
    /// Any bits, codepoints and options leave a connection able to work, and its invariants whole.
    #[test]
    fn test_random_counts_keep_the_invariants(
        segments in proptest::collection::vec(random::segment(), 1..60),
        asks: bool, accepts: bool,
    ) {
        let cfg = with_ecn(Ecn::Accurate);
        let mut b = if asks { Bench::connecting(&cfg) } else { accepting() };
        for (seg, sack) in segments {
            let Derived(seg, option) = derived(&seg);
            let out = handle(&mut b.c, b.now, &seg, &sack, counting(option));
            if let Some(upto) = out.acked {
                b.q.release(upto);
            }
            if let Some(p) = out.payload.filter(|_| accepts) {
                b.c.accept_payload(b.now, p.pos, p.len);
            }
            b.queue(500);
            b.sent();
            b.c.check_invariants(b.q.end());
            b.now = b.now + MS;
            b.c.handle_timeout(b.now);
        }
        while b.c.poll_event().is_some() {}
    }

    /// The sender's counts are the network's: two ends over a link that marks, one ACK for a burst or
    /// one for each segment, in order or not.
    #[test]
    fn test_sender_counts_the_marks_that_the_network_made(
        seed: u64, marks in 0u64..600, gathers: bool, reorders: bool, both: bool,
    ) {
        let cfg = ConnConfig { recv_window: 200_000, ..with_ecn(Ecn::Accurate) };
        let cfg = ConnConfig { timestamps: true, window_scaling: true, mss: 1460, ..cfg };
        let gather = if gathers { MS } else { Duration::ZERO };
        let reorder = if reorders { 0.05 } else { 0.0 };
        let link = Link { marks, gather, reorder, ..Link::default() };
        let mut p = Pair::new([&cfg, &cfg], link, seed);
        p.ends[0].total = 400_000;
        p.ends[1].total = if both { 300_000 } else { 0 };
        p.run_orderly(Duration::from_secs(600));
        let lost = p.ends.iter().any(|e| e.c.counters().retransmits > 0);
        for side in 0..2 {
            let (tx, rx) = (p.ends[side].c.counters(), p.ends[1 - side].c.counters());
            prop_assert_eq!(tx.ecn_mangled, 0);
            // Duplicates of bytes that the receiver has are not acceptable, and do not count.
            if !lost && !reorders {
                prop_assert_eq!(rx.ce_segments, p.marked[side], "side {}", side);
            }
            if !reorders {
                prop_assert_eq!(tx.ce_reported, rx.ce_segments, "side {}", side);
            }
        }
    }

    /// The sender learns of the marks modulo 8 by the time its last byte is acknowledged, and invents
    /// none, on any link and with any windows.
    #[test]
    fn test_sender_invents_no_marks_on_a_bad_link(
        seed: u64,
        marks in 0u64..600,
        (loss, duplicate, reorder) in (0.0f64..0.03, 0.0f64..0.05, 0.0f64..0.2),
        (gathers, shuts, probes) in any::<(bool, bool, bool)>(),
        totals in (0u64..400_000, 0u64..400_000),
        algorithm in 0usize..3,
    ) {
        let cfg = ConnConfig { recv_window: 100_000, ..with_ecn(Ecn::Accurate) };
        let cfg = ConnConfig { window_scaling: true, mss: 1460, ..cfg };
        let cfg = ConnConfig {
            timestamps: seed % 3 > 0,
            congestion: Congestion::NAMES[algorithm].1,
            path_mtu: if probes { PathMtu::On } else { PathMtu::Off },
            user_timeout_option: if shuts { UserTimeoutOption::Adapt } else { UserTimeoutOption::Off },
            ..cfg
        };
        let gather = if gathers { MS } else { Duration::ZERO };
        let link = Link { loss, duplicate, reorder, marks, gather, ..Link::default() };
        let mut p = Pair::new([&cfg, &cfg], link, seed);
        (p.ends[0].total, p.ends[1].total) = totals;
        p.close_when_sent();
        let (mut steps, mut knows) = (0, [None; 2]);
        while !p.done() {
            p.step();
            for (knows, e) in knows.iter_mut().zip(&p.ends) {
                if !matches!(e.c.state(), State::SynSent | State::SynReceived) {
                    knows.get_or_insert(e.c.gets_options());
                }
            }
            steps += 1;
            if shuts && steps % 40 == 0 {
                let side = steps / 40 % 2;
                p.ends[side].c.set_recv_window(if steps % 80 == 0 { 100_000 } else { 3000 });
                p.pump(side);
            }
        }
        p.run_orderly(Duration::from_secs(600));
        for (side, knows) in knows.into_iter().enumerate() {
            let (tx, rx) = (p.ends[side].c.counters(), p.ends[1 - side].c.counters());
            // With lost options, marks may look like a cleared field, as section 3.2.2.4 has it.
            let (told, came) = (tx.ce_reported, rx.ce_segments);
            prop_assert_eq!(told % 8, came % 8, "side {}: {} of {}", side, told, came);
            // An end whose handshake had no option has to assume marks.
            let assumes = knows != Some(true);
            prop_assert!(assumes || told <= came, "side {}: {} of {}", side, told, came);
        }
    }
}
