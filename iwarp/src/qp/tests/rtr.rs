//! The peer-to-peer model: the initiator's first FPDU says that it is ready, in any of its three
//! forms, and no application notices.

use super::pair::BASE;
use super::*;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::decode::{Framing, decode};
use crate::rdmap::{Opcode, ReadRequest};
use heddle_types::{
    Cqe, SendOp, TermCode,
    mpa::{Rtr, RtrSet},
};

const ALL: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];
const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

fn pair(rtr: Rtr, expected: RtrSet) -> Pair {
    let rtr = [RtrConfig::Send(rtr), RtrConfig::Expect(expected)];
    Pair::new(PairConfig { rtr, ..PairConfig::default() })
}

/// Opcode, queue and MSN (of untagged ones), payload of an FPDU.
type Sent = (Opcode, Option<(Qn, Msn)>, Vec<u8>);

/// Returns the FPDUs that a side has sent.
fn sent(p: &Pair, i: usize) -> Vec<Sent> {
    decode(&p.nodes[i].sent, Framing { crc: true, markers: false })
        .map(|d| {
            let (ddp, control) = d.headers().unwrap();
            let queue = match ddp {
                DdpHeader::Untagged { qn, msn, .. } => Some((qn, msn)),
                DdpHeader::Tagged { .. } => None,
            };
            (control.opcode, queue, d.payload().to_vec())
        })
        .collect()
}

#[test]
fn test_rtr_is_the_first_fpdu_and_completes_nothing() {
    for rtr in ALL {
        let mut p = pair(rtr, RtrSet::ALL);
        p.recv(1, 1, [p.nodes[1].sge(0, 100)]);
        p.recv(0, 2, [p.nodes[0].sge(0, 100)]);
        let src = [p.nodes[0].sge(200, 10)];
        p.send(0, 3, SEND, src);
        // The responder has a message to send, but may not send it yet.
        let src = [p.nodes[1].sge(200, 20)];
        p.send(1, 4, SEND, src);
        assert_eq!(p.transmit(1, 9), 0, "{rtr:?}: nothing before it came");
        p.transmit(0, 1);
        assert_eq!(completions(&mut p.b().qp).len(), 0);
        p.deliver(1, usize::MAX);
        assert_eq!(events(&mut p.b().qp), [QpEvent::FirstFpdu], "{rtr:?}");
        assert_eq!(completions(&mut p.b().qp), [], "{rtr:?}: no receive buffer is used");
        p.run();
        let (a, b) = (completions(&mut p.a().qp), completions(&mut p.b().qp));
        let ids = |c: &[Cqe]| {
            let mut all: Vec<_> = c.iter().map(|c| (c.wr_id, c.len)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!((ids(&a), ids(&b)), (vec![(2, 20), (3, 10)], vec![(1, 10), (4, 20)]));
        assert!(a.iter().chain(&b).all(|c| c.status.is_success()), "{rtr:?}");
        assert_eq!((p.nodes[0].qp.counters().rtr, p.nodes[1].qp.counters().rtr), (1, 1));

        let first = &sent(&p, 0)[0];
        match rtr {
            Rtr::Write => assert_eq!(first, &(Opcode::WRITE, None, vec![])),
            Rtr::Send => assert_eq!(first, &(Opcode::SEND, Some((Qn::SEND, Msn(1))), vec![])),
            Rtr::Read => {
                let (opcode, queue, payload) = first;
                let queue_1 = Some((Qn::READ_REQUEST, Msn(1)));
                assert_eq!((*opcode, *queue), (Opcode::READ_REQUEST, queue_1));
                let read = ReadRequest::parse(payload[..].try_into().unwrap()).unwrap();
                assert_eq!(read.size, 0);
                let answers = sent(&p, 1);
                assert!(answers.contains(&(Opcode::READ_RESPONSE, None, vec![])), "{answers:?}");
            }
        }
        // The application's Send continues the numbers of the indication.
        let msn = Msn(if rtr == Rtr::Send { 2 } else { 1 });
        assert_eq!((sent(&p, 0)[1].0, sent(&p, 0)[1].1), (Opcode::SEND, Some((Qn::SEND, msn))));
        p.check_healthy();
    }
}

/// The indication is lost, and Sends after it come ahead of the gap. The indication's MSN takes no
/// buffer, so the QP knows the buffers of these Sends only after the indication has come.
#[test]
fn test_send_ahead_of_a_lost_rtr_is_placed_in_the_buffer_it_completes() {
    for (rtr, expected) in [
        (Rtr::Write, RtrSet::of(Rtr::Write)),
        (Rtr::Read, RtrSet::of(Rtr::Read)),
        (Rtr::Send, RtrSet::of(Rtr::Send)),
        (Rtr::Write, RtrSet::ALL),
        (Rtr::Send, RtrSet::ALL),
        // The responder expects another form, so it takes this Send for a message.
        (Rtr::Send, RtrSet::of(Rtr::Write)),
    ] {
        let rtrs = [RtrConfig::Send(rtr), RtrConfig::Expect(expected)];
        let mut c = PairConfig { rtr: rtrs, ..PairConfig::default() };
        (c.qp.send_markers, c.qp.recv_markers) = (true, true);
        let mut p = Pair::new(c);
        for i in 0..4u16 {
            p.recv(1, i.into(), [p.nodes[1].sge(1000 * usize::from(i), 100)]);
        }
        let (one, two) = ([0x11; 100], [0x22; 60]);
        p.a().write(200, &one);
        p.a().write(400, &two);
        let src = [[p.nodes[0].sge(200, 100)], [p.nodes[0].sge(400, 60)]];
        src.iter().for_each(|src| p.send(0, 7, SEND, src));
        let gap = p.transmit(0, 1);
        let first = gap + p.transmit(0, 1);
        p.transmit(0, 1);
        // Both Sends have come, and the indication has not.
        let node = p.b();
        let env = QpEnv { mem: &node.mem, mrs: &node.mrs, snapshots_full: false, posted: None };
        let pos = |at: usize| StreamPos(at as u64);
        let early =
            [gap, first].map(|at| node.qp.place_early(&env, pos(at), &&node.inbox[at..], None));
        assert_eq!(early.each_ref().map(Option::is_some), [!expected.has(Rtr::Send); 2], "{rtr:?}");
        // The QP delivers the placed FPDUs, and does not place them again.
        let shown = Pieces::cut(&node.inbox[..gap], 99, &mut Random::new(&Seed::from_u64(1)));
        assert_eq!(node.qp.handle_stream(&env, &shown), gap);
        for (at, placed) in [gap, first].into_iter().zip(early) {
            match placed {
                Some(fpdu) => node.qp.deliver(&env, pos(at), &fpdu),
                None => drop(node.qp.handle_stream(&env, &&node.inbox[at..])),
            }
        }
        node.inbox.clear();
        let done = completions(&mut node.qp);
        let sends: Vec<_> = done.iter().filter(|c| c.len > 0).collect();
        assert_eq!(sends.iter().map(|c| c.len).collect::<Vec<_>>(), [100, 60], "{rtr:?}");
        for (cqe, data) in sends.iter().zip([&one[..], &two]) {
            node.expect(1000 * usize::try_from(cqe.wr_id).unwrap(), data);
        }
        node.check_memory();
    }
}

/// The responder may send although the initiator has posted no work at all; the indication exists
/// for this case.
#[test]
fn test_rtr_is_sent_although_initiator_has_posted_nothing() {
    for rtr in ALL {
        let mut p = pair(rtr, RtrSet::of(rtr));
        p.recv(0, 1, [p.nodes[0].sge(0, 100)]);
        let src = [p.nodes[1].sge(200, 20)];
        p.send(1, 2, SEND, src);
        p.run();
        assert_eq!(completions(&mut p.a().qp).len(), 1, "{rtr:?}");
        assert_eq!(completions(&mut p.b().qp).len(), 1, "{rtr:?}");
        p.check_healthy();
    }
}

#[test]
fn test_rtr_read_counts_as_outstanding_until_its_answer() {
    let mut c = PairConfig {
        rtr: [RtrConfig::Send(Rtr::Read), RtrConfig::Expect(RtrSet::of(Rtr::Read))],
        ..PairConfig::default()
    };
    (c.qp.ird, c.qp.ord) = (1, 1);
    let mut p = Pair::new(c);
    let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE };
    let sink = [p.nodes[0].sge(0, 100)];
    p.send(0, 1, op, sink);
    p.transmit(0, 9);
    assert_eq!(sent(&p, 0).len(), 1, "the peer serves one at a time");
    p.run();
    assert_eq!(completions(&mut p.a().qp).len(), 1);
    assert_eq!(p.nodes[0].qp.counters().rx_read_responses, 2);
    p.check_healthy();
}

/// With an IRD of 0 the QP answers the indication, and no other Read.
#[test]
fn test_rtr_read_is_answered_with_an_ird_of_zero() {
    for more in [false, true] {
        let mut c = PairConfig {
            rtr: [RtrConfig::Send(Rtr::Read), RtrConfig::Expect(RtrSet::ALL)],
            ..PairConfig::default()
        };
        c.qp.ird = 0;
        let mut p = Pair::new(c);
        if more {
            let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE };
            let sink = [p.nodes[0].sge(0, 0)];
            p.send(0, 1, op, sink);
        }
        p.run();
        assert_eq!(p.nodes[1].qp.counters().rtr, 1);
        assert_eq!(p.nodes[1].qp.counters().err_no_buffer, u64::from(more));
        // If one more Read comes at once, the stream is over before the answer.
        assert_eq!(p.nodes[0].qp.counters().rx_read_responses, u64::from(!more));
    }
}

/// A first message other than the agreed indication is an ordinary message.
#[test]
fn test_first_message_other_than_the_agreed_rtr_is_an_ordinary_one() {
    let not_send = RtrSet::ALL.without(RtrSet::of(Rtr::Send));
    for (expected, posted) in [(not_send, true), (not_send, false), (RtrSet::ALL, true)] {
        let mut p = pair(Rtr::Send, expected);
        if posted {
            p.recv(1, 1, [p.nodes[1].sge(0, 100)]);
        }
        p.transmit(0, 9);
        p.deliver(1, usize::MAX);
        let is_rtr = expected.has(Rtr::Send);
        let done = completions(&mut p.b().qp);
        assert_eq!(done.len(), usize::from(posted && !is_rtr), "{expected:?}");
        assert_eq!(p.nodes[1].qp.counters().rtr, u64::from(is_rtr));
        if !posted {
            let event = QpEvent::Terminated { by: Side::Local, code: TermCode::DDP_NO_BUFFER };
            assert_eq!(events(&mut p.b().qp), [event]);
        }
    }
    // The second Send without bytes is the application's.
    let mut p = pair(Rtr::Send, RtrSet::ALL);
    p.recv(1, 1, []);
    p.recv(1, 2, []);
    p.send(0, 3, SEND, []);
    p.run();
    assert_eq!(completions(&mut p.b().qp).len(), 1);
    p.check_healthy();
    // In the client-server model the first such Send is the application's too.
    let mut p = Pair::new(PairConfig::default());
    p.recv(1, 1, []);
    p.send(0, 2, SEND, []);
    p.run();
    assert_eq!(completions(&mut p.b().qp).len(), 1);
    assert_eq!(p.nodes[1].qp.counters().rtr, 0);
}

#[test]
fn test_rtr_is_not_sent_by_a_queue_pair_that_has_ended() {
    for end in [QpContext::close as fn(&mut QpContext), QpContext::abort] {
        let mut p = pair(Rtr::Write, RtrSet::ALL);
        end(&mut p.nodes[0].qp);
        assert_eq!(p.transmit(0, 9), 0);
        assert_eq!(p.nodes[0].qp.counters().rtr, 0);
    }
}

/// A message of a responder that does not wait does not precede the indication.
#[test]
fn test_rtr_is_sent_first_even_if_a_message_arrives_before() {
    let mut p = pair(Rtr::Write, RtrSet::ALL);
    p.recv(0, 1, []);
    p.nodes[1].qp.hold = false;
    p.send(1, 2, SEND, []);
    p.transmit(1, 9);
    p.send(0, 3, SEND, []);
    p.deliver(0, usize::MAX);
    assert_eq!(completions(&mut p.a().qp).len(), 1);
    p.recv(1, 4, []);
    p.run();
    assert_eq!(sent(&p, 0)[0].0, Opcode::WRITE);
    p.check_healthy();
}
