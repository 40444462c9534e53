//! Tests with any frame, any bytes, any pair of configurations.

use super::*;
use heddle_types::mpa::{CrcPolicy, StartupError};

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

/// Passes `bytes` to every machine, in two pieces.
fn feed(bytes: &[u8], cut: usize) {
    let (a, b) = bytes.split_at(cut.min(bytes.len()));
    for config in [v1(), InitiatorConfig { rtr: RtrSet::ALL, ..v2() }] {
        let mut i = initiator(&config);
        for piece in [a, b] {
            if let Err(e) = i.handle_bytes(piece) {
                let _ = (e.to_string(), action(e), code(e));
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
                    assert!(e == StartupError::Finished || action(e) == StartupAction::Close);
                }
            }
        }
        let _ = r.accept(&accept(1, 1));
    }
}

proptest! {
    #[test]
    fn test_startup_frame_parses_back_as_it_was_emitted(
        (frame, data) in any_frame(),
        more in proptest::collection::vec(any::<u8>(), 0..5),
    ) {
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
    fn test_startup_machines_survive_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        cut in 0usize..600,
    ) {
        feed(&bytes, cut);
    }

    #[test]
    fn test_startup_machines_survive_mutated_frames(
        (frame, data) in any_frame(), at in 0usize..532, with: u8, cut in 0usize..532, drop in 0usize..32,
    ) {
        let mut bytes = Frame { private_data: &data, ..frame }.emit().unwrap();
        let at = at % bytes.len();
        bytes[at] = with;
        bytes.truncate(bytes.len() - drop.min(bytes.len()));
        feed(&bytes, cut);
    }

    #[test]
    fn test_initiator_and_responder_agree_whenever_they_connect(
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
