//! Tests of every kind of operation, at the sizes where segmentation changes, compared byte by
//! byte.

use super::pair::{BASE, GUARD};
use super::*;
use crate::ddp::{DdpHeader, Qn};
use crate::mpa::fpdu;
use crate::rdmap::{Opcode, ReadRequest};
use heddle_types::{Cqe, CqeOp, CqeStatus, Queue, SendOp, Sge};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    SendSe,
    SendInv,
    SendSeInv,
    Write,
    Read,
}

const KINDS: [Kind; 6] =
    [Kind::Send, Kind::SendSe, Kind::SendInv, Kind::SendSeInv, Kind::Write, Kind::Read];

/// Odd on purpose, and different on both sides.
const FROM: usize = 33;
const INTO: usize = 71;

/// Cuts `len` bytes at `off` into up to `n` SGEs of uneven lengths, one of them empty.
fn sges(node: &super::pair::Node, off: usize, len: usize, n: usize) -> Vec<Sge> {
    if n == 1 {
        return vec![node.sge(off, len)];
    }
    let (a, b) = (len / 3, len / 2);
    vec![
        node.sge(off, a),
        node.sge(off + a, 0),
        node.sge(off + a, b),
        node.sge(off + a + b, len - a - b),
    ]
}

fn transfer(kind: Kind, size: usize, pieces: usize, config: PairConfig) {
    let mut p = Pair::open(config);
    let data = random_bytes(size, 7 + size as u64);
    let inv = {
        let b = p.b();
        let access = Access::REMOTE_INVALIDATE.with(Access::REMOTE_READ);
        b.mrs.register_for_qp(b.qp.pd(), b.qp.qpn(), 0, 0, 8, access).unwrap().stag
    };
    let (a_stag, b_stag) = (p.nodes[0].stag, p.nodes[1].stag);
    assert_ne!(a_stag, b_stag);
    let to = BASE + INTO as u64;
    if kind == Kind::Read {
        p.b().write(INTO, &data);
        p.a().expect(FROM, &data);
        let sink = [p.nodes[0].sge(FROM, size)];
        p.send(0, 5, SendOp::Read { stag: b_stag, to }, sink);
    } else {
        p.a().write(FROM, &data);
        p.b().expect(INTO, &data);
        let src = sges(&p.nodes[0], FROM, size, pieces);
        let (solicited, invalidate) = match kind {
            Kind::SendSe => (true, None),
            Kind::SendInv => (false, Some(inv)),
            Kind::SendSeInv => (true, Some(inv)),
            _ => (false, None),
        };
        let op = if kind == Kind::Write {
            SendOp::Write { stag: b_stag, to }
        } else {
            // The message must not change the buffer beyond its end.
            let buffer = sges(&p.nodes[1], INTO, size, pieces);
            p.recv(1, 6, buffer);
            SendOp::Send { solicited, invalidate }
        };
        p.send(0, 5, op, src);
    }
    p.run();
    p.check_healthy();
    let ok = |queue, op, wr_id| Cqe {
        wr_id,
        qpn: if queue == Queue::Sq { Qpn(1) } else { Qpn(2) },
        queue,
        op,
        status: CqeStatus::Success,
        solicited: matches!(kind, Kind::SendSe | Kind::SendSeInv) && queue == Queue::Rq,
        len: len32(size),
        invalidated: (matches!(kind, Kind::SendInv | Kind::SendSeInv) && queue == Queue::Rq)
            .then_some(inv),
        immediate: None,
    };
    let (sq_op, delivered) = match kind {
        Kind::Write => (CqeOp::Write, false),
        Kind::Read => (CqeOp::Read, false),
        _ => (CqeOp::Send, true),
    };
    assert_eq!(completions(&mut p.a().qp), [ok(Queue::Sq, sq_op, 5)]);
    let recv = delivered.then(|| ok(Queue::Rq, CqeOp::Recv, 6));
    assert_eq!(completions(&mut p.b().qp), recv.into_iter().collect::<Vec<_>>());
    let (pd, qpn) = (p.nodes[1].qp.pd(), p.nodes[1].qp.qpn());
    let valid = p.nodes[1].mrs.check(pd, qpn, inv, 0, 1, Access::REMOTE_READ).is_ok();
    assert_eq!(valid, !matches!(kind, Kind::SendInv | Kind::SendSeInv));
}

fn sizes(mulpdu: u16) -> Vec<usize> {
    let m = usize::from(mulpdu);
    let mut v = vec![0, 1, 2, 3, 4, 5, 31, 32, 33, 127];
    for header in [14, 18] {
        for n in [1, 2] {
            let full = n * (m - header);
            v.extend([full - 1, full, full + 1]);
        }
    }
    v
}

fn config(mulpdu: u16, crc: bool, seed: u64) -> PairConfig {
    let mut c = PairConfig { mulpdu, seed, ..PairConfig::default() };
    c.qp.crc = crc;
    c
}

fn all_sizes(crc: bool) {
    for kind in KINDS {
        for mulpdu in [128, 1442, 8938] {
            for (i, size) in sizes(mulpdu).into_iter().enumerate() {
                for pieces in [1, 4] {
                    transfer(kind, size, pieces, config(mulpdu, crc, i as u64));
                }
            }
        }
    }
}

#[test]
fn test_every_operation_transfers_any_segment_boundary_size_with_crc() {
    all_sizes(true);
}

#[test]
fn test_every_operation_transfers_any_segment_boundary_size_without_crc() {
    all_sizes(false);
}

#[test]
fn test_every_operation_transfers_its_data_with_markers() {
    for kind in KINDS {
        for crc in [false, true] {
            for size in sizes(1442) {
                // `unmark` removes the markers, or the queue pair reads around them.
                for received in [false, true] {
                    let mut c = config(1442, crc, 11);
                    (c.qp.send_markers, c.qp.recv_markers) = (true, received);
                    transfer(kind, size, 4, c);
                }
            }
        }
    }
}

#[test]
fn test_every_operation_works_when_marked_bytes_arrive_one_at_a_time() {
    for kind in KINDS {
        for crc in [false, true] {
            let mut c = PairConfig { piece: 1, ..config(1442, crc, 5) };
            (c.qp.send_markers, c.qp.recv_markers) = (true, true);
            transfer(kind, 3000, 4, c);
        }
    }
}

#[test]
fn test_every_operation_transfers_a_mebibyte() {
    for kind in KINDS {
        for crc in [false, true] {
            let size = (1 << 20) + 1;
            let c = PairConfig { size: 1 << 21, ..config(1442, crc, 3) };
            transfer(kind, size, 4, c);
        }
    }
}

#[test]
fn test_every_operation_works_when_bytes_arrive_one_at_a_time() {
    for kind in KINDS {
        for crc in [false, true] {
            let c = PairConfig { piece: 1, ..config(128, crc, 5) };
            transfer(kind, 300, 4, c);
        }
    }
}

#[test]
fn test_every_operation_works_with_the_largest_mulpdu() {
    for kind in KINDS {
        for size in [64_768 - 18, 64_768 - 14, 64_768] {
            let c = PairConfig { size: 1 << 17, ..config(u16::MAX, true, 9) };
            let mut c2 = c.clone();
            // The QP limits a larger MULPDU to MPA's maximum.
            c2.mulpdu = u16::MAX;
            transfer(kind, size, 1, c2);
        }
    }
}

#[test]
fn test_short_message_leaves_the_rest_of_its_buffer_unchanged() {
    let mut p = Pair::open(PairConfig::default());
    let data = random_bytes(100, 1);
    p.a().write(0, &data);
    p.b().expect(500, &data);
    let buffer = [p.nodes[1].sge(500, 60), p.nodes[1].sge(560, 4000)];
    p.recv(1, 1, buffer);
    let src = [p.nodes[0].sge(0, 100)];
    p.send(0, 2, SendOp::Send { solicited: false, invalidate: None }, src);
    p.run();
    p.check_healthy();
    assert_eq!(completions(&mut p.b().qp)[0].len, 100);
}

#[test]
fn test_small_write_is_one_contiguous_piece() {
    let mut p = Pair::open(PairConfig::default());
    let b = p.nodes[1].stag;
    for (len, inline) in [(8, true), (32, true), (33, false)] {
        let src = [p.nodes[0].sge(0, len)];
        p.send(0, 1, SendOp::Write { stag: b, to: BASE }, src);
        let a = &mut p.nodes[0];
        let env = QpEnv { mem: &a.mem, mrs: &a.mrs, snapshots_full: false, posted: None };
        let f = a.qp.poll_transmit(&env, 1442).unwrap();
        assert_eq!(f.payload().is_none(), inline, "{len}");
        assert_eq!(f.tail().is_empty(), inline);
        if !inline {
            let at = f.payload().unwrap();
            assert_eq!((at.addr(), at.len()), (GUARD as u64, len32(len)), "payload is referred to");
        }
    }
    let c = p.nodes[0].qp.counters();
    assert_eq!((c.tx_inlined, c.tx_inlined_bytes, c.tx_bytes), (2, 40, 73));
}

/// With or without markers, the payload stays where it is until the FPDU goes into a frame.
#[test]
fn test_fpdu_refers_to_its_payload_with_or_without_markers() {
    for markers in [false, true] {
        let mut c = config(1442, true, 1);
        c.qp.send_markers = markers;
        let mut p = Pair::open(c);
        let b = p.nodes[1].stag;
        let src = [p.nodes[0].sge(0, 1000)];
        p.send(0, 1, SendOp::Write { stag: b, to: BASE }, src);
        let a = &mut p.nodes[0];
        let env = QpEnv { mem: &a.mem, mrs: &a.mrs, snapshots_full: false, posted: None };
        let f = a.qp.poll_transmit(&env, 1442).unwrap();
        assert_eq!((f.payload().map(|p| p.len()), f.has_markers()), (Some(1000), markers));
    }
}

/// Cutting at SGE boundaries costs segments, never bytes.
#[test]
fn test_segments_end_where_sges_end() {
    let mut p = Pair::open(PairConfig::default());
    let b = p.nodes[1].stag;
    let src = [p.nodes[0].sge(0, 100), p.nodes[0].sge(200, 1500)];
    p.send(0, 1, SendOp::Write { stag: b, to: BASE }, src);
    let a = &mut p.nodes[0];
    let env = QpEnv { mem: &a.mem, mrs: &a.mrs, snapshots_full: false, posted: None };
    let lens: Vec<u32> = std::iter::from_fn(|| a.qp.poll_transmit(&env, 1442))
        .map(|f| f.payload().unwrap().len())
        .collect();
    assert_eq!(lens, [100, 1428, 72]);
}

/// Returns the DDP segments in a stream of FPDUs.
fn segments(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut at = 0;
    let mut out = Vec::new();
    while at < bytes.len() {
        let len = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        out.push(bytes[at + 2..at + 2 + usize::from(len)].to_vec());
        at += fpdu::fpdu_len(len);
    }
    out
}

/// Compares each kind of message on the wire, segment by segment.
#[test]
fn test_every_segment_carries_the_expected_headers() {
    let mulpdu = 300;
    let mut p = Pair::open(PairConfig { mulpdu, ..PairConfig::default() });
    let (a, b) = (p.nodes[0].stag, p.nodes[1].stag);
    let data = random_bytes(1000, 2);
    p.a().write(0, &data);
    p.nodes[0].sent.clear();
    for i in 0..4 {
        p.recv(1, i, [p.nodes[1].sge(0, 1000)]);
    }
    let src = [p.nodes[0].sge(0, 1000)];
    let send = |solicited, invalidate| SendOp::Send { solicited, invalidate };
    let inv = {
        let n = p.b();
        let access = Access::REMOTE_INVALIDATE;
        let take = || n.mrs.register_for_qp(n.qp.pd(), n.qp.qpn(), 0, 0, 8, access).unwrap().stag;
        [take(), take()]
    };
    p.send(0, 0, send(false, None), src);
    p.send(0, 1, send(true, None), src);
    p.send(0, 2, send(false, Some(inv[0])), src);
    p.send(0, 3, send(true, Some(inv[1])), src);
    p.send(0, 4, SendOp::Write { stag: b, to: BASE + 5 }, src);
    for i in 0..2 {
        let op = SendOp::Read { stag: b, to: BASE + 5 };
        let sink = [p.nodes[0].sge(2000, 1000)];
        p.send(0, 5 + i, op, sink);
    }
    p.run();
    let header = |segment: &[u8]| {
        assert!(segment.len() <= usize::from(mulpdu));
        let (h, n) = DdpHeader::parse(segment).unwrap();
        // Version and reserved bits of both layers.
        assert_eq!(segment[0] & 0x3f, 1);
        assert_eq!(segment[1] & 0xf0, 0x40);
        (h, segment[n..].to_vec())
    };
    let mut rest = segments(&p.nodes[0].sent).into_iter();
    let sends = [
        (Opcode::SEND, Stag(0)),
        (Opcode::SEND_SE, Stag(0)),
        (Opcode::SEND_INV, inv[0]),
        (Opcode::SEND_SE_INV, inv[1]),
    ];
    for (msn, (opcode, stag)) in (1..).zip(sends) {
        let mut got = Vec::new();
        while got.len() < 1000 {
            let (h, payload) = header(&rest.next().unwrap());
            let want = DdpHeader::Untagged {
                last: got.len() + payload.len() == 1000,
                rsvd_ulp: 0x40 | opcode.0,
                rsvd_ulp32: stag.0,
                qn: Qn(0),
                msn: Msn(msn),
                mo: len32(got.len()),
            };
            assert_eq!(h, want);
            got.extend(payload);
        }
        assert_eq!(got, data);
    }
    let tagged = |rest: &mut dyn Iterator<Item = Vec<u8>>, op: Opcode, stag, to: u64| {
        let mut got = Vec::new();
        while got.len() < 1000 {
            let (h, payload) = header(&rest.next().unwrap());
            let last = got.len() + payload.len() == 1000;
            let to = to + got.len() as u64;
            assert_eq!(h, DdpHeader::Tagged { last, rsvd_ulp: 0x40 | op.0, stag, to });
            got.extend(payload);
        }
        assert_eq!(got, data);
    };
    tagged(&mut rest, Opcode::WRITE, b, BASE + 5);
    for msn in 1..=2 {
        let (h, payload) = header(&rest.next().unwrap());
        let (qn, msn) = (Qn(1), Msn(msn));
        let rsvd_ulp = 0x40 | Opcode::READ_REQUEST.0;
        let want = DdpHeader::Untagged { last: true, rsvd_ulp, rsvd_ulp32: 0, qn, msn, mo: 0 };
        assert_eq!(h, want);
        let want = ReadRequest {
            sink_stag: a,
            sink_to: BASE + 2000,
            size: 1000,
            src_stag: b,
            src_to: BASE + 5,
        };
        assert_eq!(ReadRequest::parse(&payload), Ok(want));
    }
    assert_eq!(rest.next(), None);
    let mut answers = segments(&p.nodes[1].sent).into_iter();
    for _ in 0..2 {
        tagged(&mut answers, Opcode::READ_RESPONSE, a, BASE + 2000);
    }
    assert_eq!(answers.next(), None);
}

#[test]
fn test_empty_message_takes_one_segment() {
    let mut p = Pair::open(PairConfig::default());
    p.nodes[0].sent.clear();
    p.recv(1, 1, []);
    p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, []);
    p.send(0, 2, SendOp::Write { stag: Stag(1), to: 0 }, []);
    p.send(0, 3, SendOp::Read { stag: Stag(1), to: 0 }, []);
    p.run();
    let lens: Vec<_> = segments(&p.nodes[0].sent).iter().map(Vec::len).collect();
    assert_eq!(lens, [18, 14, 46]);
    let lens: Vec<_> = segments(&p.nodes[1].sent).iter().map(Vec::len).collect();
    assert_eq!(lens, [14]);
    assert_eq!(completions(&mut p.a().qp).len(), 3);
    p.check_healthy();
}
