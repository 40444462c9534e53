//! MPA start-ups with peers that break the rules, stop half-way or go away (RFC 5044 section 7.1.2,
//! RFC 6581): what the application is told, what goes on the wire, what is counted. Beside them a
//! connection that keeps to the rules goes on after each.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use heddle_ctl::{AcceptParams, CmEvent, ConnectFailure, CtlCounters, EventQueue};
use heddle_iwarp::CqeStatus;
use heddle_iwarp::mpa::frame::{Depth, Enhanced, Frame, Kind, Revision, RtrSet};
use heddle_iwarp::rdmap::TermCode;
use heddle_tcp::{ConnEvent, ConnId};

/// `bytes` with the byte at `at` changed to `to`.
fn with(mut bytes: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    bytes[at] = to;
    bytes
}

/// A frame that announces `len` bytes of private data.
fn announcing(mut bytes: Vec<u8>, len: u16) -> Vec<u8> {
    bytes[18..20].copy_from_slice(&len.to_be_bytes());
    bytes
}

fn enhanced(kind: Kind, ird: u16, ord: u16) -> Vec<u8> {
    let (ird, ord) = (Depth::new(ird).unwrap(), Depth::new(ord).unwrap());
    Frame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V2,
        enhanced: Some(Enhanced { ird, ord, peer_to_peer: false, rtr: RtrSet::NONE }),
        private_data: b"",
    }
    .emit()
    .unwrap()
}

/// What a peer does behind its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Nothing,
    Reset,
    Close,
}

use Then::*;

fn act(net: &mut Net, conn: ConnId, then: Then) {
    match then {
        Nothing => {}
        Reset => net.peer.stack.abort(conn),
        Close => net.peer.stack.close(conn),
    }
    net.settle();
}

/// A counter of the control plane by its name.
fn counter(c: &CtlCounters, name: &str) -> u64 {
    let mut found = None;
    c.for_each(|n, _, v| {
        if n == name {
            found = Some(v);
        }
    });
    found.unwrap_or_else(|| panic!("a counter {name}"))
}

#[test]
fn test_initiators_that_break_the_rules_are_reset_and_nobody_hears_of_them() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let good = || request(b"0123456789");
    let cases = [
        ("wrong key", with(good(), 3, b'X'), Nothing, "startup_errors"),
        ("wrong first byte of the key, and no more", b"X".to_vec(), Nothing, "startup_errors"),
        ("the Reply's key", reply(false, b""), Nothing, "startup_errors"),
        ("revision 0", with(good(), 17, 0), Nothing, "startup_errors"),
        ("revision 3", with(good(), 17, 3), Nothing, "startup_errors"),
        ("revision 255", with(good(), 17, 255), Nothing, "startup_errors"),
        ("513 bytes of private data", announcing(good(), 513), Nothing, "startup_errors"),
        ("65535 bytes of private data", announcing(good(), 65535), Nothing, "startup_errors"),
        (
            "less private data announced than comes",
            announcing(good(), 9),
            Nothing,
            "startup_errors",
        ),
        (
            "enhanced without the words",
            announcing(enhanced(Kind::Request, 1, 1), 3),
            Nothing,
            "startup_errors",
        ),
        (
            "more private data announced than comes",
            announcing(good(), 11),
            Nothing,
            "startup_timeouts",
        ),
        ("no byte", vec![], Nothing, "startup_timeouts"),
        ("one byte", good()[..1].to_vec(), Nothing, "startup_timeouts"),
        ("a header less one byte", good()[..19].to_vec(), Nothing, "startup_timeouts"),
        ("a frame less one byte", good()[..29].to_vec(), Nothing, "startup_timeouts"),
        ("reset after no byte", vec![], Reset, "failed"),
        ("reset within the frame", good()[..25].to_vec(), Reset, "failed"),
        ("FIN after no byte", vec![], Close, "failed"),
        ("FIN within the frame", good()[..25].to_vec(), Close, "failed"),
    ];
    for (what, bytes, then, counted) in cases {
        let before = net.ctl();
        let conn = net.tcp(PORT);
        net.peer.send(conn, &bytes);
        net.settle();
        act(&mut net, conn, then);
        let start = net.now();
        let end = net.until("the end", |n| match then {
            // Our FIN is all that can be seen, or nothing.
            Close => n.peer.end_of(conn),
            Reset => Some(ConnEvent::Reset),
            Nothing => n.peer.end_of(conn),
        });
        let want = if then == Close { ConnEvent::PeerClosed } else { ConnEvent::Reset };
        assert_eq!(end, want, "{what}");
        let waited = net.now().since(start);
        if counted == "startup_timeouts" {
            let limit = Duration::from_secs(5);
            assert!(waited > limit - 10 * MS && waited < limit + 10 * MS, "{what}: {waited:?}");
        } else {
            assert!(waited < 10 * MS, "{what}: {waited:?}");
        }
        net.settle();
        let after = net.ctl();
        for name in ["failed", counted] {
            assert_eq!(counter(&after, name), counter(&before, name) + 1, "{what}: {name}");
        }
        assert_eq!(net.peer.got(conn), b"", "{what}: not a byte of iWARP");
        assert_eq!(events.poll(), None, "{what}");
        honest.exchange(&mut net);
    }
    assert_eq!(net.ctl().requests_received, 1, "that of the honest peer");
}

#[test]
fn test_request_that_was_told_of_and_then_fails_is_told_of_again() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let cases: [(&str, &[u8], Then, &str, &str); 4] = [
        ("a byte behind the Request", b"x", Nothing, "bytes behind", "startup_errors"),
        ("reset", b"", Reset, "reset by the peer", "failed"),
        ("FIN", b"", Close, "closed the connection during", "failed"),
        ("an application that says nothing", b"", Nothing, "application", "startup_timeouts"),
    ];
    for (what, more, then, why, counted) in cases {
        let before = net.ctl();
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b"please"));
        let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("{what}") };
        net.peer.send(conn, more);
        net.settle();
        act(&mut net, conn, then);
        let CmEvent::ConnectError { id: failed, error } = net.event(&events) else {
            panic!("{what}");
        };
        assert_eq!(failed, id, "{what}");
        assert!(error.to_string().contains(why), "{what}: {error}");
        let after = net.ctl();
        for name in ["failed", counted] {
            assert_eq!(counter(&after, name), counter(&before, name) + 1, "{what}: {name}");
        }
        if then == Nothing {
            net.until("the reset", |n| n.peer.says(conn, ConnEvent::Reset).then_some(()));
        }
        // An answer that comes too late completes what was posted, and that is all.
        let end = End::new(&net.us);
        end.post_recv(7, 0, 8);
        net.us.device().accept(id, AcceptParams::new(end.qp.clone())).unwrap();
        net.us.device().reject(id, vec![1]).unwrap();
        net.settle();
        assert!(matches!(end.completions()[..], [c] if c.status == CqeStatus::Flushed), "{what}");
        assert_eq!((net.peer.got(conn), events.poll()), (&b""[..], None), "{what}");
        honest.exchange(&mut net);
    }
}

#[test]
fn test_responders_that_break_the_rules_fail_the_connect() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let good = || enhanced(Kind::Reply, 16, 16);
    let cut = good().len() - 1;
    let cases = [
        ("wrong key", with(good(), 0, b'm'), Nothing, "not an MPA frame", "startup_errors"),
        ("a Request", enhanced(Kind::Request, 1, 1), Nothing, "same MPA role", "startup_errors"),
        ("revision 3", with(good(), 17, 3), Nothing, "revision 3", "startup_errors"),
        ("a Reply of revision 1", reply(false, b""), Nothing, "unenhanced", "startup_errors"),
        ("513 bytes", announcing(good(), 513), Nothing, "513 bytes", "startup_errors"),
        (
            "bytes behind it",
            [good(), vec![0; 4]].concat(),
            Nothing,
            "bytes behind",
            "startup_errors",
        ),
        ("no byte", vec![], Nothing, "the MPA Reply", "startup_timeouts"),
        ("half a frame", good()[..cut].to_vec(), Nothing, "the MPA Reply", "startup_timeouts"),
        ("reset", vec![], Reset, "reset by the peer", "failed"),
        ("reset in the frame", good()[..cut].to_vec(), Reset, "reset by the peer", "failed"),
        ("FIN", vec![], Close, "closed the connection", "failed"),
        ("FIN in the frame", good()[..cut].to_vec(), Close, "closed the connection", "failed"),
    ];
    for (what, bytes, then, why, counted) in cases {
        let (before, start) = (net.ctl(), net.now());
        let queue = EventQueue::new(None);
        let end = End::new(&net.us);
        end.post_recv(5, 0, REGION);
        let id = end.connect(&net.us, 99, &queue);
        let known = net.peer.accepted().len();
        let conn = net.until("a connection", |n| n.peer.accepted().get(known).copied());
        net.until("our Request", |n| {
            let parsed = Frame::parse(Kind::Request, Revision::V2, n.peer.got(conn));
            matches!(parsed, Ok(Some(_))).then_some(())
        });
        net.peer.send(conn, &bytes);
        net.settle();
        act(&mut net, conn, then);
        let CmEvent::ConnectError { id: failed, error } = net.event(&queue) else {
            panic!("{what}");
        };
        assert_eq!(failed, id);
        assert!(error.to_string().contains(why), "{what}: {error}");
        let waited = net.now().since(start);
        if counted == "startup_timeouts" {
            assert!(waited >= Duration::from_secs(10), "{what}: {waited:?}");
        }
        let after = net.ctl();
        for name in ["failed", counted] {
            assert_eq!(counter(&after, name), counter(&before, name) + 1, "{what}: {name}");
        }
        let seen = net.until("the end", |n| {
            n.peer.end_of(conn).or((then == Reset).then_some(ConnEvent::Reset))
        });
        let want = if then == Close { ConnEvent::PeerClosed } else { ConnEvent::Reset };
        assert_eq!(seen, want, "{what}");
        assert!(matches!(end.completions()[..], [c] if c.status == CqeStatus::Flushed), "{what}");
        end.assert_untouched(what);
        assert_eq!(queue.poll(), None, "{what}");
        honest.exchange(&mut net);
    }
}

/// RFC 6581 section 9: a responder that wants more Reads served than we can is told so.
#[test]
fn test_responder_that_wants_too_many_reads_gets_a_terminate() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let (queue, end) = (EventQueue::new(None), End::new(&net.us));
    end.connect(&net.us, 99, &queue);
    let conn = net.until("our Request", |n| {
        n.peer.accepted().first().copied().filter(|c| !n.peer.got(*c).is_empty())
    });
    let request = net.peer.got(conn).len();
    net.peer.send(conn, &enhanced(Kind::Reply, 16, 129));
    let CmEvent::ConnectError { error: ConnectFailure::Mpa(why), .. } = net.event(&queue) else {
        panic!("an MPA error");
    };
    assert!(why.contains("129"), "{why}");
    net.until("our FIN", |n| n.peer.says(conn, ConnEvent::PeerClosed).then_some(()));
    let (before, terminate) = terminate_in(&net.peer.got(conn)[request..]).unwrap();
    assert_eq!((before, terminate.code), (0, TermCode::MPA_INSUFFICIENT_IRD));
    assert_eq!((net.ctl().startup_errors, net.ctl().terminates_sent), (1, 1));
    // It does not close, so it is reset in the end.
    net.until("a reset", |n| n.peer.says(conn, ConnEvent::Reset).then_some(()));
    assert_eq!(net.ctl().close_timeouts, 1);
}

#[test]
fn test_request_in_segments_of_one_byte_is_a_request() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let conn = net.tcp(PORT);
    for byte in request(&[9; 512]) {
        assert_eq!(events.poll(), None);
        net.peer.send(conn, &[byte]);
        net.settle();
    }
    let CmEvent::ConnectRequest { id, private_data, .. } = net.event(&events) else {
        panic!("a request");
    };
    assert_eq!(private_data, [9; 512]);
    let end = End::new(&net.us);
    let mut params = AcceptParams::new(end.qp.clone());
    params.private_data = vec![3; 512];
    net.us.device().accept(id, params).unwrap();
    net.settle();
    assert_eq!(net.peer.got(conn), reply(false, &[3; 512]));
}

#[test]
fn test_private_data_that_does_not_fit_rejects_the_peer_and_tells_the_application() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for reject in [false, true] {
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b""));
        let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
        let end = End::new(&net.us);
        if reject {
            net.us.device().reject(id, vec![0; 513]).unwrap();
        } else {
            let mut params = AcceptParams::new(end.qp.clone());
            params.private_data = vec![0; 513];
            net.us.device().accept(id, params).unwrap();
            let CmEvent::ConnectError { error, .. } = net.event(&events) else {
                panic!("an error")
            };
            assert!(error.to_string().contains("513"), "{error}");
        }
        net.until("our FIN", |n| n.peer.says(conn, ConnEvent::PeerClosed).then_some(()));
        let (frame, _) =
            Frame::parse(Kind::Reply, Revision::V2, net.peer.got(conn)).unwrap().unwrap();
        assert!(frame.reject && frame.private_data.is_empty());
        assert_eq!(events.poll(), None);
    }
    assert_eq!(net.ctl().rejects_sent, 2);
    // Where we connect, it is known before the peer hears of it.
    net.peer.stack.listen(None, 99, 8).unwrap();
    let end = End::new(&net.us);
    end.connect_with(&net.us, 99, &events, |p| p.private_data = vec![0; 509]);
    let CmEvent::ConnectError { error, .. } = net.event(&events) else { panic!("an error") };
    assert!(error.to_string().contains("509"), "{error}");
    net.settle();
    assert!(net.peer.accepted().iter().all(|c| net.peer.got(*c).is_empty()));
}
