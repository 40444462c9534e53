//! Options of the start-up with everything around the connection manager, over `net_ring`: the
//! peer-to-peer model of RFC 6581 in both roles, read depths, and a peer that knows only revision
//! 1. The connection manager's own tests cover the outcome of each combination.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_iwarp::ddp::{DdpHeader, Qn};
use heddle_iwarp::mpa::frame::{Enhanced, Frame, Kind};
use heddle_iwarp::rdmap::{Opcode, ReadRequest};
use heddle_tcp::ConnEvent;
use heddle_types::{
    ConnId, Cut, Stag, TermCode,
    mpa::{CrcPolicy, Depth, Revision, Rtr, RtrConfig, RtrSet},
};
use heddle_verbs::{AcceptParams, CmEvent, DisconnectReason, EventQueue, MpaOptions, PeerDepths};

const FORMS: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];

fn words(kind: Kind, ird: u16, ord: u16, rtr: RtrSet) -> Vec<u8> {
    let depth = |n| Depth::new(n).unwrap_or(Depth::UNNEGOTIATED);
    let enhanced =
        Enhanced { ird: depth(ird), ord: depth(ord), peer_to_peer: !rtr.is_empty(), rtr };
    Frame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V2,
        enhanced: Some(enhanced),
        private_data: b"",
    }
    .emit()
    .unwrap()
}

fn write_header() -> DdpHeader {
    DdpHeader::Tagged { last: true, rsvd_ulp: 0x40 | Opcode::WRITE.0, stag: Stag(9), to: 0 }
}

fn read_request(msn: u32) -> Vec<u8> {
    let none = Stag(1);
    let read = ReadRequest { sink_stag: none, sink_to: 0, size: 0, src_stag: none, src_to: 0 };
    fpdu(untagged(Opcode::READ_REQUEST, Qn::READ_REQUEST, msn, 0), &read.emit())
}

fn first_message(rtr: Rtr) -> Vec<u8> {
    match rtr {
        Rtr::Write => fpdu(write_header(), b""),
        Rtr::Send => fpdu(send_header(1), b""),
        Rtr::Read => read_request(1),
    }
}

/// Returns the opcodes of the FPDUs that came.
fn opcodes(stream: &[u8]) -> Vec<u8> {
    let opcode = |(header, _): &(DdpHeader, Vec<u8>)| match header {
        DdpHeader::Tagged { rsvd_ulp, .. } | DdpHeader::Untagged { rsvd_ulp, .. } => rsvd_ulp & 0xf,
    };
    fpdus(stream).iter().map(opcode).collect()
}

/// Accepts, with `ird`, a peer that asks for `rtr`.
fn accepted(
    net: &mut Net,
    events: &EventQueue,
    end: &End,
    ird: u16,
    rtr: RtrSet,
) -> (ConnId, usize) {
    let conn = net.tcp(PORT);
    net.peer.send(conn, &words(Kind::Request, 5, 7, rtr));
    let CmEvent::ConnectRequest { id, peer, peer_to_peer, .. } = net.event(events) else {
        panic!("a request")
    };
    let depth = |n| Depth::new(n).unwrap();
    assert_eq!(peer, Some(PeerDepths { ird: depth(5), ord: depth(7) }));
    assert_eq!(peer_to_peer, !rtr.is_empty());
    let params = AcceptParams::new(end.qp.clone()).reads(ird, 16);
    net.us.device().accept(id, params).unwrap();
    let CmEvent::Established { agreed, .. } = net.event(events) else { panic!("established") };
    assert_eq!((agreed.ird, agreed.ord, agreed.peer), (ird, 5, peer));
    net.settle();
    let reply = net.peer.got(conn);
    let (frame, len) = Frame::parse(Kind::Reply, Revision::V2, reply).unwrap().unwrap();
    let said = frame.enhanced.unwrap();
    assert_eq!((said.ird.get(), said.ord.get(), said.rtr), (Some(ird), Some(5), rtr));
    (conn, len)
}

#[test]
fn test_responder_sends_only_after_rtr_message_that_application_never_sees() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for rtr in FORMS {
        let end = End::new(&net.us);
        end.post_recv(1, 0, 64);
        end.post_send(2, 0, 10);
        let (conn, startup) = accepted(&mut net, &events, &end, 3, RtrSet::of(rtr));
        net.pass(Duration::from_secs(1));
        assert_eq!(net.peer.got(conn).len(), startup, "{rtr:?}: not an FPDU");
        net.peer.send(conn, &first_message(rtr));
        net.settle();
        let mut sent = opcodes(&net.peer.got(conn)[startup..]);
        sent.sort_unstable();
        let answer = (rtr == Rtr::Read).then_some(Opcode::READ_RESPONSE.0);
        let want: Vec<u8> = answer.into_iter().chain([Opcode::SEND.0]).collect();
        assert_eq!(sent, want, "{rtr:?}");
        net.pass(50 * MS);
        assert!(matches!(end.completions()[..], [c] if c.wr_id == 2 && c.status.is_success()));
        // The receive waits for the application's Send.
        let msn = if rtr == Rtr::Send { 2 } else { 1 };
        net.peer.send(conn, &fpdu(send_header(msn), b"now"));
        net.settle();
        assert!(matches!(end.completions()[..], [c] if c.wr_id == 1 && c.len == 3), "{rtr:?}");
        net.peer.stack.close(conn);
        let CmEvent::Disconnected { reason, .. } = net.event(&events) else { panic!("the end") };
        assert_eq!(reason, DisconnectReason::Orderly);
    }
    assert_eq!(net.worker().engine.qps.rtr, 3);
}

#[test]
fn test_initiator_sends_rtr_message_of_the_form_listener_takes() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let events = EventQueue::new(None);
    for (n, rtr) in FORMS.into_iter().enumerate() {
        let end = End::new(&net.us);
        end.post_recv(1, 0, 64);
        end.connect_with(&net.us, 99, &events, |p| {
            *p = p.clone().mpa(MpaOptions::new().peer_to_peer(RtrSet::ALL)).reads(0, 0);
        });
        let conn = net.until("our Request", |n_| {
            let conn = n_.peer.accepted().get(n).copied();
            conn.filter(|c| !n_.peer.got(*c).is_empty())
        });
        let request = words(Kind::Request, 0, 0, RtrSet::ALL);
        assert_eq!(net.peer.got(conn), request);
        net.peer.send(conn, &words(Kind::Reply, 1, 0, RtrSet::of(rtr)));
        let CmEvent::Established { agreed, .. } = net.event(&events) else { panic!("established") };
        assert_eq!((agreed.rtr, agreed.ord), (RtrConfig::Send(rtr), 0));
        net.settle();
        let sent = fpdus(&net.peer.got(conn)[request.len()..]);
        assert_eq!(sent.len(), 1, "without anything posted");
        let opcode = match rtr {
            Rtr::Write => Opcode::WRITE,
            Rtr::Read => Opcode::READ_REQUEST,
            Rtr::Send => Opcode::SEND,
        };
        assert_eq!(opcodes(&net.peer.got(conn)[request.len()..]), [opcode.0]);
        if rtr == Rtr::Read {
            let rsvd_ulp = 0x40 | Opcode::READ_RESPONSE.0;
            let answer = DdpHeader::Tagged { last: true, rsvd_ulp, stag: Stag(1), to: 0 };
            net.peer.send(conn, &fpdu(answer, b""));
        }
        net.pass(100 * MS);
        assert_eq!(end.completions(), [], "{rtr:?}");
        net.peer.send(conn, &fpdu(send_header(1), b"first of all"));
        net.settle();
        assert!(matches!(end.completions()[..], [c] if c.wr_id == 1 && c.len == 12));
        net.peer.stack.close(conn);
        let CmEvent::Disconnected { reason, .. } = net.event(&events) else { panic!("the end") };
        assert_eq!(reason, DisconnectReason::Orderly, "{rtr:?}");
    }
}

#[test]
fn test_accept_with_an_ird_of_zero_serves_no_read() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    for ird in [0, 2] {
        let end = End::new(&net.us);
        let (conn, startup) = accepted(&mut net, &events, &end, ird, RtrSet::NONE);
        let reads: Vec<u8> = (1..=u32::from(ird) + 1).flat_map(read_request).collect();
        net.peer.send(conn, &reads);
        let CmEvent::Disconnected { reason, .. } = net.event(&events) else { panic!("the end") };
        assert_eq!(reason, DisconnectReason::LocalTerminate(TermCode::DDP_NO_BUFFER));
        let (_, terminate) = terminate_in(&net.peer.got(conn)[startup..]).unwrap();
        assert_eq!(terminate.code, TermCode::DDP_NO_BUFFER, "{ird}");
    }
}

#[test]
fn test_initiator_falls_back_to_revision_1_and_rejection_names_reads() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    net.peer.stack.listen(None, 99, 8).unwrap();
    let (events, end) = (EventQueue::new(None), End::new(&net.us));
    end.post_recv(1, 0, 64);
    end.connect_with(&net.us, 99, &events, |p| {
        let options = MpaOptions::new().fall_back(true).crc(CrcPolicy::Off).markers(true);
        *p = p.clone().mpa(options);
    });
    for (n, revision) in [2, 1].into_iter().enumerate() {
        let conn = net.until("our Request", |n_| {
            let conn = n_.peer.accepted().get(n).copied();
            conn.filter(|c| !n_.peer.got(*c).is_empty())
        });
        let request = net.peer.got(conn);
        // M and S, but not C.
        let flags = if revision == 2 { 0x90 } else { 0x80 };
        assert_eq!((request[16], request[17]), (flags, revision));
        match revision {
            2 => net.peer.stack.abort(conn),
            _ => net.peer.send(conn, &reply(false, b"")),
        }
        net.settle();
    }
    let CmEvent::Established { agreed, .. } = net.event(&events) else { panic!("established") };
    assert_eq!((agreed.revision, agreed.peer, agreed.crc), (1, None, true));
    assert!(agreed.recv_markers && !agreed.send_markers);
    assert_eq!(net.ctl().cm.fallbacks, 1);
    assert_eq!((end.completions(), events.poll()), (vec![], None));

    let events = listen(&mut net, PORT, |_| {});
    let conn = net.tcp(PORT);
    net.peer.send(conn, &words(Kind::Request, 5, 7, RtrSet::NONE));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    net.us.device().reject_needing_ord(id, b"no".to_vec(), 33).unwrap();
    net.until("our FIN", |n| n.peer.says(conn, ConnEvent::PeerClosed).then_some(()));
    let (frame, _) = Frame::parse(Kind::Reply, Revision::V2, net.peer.got(conn)).unwrap().unwrap();
    let said = frame.enhanced.unwrap();
    assert!(frame.reject && frame.private_data == b"no");
    assert_eq!((said.ird.get(), said.ord.get()), (Some(7), Some(33)));
}

#[test]
fn test_close_inside_fpdu_or_message_is_reported_and_frees_its_place() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let whole = fpdu(write_header(), b"");
    let part = {
        let rsvd_ulp = 0x40 | Opcode::WRITE.0;
        fpdu(DdpHeader::Tagged { last: false, rsvd_ulp, stag: Stag(9), to: 0 }, b"")
    };
    for (bytes, cut) in [(&whole[..9], Cut::Fpdu), (&part[..], Cut::Message)] {
        let end = End::new(&net.us);
        end.post_recv(1, 0, 64);
        let (conn, _) = accepted(&mut net, &events, &end, 3, RtrSet::NONE);
        net.peer.send(conn, bytes);
        net.settle();
        let start = net.now();
        net.peer.stack.close(conn);
        let CmEvent::Disconnected { reason, .. } = net.event(&events) else { panic!("the end") };
        assert_eq!(reason, DisconnectReason::Truncated(cut));
        assert!(net.now().since(start) < 100 * MS, "{:?}", net.now().since(start));
        assert!(matches!(end.completions()[..], [c] if c.wr_id == 1 && !c.status.is_success()));
    }
    assert_eq!((net.ctl().cm.truncated, net.worker().engine.rnic.rx_truncated), (2, 2));
}
