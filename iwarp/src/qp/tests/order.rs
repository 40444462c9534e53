//! The order of messages: on the wire the order of posting, at the receiver the order of arrival.

use super::pair::BASE;
use super::*;
use crate::ddp::DdpHeader;
use crate::mpa::fpdu::fpdu_len;
use crate::rdmap::{Control, Opcode, ReadRequest};
use heddle_types::{CqeStatus, SendOp};

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };

/// Returns opcode, DDP header and payload of each segment.
fn segments(bytes: &[u8]) -> Vec<(Opcode, DdpHeader, Vec<u8>)> {
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes.len() {
        let len = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let segment = &bytes[at + 2..at + 2 + usize::from(len)];
        let (h, n) = DdpHeader::parse(segment).unwrap();
        out.push((Control::from_byte(h.rsvd_ulp()).opcode, h, segment[n..].to_vec()));
        at += fpdu_len(len);
    }
    out
}

/// Mixes kinds and uses distinct sizes, so that any two messages that change places show.
#[test]
fn test_messages_are_sent_in_the_order_of_posting() {
    let mut p = Pair::open(PairConfig::default());
    p.nodes[0].sent.clear();
    let stag = p.nodes[1].stag;
    let (mut want, mut rng) = (Vec::new(), Random::new(&Seed::from_u64(3)));
    for i in 0..60 {
        let len = 10 + i;
        let (src, sink) = ([p.nodes[0].sge(0, len)], [p.nodes[0].sge(30_000, len)]);
        match rng.below(3) {
            0 => {
                p.recv(1, 1, [p.nodes[1].sge(40_000, len)]);
                p.send(0, i as u64, SEND, src);
                want.push((Opcode::SEND, len));
            }
            1 => {
                p.send(0, i as u64, SendOp::Write { stag, to: BASE }, src);
                want.push((Opcode::WRITE, len));
            }
            _ => {
                p.send(0, i as u64, SendOp::Read { stag, to: BASE }, sink);
                want.push((Opcode::READ_REQUEST, len));
            }
        }
    }
    p.run();
    let size = |payload: &[u8]| ReadRequest::parse(payload).unwrap().size as usize;
    let got: Vec<_> = segments(&p.nodes[0].sent)
        .into_iter()
        .map(|(op, _, b)| (op, if op == Opcode::READ_REQUEST { size(&b) } else { b.len() }))
        .collect();
    assert_eq!(got, want);
    // The answers also go out in the order of the requests.
    let asked: Vec<_> = want.iter().filter(|w| w.0 == Opcode::READ_REQUEST).map(|w| w.1).collect();
    let answered: Vec<_> = segments(&p.nodes[1].sent).iter().map(|(_, _, b)| b.len()).collect();
    assert_eq!(answered, asked);
    assert!(asked.len() > 10);
}

/// Writes to one place: after each byte that arrives, the place holds the data of the last arrival.
#[test]
fn test_writes_to_one_place_land_in_the_order_of_posting() {
    for crc in [true, false] {
        let mut c = PairConfig::default();
        c.qp.crc = crc;
        let mut p = Pair::open(c);
        let stag = p.nodes[1].stag;
        for i in 1..=20u8 {
            p.a().write(100 * usize::from(i), &[i; 90]);
            let src = [p.nodes[0].sge(100 * usize::from(i), 90)];
            p.send(0, u64::from(i), SendOp::Write { stag, to: BASE }, src);
        }
        p.transmit(0, 99);
        let mut seen = vec![p.nodes[1].read(0, 1)[0]];
        while p.deliver(1, 1) > 0 {
            let now = p.nodes[1].read(0, 90);
            assert!(now.iter().all(|b| *b == now[0]), "half of a Write");
            if now[0] != seen[seen.len() - 1] {
                seen.push(now[0]);
            }
        }
        assert_eq!(seen[1..], (1..=20).collect::<Vec<_>>());
    }
}

/// The completion of a receive means that all Writes posted before its Send are in place, however
/// the bytes arrive.
#[test]
fn test_receive_completes_only_after_the_writes_before_its_send_landed() {
    for kind in 0..4 {
        let mut p = Pair::open(PairConfig { mulpdu: 200, ..PairConfig::default() });
        let stag = p.nodes[1].stag;
        for i in 0..8usize {
            let byte = 1 + u8::try_from(i).unwrap();
            p.a().write(1000 * i, &vec![byte; 1000]);
            let src = [p.nodes[0].sge(1000 * i, 1000)];
            p.send(0, 1, SendOp::Write { stag, to: BASE + 1000 * i as u64 }, src);
            let invalidate = (kind & 1 != 0).then(|| {
                let b = &p.nodes[1];
                let access = Access::REMOTE_INVALIDATE;
                b.mrs.register_for_qp(b.qp.pd(), b.qp.qpn(), 0, 0, 8, access).unwrap().stag
            });
            p.recv(1, i as u64, []);
            p.send(0, 1, SendOp::Send { solicited: kind & 2 != 0, invalidate }, []);
        }
        p.transmit(0, 999);
        let mut told = 0;
        while p.deliver(1, 7) > 0 {
            for c in completions(&mut p.b().qp) {
                assert_eq!((c.wr_id, c.status), (told, CqeStatus::Success));
                let i = usize::try_from(told).unwrap();
                assert!(p.nodes[1].read(1000 * i, 1000).iter().all(|b| usize::from(*b) == i + 1));
                told += 1;
            }
        }
        assert_eq!(told, 8);
    }
}

/// A message names one remote buffer; two buffers take two messages, each with its own answer.
#[test]
fn test_two_remote_buffers_take_two_messages() {
    let mut p = Pair::open(PairConfig::default());
    let b = &p.nodes[1];
    let take = |addr: u64| b.mrs.register(b.qp.pd(), addr, 0, 500, rights()).unwrap().stag;
    let stags = [take(1000), take(3000)];
    p.nodes[1].mem.write(1000, &[1; 500]);
    p.nodes[1].mem.write(3000, &[2; 500]);
    p.nodes[0].sent.clear();
    for (i, stag) in stags.into_iter().enumerate() {
        let sink = [p.nodes[0].sge(1000 * i, 500)];
        p.send(0, 1, SendOp::Read { stag, to: 0 }, sink);
    }
    p.run();
    assert_eq!(p.nodes[0].read(0, 500), [1; 500]);
    assert_eq!(p.nodes[0].read(1000, 500), [2; 500]);
    let asked: Vec<_> = segments(&p.nodes[0].sent)
        .iter()
        .map(|(op, _, b)| (*op, b.len(), ReadRequest::parse(b).unwrap().src_stag))
        .collect();
    assert_eq!(asked, stags.map(|stag| (Opcode::READ_REQUEST, 28, stag)));
    p.nodes[0].sent.clear();
    for stag in stags {
        let src = [p.nodes[0].sge(5000, 400)];
        p.send(0, 1, SendOp::Write { stag, to: 50 }, src);
    }
    p.run();
    let wrote: Vec<_> = segments(&p.nodes[0].sent)
        .iter()
        .map(|(_, h, b)| match h {
            DdpHeader::Tagged { last, stag, to, .. } => (*last, *stag, *to, b.len()),
            DdpHeader::Untagged { .. } => panic!("{h:?}"),
        })
        .collect();
    assert_eq!(wrote, stags.map(|stag| (true, stag, 50, 400)));
}

#[test]
fn test_stream_that_uses_up_its_reads_takes_none_from_another() {
    let mut c = PairConfig::default();
    c.qp.ird = 2;
    let mut p = Pair::open(c.clone());
    let stag = p.nodes[1].stag;
    for i in 0..3 {
        let sink = [p.nodes[0].sge(100, 8)];
        p.send(0, i, SendOp::Read { stag, to: BASE }, sink);
    }
    p.transmit(0, 9);
    let asked = p.nodes[1].inbox[..2 * fpdu_len(46)].to_vec();
    p.deliver(1, usize::MAX);
    assert_eq!(p.nodes[1].qp.counters().err_no_buffer, 1);
    assert_eq!(p.nodes[1].qp.state(), ConnectedState::Terminate);
    // A second stream, of the same protection domain.
    let b = &p.nodes[1];
    let mut other = QpContext::new(&QpConfig { qpn: Qpn(9), pd: b.qp.pd(), ..c.qp });
    let env = QpEnv { mem: &b.mem, mrs: &b.mrs, snapshots_full: false, posted: None };
    assert_eq!(other.handle_stream(&env, &asked[..]), asked.len());
    assert_eq!((other.state(), other.counters().rx_read_requests), (ConnectedState::Rts, 2));
}
