//! Random mixes of operations, compared with a model of the resulting memory and completions.

use super::pair::{BASE, Node};
use super::*;
use heddle_types::{CqeOp, CqeStatus, Data, Queue, SendOp, Sge};
use proptest::prelude::*;
use std::collections::VecDeque;

/// An operation of a side; the test scales places and lengths to the memory that it has.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send {
        len: usize,
        pieces: usize,
        solicited: bool,
    },
    Write {
        len: usize,
        pieces: usize,
    },
    Read {
        len: usize,
    },
    /// Lets the pair run for a while.
    Step,
}

fn op() -> impl Strategy<Value = (usize, Op, bool, bool)> {
    let len = prop_oneof![0usize..40, 1400usize..1500, 0usize..6000];
    let pieces = 1usize..=4;
    let op = prop_oneof![
        (len.clone(), pieces.clone(), any::<bool>())
            .prop_map(|(len, pieces, solicited)| Op::Send { len, pieces, solicited }),
        (len.clone(), pieces).prop_map(|(len, pieces)| Op::Write { len, pieces }),
        len.prop_map(|len| Op::Read { len }),
        Just(Op::Step),
    ];
    (0usize..2, op, any::<bool>(), any::<bool>())
}

/// Hands out parts of a region that do not overlap, so that the order of placement does not matter.
#[derive(Default)]
struct Arena(usize);

impl Arena {
    fn take(&mut self, len: usize) -> usize {
        let at = self.0;
        self.0 += len + 1;
        at
    }
}

/// Returns `len` bytes at `at` in `n` uneven SGEs.
fn split(node: &Node, at: usize, len: usize, n: usize) -> Vec<Sge> {
    let mut sges = Vec::new();
    let (mut at, mut left) = (at, len);
    for i in (0..n).rev() {
        let take = if i == 0 { left } else { left / (i + 1) + usize::from(left > 2 * i) };
        let take = take.min(left);
        sges.push(node.sge(at, take));
        at += take;
        left -= take;
    }
    sges
}

#[derive(Default)]
struct Model {
    arena: [Arena; 2],
    /// Expected completions: id, length, op.
    sq: [VecDeque<(u64, usize, CqeOp)>; 2],
    rq: [VecDeque<(u64, usize, bool)>; 2],
    /// Number of requests posted.
    used: [u32; 2],
}

impl Model {
    fn check(&mut self, p: &mut Pair) {
        for i in 0..2 {
            for c in completions(&mut p.nodes[i].qp) {
                assert_eq!(c.status, CqeStatus::Success);
                if c.queue == Queue::Sq {
                    let (id, len, op) = self.sq[i].pop_front().expect("a request");
                    assert_eq!((c.wr_id, c.len as usize, c.op), (id, len, op));
                } else {
                    let (id, len, solicited) = self.rq[i].pop_front().expect("a buffer");
                    assert_eq!((c.wr_id, c.len as usize, c.solicited), (id, len, solicited));
                }
            }
        }
    }

    fn post(&mut self, p: &mut Pair, i: usize, id: u64, op: Op, signaled: bool, fence: bool) {
        let peer = 1 - i;
        let (stag, mut wr) =
            (p.nodes[peer].stag, SendWr { signaled, fence, ..SendWr::send(id, &[]) });
        let sges;
        let (len, what) = match op {
            Op::Step => return,
            Op::Read { len } => {
                let (src, sink) = (self.arena[peer].take(len), self.arena[i].take(len));
                let data = random_bytes(len, id);
                p.nodes[peer].write(src, &data);
                p.nodes[i].expect(sink, &data);
                wr.op = SendOp::Read { stag, to: BASE + src as u64 };
                sges = vec![p.nodes[i].sge(sink, len)];
                (len, CqeOp::Read)
            }
            Op::Write { len, pieces } | Op::Send { len, pieces, .. } => {
                let (src, dst) = (self.arena[i].take(len), self.arena[peer].take(len + 3));
                let data = random_bytes(len, id);
                p.nodes[i].write(src, &data);
                p.nodes[peer].expect(dst, &data);
                sges = split(&p.nodes[i], src, len, pieces);
                if let Op::Send { solicited, .. } = op {
                    let buffer = split(&p.nodes[peer], dst, len + 3, 5 - pieces);
                    p.recv(peer, 1000 + id, buffer);
                    self.rq[peer].push_back((1000 + id, len, solicited));
                    wr.op = SendOp::Send { solicited, invalidate: None };
                    (len, CqeOp::Send)
                } else {
                    wr.op = SendOp::Write { stag, to: BASE + dst as u64 };
                    (len, CqeOp::Write)
                }
            }
        };
        wr.data = Data::Sges(&sges);
        p.nodes[i].qp.post_send(&wr).unwrap();
        self.used[i] += 1;
        if signaled {
            self.sq[i].push_back((id, len, what));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn test_random_mixes_of_operations_match_the_model(
        seed in any::<u64>(),
        crc in any::<bool>(),
        markers in 0..3,
        mulpdu in prop_oneof![Just(128u16), Just(1442), Just(8938), 128u16..3000],
        reads in 1u16..4,
        piece in prop_oneof![Just(1usize), 2usize..64, Just(3000)],
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        let mut c = PairConfig { seed, mulpdu, piece, size: 1 << 19, ..PairConfig::default() };
        (c.qp.crc, c.qp.send_markers, c.qp.recv_markers) = (crc, markers > 0, markers > 1);
        (c.qp.ird, c.qp.ord) = (reads, reads);
        let mut p = Pair::open(c);
        // Opening the pair has posted one request.
        let mut m = Model { used: [1, 0], ..Model::default() };
        for (id, (side, op, signaled, fence)) in ops.iter().enumerate() {
            m.post(&mut p, *side, id as u64, *op, *signaled, *fence);
            if let Op::Step = op {
                p.transmit(*side, 3);
                p.deliver(1 - *side, 2000);
                m.check(&mut p);
            }
        }
        p.run();
        m.check(&mut p);
        p.check_healthy();
        for i in 0..2 {
            prop_assert!(m.sq[i].is_empty() && m.rq[i].is_empty());
            prop_assert_eq!(m.used[i], p.nodes[i].qp.sq_retired());
        }
    }
}
