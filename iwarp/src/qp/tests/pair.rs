//! Two QPs back to back: the bytes that one sends arrive at the other in pieces of any size.

use super::*;
use crate::mpa::fpdu::{self, MAX_MULPDU, fpdu_len};
use crate::mpa::markers::{self, marked_len};
use heddle_types::{Data, SendOp, Sge};

/// The region's first tagged offset. Not its address, so that a test that confuses the two fails.
pub(super) const BASE: u64 = 0x7000_0000_1000;
/// Bytes before and after the region that no access may change.
pub(super) const GUARD: usize = 64;
/// The initial value of each byte of memory.
pub(super) const FILL: u8 = 0xaa;

#[derive(Clone, Debug)]
pub(super) struct PairConfig {
    pub(super) seed: u64,
    /// Bytes of each side's region.
    pub(super) size: usize,
    pub(super) mulpdu: u16,
    pub(super) qp: QpConfig,
    /// The ready-to-receive message of either side.
    pub(super) rtr: [RtrConfig; 2],
    /// Longest piece in which bytes arrive.
    pub(super) piece: usize,
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        let qp = QpConfig { ird: 4, ord: 4, ..QpConfig::default() };
        PairConfig {
            seed: 1,
            size: 1 << 16,
            mulpdu: 1442,
            qp,
            rtr: [RtrConfig::None; 2],
            piece: 3000,
        }
    }
}

/// An end: a QP, its memory, and the bytes that are on their way to it.
pub(super) struct Node {
    pub(super) mem: TestMemory,
    pub(super) mrs: MrTable,
    pub(super) qp: QpContext,
    /// The region that covers all memory but the guards.
    pub(super) stag: Stag,
    /// The expected contents of its memory.
    pub(super) want: Vec<u8>,
    pub(super) inbox: Vec<u8>,
    /// Bytes of the inbox that have arrived.
    arrived: usize,
    /// All bytes that it has sent.
    pub(super) sent: Vec<u8>,
}

impl Node {
    /// Returns local memory `off` bytes into the region.
    pub(super) fn sge(&self, off: usize, len: usize) -> Sge {
        Sge { stag: self.stag, len: len32(len), to: BASE + off as u64 }
    }

    /// Writes memory as the application would, and expects the bytes there.
    pub(super) fn write(&mut self, off: usize, bytes: &[u8]) {
        self.mem.write(GUARD + off, bytes);
        self.expect(off, bytes);
    }

    /// Expects the bytes to be there, which the peer will write.
    pub(super) fn expect(&mut self, off: usize, bytes: &[u8]) {
        self.want[GUARD + off..GUARD + off + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn read(&self, off: usize, len: usize) -> Vec<u8> {
        self.mem.read(GUARD + off, len)
    }

    pub(super) fn check_memory(&self) {
        let (got, want) = (self.mem.snapshot(), &self.want);
        if got != *want {
            let at = (0..got.len()).find(|i| got[*i] != want[*i]).unwrap();
            panic!("memory differs at {at}: {:#x}, not {:#x}", got[at], want[at]);
        }
    }

    /// Polls `poll_transmit` for at most `most` FPDUs; returns the bytes.
    fn transmit(&mut self, mulpdu: u16, most: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..most {
            let before = self.qp.tx_end();
            let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
            let (has, local) = (self.qp.has_transmit(), self.qp.has_local());
            let Some(f) = self.qp.poll_transmit(&env, mulpdu) else {
                assert!(!has || local, "has_transmit promised an FPDU");
                if self.qp.has_local() {
                    continue;
                }
                break;
            };
            assert!(has, "has_transmit denied an FPDU");
            assert_eq!(self.qp.tx_end() - before, u64::from(f.len()));
            let most = fpdu_len(mulpdu.min(MAX_MULPDU));
            let most = if self.qp.send_markers { marked_len(most, 0) } else { most };
            assert!(f.len() as usize <= most || self.qp.state() != ConnectedState::Rts);
            let at = out.len();
            out.resize(at + f.len() as usize, 0);
            assert_eq!(f.copy_to(&self.mem, 0, &mut out[at..]), f.len() as usize);
            let sum = f.sum(&self.mem).folded();
            assert_eq!(sum % 0xffff, heddle_base::Sum::of(&out[at..]).folded() % 0xffff);
        }
        self.sent.extend(&out);
        out
    }

    /// Lets `n` more bytes of the inbox arrive, cut to pieces; returns how many of them were there.
    fn receive(&mut self, n: usize, piece: usize, rng: &mut Random) -> usize {
        let n = n.min(self.inbox.len() - self.arrived);
        self.arrived += n;
        let shown = Pieces::cut(&self.inbox[..self.arrived], piece, rng);
        let env = QpEnv { mem: &self.mem, mrs: &self.mrs, snapshots_full: false, posted: None };
        let taken = self.qp.handle_stream(&env, &shown);
        self.inbox.drain(..taken);
        self.arrived -= taken;
        n
    }
}

pub(super) struct Pair {
    pub(super) nodes: [Node; 2],
    pub(super) config: PairConfig,
    rng: Random,
}

impl Pair {
    pub(super) fn new(config: PairConfig) -> Pair {
        let node = |i: u32| {
            let len = config.size + 2 * GUARD;
            let mem = TestMemory::new(len, FILL);
            let mrs = MrTable::new(&Seed::from_u64(config.seed + u64::from(i)), 64);
            let pd = Pd(10 + i);
            let mr = mrs.register(pd, GUARD as u64, BASE, config.size as u64, rights()).unwrap();
            let role = if i == 0 { Role::Initiator } else { Role::Responder };
            let (tx_start, rx_start) = (StreamPos(u64::from(i)), StreamPos(u64::from(1 - i)));
            let qpn = Qpn(1 + i);
            let rtr = config.rtr[usize::from(i > 0)];
            let qp = QpConfig { qpn, pd, role, rtr, tx_start, rx_start, ..config.qp.clone() };
            Node {
                mem,
                mrs,
                qp: QpContext::new(&qp),
                stag: mr.stag,
                want: vec![FILL; len],
                inbox: Vec::new(),
                arrived: 0,
                sent: Vec::new(),
            }
        };
        let rng = Random::new(&Seed::from_u64(config.seed));
        Pair { nodes: [node(0), node(1)], config, rng }
    }

    /// Makes a pair as [`Pair::new`] does, with the responder already free to send.
    pub(super) fn open(config: PairConfig) -> Pair {
        let mut p = Pair::new(config);
        p.send(0, 0, SendOp::Write { stag: Stag(1), to: 0 }, []);
        p.run();
        assert_eq!(completions(&mut p.nodes[0].qp).len(), 1);
        assert_eq!(events(&mut p.nodes[1].qp), [QpEvent::FirstFpdu]);
        p
    }

    pub(super) fn a(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    pub(super) fn b(&mut self) -> &mut Node {
        &mut self.nodes[1]
    }

    /// Posts a signaled request without fence on side `i`.
    pub(super) fn send(&mut self, i: usize, wr_id: u64, op: SendOp, sges: impl AsRef<[Sge]>) {
        let data = Data::Sges(sges.as_ref());
        let wr = SendWr { wr_id, op, data, signaled: true, fence: false };
        self.nodes[i].qp.post_send(&wr).unwrap();
    }

    pub(super) fn recv(&mut self, i: usize, wr_id: u64, sges: impl AsRef<[Sge]>) {
        self.nodes[i].qp.post_recv(&RecvWr::new(wr_id, sges.as_ref())).unwrap();
    }

    /// Makes side `i` send up to `most` FPDUs.
    pub(super) fn transmit(&mut self, i: usize, most: usize) -> usize {
        let offset = self.nodes[i].qp.tx_end().0 - u64::from(self.nodes[i].qp.tx_grid);
        let bytes = self.nodes[i].transmit(self.config.mulpdu, most);
        if self.config.qp.send_markers && !self.config.qp.recv_markers {
            let plain = unmark(&bytes, offset, self.config.qp.crc);
            self.nodes[1 - i].inbox.extend(plain);
        } else {
            self.nodes[1 - i].inbox.extend(&bytes);
        }
        bytes.len()
    }

    /// Lets up to `n` bytes arrive at side `i` and acknowledges them.
    pub(super) fn deliver(&mut self, i: usize, n: usize) -> usize {
        let n = self.nodes[i].receive(n, self.config.piece, &mut self.rng);
        let waits = self.nodes[i].inbox.len() - self.nodes[i].arrived;
        let peer = &mut self.nodes[1 - i].qp;
        let end = peer.tx_end();
        peer.handle_acked(StreamPos(end.0 - waits as u64));
        n
    }

    /// Lets everything happen, in random portions, until nothing moves.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = 0;
            for i in 0..2 {
                let most = 1 + usize::try_from(self.rng.below(8)).unwrap();
                moved += self.transmit(i, most);
                let n = 1 + usize::try_from(self.rng.below(20_000)).unwrap();
                moved += self.deliver(i, n);
            }
            if moved == 0 && self.nodes.iter().all(|n| n.arrived == n.inbox.len()) {
                break;
            }
        }
    }

    pub(super) fn check_memory(&self) {
        for n in &self.nodes {
            n.check_memory();
        }
    }

    /// Checks that nothing went wrong on either side.
    pub(super) fn check_healthy(&self) {
        for n in &self.nodes {
            assert_eq!(n.qp.state(), ConnectedState::Rts);
            assert!(n.inbox.is_empty());
            n.qp.counters().for_each(|name, _, v| {
                assert!(!name.starts_with("err_") || v == 0, "{name} = {v}");
            });
        }
        self.check_memory();
    }
}

/// Removes the markers from a stream, as a peer that asked for them does, and checks them and the
/// CRCs that cover them.
fn unmark(bytes: &[u8], offset: u64, crc: bool) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let u = markers::remove(&bytes[at..], offset + at as u64).expect("a whole FPDU");
        assert_eq!(u.marker, Ok(()));
        at += u.consumed;
        let body = u.fpdu.len() - fpdu::CRC_LEN;
        let want = if crc { u.crc } else { 0 };
        assert_eq!(u.fpdu[body..], fpdu::crc_to_wire(want));
        plain.extend(&u.fpdu[..body]);
        let own = if crc { fpdu::crc(0, &u.fpdu[..body]) } else { 0 };
        plain.extend(fpdu::crc_to_wire(own));
    }
    plain
}
