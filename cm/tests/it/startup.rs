//! MPA start-ups with peers that break the rules, stop half-way or disappear (RFC 5044
//! section 7.1.2, RFC 6581): the application's events, the bytes on the wire, the counters and the
//! log.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::support::net::{APP, Net};
use crate::support::{enhanced, frame, qp};
use heddle_cm::*;
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_rnic::Event as RnicEvent;
use heddle_types::{
    AcceptTerms, CloseReason, CmId, ConnId, ConnectTerms, DisconnectReason, Event, ListenParams,
    MpaOptions, PeerDepths, Protocol, QpFate, Qpn, Request, RequestError,
    mpa::{Depth, Revision},
};

const MS: Duration = Duration::from_millis(1);

/// Returns `bytes` with the byte at `at` changed to `to`.
fn with(mut bytes: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
    bytes[at] = to;
    bytes
}

/// Returns a frame that announces `len` bytes of private data.
fn announcing(mut bytes: Vec<u8>, len: u16) -> Vec<u8> {
    bytes[18..20].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Returns a Request of revision 1.
fn request(private_data: &[u8]) -> Vec<u8> {
    plain(Kind::Request, private_data)
}

fn plain(kind: Kind, private_data: &[u8]) -> Vec<u8> {
    let (markers, crc, reject, revision) = (false, true, false, Revision::V1);
    Frame { kind, markers, crc, reject, revision, enhanced: None, private_data }.emit().unwrap()
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
        Reset => net.hosts[0].rnic.abort(conn),
        Close => net.hosts[0].rnic.disconnect(net.now, conn),
    }
    net.pass(MS);
}

fn counter(net: &mut Net, name: &str) -> u64 {
    let mut found = None;
    net.hosts[1].cm().counters().for_each(|n, _, v| {
        if n == name {
            found = Some(v);
        }
    });
    found.unwrap_or_else(|| panic!("a counter {name}"))
}

#[test]
fn test_manager_resets_and_only_logs_initiators_that_break_rules() {
    let mut net = Net::new(1, false, 0.0);
    net.listen(1, ListenParams::default());
    let good = || request(b"0123456789");
    let errors = "startup_errors";
    let late = "startup_timeouts";
    let cases = [
        ("wrong key", with(good(), 3, b'X'), Nothing, errors),
        ("wrong first byte of the key, and no more", b"X".to_vec(), Nothing, errors),
        ("the Reply's key", plain(Kind::Reply, b""), Nothing, errors),
        ("revision 0", with(good(), 17, 0), Nothing, errors),
        ("revision 3", with(good(), 17, 3), Nothing, errors),
        ("revision 255", with(good(), 17, 255), Nothing, errors),
        ("513 bytes of private data", announcing(good(), 513), Nothing, errors),
        ("65535 bytes of private data", announcing(good(), 65535), Nothing, errors),
        ("less private data announced than comes", announcing(good(), 9), Nothing, errors),
        (
            "enhanced without the words",
            announcing(frame(Kind::Request, false, b""), 3),
            Nothing,
            errors,
        ),
        ("more private data announced than comes", announcing(good(), 11), Nothing, late),
        ("no byte", vec![], Nothing, late),
        ("one byte", good()[..1].to_vec(), Nothing, late),
        ("a header less one byte", good()[..19].to_vec(), Nothing, late),
        ("a frame less one byte", good()[..29].to_vec(), Nothing, late),
        ("reset after no byte", vec![], Reset, "failed"),
        ("reset within the frame", good()[..25].to_vec(), Reset, "failed"),
        ("FIN after no byte", vec![], Close, "failed"),
        ("FIN within the frame", good()[..25].to_vec(), Close, "failed"),
    ];
    for (what, bytes, then, counted) in cases {
        let before = ["failed", counted].map(|name| counter(&mut net, name));
        let conn = net.tcp();
        let start = net.now;
        net.send(conn, &bytes);
        act(&mut net, conn, then);
        let end = net.until("end", |n| n.end_of(conn));
        match (then, end) {
            (Close, RnicEvent::PeerClosed { .. }) => {}
            (Nothing, RnicEvent::Closed { reason: CloseReason::Reset, .. }) => {}
            (Reset, RnicEvent::Closed { reason: CloseReason::Aborted, .. }) => {}
            (_, end) => panic!("{what}: {end:?}"),
        }
        let waited = net.now.since(start);
        if counted == late {
            // The time counts from the TCP connection on, which is a moment earlier.
            let limit = Duration::from_secs(5);
            assert!(waited <= limit && waited > limit - 10 * MS, "{what}: {waited:?}");
        } else {
            assert!(waited < 10 * MS, "{what}: {waited:?}");
        }
        net.pass(MS);
        let after = ["failed", counted].map(|name| counter(&mut net, name));
        assert_eq!(after, before.map(|n| n + 1), "{what}");
        assert_eq!((net.got(conn), &net.hosts[1].events[..]), (vec![], &[][..]), "{what}");
        let reasons: Vec<_> = net.hosts[1].notices.drain(..).map(|n| n.reason).collect();
        match (counted, &reasons[..]) {
            ("startup_errors", [Refusal::Startup(_)])
            | ("startup_timeouts", [Refusal::TimedOut])
            | ("failed", []) => {}
            (_, reasons) => panic!("{what}: {reasons:?}"),
        }
        // More than a second passes, so that the log takes the next notice too.
        net.pass(Duration::from_secs(2));
        net.hosts[0].rnic.release(conn);
        assert!(net.hosts[1].open.is_empty(), "{what}: released");
        assert_eq!(net.hosts[1].cm().gauges().conns, 0, "{what}");
    }
}

#[test]
fn test_application_is_told_when_a_reported_request_fails() {
    let mut net = Net::new(1, false, 0.0);
    net.listen(1, ListenParams::default());
    let cases: [(&str, &[u8], Then, &str, &str); 4] = [
        ("a byte behind the Request", b"x", Nothing, "bytes behind", "startup_errors"),
        ("reset", b"", Reset, "reset by the peer", "failed"),
        ("FIN", b"", Close, "closed the connection during", "failed"),
        ("an application that says nothing", b"", Nothing, "application", "startup_timeouts"),
    ];
    for (what, more, then, why, counted) in cases {
        let before = ["failed", counted].map(|name| counter(&mut net, name));
        let conn = net.tcp();
        net.send(conn, &request(b"please"));
        let Event::ConnectRequest { id, private_data, .. } = net.event() else { panic!("{what}") };
        assert_eq!(private_data, b"please");
        net.send(conn, more);
        act(&mut net, conn, then);
        let Event::ConnectError { id: failed, error, qp: fate } = net.event() else {
            panic!("{what}")
        };
        assert_eq!((failed, fate), (id, QpFate::NoQp), "{what}");
        assert!(error.to_string().contains(why), "{what}: {error}");
        let after = ["failed", counted].map(|name| counter(&mut net, name));
        assert_eq!(after, before.map(|n| n + 1), "{what}");
        // The manager refuses an answer that comes too late, and claims nothing for it.
        let now = net.now;
        let late = Request::Accept { id, params: AcceptTerms::new(qp(1)) };
        let refused = net.hosts[1].cm().handle_request(now, APP, late);
        assert_eq!(refused, Err(RequestError::NoConnection), "{what}");
        net.pass(Duration::from_secs(30));
        assert_eq!((net.got(conn), net.hosts[1].events.len()), (vec![], 0), "{what}");
        assert_eq!(net.hosts[1].cm().gauges().claims, 0, "{what}");
        assert!(net.hosts[1].open.is_empty(), "{what}");
    }
}

/// Makes a connection of ours to the peer that is driven by hand, up to our Request.
fn connect(net: &mut Net, id: CmId, qpn: u32) -> (ConnId, usize) {
    let remote = ([10, 0, 0, 1], 99).into();
    let params = ConnectTerms::new(qp(qpn));
    net.hosts[0].raw.clear();
    net.ask(1, Request::Connect { id, remote, params });
    let conn = net.until("connection", |n| {
        n.hosts[0].raw.iter().find_map(|e| match e {
            RnicEvent::Accepted { conn, .. } => Some(*conn),
            _ => None,
        })
    });
    let len = net.until("Request", |n| {
        Frame::parse(Kind::Request, Revision::V2, &n.got(conn)).ok()?.map(|f| f.1)
    });
    (conn, len)
}

#[test]
fn test_connect_fails_and_frees_queue_pair_when_responder_breaks_rules() {
    let mut net = Net::new(1, false, 0.0);
    net.hosts[0].rnic.listen(None, 99, 8).unwrap();
    let good = || frame(Kind::Reply, false, b"");
    let cut = good().len() - 1;
    let errors = "startup_errors";
    let cases = [
        ("wrong key", with(good(), 0, b'm'), Nothing, "not an MPA frame", errors),
        ("a Request", frame(Kind::Request, false, b""), Nothing, "same MPA role", errors),
        ("revision 3", with(good(), 17, 3), Nothing, "revision 3", errors),
        ("a Reply of revision 1", plain(Kind::Reply, b""), Nothing, "unenhanced", errors),
        ("513 bytes", announcing(good(), 513), Nothing, "513 bytes", errors),
        ("bytes behind it", [good(), vec![0; 4]].concat(), Nothing, "bytes behind", errors),
        ("no byte", vec![], Nothing, "the MPA Reply", "startup_timeouts"),
        ("half a frame", good()[..cut].to_vec(), Nothing, "the MPA Reply", "startup_timeouts"),
        ("reset", vec![], Reset, "reset by the peer", "failed"),
        ("reset in the frame", good()[..cut].to_vec(), Reset, "reset by the peer", "failed"),
        ("FIN", vec![], Close, "closed the connection", "failed"),
        ("FIN in the frame", good()[..cut].to_vec(), Close, "closed the connection", "failed"),
    ];
    for (n, (what, bytes, then, why, counted)) in cases.into_iter().enumerate() {
        let before = ["failed", counted].map(|name| counter(&mut net, name));
        let start = net.now;
        // The same queue pair serves each case: each failure frees it.
        let id = CmId(n as u64);
        let (conn, _) = connect(&mut net, id, 7);
        net.send(conn, &bytes);
        act(&mut net, conn, then);
        let Event::ConnectError { id: failed, error, qp: fate } = net.event() else {
            panic!("{what}")
        };
        assert_eq!((failed, fate), (id, QpFate::Free(Qpn(7))), "{what}");
        assert!(error.to_string().contains(why), "{what}: {error}");
        if counted == "startup_timeouts" {
            let waited = net.now.since(start);
            let limit = Duration::from_secs(10);
            assert!(waited >= limit && waited < limit + MS, "{what}: {waited:?}");
        }
        let after = ["failed", counted].map(|name| counter(&mut net, name));
        assert_eq!(after, before.map(|n| n + 1), "{what}");
        let end = net.until("end", |n| n.end_of(conn));
        match (then, end) {
            (Close, RnicEvent::PeerClosed { .. }) => {}
            (Nothing, RnicEvent::Closed { reason: CloseReason::Reset, .. }) => {}
            (Reset, RnicEvent::Closed { reason: CloseReason::Aborted, .. }) => {}
            (_, end) => panic!("{what}: {end:?}"),
        }
        net.pass(Duration::from_secs(21));
        assert_eq!(net.hosts[1].events, [], "{what}");
        assert!(net.hosts[1].open.is_empty(), "{what}");
    }
}

/// RFC 6581 section 9: a responder that wants more Reads served than we can gets a Terminate.
#[test]
fn test_responder_that_wants_too_many_reads_gets_a_terminate() {
    let mut net = Net::new(1, false, 0.0);
    net.hosts[0].rnic.listen(None, 99, 8).unwrap();
    let (conn, request) = connect(&mut net, CmId(1), 7);
    net.send(conn, &enhanced(Kind::Reply, false, 16, 129, b""));
    let Event::ConnectError { error, qp: fate, .. } = net.event() else { panic!("an error") };
    assert!(error.to_string().contains("129") && fate == QpFate::Free(Qpn(7)), "{error}");
    let end = net.until("our FIN", |n| n.end_of(conn));
    assert!(matches!(end, RnicEvent::PeerClosed { .. }), "{end:?}");
    // An FPDU with opcode Terminate, layer MPA, insufficient IRD (0x2/0x0/0x06).
    let got = net.got(conn);
    let fpdu = &got[request..];
    assert_eq!((fpdu[3] & 0x0f, &fpdu[20..22]), (7, &[0x20, 0x06][..]), "{fpdu:02x?}");
    assert_eq!(counter(&mut net, "terminates_sent"), 1);
    // The peer does not close, so we reset it in the end.
    let start = net.now;
    let is_reset =
        |e: &RnicEvent| matches!(e, RnicEvent::Closed { reason: CloseReason::Reset, .. });
    net.until("a reset", |n| n.hosts[0].raw.iter().any(is_reset).then_some(()));
    let waited = net.now.since(start);
    assert!(waited > Duration::from_secs(19) && waited < Duration::from_secs(21), "{waited:?}");
    assert_eq!(counter(&mut net, "close_timeouts"), 1);
}

#[test]
fn test_manager_accepts_request_split_into_segments_of_one_byte() {
    let mut net = Net::new(1, false, 0.0);
    net.listen(1, ListenParams::default());
    let conn = net.tcp();
    for byte in request(&[9; 512]) {
        assert_eq!(net.hosts[1].events, []);
        net.send(conn, &[byte]);
    }
    let Event::ConnectRequest { id, private_data, .. } = net.event() else { panic!("a request") };
    assert_eq!(private_data, [9; 512]);
    let mut params = AcceptTerms::new(qp(1));
    params.private_data = vec![3; 512];
    net.ask(1, Request::Accept { id, params });
    net.pass(MS);
    assert_eq!(net.got(conn), plain(Kind::Reply, &[3; 512]));
}

/// The peer may have the Reply before we know of its arrival, and may have sent data by then.
#[test]
fn test_connection_accepted_and_disconnected_at_once_ends_in_order() {
    let mut net = Net::new(1, false, 0.0);
    net.listen(1, ListenParams::default());
    let conn = net.tcp();
    net.send(conn, &request(b""));
    let Event::ConnectRequest { id, .. } = net.event() else { panic!("a request") };
    net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(1)) });
    net.ask(1, Request::Disconnect { id });
    net.pass(MS);
    assert_eq!(net.got(conn), plain(Kind::Reply, b""));
    assert_eq!(net.end_of(conn), Some(RnicEvent::PeerClosed { conn }));
    assert!(matches!(net.event(), Event::Established { .. }));
    net.hosts[0].rnic.disconnect(net.now, conn);
    let Event::Disconnected { reason, .. } = net.event() else { panic!("its end") };
    assert_eq!(reason, DisconnectReason::Orderly);
    assert_eq!((counter(&mut net, "established"), counter(&mut net, "cancelled")), (1, 0));
    assert!(net.hosts[1].open.is_empty(), "released");
}

/// A refusal of the application's own request leaves the peer's request waiting, and the peer hears
/// nothing of the refusal.
#[test]
fn test_request_stays_answerable_after_oversized_private_data_is_refused() {
    let mut net = Net::new(1, false, 0.0);
    net.listen(1, ListenParams::default());
    let conn = net.tcp();
    net.send(conn, &request(b""));
    let Event::ConnectRequest { id, .. } = net.event() else { panic!("a request") };
    let mut params = AcceptTerms::new(qp(1));
    params.private_data = vec![0; 513];
    for request in [
        Request::Accept { id, params },
        Request::Reject { id, private_data: vec![0; 513], needs_ord: None },
    ] {
        let now = net.now;
        let refused = net.hosts[1].cm().handle_request(now, APP, request).unwrap_err();
        assert!(refused.to_string().contains("513"), "{refused}");
        net.pass(MS);
        assert_eq!((net.got(conn), net.hosts[1].events.len()), (vec![], 0));
    }
    net.ask(1, Request::Reject { id, private_data: b"no".to_vec(), needs_ord: None });
    net.pass(MS);
    let got = net.got(conn);
    let (frame, _) = Frame::parse(Kind::Reply, Revision::V2, &got).unwrap().unwrap();
    assert!(frame.reject && frame.private_data == b"no");
    assert!(matches!(net.end_of(conn), Some(RnicEvent::PeerClosed { .. })));
    assert_eq!((counter(&mut net, "rejects_sent"), net.hosts[1].events.len()), (1, 0));
}

#[test]
fn test_private_data_goes_both_ways_with_accept_and_reject() {
    let mut net = Net::new(1, true, 0.0);
    net.listen(1, ListenParams::default());
    let mut n = 0;
    for (revision, most) in [(Revision::V1, 512), (Revision::V2, 508)] {
        for (accept, len) in [(true, 0), (true, 1), (true, most), (false, 1), (false, most)] {
            n += 1;
            let (there, back) = (vec![len as u8; len], vec![!len as u8; len]);
            let (id, remote) = (CmId(n), crate::support::net::US.into());
            let mut params = ConnectTerms::new(qp(n as u32));
            params.private_data = there.clone();
            params.protocol = Protocol::Mpa(MpaOptions { revision, ..MpaOptions::default() });
            net.ask(0, Request::Connect { id, remote, params });
            let request = net.event();
            let Event::ConnectRequest { id: theirs, private_data, peer, .. } = request else {
                panic!("{request:?}");
            };
            let depth = |n| Depth::new(n).unwrap();
            let depths = PeerDepths { ird: depth(16), ord: depth(16) };
            let depths = (revision == Revision::V2).then_some(depths);
            assert_eq!((private_data, peer), (there, depths));
            if !accept {
                net.ask(
                    1,
                    Request::Reject { id: theirs, private_data: back.clone(), needs_ord: None },
                );
                net.pass(10 * MS);
                let qpn = Qpn(n as u32);
                let rejected = Event::Rejected { id, qpn, private_data: back, peer: depths };
                assert_eq!(std::mem::take(&mut net.hosts[0].events), [rejected]);
                continue;
            }
            let mut params = AcceptTerms::new(qp(n as u32));
            params.private_data = back.clone();
            net.ask(1, Request::Accept { id: theirs, params });
            net.pass(10 * MS);
            let events = std::mem::take(&mut net.hosts[0].events);
            let [Event::Established { private_data, agreed, .. }] = &events[..] else {
                panic!("{events:?}")
            };
            assert_eq!((private_data, agreed.revision), (&back, revision.0));
            net.ask(0, Request::Disconnect { id });
            net.pass(Duration::from_secs(1));
            for host in &mut net.hosts {
                let end = host.events.pop();
                let reason = DisconnectReason::Orderly;
                assert!(
                    matches!(end, Some(Event::Disconnected { reason: r, .. }) if r == reason),
                    "{end:?}"
                );
                host.events.clear();
            }
        }
    }
}
