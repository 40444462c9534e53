//! Options of the start-up on the wire and in the queue pair: the revision and the second request
//! to a peer that does not know it, CRC, markers, read depths, and our last message when we fail
//! ourselves.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::support::net::{Net, US};
use crate::support::{fpdu, qp, words};
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_rnic::Event as RnicEvent;
use heddle_types::{
    AcceptTerms, Awaited, CmId, ConnId, ConnectFailure, ConnectTerms, Event, ListenParams,
    MpaOptions, PeerDepths, Protocol, QpFate, Qpn, Request, SendOp, SendWr,
    mpa::{CrcPolicy, Depth, Depths, Revision, RtrSet},
};

const MS: Duration = Duration::from_millis(1);

fn mpa(options: MpaOptions) -> Protocol {
    Protocol::Mpa(options)
}

fn terms(options: MpaOptions) -> ConnectTerms {
    ConnectTerms { protocol: mpa(options), ..ConnectTerms::new(qp(7)) }
}

fn depths(ird: u16, ord: u16) -> PeerDepths {
    let depth = |n| Depth::new(n).unwrap_or(Depth::UNNEGOTIATED);
    PeerDepths { ird: depth(ird), ord: depth(ord) }
}

/// Returns a frame of revision 1.
fn plain(kind: Kind, reject: bool) -> Vec<u8> {
    let (markers, crc, revision, enhanced) = (false, true, Revision::V1, None);
    Frame { kind, markers, crc, reject, revision, enhanced, private_data: b"" }.emit().unwrap()
}

/// The ways in which a peer shows that it knows only revision 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refusal {
    Reset,
    Fin,
    Reply,
    Rejection,
}

fn refuse(net: &mut Net, conn: ConnId, how: Refusal) {
    match how {
        Refusal::Reset => net.hosts[0].rnic.abort(conn),
        Refusal::Fin => net.hosts[0].rnic.disconnect(net.now, conn),
        Refusal::Reply => net.hosts[0].rnic.send_startup(conn, &plain(Kind::Reply, false)).unwrap(),
        Refusal::Rejection => {
            net.hosts[0].rnic.send_startup(conn, &plain(Kind::Reply, true)).unwrap();
        }
    }
    // The test does not look at earlier events.
    net.hosts[0].raw.clear();
}

const REFUSALS: [Refusal; 4] = [Refusal::Reset, Refusal::Fin, Refusal::Reply, Refusal::Rejection];

#[test]
fn test_initiator_retries_in_revision_1_when_peer_refuses_revision_2() {
    for how in REFUSALS {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        let mut params = terms(MpaOptions::new().fall_back(true));
        params.private_data = b"both times".to_vec();
        let (first, request) = net.asked(CmId(1), params);
        assert_eq!((request[17], &request[24..]), (2, &b"both times"[..]));
        refuse(&mut net, first, how);
        let (second, request) = net.next_asked();
        assert_ne!(first, second, "another TCP connection");
        assert_eq!((request[16] & 0x10, request[17]), (0, 1), "{how:?}: unenhanced");
        assert_eq!(&request[20..], b"both times");
        net.send(second, &plain(Kind::Reply, false));
        let Event::Established { agreed, .. } = net.event() else { panic!("{how:?}") };
        assert_eq!((agreed.revision, agreed.peer, agreed.ird, agreed.ord), (1, None, 16, 16));
        assert_eq!(net.hosts[1].cm().counters().fallbacks, 1);
        assert_eq!(net.hosts[1].open.len(), 1, "{how:?}: the first is released");
        assert_eq!((net.hosts[1].cm().gauges().conns, net.hosts[1].events.len()), (1, 0));
    }
}

#[test]
fn test_initiator_stops_after_peer_refuses_revision_1_too() {
    for how in REFUSALS {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        let (first, _) = net.asked(CmId(1), terms(MpaOptions::new().fall_back(true)));
        refuse(&mut net, first, Refusal::Reset);
        let (second, _) = net.next_asked();
        refuse(&mut net, second, how);
        let event = net.event();
        match how {
            Refusal::Reply => assert!(matches!(event, Event::Established { .. })),
            Refusal::Rejection => assert!(matches!(event, Event::Rejected { .. })),
            Refusal::Reset | Refusal::Fin => {
                let Event::ConnectError { qp: fate, .. } = event else { panic!("{event:?}") };
                assert_eq!(fate, QpFate::Free(Qpn(7)));
            }
        }
        assert_eq!(net.hosts[1].cm().counters().fallbacks, 1, "{how:?}");
    }
}

/// The manager does not ask again if falling back is off, nor in the peer-to-peer model, nor if the
/// peer's answer has another meaning.
#[test]
fn test_initiator_does_not_retry_after_other_refusals() {
    let on = MpaOptions::new().fall_back(true);
    for options in [MpaOptions::new(), on.peer_to_peer(RtrSet::ALL), on.revision(Revision::V1)] {
        for how in REFUSALS {
            let mut net = Net::new(1, false, 0.0);
            net.hosts[0].rnic.listen(None, 99, 8).unwrap();
            let (conn, _) = net.asked(CmId(1), terms(options));
            refuse(&mut net, conn, how);
            let event = net.event();
            let accepted = how == Refusal::Reply && options.revision == Revision::V1;
            assert_eq!(matches!(event, Event::Established { .. }), accepted, "{event:?}");
            assert_eq!(net.hosts[1].cm().counters().fallbacks, 0);
        }
    }
    // The peer rejects in revision 2; it breaks off its Reply; it sends nothing.
    let rejection = crate::support::frame(Kind::Reply, true, b"");
    for (bytes, then_reset) in [(&rejection[..], false), (&rejection[..5], true), (&[], false)] {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        let (conn, _) = net.asked(CmId(1), terms(on));
        net.send(conn, bytes);
        if then_reset {
            net.hosts[0].rnic.abort(conn);
        }
        let event = net.event();
        assert!(matches!(event, Event::Rejected { .. } | Event::ConnectError { .. }), "{event:?}");
        assert_eq!(net.hosts[1].cm().counters().fallbacks, 0);
    }
}

#[test]
fn test_connect_timeout_covers_both_attempts() {
    let mut net = Net::new(1, false, 0.0);
    net.hosts[0].rnic.listen(None, 99, 8).unwrap();
    let start = net.now;
    let (first, _) = net.asked(CmId(1), terms(MpaOptions::new().fall_back(true)));
    net.pass(Duration::from_secs(6));
    refuse(&mut net, first, Refusal::Reset);
    net.next_asked();
    let Event::ConnectError { error, .. } = net.event() else { panic!() };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::Reply));
    let waited = net.now.since(start);
    assert!(waited >= 10_000 * MS && waited < 10_010 * MS, "{waited:?}");
}

#[test]
fn test_queue_pair_gets_markers_and_crc_as_negotiated() {
    for (bits, ours) in [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .enumerate()
        .flat_map(|(n, o)| [(n % 2 == 0, o), (n % 2 == 1, o)])
    {
        let (markers, crc) = ours;
        let policy = |on| if on { CrcPolicy::Required } else { CrcPolicy::Off };
        let options = MpaOptions::new().markers(markers).crc(policy(crc));
        // We listen, and the peer asks for neither or both.
        let mut net = Net::new(1, true, 0.0);
        net.listen(1, ListenParams { protocol: mpa(options), ..ListenParams::default() });
        let theirs = MpaOptions::new().markers(bits).crc(policy(bits));
        let (id, remote) = (CmId(1), US.into());
        net.ask(0, Request::Connect { id, remote, params: terms(theirs) });
        let Event::ConnectRequest { id, .. } = net.event() else { panic!() };
        net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(2)) });
        let Event::Established { agreed: a, .. } = net.event() else { panic!() };
        assert_eq!((a.crc, a.send_markers, a.recv_markers), (crc || bits, bits, markers));
        net.pass(10 * MS);
        let [Event::Established { agreed: a, .. }] = net.hosts[0].events[..] else { panic!() };
        assert_eq!((a.crc, a.send_markers, a.recv_markers), (crc || bits, markers, bits));
        let conns = [0, 1].map(|h| *net.hosts[h].open.first().unwrap());
        assert_eq!(net.hosts[1].rnic.qp(conns[1]).unwrap().sends_markers(), bits);
        assert_eq!(net.hosts[0].rnic.qp(conns[0]).unwrap().sends_markers(), markers);
    }
    // The bits of the frames themselves: M is 0x80, C is 0x40.
    for (markers, crc, want) in [(true, CrcPolicy::Off, 0x90), (false, CrcPolicy::Required, 0x50)] {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        let options = MpaOptions::new().markers(markers).crc(crc);
        assert_eq!(net.asked(CmId(1), terms(options)).1[16], want);
        net.listen(1, ListenParams { protocol: mpa(options), ..ListenParams::default() });
        let conn = net.tcp();
        let mut request = words(Kind::Request, 1, 1, RtrSet::NONE);
        request[16] &= !0x40;
        net.send(conn, &request);
        let Event::ConnectRequest { id, .. } = net.event() else { panic!() };
        net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(8)) });
        net.pass(MS);
        assert_eq!(net.got(conn)[16], want);
    }
}

#[test]
fn test_listener_of_revision_1_drops_revision_2_and_answers_revision_1() {
    let mut net = Net::new(1, false, 0.0);
    let options = MpaOptions::new().revision(Revision::V1);
    net.listen(1, ListenParams { protocol: mpa(options), ..ListenParams::default() });
    let conn = net.tcp();
    net.send(conn, &words(Kind::Request, 1, 1, RtrSet::NONE));
    assert!(matches!(net.until("the end", |n| n.end_of(conn)), RnicEvent::Closed { .. }));
    assert_eq!((net.got(conn), net.hosts[1].events.len()), (vec![], 0));
    let conn = net.tcp();
    net.send(conn, &plain(Kind::Request, false));
    let Event::ConnectRequest { id, peer, peer_to_peer, .. } = net.event() else { panic!() };
    assert_eq!((peer, peer_to_peer), (None, false));
    net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(1)) });
    net.pass(MS);
    assert_eq!(net.got(conn), plain(Kind::Reply, false));
}

/// The Reply announces the application's IRD, and the queue pair serves that many Reads; the peer's
/// numbers reach the application unchanged.
#[test]
fn test_reply_and_queue_pair_use_depths_of_accepting_application() {
    let unsaid = 0x3fff;
    for (peer, ours, reply, agreed) in [
        ((4, 6), (16, 16), (16, 4), (16, 4)),
        ((4, 6), (0, 16), (0, 4), (0, 4)),
        ((0, 0), (3, 5), (3, 0), (3, 0)),
        ((200, 300), (1, 250), (1, 200), (1, 200)),
        ((unsaid, 6), (2, 9), (2, unsaid), (2, 9)),
        ((6, unsaid), (2, 9), (unsaid, 6), (2, 6)),
        ((unsaid, unsaid), (0, 0), (unsaid, unsaid), (0, 0)),
    ] {
        let mut net = Net::new(1, false, 0.0);
        net.listen(1, ListenParams::default());
        let conn = net.tcp();
        net.send(conn, &words(Kind::Request, peer.0, peer.1, RtrSet::NONE));
        let Event::ConnectRequest { id, peer: told, .. } = net.event() else { panic!() };
        assert_eq!(told, Some(depths(peer.0, peer.1)), "as it says");
        let params = AcceptTerms { ird: ours.0, ord: ours.1, ..AcceptTerms::new(qp(1)) };
        net.ask(1, Request::Accept { id, params });
        let Event::Established { agreed: a, .. } = net.event() else { panic!() };
        assert_eq!((a.ird, a.ord, a.peer), (agreed.0, agreed.1, told));
        net.pass(MS);
        assert_eq!(net.got(conn), words(Kind::Reply, reply.0, reply.1, RtrSet::NONE));
        // The queue pair takes that many Reads at once, and not one more.
        let taken = usize::from(agreed.0);
        let read = |msn: u8| {
            let mut r = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, msn, 0, 0, 0, 0];
            r.extend([0; 28]);
            fpdu(&r)
        };
        let all: Vec<u8> = (1..=taken + 1).flat_map(|n| read(n as u8)).collect();
        net.send(conn, &all);
        net.pass(MS);
        let b = *net.hosts[1].open.first().unwrap();
        let counters = net.hosts[1].rnic.qp(b).unwrap().counters();
        assert_eq!((counters.rx_read_requests, counters.err_no_buffer), (taken as u64, 1));
    }
}

#[test]
fn test_initiator_adopts_and_reports_depths_of_responder() {
    let unsaid = 0x3fff;
    for (theirs, agreed) in
        [((8, 8), (16, 8)), ((0, 0), (16, 0)), ((100, 16), (16, 16)), ((unsaid, unsaid), (16, 16))]
    {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        let (conn, request) = net.asked(CmId(1), terms(MpaOptions::new()));
        assert_eq!(request, words(Kind::Request, 16, 16, RtrSet::NONE));
        net.send(conn, &words(Kind::Reply, theirs.0, theirs.1, RtrSet::NONE));
        let Event::Established { agreed: a, .. } = net.event() else { panic!() };
        assert_eq!((a.ird, a.ord), agreed);
        assert_eq!(a.peer, Some(depths(theirs.0, theirs.1)));
        // No Read goes out to a peer that takes none.
        let ours = *net.hosts[1].open.first().unwrap();
        let read = SendWr {
            op: SendOp::Read { stag: heddle_types::Stag(1), to: 0 },
            ..SendWr::send(1, &[])
        };
        net.hosts[1].rnic.post_send(ours, &read).unwrap();
        net.pass(MS);
        let opcode = net.got(conn)[request.len() + 3] & 0x0f;
        assert_eq!(opcode, if theirs.0 == 0 { 7 } else { 1 }, "a Terminate, or a Read Request");
    }
    // If the depths are left to the applications, neither side announces a number.
    let mut net = Net::new(1, false, 0.0);
    net.hosts[0].rnic.listen(None, 99, 8).unwrap();
    let left = MpaOptions::new().depths(Depths::LeftToApplications);
    let (_, request) = net.asked(CmId(1), terms(left));
    assert_eq!(request, words(Kind::Request, unsaid, unsaid, RtrSet::NONE));
}

#[test]
fn test_rejection_tells_initiator_how_many_reads_are_needed() {
    for needs_ord in [None, Some(40)] {
        let mut net = Net::new(1, true, 0.0);
        net.listen(1, ListenParams::default());
        let (id, remote) = (CmId(1), US.into());
        let params = ConnectTerms { ird: 2, ord: 3, ..ConnectTerms::new(qp(7)) };
        net.ask(0, Request::Connect { id, remote, params });
        let Event::ConnectRequest { id: theirs, peer, .. } = net.event() else { panic!() };
        assert_eq!(peer, Some(depths(2, 3)));
        let private_data = b"too few".to_vec();
        net.ask(1, Request::Reject { id: theirs, private_data: private_data.clone(), needs_ord });
        net.pass(10 * MS);
        let peer = Some(depths(3, needs_ord.unwrap_or(2)));
        let rejected = Event::Rejected { id, qpn: Qpn(7), private_data, peer };
        assert_eq!(net.hosts[0].events, [rejected]);
    }
}

/// RFC 6581 section 9.3: an initiator that fails locally sends a Terminate, because the peer has
/// entered FPDU mode; a responder whose Reply has not been sent yet rejects.
#[test]
fn test_manager_tells_peer_of_local_failure_before_fpdu_mode() {
    for revision in [Revision::V1, Revision::V2] {
        let mut net = Net::new(1, false, 0.0);
        net.hosts[0].rnic.listen(None, 99, 8).unwrap();
        net.hosts[1].refuses_fpdu_mode = true;
        let (conn, request) = net.asked(CmId(1), terms(MpaOptions::new().revision(revision)));
        let enhanced = revision == Revision::V2;
        let reply = words(Kind::Reply, 16, 16, RtrSet::NONE);
        net.send(conn, if enhanced { &reply } else { &reply[..0] });
        if !enhanced {
            net.send(conn, &plain(Kind::Reply, false));
        }
        let Event::ConnectError { error, qp: fate, .. } = net.event() else { panic!() };
        assert!(matches!(error, ConnectFailure::Worker(_)) && fate == QpFate::Free(Qpn(7)));
        let end = net.until("the end", |n| n.end_of(conn));
        assert_eq!(matches!(end, RnicEvent::PeerClosed { .. }), enhanced, "{end:?}");
        let sent = net.got(conn)[request.len()..].to_vec();
        if enhanced {
            // Opcode Terminate, layer MPA, local catastrophic error (0x2/0x0/0x05).
            assert_eq!((sent[3] & 0x0f, &sent[20..22]), (7, &[0x20, 0x05][..]), "{sent:02x?}");
        } else {
            assert_eq!(sent, [0; 0], "there is no such code in revision 1");
        }
        assert_eq!(net.hosts[1].cm().counters().terminates_sent, u64::from(enhanced));
    }
    for revision in [Revision::V1, Revision::V2] {
        let mut net = Net::new(1, true, 0.0);
        net.listen(1, ListenParams::default());
        net.hosts[1].refuses_fpdu_mode = true;
        let (id, remote) = (CmId(1), US.into());
        let params = terms(MpaOptions::new().revision(revision));
        net.ask(0, Request::Connect { id, remote, params });
        let Event::ConnectRequest { id, .. } = net.event() else { panic!() };
        net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(2)) });
        let Event::ConnectError { error, .. } = net.event() else { panic!() };
        assert!(matches!(error, ConnectFailure::Worker(_)));
        net.pass(Duration::from_secs(1));
        assert!(matches!(net.hosts[0].events[..], [Event::Rejected { .. }]));
        assert!(net.hosts[1].open.is_empty());
    }
}

/// The peer's queue pair recognizes that Terminate.
#[test]
fn test_terminate_of_a_failed_initiator_ends_the_responders_queue_pair() {
    let mut net = Net::new(1, true, 0.0);
    net.listen(1, ListenParams::default());
    net.hosts[0].refuses_fpdu_mode = true;
    let (id, remote) = (CmId(1), US.into());
    net.ask(0, Request::Connect { id, remote, params: terms(MpaOptions::new()) });
    let Event::ConnectRequest { id, .. } = net.event() else { panic!() };
    net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(2)) });
    assert!(matches!(net.event(), Event::Established { .. }));
    let Event::Disconnected { reason, .. } = net.event() else { panic!() };
    assert!(reason.to_string().contains("MPA: local catastrophic error"), "{reason}");
}

/// A stream that the peer breaks off is no orderly end, and the application hears of it without a
/// time-out.
#[test]
fn test_close_inside_fpdu_or_message_is_not_reported_as_orderly() {
    let send = |len: usize, last: bool| {
        let mut s = vec![if last { 0x41 } else { 0x01 }, 0x43];
        s.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        s.extend(vec![7; len]);
        fpdu(&s)
    };
    let write = |last: bool| {
        let mut w = vec![if last { 0xc1 } else { 0x81 }, 0x40];
        w.extend([0; 12]);
        fpdu(&w)
    };
    let half = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() / 2);
        bytes
    };
    for (bytes, text) in [
        (half(send(0, true)), "closed by the peer in the middle of an FPDU"),
        (write(false), "closed by the peer in the middle of a message"),
        ([write(true), half(write(true))].concat(), "closed by the peer in the middle of an FPDU"),
        (write(true), "closed in order"),
        (vec![], "closed in order"),
    ] {
        let mut net = Net::new(1, false, 0.0);
        net.listen(1, ListenParams::default());
        let conn = net.tcp();
        net.send(conn, &words(Kind::Request, 16, 16, RtrSet::NONE));
        let Event::ConnectRequest { id, .. } = net.event() else { panic!() };
        net.ask(1, Request::Accept { id, params: AcceptTerms::new(qp(2)) });
        assert!(matches!(net.event(), Event::Established { .. }));
        net.send(conn, &bytes);
        let start = net.now;
        net.hosts[0].rnic.disconnect(net.now, conn);
        let Event::Disconnected { reason, .. } = net.event() else { panic!() };
        assert_eq!(reason.to_string(), text);
        assert!(net.now.since(start) < 100 * MS, "{:?}", net.now.since(start));
        let broken = u64::from(text != "closed in order");
        assert_eq!(net.hosts[1].cm().counters().truncated, broken);
    }
}
