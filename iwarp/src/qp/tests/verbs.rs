//! The rules of the queues: order, fences, limits, silence, and the ends of a QP's life.

use super::pair::BASE;
use super::*;
use heddle_types::{Cqe, CqeStatus, Queue, SendOp, TermCode};

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

fn ids(done: &[Cqe]) -> Vec<u64> {
    done.iter().map(|c| c.wr_id).collect()
}

fn statuses(qp: &mut QpContext) -> Vec<(u64, CqeStatus)> {
    completions(qp).iter().map(|c| (c.wr_id, c.status)).collect()
}

fn pair(ord: u16, ird: u16) -> Pair {
    let mut c = PairConfig::default();
    (c.qp.ord, c.qp.ird) = (ord, ird);
    Pair::open(c)
}

fn write(p: &mut Pair, wr_id: u64, len: usize) {
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let src = [p.nodes[0].sge(0, len)];
    p.send(0, wr_id, op, src);
}

fn read(p: &mut Pair, wr_id: u64, len: usize) {
    let op = SendOp::Read { stag: p.nodes[1].stag, to: BASE + 30_000 };
    let sink = [p.nodes[0].sge(40_000, len)];
    p.send(0, wr_id, op, sink);
}

#[test]
fn test_request_completes_only_when_its_last_byte_is_acknowledged() {
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
fn test_write_behind_a_read_completes_after_it() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 3000);
    write(&mut p, 2, 10);
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    // The peer has acknowledged Write and request; the answer has not come.
    assert!(completions(&mut p.a().qp).is_empty());
    p.transmit(1, 2);
    p.deliver(0, usize::MAX);
    assert!(completions(&mut p.a().qp).is_empty());
    p.transmit(1, 9);
    p.deliver(0, usize::MAX);
    assert_eq!(ids(&completions(&mut p.a().qp)), [1, 2]);
}

#[test]
fn test_fence_waits_for_reads_only() {
    let mut p = pair(4, 4);
    let to = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let src = [p.nodes[0].sge(0, 8)];
    let fenced = SendWr { op: to, ..SendWr::send(3, &src).fenced() };
    // Without a Read before it, the fence does not hold it, even though a Write is not acknowledged
    // yet.
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
fn test_ord_limits_outstanding_reads() {
    let mut p = pair(2, 4);
    for i in 0..3 {
        read(&mut p, i, 100);
    }
    // The third request also holds those after it: requests start in order.
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
fn test_queue_entry_is_freed_when_its_completion_is_polled() {
    let mut c = PairConfig::default();
    c.qp.sq_depth = 5;
    let mut p = Pair::open(c);
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE };
    let sges = [p.nodes[0].sge(0, 8)];
    let silent = SendWr { op, ..SendWr::send(1, &sges).unsignaled() };
    let loud = SendWr { wr_id: 9, signaled: true, ..silent };
    for round in 0..40 {
        for _ in 0..4 {
            p.nodes[0].qp.post_send(&silent).unwrap();
        }
        p.nodes[0].qp.post_send(&loud).unwrap();
        assert_eq!(p.nodes[0].qp.post_send(&loud), Err(PostError::Full));
        p.run();
        // All requests are done, but the last place becomes free only when its completion is
        // polled.
        assert_eq!(p.nodes[0].qp.sq_retired(), 1 + 5 * round + 4);
        let done = completions(&mut p.nodes[0].qp);
        assert_eq!(ids(&done), [9]);
        assert_eq!(p.nodes[0].qp.sq_retired(), 1 + 5 * (round + 1));
    }
}

#[test]
fn test_receive_queue_takes_its_depth_and_no_more() {
    let mut c = PairConfig::default();
    c.qp.rq_depth = 3;
    let mut p = Pair::open(c);
    let wr = RecvWr::new(1, &[]);
    for _ in 0..3 {
        p.nodes[1].qp.post_recv(&wr).unwrap();
    }
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
    p.send(0, 1, SEND, []);
    p.run();
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
    assert_eq!(completions(&mut p.nodes[1].qp).len(), 1);
    p.nodes[1].qp.post_recv(&wr).unwrap();
    assert_eq!(p.nodes[1].qp.post_recv(&wr), Err(PostError::Full));
}

#[test]
fn test_queue_indices_wrap() {
    let mut p = pair(4, 4);
    for i in 0..2 {
        let near = u32::MAX - 5;
        let q = &mut p.nodes[i].qp;
        q.sq.start_at(near);
        q.rq.start_at(near);
    }
    for i in 0..40 {
        p.recv(1, i, []);
        p.send(0, i, SEND, []);
        read(&mut p, 100 + i, 50);
        p.run();
        assert_eq!(ids(&completions(&mut p.a().qp)), [i, 100 + i]);
        assert_eq!(ids(&completions(&mut p.b().qp)), [i]);
    }
    p.check_healthy();
}

#[test]
fn test_responses_and_sends_take_turns() {
    let mut p = pair(4, 4);
    for i in 0..3 {
        read(&mut p, i, 10_000);
    }
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    let a = p.nodes[0].stag;
    for i in 0..3 {
        let src = [p.nodes[1].sge(0, 5000)];
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
    // No message begins before the one under way has ended.
    assert!(order.windows(2).all(|w| w[0].1 || w[0].0 == w[1].0));
    p.run();
    p.nodes.iter().for_each(|n| assert_eq!(n.qp.state(), ConnectedState::Rts));
}

#[test]
fn test_read_returns_data_of_an_earlier_write() {
    let mut p = pair(4, 4);
    p.a().write(0, b"written and read back");
    let b = p.nodes[1].stag;
    let (src, sink) = (p.nodes[0].sge(0, 21), p.nodes[0].sge(100, 21));
    p.send(0, 1, SendOp::Write { stag: b, to: BASE + 7 }, [src]);
    p.send(0, 2, SendOp::Read { stag: b, to: BASE + 7 }, [sink]);
    p.run();
    assert_eq!(p.nodes[0].read(100, 21), b"written and read back");
}

#[test]
fn test_responder_sends_nothing_before_the_first_fpdu() {
    let mut p = Pair::new(PairConfig::default());
    let a = p.nodes[0].stag;
    p.send(1, 1, SendOp::Write { stag: a, to: BASE }, []);
    p.run();
    assert!(p.nodes[1].sent.is_empty());
    assert!(events(&mut p.b().qp).is_empty());
    p.send(0, 2, SendOp::Write { stag: Stag(1), to: 0 }, []);
    p.run();
    assert_eq!(events(&mut p.b().qp), [QpEvent::FirstFpdu]);
    assert_eq!(events(&mut p.a().qp), [QpEvent::FirstFpdu]);
    assert_eq!(ids(&completions(&mut p.b().qp)), [1]);
    p.check_healthy();
}

/// Both ends agree on the fault, through the bytes between them.
#[test]
fn test_terminate_reaches_the_peer_and_fails_its_request() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 8);
    let src = [p.nodes[0].sge(0, 8)];
    p.send(0, 2, SendOp::Write { stag: Stag(0x77), to: 0 }, src);
    write(&mut p, 3, 8);
    p.recv(1, 7, []);
    p.transmit(0, 9);
    p.run();
    let code = TermCode::DDP_INVALID_STAG;
    assert_eq!(events(&mut p.b().qp), [QpEvent::Terminated { by: Side::Local, code }]);
    let remote = QpEvent::Terminated { by: Side::Remote, code };
    assert_eq!(events(&mut p.a().qp).last(), Some(&remote));
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Error);
    assert_eq!(completions(&mut p.b().qp)[0].status, CqeStatus::Flushed);
    // The Terminate names the Write; the Read before it was accepted but never answered.
    let done = statuses(&mut p.a().qp);
    assert_eq!(done[0], (1, CqeStatus::Flushed));
    assert_eq!(done[1], (2, CqeStatus::RemoteAccess(code)));
    assert_eq!(ids(&completions(&mut p.a().qp)), []);
}

#[test]
fn test_closing_queue_pair_sends_the_rest_and_reports_drained_once() {
    let mut p = pair(4, 4);
    read(&mut p, 1, 5000);
    write(&mut p, 2, 5000);
    p.nodes[0].qp.close();
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Closing);
    // The QP refuses requests posted after the close, but not ahead of the requests before the
    // close.
    p.nodes[0].qp.post_send(&SendWr::send(3, &[])).unwrap();
    p.nodes[0].qp.post_send(&SendWr::send(5, &[]).unsignaled()).unwrap();
    assert!(completions(&mut p.a().qp).is_empty());
    // The peer may still read and write.
    let a = p.nodes[0].stag;
    let sink = [p.nodes[1].sge(50_000, 4000)];
    p.send(1, 4, SendOp::Read { stag: a, to: BASE }, sink);
    p.transmit(1, 1);
    p.deliver(0, usize::MAX);
    assert!(!events(&mut p.a().qp).contains(&QpEvent::Drained));
    p.run();
    assert_eq!(events(&mut p.a().qp), [QpEvent::Drained]);
    let (ok, late) = (CqeStatus::Success, CqeStatus::LocalQpOperation(PostError::Closing));
    assert_eq!(statuses(&mut p.a().qp), [(1, ok), (2, ok), (3, late), (5, late)]);
    assert_eq!(ids(&completions(&mut p.b().qp)), [4]);
    p.nodes[0].qp.post_send(&SendWr::send(6, &[])).unwrap();
    assert_eq!(statuses(&mut p.a().qp), [(6, late)]);
    p.nodes[0].qp.close();
    p.nodes[0].qp.handle_acked(StreamPos(u64::MAX));
    assert!(events(&mut p.a().qp).is_empty());
}

#[test]
fn test_closing_queue_pair_with_nothing_posted_is_drained_at_once() {
    let mut p = pair(4, 4);
    events(&mut p.a().qp);
    p.nodes[0].qp.close();
    assert_eq!(events(&mut p.a().qp), [QpEvent::Drained]);
}

#[test]
fn test_peer_close_flushes_receives_but_lets_sending_go_on() {
    let mut p = pair(4, 4);
    p.recv(0, 1, []);
    p.nodes[0].qp.handle_peer_closed(false);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    p.recv(0, 2, []);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    write(&mut p, 3, 100);
    p.run();
    assert_eq!(ids(&completions(&mut p.a().qp)), [3]);
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Rts);
    // A Read could never be answered now.
    read(&mut p, 4, 100);
    p.transmit(0, 1);
    assert_eq!(completions(&mut p.a().qp)[0].status, CqeStatus::Flushed);
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Terminate);
}

#[test]
fn test_abort_flushes_requests_in_order_and_keeps_completed_ones() {
    let mut p = pair(4, 4);
    p.recv(0, 10, []);
    p.recv(0, 11, []);
    read(&mut p, 1, 100);
    write(&mut p, 2, 100);
    write(&mut p, 3, 5000);
    p.transmit(0, 3);
    // The peer has acknowledged the Write, but the Read before it holds its completion back.
    p.deliver(1, usize::MAX);
    p.nodes[0].qp.abort();
    let done = statuses(&mut p.a().qp);
    let (ok, flushed) = (CqeStatus::Success, CqeStatus::Flushed);
    let want = [(1, flushed), (2, ok), (3, flushed), (10, flushed), (11, flushed)];
    assert_eq!(done, want);
    assert_eq!(p.nodes[0].qp.counters().flushed, 4);
    assert_eq!(p.transmit(0, 1), 0);
    // An application can post to the queues for ever, and the QP flushes each request.
    for i in 0..500 {
        write(&mut p, i, 8);
        p.recv(0, i, []);
        assert_eq!(completions(&mut p.a().qp).len(), 2);
    }
    p.nodes[0].qp.abort();
    p.nodes[0].qp.close();
    assert_eq!(p.nodes[0].qp.state(), ConnectedState::Error);
}

/// Completions never outgrow the room set aside for them.
#[test]
fn test_completions_are_bounded_by_the_queue_depths() {
    let mut c = PairConfig::default();
    (c.qp.sq_depth, c.qp.rq_depth) = (7, 5);
    let mut p = Pair::open(c);
    for i in 0..7 {
        write(&mut p, i, 8);
    }
    for i in 0..5 {
        p.recv(0, i, []);
    }
    p.nodes[0].qp.abort();
    assert_eq!(p.nodes[0].qp.cq.iter().count(), 12);
    let op = SendOp::Write { stag: Stag(1), to: 0 };
    let wr = SendWr { op, ..SendWr::send(1, &[]) };
    assert_eq!(p.nodes[0].qp.post_send(&wr), Err(PostError::Full));
}

/// Segments of a tagged message may come between those of an untagged one.
#[test]
fn test_tagged_and_untagged_messages_may_interleave_on_receive() {
    let mut p = pair(4, 4);
    let data = random_bytes(5000, 3);
    p.a().write(0, &data);
    p.b().expect(100, &data);
    p.b().expect(20_000, &data);
    p.recv(1, 1, [p.nodes[1].sge(100, 5000)]);
    p.send(0, 2, SEND, [p.nodes[0].sge(0, 5000)]);
    let op = SendOp::Write { stag: p.nodes[1].stag, to: BASE + 20_000 };
    p.send(0, 3, op, [p.nodes[0].sge(0, 5000)]);
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
fn test_each_polled_completion_frees_only_its_own_entries() {
    let mut c = PairConfig::default();
    (c.qp.sq_depth, c.qp.rq_depth) = (4, 4);
    let mut p = Pair::open(c);
    for i in 0..4 {
        write(&mut p, i, 8);
        p.recv(0, i, []);
    }
    p.run();
    p.nodes[0].qp.handle_peer_closed(false);
    let wr = SendWr::send(9, &[]);
    let recv = RecvWr::new(9, &[]);
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
