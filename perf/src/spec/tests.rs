use heddle_base::units::Span;

use super::*;
use proptest::prelude::*;

#[test]
fn test_unknown_word_error_lists_the_known_words() {
    let e = "writ".parse::<Op>().unwrap_err().to_string();
    assert_eq!(
        e,
        "unknown operation 'writ' (known: write, read, send, write-imm, send-imm, fetch-add, cmp-swap)"
    );
    assert_eq!("lat".parse::<Mode>(), Ok(Mode::Lat));
    assert_eq!(Mode::Rate.to_string(), "rate");
}

#[test]
fn test_check_accepts_specs_up_to_limits_and_refuses_beyond() {
    let ok = |f: fn(&mut BenchSpec)| {
        let mut s = BenchSpec::default();
        f(&mut s);
        s.check()
    };
    assert_eq!(ok(|_| ()), Ok(()));
    assert_eq!(ok(|s| (s.qps, s.sizes) = (MAX_QPS, Sizes::one(Size(8)))), Ok(()));
    assert!(matches!(ok(|s| s.qps = MAX_QPS), Err(SpecError::Memory(_))));
    assert!(ok(|s| s.qps = 0).is_err());
    assert!(ok(|s| s.qps = MAX_QPS + 1).is_err());
    assert_eq!(ok(|s| s.mtu = 9000), Ok(()));
    assert!(ok(|s| s.mtu = 9001).is_err());
    assert!(ok(|s| s.mtu = 575).is_err());
    assert!(ok(|s| s.depth = Some(0)).is_err());
    assert!(ok(|s| s.until = Until::Iters(0)).is_err());
    assert!(ok(|s| s.until = Until::Elapsed(Duration::from_micros(999))).is_err());
    assert!(ok(|s| s.depth = Some(MAX_DEPTH + 1)).is_err());
    assert_eq!(ok(|s| (s.depth, s.qps) = (Some(4096), 2)), Ok(()), "4 times 256 MiB");
    assert_eq!(
        ok(|s| (s.depth, s.qps) = (Some(4096), 3)),
        Err(SpecError::Memory(6 << 28)),
        "6 times 256 MiB"
    );
}

#[test]
fn test_default_depth_follows_from_outstanding_bytes() {
    let depth = |outstanding, qps, size| {
        BenchSpec { outstanding, qps, ..BenchSpec::default() }.depth_for(Size(size))
    };
    assert_eq!(depth(1 << 20, 1, 64 << 10), 16);
    assert_eq!(depth(256 << 10, 1, 64 << 10), 4);
    assert_eq!(depth(1 << 20, 2, 64 << 10), 8, "over all connections");
    assert_eq!([depth(1 << 20, 1, 0), depth(1 << 20, 64, 1 << 20)], [128, 4], "limits");
    let given = BenchSpec { depth: Some(7), ..BenchSpec::default() };
    assert_eq!(given.depth_for(Size(64 << 10)), 7);
    let lat = BenchSpec { mode: Mode::Lat, ..BenchSpec::default() };
    assert_eq!(lat.depth_for(Size(8)), 1);
}

#[test]
fn test_check_refuses_conflicting_options() {
    let mut s = BenchSpec { mode: Mode::Lat, sizes: Sizes::one(Size(0)), ..Default::default() };
    assert!(matches!(s.check(), Err(SpecError::Conflict(_))), "write lat of nothing");
    s.op = Op::Send;
    assert_eq!(s.check(), Ok(()));
    s.verify = true;
    assert!(matches!(s.check(), Err(SpecError::Conflict(_))), "verify of nothing");
    s.verify = false;
    s.depth = Some(2);
    assert!(matches!(s.check(), Err(SpecError::Conflict(_))), "lat with depth");
}

#[test]
fn test_rate_parses_operations_bytes_and_bits() {
    let ops = |s: &str| s.parse::<Rate>().map(|r| r.ops(Size(1000)));
    assert_eq!(ops("5"), Ok(5.0));
    assert_eq!((ops("2.5k"), ops("3Mop/s"), ops("1Gop")), (Ok(2500.0), Ok(3e6), Ok(1e9)));
    assert_eq!((ops("1MB/s"), ops("8Mbit/s"), ops("8kbit")), (Ok(1e3), Ok(1e3), Ok(1.0)));
    let bad =
        ["", "-5", "+5", "1e3", "inf", "nan", "0", "0.0", ".", "1..2", "5 k", "5T", "5kb", "B/s"];
    for s in bad {
        assert!(s.parse::<Rate>().is_err(), "{s}");
    }
    assert!("9".repeat(400).parse::<Rate>().is_err(), "infinite");
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn test_check_refuses_rates_and_times_that_cannot_be() {
    let check = |f: fn(&mut BenchSpec)| {
        let mut s = BenchSpec { sizes: Sizes::one(Size(8)), ..BenchSpec::default() };
        f(&mut s);
        s.check()
    };
    assert_eq!(check(|s| (s.rate, s.interval) = (Some(Rate::Ops(1.0)), Some(ms(500)))), Ok(()));
    assert!(check(|s| (s.rate, s.qps) = (Some(Rate::Ops(1.0)), 11)).is_err(), "too low");
    assert!(check(|s| s.rate = Some(Rate::Bytes(1e12))).is_err(), "too high");
    let empty = |s: &mut BenchSpec| {
        (s.rate, s.sizes) = (Some(Rate::Bytes(1e3)), Sizes::one(Size(0)));
    };
    assert!(check(empty).is_err(), "bytes of empty messages");
    assert!(check(|s| s.interval = Some(ms(9))).is_err());
    assert!(check(|s| s.interval = Some(ms(2001))).is_err(), "beyond the duration");
    assert!(check(|s| s.half = true).is_err(), "half of a throughput");
    assert!(check(|s| (s.until, s.warmup) = (Until::Iters(5), Some(ms(1)))).is_err());
    let long = |s: &mut BenchSpec| {
        (s.until, s.interval) = (Until::Elapsed(Duration::from_secs(86_400)), Some(ms(10)));
    };
    assert!(check(long).is_err(), "too many intervals");
}

#[test]
fn test_both_directions_are_of_writes_and_reads_without_schedule_and_verification() {
    let check = |change: &dyn Fn(&mut BenchSpec)| {
        let mut s = BenchSpec { bidirectional: true, ..BenchSpec::default() };
        change(&mut s);
        s.check()
    };
    assert_eq!(check(&|_| ()), Ok(()));
    assert_eq!(check(&|s| (s.op, s.mode) = (Op::Read, Mode::Rate)), Ok(()));
    let wrong: [&dyn Fn(&mut BenchSpec); 7] = [
        &|s| s.op = Op::Send,
        &|s| (s.op, s.sizes) = (Op::FetchAdd, Sizes::one(Size(8))),
        &|s| s.mode = Mode::Lat,
        &|s| s.verify = true,
        &|s| s.rate = Some(Rate::Ops(1e3)),
        &|s| s.peer = Peer::Perftest,
        &|s| s.sizes = Sizes::one(Size(0)),
    ];
    for (n, change) in wrong.iter().enumerate() {
        let e = check(*change).expect_err("it has one direction").to_string();
        assert!(e.contains("--bidirectional"), "{n}: {e}");
    }
    // The slots of both directions count.
    let large = |s: &mut BenchSpec| (s.sizes, s.depth) = (Sizes::one(Size(64 << 20)), Some(5));
    assert!(matches!(check(&large), Err(SpecError::Memory(_))));
}

#[test]
fn test_only_atomics_and_immediate_data_require_eight_bytes() {
    for op in Op::ALL {
        let of = |size| BenchSpec { op, sizes: Sizes::one(Size(size)), ..Default::default() };
        assert_eq!(of(8).check(), Ok(()), "{op}");
        let fixed = matches!(op, Op::SendImm | Op::FetchAdd | Op::CmpSwap);
        for size in [0, 4, 16, 64 << 10] {
            let e = of(size).check();
            assert_eq!(matches!(e, Err(SpecError::Conflict(_))), fixed, "{op} {size}: {e:?}");
        }
        assert_eq!(op.to_string().parse::<Op>(), Ok(op));
    }
}

proptest! {
    #[test]
    fn test_size_display_parses_back(n in any::<u32>(), shift in 0u32..32) {
        let s = Size(n >> shift << shift);
        prop_assert_eq!(s.to_string().parse::<Size>(), Ok(s));
    }

    #[test]
    fn test_parsers_never_panic(s in "\\PC{0,12}") {
        let _ = (s.parse::<Size>(), s.parse::<Sizes>(), s.parse::<Span>(), s.parse::<Probability>());
    }
}
