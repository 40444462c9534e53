//! Tests of rejects, and of Terminates that end a start-up.

use super::*;
use heddle_types::mpa::CrcPolicy;

#[test]
fn test_reject_carries_private_data_and_leaves_later_bytes_to_caller() {
    for config in [v1(), v2()] {
        let mut bytes = asked(&config).reject(b"no", None).unwrap();
        assert_eq!(bytes[16] & 0x20, 0x20);
        let len = bytes.len();
        bytes.extend_from_slice(b"stream");
        let step = initiator(&config).handle_bytes(&bytes).unwrap();
        let InitiatorStep::Rejected { revision, private_data, peer, consumed } = step else {
            panic!("{step:?}")
        };
        assert_eq!((private_data, consumed), (b"no".to_vec(), len));
        assert_eq!((revision, peer.is_some()), (config.revision, revision == Revision::V2));
    }
}

/// A refusal sets R, and sets C if one of the two ends wants CRCs.
#[test]
fn test_reject_sets_crc_flag_if_either_side_requires_crc() {
    use CrcPolicy::{Off, Required};
    for (ours, theirs, flags) in
        [(Off, Off, 0x30), (Off, Required, 0x70), (Required, Off, 0x70), (Required, Required, 0x70)]
    {
        let config = ResponderConfig { crc: ours, ..Default::default() };
        let mut r = asked_of(&config, &InitiatorConfig { crc: theirs, ..v2() });
        assert_eq!(r.reject(b"", None).unwrap()[16], flags, "{ours:?} {theirs:?}");
    }
}

#[test]
fn test_reject_names_the_ord_needed() {
    for (ord, want) in [(Some(9), (5, 9)), (None, (5, 3))] {
        let bytes = asked(&v2()).reject(b"", ord).unwrap();
        let step = initiator(&v2()).handle_bytes(&bytes).unwrap();
        let InitiatorStep::Rejected { peer: Some(peer), .. } = step else { panic!("{step:?}") };
        assert_eq!(peer, enhanced(want.0, want.1, RtrSet::NONE));
    }
    assert_eq!(
        asked(&v2()).reject(b"", Some(0x3fff)).unwrap_err(),
        ConfigError::Depth { depth: 0x3fff }
    );
    // The reject states no numbers if the initiator stated none.
    let left = InitiatorConfig { depths: Depths::LeftToApplications, ..v2() };
    let bytes = asked(&left).reject(b"", Some(9)).unwrap();
    assert_eq!(bytes[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!(asked(&v1()).reject(b"", Some(9)).unwrap().len(), 20, "no field for it");
}

#[test]
fn test_initiator_reports_unenhanced_reject_as_reject() {
    let frame = Frame { reject: true, ..reply(None) };
    let step = initiator(&v2()).handle_bytes(&frame.emit().unwrap()).unwrap();
    assert!(matches!(step, InitiatorStep::Rejected { revision: Revision::V1, peer: None, .. }));
}

#[test]
fn test_initiator_frames_terminate_with_crc_and_markers_of_the_reply() {
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let config = InitiatorConfig { crc: CrcPolicy::Off, ..v2() };
        let mut i = initiator(&config);
        assert_eq!(i.terminate(TermCode::MPA_INSUFFICIENT_IRD), None, "nobody would understand");
        let frame = Frame { crc, markers, ..reply(Some(enhanced(5, 9, RtrSet::NONE))) };
        let e = i.handle_bytes(&frame.emit().unwrap()).unwrap_err();
        let StartupAction::Terminate(code) = action(e) else { panic!("{e:?}") };
        let bytes = i.terminate(code).unwrap();
        let mut fpdus = decode(&bytes, decode::Framing { crc, markers });
        let d = fpdus.next().unwrap();
        let (ddp, control) = d.headers().unwrap();
        assert_eq!(control.opcode, Opcode::TERMINATE);
        assert!(matches!(
            ddp,
            DdpHeader::Untagged { last: true, qn: Qn::TERMINATE, msn: Msn(1), mo: 0, .. }
        ));
        assert_eq!(Terminate::parse(d.payload()).unwrap(), Terminate::new(code));
        assert!(fpdus.next().is_none() && fpdus.rest().is_empty());
    }
}
