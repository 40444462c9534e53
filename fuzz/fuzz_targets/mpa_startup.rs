//! MPA start-up, both sides: any bytes, in pieces of any size.
#![no_main]

use heddle_iwarp::mpa::frame::{Frame, Kind, Revision};
use heddle_iwarp::mpa::startup::{
    ReplyParams, CrcPolicy, Initiator, InitiatorConfig, InitiatorStep, Responder, ResponderConfig,
    ResponderStep,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [control, rest @ ..] = data else { return };
    let crc = if control & 1 == 0 { CrcPolicy::Off } else { CrcPolicy::Required };
    let revision = if control & 2 == 0 { Revision::V1 } else { Revision::V2 };
    // Mostly a key that is right, so that the fuzzer gets behind it.
    let mut bytes = rest.to_vec();
    let kind = if control & 4 == 0 { Kind::Request } else { Kind::Reply };
    if control & 8 != 0 {
        let key = match kind {
            Kind::Request => b"MPA ID Req Frame",
            Kind::Reply => b"MPA ID Rep Frame",
        };
        bytes.splice(..0, *key);
    }
    round_trip(kind, revision, &bytes);
    let piece = usize::from(control >> 4) * 8 + 1;
    match kind {
        Kind::Request => respond(crc, revision, &bytes, piece),
        Kind::Reply => initiate(crc, revision, &bytes, piece),
    }
});

/// A frame that is read can be written, and is then read as the same.
fn round_trip(kind: Kind, max: Revision, bytes: &[u8]) {
    let Ok(Some((frame, len))) = Frame::parse(kind, max, bytes) else { return };
    assert!(len <= bytes.len());
    let again = frame.emit().expect("it fitted before");
    assert_eq!(again.len(), len);
    assert_eq!(Frame::parse(kind, max, &again), Ok(Some((frame, len))));
}

fn respond(crc: CrcPolicy, max_revision: Revision, bytes: &[u8], piece: usize) {
    let config = ResponderConfig { max_revision, crc, ..ResponderConfig::default() };
    let mut responder = Responder::new(&config).expect("a good configuration");
    for b in bytes.chunks(piece) {
        match responder.handle_bytes(b) {
            Ok(ResponderStep::NeedMore) => {}
            Ok(ResponderStep::Request { revision, .. }) => {
                let params = ReplyParams { ird: 4, ord: 4, private_data: b"" };
                let Ok((reply, n)) = responder.accept(&params) else { return };
                let frame = Frame::parse(Kind::Reply, revision, &reply).expect("ours is good");
                assert_eq!(frame.map(|(f, len)| (f.crc, len)), Some((n.crc, reply.len())));
                return;
            }
            Err(_) => return,
        }
    }
}

fn initiate(crc: CrcPolicy, revision: Revision, bytes: &[u8], piece: usize) {
    let config =
        InitiatorConfig { revision, crc, ird: 4, ord: 4, ..InitiatorConfig::default() };
    let mut initiator = Initiator::new(&config).expect("a good configuration");
    for b in bytes.chunks(piece) {
        if !matches!(initiator.handle_bytes(b), Ok(InitiatorStep::NeedMore)) {
            return;
        }
    }
}
