//! The rules of the queues: order, fences, limits, silence, and the ends of a QP's life.

use super::pair::BASE;
use super::*;
use crate::rdmap::TermCode;

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

fn ids(done: &[Cqe]) -> Vec<u64> {
    done.iter().map(|c| c.wr_id).collect()
}

fn pair(ord: u16, ird: u16) -> Pair {
    let mut c = PairConfig::default();
    (c.qp.ord, c.qp.ird) = (ord, ird);
    Pair::open(c)
}

fn write(p: &mut Pair, wr_id: u64, len: usize) {
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let src = SgList::one(p.nodes[0].sge(0, len));
    p.send(0, wr_id, op, src);
}

fn read(p: &mut Pair, wr_id: u64, len: usize) {
    let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE + 30_000 };
    let sink = SgList::one(p.nodes[0].sge(40_000, len));
    p.send(0, wr_id, op, sink);
}

#[test]
fn test_rts_sends_complete_only_when_acknowledged_to_the_last_byte() {
    let mut p = pair(4, 4);
    let before = p.nodes[0].qp.tx_end();
    write(&mut p, 1, 100);
    p.transmit(0, 9);
    let end = p.nodes[0].qp.tx_end();
    let qp = &mut p.nodes[0].qp;
    qp.handle_acked(before);
    assert!(qp.poll_completion().is_none());
    qp.handle_acked(StreamPos(end.0 - 1));
    assert!(qp.poll_completion().is_none());
    qp.handle_acked(end);
    assert_eq!(ids(&completions(qp)), [1]);
    // Older acknowledgments do no harm.
    qp.handle_acked(before);
    assert!(qp.poll_completion().is_none());
}

#[test]
fn test_rts_write_behind_a_read_waits_for_it_to_complete_in_order() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 3000);
    write(&mut p, 2, 10);
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    // Write and request are acknowledged, the answer has not come.
    assert!(completions(&mut p.a().qp).is_empty());
    p.transmit(1, 2);
    p.deliver(0, usize::MAX);
    assert!(completions(&mut p.a().qp).is_empty());
    p.transmit(1, 9);
    p.deliver(0, usize::MAX);
    assert_eq!(ids(&completions(&mut p.a().qp)), [1, 2]);
}

#[test]
fn test_rts_fence_waits_for_reads_only() {
    let mut p = pair(4, 4);
    let to = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let src = SgList::one(p.nodes[0].sge(0, 8));
    let fenced = SendWr { wr_id: 3, op: to, sges: src, signaled: true, fence: true };
    // No read before it: not held, even though a Write is not acknowledged yet.
    write(&mut p, 1, 8);
    p.nodes[0].qp.post_send(&fenced).unwrap();
    assert!(p.transmit(0, 1) > 0 && p.transmit(0, 1) > 0);
    p.run();
    completions(&mut p.a().qp);
    read(&mut p, 2, 3000);
    p.nodes[0].qp.post_send(&fenced).unwrap();
    assert!(p.transmit(0, 1) > 0);
    assert_eq!(p.transmit(0, 1), 0, "held");
    assert!(!p.nodes[0].qp.has_transmit());
    p.deliver(1, usize::MAX);
    p.transmit(1, 2);
    p.deliver(0, usize::MAX);
    assert_eq!(p.transmit(0, 1), 0, "two of three segments are not the whole answer");
    p.transmit(1, 9);
    p.deliver(0, usize::MAX);
    assert!(p.transmit(0, 1) > 0, "released");
    p.run();
    assert_eq!(ids(&completions(&mut p.a().qp)), [2, 3]);
    assert!(p.nodes[0].qp.counters().tx_read_stalls > 0);
}

#[test]
fn test_rts_ord_limits_reads_under_way() {
    let mut p = pair(2, 4);
    for i in 0..3 {
        read(&mut p, i, 100);
    }
    // And holds what comes behind the third: requests start in order.
    write(&mut p, 3, 8);
    assert!(p.transmit(0, 1) > 0 && p.transmit(0, 1) > 0);
    assert_eq!(p.transmit(0, 1), 0);
    p.deliver(1, usize::MAX);
    assert!(p.transmit(1, 1) > 0);
    p.deliver(0, usize::MAX);
    assert!(p.transmit(0, 1) > 0 && p.transmit(0, 1) > 0);
    p.run();
    assert_eq!(ids(&completions(&mut p.a().qp)), [0, 1, 2, 3]);
    p.check_healthy();
}

#[test]
fn test_rts_unsignaled_requests_are_given_back_by_the_next_completion() {
    let mut c = PairConfig::default();
    c.qp.sq_depth = 5;
    let mut p = Pair::open(c);
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let sges = SgList::one(p.nodes[0].sge(0, 8));
    let silent = SendWr { wr_id: 1, op, sges, signaled: false, fence: false };
    let loud = SendWr { wr_id: 9, signaled: true, ..silent };
    for _ in 0..40 {
        for _ in 0..4 {
            p.nodes[0].qp.post_send(&silent).unwrap();
        }
        p.nodes[0].qp.post_send(&loud).unwrap();
        assert_eq!(p.nodes[0].qp.post_send(&loud), Err(PostError::Full));
        p.run();
        // Done, but given back only when the completion is polled.
        assert_eq!(p.nodes[0].qp.post_send(&loud), Err(PostError::Full));
        let done = completions(&mut p.nodes[0].qp);
        assert_eq!(done.iter().map(|c| (c.wr_id, c.retired)).collect::<Vec<_>>(), [(9, 5)]);
    }
}

#[test]
fn test_rts_receive_queue_takes_its_depth_and_no_more() {
    let mut c = PairConfig::default();
    c.qp.rq_depth = 3;
    let mut p = Pair::open(c);
    let wr = RecvWr { wr_id: 1, sges: SgList::EMPTY };
    for _ in 0..3 {
        p.nodes[1].qp.post_recv(&wr).unwrap();
    }
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
    p.send(0, 1, SEND, SgList::EMPTY);
    p.run();
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
    assert_eq!(completions(&mut p.nodes[1].qp).len(), 1);
    p.nodes[1].qp.post_recv(&wr).unwrap();
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
}

#[test]
fn test_rts_indices_wrap() {
    let mut p = pair(4, 4);
    for i in 0..2 {
        let near = u32::MAX - 5;
        let q = &mut p.nodes[i].qp;
        (q.sq.freed, q.sq.reported, q.sq.head, q.sq.next, q.sq.tail) =
            (near, near, near, near, near);
        (q.rq.freed, q.rq.head, q.rq.tail) = (near, near, near);
    }
    for i in 0..40 {
        p.recv(1, i, SgList::EMPTY);
        p.send(0, i, SEND, SgList::EMPTY);
        read(&mut p, 100 + i, 50);
        p.run();
        assert_eq!(ids(&completions(&mut p.a().qp)), [i, 100 + i]);
        assert_eq!(ids(&completions(&mut p.b().qp)), [i]);
    }
    p.check_healthy();
}

#[test]
fn test_rts_misuse_is_refused_and_changes_nothing() {
    let mut p = pair(0, 0);
    let sge = |len| Sge { stag: Stag(1), to: 0, len };
    let wr = |op, sges| SendWr { wr_id: 1, op, sges, signaled: true, fence: false };
    let two = SgList::new(&[sge(1), sge(1)]).unwrap();
    let max = SgList::new(&[sge(MAX_MESSAGE - 1), sge(1)]).unwrap();
    let over = SgList::new(&[sge(MAX_MESSAGE), sge(1)]).unwrap();
    let most = SgList::new(&[sge(u32::MAX); 4]).unwrap();
    let (write, read) =
        (|to| SendOp::Write { stag: Stag(1), to }, |to| SendOp::Read { stag: Stag(1), to });
    let q = &mut p.nodes[0].qp;
    assert_eq!(q.post_send(&wr(SEND, over)), Err(PostError::TooLong));
    assert_eq!(q.post_send(&wr(SEND, most)), Err(PostError::TooLong));
    assert_eq!(q.post_recv(&RecvWr { wr_id: 1, sges: over }), Err(PostError::TooLong));
    assert_eq!(q.post_send(&wr(write(u64::MAX - 1), two)), Err(PostError::ToWrap));
    assert_eq!(q.post_send(&wr(read(u64::MAX), SgList::one(sge(1)))), Err(PostError::ToWrap));
    assert_eq!(q.post_send(&wr(read(0), two)), Err(PostError::ReadSges));
    assert_eq!(q.post_send(&wr(read(0), SgList::one(sge(1)))), Err(PostError::NoReads));
    assert!(SgList::new(&[sge(1); MAX_SGES + 1]).is_none());
    assert!(!q.has_transmit());
    // The twins that are right.
    q.post_send(&wr(SEND, max)).unwrap();
    q.post_recv(&RecvWr { wr_id: 1, sges: max }).unwrap();
    q.post_send(&wr(write(u64::MAX - 2), two)).unwrap();
}

#[test]
fn test_rts_responses_and_sends_take_turns() {
    let mut p = pair(4, 4);
    for i in 0..3 {
        read(&mut p, i, 10_000);
    }
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    let a = p.nodes[0].stag;
    for i in 0..3 {
        let src = SgList::one(p.nodes[1].sge(0, 5000));
        p.send(1, i, SendOp::Write { stag: a, to: BASE }, src);
    }
    // Byte 1 of the ULPDU: 0x40 Write, 0x42 Read Response; a message ends with the L bit.
    let mut order = Vec::new();
    loop {
        let at = p.nodes[1].sent.len();
        if p.transmit(1, 1) == 0 {
            break;
        }
        let f = &p.nodes[1].sent[at..];
        order.push((f[3], f[2] & 0x40 != 0));
    }
    let ends: Vec<u8> = order.iter().filter(|(_, last)| *last).map(|(op, _)| *op).collect();
    assert_eq!(ends.len(), 6);
    assert!(ends.windows(2).all(|w| w[0] != w[1]), "{ends:x?}");
    // And no message begins before the one under way has ended.
    assert!(order.windows(2).all(|w| w[0].1 || w[0].0 == w[1].0));
    p.run();
    p.nodes.iter().for_each(|n| assert_eq!(n.qp.state(), QpState::Rts));
}

#[test]
fn test_rts_read_returns_what_an_earlier_write_wrote() {
    let mut p = pair(4, 4);
    p.a().write(0, b"written and read back");
    let b = p.nodes[1].stag;
    let (src, sink) = (p.nodes[0].sge(0, 21), p.nodes[0].sge(100, 21));
    p.send(0, 1, SendOp::Write { stag: b, to: BASE + 7 }, SgList::one(src));
    p.send(0, 2, SendOp::Read { stag: b, to: BASE + 7 }, SgList::one(sink));
    p.run();
    assert_eq!(p.nodes[0].read(100, 21), b"written and read back");
}

#[test]
fn test_rts_responder_sends_nothing_before_the_first_fpdu() {
    let mut p = Pair::new(PairConfig::default());
    let a = p.nodes[0].stag;
    p.send(1, 1, SendOp::Write { stag: a, to: BASE }, SgList::EMPTY);
    p.run();
    assert!(p.nodes[1].sent.is_empty());
    assert!(events(&mut p.b().qp).is_empty());
    p.send(0, 2, SendOp::Write { stag: Stag(1), to: 0 }, SgList::EMPTY);
    p.run();
    assert_eq!(events(&mut p.b().qp), [QpEvent::FirstFpdu]);
    assert_eq!(events(&mut p.a().qp), [QpEvent::FirstFpdu]);
    assert_eq!(ids(&completions(&mut p.b().qp)), [1]);
    p.check_healthy();
}

#[test]
fn test_rts_responder_whose_first_fpdu_is_bad_sends_its_terminate() {
    let mut p = Pair::new(PairConfig::default());
    p.send(0, 2, SendOp::Write { stag: Stag(1), to: 0 }, SgList::EMPTY);
    p.transmit(0, 1);
    p.b().inbox[3] ^= 1;
    p.run();
    let code = TermCode::MPA_CRC;
    assert_eq!(events(&mut p.b().qp), [QpEvent::Terminated { by: Side::Local, code }]);
    assert_eq!(events(&mut p.a().qp), [QpEvent::Terminated { by: Side::Remote, code }]);
}

/// Both ends agree on what went wrong, through the bytes between them.
#[test]
fn test_rts_terminate_reaches_the_peer_and_its_request() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 8);
    let src = SgList::one(p.nodes[0].sge(0, 8));
    p.send(0, 2, SendOp::Write { stag: Stag(0x77), to: 0 }, src);
    write(&mut p, 3, 8);
    p.recv(1, 7, SgList::EMPTY);
    p.transmit(0, 9);
    p.run();
    let code = TermCode::DDP_INVALID_STAG;
    assert_eq!(events(&mut p.b().qp), [QpEvent::Terminated { by: Side::Local, code }]);
    let remote = QpEvent::Terminated { by: Side::Remote, code };
    assert_eq!(events(&mut p.a().qp).last(), Some(&remote));
    assert_eq!(p.nodes[0].qp.state(), QpState::Error);
    assert_eq!(completions(&mut p.b().qp)[0].status, CqeStatus::Flushed);
    // The Terminate names the Write; the Read before it was accepted but never answered.
    let done: Vec<_> = completions(&mut p.a().qp).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done[0], (1, CqeStatus::Flushed));
    assert_eq!(done[1], (2, CqeStatus::RemoteTerminated(code)));
    assert_eq!(ids(&completions(&mut p.a().qp)), []);
}

#[test]
fn test_closing_sends_the_rest_and_says_so_once() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 5000);
    write(&mut p, 2, 5000);
    p.nodes[0].qp.close();
    assert_eq!(p.nodes[0].qp.state(), QpState::Closing);
    let wr = SendWr { wr_id: 3, op: SEND, sges: SgList::EMPTY, signaled: true, fence: false };
    assert_eq!(p.nodes[0].qp.post_send(&wr), Err(PostError::Closing));
    // The peer may still read and write.
    let a = p.nodes[0].stag;
    let sink = SgList::one(p.nodes[1].sge(50_000, 4000));
    p.send(1, 4, SendOp::Read { stag: a, to: BASE }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    assert!(!events(&mut p.a().qp).contains(&QpEvent::Drained));
    p.run();
    assert_eq!(events(&mut p.a().qp), [QpEvent::Drained]);
    assert_eq!(ids(&completions(&mut p.a().qp)), [1, 2]);
    assert_eq!(ids(&completions(&mut p.b().qp)), [4]);
    p.nodes[0].qp.close();
    p.nodes[0].qp.handle_acked(StreamPos(u64::MAX));
    assert!(events(&mut p.a().qp).is_empty());
}

#[test]
fn test_closing_with_nothing_to_do_is_drained_at_once() {
    let mut p = pair(4, 4);
    events(&mut p.a().qp);
    p.nodes[0].qp.close();
    assert_eq!(events(&mut p.a().qp), [QpEvent::Drained]);
}

#[test]
fn test_rts_peer_closed_flushes_receives_and_leaves_sending() {
    let mut p = pair(4, 4);
    p.recv(0, 1, SgList::EMPTY);
    p.nodes[0].qp.handle_peer_closed();
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    p.recv(0, 2, SgList::EMPTY);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    write(&mut p, 3, 100);
    p.run();
    assert_eq!(ids(&completions(&mut p.a().qp)), [3]);
    assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
    // A Read could never be answered.
    read(&mut p, 4, 100);
    p.transmit(0, 1);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    assert_eq!(p.nodes[0].qp.state(), QpState::Terminate);
}

#[test]
fn test_rts_peer_closed_inside_a_message_or_a_read_fails_the_qp() {
    let mut p = pair(4, 4);
    p.recv(1, 1, SgList::one(p.nodes[1].sge(0, 5000)));
    p.send(0, 2, SEND, SgList::one(p.nodes[0].sge(0, 5000)));
    p.transmit(0, 1);
    p.deliver(1, usize::MAX);
    p.nodes[1].qp.handle_peer_closed();
    assert_eq!(p.nodes[1].qp.state(), QpState::Error);
    assert_eq!(completions(&mut p.b().qp)[0].status, CqeStatus::Flushed);
    let mut p = pair(4, 4);
    read(&mut p, 1, 100);
    p.transmit(0, 1);
    p.nodes[0].qp.handle_peer_closed();
    assert_eq!(p.nodes[0].qp.state(), QpState::Error);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
}

#[test]
fn test_rts_abort_flushes_everything_in_order_and_keeps_what_is_done() {
    let mut p = pair(4, 4);
    p.recv(0, 10, SgList::EMPTY);
    p.recv(0, 11, SgList::EMPTY);
    read(&mut p, 1, 100);
    write(&mut p, 2, 100);
    write(&mut p, 3, 5000);
    p.transmit(0, 3);
    // The Write is acknowledged, but the Read before it holds it back.
    p.deliver(1, usize::MAX);
    p.nodes[0].qp.abort();
    let done: Vec<_> = completions(&mut p.a().qp).iter().map(|c| (c.wr_id, c.status)).collect();
    let (ok, flushed) = (CqeStatus::Success, CqeStatus::Flushed);
    let want = [(1, flushed), (2, ok), (3, flushed), (10, flushed), (11, flushed)];
    assert_eq!(done, want);
    assert_eq!(p.nodes[0].qp.counters().flushed, 4);
    assert_eq!(p.transmit(0, 1), 0);
    // The queues can be posted to and flushed for ever.
    for i in 0..500 {
        write(&mut p, i, 8);
        p.recv(0, i, SgList::EMPTY);
        assert_eq!(completions(&mut p.a().qp).len(), 2);
    }
    p.nodes[0].qp.abort();
    p.nodes[0].qp.close();
    assert_eq!(p.nodes[0].qp.state(), QpState::Error);
}

/// Completions never outgrow what was set aside for them.
#[test]
fn test_rts_completion_queue_holds_both_queues_full() {
    let mut c = PairConfig::default();
    (c.qp.sq_depth, c.qp.rq_depth) = (7, 5);
    let mut p = Pair::open(c);
    let room = p.nodes[0].qp.cq.capacity();
    assert!(room >= 12);
    for i in 0..7 {
        write(&mut p, i, 8);
    }
    for i in 0..5 {
        p.recv(0, i, SgList::EMPTY);
    }
    p.nodes[0].qp.abort();
    assert_eq!(p.nodes[0].qp.cq.len(), 12);
    assert_eq!(p.nodes[0].qp.cq.capacity(), room);
    let op = SendOp::Write { stag: Stag(1), to: 0 };
    let wr = SendWr { wr_id: 1, op, sges: SgList::EMPTY, signaled: true, fence: false };
    assert_eq!(p.nodes[0].qp.post_send(&wr), Err(PostError::Full));
}

/// Segments of a tagged message may come between those of an untagged one.
#[test]
fn test_rts_tagged_and_untagged_messages_may_interleave_on_receive() {
    let mut p = pair(4, 4);
    let data = random_bytes(5000, 3);
    p.a().write(0, &data);
    p.b().expect(100, &data);
    p.b().expect(20_000, &data);
    p.recv(1, 1, SgList::one(p.nodes[1].sge(100, 5000)));
    p.send(0, 2, SEND, SgList::one(p.nodes[0].sge(0, 5000)));
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE + 20_000 };
    p.send(0, 3, op, SgList::one(p.nodes[0].sge(0, 5000)));
    p.transmit(0, 99);
    // Deal the two messages' FPDUs alternately.
    let bytes = std::mem::take(&mut p.b().inbox);
    let full = 1448;
    let (sends, writes) =
        bytes.split_at(3 * full + crate::mpa::fpdu::fpdu_len(18 + 5000 - 3 * 1424));
    let mut mixed = Vec::new();
    for (a, b) in sends.chunks(full).zip(writes.chunks(full)) {
        mixed.extend(b);
        mixed.extend(a);
    }
    assert_eq!(mixed.len(), bytes.len());
    p.b().inbox = mixed;
    p.run();
    p.check_healthy();
    assert_eq!(completions(&mut p.b().qp)[0].len, 5000);
}

#[test]
fn test_rts_each_polled_completion_gives_back_only_its_own_entries() {
    let mut c = PairConfig::default();
    (c.qp.sq_depth, c.qp.rq_depth) = (4, 4);
    let mut p = Pair::open(c);
    for i in 0..4 {
        write(&mut p, i, 8);
        p.recv(0, i, SgList::EMPTY);
    }
    p.run();
    p.nodes[0].qp.handle_peer_closed();
    let wr = SendWr { wr_id: 9, op: SEND, sges: SgList::EMPTY, signaled: true, fence: false };
    let recv = RecvWr { wr_id: 9, sges: SgList::EMPTY };
    let q = &mut p.nodes[0].qp;
    assert_eq!(q.poll_completion().map(|c| c.queue), Some(Queue::Sq));
    q.post_send(&wr).unwrap();
    assert_eq!(q.post_send(&wr), Err(PostError::Full));
    assert_eq!(q.post_recv(&recv), Err(PostError::Full));
    for _ in 0..3 {
        assert_eq!(q.poll_completion().map(|c| c.queue), Some(Queue::Sq));
    }
    assert_eq!(q.post_recv(&recv), Err(PostError::Full));
    assert_eq!(q.poll_completion().map(|c| c.queue), Some(Queue::Rq));
    q.post_recv(&recv).unwrap();
    assert_eq!(q.post_recv(&recv), Err(PostError::Full));
}
