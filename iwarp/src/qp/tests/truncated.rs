//! The peer closes its stream. An end between messages is in order; at any other place it is a
//! failure, and the event says what is missing.

use super::pair::BASE;
use super::*;
use crate::Msn;
use crate::ddp::{DdpHeader, Qn};
use crate::rdmap::{Control, Opcode};
use heddle_types::{CqeStatus, SendOp};

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

fn started() -> Pair {
    Pair::open(PairConfig::default())
}

/// Sends a message of four segments, of which `segments` arrive before the stream ends.
fn cut_off(op: fn(&Pair) -> SendOp, segments: usize) -> Pair {
    let mut p = started();
    p.recv(1, 1, [p.nodes[1].sge(0, 5000)]);
    let (op, src) = (op(&p), [p.nodes[0].sge(0, 5000)]);
    p.send(0, 2, op, src);
    p.transmit(0, segments);
    p.deliver(1, usize::MAX);
    completions(&mut p.b().qp);
    p.nodes[1].qp.handle_peer_closed(false);
    p
}

fn check(p: &mut Pair, i: usize, cut: Option<Cut>, what: &str) {
    let qp = &mut p.nodes[i].qp;
    let want: Vec<_> = cut.map(QpEvent::Truncated).into_iter().collect();
    assert_eq!(events(qp), want, "{what}");
    let state = if cut.is_some() { ConnectedState::Error } else { ConnectedState::Rts };
    assert_eq!(qp.state(), state, "{what}");
    assert!(completions(qp).iter().all(|c| c.status == CqeStatus::Flushed), "{what}");
    assert!(!qp.has_transmit(), "{what}: no word about it");
}

#[test]
fn test_queue_pair_reports_cut_message_if_peer_closes_between_segments() {
    let send: fn(&Pair) -> SendOp = |_| SEND;
    let write: fn(&Pair) -> SendOp = |p| SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    for (what, op) in [("Send", send), ("Write", write)] {
        for segments in 0..=4 {
            let cut = (1..4).contains(&segments).then_some(Cut::Message);
            check(&mut cut_off(op, segments), 1, cut, &format!("{what}, {segments} segments"));
        }
    }
}

/// The first segment of a Send may be without bytes.
#[test]
fn test_queue_pair_reports_cut_message_after_an_empty_first_segment() {
    for last in [false, true] {
        let mut p = started();
        p.recv(1, 1, [p.nodes[1].sge(0, 100)]);
        let header = DdpHeader::Untagged {
            last,
            rsvd_ulp: Control::new(Opcode::SEND).to_byte(),
            rsvd_ulp32: 0,
            qn: Qn::SEND,
            msn: Msn(1),
            mo: 0,
        };
        let mut segment = vec![0; header.len()];
        header.emit(&mut segment);
        let mut bytes = Vec::new();
        crate::mpa::fpdu::append(&segment, true, &mut bytes).unwrap();
        p.b().inbox.extend(bytes);
        p.deliver(1, usize::MAX);
        assert_eq!(completions(&mut p.b().qp).len(), usize::from(last));
        p.nodes[1].qp.handle_peer_closed(false);
        check(&mut p, 1, (!last).then_some(Cut::Message), "no bytes");
    }
}

/// A responder may send nothing before the peer's first FPDU, which never comes: the QP flushes the
/// posted requests, at once or when the application closes.
#[test]
fn test_responder_flushes_requests_if_peer_closes_before_its_first_fpdu() {
    let expect = RtrConfig::Expect(heddle_types::mpa::RtrSet::ALL);
    for (rtr, early) in [(RtrConfig::None, true), (RtrConfig::None, false), (expect, true)] {
        let mut p = Pair::new(PairConfig { rtr: [RtrConfig::None, rtr], ..PairConfig::default() });
        p.recv(1, 1, [p.nodes[1].sge(0, 100)]);
        if early {
            p.send(1, 2, SEND, []);
        }
        p.nodes[1].qp.handle_peer_closed(false);
        if !early {
            let qp = &mut p.b().qp;
            assert_eq!(
                (qp.state(), events(qp), completions(qp).len()),
                (ConnectedState::Rts, vec![], 1)
            );
            p.send(1, 2, SEND, []);
            p.nodes[1].qp.close();
        }
        let left = completions(&mut p.b().qp);
        assert_eq!(left.len(), 1 + usize::from(early), "{left:?}");
        check(&mut p, 1, Some(Cut::Start), "nothing can be sent");
    }
    // With nothing posted this side's half stays open, until the application closes it in order.
    let mut p = Pair::new(PairConfig::default());
    p.nodes[1].qp.handle_peer_closed(false);
    check(&mut p, 1, None, "nothing is posted");
    p.nodes[1].qp.close();
    assert_eq!(events(&mut p.b().qp), [QpEvent::Drained]);
    // An initiator whose first message says that it is ready does not wait for anything either.
    let rtr = [RtrConfig::Send(heddle_types::mpa::Rtr::Write), RtrConfig::None];
    let mut p = Pair::new(PairConfig { rtr, ..PairConfig::default() });
    p.send(0, 2, SEND, []);
    p.nodes[0].qp.handle_peer_closed(false);
    assert_eq!((events(&mut p.a().qp), p.nodes[0].qp.state()), (vec![], ConnectedState::Rts));
}

#[test]
fn test_queue_pair_reports_cut_fpdu_once_if_peer_closes_inside_it() {
    let mut p = started();
    p.nodes[1].qp.handle_peer_closed(true);
    check(&mut p, 1, Some(Cut::Fpdu), "at the start of a message");
    // A second close is no news.
    p.nodes[1].qp.handle_peer_closed(true);
    assert_eq!(events(&mut p.b().qp), []);
}

#[test]
fn test_queue_pair_reports_cut_read_if_peer_closes_before_answering() {
    for answered in [false, true] {
        let mut p = started();
        let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE };
        let sink = [p.nodes[0].sge(0, 5000)];
        p.send(0, 1, op, sink);
        p.transmit(0, 1);
        p.deliver(1, usize::MAX);
        // The peer sends all segments of the answer but one, or all.
        p.transmit(1, if answered { 4 } else { 3 });
        p.deliver(0, usize::MAX);
        assert_eq!(completions(&mut p.a().qp).len(), usize::from(answered));
        events(&mut p.a().qp);
        p.nodes[0].qp.handle_peer_closed(false);
        check(&mut p, 0, (!answered).then_some(Cut::Read), "Read");
    }
}

#[test]
fn test_closing_queue_pair_reports_cut_read_if_peer_closes() {
    let mut p = started();
    let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE };
    let sink = [p.nodes[0].sge(0, 100)];
    p.send(0, 1, op, sink);
    p.transmit(0, 1);
    events(&mut p.a().qp);
    p.nodes[0].qp.close();
    assert_eq!(events(&mut p.a().qp), [], "a Read is outstanding");
    p.nodes[0].qp.handle_peer_closed(false);
    check(&mut p, 0, Some(Cut::Read), "closing");
}
