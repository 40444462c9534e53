//! Rules that other tests pass by: what stands here fails when a single line is broken
//! (`scripts/mutate`).

use super::pair::BASE;
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
