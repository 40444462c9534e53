use super::*;
use crate::ddp::{DdpHeader, Qn, TAGGED_LEN, UNTAGGED_LEN};
use crate::types::{Msn, Stag};
use proptest::prelude::*;

fn untagged(qn: Qn, rsvd_ulp: u8) -> DdpHeader {
    DdpHeader::Untagged { last: true, rsvd_ulp, rsvd_ulp32: 0, qn, msn: Msn(1), mo: 0 }
}

fn tagged(rsvd_ulp: u8) -> DdpHeader {
    DdpHeader::Tagged { last: true, rsvd_ulp, stag: Stag(0x1234_5600), to: 77 }
}

fn segment(h: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut b = vec![0; h.len()];
    h.emit(&mut b);
    b.extend_from_slice(payload);
    b
}

fn request() -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0x0102_0304),
        sink_to: 0x1112_1314_1516_1718,
        size: 0x2122_2324,
        src_stag: Stag(0x3132_3334),
        src_to: 0x4142_4344_4546_4748,
    }
}

#[test]
fn test_control_octet_has_version_on_top_and_opcode_below() {
    assert_eq!(Control::new(Opcode::SEND).to_byte(), 0x43);
    assert_eq!(Control::new(Opcode::WRITE).to_byte(), 0x40);
    assert_eq!(Control::from_byte(0x73), Control::new(Opcode::SEND), "reserved bits ignored");
}

#[test]
fn test_check_takes_each_opcode_only_where_figure_4_has_it() {
    use Opcode as O;
    let queues = [Qn::SEND, Qn::READ_REQUEST, Qn::TERMINATE, Qn::ATOMIC_RESPONSE, Qn(4)];
    let rule = |o: O| match o {
        O::WRITE | O::READ_RESPONSE => None,
        O::READ_REQUEST | O::ATOMIC_REQUEST => Some(Qn(1)),
        O::TERMINATE => Some(Qn(2)),
        O::ATOMIC_RESPONSE => Some(Qn(3)),
        _ => Some(Qn(0)),
    };
    for value in 0..16 {
        let opcode = Opcode(value);
        let byte = Control::new(opcode).to_byte();
        let places = queues.iter().map(|q| Some(*q)).chain([None]);
        for place in places {
            let h = place.map_or(tagged(byte), |q| untagged(q, byte));
            let want = if value > 11 {
                Err(ControlError::UnknownOpcode(opcode))
            } else if place == rule(opcode) {
                Ok(Control::new(opcode))
            } else {
                Err(ControlError::Misplaced { opcode, queue: place })
            };
            assert_eq!(Control::check(&h), want, "{opcode} at {place:?}");
            if let Err(e) = want {
                assert_eq!(e.term_code(), TermCode::RDMAP_OPCODE);
            }
        }
    }
}

#[test]
fn test_check_takes_both_valid_versions_and_no_other() {
    for v in 0..4u8 {
        let got = Control::check(&untagged(Qn::SEND, v << 6 | 3));
        if v < 2 {
            assert_eq!(got, Ok(Control { version: Version(v), opcode: Opcode::SEND }));
        } else {
            let e = ControlError::Version(Version(v));
            assert_eq!(got, Err(e));
            assert_eq!(e.term_code(), TermCode::RDMAP_VERSION);
        }
    }
}

#[test]
fn test_opcode_properties_follow_the_names() {
    for (o, send, inv, se) in [
        (Opcode::SEND, true, false, false),
        (Opcode::SEND_INV, true, true, false),
        (Opcode::SEND_SE, true, false, true),
        (Opcode::SEND_SE_INV, true, true, true),
        (Opcode::IMMEDIATE_SE, false, false, true),
        (Opcode::IMMEDIATE, false, false, false),
        (Opcode::WRITE, false, false, false),
    ] {
        assert_eq!((o.is_send(), o.invalidates(), o.is_solicited()), (send, inv, se), "{o}");
    }
    assert!(Opcode::READ_RESPONSE.is_tagged() && !Opcode::SEND.is_tagged());
    assert_eq!(format!("{} {:?}", Opcode::SEND_SE_INV, Opcode(13)), "SendSeInv Opcode(0xd)");
}

#[test]
fn test_read_request_bytes_are_where_figure_6_has_them() {
    let b = request().emit();
    assert_eq!(
        b,
        *b"\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\
           \x31\x32\x33\x34\x41\x42\x43\x44\x45\x46\x47\x48"
    );
    assert_eq!(ReadRequest::parse(&b), Ok(request()));
}

#[test]
fn test_read_request_of_another_length_is_refused() {
    for have in [0, 27, 29] {
        let e = ReadRequestError { have };
        assert_eq!(ReadRequest::parse(&vec![0; have]), Err(e));
        assert_eq!(e.term_code(), TermCode::RDMAP_STREAM_CATASTROPHIC);
    }
}

#[test]
fn test_terminate_control_field_is_layer_type_code_bits() {
    let mut out = [0xee; TERMINATE_MAX_LEN];
    let t = Terminate::new(TermCode::new(0x1, 0x2, 0x05));
    assert_eq!(t.emit(&mut out), 4);
    assert_eq!(out[..4], [0x12, 0x05, 0, 0]);
    let t = Terminate { segment_len: Some(0x0506), ..t };
    assert_eq!(t.emit(&mut out), 6);
    assert_eq!(out[..6], [0x12, 0x05, 0x80, 0, 0x05, 0x06]);
}

#[test]
fn test_terminate_for_a_segment_repeats_what_figure_10_says() {
    let rr = segment(untagged(Qn::READ_REQUEST, 0x41), &request().emit());
    let write = segment(tagged(0x40), b"hello");
    let send_inv = segment(untagged(Qn::SEND, 0x44), &[7; 40]);
    let mut out = [0; TERMINATE_MAX_LEN];

    let t = Terminate::for_segment(TermCode::RDMAP_ACCESS, &rr);
    assert_eq!(t.segment_len, Some(46));
    assert_eq!(t.ddp.map(|h| h.as_bytes().to_vec()), Some(rr[..UNTAGGED_LEN].to_vec()));
    assert_eq!(t.read_request, Some(request()));
    assert_eq!(t.emit(&mut out), TERMINATE_MAX_LEN);
    assert_eq!((out[0], out[2], &out[4..6]), (0x01, 0xe0, &[0, 46][..]));
    assert_eq!(out[6..], rr);

    let t = Terminate::for_segment(TermCode::RDMAP_CANNOT_INVALIDATE, &send_inv);
    assert!(t.ddp.is_some() && t.read_request.is_none(), "only Read Requests have an RDMAP header");

    let t = Terminate::for_segment(TermCode::RDMAP_OPCODE, &rr);
    assert!(t.ddp.is_some() && t.read_request.is_none());

    let t = Terminate::for_segment(TermCode::DDP_BOUNDS, &write);
    assert_eq!((t.segment_len, t.read_request), (Some(19), None));
    assert_eq!(t.ddp.unwrap().header(), Ok(tagged(0x40)));
    assert_eq!(t.emit(&mut out), 6 + TAGGED_LEN);

    for code in
        [TermCode::MPA_CRC, TermCode::RDMAP_LOCAL_CATASTROPHIC, TermCode::DDP_LOCAL_CATASTROPHIC]
    {
        assert_eq!(Terminate::for_segment(code, &rr), Terminate::new(code));
    }
}

#[test]
fn test_terminate_for_a_segment_without_its_headers_repeats_what_there_is() {
    let rr = segment(untagged(Qn::READ_REQUEST, 0x41), &request().emit());
    let t = Terminate::for_segment(TermCode::RDMAP_ACCESS, &rr[..rr.len() - 1]);
    assert!(t.ddp.is_some() && t.read_request.is_none());
    let t = Terminate::for_segment(TermCode::RDMAP_ACCESS, &rr[..UNTAGGED_LEN - 1]);
    assert_eq!(t, Terminate::new(TermCode::RDMAP_ACCESS));
    assert_eq!(Terminate::for_segment(TermCode::RDMAP_ACCESS, &[]), t);
}

#[test]
fn test_terminate_of_siw_is_read_by_its_own_layout() {
    // Layer 1, type 2, code 2 with M and D, as siw on x86 puts it.
    let mut b = vec![0x21, 0x02, 0x03, 0x00, 0x00, 0x2a];
    b.extend_from_slice(&segment(untagged(Qn::SEND, 0x43), &[]));
    let t = Terminate::parse(&b).unwrap();
    assert!(t.swapped);
    assert_eq!(t.code, TermCode::DDP_NO_BUFFER);
    assert_eq!(t.segment_len, Some(0x2a));
    assert_eq!(t.ddp.unwrap().header(), Ok(untagged(Qn::SEND, 0x43)));

    // An MPA CRC error repeats nothing; only one reading is a known code.
    let t = Terminate::parse(&[0x02, 0x02, 0x00, 0x00]).unwrap();
    assert_eq!((t.code, t.swapped), (TermCode::MPA_CRC, true));
    let t = Terminate::parse(&[0x20, 0x02, 0x00, 0x00]).unwrap();
    assert_eq!((t.code, t.swapped), (TermCode::MPA_CRC, false));
}

#[test]
fn test_terminate_reserved_bits_are_ignored_when_a_header_bit_is_set() {
    let t = Terminate::parse(&[0x12, 0x05, 0x9f, 0xff, 0x00, 0x10]).unwrap();
    assert_eq!((t.code, t.segment_len, t.swapped), (TermCode::DDP_TOO_LONG, Some(16), false));
}

#[test]
fn test_terminate_cut_anywhere_is_truncated_but_keeps_its_reason() {
    let rr = segment(untagged(Qn::READ_REQUEST, 0x41), &request().emit());
    let mut out = [0; TERMINATE_MAX_LEN];
    let n = Terminate::for_segment(TermCode::RDMAP_ACCESS, &rr).emit(&mut out);
    for have in 0..n {
        let want = if have < 4 {
            TerminateError::Short { have }
        } else {
            TerminateError::Truncated { code: TermCode::RDMAP_ACCESS, have }
        };
        assert_eq!(Terminate::parse(&out[..have]), Err(want));
    }
}

#[test]
fn test_term_codes_have_distinct_values_and_names() {
    let mut values: Vec<_> = TermCode::ALL.iter().map(|c| (c.layer, c.etype, c.code)).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values.len(), TermCode::ALL.len());
    let mut names: Vec<_> = TermCode::ALL.iter().map(|c| c.name().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TermCode::ALL.len());
}

#[test]
fn test_term_code_of_the_draft_means_the_same_as_the_rfc() {
    for code in 1..=7 {
        let draft = TermCode::new(2, 3, code);
        assert_eq!(draft.canonical(), TermCode::new(2, 0, code));
        assert_eq!(draft.name(), draft.canonical().name());
        assert!(draft.name().is_some());
    }
    assert_eq!(TermCode::DDP_BOUNDS.canonical(), TermCode::DDP_BOUNDS);
}

#[test]
fn test_unknown_term_code_prints_its_numbers() {
    let c = TermCode::new(0xe, 0xd, 0x0c);
    assert_eq!(c.to_string(), "unknown error (0xe/0xd/0x0c)");
    assert_eq!(TermCode::MPA_CRC.to_string(), "MPA: CRC mismatch (0x2/0x0/0x02)");
}

proptest! {
    #[test]
    fn test_read_request_round_trip(sink_stag: u32, sink_to: u64, size: u32, src_stag: u32, src_to: u64) {
        let r = ReadRequest { sink_stag: Stag(sink_stag), sink_to, size, src_stag: Stag(src_stag), src_to };
        prop_assert_eq!(ReadRequest::parse(&r.emit()), Ok(r));
    }

    #[test]
    fn test_terminate_round_trip(
        layer in 0u8..16, etype in 0u8..16, code: u8,
        len: Option<u16>, ddp in proptest::option::of(any::<[u8; 18]>()), rr in proptest::option::of(any::<[u8; 28]>()),
    ) {
        let t = Terminate {
            code: TermCode::new(layer, etype, code),
            segment_len: len,
            ddp: ddp.and_then(|b| CopiedHeader::of_segment(&b)),
            read_request: rr.map(|b| ReadRequest::parse(&b).unwrap()),
            swapped: false,
        };
        let mut out = [0; TERMINATE_MAX_LEN];
        let n = t.emit(&mut out);
        let got = Terminate::parse(&out[..n]).unwrap();
        if got.swapped {
            // Nothing but the code is there, and only siw's reading of it means something.
            prop_assert!(n == 4 && t.code.name().is_none() && got.code.name().is_some());
        } else {
            prop_assert_eq!(got, t);
        }
    }

    #[test]
    fn test_terminate_parse_of_any_bytes_returns(b in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(t) = Terminate::parse(&b) {
            let _ = format!("{t:?}");
            prop_assert!(t.emit(&mut [0; TERMINATE_MAX_LEN]) <= TERMINATE_MAX_LEN);
        }
    }

    #[test]
    fn test_control_of_any_octet_survives_but_for_reserved_bits(b: u8) {
        let c = Control::from_byte(b);
        prop_assert_eq!(c.to_byte(), b & 0xcf);
        let _ = format!("{c:?} {}", c.opcode);
    }
}
