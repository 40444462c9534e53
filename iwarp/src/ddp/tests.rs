use super::*;
use crate::types::Msn;
use heddle_types::Stag;
use proptest::prelude::*;

fn header() -> impl Strategy<Value = DdpHeader> {
    prop_oneof![
        any::<(bool, u8, u32, u64)>().prop_map(|(last, rsvd_ulp, stag, to)| DdpHeader::Tagged {
            last,
            rsvd_ulp,
            stag: Stag(stag),
            to
        }),
        any::<(bool, u8, u32, u32, u32, u32)>().prop_map(
            |(last, rsvd_ulp, rsvd_ulp32, qn, msn, mo)| DdpHeader::Untagged {
                last,
                rsvd_ulp,
                rsvd_ulp32,
                qn: Qn(qn),
                msn: Msn(msn),
                mo
            }
        ),
    ]
}

proptest! {
    #[test]
    fn test_ddp_header_parses_back_as_it_was_emitted(
        h in header(),
        payload in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut b = vec![0xee; h.len()];
        prop_assert_eq!(h.emit(&mut b), h.len());
        b.extend_from_slice(&payload);
        prop_assert_eq!(DdpHeader::parse(&b), Ok((h, h.len())));
    }

    #[test]
    fn test_ddp_parser_returns_for_any_bytes(b in proptest::collection::vec(any::<u8>(), 0..40)) {
        match DdpHeader::parse(&b) {
            Ok((h, n)) => {
                prop_assert_eq!(n, h.len());
                prop_assert!(n <= b.len());
            }
            Err(DdpError::Short { have, need }) => {
                prop_assert_eq!(have, b.len());
                prop_assert!(have < need);
            }
            Err(DdpError::Version { tagged, version }) => {
                prop_assert_ne!(version, VERSION);
                prop_assert_eq!((tagged, version), (b[0] & 0x80 != 0, b[0] & 3));
            }
        }
    }

    #[test]
    fn test_ddp_parser_ignores_reserved_bits(h in header(), bits in 0u8..16) {
        let mut b = vec![0; h.len()];
        h.emit(&mut b);
        prop_assert_eq!(b[0] & 0x3c, 0, "sent as zero");
        b[0] |= bits << 2;
        prop_assert_eq!(DdpHeader::parse(&b), Ok((h, h.len())));
    }
}

#[test]
fn test_tagged_header_matches_layout_of_figure_4() {
    let h = DdpHeader::Tagged {
        last: true,
        rsvd_ulp: 0x40,
        stag: Stag(0x0102_0304),
        to: 0x1112_1314_1516_1718,
    };
    let mut b = [0; TAGGED_LEN];
    h.emit(&mut b);
    assert_eq!(b, *b"\xc1\x40\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18");
    assert_eq!((h.is_last(), h.is_tagged(), h.rsvd_ulp()), (true, true, 0x40));
}

#[test]
fn test_untagged_header_matches_layout_of_figure_5() {
    let h = DdpHeader::Untagged {
        last: false,
        rsvd_ulp: 0x41,
        rsvd_ulp32: 0x0102_0304,
        qn: Qn(0x1112_1314),
        msn: Msn(0x2122_2324),
        mo: 0x3132_3334,
    };
    let mut b = [0; UNTAGGED_LEN];
    h.emit(&mut b);
    assert_eq!(b, *b"\x01\x41\x01\x02\x03\x04\x11\x12\x13\x14\x21\x22\x23\x24\x31\x32\x33\x34");
    assert_eq!((h.is_last(), h.is_tagged(), h.rsvd_ulp()), (false, false, 0x41));
}

#[test]
fn test_ddp_parser_refuses_header_one_byte_short() {
    for (control, need) in [(0xc1, TAGGED_LEN), (0x41, UNTAGGED_LEN)] {
        let mut b = vec![0; need];
        b[0] = control;
        assert!(DdpHeader::parse(&b).is_ok());
        b.pop();
        let e = DdpError::Short { have: need - 1, need };
        assert_eq!(DdpHeader::parse(&b), Err(e));
    }
    assert_eq!(DdpHeader::parse(b""), Err(DdpError::Short { have: 0, need: UNTAGGED_LEN }));
}

#[test]
fn test_ddp_parser_names_buffer_model_of_unknown_version() {
    for version in [0, 2, 3] {
        for tagged in [true, false] {
            let control = if tagged { 0xc0 } else { 0x40 } | version;
            let e = DdpError::Version { tagged, version };
            assert_eq!(DdpHeader::parse(&[control; 32]), Err(e));
        }
    }
}

#[test]
fn test_queue_number_prints_its_name_or_number() {
    assert_eq!(format!("{:?} {:?} {}", Qn::TERMINATE, Qn(77), Qn(77)), "Terminate Qn(77) 77");
}
