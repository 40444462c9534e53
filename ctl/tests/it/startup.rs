//! MPA start-ups that fail (RFC 5044 section 7.1.2, RFC 6581), with everything around the
//! connection manager. The queue pair is free again and has kept its receives, memory is not
//! touched, and a connection that keeps to the rules goes on beside each. The connection manager's
//! own tests cover the fault of each byte.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_ctl::CtlCounters;
use heddle_iwarp::mpa::frame::{Enhanced, Frame, Kind};
use heddle_tcp::ConnEvent;
use heddle_types::{
    ConnId, TermCode,
    mpa::{Depth, Revision, RtrSet},
};
use heddle_verbs::{AcceptParams, CmEvent, ConnectFailure, EventQueue, QpFate};

/// Returns `bytes` with the byte at `at` changed to `to`.
fn with(mut bytes: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    bytes[at] = to;
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

/// The peer's action after its bytes.
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

/// Returns a counter of the control plane by its name.
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
fn test_initiators_that_break_rules_are_reset_and_never_reported() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    let good = || request(b"0123456789");
    let cases = [
        ("wrong key", with(good(), 3, b'X'), Nothing, "startup_errors"),
        ("a frame less one byte", good()[..29].to_vec(), Nothing, "startup_timeouts"),
        ("reset within the frame", good()[..25].to_vec(), Reset, "failed"),
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
            // The peer sees our FIN, or nothing at all.
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
    assert_eq!(net.ctl().cm.requests_received, 1, "that of the honest peer");
}

#[test]
fn test_late_answer_to_failed_request_leaves_queue_pair_free() {
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
    // The same queue pair serves each case.
    let end = End::new(&net.us);
    end.post_recv(7, 0, 256);
    for (what, more, then, why, counted) in cases {
        let before = net.ctl();
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b"please"));
        let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("{what}") };
        net.peer.send(conn, more);
        net.settle();
        act(&mut net, conn, then);
        let CmEvent::ConnectError { id: failed, error, qp } = net.event(&events) else {
            panic!("{what}");
        };
        assert_eq!((failed, qp), (id, QpFate::NoQp), "{what}");
        assert!(error.to_string().contains(why), "{what}: {error}");
        let after = net.ctl();
        for name in ["failed", counted] {
            assert_eq!(counter(&after, name), counter(&before, name) + 1, "{what}: {name}");
        }
        if then == Nothing {
            net.until("the reset", |n| n.peer.says(conn, ConnEvent::Reset).then_some(()));
        }
        // The application already has the end; these requests cause no further event.
        net.us.device().accept(id, AcceptParams::new(end.qp.clone())).unwrap();
        net.us.device().reject(id, vec![1]).unwrap();
        net.settle();
        assert_eq!((net.peer.got(conn), events.poll()), (&b""[..], None), "{what}");
        assert_eq!(end.completions(), [], "{what}: the receive waits on");
        honest.exchange(&mut net);
    }
    let mut late = Honest::with(&mut net, PORT, &events, end);
    net.peer.send(late.conn, &fpdu(send_header(1), b"first"));
    net.settle();
    assert!(matches!(late.end.completions()[..], [c] if c.wr_id == 7 && c.len == 5));
    late.had(1);
    late.exchange(&mut net);
    honest.exchange(&mut net);
}

#[test]
fn test_connect_fails_and_frees_queue_pair_when_responder_breaks_rules() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let good = || enhanced(Kind::Reply, 16, 16);
    let cut = good().len() - 1;
    let cases = [
        ("wrong key", with(good(), 0, b'm'), Nothing, "not an MPA frame", "startup_errors"),
        (
            "bytes behind it",
            [good(), vec![0; 4]].concat(),
            Nothing,
            "bytes behind",
            "startup_errors",
        ),
        ("half a frame", good()[..cut].to_vec(), Nothing, "the MPA Reply", "startup_timeouts"),
        ("reset in the frame", good()[..cut].to_vec(), Reset, "reset by the peer", "failed"),
        ("FIN in the frame", good()[..cut].to_vec(), Close, "closed the connection", "failed"),
    ];
    let queue = EventQueue::new(None);
    // The same queue pair serves each case, with a receive of its whole memory.
    let end = End::new(&net.us);
    end.post_recv(5, 0, REGION);
    let ask = |net: &mut Net| {
        let known = net.peer.accepted().len();
        let id = end.connect(&net.us, 99, &queue);
        let conn = net.until("a connection", |n| n.peer.accepted().get(known).copied());
        let len = net.until("our Request", |n| {
            let parsed = Frame::parse(Kind::Request, Revision::V2, n.peer.got(conn));
            parsed.ok()?.map(|(_, len)| len)
        });
        (id, conn, len)
    };
    for (what, bytes, then, why, counted) in cases {
        let (before, start) = (net.ctl(), net.now());
        let (id, conn, _) = ask(&mut net);
        net.peer.send(conn, &bytes);
        net.settle();
        act(&mut net, conn, then);
        let CmEvent::ConnectError { id: failed, error, qp } = net.event(&queue) else {
            panic!("{what}");
        };
        assert_eq!((failed, qp), (id, QpFate::Free(end.qp.qpn())), "{what}");
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
        assert_eq!((end.completions(), queue.poll()), (vec![], None), "{what}");
        end.assert_untouched(what);
        honest.exchange(&mut net);
    }
    // Then a peer keeps to the rules.
    let (_, conn, _) = ask(&mut net);
    net.peer.send(conn, &good());
    assert!(matches!(net.event(&queue), CmEvent::Established { .. }));
    net.peer.send(conn, &fpdu(send_header(1), b"at last"));
    net.settle();
    assert!(matches!(end.completions()[..], [c] if c.wr_id == 5 && c.len == 7));
    honest.exchange(&mut net);
}

/// RFC 6581 section 9: a responder that wants more Reads served than we can gets a Terminate.
#[test]
fn test_responder_that_wants_too_many_reads_gets_a_terminate() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let (queue, end) = (EventQueue::new(None), End::new(&net.us));
    end.post_recv(1, 0, 8);
    end.connect(&net.us, 99, &queue);
    let conn = net.until("our Request", |n| {
        n.peer.accepted().first().copied().filter(|c| !n.peer.got(*c).is_empty())
    });
    let request = net.peer.got(conn).len();
    net.peer.send(conn, &enhanced(Kind::Reply, 16, 129));
    let CmEvent::ConnectError { error, qp, .. } = net.event(&queue) else { panic!("an error") };
    assert!(matches!(error, ConnectFailure::Startup(_)), "{error}");
    assert!(error.to_string().contains("129"), "{error}");
    assert_eq!((qp, end.completions()), (QpFate::Free(end.qp.qpn()), vec![]));
    net.until("our FIN", |n| n.peer.says(conn, ConnEvent::PeerClosed).then_some(()));
    let (before, terminate) = terminate_in(&net.peer.got(conn)[request..]).unwrap();
    assert_eq!((before, terminate.code), (0, TermCode::MPA_INSUFFICIENT_IRD));
    assert_eq!((net.ctl().cm.startup_errors, net.ctl().cm.terminates_sent), (1, 1));
    // The peer does not close, so we reset it in the end.
    net.until("a reset", |n| n.peer.says(conn, ConnEvent::Reset).then_some(()));
    assert_eq!(net.ctl().cm.close_timeouts, 1);
}

#[test]
fn test_oversized_private_data_rejects_peer_and_tells_application() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let end = End::new(&net.us);
    for reject in [false, true] {
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b""));
        let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
        if reject {
            net.us.device().reject(id, vec![0; 513]).unwrap();
        } else {
            let mut params = AcceptParams::new(end.qp.clone());
            params.private_data = vec![0; 513];
            net.us.device().accept(id, params).unwrap();
            let CmEvent::ConnectError { error, qp, .. } = net.event(&events) else {
                panic!("an error")
            };
            assert!(error.to_string().contains("513"), "{error}");
            assert_eq!(qp, QpFate::Free(end.qp.qpn()));
        }
        let start = net.now();
        net.until("our FIN", |n| n.peer.says(conn, ConnEvent::PeerClosed).then_some(()));
        assert!(net.now().since(start) < 10 * MS, "the peer need not wait");
        let (frame, _) =
            Frame::parse(Kind::Reply, Revision::V2, net.peer.got(conn)).unwrap().unwrap();
        assert!(frame.reject && frame.private_data.is_empty());
        assert_eq!(events.poll(), None);
    }
    assert_eq!(net.ctl().cm.rejects_sent, 2);
    // When we connect, the refusal comes before the peer hears anything.
    net.peer.stack.listen(None, 99, 8).unwrap();
    end.connect_with(&net.us, 99, &events, |p| p.private_data = vec![0; 509]);
    let CmEvent::ConnectError { error, qp, .. } = net.event(&events) else { panic!("an error") };
    assert!(error.to_string().contains("509"), "{error}");
    assert_eq!(qp, QpFate::Free(end.qp.qpn()));
    net.settle();
    assert!(net.peer.accepted().iter().all(|c| net.peer.got(*c).is_empty()));
}
