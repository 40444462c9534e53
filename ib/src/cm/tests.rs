use heddle_types::ib::RejReason;
use proptest::prelude::*;

use super::*;
use crate::gid::Gid;
use crate::types::{CommId, Psn, Qpn, ServiceId, TimeCode};

const GID: fn(u8) -> Gid = |n| Gid([n; 16]);

fn path(n: u8) -> Path {
    Path {
        local_lid: 0x1111,
        remote_lid: 0x2222,
        local_gid: GID(n),
        remote_gid: GID(n + 1),
        flow_label: 0xabcde,
        packet_rate: 0x2a,
        traffic_class: 0x33,
        hop_limit: 0x40,
        sl: 5,
        subnet_local: true,
        ack_timeout: TimeCode::new(18),
    }
}

/// Returns a REQ in which every field has another value.
fn req() -> Req {
    Req {
        local_comm_id: CommId(0x0102_0304),
        vendor_id: 0x05_0607,
        service_id: ServiceId(0x0000_0000_0106_1c06),
        local_ca_guid: 0x1122_3344_5566_7788,
        local_q_key: 0x0a0b_0c0d,
        local_qpn: Qpn::new(0x12_3456),
        responder_resources: 0x10,
        local_eecn: 0x77_8899,
        initiator_depth: 0x20,
        remote_eecn: 0xaa_bbcc,
        remote_cm_response_timeout: TimeCode::new(20),
        transport: Transport::UC,
        flow_control: true,
        starting_psn: Psn::new(0x65_4321),
        local_cm_response_timeout: TimeCode::new(21),
        retry_count: 6,
        p_key: 0xffff,
        path_mtu: 5,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 2,
        primary: path(0x50),
        alternate: Path::default(),
        private_data: [0xee; 92],
    }
}

fn of(message: Message) -> [u8; 256] {
    Mad::new(0x0123_4567_89ab_cdef, message).emit()
}

#[test]
fn test_mad_header_matches_expected_bytes() {
    let mut mad = Mad::new(0x0123_4567_89ab_cdef, Message::Req(Box::new(req())));
    mad.modifier = 0xcafe_f00d;
    let want = [
        1, 7, 2, 3, 0, 0, 0, 0, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 0x10, 0, 0,
        0xca, 0xfe, 0xf0, 0x0d,
    ];
    assert_eq!(mad.emit()[..24], want);
    assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
}

#[test]
fn test_req_matches_expected_bytes() {
    let mad = of(Message::Req(Box::new(req())));
    let d = &mad[24..];
    #[rustfmt::skip]
    let head = [
        1, 2, 3, 4,                     0, 5, 6, 7,
        0, 0, 0, 0, 1, 6, 0x1c, 6,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0,                     0x0a, 0x0b, 0x0c, 0x0d,
        0x12, 0x34, 0x56, 0x10,         0x77, 0x88, 0x99, 0x20,
        0xaa, 0xbb, 0xcc, 20 << 3 | 1 << 1 | 1,
        0x65, 0x43, 0x21, 21 << 3 | 6,
        0xff, 0xff, 5 << 4 | 7, 15 << 4 | 1 << 3 | 2,
    ];
    assert_eq!(d[..52], head);
    assert_eq!(d[52..56], [0x11, 0x11, 0x22, 0x22]);
    assert_eq!((&d[56..72], &d[72..88]), (&[0x50; 16][..], &[0x51; 16][..]));
    assert_eq!(d[88..96], [0xab, 0xcd, 0xe0, 0x2a, 0x33, 0x40, 5 << 4 | 8, 18 << 3]);
    assert_eq!((&d[96..140], &d[140..]), (&[0; 44][..], &[0xee; 92][..]));
}

#[test]
fn test_rep_matches_expected_bytes() {
    let rep = Rep {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        local_q_key: 3,
        local_qpn: Qpn::new(0x12_3456),
        vendor_id: 0xa1_b2c3,
        local_eecn: 4,
        starting_psn: Psn::new(0x65_4321),
        responder_resources: 0x10,
        initiator_depth: 0x20,
        target_ack_delay: TimeCode::new(15),
        failover: Failover::UNSUPPORTED,
        flow_control: true,
        rnr_retry_count: 6,
        srq: true,
        local_ca_guid: 0x1122_3344_5566_7788,
        private_data: [0xee; 196],
    };
    let mad = of(Message::Rep(Box::new(rep)));
    #[rustfmt::skip]
    let want = [
        0, 0, 0, 1,                     0, 0, 0, 2,
        0, 0, 0, 3,                     0x12, 0x34, 0x56, 0xa1,
        0, 0, 4, 0xb2,                  0x65, 0x43, 0x21, 0xc3,
        0x10, 0x20, 15 << 3 | 1 << 1 | 1, 6 << 5 | 1 << 4,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ];
    assert_eq!((mad[17], &mad[24..60], &mad[60..]), (0x13, &want[..], &[0xee; 196][..]));
}

#[test]
fn test_rej_matches_expected_bytes() {
    let mut ari = [0; 72];
    ari[..4].copy_from_slice(&[0, 6, 4, 0]);
    let rej = Rej {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        answered: Answered::OTHER,
        reason: RejReason::CONSUMER,
        ari_len: 72,
        ari,
        private_data: [0xee; 148],
    };
    assert_eq!(rej.ari(), ari);
    assert_eq!(Rej { ari_len: 3, ..rej.clone() }.ari(), &ari[..3]);
    assert_eq!(Rej { ari_len: 127, ..rej.clone() }.ari(), ari, "no more than there are");
    let mad = of(Message::Rej(Box::new(rej)));
    assert_eq!(mad[17], 0x12);
    assert_eq!(mad[24..40], [0, 0, 0, 1, 0, 0, 0, 2, 2 << 6, 72 << 1, 0, 28, 0, 6, 4, 0]);
    assert_eq!(mad[108..], [0xee; 148]);
}

#[test]
fn test_short_messages_match_expected_bytes() {
    let (local_comm_id, remote_comm_id) = (CommId(1), CommId(2));
    let ids = [0, 0, 0, 1, 0, 0, 0, 2];
    let mra = Mra {
        local_comm_id,
        remote_comm_id,
        answered: Answered::REP,
        service_timeout: TimeCode::new(24),
        private_data: [9; 222],
    };
    let rtu = Rtu { local_comm_id, remote_comm_id, private_data: [9; 224] };
    let remote_qpn = Qpn::new(0x12_3456);
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data: [9; 220] };
    let drep = Drep { local_comm_id, remote_comm_id, private_data: [9; 224] };
    let apr = Apr {
        local_comm_id,
        remote_comm_id,
        status: Apr::UNSUPPORTED,
        ari_len: 0,
        ari: [0; 72],
        private_data: [9; 148],
    };
    let table: [(u8, Message, &[u8], usize); 6] = [
        (0x11, Message::Mra(Box::new(mra)), &[1 << 6, 24 << 3], 222),
        (0x14, Message::Rtu(Box::new(rtu)), &[], 224),
        (0x15, Message::Dreq(Box::new(dreq)), &[0x12, 0x34, 0x56, 0], 220),
        (0x16, Message::Drep(Box::new(drep)), &[], 224),
        (0x19, Message::Lap(Lap { local_comm_id, remote_comm_id }), &[], 0),
        (0x1a, Message::Apr(Box::new(apr)), &[0, 2, 0, 0], 148),
    ];
    for (attribute, message, fields, private) in table {
        let mad = of(message);
        assert_eq!((mad[16], mad[17], &mad[24..32]), (0, attribute, &ids[..]));
        assert_eq!(&mad[32..32 + fields.len()], fields, "{attribute:#x}");
        assert!(mad[256 - private..].iter().all(|b| *b == 9), "{attribute:#x}");
        let before = &mad[32 + fields.len()..256 - private];
        assert!(before.iter().all(|b| *b == 0), "{attribute:#x}");
    }
}

#[test]
fn test_sidr_messages_match_expected_bytes() {
    let req = SidrReq {
        request_id: 0x0102_0304,
        p_key: 0xffff,
        service_id: ServiceId(0x0000_0000_0111_1c06),
        private_data: [9; 216],
    };
    let mut rep = SidrRep::refusal(&req, SidrStatus::UNSUPPORTED);
    let mad = of(Message::SidrReq(Box::new(req)));
    assert_eq!((mad[17], &mad[40..]), (0x17, &[9; 216][..]));
    assert_eq!(mad[24..40], [1, 2, 3, 4, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0x11, 0x1c, 6]);
    rep.vendor_id = 0xa1_b2c3;
    rep.qpn = Qpn::new(0x12_3456);
    rep.q_key = 0x0a0b_0c0d;
    rep.info_len = 1;
    rep.info[0] = 8;
    rep.private_data = [9; 136];
    let mad = of(Message::SidrRep(Box::new(rep)));
    #[rustfmt::skip]
    let want = [
        1, 2, 3, 4,                     1, 1, 0xa1, 0xb2,
        0x12, 0x34, 0x56, 0xc3,         0, 0, 0, 0, 1, 0x11, 0x1c, 6,
        0x0a, 0x0b, 0x0c, 0x0d,         8,
    ];
    assert_eq!((mad[17], &mad[24..49], &mad[120..]), (0x18, &want[..], &[9; 136][..]));
}

#[test]
fn test_class_port_info_matches_expected_bytes() {
    let redirect = Contact {
        gid: GID(7),
        class_sl_flow: 0x0102_0304,
        lid: 5,
        p_key: 0xffff,
        hop_limit: 0,
        qpn: Qpn::GSI,
        q_key: 0x8001_0000,
    };
    let trap = Contact { hop_limit: 64, ..redirect };
    let info = ClassPortInfo {
        base_version: 1,
        class_version: 2,
        capability_mask: ClassPortInfo::RC_CAPABLE | ClassPortInfo::SIDR_CAPABLE,
        capability_mask2: 1,
        response_time: TimeCode::new(18),
        redirect,
        trap,
    };
    let mad = of(Message::ClassPortInfo(Box::new(info)));
    assert_eq!((mad[3], mad[17], &mad[24..32]), (0x81, 1, &[1, 2, 0x22, 0, 0, 0, 0, 32 | 18][..]));
    assert_eq!(mad[48..64], [1, 2, 3, 4, 0, 5, 0xff, 0xff, 0, 0, 0, 1, 0x80, 1, 0, 0]);
    assert_eq!(mad[88..92], [64, 0, 0, 1]);
    assert!(mad[96..].iter().all(|b| *b == 0));
    assert_eq!(of(Message::GetClassPortInfo)[3], 1);
}

#[test]
fn test_parser_names_the_fault_of_mad_outside_the_cm_class() {
    let good = of(Message::GetClassPortInfo);
    assert!(Mad::parse(&good).is_ok());
    let table = [
        (0, 2, MadError::BaseVersion(2)),
        (1, 3, MadError::Class(3)),
        (2, 1, MadError::ClassVersion(1)),
        (3, 2, MadError::Attribute(1)),
        (3, 3, MadError::Attribute(1)),
        (3, 5, MadError::Method(5)),
        (16, 1, MadError::Attribute(0x101)),
        (17, 0x10, MadError::Attribute(0x10)),
    ];
    for (at, value, want) in table {
        let mut mad = good;
        mad[at] = value;
        assert_eq!(Mad::parse(&mad), Err(want));
    }
    for len in [0, 1, 255, 257] {
        let mad = vec![0; len];
        assert_eq!(Mad::parse(&mad), Err(MadError::Length(len)));
        assert_eq!(MadError::Length(len).answer(&mad), None);
    }
}

#[test]
fn test_mad_fault_is_answered_only_for_get_and_set() {
    let mut mad = of(Message::GetClassPortInfo);
    mad[17] = 0x10;
    for (error, status) in [
        (MadError::BaseVersion(2), 4),
        (MadError::ClassVersion(1), 4),
        (MadError::Method(4), 8),
        (MadError::Attribute(16), 12),
    ] {
        for method in [method::GET, method::SET] {
            mad[3] = method;
            let answer = error.answer(&mad).unwrap();
            assert_eq!((answer[3], &answer[4..6]), (0x81, &[0, status][..]));
            assert_eq!(answer[8..], mad[8..], "its own transaction, attribute and data");
        }
        for method in [0, 3, 5, 6, 7, 0x80, 0x81, 0x85] {
            mad[3] = method;
            assert_eq!(error.answer(&mad), None, "{method:#x}");
        }
    }
    mad[3] = method::GET;
    assert_eq!(MadError::Class(3).answer(&mad), None, "other classes are others'");
}

/// The reserved bits of each message's data: ranges of whole bytes, and masks of single bytes.
type Reserved = (&'static [(usize, usize)], &'static [(usize, u8)]);

fn reserved(attribute: u8) -> Reserved {
    match attribute {
        0x10 => (
            &[(4, 5), (24, 28)],
            &[
                (90, 0x0f),
                (91, 0xc0),
                (94, 0x07),
                (95, 0x07),
                (134, 0x0f),
                (135, 0xc0),
                (138, 0x07),
                (139, 0x07),
            ],
        ),
        0x11 => (&[], &[(8, 0x3f), (9, 0x07)]),
        0x12 => (&[], &[(8, 0x3f), (9, 0x01)]),
        0x13 => (&[], &[(27, 0x0f)]),
        0x15 => (&[(11, 12)], &[]),
        0x17 => (&[(6, 8)], &[]),
        0x19 => (&[(8, 232)], &[]),
        0x1a => (&[(10, 12)], &[]),
        _ => (&[], &[]),
    }
}

proptest! {
    /// The emitter writes every bit that is not reserved to the place from which the parser read
    /// it.
    #[test]
    fn test_message_is_emitted_as_it_was_parsed_for_any_bytes(
        attribute in 0x10u8..=0x1a,
        tid: u64,
        modifier: u32,
        bytes in prop::collection::vec(any::<u8>(), 232),
    ) {
        let mut mad = Mad { tid, modifier, message: Message::GetClassPortInfo }.emit();
        (mad[3], mad[17]) = (method::SEND, attribute);
        mad[24..].copy_from_slice(&bytes);
        let read = Mad::parse(&mad).unwrap();
        let (ranges, masks) = reserved(attribute);
        for (from, to) in ranges {
            mad[24..][*from..*to].fill(0);
        }
        for (at, mask) in masks {
            mad[24 + at] &= !mask;
        }
        prop_assert_eq!(read.emit(), mad);
    }

    #[test]
    fn test_class_port_info_is_emitted_as_it_was_parsed_for_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 72),
    ) {
        let mut mad = of(Message::GetClassPortInfo);
        mad[3] = method::GET_RESP;
        mad[24..96].copy_from_slice(&bytes);
        prop_assert_eq!(Mad::parse(&mad).unwrap().emit(), mad);
    }

    #[test]
    fn test_parser_returns_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 250..260)) {
        if let Err(e) = Mad::parse(&bytes) {
            let _ = e.answer(&bytes);
        }
    }
}
