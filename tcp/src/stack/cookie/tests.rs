use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;
use proptest::prelude::*;

fn flows() -> [FlowKey; 2] {
    let v6 = |n| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    [
        FlowKey::v4(Ipv4Addr::new(10, 0, 0, 2), 80, Ipv4Addr::new(10, 0, 0, 1), 1000),
        FlowKey::new((v6(2), 80), (v6(1), 1000)).unwrap(),
    ]
}

fn hashed(key: &FlowKey) -> Hashed<'_> {
    Hashed { key, hash: key.hash(&[5; 16]) }
}

fn at(s: u64) -> Instant {
    Instant::from_millis(s * 1000)
}

/// Returns the first segment after the SYN-ACK of `kept`, whose timestamp was `clock`.
fn ack_of(kept: &Kept, clock: u32) -> Segment {
    Segment {
        seq: kept.syn.seq.advance(1),
        ack: kept.iss.advance(1),
        flags: Flags::ACK,
        timestamps: kept.syn.timestamps.map(|ts| Timestamps { val: ts.val + 1, ecr: clock }),
        ..Segment::default()
    }
}

fn plain_syn() -> Segment {
    Segment { seq: SeqNumber(77), flags: Flags::SYN, mss: Some(1460), ..Segment::default() }
}

proptest! {
    #[test]
    fn test_cookie_says_what_the_syn_said(
        seq: u32,
        mss in proptest::option::of(0u16..10_000),
        window_scale in proptest::option::of(0u8..20),
        sack_permitted: bool,
        asks: bool,
        stamp_of_peer in proptest::option::of(0u32..u32::MAX),
        clock: u32,
        six: bool,
        later in 0u64..64,
    ) {
        let flow = flows()[usize::from(six)];
        // Derived: the bits of ECN take no draw of their own.
        let accurate = if seq & 1 == 1 { Flags::AE } else { Flags(0) };
        let cfg = ConnConfig::default();
        let syn = Segment {
            seq: SeqNumber(seq),
            flags: if asks { Flags::SYN.with(ASKS).with(accurate) } else { Flags::SYN },
            mss,
            window_scale,
            sack_permitted,
            timestamps: stamp_of_peer.map(|val| Timestamps { val, ecr: 0 }),
            ..Segment::default()
        };
        let mut cookies = Cookies::new([3; 16]);
        let kept = cookies.make(at(100), &cfg, hashed(&flow), &syn);
        let clock_sent = stamp(&cfg, &syn, clock);
        prop_assert!(clock.wrapping_sub(clock_sent) < 64, "the clock does not run back");
        let found = cookies.check(at(100 + later), &cfg, hashed(&flow), &ack_of(&kept, clock_sent));
        let found = found.unwrap();
        prop_assert_eq!(found.iss, kept.iss);
        let at_most = mss.unwrap_or(cfg.default_peer_mss).max(64);
        prop_assert!(found.syn.mss.unwrap() <= at_most);
        let stamped = stamp_of_peer.is_some();
        prop_assert_eq!(found.syn.window_scale, window_scale.map(|s| s.min(14)).filter(|_| stamped));
        prop_assert_eq!(found.syn.sack_permitted, sack_permitted && stamped);
        prop_assert_eq!(found.syn.flags.has(ASKS), asks && stamped);
        let is_accurate = found.syn.flags.has(Flags::AE);
        prop_assert_eq!(is_accurate, asks && stamped && accurate == Flags::AE);
        // Both sides of the handshake go by the same SYN.
        let before = Segment { timestamps: None, ..kept.syn };
        prop_assert_eq!(Segment { timestamps: None, ..found.syn }, before);
        prop_assert_eq!(found.syn.timestamps.is_some(), kept.syn.timestamps.is_some());
    }
}

#[test]
fn test_common_sizes_of_segments_are_kept_exactly() {
    let mut cookies = Cookies::new([3; 16]);
    for (flow, sizes) in flows().into_iter().zip([[536, 1460, 8960], [1220, 1440, 8940]]) {
        for mss in sizes {
            let syn = Segment { mss: Some(mss), ..plain_syn() };
            let kept = cookies.make(at(1), &ConnConfig::default(), hashed(&flow), &syn);
            assert_eq!(kept.syn.mss, Some(mss));
        }
    }
}

#[test]
fn test_cookie_is_good_for_a_slot_at_least_and_two_at_most() {
    let (cfg, flow) = (ConnConfig::default(), flows()[0]);
    for made in [0, 1, 63, 64, 100, 127, 1_000_000] {
        let mut cookies = Cookies::new([3; 16]);
        let ack = ack_of(&cookies.make(at(made), &cfg, hashed(&flow), &plain_syn()), 0);
        let mut good = |s| cookies.check(at(s), &cfg, hashed(&flow), &ack).is_some();
        assert!(good(made) && good(made + 63), "{made}");
        let end = (made / 64 + 2) * 64;
        assert!(good(end - 1) && !good(end) && !good(end + 64) && !good(end + 6400), "{made}");
    }
}

#[test]
fn test_cookies_are_out_until_the_last_has_expired() {
    let mut cookies = Cookies::new([3; 16]);
    assert!(!cookies.are_out(at(0)));
    cookies.make(at(10), &ConnConfig::default(), hashed(&flows()[0]), &plain_syn());
    assert!(cookies.are_out(at(10)) && cookies.are_out(at(137)) && !cookies.are_out(at(138)));
}

/// Each bit of the acknowledgment, the sequence number and the options belongs to the proof.
#[test]
fn test_cookie_proves_nothing_with_any_bit_changed() {
    let cfg = ConnConfig::default();
    let stamped = Segment { timestamps: Some(Timestamps { val: 1, ecr: 0 }), ..plain_syn() };
    for flow in flows() {
        for syn in [plain_syn(), stamped] {
            let mut cookies = Cookies::new([3; 16]);
            let kept = cookies.make(at(1), &cfg, hashed(&flow), &syn);
            let right = ack_of(&kept, stamp(&cfg, &syn, 1 << 20));
            let mut good = |seg: &Segment| cookies.check(at(1), &cfg, hashed(&flow), seg).is_some();
            assert!(good(&right));
            for bit in 0..32 {
                let flip = |n: SeqNumber| SeqNumber(n.0 ^ 1 << bit);
                assert!(!good(&Segment { ack: flip(right.ack), ..right }), "ACK, bit {bit}");
                assert!(!good(&Segment { seq: flip(right.seq), ..right }), "number, bit {bit}");
            }
            for bit in 0..6 {
                let Some(ts) = right.timestamps else { continue };
                let timestamps = Some(Timestamps { ecr: ts.ecr ^ 1 << bit, ..ts });
                assert!(!good(&Segment { timestamps, ..right }), "echo, bit {bit}");
            }
            let without = if right.timestamps.is_some() {
                None
            } else {
                Some(Timestamps { val: 1, ecr: 15 })
            };
            assert!(!good(&Segment { timestamps: without, ..right }));
        }
    }
}

#[test]
fn test_cookie_of_one_flow_or_key_proves_nothing_to_another() {
    let cfg = ConnConfig::default();
    let mut cookies = Cookies::new([3; 16]);
    let [flow, six] = flows();
    let ack = ack_of(&cookies.make(at(1), &cfg, hashed(&flow), &plain_syn()), 0);
    let (b, a) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let others = [
        FlowKey::v4(b, 81, a, 1000),
        FlowKey::v4(b, 80, a, 1001),
        FlowKey::v4(a, 80, a, 1000),
        FlowKey::v4(b, 80, b, 1000),
        six,
    ];
    for other in others {
        assert!(cookies.check(at(1), &cfg, hashed(&other), &ack).is_none());
    }
    let mut stranger = Cookies::new([4; 16]);
    assert!(stranger.check(at(1), &cfg, hashed(&flow), &ack).is_none());
    // All workers of a port have the same key.
    let mut worker = Cookies::new([3; 16]);
    assert!(worker.check(at(1), &cfg, hashed(&flow), &ack).is_some());
}
