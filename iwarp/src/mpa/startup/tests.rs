use super::*;
use crate::Msn;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::decode::{self, decode};
use crate::mpa::frame::{Frame, FrameError, Kind, MAX_PRIVATE_DATA, PrivateDataError};
use crate::rdmap::Opcode;
use proptest::prelude::*;

fn initiator(config: &InitiatorConfig<'_>) -> Initiator {
    Initiator::new(config).unwrap()
}

fn v1() -> InitiatorConfig<'static> {
    InitiatorConfig { revision: Revision::V1, ..Default::default() }
}

fn v2() -> InitiatorConfig<'static> {
    InitiatorConfig { ird: 3, ord: 5, ..Default::default() }
}

fn responder() -> Responder {
    Responder::new(&ResponderConfig::default()).unwrap()
}

/// A responder that has seen the request of `config`.
fn asked(config: &InitiatorConfig<'_>) -> Responder {
    asked_of(&ResponderConfig::default(), config)
}

fn asked_of(r: &ResponderConfig, config: &InitiatorConfig<'_>) -> Responder {
    let mut r = Responder::new(r).unwrap();
    let step = r.handle_bytes(initiator(config).request()).unwrap();
    assert!(matches!(step, ResponderStep::Request { .. }), "{step:?}");
    r
}

fn accept(ird: u16, ord: u16) -> ReplyParams<'static> {
    ReplyParams { ird, ord, private_data: &[] }
}

fn enhanced(ird: u16, ord: u16, rtr: RtrSet) -> Enhanced {
    let depth = |n| Depth::new(n).unwrap_or(Depth::UNNEGOTIATED);
    Enhanced { ird: depth(ird), ord: depth(ord), peer_to_peer: !rtr.is_empty(), rtr }
}

fn reply(e: Option<Enhanced>) -> Frame<'static> {
    Frame {
        kind: Kind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: if e.is_some() { Revision::V2 } else { Revision::V1 },
        enhanced: e,
        private_data: &[],
    }
}

/// What an initiator makes of a reply.
fn answer(config: &InitiatorConfig<'_>, frame: &Frame<'_>) -> Result<Negotiated, StartupError> {
    match initiator(config).handle_bytes(&frame.emit().unwrap())? {
        InitiatorStep::Connected { negotiated, .. } => Ok(negotiated),
        step => panic!("{step:?}"),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

#[test]
fn test_request_of_revision_1_is_bytes_of_figure_8() {
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

/// Frames of a Linux siw built to ask for a first message.
#[test]
fn test_peer_to_peer_frames_of_siw_are_ours() {
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
        // siw takes one first message, and prefers the Write.
        let offered = if rtr.has(Rtr::Write) { w } else { r };
        let siw = ResponderConfig { crc: CrcPolicy::Off, rtr: offered, ..Default::default() };
        assert_eq!(asked_of(&siw, &config).accept(&accept(1, 1)).unwrap().0, reply);
        let step = i.handle_bytes(&reply).unwrap();
        let InitiatorStep::Connected { negotiated: n, .. } = step else { panic!("{step:?}") };
        assert_eq!(n.rtr, offered.iter().next());
    }
}

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
fn test_markers_go_in_the_directions_whose_receiver_asks() {
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
fn test_reserved_bits_and_the_r_bit_of_a_request_are_not_looked_at() {
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
        assert_eq!(e.action(), StartupAction::Close);
        assert_eq!(responder().handle_bytes(&bad[..at]), Ok(ResponderStep::NeedMore));
    }
    assert_eq!(
        initiator(&v2()).handle_bytes(b"HTTP/1.1 200 OK"),
        Err(StartupError::from(FrameError::Key { at: 0 }))
    );
}

#[test]
fn test_two_initiators_and_two_responders_are_told_apart_from_garbage() {
    let request = initiator(&v2()).request().to_vec();
    let reply = reply(None).emit().unwrap();
    for (got, bytes) in [
        (initiator(&v2()).handle_bytes(&request).unwrap_err(), &request),
        (responder().handle_bytes(&reply).unwrap_err(), &reply),
    ] {
        assert_eq!(got, FrameError::SameRole.into(), "{bytes:02x?}");
        assert_eq!(got.action(), StartupAction::Close);
        assert_eq!(got.code(), TermCode::MPA_INVALID_FRAME);
    }
}

#[test]
fn test_revisions_beyond_what_we_speak_are_refused_as_soon_as_seen() {
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
            assert_eq!(e.action(), StartupAction::Close);
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
    assert_eq!(e.action(), StartupAction::Close);
}

#[test]
fn test_enhanced_frame_without_its_words_is_refused() {
    for len in 0..4u8 {
        let mut request = initiator(&v2()).request()[..20].to_vec();
        request[19] = len;
        let e = StartupError::from(FrameError::EnhancedTooShort { len: usize::from(len) });
        assert_eq!(responder().handle_bytes(&request), Err(e));
        assert_eq!(e.action(), StartupAction::Close);
    }
}

#[test]
fn test_bytes_behind_a_frame_mean_a_wrong_length() {
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
    assert_eq!(StartupError::TrailingBytes.action(), StartupAction::Close);
    assert_eq!(
        responder().handle_bytes(&[request, vec![0; 999]].concat()),
        Err(StartupError::TrailingBytes)
    );
}

#[test]
fn test_request_byte_by_byte_is_the_request_at_once() {
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

#[test]
fn test_responder_answers_in_the_revision_of_the_request() {
    let (bytes, n) = asked(&v1()).accept(&accept(4, 6)).unwrap();
    assert_eq!(bytes, bytes_of("4d504120 49442052 65702046 72616d65 40 01 0000"));
    assert_eq!((n.revision, n.ird, n.ord, n.peer), (Revision::V1, 4, 6, None));

    // Initiator IRD 3, ORD 5: our ORD of 6 comes down to 3, our IRD of 4 stays.
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
fn test_responder_serves_as_many_reads_as_its_application_says() {
    for ird in [0, 1, 4, 200, 0x3ffe] {
        let (bytes, n) =
            asked(&InitiatorConfig { ord: 100, ..v2() }).accept(&accept(ird, 0)).unwrap();
        assert_eq!((n.ird, &bytes[20..22]), (ird, &ird.to_be_bytes()[..]), "no more and no fewer");
        let (_, n) = asked(&v1()).accept(&accept(ird, 0)).unwrap();
        assert_eq!(n.ird, ird);
    }
}

#[test]
fn test_responder_leaves_depths_alone_that_are_not_negotiated() {
    let mut request = initiator(&v2()).request().to_vec();
    request[20..24].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let mut r = responder();
    r.handle_bytes(&request).unwrap();
    let (bytes, n) = r.accept(&accept(4, 6)).unwrap();
    assert_eq!(bytes[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!((n.ird, n.ord), (4, 6));
}

#[test]
fn test_initiator_leaves_depths_alone_that_are_not_negotiated() {
    let n = answer(&v2(), &reply(Some(enhanced(0x3fff, 0x3fff, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5));
}

#[test]
fn test_depths_left_to_the_applications_are_all_ones_and_stay() {
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
    // A responder that has numbers all the same changes nothing.
    let n = answer(&config, &reply(Some(enhanced(1, 100, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5));
    // Beyond 14 bits there is nothing to say.
    let deep = InitiatorConfig { ird: 0x4000, ..config };
    assert_eq!(Initiator::new(&deep).unwrap_err(), ConfigError::Depth { depth: 0x4000 });
}

#[test]
fn test_initiator_lowers_its_ord_and_serves_the_responders() {
    for ord in 0..=3 {
        let n = answer(&v2(), &reply(Some(enhanced(2, ord, RtrSet::NONE)))).unwrap();
        assert_eq!((n.ird, n.ord), (3, 2));
        assert_eq!(n.peer, Some(enhanced(2, ord, RtrSet::NONE)), "for the application to see");
    }
    let n = answer(&v2(), &reply(Some(enhanced(100, 1, RtrSet::NONE)))).unwrap();
    assert_eq!((n.ird, n.ord), (3, 5), "no more than we asked for");
}

#[test]
fn test_responder_ord_beyond_our_ird_is_terminated() {
    let e = answer(&v2(), &reply(Some(enhanced(5, 4, RtrSet::NONE)))).unwrap_err();
    assert_eq!(e, StartupError::InsufficientIrd { needed: 4, max: 3 });
    let code = TermCode::new(2, 0, 6);
    assert_eq!(e.action(), StartupAction::Terminate(code));
}

#[test]
fn test_unenhanced_reply_to_an_enhanced_request_is_refused() {
    let unenhanced = Frame { revision: Revision::V2, ..reply(None) };
    for frame in [reply(None), unenhanced] {
        let e = answer(&v2(), &frame).unwrap_err();
        assert_eq!(e, StartupError::NotEnhanced { revision: frame.revision });
        assert_eq!(e.action(), StartupAction::Close);
    }
}

#[test]
fn test_rtr_is_one_both_sides_can() {
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
                assert_eq!(e.action(), StartupAction::Terminate(TermCode::new(2, 0, 7)));
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

    // The responder makes room for it.
    let only_read = InitiatorConfig { rtr: r, ord: 0, ..v2() };
    let (bytes, n) = asked(&only_read).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird, bytes[21]), (r, 1, 1));
    // But not where there is another way.
    let (bytes, n) = asked(&config).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird, bytes[21]), (RtrSet::ALL.without(r), 0, 0));
    let (_, n) = asked(&config).accept(&accept(1, 0)).unwrap();
    assert_eq!((n.rtr_offered, n.ird), (RtrSet::ALL, 1));
    // Depths that are not negotiated stay as they are.
    let left = InitiatorConfig { depths: Depths::LeftToApplications, ..only_read };
    let (bytes, n) = asked(&left).accept(&accept(0, 0)).unwrap();
    assert_eq!((n.ird, &bytes[20..22]), (0, &[0xbf, 0xff][..]));
}

#[test]
fn test_responder_offers_what_both_can_or_else_what_it_can() {
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
fn test_reply_of_the_other_model_is_terminated() {
    let p2p = InitiatorConfig { rtr: RtrSet::ALL, ..v2() };
    for (config, theirs) in [(p2p, RtrSet::NONE), (v2(), RtrSet::ALL)] {
        let e = answer(&config, &reply(Some(enhanced(5, 3, theirs)))).unwrap_err();
        assert!(matches!(e, StartupError::Model { .. }));
        assert_eq!(e.action(), StartupAction::Terminate(TermCode::MPA_NO_MATCHING_RTR));
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

#[test]
fn test_reject_carries_private_data_and_leaves_the_rest_to_the_caller() {
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

/// A refusal says R, and C where one of the two wants CRCs.
#[test]
fn test_reject_says_whether_there_would_be_crcs() {
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
    // No numbers where the initiator gave none.
    let left = InitiatorConfig { depths: Depths::LeftToApplications, ..v2() };
    let bytes = asked(&left).reject(b"", Some(9)).unwrap();
    assert_eq!(bytes[20..24], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!(asked(&v1()).reject(b"", Some(9)).unwrap().len(), 20, "no field for it");
}

#[test]
fn test_reject_of_another_shape_is_still_a_reject() {
    let frame = Frame { reject: true, ..reply(None) };
    let step = initiator(&v2()).handle_bytes(&frame.emit().unwrap()).unwrap();
    assert!(matches!(step, InitiatorStep::Rejected { revision: Revision::V1, peer: None, .. }));
}

#[test]
fn test_terminate_of_an_initiator_is_framed_as_the_reply_asked() {
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        let config = InitiatorConfig { crc: CrcPolicy::Off, ..v2() };
        let mut i = initiator(&config);
        assert_eq!(i.terminate(TermCode::MPA_INSUFFICIENT_IRD), None, "nobody would understand");
        let frame = Frame { crc, markers, ..reply(Some(enhanced(5, 9, RtrSet::NONE))) };
        let e = i.handle_bytes(&frame.emit().unwrap()).unwrap_err();
        let StartupAction::Terminate(code) = e.action() else { panic!("{e:?}") };
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

#[test]
fn test_config_that_cannot_be_said_is_refused() {
    let bad = [
        (InitiatorConfig { rtr: RtrSet::ALL, ..v1() }, ConfigError::RtrNeedsRevision2),
        (InitiatorConfig { ird: 0x3fff, ..v2() }, ConfigError::Depth { depth: 0x3fff }),
        (InitiatorConfig { ord: 0x4000, ..v2() }, ConfigError::Depth { depth: 0x4000 }),
        (
            InitiatorConfig { revision: Revision(3), ..v2() },
            ConfigError::Revision { revision: Revision(3) },
        ),
    ];
    for (config, want) in bad {
        assert_eq!(Initiator::new(&config).unwrap_err(), want);
    }
    let mut r = asked(&v2());
    let long = ReplyParams { private_data: &[0; 509], ..accept(0, 0) };
    assert!(matches!(r.accept(&long), Err(ConfigError::PrivateData(_))));
    assert!(r.accept(&accept(0, 0)).is_ok(), "the request can still be answered");
    assert_eq!(r.reject(b"", None).unwrap_err(), ConfigError::NoRequest, "but once");
}

/// Every event in every state of both machines.
#[test]
fn test_state_and_event_matrix() {
    type Event = (&'static str, fn(&mut Responder) -> String);
    fn bytes(r: &mut Responder, b: &[u8]) -> String {
        match r.handle_bytes(b) {
            Ok(ResponderStep::NeedMore) => "NeedMore".into(),
            Ok(ResponderStep::Request { .. }) => "Request".into(),
            Err(e) => format!("{e:?}"),
        }
    }
    let events: [Event; 5] = [
        ("no bytes", |r| bytes(r, b"")),
        ("request", |r| bytes(r, initiator(&v1()).request())),
        ("garbage", |r| bytes(r, b"x")),
        ("accept", |r| {
            r.accept(&accept(0, 0)).map_or_else(|e| format!("{e:?}"), |_| "Reply".into())
        }),
        ("reject", |r| r.reject(b"", None).map_or_else(|e| format!("{e:?}"), |_| "Reply".into())),
    ];
    type State = (&'static str, fn() -> Responder);
    let states: [State; 3] = [
        ("Waiting", responder),
        ("Asked", || asked(&v1())),
        ("Finished", || {
            let mut r = asked(&v1());
            r.accept(&accept(0, 0)).unwrap();
            r
        }),
    ];
    let mut got = String::new();
    for (state, make) in states {
        for (event, run) in events {
            got += &format!("{state} + {event}: {}\n", run(&mut make()));
        }
    }
    let want = "\
Waiting + no bytes: NeedMore
Waiting + request: Request
Waiting + garbage: Frame(Key { at: 0 })
Waiting + accept: NoRequest
Waiting + reject: NoRequest
Asked + no bytes: Finished
Asked + request: TrailingBytes
Asked + garbage: TrailingBytes
Asked + accept: Reply
Asked + reject: Reply
Finished + no bytes: Finished
Finished + request: Finished
Finished + garbage: Finished
Finished + accept: NoRequest
Finished + reject: NoRequest
";
    assert_eq!(got, want);

    let mut i = initiator(&v1());
    assert_eq!(i.handle_bytes(b""), Ok(InitiatorStep::NeedMore));
    assert!(i.handle_bytes(&reply(None).emit().unwrap()).is_ok());
    assert_eq!(i.handle_bytes(b""), Err(StartupError::Finished));
    let mut i = initiator(&v1());
    assert!(i.handle_bytes(b"x").is_err());
    assert_eq!(i.handle_bytes(b""), Err(StartupError::Finished));
}

fn any_frame() -> impl Strategy<Value = (Frame<'static>, Vec<u8>)> {
    let rtr = (0u8..8).prop_map(|bits| {
        [Rtr::Write, Rtr::Read, Rtr::Send]
            .into_iter()
            .filter(|r| bits & (1 << *r as u8) != 0)
            .fold(RtrSet::NONE, |s, r| s.with(RtrSet::of(r)))
    });
    let words = (0u16..=0x3fff, 0u16..=0x3fff, rtr).prop_map(|(i, o, rtr)| enhanced(i, o, rtr));
    (
        any::<(bool, bool, bool, bool)>(),
        proptest::option::of(words),
        proptest::collection::vec(any::<u8>(), 0..509),
    )
        .prop_map(|((request, markers, crc, reject), enhanced, data)| {
            let kind = if request { Kind::Request } else { Kind::Reply };
            let frame = Frame {
                kind,
                markers,
                crc,
                reject: reject && !request,
                revision: if enhanced.is_some() { Revision::V2 } else { Revision::V1 },
                enhanced,
                private_data: &[],
            };
            (frame, data)
        })
}

/// What every machine does with bytes, given in two pieces.
fn feed(bytes: &[u8], cut: usize) {
    let (a, b) = bytes.split_at(cut.min(bytes.len()));
    for config in [v1(), InitiatorConfig { rtr: RtrSet::ALL, ..v2() }] {
        let mut i = initiator(&config);
        for piece in [a, b] {
            if let Err(e) = i.handle_bytes(piece) {
                let _ = (e.to_string(), e.action(), e.code());
            }
        }
        let mut r = responder();
        for piece in [a, b] {
            match r.handle_bytes(piece) {
                Ok(ResponderStep::Request { .. }) => {
                    let mut other = r.clone();
                    assert!(other.reject(b"", None).is_ok());
                }
                Ok(ResponderStep::NeedMore) => {}
                Err(e) => {
                    assert!(e == StartupError::Finished || e.action() == StartupAction::Close);
                }
            }
        }
        let _ = r.accept(&accept(1, 1));
    }
}

proptest! {
    #[test]
    fn test_frame_round_trip((frame, data) in any_frame(), more in proptest::collection::vec(any::<u8>(), 0..5)) {
        let frame = Frame { private_data: &data, ..frame };
        let mut bytes = frame.emit().unwrap();
        let len = bytes.len();
        bytes.extend_from_slice(&more);
        prop_assert_eq!(Frame::parse(frame.kind, Revision::V2, &bytes), Ok(Some((frame, len))));
        for n in 0..len {
            prop_assert_eq!(Frame::parse(frame.kind, Revision::V2, &bytes[..n]), Ok(None));
        }
    }

    #[test]
    fn test_any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut in 0usize..600) {
        feed(&bytes, cut);
    }

    #[test]
    fn test_mutated_frames_are_survived(
        (frame, data) in any_frame(), at in 0usize..532, with: u8, cut in 0usize..532, drop in 0usize..32,
    ) {
        let mut bytes = Frame { private_data: &data, ..frame }.emit().unwrap();
        let at = at % bytes.len();
        bytes[at] = with;
        bytes.truncate(bytes.len() - drop.min(bytes.len()));
        feed(&bytes, cut);
    }

    #[test]
    fn test_any_pair_that_connects_agrees(
        ird in 0u16..40, ord in 0u16..40, r_ird in 0u16..40, r_ord in 0u16..40,
        rtr in 0u8..8, r_rtr in 1u8..8, crc: bool, r_crc: bool,
    ) {
        let set = |bits: u8| [Rtr::Write, Rtr::Read, Rtr::Send].into_iter()
            .filter(|r| bits & (1 << *r as u8) != 0)
            .fold(RtrSet::NONE, |s, r| s.with(RtrSet::of(r)));
        let policy = |on| if on { CrcPolicy::Required } else { CrcPolicy::Off };
        let config = InitiatorConfig { crc: policy(crc), ird, ord, rtr: set(rtr), ..Default::default() };
        let r_config = ResponderConfig { crc: policy(r_crc), rtr: set(r_rtr), ..Default::default() };
        let mut i = initiator(&config);
        let mut r = asked_of(&r_config, &config);
        let (bytes, theirs) = r.accept(&accept(r_ird, r_ord)).unwrap();
        match i.handle_bytes(&bytes) {
            Ok(InitiatorStep::Connected { negotiated: ours, .. }) => {
                prop_assert_eq!(ours.crc, theirs.crc);
                prop_assert!(ours.ord <= theirs.ird, "{:?} {:?}", ours, theirs);
                prop_assert!(ours.ord <= ord && ours.ird == ird, "{:?}", ours);
                let raised = ours.rtr == Some(Rtr::Read) && r_ird == 0;
                prop_assert_eq!(theirs.ird, if raised { 1 } else { r_ird });
                prop_assert!(theirs.ord <= ours.ird, "{:?} {:?}", ours, theirs);
                prop_assert_eq!(ours.rtr.is_some(), rtr != 0);
                if let Some(rtr) = ours.rtr {
                    prop_assert!(theirs.rtr_offered.has(rtr) && config.rtr.has(rtr));
                }
            }
            Err(e) => prop_assert!(matches!(e, StartupError::NoMatchingRtr { .. }), "{:?}", e),
            step => prop_assert!(false, "{:?}", step),
        }
    }
}
