//! Rules that no other test checks: each test here fails when a single line is broken
//! (`scripts/mutate`).

use super::pair::{BASE, Node};
use super::*;
use heddle_types::{AtomicOp, SendOp};

/// The arrival of a request is not yet its answer.
#[test]
fn test_acknowledged_request_does_not_complete_its_read_or_atomic() {
    for kind in 0..3 {
        let mut p = Pair::open(PairConfig::default());
        let stag = p.nodes[1].stag;
        let (to, len) = (BASE, if kind == 0 { 100 } else { 8 });
        let op = match kind {
            0 => SendOp::Read { stag, to },
            1 => SendOp::Atomic { stag, to, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
            _ => SendOp::Atomic { stag, to, op: AtomicOp::swap(1) },
        };
        let sink = [p.nodes[0].sge(512, len)];
        p.send(0, 1, op, sink);
        // A request posted after it waits for it, although the peer has acknowledged that one too.
        p.send(0, 2, SendOp::Write { stag, to: BASE + 64 }, []);
        p.transmit(0, 9);
        let end = p.nodes[0].qp.tx_end();
        p.a().qp.handle_acked(end);
        assert!(completions(&mut p.a().qp).is_empty(), "{kind}");
        assert_eq!(p.nodes[0].qp.sq_retired(), 1, "{kind}: the Write that opened the stream");
    }
}

/// The completion of a receive has the length of the message, not of its last segment.
#[test]
fn test_receive_completion_has_length_of_whole_send() {
    let mut p = Pair::open(PairConfig { mulpdu: 200, ..PairConfig::default() });
    // 182 bytes fit a segment: five of them and 90, then one less than fits, and one more.
    for len in [1000, 181, 183] {
        p.recv(1, 7, [p.nodes[1].sge(5000, 2000)]);
        let src = [p.nodes[0].sge(0, len)];
        p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, src);
        p.run();
        let got = completions(&mut p.b().qp);
        assert_eq!(got.iter().map(|c| (c.wr_id, c.len)).collect::<Vec<_>>(), [(7, len32(len))]);
    }
}

/// The QP makes FPDUs over older contents, in their places in a queue and in reused buffers. Bytes
/// left over from a longer FPDU must not become the pad.
#[test]
fn test_pad_is_zero_where_longer_messages_were_before() {
    for (crc, markers) in [(false, false), (true, false), (true, true)] {
        let mut c = PairConfig::default();
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let mut p = Pair::open(c);
        let Node { qp, mem, mrs, .. } = p.a();
        let env = QpEnv { mem: &*mem, mrs, snapshots_full: false, posted: None };
        let (mut buffers, mut out) = (Buffers::default(), Fpdu::default());
        // Up to 32 bytes are in the head, more in a buffer.
        for (before, len) in (1..=32).map(|n| (32, n)).chain((33..=63).map(|n| (64, n))) {
            for (fill, len) in [(0xff, before), (0x11, len)] {
                qp.post_send(&SendWr::send_inline(1, &vec![fill; len])).unwrap();
                out.clear(&mut buffers);
                assert!(qp.poll_transmit_into(&env, 1442, &mut buffers, &mut out));
                qp.handle_acked(qp.tx_end());
                assert_eq!(completions(qp).len(), 1);
            }
            let mut bytes = vec![0; out.len() as usize];
            out.copy_to(env.mem, 0, &mut bytes);
            if markers {
                let offset = qp.tx_end().0 - u64::from(qp.tx_grid) - u64::from(out.len());
                bytes = crate::mpa::markers::remove(&bytes, offset).unwrap().fpdu;
            }
            // Length (2), header (18), payload; then up to three bytes before the CRC (4).
            let pad = &bytes[20 + len..bytes.len() - 4];
            assert_eq!((pad, pad.len()), (&[0; 3][..pad.len()], (4 - len % 4) % 4), "{crc} {len}");
        }
    }
}

/// An owner that polls only when there is news misses none of it.
#[test]
fn test_queue_pair_has_news_until_the_last_is_polled() {
    let mut p = Pair::new(PairConfig::default());
    assert!(!p.nodes[0].qp.has_news() && !p.nodes[1].qp.has_news());
    p.send(0, 1, SendOp::Write { stag: Stag(1), to: 0 }, []);
    assert!(!p.nodes[0].qp.has_news());
    p.run();
    // A completion at one end, an event at the other.
    for i in 0..2 {
        let qp = &mut p.nodes[i].qp;
        assert!(qp.has_news(), "{i}");
        let polled = (completions(qp).len(), events(qp).len());
        assert_eq!(polled, [(1, 0), (0, 1)][i]);
        assert!(!qp.has_news(), "{i}");
    }
}

/// Each operation counts once, at the end that counts it.
#[test]
fn test_operations_are_counted_once() {
    let mut p = Pair::open(PairConfig::default());
    let (b, word) = (&p.nodes[1], BASE + 4096);
    let rights = rights().with(Access::REMOTE_ATOMIC);
    let len = p.config.size as u64;
    let stag = b.mrs.register(b.qp.pd(), pair::GUARD as u64, BASE, len, rights).unwrap().stag;
    let (src, sink) = (|n| [p.nodes[0].sge(0, n)], |n| [p.nodes[0].sge(512, n)]);
    let (few, most, more) = (src(31), src(32), src(33));
    let (short, long, eight) = (sink(32), sink(33), sink(8));
    let posts = [
        // The QP copies up to 32 bytes into the FPDU.
        SendWr::send(1, &few),
        SendWr::write(2, &most, stag, BASE),
        SendWr::write(3, &more, stag, BASE),
        SendWr::write_immediate(4, &more, stag, BASE, 1),
        SendWr::immediate(5, 2),
        SendWr::read(6, &short, stag, BASE),
        SendWr::read(7, &long, stag, BASE),
        SendWr::fetch_add(8, &eight, stag, word, 1),
    ];
    let before = [p.nodes[0].qp.counters(), p.nodes[1].qp.counters()];
    for wr_id in 0..3 {
        let buffer = [p.nodes[1].sge(1000, 64)];
        p.recv(1, wr_id, buffer);
    }
    for wr in &posts {
        p.nodes[0].qp.post_send(wr).unwrap();
    }
    p.run();
    let counted = |i: usize| {
        let mut out = Vec::new();
        let mut old = Vec::new();
        before[i].for_each(|_, _, n| old.push(n));
        let mut old = old.into_iter();
        p.nodes[i].qp.counters().for_each(|name, _, n| {
            let n = n - old.next().unwrap();
            if n > 0 {
                out.push((name, n));
            }
        });
        out
    };
    // The requester sends 31, 32, 33 and 33 bytes of payload, and receives 32 and 33 for its Reads.
    let requester = [
        ("rx_fpdus", 3),
        ("rx_bytes", 65),
        ("rx_read_responses", 2),
        ("rx_atomic_responses", 1),
        ("tx_fpdus", 9),
        ("tx_bytes", 31 + 32 + 33 + 33),
        ("tx_inlined", 2),
        ("tx_inlined_bytes", 63),
    ];
    let responder = [
        ("rx_fpdus", 9),
        ("rx_bytes", 31 + 32 + 33 + 33),
        ("rx_sends", 1),
        ("rx_read_requests", 2),
        ("rx_immediates", 2),
        ("rx_atomic_requests", 1),
        ("tx_atomic_responses", 1),
        ("tx_fpdus", 3),
        ("tx_bytes", 65),
        ("tx_inlined", 1),
        ("tx_inlined_bytes", 32),
        ("tx_snapshot_bytes", 33),
    ];
    assert_eq!(counted(0), requester);
    assert_eq!(counted(1), responder);
}

/// Buffers of FPDUs are reused: a buffer with memory keeps it, one without gets memory that another
/// FPDU gave back.
#[test]
fn test_fpdu_buffers_are_reused() {
    let mut buffers = Buffers::default();
    // Told apart by its size, because the allocator may well return the same memory for the next.
    let (given, mut other, mut next) = (Vec::with_capacity(5000), vec![7; 10], Vec::new());
    let own = other.as_ptr();
    buffers.give(given);
    // A buffer without memory is not worth keeping.
    buffers.give(Vec::new());
    buffers.take(&mut other, 8);
    assert_eq!((other.as_ptr(), other.len()), (own, 10), "not shortened");
    buffers.take(&mut next, 100);
    assert_eq!((next.capacity(), next.len()), (5000, 100));
}

/// The number of spare buffers has a limit.
#[test]
fn test_spare_fpdu_buffers_are_limited_to_1024() {
    let mut buffers = Buffers::default();
    for _ in 0..1030 {
        buffers.give(Vec::with_capacity(100));
    }
    let mut again = 0;
    for _ in 0..1030 {
        let mut buffer = Vec::new();
        buffers.take(&mut buffer, 10);
        again += usize::from(buffer.capacity() == 100);
    }
    assert_eq!(again, 1024);
}

/// An FPDU that owned its bytes leaves their memory to the next.
#[test]
fn test_cleared_fpdu_leaves_its_memory_to_the_next() {
    let mut p = Pair::open(PairConfig::default());
    let Node { qp, mem, mrs, .. } = p.a();
    let env = QpEnv { mem: &*mem, mrs, snapshots_full: false, posted: None };
    let (mut buffers, mut fpdus) = (Buffers::default(), [Fpdu::default(), Fpdu::default()]);
    let mut at = Vec::new();
    for out in &mut fpdus {
        qp.post_send(&SendWr::send_inline(1, &[7; 64])).unwrap();
        assert!(qp.poll_transmit_into(&env, 1442, &mut buffers, out));
        at.push(out.head().as_ptr());
        out.clear(&mut buffers);
    }
    assert_eq!(at[0], at[1]);
}

/// While there is no room for more snapshots, the QP answers a Read later: all of it, or the rest.
/// The QP counts each attempt.
#[test]
fn test_read_response_waits_for_room_for_its_snapshot() {
    let mut p = Pair::open(PairConfig::default());
    let (stag, sink) = (p.nodes[1].stag, [p.nodes[0].sge(5000, 3000)]);
    p.send(0, 1, SendOp::Read { stag, to: BASE }, sink);
    p.transmit(0, 9);
    p.deliver(1, usize::MAX);
    // A ULPDU of 1442 bytes has 14 bytes of header.
    for (sent, stalls) in [(0, 1..4), (1428, 4..7)] {
        let Node { qp, mem, mrs, .. } = p.b();
        let full = QpEnv { mem: &*mem, mrs, snapshots_full: true, posted: None };
        for n in stalls {
            assert!(qp.has_transmit() && qp.poll_transmit(&full, 1442).is_none());
            assert_eq!((qp.counters().tx_snapshot_stalls, qp.counters().tx_bytes), (n, sent));
        }
        p.transmit(1, 1);
    }
    p.run();
    assert_eq!(completions(&mut p.a().qp).len(), 1);
    assert_eq!(p.nodes[1].qp.counters().tx_snapshot_stalls, 6);
    p.check_healthy();
}
