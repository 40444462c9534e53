//! A queue pair's answers about its next step: whether it would send, or carry out a request that
//! sends nothing.

use super::pair::{BASE, Node};
use super::*;
use crate::fault::Fault;
use heddle_types::{AtomicOp, SendOp};

/// A request for an STag that does not exist: these tests only ask whether the QP would try it.
const LOCAL: SendOp = SendOp::LocalInvalidate { stag: Stag(1) };
const WRITE: SendOp = SendOp::Write { stag: Stag(1), to: 0 };

fn open() -> Pair {
    Pair::open(PairConfig::default())
}

#[test]
fn test_only_operations_about_stags_are_local() {
    let (stag, to) = (Stag(1), 0);
    let bind = heddle_types::Bind { stag, to, access: Access::NONE };
    for op in [SendOp::FastRegister(bind), SendOp::BindWindow(bind), LOCAL] {
        assert!(op.is_local(), "{op:?}");
    }
    for op in [
        WRITE,
        SendOp::Send { solicited: false, invalidate: Some(stag) },
        SendOp::Read { stag, to },
        SendOp::Immediate { data: 0, solicited: false },
        SendOp::WriteImmediate { stag, to, data: 0, solicited: false },
        SendOp::Atomic { stag, to, op: AtomicOp::swap(1) },
    ] {
        assert!(!op.is_local(), "{op:?}");
    }
}

/// In each case exactly one of the conditions does not hold.
#[test]
fn test_local_request_is_ready_only_in_its_turn() {
    let local = |p: &Pair| p.nodes[0].qp.has_local();
    let mut p = open();
    assert!(!local(&p), "nothing is posted");
    p.send(0, 1, LOCAL, []);
    assert!(local(&p));
    // Another request is before it.
    let mut p = open();
    p.send(0, 1, WRITE, []);
    p.send(0, 2, LOCAL, []);
    assert!(!local(&p));
    p.transmit(0, 1);
    assert!(local(&p));
    // The stream has ended: the request waits for the Write, whose bytes TCP may have to
    // retransmit.
    p.a().qp.fail(Fault::Crc.into());
    assert!(completions(&mut p.a().qp).is_empty());
    assert!(!local(&p));
    // A Read before it has no answer yet.
    let mut p = open();
    let (stag, sink) = (p.nodes[1].stag, [p.nodes[0].sge(0, 8)]);
    p.send(0, 1, SendOp::Read { stag, to: BASE }, sink);
    p.send(0, 2, LOCAL, []);
    p.transmit(0, 1);
    assert!(!local(&p));
    p.deliver(1, usize::MAX);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    assert!(local(&p));
    // An answer of four segments is under way.
    let mut p = open();
    let (stag, sink) = (p.nodes[0].stag, [p.nodes[1].sge(0, 5000)]);
    p.send(1, 1, SendOp::Read { stag, to: BASE }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    p.transmit(0, 1);
    p.send(0, 2, LOCAL, []);
    assert!(!local(&p));
    p.transmit(0, 3);
    assert!(local(&p));
    // A responder has received nothing from its peer.
    let mut p = Pair::new(PairConfig::default());
    p.send(1, 1, LOCAL, []);
    assert!(!p.nodes[1].qp.has_local());
}

#[test]
fn test_ended_queue_pair_has_nothing_to_transmit() {
    // Ended by the peer, with a Write that waits for its acknowledgment and another Write after it.
    let mut p = open();
    p.send(0, 1, WRITE, []);
    p.send(0, 2, WRITE, []);
    p.transmit(0, 1);
    assert!(p.nodes[0].qp.has_transmit());
    p.a().qp.terminated_by_peer(&[0x11, 1, 0, 0]).unwrap();
    assert!(completions(&mut p.a().qp).is_empty());
    assert!(!p.nodes[0].qp.has_transmit());
    assert_eq!(p.transmit(0, 9), 0);
    // Drained: the owner closes TCP, and a Read comes too late.
    let mut p = open();
    p.a().qp.close();
    assert_eq!(events(&mut p.a().qp), [QpEvent::Drained]);
    let (stag, sink) = (p.nodes[0].stag, [p.nodes[1].sge(0, 8)]);
    p.send(1, 1, SendOp::Read { stag, to: BASE }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    assert_eq!(p.nodes[0].qp.counters().rx_read_requests, 1);
    assert!(!p.nodes[0].qp.has_transmit());
    assert_eq!(p.transmit(0, 9), 0);
}

/// A request that sends nothing fails: the same call returns the Terminate, and nothing else.
#[test]
fn test_failed_local_request_yields_the_terminate_at_once() {
    let mut p = open();
    p.send(0, 1, LOCAL, []);
    let Node { qp, mem, mrs, .. } = p.a();
    let env = QpEnv { mem: &*mem, mrs, snapshots_full: false, posted: None };
    let made: Vec<_> = std::iter::from_fn(|| qp.poll_transmit(&env, 1442)).collect();
    // Length (2), header (18), control field (4), CRC (4).
    assert_eq!(made.iter().map(|f| (f.len(), f.ends_message())).collect::<Vec<_>>(), [(28, true)]);
}
