//! Established connections whose peer breaks the rules of MPA, DDP and RDMAP: each ends with the
//! right Terminate on the wire, an event, a counter and flushed work requests; no byte of memory
//! changes, and a connection beside it goes on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::rdmap::{Control, Opcode, ReadRequest, TERMINATE_MAX_LEN, TermCode, Terminate};
use heddle_iwarp::{Msn, QpCounters};
use heddle_tcp::{ConnEvent, ConnId};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CqeStatus, DisconnectReason, EventQueue, Mr, PostError, QpInit,
    RecvWr, SendWr, Stag,
};

/// Memory a peer may or may not reach.
struct Regions {
    /// Of the connection's own protection domain: everything, reading only, writing only, nothing.
    all: Mr,
    read: Mr,
    write: Mr,
    none: Mr,
    /// Of another one.
    other: Mr,
}

impl Regions {
    fn new(net: &Net, end: &End) -> Regions {
        let own = |access| region(&net.us, end.pd, access);
        let all = Access::REMOTE_READ.with(Access::REMOTE_WRITE);
        Regions {
            all: own(all),
            read: own(Access::REMOTE_READ),
            write: own(Access::REMOTE_WRITE),
            none: own(Access::LOCAL_WRITE),
            other: region(&net.us, net.us.device().alloc_pd(), all),
        }
    }

    fn assert_untouched(&self, what: &str) {
        for mr in [&self.all, &self.read, &self.write, &self.none, &self.other] {
            assert_untouched(mr, what);
        }
    }
}

fn tagged(opcode: Opcode, stag: Stag, to: u64, len: usize) -> Vec<u8> {
    let rsvd_ulp = Control::new(opcode).to_byte();
    fpdu(DdpHeader::Tagged { last: true, rsvd_ulp, stag, to }, &vec![0x55; len])
}

fn write(stag: Stag, to: u64, len: usize) -> Vec<u8> {
    tagged(Opcode::WRITE, stag, to, len)
}

fn read_request(msn: u32, src_stag: Stag, src_to: u64, size: u32) -> Vec<u8> {
    let r = ReadRequest { sink_stag: Stag(1), sink_to: 0, size, src_stag, src_to };
    fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, msn, 0), &r.emit())
}

fn send(msn: u32, len: usize) -> Vec<u8> {
    fpdu(send_header(msn), &vec![0x55; len])
}

/// A Send with Invalidate.
fn invalidate(stag: Stag) -> Vec<u8> {
    let rsvd_ulp = Control::new(Opcode::SEND_INV).to_byte();
    let h = DdpHeader::Untagged {
        last: true,
        rsvd_ulp,
        rsvd_ulp32: stag.0,
        qn: Qn::SEND,
        msn: Msn(1),
        mo: 0,
    };
    fpdu(h, b"x")
}

/// The FPDU of the ULPDU of `bytes` with the byte at `at` of it changed, and its CRC right again.
fn changed(bytes: &[u8], at: usize, to: u8) -> Vec<u8> {
    let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut ulpdu = bytes[2..2 + ulpdu].to_vec();
    ulpdu[at] = to;
    raw(&ulpdu)
}

fn raw(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    heddle_iwarp::mpa::fpdu::append(ulpdu, true, &mut out).unwrap();
    out
}

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    bytes
}

fn counter(c: &QpCounters, name: &str) -> u64 {
    let mut found = None;
    c.for_each(|n, _, v| {
        if n == name {
            found = Some(v);
        }
    });
    found.unwrap_or_else(|| panic!("a counter {name}"))
}

/// What is sent, the code of the Terminate that answers it, and the counter that counts it.
type Case = (&'static str, fn(&Regions) -> Vec<u8>, TermCode, &'static str);

const CASES: &[Case] = &[
    ("a wrong CRC", |_| flipped(send(1, 20), usize::MAX), TermCode::MPA_CRC, "err_crc"),
    ("a damaged payload", |_| flipped(send(1, 20), 25), TermCode::MPA_CRC, "err_crc"),
    (
        "a damaged STag",
        |r| flipped(write(r.all.stag(), r.all.to(), 9), 5),
        TermCode::MPA_CRC,
        "err_crc",
    ),
    ("an empty ULPDU", |_| raw(b""), TermCode::RDMAP_STREAM_CATASTROPHIC, "err_short"),
    ("half a header", |_| raw(&[0xc1, 0x40, 0]), TermCode::RDMAP_STREAM_CATASTROPHIC, "err_short"),
    (
        "DDP version 0, untagged",
        |_| changed(&send(1, 4), 0, 0x40),
        TermCode::DDP_UNTAGGED_VERSION,
        "err_ddp_version",
    ),
    (
        "DDP version 2, tagged",
        |r| changed(&write(r.all.stag(), r.all.to(), 4), 0, 0xc2),
        TermCode::DDP_TAGGED_VERSION,
        "err_ddp_version",
    ),
    (
        "RDMAP version 2",
        |_| changed(&send(1, 4), 1, 0x83),
        TermCode::RDMAP_VERSION,
        "err_rdmap_version",
    ),
    ("opcode 15", |_| changed(&send(1, 4), 1, 0x4f), TermCode::RDMAP_OPCODE, "err_opcode"),
    (
        "a Send on the queue of Read Requests",
        |_| fpdu(untagged(Opcode::SEND, Qn::READ_REQUEST, 1, 0), &[0; 28]),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "a Send that is tagged",
        |r| tagged(Opcode::SEND, r.all.stag(), r.all.to(), 4),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "a Read Response nobody asked for",
        |r| tagged(Opcode::READ_RESPONSE, r.all.stag(), r.all.to(), 4),
        TermCode::RDMAP_OPCODE,
        "err_opcode",
    ),
    (
        "an Atomic Request for no region",
        |_| fpdu(untagged(Opcode::ATOMIC_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 52]),
        TermCode::RDMAP_INVALID_STAG,
        "err_stag",
    ),
    (
        "queue 4",
        |_| fpdu(untagged(Opcode::SEND, Qn(4), 1, 0), b"x"),
        TermCode::DDP_INVALID_QN,
        "err_queue",
    ),
    (
        "the last queue there could be",
        |_| fpdu(untagged(Opcode::SEND, Qn(u32::MAX), 1, 0), b"x"),
        TermCode::DDP_INVALID_QN,
        "err_queue",
    ),
    ("MSN 0", |_| send(0, 4), TermCode::DDP_MSN_RANGE, "err_msn"),
    ("MSN 2 before 1", |_| send(2, 4), TermCode::DDP_MSN_RANGE, "err_msn"),
    (
        "MSN 2 of the Read Requests before 1",
        |r| read_request(2, r.all.stag(), r.all.to(), 4),
        TermCode::DDP_MSN_RANGE,
        "err_msn",
    ),
    (
        "an offset of 1 in a message that has not begun",
        |_| fpdu(untagged(Opcode::SEND, Qn::SEND, 1, 1), b"x"),
        TermCode::DDP_INVALID_MO,
        "err_offset",
    ),
    ("a Send longer than its buffer", |_| send(1, 65), TermCode::DDP_TOO_LONG, "err_too_long"),
    (
        "a Send for which there is no buffer",
        |_| [send(1, 0), send(2, 0), send(3, 1)].concat(),
        TermCode::DDP_NO_BUFFER,
        "err_no_buffer",
    ),
    (
        "a Read Request of 27 bytes",
        |_| fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 27]),
        TermCode::RDMAP_STREAM_CATASTROPHIC,
        "err_malformed",
    ),
    (
        "a Read Request of 29 bytes",
        |_| fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, 1, 0), &[0; 29]),
        TermCode::DDP_TOO_LONG,
        "err_too_long",
    ),
    (
        "one Read more than agreed",
        |r| (1..=17).flat_map(|n| read_request(n, r.all.stag(), r.all.to(), 4)).collect(),
        TermCode::DDP_NO_BUFFER,
        "err_no_buffer",
    ),
    (
        "a Write to an STag that does not exist",
        |r| write(Stag(r.all.stag().0 ^ 0x0100_0000), r.all.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Write with another key",
        |r| write(Stag(r.all.stag().0 ^ 1), r.all.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Write into another protection domain",
        |r| write(r.other.stag(), r.other.to(), 4),
        TermCode::DDP_STAG_NOT_ASSOCIATED,
        "err_association",
    ),
    (
        "a Write where only reading is allowed",
        |r| write(r.read.stag(), r.read.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_access",
    ),
    (
        "a Write into a region for local use",
        |r| write(r.none.stag(), r.none.to(), 4),
        TermCode::DDP_INVALID_STAG,
        "err_access",
    ),
    (
        "a Write one byte beyond the end",
        |r| write(r.all.stag(), r.all.to() + REGION as u64 - 3, 4),
        TermCode::DDP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Write one byte before the start",
        |r| write(r.all.stag(), r.all.to() - 1, 4),
        TermCode::DDP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Write whose offset wraps",
        |r| write(r.all.stag(), u64::MAX - 1, 4),
        TermCode::DDP_TO_WRAP,
        "err_wrap",
    ),
    (
        "a Read of an STag that does not exist",
        |r| read_request(1, Stag(r.all.stag().0 ^ 1), r.all.to(), 4),
        TermCode::RDMAP_INVALID_STAG,
        "err_stag",
    ),
    (
        "a Read from another protection domain",
        |r| read_request(1, r.other.stag(), r.other.to(), 4),
        TermCode::RDMAP_STAG_NOT_ASSOCIATED,
        "err_association",
    ),
    (
        "a Read where only writing is allowed",
        |r| read_request(1, r.write.stag(), r.write.to(), 4),
        TermCode::RDMAP_ACCESS,
        "err_access",
    ),
    (
        "a Read one byte beyond the end",
        |r| read_request(1, r.all.stag(), r.all.to(), REGION as u32 + 1),
        TermCode::RDMAP_BOUNDS,
        "err_bounds",
    ),
    (
        "a Read whose offset wraps",
        |r| read_request(1, r.all.stag(), u64::MAX - 1, 4),
        TermCode::RDMAP_TO_WRAP,
        "err_wrap",
    ),
    (
        "a Read of 4 GiB less one",
        |r| read_request(1, r.all.stag(), r.all.to(), u32::MAX),
        TermCode::RDMAP_BOUNDS,
        "err_bounds",
    ),
    (
        "an invalidation of an STag that does not exist",
        |r| invalidate(Stag(r.all.stag().0 ^ 1)),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
    (
        "an invalidation in another protection domain",
        |r| invalidate(r.other.stag()),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
    (
        "an invalidation of a region for local use",
        |r| invalidate(r.none.stag()),
        TermCode::RDMAP_CANNOT_INVALIDATE,
        "err_invalidate",
    ),
];

/// The end of a connection as the application hears of it.
fn disconnected(net: &mut Net, events: &EventQueue, bad: &Honest, what: &str) -> DisconnectReason {
    let CmEvent::Disconnected { id, qpn, reason, .. } = net.event(events) else { panic!("{what}") };
    assert_eq!((id, qpn), (bad.id, bad.end.qp.qpn()), "{what}");
    reason
}

/// Two receives that are posted complete once each: by a message, or flushed.
fn assert_all_completed(end: &End, what: &str) {
    let done = end.completions();
    let mut ids: Vec<_> = done.iter().map(|c| c.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [10, 11], "{what}: {done:?}");
    assert!(done.iter().any(|c| !c.status.is_success()) || what.contains("no buffer"), "{done:?}");
    // Nothing can be posted any more.
    assert!(end.qp.is_dead(), "{what}");
    let sges = [end.mr.sge(0, 1)];
    let recv = end.qp.post_recv(&RecvWr { wr_id: 12, sges: &sges });
    let send = end.qp.post_send(&SendWr::send(13, &sges));
    assert_eq!((recv, send), (Err(PostError::Ended), Err(PostError::Ended)), "{what}");
    assert_eq!(end.completions(), [], "{what}");
}

fn bad_peer(net: &mut Net, events: &EventQueue) -> (Honest, Regions) {
    let bad = Honest::new(net, PORT, events);
    let regions = Regions::new(net, &bad.end);
    bad.end.post_recv(10, 0, 64);
    bad.end.post_recv(11, 64, 64);
    net.settle();
    (bad, regions)
}

#[test]
fn test_fpdus_that_break_the_rules_end_their_connection_and_no_other() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    for &(what, make, code, counted) in CASES {
        let (bad, regions) = bad_peer(&mut net, &events);
        let before = (net.worker().qps, net.ctl());
        // A responder may answer once it has seen a valid FPDU: a Write of nothing. A Write that
        // would be good follows: nothing behind the fault is looked at.
        let (first, behind) =
            (write(Stag(0), 0, 0), write(regions.all.stag(), regions.all.to(), 100));
        net.peer.send(bad.conn, &[first, make(&regions), behind].concat());
        net.until(what, |n| n.peer.says(bad.conn, ConnEvent::PeerClosed).then_some(()));
        let (_, terminate) =
            terminate_in(&net.peer.got(bad.conn)[bad.startup..]).expect("a Terminate is last");
        assert_eq!(terminate.code, code, "{what}");
        net.peer.stack.close(bad.conn);
        let reason = disconnected(&mut net, &events, &bad, what);
        assert_eq!(reason, DisconnectReason::LocalTerminate(code), "{what}");
        net.settle();
        let after = (net.worker().qps, net.ctl());
        for name in [counted, "tx_terminates"] {
            assert_eq!(counter(&after.0, name), counter(&before.0, name) + 1, "{what}: {name}");
        }
        assert_eq!(after.1.cm.terminates_sent, before.1.cm.terminates_sent + 1, "{what}");
        assert_all_completed(&bad.end, what);
        regions.assert_untouched(what);
        bad.end.assert_untouched(what);
        honest.exchange(&mut net);
    }
    assert_eq!(net.ctl().cm.close_timeouts, 0);
}

/// FPDUs that fill their segments have their CRC computed along with TCP's checksum, once some have
/// come: damage is found wherever it is, and what came before it is in place.
#[test]
fn test_damage_in_a_segment_that_is_one_fpdu() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for len in [64, 65, 66, 67, 200] {
        let whole = write(Stag(0), 0, len).len();
        for at in [2, 5, 12, 16, 16 + len / 2, 15 + len, whole - 4, whole - 1] {
            let what = format!("byte {at} of a Write of {len} bytes");
            let (bad, regions) = bad_peer(&mut net, &events);
            let (stag, to) = (regions.all.stag(), regions.all.to());
            for i in 0..3 {
                net.peer.send(bad.conn, &write(stag, to + i * len as u64, len));
                net.settle();
            }
            let mut placed = vec![0; 4 * len];
            regions.all.read(0, &mut placed);
            assert!(placed[..3 * len].iter().all(|b| *b == 0x55), "{what}");
            let before = placed[3 * len..].to_vec();
            net.peer.send(bad.conn, &flipped(write(stag, to + 3 * len as u64, len), at));
            net.until(&what, |n| n.peer.says(bad.conn, ConnEvent::PeerClosed).then_some(()));
            let (_, terminate) =
                terminate_in(&net.peer.got(bad.conn)[bad.startup..]).expect("a Terminate is last");
            assert_eq!(terminate.code, TermCode::MPA_CRC, "{what}");
            net.peer.stack.close(bad.conn);
            let reason = disconnected(&mut net, &events, &bad, &what);
            assert_eq!(reason, DisconnectReason::LocalTerminate(TermCode::MPA_CRC), "{what}");
            regions.all.read(0, &mut placed);
            assert_eq!(placed[3 * len..], before, "{what}");
        }
    }
}

#[test]
fn test_terminates_of_the_peer_end_the_connection_whatever_they_say() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let mut body = [0; TERMINATE_MAX_LEN];
    let n = Terminate::new(TermCode::DDP_BOUNDS).emit(&mut body);
    for (what, body, why) in [
        ("a good one", &body[..n], DisconnectReason::RemoteTerminate(TermCode::DDP_BOUNDS)),
        (
            "one of no bytes",
            &[][..],
            DisconnectReason::LocalTerminate(TermCode::RDMAP_STREAM_CATASTROPHIC),
        ),
        (
            "one cut off",
            &[0x11, 0, 0xc0, 0, 0][..],
            DisconnectReason::RemoteTerminate(TermCode::DDP_INVALID_STAG),
        ),
    ] {
        let (bad, regions) = bad_peer(&mut net, &events);
        let before = net.ctl().cm.terminates_received;
        net.peer.send(bad.conn, &fpdu(untagged(Opcode::TERMINATE, Qn::TERMINATE, 1, 0), body));
        net.until(what, |n| n.peer.says(bad.conn, ConnEvent::PeerClosed).then_some(()));
        assert_eq!(net.peer.got(bad.conn).len(), bad.startup, "{what}: it is not answered");
        net.peer.stack.close(bad.conn);
        let reason = disconnected(&mut net, &events, &bad, what);
        assert_eq!(reason, why, "{what}");
        net.settle();
        let told = u64::from(matches!(why, DisconnectReason::RemoteTerminate(_)));
        assert_eq!(net.ctl().cm.terminates_received, before + told, "{what}");
        assert_all_completed(&bad.end, what);
        regions.assert_untouched(what);
        honest.exchange(&mut net);
    }
}

/// The peer is told by a Terminate and a FIN; what it does then must not matter.
#[test]
fn test_peer_that_does_not_close_after_a_terminate_is_reset() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let (bad, _regions) = bad_peer(&mut net, &events);
    let start = net.now();
    net.peer.send(bad.conn, &send(9, 1));
    net.settle();
    // It goes on sending; nobody looks at it.
    for _ in 0..50 {
        net.peer.send(bad.conn, &[0x77; 1000]);
        net.pass(100 * MS);
    }
    let reason = disconnected(&mut net, &events, &bad, "no close");
    assert_eq!(reason, DisconnectReason::LocalTerminate(TermCode::DDP_MSN_RANGE));
    let waited = net.now().since(start);
    assert!(waited < Duration::from_secs(25), "{waited:?}");
    net.settle();
    assert!(net.peer.says(bad.conn, ConnEvent::Reset));
    assert_eq!(net.ctl().cm.close_timeouts, 1);
    honest.exchange(&mut net);
}

#[test]
fn test_peer_that_goes_away_inside_an_fpdu() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    type Act = fn(&mut Net, ConnId);
    let acts: [(&str, Act, &str); 2] = [
        ("reset", |n, c| n.peer.stack.abort(c), "reset by the peer"),
        ("FIN", |n, c| n.peer.stack.close(c), "closed by the peer in the middle of an FPDU"),
    ];
    for (what, act, why) in acts {
        for cut in [1, 2, 19, 30] {
            let (bad, regions) = bad_peer(&mut net, &events);
            net.peer.send(bad.conn, &send(1, 60)[..cut]);
            net.settle();
            act(&mut net, bad.conn);
            let reason = disconnected(&mut net, &events, &bad, what);
            assert_eq!(reason.to_string(), why, "{what} {cut}");
            net.settle();
            assert_all_completed(&bad.end, what);
            regions.assert_untouched(what);
            bad.end.assert_untouched(what);
            honest.exchange(&mut net);
        }
    }
}

/// More is posted than the worker takes in a turn, and the peer resets.
#[test]
fn test_everything_posted_has_completed_when_the_end_is_told() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b""));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    let device = net.us.device().clone();
    let cq = device.create_cq(1024, None).unwrap();
    let init = QpInit::new(cq.clone()).depths(500, 1);
    let qp = device.create_qp(device.alloc_pd(), init).unwrap();
    device.accept(id, AcceptParams::new(qp.clone())).unwrap();
    assert!(matches!(net.event(&events), CmEvent::Established { .. }));
    net.settle();
    for wr_id in 0..500 {
        qp.post_send(&SendWr::send(wr_id, &[]).unsignaled()).unwrap();
    }
    net.peer.stack.abort(conn);
    net.peer.poll(net.now());
    let event = loop {
        net.us.poll();
        if let Some(e) = events.poll() {
            break e;
        }
    };
    assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
    let done: Vec<_> = std::iter::from_fn(|| cq.poll()).collect();
    assert!(done.iter().all(|c| c.status == CqeStatus::Flushed));
    assert!(done.iter().map(|c| c.wr_id).eq(0..500));
    net.settle();
    assert!(cq.is_empty());
}
