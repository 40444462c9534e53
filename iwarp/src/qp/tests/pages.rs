//! Page lists: STags whose memory is not contiguous, in each place that an STag can have.

use super::pair::{BASE, GUARD};
use super::*;
use heddle_types::{AtomicOp, Bind, CqeStatus, SendOp, Sge, TermCode};

const OK: CqeStatus = CqeStatus::Success;
/// Bytes of a page.
const P: usize = 4096;
const PAGE: u64 = 4096;
const _: () = assert!(heddle_types::mr::PAGE == PAGE);

/// A page list of one side: an STag with tagged offsets from 0, and the place of each of its bytes
/// in the region.
struct List {
    stag: Stag,
    at: Vec<usize>,
}

impl List {
    fn sge(&self, off: usize, len: usize) -> Sge {
        Sge { stag: self.stag, to: off as u64, len: len32(len) }
    }
}

struct Bench {
    p: Pair,
    rng: Random,
}

impl Bench {
    fn new(config: PairConfig) -> Bench {
        let rng = Random::new(&Seed::from_u64(config.seed + 100));
        Bench { p: Pair::open(config), rng }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.below(n as u64)).unwrap()
    }

    /// Registers the given pages on side `i`, the first from `skip` on and the last without its
    /// last `cut` bytes.
    fn list(&mut self, i: usize, pages: &[usize], skip: usize, cut: usize) -> List {
        let n = &mut self.p.nodes[i];
        let (pd, qpn) = (n.qp.pd(), n.qp.qpn());
        let all = rights().with(Access::BIND).with(Access::REMOTE_ATOMIC);
        let mr = n.mrs.register(pd, GUARD as u64, BASE, self.p.config.size as u64, all).unwrap();
        let stag = n.mrs.allocate(pd, Some(qpn), (pages.len() * P) as u64).unwrap().with_key(9);
        let mut sges = Vec::new();
        for (k, page) in pages.iter().enumerate() {
            let begin = page * P + if k == 0 { skip } else { 0 };
            let end = (page + 1) * P - if k + 1 == pages.len() { cut } else { 0 };
            let to = BASE + (begin - GUARD) as u64;
            sges.push(Sge { stag: mr.stag, to, len: len32(end - begin) });
        }
        let access = rights().with(Access::REMOTE_ATOMIC);
        self.p.send(i, 1000, SendOp::FastRegister(Bind { stag, to: 0, access }), &sges);
        self.p.run();
        assert_eq!(self.done(i), [(1000, OK)]);
        let at = sges.iter().flat_map(|s| {
            let begin = usize::try_from(s.to - BASE).unwrap();
            begin..begin + s.len as usize
        });
        List { stag, at: at.collect() }
    }

    fn done(&mut self, i: usize) -> Vec<(u64, CqeStatus)> {
        completions(&mut self.p.nodes[i].qp).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// Writes new bytes to `[off, off + len)` of a list of side `i`, and returns them.
    fn fill(&mut self, i: usize, list: &List, (off, len): (usize, usize)) -> Vec<u8> {
        let data = random_bytes(len, self.rng.below(1 << 32));
        for (at, byte) in list.at[off..off + len].iter().zip(&data) {
            self.p.nodes[i].write(*at, &[*byte]);
        }
        data
    }

    fn expect(&mut self, i: usize, list: &List, off: usize, data: &[u8]) {
        for (at, byte) in list.at[off..].iter().zip(data) {
            self.p.nodes[i].expect(*at, &[*byte]);
        }
    }
}

/// Tests every operation with a list on either side, at any offset and of any length, in FPDUs of
/// any length.
#[test]
fn test_page_lists_serve_every_operation_on_both_sides() {
    for (seed, mulpdu) in (0..60).zip([256, 1442, 8930, 64_000].into_iter().cycle()) {
        let markers = seed % 5 == 0;
        let qp = QpConfig { ird: 4, ord: 4, crc: seed % 3 > 0, ..QpConfig::default() };
        let qp = QpConfig { send_markers: markers, recv_markers: markers, ..qp };
        let mut b =
            Bench::new(PairConfig { seed, mulpdu, qp, piece: 70_000, ..PairConfig::default() });
        let (skip, cut) = (b.below(P), b.below(P));
        // Pages that are adjacent, and pages that are not, backwards too.
        let near = b.list(0, &[7, 8, 3, 12, 11], skip, cut);
        let far = b.list(1, &[14, 2, 3, 9, 5], cut, skip);
        for round in 0..8 {
            let n = near.at.len().min(far.at.len());
            let len = 1 + b.below(n);
            let (a, z) = (b.below(near.at.len() - len + 1), b.below(far.at.len() - len + 1));
            let (src, to) = (near.sge(a, len), z as u64);
            match b.below(3) {
                0 => {
                    let data = b.fill(0, &near, (a, len));
                    b.expect(1, &far, z, &data);
                    b.p.send(0, round, SendOp::Write { stag: far.stag, to }, [src]);
                }
                1 => {
                    let data = b.fill(1, &far, (z, len));
                    b.expect(0, &near, a, &data);
                    b.p.send(0, round, SendOp::Read { stag: far.stag, to }, [src]);
                }
                _ => {
                    let data = b.fill(0, &near, (a, len));
                    b.expect(1, &far, z, &data);
                    // Two pieces of one list, as SGEs.
                    let half = b.below(len + 1);
                    let sink = [far.sge(z, half), far.sge(z + half, len - half)];
                    b.p.recv(1, round, sink);
                    b.p.send(0, round, SendOp::Send { solicited: false, invalidate: None }, [src]);
                }
            }
            b.p.run();
            assert_eq!(b.done(0), [(round, OK)], "seed {seed}");
            let _ = b.done(1);
            b.p.check_healthy();
        }
    }
}

#[test]
fn test_access_past_end_of_page_list_is_refused_within_its_last_page() {
    // The list has 2 pages less 40 bytes.
    for (to, len) in [(2 * P - 60, 21), (0, 2 * P - 39), (2 * P - 40, 1)] {
        let mut b = Bench::new(PairConfig::default());
        // The last page goes on for 40 bytes, and the region for pages.
        let far = b.list(1, &[9, 4], 0, 40);
        let source = [b.p.nodes[0].sge(0, len)];
        b.p.send(0, 1, SendOp::Write { stag: far.stag, to: to as u64 }, source);
        b.p.run();
        let told = events(&mut b.p.a().qp).pop();
        let code = TermCode::DDP_BOUNDS;
        assert_eq!(told, Some(QpEvent::Terminated { by: Side::Remote, code }), "{to} {len}");
    }
}

/// An aligned word never lies on two pages; the QP refuses others wherever they lie.
#[test]
fn test_atomic_operations_work_at_the_borders_of_pages() {
    let add = |stag, to| SendOp::Atomic { stag, to, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
    let mut b = Bench::new(PairConfig::default());
    let far = b.list(1, &[9, 4, 2], 0, 0);
    // The sink need not be aligned: here it lies on two pages.
    let near = b.list(0, &[6, 13], 0, 0);
    for (n, to) in [(1, PAGE - 8), (2, PAGE), (3, PAGE - 8)] {
        let word = usize::try_from(to).unwrap();
        let before: Vec<u8> =
            far.at[word..word + 8].iter().flat_map(|at| b.p.nodes[1].read(*at, 1)).collect();
        let sum = u64::from_ne_bytes(before.clone().try_into().unwrap()).wrapping_add(1);
        b.expect(1, &far, word, &sum.to_ne_bytes());
        b.expect(0, &near, P - 3, &before);
        b.p.send(0, n, add(far.stag, to), [near.sge(P - 3, 8)]);
        b.p.run();
        assert_eq!(b.done(0), [(n, OK)]);
        b.p.check_healthy();
    }
    b.p.send(0, 4, add(far.stag, PAGE - 4), [near.sge(0, 8)]);
    b.p.run();
    let code = TermCode::RDMAP_STREAM_CATASTROPHIC;
    let told = events(&mut b.p.a().qp).pop();
    assert_eq!(told, Some(QpEvent::Terminated { by: Side::Remote, code }));
    b.p.check_memory();
}

#[test]
fn test_segments_ahead_of_a_gap_are_placed_in_their_own_pages() {
    let qp = QpConfig { send_markers: true, recv_markers: true, ..QpConfig::default() };
    let mut b = Bench::new(PairConfig { mulpdu: 6000, qp, ..PairConfig::default() });
    let far = b.list(1, &[9, 4, 2, 12], 100, 0);
    let len = 4 * P - 100;
    let data = random_bytes(len, 5);
    b.p.a().write(0, &data);
    b.expect(1, &far, 0, &data);
    let begin = b.p.nodes[0].qp.tx_end();
    let source = [b.p.nodes[0].sge(0, len)];
    b.p.send(0, 1, SendOp::Write { stag: far.stag, to: 0 }, source);
    b.p.transmit(0, 1);
    let second = b.p.nodes[1].inbox.len();
    b.p.transmit(0, 9);
    let node = &b.p.nodes[1];
    let env = QpEnv { mem: &node.mem, mrs: &node.mrs, snapshots_full: false, posted: None };
    let (mut at, mut early) = (second, 0);
    while at < node.inbox.len() {
        let pos = StreamPos(begin.0 + at as u64);
        let placed = node.qp.place_early(&env, pos, &&node.inbox[at..], None).expect("placed");
        at += placed.len() as usize;
        early += 1;
    }
    assert!(early >= 2);
    let (first, rest) = (5000, len - 6000);
    let lies = |off: usize| node.read(far.at[off], 1)[0];
    assert_ne!((0..first).map(lies).collect::<Vec<_>>(), data[..first], "it has not come");
    assert!((len - rest..len).all(|off| lies(off) == data[off]));
    b.p.run();
    assert_eq!(b.done(0), [(1, OK)]);
    b.p.check_healthy();
}
