//! Tests of both ends of a start-up: the common helpers, and the matrix of states and events.

use super::*;
use crate::Msn;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::decode::{self, decode};
use crate::mpa::frame::{Frame, Kind, MAX_PRIVATE_DATA};
use crate::rdmap::Opcode;
use heddle_types::mpa::{FrameError, PrivateDataError, StartupError};
use proptest::prelude::*;

mod any;
mod frames;
mod negotiate;
mod refuse;

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

/// Returns a responder that has seen the request of `config`.
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

/// Returns the settings that an initiator derives from a reply.
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
fn test_config_that_a_frame_cannot_express_is_refused() {
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
fn test_startup_machines_match_table_for_every_state_and_event() {
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
