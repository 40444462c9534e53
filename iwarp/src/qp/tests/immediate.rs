//! Immediate Data (RFC 7306 section 6), alone and after a Write.

use super::pair::BASE;
use super::*;
use heddle_types::{Cqe, CqeOp, CqeStatus, Data, Sge, check_send};

const DATA: u64 = 0x0102_0304_0506_0708;

fn recv(wr_id: u64, data: u64, solicited: bool) -> (u64, CqeOp, CqeStatus, u32, Option<u64>, bool) {
    (wr_id, CqeOp::Recv, CqeStatus::Success, 0, Some(data), solicited)
}

fn told(c: &Cqe) -> (u64, CqeOp, CqeStatus, u32, Option<u64>, bool) {
    (c.wr_id, c.op, c.status, c.len, c.immediate, c.solicited)
}

#[test]
fn test_immediate_data_completes_a_buffer_and_writes_nothing() {
    for (crc, markers) in [(true, false), (false, false), (true, true)] {
        let mut c = PairConfig::default();
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let mut p = Pair::open(c);
        for wr_id in [10, 11] {
            let buffer = [p.nodes[1].sge(100, 64)];
            p.recv(1, wr_id, buffer);
        }
        p.nodes[0].qp.post_send(&SendWr::immediate(1, DATA)).unwrap();
        p.nodes[0].qp.post_send(&SendWr::immediate(2, 7).solicited()).unwrap();
        p.run();
        let done: Vec<_> = completions(&mut p.b().qp).iter().map(told).collect();
        assert_eq!(done, [recv(10, DATA, false), recv(11, 7, true)]);
        let sent: Vec<_> = completions(&mut p.a().qp).iter().map(|c| (c.wr_id, c.op)).collect();
        assert_eq!(sent, [(1, CqeOp::Immediate), (2, CqeOp::Immediate)]);
        p.check_healthy();
    }
}

#[test]
fn test_immediate_data_matches_expected_bytes() {
    let mut p = Pair::open(PairConfig::default());
    for (wr, opcode, msn) in
        [(SendWr::immediate(1, DATA), 0x48, 1), (SendWr::immediate(2, DATA).solicited(), 0x49, 2)]
    {
        let from = p.nodes[0].sent.len();
        p.nodes[0].qp.post_send(&wr).unwrap();
        p.transmit(0, 9);
        let fpdu = &p.nodes[0].sent[from..];
        // ULPDU of 26 bytes; last, version 1; queue 0; offset 0; 8 bytes. Appendix A.3.
        let want = [
            0, 26, 0x41, opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0, 1, 2, 3, 4, 5,
            6, 7, 8,
        ];
        assert_eq!(fpdu[..28], want);
        assert_eq!(fpdu.len(), 32);
    }
}

#[test]
fn test_write_with_immediate_is_placed_before_it_is_reported() {
    for size in [0, 1, 32, 33, 1000, 5000] {
        let mut p = Pair::open(PairConfig::default());
        let buffer = [p.nodes[1].sge(60_000, 8)];
        p.recv(1, 10, buffer);
        let text = random_bytes(size, 3);
        p.a().write(0, &text);
        p.b().expect(2000, &text);
        let source = [p.nodes[0].sge(0, size)];
        let to = BASE + 2000;
        let wr = SendWr::write_immediate(1, &source, p.nodes[1].stag, to, DATA).solicited();
        p.nodes[0].qp.post_send(&wr).unwrap();
        let mut told_at_last = Vec::new();
        while p.transmit(0, 1) > 0 {
            assert!(told_at_last.is_empty());
            p.deliver(1, usize::MAX);
            told_at_last = completions(&mut p.b().qp).iter().map(told).collect();
        }
        assert_eq!(told_at_last, [recv(10, DATA, true)]);
        p.deliver(1, 0);
        let done = completions(&mut p.a().qp);
        assert_eq!((done[0].wr_id, done[0].op, done[0].len), (1, CqeOp::Write, len32(size)));
        p.check_healthy();
    }
}

#[test]
fn test_immediate_data_and_sends_arrive_in_order_of_posting() {
    let mut p = Pair::open(PairConfig::default());
    for wr_id in 10..13 {
        let buffer = [p.nodes[1].sge(100, 64)];
        p.recv(1, wr_id, buffer);
    }
    let source = [p.nodes[0].sge(0, 40)];
    p.nodes[0].qp.post_send(&SendWr::send(1, &source)).unwrap();
    p.nodes[0].qp.post_send(&SendWr::immediate(2, 5)).unwrap();
    p.nodes[0].qp.post_send(&SendWr::send(3, &source)).unwrap();
    p.run();
    let done: Vec<_> =
        completions(&mut p.b().qp).iter().map(|c| (c.wr_id, c.len, c.immediate)).collect();
    assert_eq!(done, [(10, 40, None), (11, 0, Some(5)), (12, 40, None)]);
}

#[test]
fn test_immediate_data_with_other_data_is_refused_at_posting() {
    let source = [Sge { stag: Stag(1), len: 1, to: 0 }];
    let wr = SendWr { data: Data::Sges(&source), ..SendWr::immediate(1, 1) };
    assert_eq!(check_send(&wr, &Limits::default()), Err(PostError::ImmediateData));
    let wr = SendWr { data: Data::Inline(b"x"), ..SendWr::immediate(1, 1) };
    assert_eq!(check_send(&wr, &Limits::default()), Err(PostError::ImmediateData));
}

#[test]
fn test_failed_write_does_not_deliver_its_immediate_data() {
    let mut p = Pair::open(PairConfig::default());
    let buffer = [p.nodes[1].sge(0, 8)];
    p.recv(1, 10, buffer);
    let source = [p.nodes[0].sge(0, 3000)];
    let wr = SendWr::write_immediate(1, &source, Stag(0x55), BASE, DATA);
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run();
    let done = completions(&mut p.b().qp);
    assert_eq!((done[0].status, done[0].immediate), (CqeStatus::Flushed, None));
    assert_eq!(p.nodes[1].qp.counters().rx_immediates, 0);
    let end = events(&mut p.a().qp);
    assert!(matches!(end[..], [QpEvent::Terminated { by: Side::Remote, .. }]), "{end:?}");
}
