//! The peer-to-peer model of RFC 6581: the messages that each side asks for and offers, the first
//! message in each of its forms, in both roles, and the outcome when the first message does not
//! come.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::support::net::{Net, US};
use crate::support::{fpdu, qp, rtr_fpdu, words};
use heddle_iwarp::mpa::frame::Kind;
use heddle_rnic::Event as RnicEvent;
use heddle_types::{
    AcceptTerms, CloseReason, CmId, ConnId, ConnectTerms, DisconnectReason, Event, ListenParams,
    MpaOptions, Protocol, QpFate, Qpn, RecvWr, Request, SendWr, TermCode,
    mpa::{Rtr, RtrConfig, RtrSet},
};

const MS: Duration = Duration::from_millis(1);
const FORMS: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];

fn with_rtr(rtr: RtrSet) -> Protocol {
    Protocol::Mpa(MpaOptions::new().peer_to_peer(rtr))
}

fn terms(rtr: RtrSet) -> ConnectTerms {
    ConnectTerms { protocol: with_rtr(rtr), ..ConnectTerms::new(qp(7)) }
}

/// Makes a set from its bits: Write, Read, Send.
fn set(bits: u8) -> RtrSet {
    let member = |(n, rtr): (usize, Rtr)| (bits >> n & 1 == 1).then_some(RtrSet::of(rtr));
    FORMS.into_iter().enumerate().filter_map(member).fold(RtrSet::NONE, RtrSet::with)
}

/// Returns true if the FPDU is that first message on the wire, with a CRC. The bytes that name
/// memory are not compared.
fn is_rtr(rtr: Rtr, fpdu: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    match rtr {
        // RDMA Write: tagged, last, opcode 0; the tagged header and nothing else.
        Rtr::Write => (len, &fpdu[2..4]) == (14, &[0xc1, 0x40]),
        // Send: untagged, last, opcode 3, queue 0, MSN 1, offset 0, no payload.
        Rtr::Send => {
            (len, &fpdu[2..4]) == (18, &[0x41, 0x43])
                && fpdu[8..20] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        }
        // Read Request: untagged, last, opcode 1, queue 1, MSN 1, offset 0, of length zero.
        Rtr::Read => {
            (len, &fpdu[2..4]) == (46, &[0x41, 0x41])
                && fpdu[8..20] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
                && fpdu[32..36] == [0; 4]
        }
    }
}

#[test]
fn test_initiator_sends_the_negotiated_message_before_all_others() {
    for ours in 1..8 {
        for theirs in 1..8 {
            let mut net = Net::new(1, false, 0.0);
            net.hosts[0].rnic.listen(None, 99, 8).unwrap();
            let (conn, request) = net.asked(CmId(1), terms(set(ours)));
            // Flag A, and flags B, C, D for the messages asked for; 16 Reads each way.
            let [write, read, send] = [0, 1, 2].map(|n| ours >> n & 1);
            assert_eq!(request[20..24], [0x80 | send << 6, 16, write << 7 | read << 6, 16]);
            net.send(conn, &words(Kind::Reply, 16, 16, set(theirs)));
            let both = set(ours & theirs);
            if both.is_empty() {
                // Terminate with layer MPA, no matching RTR option (0x2/0x0/0x07), and the end.
                let Event::ConnectError { error, qp: fate, .. } = net.event() else { panic!() };
                assert!(error.to_string().contains("no RTR message in common"), "{error}");
                assert_eq!(fate, QpFate::Free(Qpn(7)));
                net.until("our FIN", |n| n.end_of(conn));
                let sent = net.got(conn)[request.len()..].to_vec();
                assert_eq!((sent[3] & 0x0f, &sent[20..22]), (7, &[0x20, 0x07][..]), "{sent:02x?}");
                continue;
            }
            let Event::Established { agreed, .. } = net.event() else { panic!() };
            let rtr = both.iter().next().unwrap();
            assert_eq!(agreed.rtr, RtrConfig::Send(rtr));
            net.pass(MS);
            // The first message goes out even if nothing is posted, and before anything that is
            // posted.
            let first = net.got(conn)[request.len()..].to_vec();
            assert!(is_rtr(rtr, &first), "{rtr:?}: {first:02x?}");
            let ours = *net.hosts[1].open.first().unwrap();
            net.hosts[1].rnic.post_send(ours, &SendWr::send_inline(1, b"then")).unwrap();
            net.pass(MS);
            let more = net.got(conn)[request.len() + first.len()..].to_vec();
            assert_eq!(
                (&more[2..4], more[15]),
                (&[0x41, 0x43][..], 1 + u8::from(rtr == Rtr::Send))
            );
            assert_eq!(&more[20..24], b"then");
        }
    }
}

/// Has host 0 ask by hand, and host 1 answer; host 1 has a message to send and one receive.
fn answered(net: &mut Net, ird: u16, asked: RtrSet) -> (ConnId, Vec<u8>, ConnId) {
    let conn = net.tcp();
    net.send(conn, &words(Kind::Request, 16, 16, asked));
    let Event::ConnectRequest { id, peer_to_peer, .. } = net.event() else { panic!() };
    assert_eq!(peer_to_peer, !asked.is_empty());
    net.ask(1, Request::Accept { id, params: AcceptTerms { ird, ..AcceptTerms::new(qp(1)) } });
    net.pass(MS);
    let reply = net.got(conn);
    assert!(matches!(net.event(), Event::Established { .. }));
    let ours = *net.hosts[1].open.last().unwrap();
    net.hosts[1].rnic.post_recv(ours, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    net.hosts[1].rnic.post_send(ours, &SendWr::send_inline(2, b"from the responder")).unwrap();
    (conn, reply, ours)
}

#[test]
fn test_responder_offers_rtr_forms_of_listener_and_waits_for_message() {
    for (asked, takes) in (1..8).flat_map(|a| (0..8).map(move |t| (a, t))) {
        // A listener's empty set stands for all messages; if the sets have no message in common,
        // the listener offers its own.
        let listened = takes;
        let takes = if takes == 0 { 7 } else { takes };
        let want = if asked & takes == 0 { takes } else { asked & takes };
        let mut net = Net::new(1, false, 0.0);
        net.listen(
            1,
            ListenParams { protocol: with_rtr(set(listened)), ..ListenParams::default() },
        );
        let (conn, reply, ours) = answered(&mut net, 16, set(asked));
        let [write, read, send] = [0, 1, 2].map(|n| want >> n & 1);
        assert_eq!(
            reply[20..24],
            [0x80 | send << 6, 16, write << 7 | read << 6, 16],
            "{asked} {takes}"
        );
        // The responder has a message to send, and must not send it yet.
        net.pass(Duration::from_secs(1));
        assert_eq!(net.got(conn), reply);
        for rtr in set(want).iter().take(1) {
            net.send(conn, &rtr_fpdu(rtr));
            net.pass(MS);
            let sent = net.got(conn)[reply.len()..].to_vec();
            let text = b"from the responder";
            assert!(sent.windows(text.len()).any(|w| w == text), "{rtr:?}: {sent:02x?}");
            let counters = net.hosts[1].rnic.qp(ours).unwrap().counters();
            assert_eq!((counters.rtr, counters.rx_sends), (1, 0), "{rtr:?}: no receive was used");
        }
    }
}

#[test]
fn test_responder_accepts_every_rtr_form_without_using_a_receive() {
    for rtr in FORMS {
        for ird in [0, 1, 16] {
            let mut net = Net::new(1, false, 0.0);
            net.listen(1, ListenParams::default());
            let (conn, reply, ours) = answered(&mut net, ird, RtrSet::of(rtr));
            // With an IRD of 0 the responder still serves a Read that means "ready", and announces
            // that in the Reply.
            assert_eq!(reply[21], if ird == 0 { u8::from(rtr == Rtr::Read) } else { ird as u8 });
            net.send(conn, &rtr_fpdu(rtr));
            net.pass(MS);
            let sent = net.got(conn)[reply.len()..].to_vec();
            let answer = usize::from(rtr == Rtr::Read) * 20;
            // The queue pair sends the answer in turn with the message: an empty Read Response is
            // 20 bytes.
            assert_eq!(sent.len(), answer + 2 + 18 + 18 + 2 + 4, "{rtr:?}: {sent:02x?}");
            // The receive is still free for the application's first message.
            let msn = if rtr == Rtr::Send { 2 } else { 1 };
            net.send(conn, &fpdu(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0]));
            let qp = net.hosts[1].rnic.qp(ours).unwrap();
            assert_eq!((qp.counters().rx_sends, qp.counters().rtr), (1, 1));
            assert_eq!(net.hosts[1].events, []);
        }
    }
}

#[test]
fn test_responder_speaks_first_between_two_managers() {
    for rtr in FORMS {
        let mut net = Net::new(1, true, 0.0);
        net.listen(1, ListenParams::default());
        let (id, remote) = (CmId(1), US.into());
        let params = ConnectTerms { ird: 0, ord: 0, ..terms(RtrSet::of(rtr)) };
        net.ask(0, Request::Connect { id, remote, params });
        let Event::ConnectRequest { id: theirs, peer, .. } = net.event() else { panic!() };
        assert_eq!(peer.map(|p| (p.ird.get(), p.ord.get())), Some((Some(0), Some(0))));
        let params = AcceptTerms { ird: 0, ord: 0, ..AcceptTerms::new(qp(2)) };
        net.ask(1, Request::Accept { id: theirs, params });
        let Event::Established { agreed, .. } = net.event() else { panic!() };
        assert_eq!(agreed.rtr, RtrConfig::Expect(RtrSet::of(rtr)));
        assert_eq!((agreed.ird, agreed.ord), (u16::from(rtr == Rtr::Read), 0));
        net.pass(10 * MS);
        let [Event::Established { agreed, .. }] = net.hosts[0].events[..] else { panic!() };
        assert_eq!((agreed.rtr, agreed.ird, agreed.ord), (RtrConfig::Send(rtr), 0, 0));
        let conns = [0, 1].map(|h| *net.hosts[h].open.first().unwrap());
        net.hosts[0].rnic.post_recv(conns[0], &RecvWr { wr_id: 1, sges: &[] }).unwrap();
        net.hosts[1].rnic.post_send(conns[1], &SendWr::send(1, &[])).unwrap();
        net.pass(10 * MS);
        assert_eq!(net.hosts[0].rnic.qp(conns[0]).unwrap().counters().rx_sends, 1, "{rtr:?}");
        net.pass(Duration::from_secs(100));
        assert!(net.hosts[1].events.is_empty(), "it lives on");
    }
}

/// The initiator sends a Terminate in place of its first message, and the application that accepted
/// hears of it.
#[test]
fn test_responder_application_is_told_of_no_matching_rtr() {
    let mut net = Net::new(1, true, 0.0);
    let protocol = with_rtr(RtrSet::of(Rtr::Write));
    net.listen(1, ListenParams { protocol, ..ListenParams::default() });
    let (id, remote) = (CmId(1), US.into());
    let params = terms(RtrSet::of(Rtr::Read));
    net.ask(0, Request::Connect { id, remote, params });
    let Event::ConnectRequest { id: theirs, .. } = net.event() else { panic!() };
    net.ask(1, Request::Accept { id: theirs, params: AcceptTerms::new(qp(2)) });
    assert!(matches!(net.event(), Event::Established { .. }));
    let Event::Disconnected { reason, .. } = net.event() else { panic!() };
    assert_eq!(reason, DisconnectReason::RemoteTerminate(TermCode::MPA_NO_MATCHING_RTR));
    assert!(matches!(net.hosts[0].events[..], [Event::ConnectError { .. }]));
}

/// The Terminate counts under the error type that RFC 6581 gave to MPA, and under the type of its
/// draft.
#[test]
fn test_responder_reports_terminate_of_either_type_as_first_message() {
    for etype in [0, 3] {
        let mut net = Net::new(1, false, 0.0);
        net.listen(1, ListenParams::default());
        let (conn, ..) = answered(&mut net, 16, RtrSet::ALL);
        let mut terminate = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        terminate.extend([0x20 | etype, 7, 0, 0]);
        net.send(conn, &fpdu(&terminate));
        net.hosts[0].rnic.disconnect(net.now, conn);
        let Event::Disconnected { reason, .. } = net.event() else { panic!() };
        assert!(reason.to_string().contains("no matching RTR option"), "{reason}");
    }
}

#[test]
fn test_responder_resets_peer_that_sends_no_first_message() {
    for (asked, after) in [(RtrSet::ALL, 5), (RtrSet::NONE, 60)] {
        let mut net = Net::new(1, false, 0.0);
        net.listen(1, ListenParams::default());
        let start = net.now;
        let (conn, reply, _) = answered(&mut net, 16, asked);
        let Event::Disconnected { reason, .. } = net.event() else { panic!() };
        assert_eq!(reason, DisconnectReason::NoFirstFpdu);
        let waited = net.now.since(start).as_secs_f64() - f64::from(after);
        assert!((0.0..0.1).contains(&waited), "{waited}");
        net.pass(MS);
        assert_eq!(net.got(conn), reply, "not an FPDU");
        let reset =
            |e: &RnicEvent| matches!(e, RnicEvent::Closed { reason: CloseReason::Reset, .. });
        assert!(net.hosts[0].raw.iter().any(reset));
    }
}

/// A peer that answers for the other model.
#[test]
fn test_initiator_terminates_on_reply_for_other_model() {
    let mut net = Net::new(1, false, 0.0);
    net.hosts[0].rnic.listen(None, 99, 8).unwrap();
    for (n, (ours, theirs)) in
        [(RtrSet::ALL, RtrSet::NONE), (RtrSet::NONE, RtrSet::ALL)].into_iter().enumerate()
    {
        let (conn, request) = net.asked(CmId(n as u64), terms(ours));
        net.send(conn, &words(Kind::Reply, 16, 16, theirs));
        assert!(matches!(net.event(), Event::ConnectError { .. }));
        let sent = net.got(conn)[request.len()..].to_vec();
        assert_eq!((sent[3] & 0x0f, &sent[20..22]), (7, &[0x20, 0x07][..]));
    }
}
