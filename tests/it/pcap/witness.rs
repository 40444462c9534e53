//! Every message of RFC 5040 and 7306 goes both ways between two RNICs, and three witnesses report
//! what was on the wire: tshark, the decoder beside this, and the counters of the queue pairs.
//!
//! Only the decoder checks what tshark 4.0 does not know:
//!
//! * FPDUs with markers, all of them;
//! * the name of Immediate Data, and its content;
//! * IRD, ORD and the flags beside them (`startup`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use heddle::connection::{
    AcceptParams, CmEvent, ConnectParams, CrcPolicy, DisconnectReason, ListenParams, MpaOptions,
    TermCode,
};
use heddle::queue::CqeOp;
use heddle::{Cqe, SendWr, Stag};
use heddle_iwarp::QpCounters;
use tempfile::TempDir;

use crate::eal::eal;
use crate::pcap::decode::{self, Fpdu, Message, Place, Startup, Stream, Words};
use crate::pcap::script::{self, *};
use crate::pcap::tshark::{self, BAD, tshark};
use crate::pcap::wire::{self, IPS, PORT, Wire};

/// A way to go over the wire.
#[derive(Clone, Copy, Debug)]
struct Mode {
    crc: bool,
    markers: bool,
    cut: Option<usize>,
}

/// The results of a run.
struct Run {
    _dir: TempDir,
    file: PathBuf,
    /// The requests and the answers that each side had to send; the responder's Terminate comes
    /// after them.
    wanted: [(Vec<Message>, Vec<Message>); 2],
    counters: [QpCounters; 2],
}

const ASKED: &[u8] = b"asked for";
const ANSWERED: &[u8] = b"and answered";

fn established(
    wire: &mut Wire,
    mode: Mode,
    sides: &[script::Side; 2],
) -> [heddle::connection::EventQueue; 2] {
    let crc = if mode.crc { CrcPolicy::Required } else { CrcPolicy::Off };
    let mpa = MpaOptions::new().crc(crc).markers(mode.markers);
    let theirs = wire.listen(PORT, ListenParams::default().mpa(mpa));
    let ours = heddle::connection::EventQueue::new(None);
    let params = ConnectParams {
        private_data: ASKED.to_vec(),
        ..ConnectParams::new(sides[0].qp.clone()).mpa(mpa).reads(5, 6)
    };
    wire.ends[0].device().connect((IPS[1], PORT).into(), params, &ours).unwrap();
    let CmEvent::ConnectRequest { id, private_data, .. } = wire.event(&theirs) else {
        panic!("a request")
    };
    assert_eq!(private_data, ASKED);
    let params = AcceptParams {
        private_data: ANSWERED.to_vec(),
        ..AcceptParams::new(sides[1].qp.clone()).reads(6, 5)
    };
    wire.ends[1].device().accept(id, params).unwrap();
    for events in [&ours, &theirs] {
        assert!(matches!(wire.event(events), CmEvent::Established { .. }));
    }
    [ours, theirs]
}

/// Performs everything in both directions at once, and at the end a Write that the responder has to
/// refuse.
fn run(mode: Mode) -> Run {
    let (eal, _turn) = eal();
    let mut wire = Wire::new(&eal, mode.cut);
    let sides = [0, 1].map(|n| script::Side::new(&wire.ends[usize::from(n)], n));
    let events = established(&mut wire, mode, &sides);
    let mut scripts = [0, 1].map(|number| script::run(&sides, number));
    for i in [0, 1] {
        let mut receives = scripts[1 - i].requests.iter().filter(takes_receive);
        let mut left = receives.clone().count();
        let mut done = 0;
        wire.until("all completions", |_| {
            while let Some(c) = sides[i].cq.poll() {
                assert!(c.status.is_success(), "{c:?}");
                if c.op == CqeOp::Recv {
                    assert_told(&c, receives.next().unwrap());
                    left -= 1;
                } else {
                    assert_eq!((c.wr_id, c.op), (done as u64, scripts[i].posted[done]));
                    done += 1;
                }
            }
            (left == 0 && done == scripts[i].posted.len()).then_some(())
        });
    }
    for (number, side) in [0, 1].into_iter().zip(&sides) {
        script::check_memory(side, number);
    }
    // No side has a region with this STag.
    let nowhere = Stag(0xdead_be00);
    sides[0].qp.post_send(&SendWr::write_inline(0, b"where to?", nowhere, 0x1234)).unwrap();
    scripts[0].requests.push(Message {
        opcode: WRITE,
        place: Place::Tagged { stag: nowhere.0, to: 0x1234 },
        payload: b"where to?".to_vec(),
    });
    let ends = [DisconnectReason::RemoteTerminate, DisconnectReason::LocalTerminate];
    for (events, end) in events.iter().zip(ends) {
        let CmEvent::Disconnected { reason, .. } = wire.event(events) else { panic!("the end") };
        assert_eq!(reason, end(TermCode::DDP_INVALID_STAG));
    }
    wire.pass(Duration::from_millis(100));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wire.pcap");
    wire.save(&file);
    let counters = [0, 1].map(|i: usize| wire.ends[i].snapshot().worker.engine.qps);
    let [ours, theirs] = scripts;
    // Each side answers the other side's requests.
    let wanted = [(ours.requests, theirs.answers), (theirs.requests, ours.answers)];
    Run { _dir: dir, file, wanted, counters }
}

/// Returns true if the message completes a receive of the other side.
fn takes_receive(m: &&Message) -> bool {
    matches!(m.opcode, SEND..=SEND_SE_INV | IMMEDIATE | IMMEDIATE_SE)
}

/// Checks that a completion reports what the message says.
fn assert_told(c: &Cqe, m: &Message) {
    let solicited = matches!(m.opcode, SEND_SE | SEND_SE_INV | IMMEDIATE_SE);
    let Place::Untagged { invalidate, .. } = m.place else { panic!("{m:?}") };
    let invalidated = (invalidate != 0).then_some(Stag(invalidate));
    let immediate = matches!(m.opcode, IMMEDIATE | IMMEDIATE_SE);
    let immediate = immediate.then(|| u64::from_be_bytes(m.payload[..].try_into().unwrap()));
    let told = (c.solicited, c.invalidated, c.immediate);
    assert_eq!(told, (solicited, invalidated, immediate), "{m:?}");
    assert!(immediate.is_some() || c.len as usize == m.payload.len(), "{c:?}");
}

/// Returns the FPDUs of both directions, which begin after the Request and the Reply; these must
/// have the requested flags.
fn fpdus(streams: &[Stream; 2], mode: Mode) -> [Vec<Fpdu>; 2] {
    let Mode { crc, markers, .. } = mode;
    let of = |i: usize, key, private_data: &[u8], words| {
        let (startup, from) = decode::startup(&streams[i], key);
        let private_data = private_data.to_vec();
        let want = Startup { markers, crc, reject: false, revision: 2, words, private_data };
        assert_eq!(startup, want);
        decode::fpdus(&streams[i], from, crc, markers)
    };
    let words = |ird, ord| Some(Words { ird, ord, flags: [false; 4] });
    [
        of(0, b"MPA ID Req Frame", ASKED, words(5, 6)),
        of(1, b"MPA ID Rep Frame", ANSWERED, words(6, 5)),
    ]
}

/// Returns true if a message is an answer of its sender to the other side.
fn is_answer(m: &Message) -> bool {
    matches!(m.opcode, READ_RESPONSE | ATOMIC_RESPONSE)
}

/// Checks that the messages equal those of the scripts, byte for byte.
fn check_messages(run: &Run, messages: &[Vec<Message>; 2]) {
    for (i, all) in messages.iter().enumerate() {
        let (answers, mut requests): (Vec<_>, Vec<_>) =
            all.iter().map(without_mark).partition(is_answer);
        if i == 1 {
            let terminate = requests.pop().unwrap();
            let place = Place::Untagged { invalidate: 0, qn: 2, msn: 1, mo: 0 };
            assert_eq!((terminate.opcode, terminate.place), (TERMINATE, place));
            // RFC 5040 section 4.8: DDP, tagged buffer error, invalid STag; M and D; the length of
            // the segment, which is 14 bytes of header and 9 of payload, and the header.
            let mut want = vec![0x11, 0x00, 0xc0, 0x00, 0, 23, 0xc1, 0x40];
            want.extend(0xdead_be00_u32.to_be_bytes());
            want.extend(0x1234_u64.to_be_bytes());
            assert_eq!(terminate.payload, want);
        }
        let (want, want_answers) = &run.wanted[i];
        assert!(requests == *want, "side {i}: {:?}", difference(&requests, want));
        assert!(answers == *want_answers, "side {i}: {:?}", difference(&answers, want_answers));
        // Each answer belongs to the oldest waiting request; the distinct marks of the requests
        // show that.
        let asked = marks(&messages[1 - i], ATOMIC_REQUEST);
        assert_eq!(marks(all, ATOMIC_RESPONSE), asked);
        assert!(asked.windows(2).all(|w| w[0] != w[1]), "{asked:?}");
    }
}

/// Returns the first message that differs from the expected one, and the expected one.
fn difference(
    are: &[Message],
    want: &[Message],
) -> Option<(usize, Option<Message>, Option<Message>)> {
    let n = (0..are.len().max(want.len())).find(|n| are.get(*n) != want.get(*n))?;
    Some((n, are.get(n).cloned(), want.get(n).cloned()))
}

/// Counts the opcodes of the messages that each side has sent.
fn opcodes(all: &[Vec<Message>; 2]) -> [BTreeMap<u8, u64>; 2] {
    [0, 1].map(|i: usize| {
        let mut n = BTreeMap::new();
        all[i].iter().for_each(|m| *n.entry(m.opcode).or_default() += 1);
        n
    })
}

/// Checks that the queue pairs have counted exactly what was on the wire.
fn check_counters(run: &Run, fpdus: &[Vec<Fpdu>; 2], messages: &[Vec<Message>; 2]) {
    let opcodes = opcodes(messages);
    for i in [0, 1] {
        let c = &run.counters[i];
        let n = |side: usize, op| opcodes[side].get(&op).copied().unwrap_or(0);
        let (from_us, from_peer) = (|op| n(i, op), |op| n(1 - i, op));
        // The responder counts all FPDUs as good except the Write that it refuses.
        let good = fpdus[1 - i].len() as u64 - u64::from(i == 1);
        let sends = [SEND, SEND_INV, SEND_SE, SEND_SE_INV].map(from_peer).iter().sum();
        for (name, counted, seen) in [
            ("tx_fpdus", c.tx_fpdus, fpdus[i].len() as u64),
            ("rx_fpdus", c.rx_fpdus, good),
            ("rx_sends", c.rx_sends, sends),
            ("rx_immediates", c.rx_immediates, from_peer(IMMEDIATE) + from_peer(IMMEDIATE_SE)),
            ("rx_read_requests", c.rx_read_requests, from_peer(READ_REQUEST)),
            ("rx_read_responses", c.rx_read_responses, from_peer(READ_RESPONSE)),
            ("rx_atomic_requests", c.rx_atomic_requests, from_peer(ATOMIC_REQUEST)),
            ("tx_atomic_responses", c.tx_atomic_responses, from_us(ATOMIC_RESPONSE)),
            ("rx_atomic_responses", c.rx_atomic_responses, from_peer(ATOMIC_RESPONSE)),
            ("tx_terminates", c.tx_terminates, from_us(TERMINATE)),
            ("rx_terminates", c.rx_terminates, from_peer(TERMINATE)),
            ("err_stag", c.err_stag, i as u64),
        ] {
            assert_eq!(counted, seen, "side {i}: {name}");
        }
        let all = |op: u8| from_us(op) > 0 || op == TERMINATE && i == 0;
        assert!((WRITE..=ATOMIC_RESPONSE).all(all), "{opcodes:?}");
    }
}

fn witness(mode: Mode) {
    let run = run(mode);
    let connections = decode::connections(&run.file);
    let [streams] = &connections[..] else { panic!("one connection") };
    let fpdus = fpdus(streams, mode);
    let messages = [0, 1].map(|i: usize| decode::messages(&fpdus[i]));
    check_messages(&run, &messages);
    check_counters(&run, &fpdus, &messages);
    if mode.markers {
        // tshark decodes the Request and the Reply, and nothing after them.
        assert_eq!(tshark(&run.file, &["-Y", BAD]), "");
    } else {
        tshark::check(&run.file, mode.crc, &fpdus, &messages);
    }
    for fpdus in &fpdus {
        assert!(fpdus.windows(2).any(|w| w[0].frames == w[1].frames), "two in one segment");
        // RFC 5044 section 3: our FPDUs lie within one segment, unless the wire cuts them.
        assert_eq!(fpdus.iter().any(|f| f.frames.0 != f.frames.1), mode.cut.is_some());
        assert_eq!(fpdus.iter().any(|f| f.markers > 0), mode.markers);
    }
}

/// Where the wire cuts segments: not at a multiple of four bytes.
const CUT: Option<usize> = Some(701);

#[test]
fn test_tshark_and_decoder_read_every_opcode_with_crc() {
    witness(Mode { crc: true, markers: false, cut: None });
}

#[test]
fn test_tshark_and_decoder_read_every_opcode_without_crc() {
    witness(Mode { crc: false, markers: false, cut: None });
}

#[test]
fn test_tshark_and_decoder_read_fpdus_across_segments() {
    for crc in [true, false] {
        witness(Mode { crc, markers: false, cut: CUT });
    }
}

/// tshark 4.0 takes the marker before the first FPDU for its length field, and so finds no FPDU at
/// all.
#[test]
fn test_decoder_reads_every_opcode_with_markers() {
    for (crc, cut) in [(true, None), (false, None), (true, CUT), (false, CUT)] {
        witness(Mode { crc, markers: true, cut });
    }
}

/// The judges can fail a capture: the test changes a byte in a segment and corrects the TCP
/// checksum.
#[test]
fn test_tshark_and_decoder_detect_a_damaged_fpdu() {
    let mode = Mode { crc: true, markers: false, cut: None };
    let run = run(mode);
    let file = run.file.with_file_name("damaged.pcap");
    let good = tshark::crcs(&run.file).0;
    // The payload of a Send begins after 18 bytes of header.
    let at = |f: &Fpdu| f.ulpdu.len() == 18 + 33;
    let connections = decode::connections(&run.file);
    let frame = fpdus(&connections[0], mode)[0].iter().find(|f| at(f)).unwrap().frames.1;
    let mut packets = decode::packets(&run.file);
    wire::change(packets[frame - 1].data.to_mut(), |payload| payload[60] ^= 1);
    wire::write(&file, packets.iter().map(|p| (p.timestamp, &*p.data)));
    assert_eq!(tshark(&file, &["-Y", "tcp.checksum.status == 0"]), "");
    assert_eq!(tshark::crcs(&file), (good - 1, 1));
    let connections = decode::connections(&file);
    let refused = catch_unwind(AssertUnwindSafe(|| fpdus(&connections[0], mode)));
    assert!(refused.is_err(), "the decoder has not seen it");
}

/// With markers only the decoder is left to judge: it notices any changed byte, markers included.
#[test]
fn test_decoder_detects_damaged_stream_with_markers() {
    let mode = Mode { crc: true, markers: true, cut: None };
    let run = run(mode);
    let [[mut stream, _]] = decode::connections(&run.file).try_into().ok().unwrap();
    let (_, from) = decode::startup(&stream, b"MPA ID Req Frame");
    let read = |s: &Stream| catch_unwind(AssertUnwindSafe(|| decode::fpdus(s, from, true, true)));
    assert!(read(&stream).is_ok());
    // Change a byte of the marker, the length, the headers, the payload, the padding and the CRC of
    // the first FPDU, and of a marker inside a later FPDU.
    for at in [0, 3, 5, 6, 20, 27, 28, 512, 515] {
        stream.bytes[from + at] ^= 1;
        assert!(read(&stream).is_err(), "byte {at}");
        stream.bytes[from + at] ^= 1;
    }
}
