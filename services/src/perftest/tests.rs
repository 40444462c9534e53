use super::wire::{Dest, Outcome, Question, Report, Unknown};
use super::*;

#[test]
fn test_perftest_program_names_have_verb_and_kind() {
    let names = Program::ALL.map(Program::name);
    assert_eq!(names[0], "ib_write_bw");
    for name in names {
        let (verb, what) = name.strip_prefix("ib_").and_then(|n| n.split_once('_')).unwrap();
        assert!(["write", "read", "send"].contains(&verb) && ["bw", "lat"].contains(&what));
    }
}

/// The bytes that `ib_write_bw` of perftest 4.5 sent from an x86-64 machine.
#[test]
fn test_perftest_dest_bytes_match_reference() {
    let mut b = [0; Dest::LEN];
    b[4..24].copy_from_slice(b"\0\0\0\x01\0\0\0\x02\0\x01\xb5\x2c\xcc\xfc\xbb\x00\x3d\x7f\0\0");
    b[24..38].copy_from_slice(b"\0\0\x56\x18\x41\x90\xe0\0\x52\x54\0\xc4\x3d\x35");
    let dest = Dest { reads: 1, qpn: 2, stag: 0xccfc_bb00, to: 0x5618_4190_e000 };
    assert_eq!(Question::decode(&b), Ok(Question::Dest(dest)));
    let back = dest.encode();
    assert_eq!(Question::decode(&back), Ok(Question::Dest(dest)));
    // PSN, the field without meaning and the GID are ours to choose.
    assert_eq!((&back[..12], &back[16..20], &back[24..32]), (&b[..12], &b[16..20], &b[24..32]));
    assert!(Dest::default().is_empty() && !dest.is_empty());
}

#[test]
fn test_perftest_messages_are_distinguished_by_length() {
    for len in 0..=64 {
        let got = Question::decode(&vec![1; len]);
        match len {
            2 | 4 | 16 => assert_eq!(got, Ok(Question::Common)),
            8 => assert_eq!(got, Ok(Question::Report(0x0101_0101_0101_0101))),
            56 => assert!(matches!(got, Ok(Question::Dest(_)))),
            _ => assert_eq!(got, Err(Unknown(len))),
        }
    }
}

#[test]
fn test_perftest_report_is_five_numbers_and_may_repeat() {
    let mut report = Report::default();
    for size in [64, 128] {
        let (peak, average, rate) = (3.5f64, 2.5f64, 0.25f64);
        let numbers = [size, 1000, peak.to_bits(), average.to_bits(), rate.to_bits()];
        let told: Vec<_> = numbers.into_iter().map(|n| report.next(n)).collect();
        assert!(told[..4].iter().all(Option::is_none));
        assert_eq!(told[4], Some(Outcome { size, iterations: 1000, peak, average, rate }));
    }
}

#[test]
fn test_perftest_memory_size_follows_from_its_settings() {
    assert_eq!(Test::new(Program::WriteBw).memory(), 8 << 20);
    // The region that the client writes, and the source of our own Writes.
    assert_eq!(Test::new(Program::WriteLat).memory(), 4);
}
