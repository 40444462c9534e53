use super::*;
use proptest::prelude::*;

fn size(s: &str) -> Option<u32> {
    s.parse::<Size>().ok().map(|s| s.0)
}

#[test]
fn test_size_parser_accepts_units_and_refuses_malformed_text() {
    assert_eq!(
        ["0", "1", "4096", "64K", "64k", "1M", "3G"].map(size),
        [Some(0), Some(1), Some(4096), Some(65536), Some(65536), Some(1 << 20), Some(3 << 30),]
    );
    for bad in ["", "K", "-1", "+1", "1.5K", "64KB", "4G", "4294967296", "1 K", "0x10", "é"] {
        assert_eq!(size(bad), None, "{bad:?}");
    }
    assert_eq!(size("4294967295"), Some(u32::MAX));
}

#[test]
fn test_sizes_are_the_powers_of_two() {
    let of = |s: &str| s.parse::<Sizes>().map(|s| s.iter().map(|s| s.0).collect::<Vec<_>>());
    assert_eq!(of("1..16"), Ok(vec![1, 2, 4, 8, 16]));
    assert_eq!(of("64K..64K"), Ok(vec![65536]));
    assert_eq!(of("100"), Ok(vec![100]));
    assert_eq!(of("0"), Ok(vec![0]));
    assert_eq!(of("1G..2G"), Ok(vec![1 << 30, 1 << 31]));
    for bad in ["0..16", "1..", "..1", "16..1", "3..8", "1..9", "1...8"] {
        assert!(of(bad).is_err(), "{bad}");
    }
}

#[test]
fn test_span_needs_a_unit() {
    let of = |s: &str| s.parse::<Span>().ok().map(|s| s.0);
    assert_eq!(of("10s"), Some(Duration::from_secs(10)));
    assert_eq!(of("500ms"), Some(Duration::from_millis(500)));
    assert_eq!(of("2m"), Some(Duration::from_secs(120)));
    assert_eq!(of("7us"), Some(Duration::from_micros(7)));
    for bad in ["", "10", "s", "1h", "1.5s", "-1s", "99999999999s"] {
        assert_eq!(of(bad), None, "{bad}");
    }
}

#[test]
fn test_probability_in_both_notations() {
    let of = |s: &str| s.parse::<Probability>().ok().map(Probability::get);
    assert_eq!(
        [of("0"), of("0.25"), of("1"), of("1%"), of("100%")],
        [Some(0.0), Some(0.25), Some(1.0), Some(0.01), Some(1.0)]
    );
    for bad in ["", "%", "1.01", "-0.1", "101%", "nan", "inf"] {
        assert_eq!(of(bad), None, "{bad}");
    }
}

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
    assert_eq!(ok(|s| s.qps = MAX_QPS), Ok(()));
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
