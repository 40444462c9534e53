//! Atomic operations (RFC 7306 section 5).

use super::pair::BASE;
use super::*;
use heddle_types::{AtomicOp, CqeOp, CqeStatus, SendOp, check_send};

/// Offsets of the 64 bits at the responder, and of the sink at the requester.
const AT: usize = 4096;
const SINK: usize = 512;

fn atomic_rights() -> Access {
    rights().with(Access::REMOTE_ATOMIC)
}

/// Returns a pair whose second side has a region for atomics over the same memory.
fn pair(c: PairConfig) -> (Pair, Stag) {
    let p = Pair::open(c);
    let b = &p.nodes[1];
    let len = p.config.size as u64;
    let mr = b.mrs.register(b.qp.pd(), pair::GUARD as u64, BASE, len, atomic_rights()).unwrap();
    let stag = mr.stag;
    (p, stag)
}

fn op(stag: Stag, off: usize, op: AtomicOp) -> SendOp {
    SendOp::Atomic { stag, to: BASE + off as u64, op }
}

fn add(n: u64) -> AtomicOp {
    AtomicOp::FetchAdd { add: n, mask: 0 }
}

fn word(node: &pair::Node, off: usize) -> u64 {
    u64::from_ne_bytes(node.read(off, 8).try_into().unwrap())
}

fn put(node: &mut pair::Node, off: usize, value: u64) {
    node.write(off, &value.to_ne_bytes());
}

#[test]
fn test_atomic_changes_memory_of_peer_and_returns_old_value() {
    for (crc, markers) in [(true, false), (false, false), (true, true)] {
        let mut c = PairConfig::default();
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let (mut p, stag) = pair(c);
        let swap = AtomicOp::CmpSwap {
            compare: 0x0107,
            compare_mask: 0xffff,
            swap: 0xabcd_0000,
            swap_mask: 0xffff_0000,
        };
        put(p.b(), AT, 0x0100);
        for (wr_id, what, after) in
            [(1, add(7), 0x0107_u64), (2, swap, 0xabcd_0107), (3, AtomicOp::swap(9), 9)]
        {
            let before = word(&p.nodes[1], AT);
            let sink = [p.nodes[0].sge(SINK, 8)];
            p.send(0, wr_id, op(stag, AT, what), sink);
            p.a().expect(SINK, &before.to_ne_bytes());
            p.b().expect(AT, &after.to_ne_bytes());
            p.run();
            let done = completions(&mut p.a().qp);
            assert_eq!(done.len(), 1);
            let want = (wr_id, CqeOp::from(what), CqeStatus::Success, 8);
            assert_eq!((done[0].wr_id, done[0].op, done[0].status, done[0].len), want);
            p.check_healthy();
        }
        // The responder's application receives no completion and no event.
        assert!(completions(&mut p.b().qp).is_empty() && events(&mut p.b().qp).is_empty());
        let c = p.nodes[1].qp.counters();
        assert_eq!((c.rx_atomic_requests, c.tx_atomic_responses), (3, 3));
    }
}

#[test]
fn test_failed_compare_and_swap_changes_nothing_and_completes() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.b(), AT, 5);
    let sink = [p.nodes[0].sge(SINK, 8)];
    p.nodes[0].qp.post_send(&SendWr::compare_swap(1, &sink, stag, BASE + AT as u64, 4, 6)).unwrap();
    p.a().expect(SINK, &5u64.to_ne_bytes());
    p.run();
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Success);
    p.check_healthy();
}

#[test]
fn test_atomic_request_and_response_match_expected_bytes() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.b(), AT, 0x1122_3344_5566_7788);
    let sink = [p.nodes[0].sge(SINK, 8)];
    let from = p.nodes[0].sent.len();
    p.send(0, 1, op(stag, AT, add(1)), sink);
    p.transmit(0, 9);
    let request = &p.nodes[0].sent[from..];
    // ULPDU of 70 bytes; DDP: last, version 1; RDMAP: version 1, Atomic Request; queue 1, MSN 1,
    // offset 0; FetchAdd. RFC 7306 appendix A.1.
    assert_eq!(request[..20], [0, 70, 0x41, 0x4a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!((request.len(), request[23]), (76, 0));
    p.deliver(1, usize::MAX);
    p.transmit(1, 9);
    let response = p.nodes[1].sent.clone();
    // ULPDU of 30 bytes; Atomic Response; queue 3, MSN 1, offset 0; the request's identifier; the
    // old value, big-endian. Appendix A.2.
    let mut want = vec![0, 30, 0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0];
    want.extend(&request_id(&p.nodes[0].sent[from..]));
    want.extend([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    assert_eq!(response[response.len() - 36..response.len() - 4], want);
}

fn request_id(request: &[u8]) -> [u8; 4] {
    request[24..28].try_into().unwrap()
}

#[test]
fn test_reads_and_atomics_are_answered_in_the_order_of_the_requests() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.b(), AT, 10);
    let sinks = [0, 1, 2, 3].map(|i| [p.nodes[0].sge(SINK + 8 * i, 8)]);
    let read = SendOp::Read { stag, to: BASE + AT as u64 };
    p.send(0, 1, op(stag, AT, add(1)), sinks[0]);
    p.send(0, 2, read, sinks[1]);
    p.send(0, 3, op(stag, AT, add(1)), sinks[2]);
    p.send(0, 4, read, sinks[3]);
    p.run();
    let done: Vec<_> = completions(&mut p.a().qp).iter().map(|c| (c.wr_id, c.op)).collect();
    use CqeOp::{FetchAdd, Read};
    assert_eq!(done, [(1, FetchAdd), (2, Read), (3, FetchAdd), (4, Read)]);
    // Each operation sees the results of those before it, and of none after it.
    let seen = [0, 1, 2, 3].map(|i| word(&p.nodes[0], SINK + 8 * i));
    assert_eq!(seen, [10, 11, 11, 12]);
}

#[test]
fn test_atomic_sees_write_before_it_but_not_write_after_it() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.a(), 0, 100);
    let source = [p.nodes[0].sge(0, 8)];
    let sink = [p.nodes[0].sge(SINK, 8)];
    p.send(0, 1, SendOp::Write { stag, to: BASE + AT as u64 }, source);
    p.send(0, 2, op(stag, AT, add(1)), sink);
    p.run();
    assert_eq!((word(&p.nodes[0], SINK), word(&p.nodes[1], AT)), (100, 101));
}

#[test]
fn test_atomics_count_towards_ord_and_fences() {
    let mut c = PairConfig::default();
    (c.qp.ord, c.qp.ird) = (1, 1);
    let (mut p, stag) = pair(c);
    let sink = [p.nodes[0].sge(SINK, 8)];
    p.send(0, 1, op(stag, AT, add(1)), sink);
    p.send(0, 2, op(stag, AT, add(1)), sink);
    assert!(p.transmit(0, 9) > 0);
    assert_eq!(p.nodes[0].qp.counters().tx_read_stalls, 1, "the second waits for the first");
    p.run();
    assert_eq!(completions(&mut p.a().qp).len(), 2);
    let source = [p.nodes[0].sge(0, 8)];
    p.send(0, 3, op(stag, AT, add(1)), sink);
    let write = SendOp::Write { stag, to: BASE };
    let fenced = SendWr { op: write, ..SendWr::send(4, &source).fenced() };
    p.nodes[0].qp.post_send(&fenced).unwrap();
    p.transmit(0, 9);
    let sent = p.nodes[0].qp.counters().tx_fpdus;
    assert_eq!(p.transmit(0, 9), 0, "fenced");
    p.run();
    assert_eq!(p.nodes[0].qp.counters().tx_fpdus, sent + 1);
}

#[test]
fn test_stream_ends_if_region_is_unregistered_before_atomic_runs() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.b(), AT, 1);
    let sink = [p.nodes[0].sge(SINK, 8)];
    p.send(0, 1, op(stag, AT, add(1)), sink);
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    p.nodes[1].mrs.deregister(stag).unwrap();
    p.run();
    assert_eq!(p.nodes[1].qp.state(), ConnectedState::Terminate);
    assert_eq!(word(&p.nodes[1], AT), 1);
    let done = completions(&mut p.a().qp);
    assert!(matches!(done[0].status, CqeStatus::RemoteAccess(_)), "{:?}", done[0].status);
}

#[test]
fn test_atomic_without_one_sink_of_eight_bytes_is_refused_at_posting() {
    let (mut p, stag) = pair(PairConfig::default());
    let (short, two) = ([p.nodes[0].sge(0, 4)], [p.nodes[0].sge(0, 8); 2]);
    let limits = Limits::default();
    for sges in [&short[..], &two[..], &[]] {
        let wr = SendWr::fetch_add(1, sges, stag, BASE, 1);
        assert_eq!(check_send(&wr, &limits), Err(PostError::AtomicSink));
    }
    let sink = [p.nodes[0].sge(0, 8)];
    let wr = SendWr::fetch_add(1, &sink, stag, BASE, 1);
    assert_eq!(check_send(&wr, &limits), Ok(()));
    assert_eq!(check_send(&wr, &Limits { ord: 0, ..limits }), Err(PostError::NoReads));
    let wr = SendWr::fetch_add(1, &sink, stag, u64::MAX - 3, 1);
    assert_eq!(check_send(&wr, &limits), Err(PostError::ToWrap));
    // An application that posts it nevertheless gets this status, and the QP does not send it.
    let wr = SendWr::fetch_add(7, &short, stag, BASE, 1);
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run();
    let done = completions(&mut p.a().qp);
    assert_eq!(done[0].status, CqeStatus::LocalQpOperation(PostError::AtomicSink));
}

#[test]
fn test_message_numbers_of_the_response_queue_wrap() {
    let (mut p, stag) = pair(PairConfig::default());
    for n in &mut p.nodes {
        (n.qp.reads.rx_atomic_msn, n.qp.reads.tx_atomic_msn) = (Msn(u32::MAX), Msn(u32::MAX));
        (n.qp.read_msn, n.qp.reads.msn) = (Msn(u32::MAX), Msn(u32::MAX));
    }
    let sink = [p.nodes[0].sge(SINK, 8)];
    for i in 0..4 {
        p.send(0, i, op(stag, AT, add(1)), sink);
    }
    p.run();
    let done = completions(&mut p.a().qp);
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|c| c.status.is_success()));
}

#[test]
fn test_misaligned_atomic_changes_nothing_and_fails_on_both_sides() {
    for what in [add(1), AtomicOp::swap(9)] {
        let (mut p, stag) = pair(PairConfig::default());
        put(p.b(), AT, 5);
        let sink = [p.nodes[0].sge(SINK, 8)];
        p.send(0, 1, op(stag, AT + 4, what), sink);
        p.run();
        let code = heddle_types::TermCode::new(0, 2, 7);
        let done = completions(&mut p.a().qp);
        assert_eq!(done[0].status, CqeStatus::RemoteOperation(code));
        for (side, by) in [(0, Side::Remote), (1, Side::Local)] {
            let told = events(&mut p.nodes[side].qp);
            assert_eq!(told.last(), Some(&QpEvent::Terminated { by, code }));
        }
        p.check_memory();
    }
}

/// Figure 8 of RFC 7306: the responder makes the answer after everything that was sent before the
/// request. If an earlier message cannot be delivered, the responder does not carry the request
/// out.
#[test]
fn test_atomic_is_not_carried_out_after_an_undelivered_message() {
    for immediate in [false, true] {
        for buffer in [false, true] {
            let (mut p, stag) = pair(PairConfig::default());
            put(p.b(), AT, 5);
            if buffer {
                p.recv(1, 10, []);
            }
            if immediate {
                p.nodes[0].qp.post_send(&SendWr::immediate(1, 7)).unwrap();
            } else {
                p.nodes[0].qp.post_send(&SendWr::send(1, &[])).unwrap();
            }
            let sink = [p.nodes[0].sge(SINK, 8)];
            p.send(0, 2, op(stag, AT, add(1)), sink);
            p.transmit(0, 9);
            p.deliver(1, usize::MAX);
            assert_eq!(word(&p.nodes[1], AT), 5, "not before its answer is made");
            assert_eq!(completions(&mut p.b().qp).len(), usize::from(buffer), "complete before it");
            p.run();
            assert_eq!(word(&p.nodes[1], AT), 5 + u64::from(buffer));
        }
    }
}

#[test]
fn test_atomic_request_completes_only_with_its_response() {
    let (mut p, stag) = pair(PairConfig::default());
    put(p.b(), AT, 5);
    let sink = [p.nodes[0].sge(SINK, 8)];
    p.send(0, 1, op(stag, AT, add(1)), sink);
    p.transmit(0, 9);
    // The peer's TCP acknowledges the request, which does not mean that an answer has come.
    let end = p.nodes[0].qp.tx_end();
    p.nodes[0].qp.handle_acked(end);
    assert!(completions(&mut p.a().qp).is_empty());
    p.run();
    assert_eq!(completions(&mut p.a().qp).len(), 1);
    assert_eq!(p.nodes[1].qp.counters().tx_atomic_responses, 1);
}
