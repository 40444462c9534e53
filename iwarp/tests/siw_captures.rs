//! Linux siw's own traffic, read by this crate's parsers.
//!
//! `tests/data/siw/README.md` describes the captures and how they were made. The numbers expected
//! here are tshark's, not those of this crate.
#![allow(clippy::unwrap_used, reason = "a test has to fail loudly")]

mod support;

use heddle_iwarp::Msn;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::mpa::decode::{CrcVerdict, Decoded, Framing, decode};
use heddle_iwarp::mpa::fpdu;
use heddle_iwarp::mpa::frame::{Frame, HEADER_LEN, Kind};
use heddle_iwarp::mpa::startup::{
    Initiator, InitiatorConfig, InitiatorStep, Negotiated, ReplyParams, Responder, ResponderConfig,
    ResponderStep,
};
use heddle_iwarp::rdmap::{Opcode, ReadRequest};
use heddle_types::{
    Stag,
    mpa::{CrcPolicy, Revision, RtrSet},
};
use std::collections::{BTreeMap, BTreeSet};
use support::{Connection, captures_dir, connections};

struct Capture {
    file: &'static str,
    crc: bool,
    /// Numbers of FPDUs of Write, Read Request, Read Response, Send.
    fpdus: [usize; 4],
    /// rping's buffer size: bytes of one Read, and of one Write.
    size: usize,
}

const CAPTURES: [Capture; 6] = [
    Capture { file: "fixed-small.pcap", crc: false, fpdus: [10, 10, 10, 40], size: 64 },
    Capture { file: "fixed-page.pcap", crc: false, fpdus: [30, 10, 30, 40], size: 4096 },
    Capture { file: "fixed-large.pcap", crc: false, fpdus: [30, 2, 30, 8], size: 20000 },
    Capture { file: "crc-small.pcap", crc: true, fpdus: [10, 10, 10, 40], size: 64 },
    Capture { file: "crc-page.pcap", crc: true, fpdus: [30, 10, 30, 40], size: 4096 },
    Capture { file: "crc-large.pcap", crc: true, fpdus: [30, 2, 30, 8], size: 20000 },
];

/// The only connection of a capture, its start-up frames, and where FPDU mode begins.
struct Run {
    connection: Connection,
    client_start: usize,
    server_start: usize,
}

impl Run {
    fn of(capture: &Capture) -> Run {
        let mut all = connections(&captures_dir().join(capture.file));
        assert_eq!(all.len(), 1, "{}", capture.file);
        let connection = all.remove(0);
        let len = |kind, bytes| Frame::parse(kind, Revision::V2, bytes).unwrap().unwrap().1;
        let client_start = len(Kind::Request, &connection.from_client);
        let server_start = len(Kind::Reply, &connection.from_server);
        Run { connection, client_start, server_start }
    }

    fn request(&self) -> &[u8] {
        &self.connection.from_client[..self.client_start]
    }

    fn reply(&self) -> &[u8] {
        &self.connection.from_server[..self.server_start]
    }

    /// Returns the FPDUs of both directions; fails if a byte is left over.
    fn fpdus(&self, crc: bool) -> [Vec<Decoded<'_>>; 2] {
        let c = &self.connection;
        [&c.from_client[self.client_start..], &c.from_server[self.server_start..]].map(|stream| {
            let mut fpdus = decode(stream, Framing { crc, markers: false });
            let all: Vec<_> = fpdus.by_ref().collect();
            assert_eq!(fpdus.rest().len(), 0, "bytes that are no FPDU at {}", fpdus.offset());
            all
        })
    }
}

#[test]
fn test_capture_table_lists_every_file_of_its_folder() {
    let there: BTreeSet<String> = std::fs::read_dir(captures_dir())
        .unwrap_or_else(|e| panic!("{}: {e}", captures_dir().display()))
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|f| f.ends_with(".pcap"))
        .collect();
    let known: BTreeSet<String> = CAPTURES.iter().map(|c| c.file.to_string()).collect();
    assert_eq!(there, known);
}

#[test]
fn test_decoder_counts_as_many_fpdus_per_opcode_as_tshark() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        let mut counts = BTreeMap::new();
        for d in run.fpdus(capture.crc).iter().flatten() {
            let (_, control) = d.headers().unwrap_or_else(|e| panic!("{}: {e}", capture.file));
            *counts.entry(control.opcode).or_insert(0) += 1;
        }
        let [w, rr, rs, s] = capture.fpdus;
        let want = BTreeMap::from([
            (Opcode::WRITE, w),
            (Opcode::READ_REQUEST, rr),
            (Opcode::READ_RESPONSE, rs),
            (Opcode::SEND, s),
        ]);
        assert_eq!(counts, want, "{}", capture.file);
    }
}

#[test]
fn test_every_crc_is_good_if_negotiated_and_zero_if_not() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        for (d, stream) in run
            .fpdus(capture.crc)
            .iter()
            .zip([
                &run.connection.from_client[run.client_start..],
                &run.connection.from_server[run.server_start..],
            ])
            .flat_map(|(all, stream)| all.iter().map(move |d| (d, stream)))
        {
            if capture.crc {
                assert_eq!(d.crc, CrcVerdict::Good, "{} at {}", capture.file, d.offset);
            } else {
                assert_eq!(d.crc, CrcVerdict::Unused);
                let end = usize::try_from(d.offset).unwrap() + d.wire_len;
                assert_eq!(stream[end - 4..end], [0; 4], "{} at {}", capture.file, d.offset);
            }
        }
    }
}

#[test]
fn test_a_flipped_bit_anywhere_in_an_fpdu_fails_its_crc() {
    let run = Run::of(&CAPTURES[3]);
    let stream = &run.connection.from_client[run.client_start..];
    let first = decode(stream, Framing { crc: true, markers: false }).next().unwrap();
    // Leave the length alone: another length makes another FPDU.
    for bit in 16..first.wire_len * 8 {
        let mut bytes = stream[..first.wire_len].to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let d = decode(&bytes, Framing { crc: true, markers: false }).next().unwrap();
        assert!(matches!(d.crc, CrcVerdict::Bad { .. }), "bit {bit}");
    }
}

/// Writes the same headers again, as this crate would send them.
#[test]
fn test_emitted_headers_match_the_bytes_of_siw() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        for d in run.fpdus(capture.crc).iter().flatten() {
            let (ddp, _) = d.headers().unwrap();
            let mut ulpdu = vec![0; ddp.len()];
            ddp.emit(&mut ulpdu);
            assert_eq!(ulpdu, d.ulpdu[..ddp.len()], "{} at {}", capture.file, d.offset);
            ulpdu.extend_from_slice(d.payload());
            let mut again = Vec::new();
            fpdu::append(&ulpdu, capture.crc, &mut again).unwrap();
            assert_eq!(again.len(), d.wire_len);
        }
    }
}

#[test]
fn test_siw_messages_are_complete_numbered_in_order_and_answered() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        let [client, server] = run.fpdus(capture.crc);
        for side in [&client, &server] {
            let mut next = BTreeMap::from([(Qn::SEND, Msn(1)), (Qn::READ_REQUEST, Msn(1))]);
            for d in side {
                if let DdpHeader::Untagged { last, qn, msn, mo, rsvd_ulp32, .. } =
                    d.headers().unwrap().0
                {
                    assert_eq!((last, mo, rsvd_ulp32), (true, 0, 0), "rping's Sends are short");
                    assert_eq!(next.insert(qn, msn.next()), Some(msn), "{}", capture.file);
                }
            }
        }
        // The server reads the client's buffer, then writes it.
        let requests: Vec<ReadRequest> = server
            .iter()
            .filter(|d| d.headers().unwrap().1.opcode == Opcode::READ_REQUEST)
            .map(|d| ReadRequest::parse(d.payload()).unwrap())
            .collect();
        let response = tagged(&client, Opcode::READ_RESPONSE);
        assert_eq!(response.len(), requests.len(), "{}", capture.file);
        for (r, (stag, to, data)) in requests.iter().zip(&response) {
            assert_eq!((r.sink_stag, r.sink_to), (*stag, *to));
            assert_eq!((r.size as usize, data.len()), (capture.size, capture.size));
        }
        let writes = tagged(&server, Opcode::WRITE);
        assert_eq!(writes.len(), requests.len());
        for ((_, _, read), (_, _, written)) in response.iter().zip(&writes) {
            assert_eq!(read, written, "{}: rping writes back what it read", capture.file);
        }
    }
}

/// Returns the tagged messages of one opcode: STag, first offset, bytes.
fn tagged(side: &[Decoded<'_>], opcode: Opcode) -> Vec<(Stag, u64, Vec<u8>)> {
    let mut done: Vec<(Stag, u64, Vec<u8>)> = Vec::new();
    let mut open: Option<(Stag, u64, Vec<u8>)> = None;
    for d in side {
        let (ddp, control) = d.headers().unwrap();
        let DdpHeader::Tagged { last, stag, to, .. } = ddp else { continue };
        if control.opcode != opcode {
            continue;
        }
        let (s, start, mut data) = open.take().unwrap_or((stag, to, Vec::new()));
        assert_eq!((s, start + data.len() as u64), (stag, to), "segments follow each other");
        data.extend_from_slice(d.payload());
        if last {
            done.push((s, start, data));
        } else {
            open = Some((s, start, data));
        }
    }
    assert!(open.is_none(), "a message without its last segment");
    done
}

fn accept_like_siw(run: &Run, crc: CrcPolicy) -> (Vec<u8>, Negotiated) {
    let mut responder = Responder::new(&ResponderConfig { crc, ..Default::default() }).unwrap();
    let step = responder.handle_bytes(run.request()).unwrap();
    let ResponderStep::Request { peer, revision, private_data, .. } = step else {
        panic!("{step:?}")
    };
    assert_eq!((revision, private_data), (Revision::V2, vec![]));
    let peer = peer.unwrap();
    assert_eq!((peer.ird.get(), peer.ord.get(), peer.rtr), (Some(1), Some(1), RtrSet::NONE));
    responder.accept(&ReplyParams { ird: 1, ord: 1, private_data: &[] }).unwrap()
}

#[test]
fn test_responder_replies_to_siw_as_siw_does() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        let (reply, n) = accept_like_siw(&run, CrcPolicy::Off);
        assert_eq!(reply, run.reply(), "{}", capture.file);
        assert_eq!((n.crc, n.ird, n.ord, n.send_markers), (capture.crc, 1, 1, false));
        let (_, n) = accept_like_siw(&run, CrcPolicy::Required);
        assert!(n.crc);
    }
}

#[test]
fn test_initiator_connects_to_siw_with_the_request_siw_sends() {
    for capture in &CAPTURES {
        let run = Run::of(capture);
        let crc = if capture.crc { CrcPolicy::Required } else { CrcPolicy::Off };
        let config = InitiatorConfig { crc, ird: 1, ord: 1, ..Default::default() };
        let mut initiator = Initiator::new(&config).unwrap();
        assert_eq!(initiator.request(), run.request(), "{}", capture.file);
        let (first, rest) = run.reply().split_at(HEADER_LEN);
        assert_eq!(initiator.handle_bytes(first), Ok(InitiatorStep::NeedMore));
        let step = initiator.handle_bytes(rest).unwrap();
        let InitiatorStep::Connected { negotiated: n, .. } = step else { panic!("{step:?}") };
        assert_eq!((n.crc, n.ird, n.ord, n.rtr), (capture.crc, 1, 1, None));
    }
}
