use super::*;
use crate::ddp::{DdpHeader, Qn};
use crate::types::Msn;
use heddle_types::{Stag, TermCode};
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
fn test_control_byte_has_version_in_high_bits_and_opcode_in_low_bits() {
    assert_eq!(Control::new(Opcode::SEND).to_byte(), 0x43);
    assert_eq!(Control::new(Opcode::WRITE).to_byte(), 0x40);
    assert_eq!(Control::from_byte(0x73), Control::new(Opcode::SEND), "reserved bits ignored");
}

#[test]
fn test_check_accepts_each_opcode_only_on_its_queue_of_figure_4() {
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
            let want = if let Some(qn @ Qn(4)) = place {
                Err(ControlError::Queue(qn))
            } else if value > 11 {
                Err(ControlError::UnknownOpcode(opcode))
            } else if place == rule(opcode) {
                Ok(Control::new(opcode))
            } else {
                Err(ControlError::Misplaced { opcode, queue: place })
            };
            assert_eq!(Control::check(&h), want, "{opcode} at {place:?}");
        }
    }
}

#[test]
fn test_check_accepts_only_the_ietf_version() {
    for v in 0..4u8 {
        let got = Control::check(&untagged(Qn::SEND, v << 6 | 3));
        if v == 1 {
            assert_eq!(got, Ok(Control::new(Opcode::SEND)));
        } else {
            assert_eq!(got, Err(ControlError::Version(Version(v))));
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
fn test_read_request_matches_layout_of_figure_6() {
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
        assert_eq!(ReadRequest::parse(&vec![0; have]), Err(ReadRequestError { have }));
    }
}

#[test]
fn test_terminate_control_field_holds_layer_type_code_and_bits() {
    let mut out = [0xee; TERMINATE_MAX_LEN];
    let t = Terminate::new(TermCode::new(0x1, 0x2, 0x05));
    assert_eq!(t.emit(&mut out), 4);
    assert_eq!(out[..4], [0x12, 0x05, 0, 0]);
    let t = Terminate { segment_len: Some(0x0506), ..t };
    assert_eq!(t.emit(&mut out), 6);
    assert_eq!(out[..6], [0x12, 0x05, 0x80, 0, 0x05, 0x06]);
}

/// A Terminate about a Read Request of 46 bytes, with all three headers, and the segment of that
/// Read Request.
fn full() -> (Terminate, Vec<u8>) {
    let rr = segment(untagged(Qn::READ_REQUEST, 0x41), &request().emit());
    let t = Terminate {
        segment_len: Some(46),
        ddp: CopiedHeader::of_segment(&rr),
        read_request: Some(request()),
        ..Terminate::new(TermCode::new(0, 1, 2))
    };
    (t, rr)
}

#[test]
fn test_terminate_headers_follow_control_field_in_order_of_figure_7() {
    let (t, rr) = full();
    let mut out = [0; TERMINATE_MAX_LEN];
    assert_eq!(t.emit(&mut out), TERMINATE_MAX_LEN);
    assert_eq!(out[..6], [0x01, 0x02, 0xe0, 0, 0, 46]);
    assert_eq!(out[6..], rr);
    let write = segment(tagged(0x40), b"hello");
    let t = Terminate { ddp: CopiedHeader::of_segment(&write), read_request: None, ..t };
    assert_eq!(t.emit(&mut out), 20);
    assert_eq!(out[..6], [0x01, 0x02, 0xc0, 0, 0, 46]);
    assert_eq!(out[6..20], write[..14]);
}

#[test]
fn test_terminate_segment_is_the_first_and_only_message_of_queue_2() {
    let (t, _) = full();
    let mut body = [0; TERMINATE_MAX_LEN];
    t.emit(&mut body);
    let segment = t.segment();
    assert_eq!(segment.len(), 70);
    // Untagged, last, DDP version 1; RDMAP version 1, opcode 7; queue 2, MSN 1, offset 0.
    assert_eq!(segment[..18], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(segment[18..], body);
    let short = Terminate::new(TermCode::new(2, 0, 6)).segment();
    assert_eq!(short[..18], segment[..18]);
    assert_eq!(short[18..], [0x20, 6, 0, 0]);
}

#[test]
fn test_copied_header_of_a_segment_is_as_long_as_its_kind() {
    let rr = segment(untagged(Qn::READ_REQUEST, 0x41), &[]);
    let write = segment(tagged(0x40), &[]);
    for whole in [rr, write] {
        let copied = CopiedHeader::of_segment(&whole).unwrap();
        assert_eq!(copied.as_bytes(), whole);
        for n in 0..whole.len() {
            assert_eq!(CopiedHeader::of_segment(&whole[..n]), None);
        }
    }
}

#[test]
fn test_terminate_of_siw_is_parsed_by_its_own_layout() {
    // Layer 1, type 2, code 2 with M and D, as siw on x86 writes it.
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

/// A cut Terminate keeps everything that is complete: always the error code, and any header before
/// the cut.
#[test]
fn test_truncated_terminate_keeps_its_code_and_complete_headers() {
    let (whole, _) = full();
    let mut out = [0; TERMINATE_MAX_LEN];
    let n = whole.emit(&mut out);
    for have in 0..n {
        let want = if have < 4 {
            TerminateError::Short { have }
        } else {
            let read = Terminate {
                segment_len: whole.segment_len.filter(|_| have >= 6),
                ddp: whole.ddp.filter(|_| have >= 24),
                read_request: None,
                ..whole
            };
            TerminateError::Truncated { read, have }
        };
        assert_eq!(Terminate::parse(&out[..have]), Err(want));
    }
}

/// RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8.
#[test]
fn test_term_codes_match_the_numbers_of_the_rfcs() {
    let table: &[(u8, u8, u8, &str)] = &[
        (0, 0, 0x00, "RDMAP: local catastrophic error"),
        (0, 1, 0x00, "RDMAP: invalid STag"),
        (0, 1, 0x01, "RDMAP: base or bounds violation"),
        (0, 1, 0x02, "RDMAP: access rights violation"),
        (0, 1, 0x03, "RDMAP: STag not associated with this stream"),
        (0, 1, 0x04, "RDMAP: tagged offset wraps"),
        (0, 1, 0x09, "RDMAP: STag cannot be invalidated"),
        (0, 1, 0xff, "RDMAP: unspecified protection error"),
        (0, 2, 0x05, "RDMAP: invalid version"),
        (0, 2, 0x06, "RDMAP: unexpected opcode"),
        (0, 2, 0x07, "RDMAP: catastrophic error of this stream"),
        (0, 2, 0x08, "RDMAP: catastrophic error, global"),
        (0, 2, 0x09, "RDMAP: STag cannot be invalidated (operation)"),
        (0, 2, 0xff, "RDMAP: unspecified operation error"),
        (1, 0, 0x00, "DDP: local catastrophic error"),
        (1, 1, 0x00, "DDP: invalid STag"),
        (1, 1, 0x01, "DDP: base or bounds violation"),
        (1, 1, 0x02, "DDP: STag not associated with this stream"),
        (1, 1, 0x03, "DDP: tagged offset wraps"),
        (1, 1, 0x04, "DDP: invalid version in a tagged segment"),
        (1, 2, 0x01, "DDP: invalid queue number"),
        (1, 2, 0x02, "DDP: invalid MSN, no buffer available"),
        (1, 2, 0x03, "DDP: invalid MSN, out of range"),
        (1, 2, 0x04, "DDP: invalid message offset"),
        (1, 2, 0x05, "DDP: message too long for its buffer"),
        (1, 2, 0x06, "DDP: invalid version in an untagged segment"),
        (2, 0, 0x01, "MPA: TCP connection closed or lost"),
        (2, 0, 0x02, "MPA: CRC mismatch"),
        (2, 0, 0x03, "MPA: marker and ULPDU length disagree"),
        (2, 0, 0x04, "MPA: invalid request or reply frame"),
        (2, 0, 0x05, "MPA: local catastrophic error"),
        (2, 0, 0x06, "MPA: insufficient IRD resources"),
        (2, 0, 0x07, "MPA: no matching RTR option"),
    ];
    let named: Vec<_> =
        TermCode::ALL.iter().map(|c| (c.layer, c.etype, c.code, c.name().unwrap())).collect();
    assert_eq!(named, table);
    let mut names: Vec<_> = named.iter().map(|(.., name)| name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table.len());
    // A local catastrophic error of RDMAP has no code, so every value has the same name.
    assert_eq!(TermCode::new(0, 0, 77).name(), Some("RDMAP: local catastrophic error"));
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
    assert_eq!(c.to_string(), "an error of an unknown layer (0xe/0xd/0x0c)");
    assert_eq!(TermCode::MPA_CRC.to_string(), "MPA: CRC mismatch (0x2/0x0/0x02)");
}

proptest! {
    #[test]
    fn test_read_request_parses_back_as_it_was_emitted(
        sink_stag: u32,
        sink_to: u64,
        size: u32,
        src_stag: u32,
        src_to: u64,
    ) {
        let r = ReadRequest { sink_stag: Stag(sink_stag), sink_to, size, src_stag: Stag(src_stag), src_to };
        prop_assert_eq!(ReadRequest::parse(&r.emit()), Ok(r));
    }

    #[test]
    fn test_terminate_parses_back_as_it_was_emitted(
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
            // The payload is only the control field, and only siw's reading of its code is defined.
            prop_assert!(n == 4 && t.code.name().is_none() && got.code.name().is_some());
        } else {
            prop_assert_eq!(got, t);
        }
    }

    #[test]
    fn test_terminate_parser_returns_for_any_bytes(b in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(t) = Terminate::parse(&b) {
            let _ = format!("{t:?}");
            prop_assert!(t.emit(&mut [0; TERMINATE_MAX_LEN]) <= TERMINATE_MAX_LEN);
        }
    }

    #[test]
    fn test_control_byte_keeps_all_but_its_reserved_bits(b: u8) {
        let c = Control::from_byte(b);
        prop_assert_eq!(c.to_byte(), b & 0xcf);
        let _ = format!("{c:?} {}", c.opcode);
    }
}

#[test]
fn test_term_code_prints_layer_and_error_in_words_with_numbers() {
    for (code, text) in [
        (TermCode::RDMAP_BOUNDS, "RDMAP: base or bounds violation (0x0/0x1/0x01)"),
        (TermCode::new(0, 1, 0x77), "RDMAP: a protection error without a name (0x0/0x1/0x77)"),
        (TermCode::new(1, 2, 9), "DDP: an untagged buffer error without a name (0x1/0x2/0x09)"),
        (TermCode::new(2, 0, 99), "MPA: an error without a name (0x2/0x0/0x63)"),
    ] {
        assert_eq!(code.to_string(), text);
        let status = heddle_types::CqeStatus::RemoteOperation(code);
        assert_eq!(status.to_string(), format!("terminated by the peer: {text}"));
    }
}
