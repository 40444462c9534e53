//! Established connections whose peer breaks the rules of MPA, DDP and RDMAP. Each ends with the
//! right Terminate on the wire, an event, a counter and flushed work requests; no byte of memory
//! changes, and a connection beside it goes on.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod cases;
mod make;

use std::time::Duration;

use crate::common::*;
use cases::CASES;
use heddle_iwarp::rdmap::{Opcode, TERMINATE_MAX_LEN, Terminate};
use heddle_iwarp::{QpCounters, ddp::Qn};
use heddle_tcp::ConnEvent;
use heddle_types::{ConnId, TermCode};
use heddle_verbs::{
    AcceptParams, CmEvent, CqeStatus, DisconnectReason, EventQueue, PostError, QpInit, RecvWr,
    SendWr, Stag,
};
use make::*;

fn counter(c: &QpCounters, name: &str) -> u64 {
    let mut found = None;
    c.for_each(|n, _, v| {
        if n == name {
            found = Some(v);
        }
    });
    found.unwrap_or_else(|| panic!("a counter {name}"))
}

/// Returns the reason of a connection's end, from the application's event.
fn disconnected(net: &mut Net, events: &EventQueue, bad: &Honest, what: &str) -> DisconnectReason {
    let CmEvent::Disconnected { id, qpn, reason, .. } = net.event(events) else { panic!("{what}") };
    assert_eq!((id, qpn), (bad.id, bad.end.qp.qpn()), "{what}");
    reason
}

/// Asserts that the two posted receives complete once each: by a message, or flushed.
fn assert_all_completed(end: &End, what: &str) {
    let done = end.completions();
    let mut ids: Vec<_> = done.iter().map(|c| c.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [10, 11], "{what}: {done:?}");
    assert!(done.iter().any(|c| !c.status.is_success()) || what.contains("no buffer"), "{done:?}");
    // The application can post nothing any more.
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
fn test_invalid_fpdus_end_only_their_own_connection() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    for &(what, make, code, counted) in CASES {
        let (bad, regions) = bad_peer(&mut net, &events);
        let before = (net.worker().engine.qps, net.ctl());
        // A responder may answer once it has seen a valid FPDU: here a Write of no bytes. A valid
        // Write follows the fault, and must have no effect.
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
        let after = (net.worker().engine.qps, net.ctl());
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

/// After some FPDUs that fill their segments, the RNIC computes the CRC of such FPDUs along with
/// TCP's checksum. The CRC finds damage at any place, and FPDUs from before the damage are placed.
#[test]
fn test_receiver_detects_damage_at_any_byte_of_single_fpdu_segment() {
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
fn test_terminate_of_peer_ends_connection_whatever_it_contains() {
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

/// The peer gets a Terminate and a FIN; its behavior after that must not matter.
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
    // The peer goes on sending, and the RNIC ignores the bytes.
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
fn test_peer_that_leaves_inside_fpdu_ends_only_its_connection() {
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

/// The application has posted more than the worker takes in a turn when the peer resets.
#[test]
fn test_all_requests_have_completed_when_disconnect_is_reported() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b""));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    let device = net.us.device().clone();
    let cq = device.create_cq(1024, None).unwrap();
    let init = QpInit::new(cq.clone()).depths(500, 1);
    let qp = device.create_qp(device.alloc_pd().unwrap(), init).unwrap();
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
