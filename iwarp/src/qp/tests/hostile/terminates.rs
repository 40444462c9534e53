//! Bytes in, bytes out: the bytes that a hostile peer sends, and the Terminate that answers them.
//! The tests write both as the RFCs' figures have them, and share only the CRC with the code under
//! test.

use super::*;
use crate::fault::{Answer, Fault};
use std::collections::BTreeSet;

use heddle_types::{CqeStatus, SendOp};

/// DDP and RDMAP control bytes, STag, tagged offset (RFC 5041 figure 3).
fn t(ddp: u8, rdmap: u8, stag: Stag, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[ddp, rdmap][..], &stag.0.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// DDP and RDMAP control bytes, STag to invalidate, queue, MSN, offset (RFC 5041 figure 5).
fn u(ddp: u8, rdmap: u8, inv: Stag, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let [inv, qn, msn, mo] = [inv.0, qn, msn, mo].map(u32::to_be_bytes);
    [&[ddp, rdmap][..], &inv, &qn, &msn, &mo, payload].concat()
}

/// A Read Request (RFC 5040 figure 6) of MSN 1: sink STag 6, offset 99.
fn r(size: u32, src: Stag, src_to: u64) -> Vec<u8> {
    let mut payload = [0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 99].to_vec();
    payload.extend(size.to_be_bytes());
    payload.extend(src.0.to_be_bytes());
    payload.extend(src_to.to_be_bytes());
    u(0x41, 0x41, Stag(0), [1, 1, 0], &payload)
}

/// Returns the FPDU of `ulpdu` (RFC 5044 figure 2).
fn f(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    while bytes.len() % 4 != 0 {
        bytes.push(0);
    }
    let crc = crc32c::crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// The segments that the peer sends: good ones, then a bad one.
type Sent = fn(&Target) -> Vec<Vec<u8>>;
/// A name, the segments, the control field of the Terminate, and the bytes of the last segment that
/// follow its length in the Terminate.
type Case = (&'static str, Sent, [u8; 4], usize);

const NONE: Stag = Stag(0);
const X: &[u8] = &[0x5a; 8];
const WRAP: u64 = u64::MAX - 6;
const END: u64 = TO + LEN as u64;

fn other_pd(target: &Target) -> Stag {
    target.mrs.register(Pd(4), ADDR, TO, LEN.into(), rights()).unwrap().stag
}

fn other_stream(target: &Target) -> Stag {
    let access = rights().with(Access::REMOTE_INVALIDATE);
    target.mrs.register_for_qp(PD, Qpn(6), ADDR, TO, LEN.into(), access).unwrap().stag
}

fn gone(target: &Target) -> Stag {
    let stag = target.region(rights());
    target.mrs.deregister(stag).unwrap();
    stag
}

const CASES: &[Case] = &[
    // RFC 5041 section 7.2, type 1.
    ("an STag of none", |_| vec![t(0xc1, 0x40, Stag(9), TO, X)], [0x11, 0, 0xc0, 0], 14),
    ("an STag that is gone", |g| vec![t(0xc1, 0x40, gone(g), TO, X)], [0x11, 0, 0xc0, 0], 14),
    (
        "a region that may not be written",
        |g| vec![t(0xc1, 0x40, g.region(Access::REMOTE_READ), TO, X)],
        [0x11, 0, 0xc0, 0],
        14,
    ),
    (
        "a Write before its region",
        |g| vec![t(0xc1, 0x40, g.all, TO - 1, X)],
        [0x11, 1, 0xc0, 0],
        14,
    ),
    ("a Write past its region", |g| vec![t(0xc1, 0x40, g.all, END - 7, X)], [0x11, 1, 0xc0, 0], 14),
    ("an STag of another PD", |g| vec![t(0xc1, 0x40, other_pd(g), TO, X)], [0x11, 2, 0xc0, 0], 14),
    (
        "an STag of another stream",
        |g| vec![t(0xc1, 0x40, other_stream(g), TO, X)],
        [0x11, 2, 0xc0, 0],
        14,
    ),
    ("a Write that wraps", |g| vec![t(0xc1, 0x40, g.all, WRAP, X)], [0x11, 3, 0xc0, 0], 14),
    ("tagged, DDP version 0", |g| vec![t(0xc0, 0x40, g.all, TO, X)], [0x11, 4, 0xc0, 0], 14),
    ("tagged, DDP version 2", |g| vec![t(0xc2, 0x40, g.all, TO, X)], [0x11, 4, 0xc0, 0], 14),
    // Type 2.
    ("queue 4", |_| vec![u(0x41, 0x43, NONE, [4, 1, 0], X)], [0x12, 1, 0xc0, 0], 18),
    ("queue 2^32 - 1", |_| vec![u(0x41, 0x43, NONE, [!0, 1, 0], X)], [0x12, 1, 0xc0, 0], 18),
    (
        "a third Send to two buffers",
        |_| (1..4).map(|msn| u(0x41, 0x43, NONE, [0, msn, 0], X)).collect(),
        [0x12, 2, 0xc0, 0],
        18,
    ),
    ("MSN 0", |_| vec![u(0x41, 0x43, NONE, [0, 0, 0], X)], [0x12, 3, 0xc0, 0], 18),
    ("MSN 2 before 1", |_| vec![u(0x41, 0x43, NONE, [0, 2, 0], X)], [0x12, 3, 0xc0, 0], 18),
    (
        "a Read Request of MSN 2",
        |_| vec![u(0x41, 0x41, NONE, [1, 2, 0], X)],
        [0x12, 3, 0xc0, 0],
        18,
    ),
    ("offset 8 before 0", |_| vec![u(0x41, 0x43, NONE, [0, 1, 8], X)], [0x12, 4, 0xc0, 0], 18),
    (
        "65 bytes for a buffer of 64",
        |_| vec![u(0x41, 0x43, NONE, [0, 1, 0], &[0; 65])],
        [0x12, 5, 0xc0, 0],
        18,
    ),
    (
        "untagged, DDP version 0",
        |_| vec![u(0x40, 0x43, NONE, [0, 1, 0], X)],
        [0x12, 6, 0xc0, 0],
        18,
    ),
    (
        "untagged, DDP version 3",
        |_| vec![u(0x43, 0x43, NONE, [0, 1, 0], X)],
        [0x12, 6, 0xc0, 0],
        18,
    ),
    // RFC 5040 figure 9, type 1. Only these Terminates repeat a Read Request's own header.
    ("a Read of an STag of none", |_| vec![r(8, Stag(9), TO)], [0x01, 0, 0xe0, 0], 46),
    ("a Read past its region", |g| vec![r(8, g.all, END - 7)], [0x01, 1, 0xe0, 0], 46),
    (
        "a Read of what may not be read",
        |g| vec![r(8, g.region(Access::REMOTE_WRITE), TO)],
        [0x01, 2, 0xe0, 0],
        46,
    ),
    ("a Read of another PD", |g| vec![r(8, other_pd(g), TO)], [0x01, 3, 0xe0, 0], 46),
    ("a Read of another stream", |g| vec![r(8, other_stream(g), TO)], [0x01, 3, 0xe0, 0], 46),
    ("a Read that wraps", |g| vec![r(8, g.all, WRAP)], [0x01, 4, 0xe0, 0], 46),
    // Section 5.3: every reason that keeps an STag from being invalidated.
    ("invalidate none", |_| vec![u(0x41, 0x44, Stag(9), [0, 1, 0], X)], [0x01, 9, 0xc0, 0], 18),
    ("invalidate STag 0", |_| vec![u(0x41, 0x44, NONE, [0, 1, 0], X)], [0x01, 9, 0xc0, 0], 18),
    (
        "invalidate what is gone",
        |g| vec![u(0x41, 0x44, gone(g), [0, 1, 0], X)],
        [0x01, 9, 0xc0, 0],
        18,
    ),
    (
        "invalidate another PD's",
        |g| vec![u(0x41, 0x44, other_pd(g), [0, 1, 0], X)],
        [0x01, 9, 0xc0, 0],
        18,
    ),
    (
        "invalidate another stream's, with an event",
        |g| vec![u(0x41, 0x46, other_stream(g), [0, 1, 0], X)],
        [0x01, 9, 0xc0, 0],
        18,
    ),
    (
        "invalidate what is shared",
        |g| vec![u(0x41, 0x44, g.all, [0, 1, 0], X)],
        [0x01, 9, 0xc0, 0],
        18,
    ),
    (
        "invalidate without the right",
        |g| {
            let mr = g.mrs.register_for_qp(PD, QPN, ADDR, TO, LEN.into(), rights()).unwrap();
            vec![u(0x41, 0x44, mr.stag, [0, 1, 0], X)]
        },
        [0x01, 9, 0xc0, 0],
        18,
    ),
    // Type 2.
    ("tagged, RDMAP version 2", |g| vec![t(0xc1, 0x80, g.all, TO, X)], [0x02, 5, 0xc0, 0], 14),
    (
        "untagged, RDMAP version 3",
        |_| vec![u(0x41, 0xc3, NONE, [0, 1, 0], X)],
        [0x02, 5, 0xc0, 0],
        18,
    ),
    ("opcode 15", |_| vec![u(0x41, 0x4f, NONE, [0, 1, 0], X)], [0x02, 6, 0xc0, 0], 18),
    ("a tagged Send", |g| vec![t(0xc1, 0x43, g.all, TO, X)], [0x02, 6, 0xc0, 0], 14),
    ("an untagged Write", |_| vec![u(0x41, 0x40, NONE, [0, 1, 0], X)], [0x02, 6, 0xc0, 0], 18),
    ("a Send on queue 1", |_| vec![u(0x41, 0x43, NONE, [1, 1, 0], X)], [0x02, 6, 0xc0, 0], 18),
    ("a response nobody asked for", |g| vec![t(0xc1, 0x42, g.all, TO, X)], [0x02, 6, 0xc0, 0], 14),
    ("half a tagged header", |_| vec![vec![0xc1, 0x40, 0]], [0x02, 7, 0, 0], 0),
    ("no header", |_| vec![vec![]], [0x02, 7, 0, 0], 0),
    ("half a Read Request", |g| vec![r(8, g.all, TO)[..32].to_vec()], [0x02, 7, 0xc0, 0], 18),
];

/// Returns the Terminate as one FPDU: untagged and last, DDP version 1; RDMAP version 1, opcode 7;
/// queue 2, MSN 1, offset 0; control field; and the length and the headers of the segment at fault.
fn terminate(control: [u8; 4], segment: &[u8], copied: usize) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    ulpdu.extend(control);
    if copied > 0 {
        ulpdu.extend(u16::try_from(segment.len()).unwrap().to_be_bytes());
        ulpdu.extend(&segment[..copied]);
    }
    f(&ulpdu)
}

#[test]
fn test_wrong_segment_is_answered_with_exact_bytes_of_its_terminate() {
    for (what, sent, control, copied) in CASES {
        let mut target = Target::new();
        let segments = sent(&target);
        let (last, good) = segments.split_last().unwrap();
        for segment in good {
            target.feed_raw(&f(segment));
            assert_eq!(target.qp.state(), ConnectedState::Rts, "{what}");
        }
        let before = target.mem.snapshot();
        target.feed_raw(&f(last));
        assert_eq!(target.transmit(), [terminate(*control, last, *copied)], "{what}");
        assert_eq!(target.mem.snapshot(), before, "{what}");
        assert_eq!(target.qp.state(), ConnectedState::Terminate, "{what}");
    }
}

#[test]
fn test_terminate_for_damaged_fpdu_carries_no_headers() {
    let mut target = Target::new();
    let mut bytes = f(&u(0x41, 0x43, NONE, [0, 1, 0], X));
    bytes[22] ^= 1;
    target.feed_raw(&bytes);
    assert_eq!(target.transmit(), [terminate([0x20, 2, 0, 0], &[], 0)]);
}

#[test]
fn test_terminate_for_own_mistake_carries_no_headers() {
    // An unregistered receive buffer, and a Write from an unregistered one.
    let mut target = Target::new();
    target.mrs.deregister(target.all).unwrap();
    target.feed_raw(&f(&u(0x41, 0x43, NONE, [0, 1, 0], X)));
    assert_eq!(target.transmit(), [terminate([0, 0, 0, 0], &[], 0)]);
    let mut target = Target::new();
    target.mrs.deregister(target.all).unwrap();
    target.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    assert_eq!(target.transmit(), [terminate([0, 0, 0, 0], &[], 0)]);
}

/// Wrong answers to a Read of 200 bytes.
#[test]
fn test_wrong_response_is_answered_with_exact_bytes_of_its_terminate() {
    let cases: &[Case] = &[
        ("another STag", |g| vec![t(0x81, 0x42, Stag(g.all.0 ^ 1), TO, X)], [0x11, 0, 0xc0, 0], 14),
        ("another offset", |g| vec![t(0x81, 0x42, g.all, TO + 1, X)], [0x11, 1, 0xc0, 0], 14),
        ("too much", |g| vec![t(0xc1, 0x42, g.all, TO, &[0; 201])], [0x11, 1, 0xc0, 0], 14),
        ("too little", |g| vec![t(0xc1, 0x42, g.all, TO, X)], [0x02, 7, 0xc0, 0], 14),
    ];
    for (what, sent, control, copied) in cases {
        let mut target = Target::with_read();
        let segment = sent(&target).remove(0);
        target.feed_raw(&f(&segment));
        assert_eq!(target.transmit(), [terminate(*control, &segment, *copied)], "{what}");
    }
}

/// The cases above include every code that a queue pair answers with today.
#[test]
fn test_every_terminate_code_of_a_queue_pair_has_a_test_case() {
    let mut seen: BTreeSet<_> = CASES.iter().map(|(_, _, c, _)| (c[0], c[1])).collect();
    seen.extend([(0x20, 2), (0, 0)]);
    let table: BTreeSet<_> = Fault::ALL
        .iter()
        .filter(|fault| fault.answer() != Answer::Nothing && is_a_streams(**fault))
        .map(|fault| (fault.code().layer << 4 | fault.code().etype, fault.code().code))
        .collect();
    assert_eq!(seen, table);
}

/// Returns true if these cases can have the fault: they use no markers, and the start-up is over.
fn is_a_streams(fault: Fault) -> bool {
    let startup = [Fault::StartupLocal, Fault::InsufficientIrd, Fault::NoMatchingRtr];
    fault != Fault::Marker && !startup.contains(&fault)
}

/// RFC 5044 section 7.1.2, rule 4: a responder validates an FPDU before it sends one. To MPA an
/// FPDU is valid when its CRC is right.
#[test]
fn test_responder_does_not_answer_a_damaged_first_fpdu() {
    let responder = || QpConfig { role: Role::Responder, ..QpConfig::default() };
    let good = f(&t(0xc1, 0x40, NONE, 0, &[]));
    let mut bad = good.clone();
    bad[9] ^= 1;
    let mut target = Target::with(responder());
    target.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    assert_eq!(target.feed_raw(&bad), bad.len());
    assert_eq!((target.transmit(), target.qp.has_transmit()), (vec![], false));
    assert_eq!(target.qp.state(), ConnectedState::Error);
    let code = TermCode::new(2, 0, 2);
    assert_eq!(events(&mut target.qp), [QpEvent::Failed { code }]);
    let done = completions(&mut target.qp);
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 100, 101]);
    assert!(done.iter().all(|c| c.status == CqeStatus::Flushed));
    assert_eq!((target.qp.counters().err_crc, target.qp.counters().tx_terminates), (1, 0));
    // An initiator may answer, and so may a responder after a good FPDU.
    let mut target = Target::new();
    target.feed_raw(&bad);
    assert_eq!(target.transmit(), [terminate([0x20, 2, 0, 0], &[], 0)]);
    let mut target = Target::with(responder());
    target.feed_raw(&[good, bad].concat());
    assert_eq!(target.transmit(), [terminate([0x20, 2, 0, 0], &[], 0)]);
}

/// A first FPDU that DDP or RDMAP refuses has passed MPA, so the responder sends a Terminate.
#[test]
fn test_responder_answers_refused_first_fpdu_whose_crc_is_right() {
    let mut target = Target::with(QpConfig { role: Role::Responder, ..QpConfig::default() });
    let segment = t(0xc1, 0x40, Stag(9), TO, X);
    target.feed_raw(&f(&segment));
    assert_eq!(target.transmit(), [terminate([0x11, 0, 0xc0, 0], &segment, 14)]);
}

fn terminate_of(body: [u8; 4]) -> Vec<u8> {
    cat(&untagged(Opcode::TERMINATE, true, 2, 1, 0), &body)
}

/// The peer's Terminate has room whatever the application has posted, and takes no receive: the QP
/// flushes the receives and fills none.
#[test]
fn test_terminate_of_peer_takes_no_receive_buffer() {
    for (received, left) in [(0, vec![100, 101]), (2, vec![])] {
        let mut t = Target::new();
        for msn in 1..=received {
            t.accepts(&send(msn, 0, true, 8));
        }
        completions(&mut t.qp);
        let memory = t.mem.snapshot();
        t.feed(&terminate_of([0x12, 0x02, 0, 0]));
        let remote = QpEvent::Terminated { by: Side::Remote, code: TermCode::DDP_NO_BUFFER };
        assert_eq!(events(&mut t.qp).last(), Some(&remote));
        let done = completions(&mut t.qp);
        assert!(done.iter().all(|c| c.status == CqeStatus::Flushed));
        assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), left);
        assert_eq!(t.mem.snapshot(), memory);
    }
}

/// The first Terminate takes that room: a second one changes and reports nothing.
#[test]
fn test_second_terminate_of_peer_is_dropped() {
    let mut t = Target::new();
    let both = [terminate_of([0x12, 0x02, 0, 0]), terminate_of([0x11, 0x01, 0, 0])];
    let bytes: Vec<u8> = both.iter().flat_map(|s| framed(s, true)).collect();
    assert_eq!(t.feed_raw(&bytes), bytes.len());
    let remote = QpEvent::Terminated { by: Side::Remote, code: TermCode::DDP_NO_BUFFER };
    assert_eq!(events(&mut t.qp), [remote]);
    let c = t.qp.counters();
    assert_eq!((c.rx_terminates, c.rx_dropped_bytes), (1, bytes.len() as u64 / 2));
    assert!(t.transmit().is_empty(), "and neither is answered");
}

/// This side sends one Terminate and nothing after it, whatever else goes wrong or is posted.
#[test]
fn test_queue_pair_sends_one_terminate_and_nothing_after_it() {
    let mut t = Target::new();
    t.post(1, SendOp::Write { stag: Stag(9), to: 0 });
    t.feed(&send(9, 0, true, 8));
    assert_eq!(t.transmit().len(), 1);
    t.feed(&write(Stag(1), 0, 8));
    t.feed(&read_request(1, t.all, TO, 8));
    t.post(2, SendOp::Write { stag: Stag(9), to: 0 });
    t.qp.close();
    assert!(!t.qp.has_transmit());
    assert!(t.transmit().is_empty());
}
