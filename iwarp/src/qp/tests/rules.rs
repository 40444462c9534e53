//! Rules that other tests pass by: what stands here fails when a single line is broken
//! (`scripts/mutate`).

use super::pair::{BASE, Node};
use super::*;
use crate::rdmap::AtomicOp;

/// That a request has arrived is not yet its answer.
#[test]
fn test_reads_and_atomics_are_not_complete_when_their_requests_are_acknowledged() {
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
        // What is posted behind it waits for it, although it was acknowledged too.
        p.send(0, 2, SendOp::Write { stag, to: BASE + 64 }, []);
        p.transmit(0, 9);
        let end = p.nodes[0].qp.tx_end();
        p.a().qp.handle_acked(end);
        assert!(completions(&mut p.a().qp).is_empty(), "{kind}");
        assert_eq!(p.nodes[0].qp.sq_retired(), 1, "{kind}: the Write that opened the stream");
    }
}

/// The length in the completion of a receive is that of the message, not of what came last.
#[test]
fn test_length_of_a_send_of_several_segments_is_that_of_the_whole() {
    let mut p = Pair::open(PairConfig { mulpdu: 200, ..PairConfig::default() });
    // 182 octets fit a segment: five of them and 90, then one less than fits, and one more.
    for len in [1000, 181, 183] {
        p.recv(1, 7, [p.nodes[1].sge(5000, 2000)]);
        let src = [p.nodes[0].sge(0, len)];
        p.send(0, 1, SendOp::Send { solicited: false, invalidate: None }, src);
        p.run();
        let got = completions(&mut p.b().qp);
        assert_eq!(got.iter().map(|c| (c.wr_id, c.len)).collect::<Vec<_>>(), [(7, len32(len))]);
    }
}

/// FPDUs are made over what was there before, in their places in a queue and in buffers that are used
/// again. What is left of a longer one is no pad.
#[test]
fn test_pad_is_zero_where_longer_messages_lay_before() {
    for (crc, markers) in [(false, false), (true, false), (true, true)] {
        let mut c = PairConfig::default();
        (c.qp.crc, c.qp.send_markers) = (crc, markers);
        let mut p = Pair::open(c);
        let Node { qp, mem, mrs, .. } = p.a();
        let env = QpEnv { mem: &*mem, mrs, snapshots_full: false };
        let (mut buffers, mut out) = (Buffers::default(), Fpdu::default());
        // Up to 32 octets lie in the head, more in a buffer.
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
                let offset = (qp.tx_end() - qp.tx_start) - u64::from(out.len());
                bytes = crate::mpa::markers::remove(&bytes, offset).unwrap().fpdu;
            }
            // Length (2), header (18), payload; then up to three octets before the CRC (4).
            let pad = &bytes[20 + len..bytes.len() - 4];
            assert_eq!((pad, pad.len()), (&[0; 3][..pad.len()], (4 - len % 4) % 4), "{crc} {len}");
        }
    }
}
