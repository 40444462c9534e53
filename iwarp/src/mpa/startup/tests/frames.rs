//! Tests of the bytes of start-up frames, and of the frames that an end refuses.

use super::*;
use heddle_types::mpa::{CrcPolicy, StartupError};

#[test]
fn test_request_of_revision_1_matches_bytes_of_figure_8() {
    let i = initiator(&InitiatorConfig { private_data: b"hi", ..v1() });
    assert_eq!(i.request(), bytes_of("4d504120 49442052 65712046 72616d65 40 01 0002 6869"));
    let i = initiator(&InitiatorConfig { crc: CrcPolicy::Off, ..v1() });
    assert_eq!(i.request(), bytes_of("4d504120 49442052 65712046 72616d65 00 01 0000"));
}

#[test]
fn test_request_of_revision_2_has_flags_and_depths_of_rfc_6581() {
    let rtr = RtrSet::of(Rtr::Write).with(RtrSet::of(Rtr::Read));
    let i = initiator(&InitiatorConfig { rtr, private_data: b"x", ..v2() });
    let key = "4d504120 49442052 65712046 72616d65";
    assert_eq!(i.request(), bytes_of(&format!("{key} 50 02 0005 8003 c005 78")));
    let i = initiator(&InitiatorConfig { rtr: RtrSet::of(Rtr::Send), ..v2() });
    assert_eq!(i.request(), bytes_of(&format!("{key} 50 02 0004 c003 0005")));
    let i = initiator(&v2());
    assert_eq!(i.request(), bytes_of(&format!("{key} 50 02 0004 0003 0005")), "A, B, C, D are 0");
}

/// Compares frames of a Linux siw that was built to ask for a first message.
#[test]
fn test_peer_to_peer_frames_match_those_of_siw() {
    let (w, r) = (RtrSet::of(Rtr::Write), RtrSet::of(Rtr::Read));
    for (rtr, request, reply) in [(w.with(r), "8001c001", "80018001"), (r, "80014001", "80014001")]
    {
        let config =
            InitiatorConfig { crc: CrcPolicy::Off, ird: 1, ord: 1, rtr, ..Default::default() };
        let mut i = initiator(&config);
        assert_eq!(
            i.request(),
            bytes_of(&format!("4d504120494420526571204672616d65 1002 0004 {request}"))
        );
        let reply = bytes_of(&format!("4d504120494420526570204672616d65 1002 0004 {reply}"));
        // siw accepts one first message, and prefers the Write.
        let offered = if rtr.has(Rtr::Write) { w } else { r };
        let siw = ResponderConfig { crc: CrcPolicy::Off, rtr: offered, ..Default::default() };
        assert_eq!(asked_of(&siw, &config).accept(&accept(1, 1)).unwrap().0, reply);
        let step = i.handle_bytes(&reply).unwrap();
        let InitiatorStep::Connected { negotiated: n, .. } = step else { panic!("{step:?}") };
        assert_eq!(n.rtr, offered.iter().next());
    }
}

#[test]
fn test_responder_ignores_reserved_bits_and_r_bit_of_request() {
    for bits in [0x20, 0x10, 0x08, 0x04, 0x02, 0x01, 0x3f] {
        let mut request = initiator(&v1()).request().to_vec();
        assert_eq!(request[16] & 0x3f, 0, "sent as zero");
        request[16] |= bits;
        let step = responder().handle_bytes(&request).unwrap();
        let ResponderStep::Request { peer, revision, .. } = step else { panic!("{step:?}") };
        assert_eq!((peer, revision), (None, Revision::V1), "S means nothing in revision 1");
    }
    let mut request = initiator(&v2()).request().to_vec();
    request[16] |= 0x2f;
    assert!(matches!(responder().handle_bytes(&request), Ok(ResponderStep::Request { .. })));
    let mut bytes = reply(Some(enhanced(5, 3, RtrSet::NONE))).emit().unwrap();
    bytes[16] |= 0x0f;
    assert!(matches!(initiator(&v2()).handle_bytes(&bytes), Ok(InitiatorStep::Connected { .. })));
}

#[test]
fn test_wrong_key_is_refused_at_its_first_wrong_byte() {
    let good = initiator(&v2()).request().to_vec();
    for at in 0..16 {
        let mut bad = good[..=at].to_vec();
        bad[at] ^= 0x80;
        let e = StartupError::from(FrameError::Key { at });
        assert_eq!(responder().handle_bytes(&bad), Err(e));
        assert_eq!(action(e), StartupAction::Close);
        assert_eq!(responder().handle_bytes(&bad[..at]), Ok(ResponderStep::NeedMore));
    }
    assert_eq!(
        initiator(&v2()).handle_bytes(b"HTTP/1.1 200 OK"),
        Err(StartupError::from(FrameError::Key { at: 0 }))
    );
}

#[test]
fn test_peer_of_the_same_role_is_reported_apart_from_garbage() {
    let request = initiator(&v2()).request().to_vec();
    let reply = reply(None).emit().unwrap();
    for (got, bytes) in [
        (initiator(&v2()).handle_bytes(&request).unwrap_err(), &request),
        (responder().handle_bytes(&reply).unwrap_err(), &reply),
    ] {
        assert_eq!(got, FrameError::SameRole.into(), "{bytes:02x?}");
        assert_eq!(action(got), StartupAction::Close);
        assert_eq!(code(got), TermCode::MPA_INVALID_FRAME);
    }
}

#[test]
fn test_responder_refuses_unknown_revision_before_rest_of_request() {
    let only_1 = ResponderConfig { max_revision: Revision::V1, ..Default::default() };
    for (config, max, bad) in [
        (ResponderConfig::default(), Revision::V2, [0, 3, 255]),
        (only_1, Revision::V1, [0, 2, 255]),
    ] {
        for got in bad {
            let mut request = initiator(&v1()).request()[..18].to_vec();
            request[17] = got;
            let e = StartupError::from(FrameError::Revision { got: Revision(got), max });
            let mut r = Responder::new(&config).unwrap();
            assert_eq!(r.handle_bytes(&request), Err(e));
            assert_eq!(action(e), StartupAction::Close);
        }
    }
    let e = answer(&v1(), &reply(Some(enhanced(1, 1, RtrSet::NONE)))).unwrap_err();
    assert_eq!(
        e,
        StartupError::from(FrameError::Revision { got: Revision::V2, max: Revision::V1 })
    );
}

#[test]
fn test_private_data_of_512_bytes_is_taken_and_of_513_refused() {
    let data = [7; MAX_PRIVATE_DATA + 1];
    let fits = InitiatorConfig { private_data: &data[..MAX_PRIVATE_DATA], ..v1() };
    let step = responder().handle_bytes(initiator(&fits).request()).unwrap();
    let ResponderStep::Request { private_data, .. } = step else { panic!("{step:?}") };
    assert_eq!(private_data, data[..MAX_PRIVATE_DATA]);

    let long = InitiatorConfig { private_data: &data, ..v1() };
    let e = PrivateDataError { len: 513, max: 512 };
    assert_eq!(Initiator::new(&long).unwrap_err(), ConfigError::PrivateData(e));
    let enhanced_fits = InitiatorConfig { private_data: &data[..508], ..v2() };
    assert_eq!(initiator(&enhanced_fits).request().len(), 532);
    let enhanced_long = InitiatorConfig { private_data: &data[..509], ..v2() };
    let e = PrivateDataError { len: 509, max: 508 };
    assert_eq!(Initiator::new(&enhanced_long).unwrap_err(), ConfigError::PrivateData(e));

    let mut request = initiator(&v1()).request().to_vec();
    request[18..20].copy_from_slice(&513u16.to_be_bytes());
    let e = StartupError::from(FrameError::PrivateDataTooLong { len: 513 });
    assert_eq!(responder().handle_bytes(&request), Err(e));
    assert_eq!(action(e), StartupAction::Close);
}

#[test]
fn test_enhanced_request_without_its_depth_words_is_refused() {
    for len in 0..4u8 {
        let mut request = initiator(&v2()).request()[..20].to_vec();
        request[19] = len;
        let e = StartupError::from(FrameError::EnhancedTooShort { len: usize::from(len) });
        assert_eq!(responder().handle_bytes(&request), Err(e));
        assert_eq!(action(e), StartupAction::Close);
    }
}

#[test]
fn test_responder_refuses_bytes_after_a_complete_request() {
    let mut request = initiator(&v2()).request().to_vec();
    request.push(0);
    let mut r = responder();
    assert_eq!(r.handle_bytes(&request), Err(StartupError::TrailingBytes));
    assert_eq!(r.accept(&accept(0, 0)).unwrap_err(), ConfigError::NoRequest);

    let mut r = asked(&v2());
    assert_eq!(r.handle_bytes(b"x"), Err(StartupError::TrailingBytes), "before our answer");
    assert_eq!(r.accept(&accept(0, 0)).unwrap_err(), ConfigError::NoRequest);

    let mut bytes = reply(None).emit().unwrap();
    bytes.push(0);
    assert_eq!(initiator(&v1()).handle_bytes(&bytes), Err(StartupError::TrailingBytes));
    assert_eq!(action(StartupError::TrailingBytes), StartupAction::Close);
    assert_eq!(
        responder().handle_bytes(&[request, vec![0; 999]].concat()),
        Err(StartupError::TrailingBytes)
    );
}

#[test]
fn test_responder_parses_request_fed_byte_by_byte() {
    let config = InitiatorConfig { private_data: b"some data", rtr: RtrSet::ALL, ..v2() };
    let request = initiator(&config).request().to_vec();
    let mut r = responder();
    let (last, first) = request.split_last().unwrap();
    for b in first {
        assert_eq!(r.handle_bytes(&[*b]), Ok(ResponderStep::NeedMore));
    }
    let step = r.handle_bytes(&[*last]).unwrap();
    let ResponderStep::Request { private_data, peer, consumed, .. } = step else {
        panic!("{step:?}")
    };
    assert_eq!(private_data, b"some data");
    assert_eq!(peer, Some(enhanced(3, 5, RtrSet::ALL)));
    assert_eq!(consumed, 1);
}
