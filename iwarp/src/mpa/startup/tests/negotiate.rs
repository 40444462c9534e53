//! Tests of the settings on which both ends agree: revision, CRC, markers, read depths, the first
//! message.

use super::*;
use heddle_types::mpa::{CrcPolicy, StartupError};

#[test]
fn test_default_configuration_asks_for_crcs() {
    assert_eq!(InitiatorConfig::default().crc, CrcPolicy::Required);
    assert_eq!(ResponderConfig::default().crc, CrcPolicy::Required);
    assert_eq!(CrcPolicy::default(), CrcPolicy::Required);
}

#[test]
fn test_crc_is_used_if_either_side_asks() {
    use CrcPolicy::{Off, Required};
    for (i, r, used) in [
        (Off, Off, false),
        (Required, Off, true),
        (Off, Required, true),
        (Required, Required, true),
    ] {
        for base in [v1(), v2()] {
            let config = InitiatorConfig { crc: i, ..base };
            let mut initiator = initiator(&config);
            let mut responder =
                asked_of(&ResponderConfig { crc: r, ..Default::default() }, &config);
            let (reply, n) = responder.accept(&accept(1, 1)).unwrap();
            assert_eq!(n.crc, used);
            let step = initiator.handle_bytes(&reply).unwrap();
            let InitiatorStep::Connected { negotiated, .. } = step else { panic!("{step:?}") };
            assert_eq!(negotiated.crc, used);
        }
    }
}

#[test]
fn test_sender_uses_markers_only_if_its_receiver_asks() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        for base in [v1(), v2()] {
            let config = InitiatorConfig { markers: ours, ..base };
            let mut i = initiator(&config);
            assert_eq!(i.request()[16] & 0x80 != 0, ours);
            let r = ResponderConfig { markers: theirs, ..Default::default() };
            let (bytes, n) = asked_of(&r, &config).accept(&accept(3, 3)).unwrap();
            assert_eq!(bytes[16] & 0x80 != 0, theirs);
            assert_eq!((n.send_markers, n.recv_markers), (ours, theirs));
            let step = i.handle_bytes(&bytes).unwrap();
            let InitiatorStep::Connected { negotiated: n, .. } = step else { panic!("{step:?}") };
            assert_eq!((n.send_markers, n.recv_markers), (theirs, ours));
        }
    }
    assert!(!InitiatorConfig::default().markers && !ResponderConfig::default().markers);
}

#[test]
fn test_responder_answers_in_the_revision_of_the_request() {
    let (bytes, n) = asked(&v1()).accept(&accept(4, 6)).unwrap();
    assert_eq!(bytes, bytes_of("4d504120 49442052 65702046 72616d65 40 01 0000"));
    assert_eq!((n.revision, n.ird, n.ord, n.peer), (Revision::V1, 4, 6, None));

    // Initiator IRD 3, ORD 5: the responder lowers its ORD of 6 to 3, and keeps its IRD of 4.
    let (bytes, n) = asked(&v2()).accept(&accept(4, 6)).unwrap();
    assert_eq!(bytes, bytes_of("4d504120 49442052 65702046 72616d65 50 02 0004 0004 0003"));
    assert_eq!((n.ird, n.ord), (4, 3));
    assert_eq!(n.peer, Some(enhanced(3, 5, RtrSet::NONE)));
    assert_eq!((n.rtr, n.rtr_offered), (None, RtrSet::NONE));
}

#[test]
fn test_unenhanced_request_of_revision_2_gets_an_unenhanced_reply() {
    let mut request = initiator(&v1()).request().to_vec();
    request[17] = 2;
    let mut r = responder();
    r.handle_bytes(&request).unwrap();
    let (bytes, n) = r.accept(&accept(4, 6)).unwrap();
    assert_eq!((bytes.len(), bytes[16] & 0x10, bytes[17]), (20, 0, 2));
    assert_eq!((n.ird, n.ord, n.peer), (4, 6, None));
}

#[test]
fn test_responder_ird_equals_the_one_its_application_gives() {
    for ird in [0, 1, 4, 200, 0x3ffe] {
        let (bytes, n) =
            asked(&InitiatorConfig { ord: 100, ..v2() }).accept(&accept(ird, 0)).unwrap();
        assert_eq!((n.ird, &bytes[20..22]), (ird, &ird.to_be_bytes()[..]), "no more and no fewer");
        let (_, n) = asked(&v1()).accept(&accept(ird, 0)).unwrap();
        assert_eq!(n.ird, ird);
    }
}

#[test]
fn test_responder_keeps_own_depths_when_request_does_not_negotiate() {
    let mut request = initiator(&v2()).request().to_vec();
    request[20..24].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let mut r = responder();
    r.handle_bytes(&request).unwrap();
    let (bytes, n) = r.accept(&accept(4, 6)).unwrap();
    assert_eq!(bytes[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!((n.ird, n.ord), (4, 6));
}

#[test]
fn test_initiator_keeps_own_depths_when_reply_does_not_negotiate() {
    let n = answer(&v2(), &reply(Some(enhanced(0x3fff, 0x3fff, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5));
}

#[test]
fn test_depths_left_to_applications_are_sent_as_all_ones_and_kept() {
    let config = InitiatorConfig { depths: Depths::LeftToApplications, ..v2() };
    assert_eq!(initiator(&config).request()[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    let (bytes, n) = asked(&config).accept(&accept(4, 6)).unwrap();
    assert_eq!((bytes[20..24].to_vec(), n.ird, n.ord), (vec![0x3f, 0xff, 0x3f, 0xff], 4, 6));
    assert_eq!(n.peer.map(|p| (p.ird, p.ord)), Some((Depth::UNNEGOTIATED, Depth::UNNEGOTIATED)));
    let InitiatorStep::Connected { negotiated: n, .. } =
        initiator(&config).handle_bytes(&bytes).unwrap()
    else {
        panic!("connected")
    };
    assert_eq!((n.ird, n.ord), (3, 5));
    // A responder that nevertheless states numbers changes nothing.
    let n = answer(&config, &reply(Some(enhanced(1, 100, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5));
    // No frame can express more than 14 bits.
    let deep = InitiatorConfig { ird: 0x4000, ..config };
    assert_eq!(Initiator::new(&deep).unwrap_err(), ConfigError::Depth { depth: 0x4000 });
}

#[test]
fn test_initiator_lowers_its_ord_to_ird_of_responder() {
    for ord in 0..=3 {
        let n = answer(&v2(), &reply(Some(enhanced(2, ord, RtrSet::NONE)))).unwrap();
        assert_eq!((n.ird, n.ord), (3, 2));
        assert_eq!(n.peer, Some(enhanced(2, ord, RtrSet::NONE)), "for the application to see");
    }
    let n = answer(&v2(), &reply(Some(enhanced(100, 1, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5), "no more than we asked for");
}

#[test]
fn test_initiator_terminates_reply_whose_ord_exceeds_its_ird() {
    let e = answer(&v2(), &reply(Some(enhanced(5, 4, RtrSet::NONE)))).unwrap_err();
    assert_eq!(e, StartupError::InsufficientIrd { needed: 4, max: 3 });
    let code = TermCode::new(2, 0, 6);
    assert_eq!(action(e), StartupAction::Terminate(code));
}

#[test]
fn test_unenhanced_reply_to_an_enhanced_request_is_refused() {
    let unenhanced = Frame { revision: Revision::V2, ..reply(None) };
    for frame in [reply(None), unenhanced] {
        let e = answer(&v2(), &frame).unwrap_err();
        assert_eq!(e, StartupError::NotEnhanced { revision: frame.revision });
        assert_eq!(action(e), StartupAction::Close);
    }
}

#[test]
fn test_initiator_picks_rtr_form_that_both_sides_support() {
    let (w, r, s) = (RtrSet::of(Rtr::Write), RtrSet::of(Rtr::Read), RtrSet::of(Rtr::Send));
    for (ours, theirs, want) in [
        (RtrSet::ALL, RtrSet::ALL, Some(Rtr::Write)),
        (w.with(r), r, Some(Rtr::Read)),
        (r.with(s), s.with(w), Some(Rtr::Send)),
        (w, r, None),
        (s, w.with(r), None),
    ] {
        let config = InitiatorConfig { rtr: ours, ..v2() };
        let got = answer(&config, &reply(Some(enhanced(5, 3, theirs))));
        match want {
            Some(rtr) => {
                let n = got.unwrap();
                assert_eq!((n.rtr, n.rtr_offered), (Some(rtr), theirs));
            }
            None => {
                let e = StartupError::NoMatchingRtr { ours, theirs };
                assert_eq!(got, Err(e));
                assert_eq!(action(e), StartupAction::Terminate(TermCode::new(2, 0, 7)));
            }
        }
    }
}

#[test]
fn test_rtr_read_needs_a_slot_at_the_responder() {
    let r = RtrSet::of(Rtr::Read);
    let config = InitiatorConfig { rtr: RtrSet::ALL, ord: 0, ..v2() };
    let n = answer(&config, &reply(Some(enhanced(1, 0, r)))).unwrap();
    assert_eq!((n.rtr, n.ord), (Some(Rtr::Read), 0), "the application still has no Reads");
    let e = answer(&config, &reply(Some(enhanced(0, 0, r)))).unwrap_err();
    assert!(matches!(e, StartupError::NoMatchingRtr { .. }));

    // The responder raises its IRD to 1 for the Read.
    let only_read = InitiatorConfig { rtr: r, ord: 0, ..v2() };
    let (bytes, n) = asked(&only_read).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird, bytes[21]), (r, 1, 1));
    // The responder keeps its IRD of 0 if there is another first message.
    let (bytes, n) = asked(&config).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird, bytes[21]), (RtrSet::ALL.without(r), 0, 0));
    let (_, n) = asked(&config).accept(&accept(1, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird), (RtrSet::ALL, 1));
    // Depths that the ends do not negotiate stay as they are.
    let left = InitiatorConfig { depths: Depths::LeftToApplications, ..only_read };
    let (bytes, n) = asked(&left).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.ird, &bytes[20..22]), (0, &[0xbf, 0xff][..]));
}

#[test]
fn test_responder_offers_common_rtr_forms_or_else_its_own() {
    let (w, r) = (RtrSet::of(Rtr::Write), RtrSet::of(Rtr::Read));
    for (asked_for, can, want) in
        [(RtrSet::ALL, w, w), (w.with(r), RtrSet::ALL, w.with(r)), (r, w, w)]
    {
        let config = ResponderConfig { rtr: can, ..Default::default() };
        let request = InitiatorConfig { rtr: asked_for, ..v2() };
        let (bytes, n) = asked_of(&config, &request).accept(&accept(4, 4)).unwrap();
        assert_eq!(n.rtr_offered, want);
        assert_eq!(bytes[20] & 0x80, 0x80, "flag A as in the request");
    }
    let none = ResponderConfig { rtr: RtrSet::NONE, ..Default::default() };
    assert_eq!(Responder::new(&none).unwrap_err(), ConfigError::NoRtr);
}

#[test]
fn test_flags_without_flag_a_are_ignored_and_not_sent() {
    let mut request = initiator(&v2()).request().to_vec();
    request[20] |= 0x40;
    request[22] |= 0xc0;
    let mut r = responder();
    let step = r.handle_bytes(&request).unwrap();
    let ResponderStep::Request { peer, .. } = step else { panic!("{step:?}") };
    assert_eq!(peer, Some(enhanced(3, 5, RtrSet::NONE)));
    let (bytes, n) = r.accept(&accept(5, 3)).unwrap();
    assert_eq!((bytes[20] & 0xc0, bytes[22] & 0xc0), (0, 0));
    assert_eq!(n.rtr_offered, RtrSet::NONE);
}

#[test]
fn test_initiator_terminates_reply_of_the_other_connection_model() {
    let p2p = InitiatorConfig { rtr: RtrSet::ALL, ..v2() };
    for (config, theirs) in [(p2p, RtrSet::NONE), (v2(), RtrSet::ALL)] {
        let e = answer(&config, &reply(Some(enhanced(5, 3, theirs)))).unwrap_err();
        assert!(matches!(e, StartupError::Model { .. }));
        assert_eq!(action(e), StartupAction::Terminate(TermCode::MPA_NO_MATCHING_RTR));
    }
}

#[test]
fn test_peer_to_peer_pair_agrees_on_first_message_and_depths() {
    let config = InitiatorConfig { rtr: RtrSet::ALL, private_data: b"ask", ..v2() };
    let mut i = initiator(&config);
    let mut r = asked(&config);
    let params = ReplyParams { private_data: b"answer", ..accept(4, 6) };
    let (bytes, theirs) = r.accept(&params).unwrap();
    let step = i.handle_bytes(&bytes).unwrap();
    let InitiatorStep::Connected { negotiated: ours, private_data, consumed } = step else {
        panic!("{step:?}")
    };
    assert_eq!((private_data, consumed), (b"answer".to_vec(), bytes.len()));
    assert_eq!(ours.rtr, Some(Rtr::Write));
    assert!(theirs.rtr_offered.has(Rtr::Write));
    assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird);
    assert!(theirs.must_wait_for_first_fpdu() && !ours.must_wait_for_first_fpdu());
}
