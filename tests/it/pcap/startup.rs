//! The start-up of MPA: Requests, Replies and rejects of both revisions, with read depths and the
//! first messages of the peer-to-peer model. tshark checks the parts of RFC 5044; the decoder
//! checks IRD, ORD and the flags beside them, which tshark 4.0 takes for private data.

use std::time::Duration;

use heddle::connection::{
    AcceptParams, CmEvent, ConnectParams, ListenParams, MpaOptions, Revision, Rtr, RtrSet,
};

use crate::eal::eal;
use crate::pcap::decode::{self, Startup, Words};
use crate::pcap::script::{READ_REQUEST, READ_RESPONSE, SEND, Side, WRITE};
use crate::pcap::tshark::{self, BAD, tshark};
use crate::pcap::wire::{IPS, PORT, Wire};

/// The responder's answer.
#[derive(Clone, Copy)]
enum Answer {
    Accept,
    Reject,
    /// Rejects, because the responder needs this many outstanding Reads.
    NeedsOrd(u16),
}

struct Case {
    what: &'static str,
    mpa: MpaOptions,
    ask: Vec<u8>,
    answer: Answer,
    /// The words of Request and Reply.
    words: [Option<Words>; 2],
    /// The opcodes that follow from each side, without any posted operation.
    first: [&'static [u8]; 2],
}

fn words(ird: u16, ord: u16, flags: [bool; 4]) -> Option<Words> {
    Some(Words { ird, ord, flags })
}

const CLIENT_SERVER: [bool; 4] = [false; 4];

fn cases() -> Vec<Case> {
    let v2 = MpaOptions::new();
    let both = |flags| [words(5, 9, flags), words(9, 5, flags)];
    let none: [&[u8]; 2] = [&[], &[]];
    let accepted = |what, mpa, words, first| Case {
        what,
        mpa,
        ask: b"hello".to_vec(),
        answer: Answer::Accept,
        words,
        first,
    };
    let rtr = |rtr| v2.peer_to_peer(RtrSet::of(rtr));
    let by_send = [true, true, false, false];
    let by_write = [true, false, true, false];
    let by_read = [true, false, false, true];
    vec![
        accepted("revision 1", v2.revision(Revision::V1), [None; 2], none),
        accepted("revision 2", v2, both(CLIENT_SERVER), none),
        Case {
            ask: vec![0xa5; 508],
            ..accepted("as much private data as there may be", v2, both(CLIENT_SERVER), none)
        },
        Case { ask: Vec::new(), ..accepted("no private data", v2, both(CLIENT_SERVER), none) },
        accepted("a Send first", rtr(Rtr::Send), both(by_send), [&[SEND], &[]]),
        accepted("a Write first", rtr(Rtr::Write), both(by_write), [&[WRITE], &[]]),
        accepted(
            "a Read first",
            rtr(Rtr::Read),
            both(by_read),
            [&[READ_REQUEST], &[READ_RESPONSE]],
        ),
        Case { answer: Answer::Reject, ..accepted("a reject", v2, both(CLIENT_SERVER), none) },
        Case {
            answer: Answer::Reject,
            ..accepted("a reject in revision 1", v2.revision(Revision::V1), [None; 2], none)
        },
        Case {
            answer: Answer::NeedsOrd(12),
            words: [words(5, 9, CLIENT_SERVER), words(9, 12, CLIENT_SERVER)],
            ..accepted("a reject that asks for more", v2, both(CLIENT_SERVER), none)
        },
    ]
}

const SAID: &[u8] = b"what the responder says";

/// Makes one connection.
fn connect(wire: &mut Wire, number: u16, case: &Case) {
    let port = PORT + number;
    let sides = [0, 1].map(|n| Side::new(&wire.ends[usize::from(n)], n));
    let theirs = wire.listen(port, ListenParams::default().mpa(case.mpa));
    let ours = heddle::connection::EventQueue::new(None);
    let params = ConnectParams {
        private_data: case.ask.clone(),
        ..ConnectParams::new(sides[0].qp.clone()).mpa(case.mpa).reads(5, 9)
    };
    let id = wire.ends[0].device().connect((IPS[1], port).into(), params, &ours).unwrap();
    let CmEvent::ConnectRequest { id: theirs_id, private_data, .. } = wire.event(&theirs) else {
        panic!("{}: a request", case.what)
    };
    assert_eq!(private_data, case.ask, "{}", case.what);
    let device = wire.ends[1].device().clone();
    match case.answer {
        Answer::Accept => {
            let params = AcceptParams {
                private_data: SAID.to_vec(),
                ..AcceptParams::new(sides[1].qp.clone()).reads(9, 16)
            };
            device.accept(theirs_id, params).unwrap();
        }
        Answer::Reject => device.reject(theirs_id, SAID.to_vec()).unwrap(),
        Answer::NeedsOrd(n) => device.reject_needing_ord(theirs_id, SAID.to_vec(), n).unwrap(),
    }
    match (case.answer, wire.event(&ours)) {
        (Answer::Accept, CmEvent::Established { private_data, .. })
        | (Answer::Reject | Answer::NeedsOrd(_), CmEvent::Rejected { private_data, .. }) => {
            assert_eq!(private_data, SAID, "{}", case.what);
        }
        (_, other) => panic!("{}: {other:?}", case.what),
    }
    wire.pass(Duration::from_millis(50));
    if matches!(case.answer, Answer::Accept) {
        wire.ends[0].device().disconnect(id).unwrap();
        assert!(matches!(wire.event(&ours), CmEvent::Disconnected { .. }));
    }
    wire.pass(Duration::from_millis(50));
}

#[test]
fn test_tshark_and_decoder_read_every_startup_as_agreed() {
    let (eal, _turn) = eal();
    let mut wire = Wire::new(&eal, None);
    let cases = cases();
    for (number, case) in (0..).zip(&cases) {
        connect(&mut wire, number, case);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("startup.pcap");
    wire.save(&file);
    assert_eq!(tshark(&file, &["-Y", BAD]), "");
    let connections = decode::connections(&file);
    assert_eq!(connections.len(), cases.len());
    let mut wanted = Vec::new();
    for (case, streams) in cases.iter().zip(&connections) {
        let revision = if case.words[0].is_some() { 2 } else { 1 };
        let rejected = !matches!(case.answer, Answer::Accept);
        let keys =
            [(b"MPA ID Req Frame", &case.ask[..], false), (b"MPA ID Rep Frame", SAID, rejected)];
        for (i, (key, said, reject)) in keys.into_iter().enumerate() {
            let (startup, from) = decode::startup(&streams[i], key);
            let (words, private_data) = (case.words[i], said.to_vec());
            let want = Startup { markers: false, crc: true, reject, revision, words, private_data };
            assert_eq!(startup, want, "{}", case.what);
            let fpdus = decode::fpdus(&streams[i], from, true, false);
            let seen = fpdus.iter().map(|f| {
                let (header, payload) = decode::segment(&f.ulpdu);
                // Even a Read of no bytes has a header.
                let len = if header.opcode == READ_REQUEST { 28 } else { 0 };
                assert_eq!(payload.len(), len, "{}", case.what);
                header.opcode
            });
            assert_eq!(seen.collect::<Vec<_>>(), case.first[i], "{}", case.what);
            let data = &streams[i].bytes[20..from];
            wanted.push((i, reject, revision, data.to_vec()));
        }
    }
    let names = [
        "iwarp_mpa.key.req",
        "iwarp_mpa.key.rep",
        "iwarp_mpa.marker_flag",
        "iwarp_mpa.crc_flag",
        "iwarp_mpa.rej_flag",
        "iwarp_mpa.rev",
        "iwarp_mpa.pdlength",
        "iwarp_mpa.privatedata",
    ];
    let rows = tshark::fields(&file, "iwarp_mpa.req || iwarp_mpa.rep", &names);
    assert_eq!(rows.len(), wanted.len());
    for (row, (i, reject, revision, data)) in rows.iter().zip(wanted) {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let key = |which: usize, text: &[u8]| if which == i { hex(text) } else { String::new() };
        let bit = |b| String::from(if b { "1" } else { "0" });
        let want = [
            key(0, b"MPA ID Req Frame"),
            key(1, b"MPA ID Rep Frame"),
            bit(false),
            bit(true),
            bit(reject),
            revision.to_string(),
            data.len().to_string(),
            hex(&data),
        ];
        assert_eq!(row.iter().map(|cell| cell.concat()).collect::<Vec<_>>(), want);
    }
}
